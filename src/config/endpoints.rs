//! Where the operations endpoint listens, and where traces go.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{
    file::{HttpTable, TracesTable},
    resolve::Resolver,
    settings::{HttpSettings, TracesSettings},
};

/// Where the operations endpoint listens when it is asked for and not told where: not open to the network, which it
/// has no protection against.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9187);

impl Resolver<'_> {
    pub(super) fn http(&self, table: Option<&HttpTable>) -> HttpSettings {
        let Some(table) = table else { return HttpSettings::default() };
        let Some(typed) = &table.listen else { return HttpSettings { listen: Some(DEFAULT_LISTEN) } };
        let Some(text) = self.plain(typed) else { return HttpSettings::default() };
        let listen = text.parse().ok();
        if listen.is_none() {
            let message = format!(
                "`{}` is no address to listen on; write an IP address and a port, such as \"127.0.0.1:9187\" or \
                 \"[::]:9187\"",
                typed.value
            );
            self.complain(&typed.at, message);
        }
        HttpSettings { listen }
    }

    pub(super) fn traces(&self, table: &TracesTable) -> TracesSettings {
        let Some(typed) = &table.endpoint else { return TracesSettings::default() };
        let endpoint = self.secret(typed);
        if let Some(url) = &endpoint
            && !["http://", "https://"].iter().any(|scheme| url.expose().starts_with(scheme))
        {
            let message =
                "is no URL of an OTLP receiver over HTTP; write its base, such as \"http://localhost:4318\"";
            self.complain(&typed.at, message);
            return TracesSettings::default();
        }
        TracesSettings { endpoint }
    }
}
