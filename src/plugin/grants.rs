//! What a plugin may use beside the log and its settings: what its imports ask for, and what the configuration grants.
//!
//! Guarantees: nothing is granted that is not written; what is asked for and not granted is told with the lines that
//! would grant it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use reqwest::{
    Url,
    header::{HeaderName, HeaderValue},
};

use crate::model::Secret;

/// What a plugin may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Outbound HTTP: `wasi:http`.
    Http,
    /// Read-only SQL on the source.
    Query,
    /// A small store of keys and values.
    State,
    /// Numbers at /metrics.
    Metrics,
}

impl Capability {
    /// Its word, which is the setting that grants it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Query => "query",
            Self::State => "state",
            Self::Metrics => "metrics",
        }
    }

    /// The capability of a word.
    pub(super) fn named(word: &str) -> Option<Self> {
        [Self::Http, Self::Query, Self::State, Self::Metrics].into_iter().find(|known| known.as_str() == word)
    }

    /// The line that grants it.
    #[must_use]
    pub fn line(self) -> &'static str {
        match self {
            Self::Http => r#"http = ["https://host.example:443"]"#,
            Self::Query => "query = true",
            Self::State => "state = true",
            Self::Metrics => "metrics = true",
        }
    }

    /// The capability that an interface of WASI is part of.
    pub(super) fn of_wasi(interface: &str) -> Option<Self> {
        let (name, version) = interface.split_once('@')?;
        let version = semver::Version::parse(version).ok()?;
        let known = matches!(
            name,
            "wasi:http/types"
                | "wasi:http/outgoing-handler"
                | "wasi:io/error"
                | "wasi:io/poll"
                | "wasi:io/streams"
                | "wasi:clocks/monotonic-clock"
        );
        (known && (version.major, version.minor) == (0, 2) && version.pre.is_empty()).then_some(Self::Http)
    }

    /// The capability that an interface of this package is.
    pub(super) fn of_ours(interface: &str) -> Option<Self> {
        [Self::Query, Self::State, Self::Metrics].into_iter().find(|known| known.as_str() == interface)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    /// Reads `https://search.example.com:9200`, without a path or anything else.
    ///
    /// # Errors
    /// It is no such thing; says why, without the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "write scheme, host and port, such as \"https://search.example.com:9200\"".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        if !bare || !url.username().is_empty() || url.password().is_some() {
            return Err(format!("has more than scheme, host and port: {}", wrong()));
        }
        Self::of(&url).ok_or_else(wrong)
    }

    /// Where a URL leads, if that is HTTP.
    pub(super) fn of(url: &Url) -> Option<Self> {
        let scheme = Some(url.scheme()).filter(|scheme| matches!(*scheme, "http" | "https"))?;
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        Some(Self { scheme: scheme.to_owned(), host: host.to_owned(), port })
    }

    /// Whether the connection is encrypted.
    pub(super) fn is_https(&self) -> bool {
        self.scheme == "https"
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        write!(f, "{scheme}://{host}:{port}")
    }
}

/// Outbound HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGrant {
    /// Where requests may go.
    pub origins: BTreeSet<Origin>,
    /// Whether they may go to addresses of this machine and of private networks.
    pub private_addresses: bool,
    /// Whom certificates are signed by, in place of the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// Headers that the host sets, by origin and name.
    pub headers: BTreeMap<Origin, BTreeMap<String, Secret>>,
    /// How long a request may take, until the last byte of its answer.
    pub timeout: Duration,
    /// Bytes of a request's body.
    pub max_request: usize,
    /// Bytes of an answer's body.
    pub max_response: usize,
    /// Requests at once.
    pub in_flight: usize,
}

/// What one plugin is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    /// Outbound HTTP.
    pub http: Option<HttpGrant>,
    /// Read-only SQL on the source.
    pub query: Option<QueryGrant>,
    /// A small store of keys and values.
    pub state: Option<StateGrant>,
    /// Numbers at /metrics.
    pub metrics: Option<MetricsGrant>,
}

/// Read-only SQL on the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryGrant {
    /// How long one call may take, waiting for its turn and for the change to be visible included.
    pub timeout: Duration,
    /// Rows of one call.
    pub max_rows: usize,
    /// Bytes of one call's answer.
    pub max_bytes: usize,
}

/// A small store of keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateGrant {
    /// Bytes of keys and values, for each mapping and generation.
    pub max_bytes: usize,
    /// Keys, for each mapping and generation.
    pub max_keys: usize,
}

/// Numbers at /metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsGrant {
    /// Series of one mapping.
    pub max_series: usize,
}

