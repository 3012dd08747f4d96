//! `run`: streams and backfills until told to stop.

use std::net::SocketAddr;

use tokio_util::sync::CancellationToken;

use crate::runtime::{self, Signals};

use super::{Context, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Where the operations endpoint listens, in place of the config's: an IP address and a port.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Take other bytes of the same version for a bump: a plugin that is built anew rebuilds its documents. For
    /// development, where nobody has to know which code made which document.
    #[arg(long)]
    dev: bool,
}

/// The first SIGTERM or SIGINT drains and ends with exit code 0, the second ends at once.
pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let (mut config, traces) = context.host_config()?;
    config.http.listen = arguments.http.or(config.http.listen);
    config.plugins.dev = arguments.dev;
    let ended = context.block_on(async {
        let shutdown = CancellationToken::new();
        let signals = Signals::install()?;
        tokio::select! {
            ended = runtime::run(config, shutdown.clone()) => ended?,
            // Goes on until the process does.
            () = signals.govern(shutdown) => {}
        }
        Ok(Exit::Done)
    });
    traces.finish();
    ended
}
