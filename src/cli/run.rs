//! `run`: streams and backfills until told to stop.

use tokio_util::sync::CancellationToken;

use crate::runtime::{self, Signals};

use super::{Context, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

/// The first SIGTERM or SIGINT drains and ends with exit code 0, the second ends at once.
pub(super) fn run(context: &Context, _: &Arguments) -> anyhow::Result<Exit> {
    let config = context.config()?;
    context.block_on(async {
        let shutdown = CancellationToken::new();
        let signals = Signals::install()?;
        tokio::select! {
            ended = runtime::run(config, shutdown.clone()) => ended?,
            // Goes on until the process does.
            () = signals.govern(shutdown) => {}
        }
        Ok(Exit::Done)
    })
}