impl Grants {
    /// The same, where what is not granted may be asked for all the same: requests go nowhere, and nothing but memory
    /// serves the rest.
    pub(super) fn lenient(self) -> Self {
        const LIMIT: Duration = Duration::from_secs(5);
        let nowhere = || HttpGrant {
            origins: BTreeSet::new(),
            private_addresses: false,
            ca_file: None,
            headers: BTreeMap::new(),
            timeout: LIMIT,
            max_request: 8 << 20,
            max_response: 8 << 20,
            in_flight: 32,
        };
        let query = || QueryGrant { timeout: LIMIT, max_rows: 10_000, max_bytes: 8 << 20 };
        Self {
            http: Some(self.http.unwrap_or_else(nowhere)),
            query: Some(self.query.unwrap_or_else(query)),
            state: Some(self.state.unwrap_or(StateGrant { max_bytes: 1 << 20, max_keys: 10_000 })),
            metrics: Some(self.metrics.unwrap_or(MetricsGrant { max_series: 100 })),
        }
    }

    /// Whether something is granted.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        match capability {
            Capability::Http => self.http.is_some(),
            Capability::Query => self.query.is_some(),
            Capability::State => self.state.is_some(),
            Capability::Metrics => self.metrics.is_some(),
        }
    }
}

/// Headers that the host sets by itself, or that concern the connection.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Whether a text can be the name of a header that is granted.
///
/// # Errors
/// It cannot; says why.
pub fn header_name(name: &str) -> Result<HeaderName, String> {
    let lower = name.to_ascii_lowercase();
    if OWN.contains(&lower.as_str()) {
        return Err("this header is the connection's own; leave it out".to_owned());
    }
    HeaderName::from_bytes(lower.as_bytes()).map_err(|_| "this cannot be a header's name".to_owned())
}

/// Whether a text can be the value of a header; it is marked so that nobody prints it.
///
/// # Errors
/// It cannot; says so without the text.
pub fn header_value(value: &Secret) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(value.expose());
    let mut value = value.map_err(|_| "its value has characters that no header may have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// What a plugin asks for and is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ungranted {
    /// The plugin's name.
    pub plugin: String,
    /// Never empty.
    pub capabilities: BTreeSet<Capability>,
}

impl Ungranted {
    /// The lines of the config file that grant it all.
    #[must_use]
    pub fn toml(&self) -> String {
        let lines: Vec<_> = self.capabilities.iter().map(|capability| capability.line()).collect();
        format!("[plugins.{}.grants]\n{}", self.plugin, lines.join("\n"))
    }

    /// The capabilities in words: `http and query`.
    #[must_use]
    pub fn words(&self) -> String {
        let words: Vec<_> = self.capabilities.iter().map(|capability| capability.as_str()).collect();
        match words.as_slice() {
            [but @ .., last] if !but.is_empty() => format!("{} and {last}", but.join(", ")),
            words => words.concat(),
        }
    }
}

impl fmt::Display for Ungranted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.toml().replace('\n', "; ").replacen("; ", " ", 1);
        write!(f, "asks for {}, which the config does not grant: add {lines}", self.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let shown = |text: &str| Origin::parse(text).map(|origin| origin.to_string());
        assert_eq!(shown("https://Search.Example.com").unwrap(), "https://search.example.com:443");
        assert_eq!(shown("http://[::1]:9200").unwrap(), "http://[::1]:9200");
        assert_eq!(shown("http://0x7f.1/").unwrap(), "http://127.0.0.1:80", "as it is connected to");
        for wrong in [
            "",
            "search",
            "ftp://a",
            "https://a/b",
            "https://a?b",
            "https://u@a",
            "https://u:p@a",
            "file:///a",
        ] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_is_told_with_the_lines_that_grant_it() {
        let capabilities = [Capability::State, Capability::Http, Capability::Query].into();
        let ungranted = Ungranted { plugin: "orders".to_owned(), capabilities };
        assert_eq!(ungranted.words(), "http, query and state");
        assert_eq!(
            ungranted.to_string(),
            "asks for http, query and state, which the config does not grant: add [plugins.orders.grants] \
             http = [\"https://host.example:443\"]; query = true; state = true"
        );
    }

    #[test]
    fn of_wasi_only_what_http_needs() {
        for name in
            ["wasi:http/outgoing-handler@0.2.0", "wasi:io/poll@0.2.12", "wasi:clocks/monotonic-clock@0.2.3"]
        {
            assert_eq!(Capability::of_wasi(name), Some(Capability::Http), "{name}");
        }
        for name in [
            "wasi:http/incoming-handler@0.2.0",
            "wasi:filesystem/types@0.2.0",
            "wasi:sockets/tcp@0.2.0",
            "wasi:cli/environment@0.2.0",
            "wasi:random/random@0.2.0",
            "wasi:clocks/wall-clock@0.2.0",
            "wasi:http/types@0.3.0",
            "wasi:http/types",
        ] {
            assert_eq!(Capability::of_wasi(name), None, "{name}");
        }
    }
}
