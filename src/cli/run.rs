//! `run`: streams and backfills until told to stop.

use tokio_util::sync::CancellationToken;

use crate::runtime::{self, shutdown::Signals};

use super::{Context, Exit, UsageError};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}

/// The first SIGTERM or SIGINT drains and ends with exit code 0, the second ends at once.
pub(super) fn run(context: &Context, _: &Arguments) -> anyhow::Result<Exit> {
    let config = context.config()?;
    context.block_on(async {
        let shutdown = CancellationToken::new();
        let signals = Signals::install()?;
        let ended = tokio::select! {
            ended = runtime::run(config, shutdown.clone()) => ended,
            // Goes on until the process does.
            () = signals.govern(shutdown) => Ok(()),
        };
        match ended {
            Ok(()) => Ok(Exit::Done),
            Err(error) if error.is_config() => Err(anyhow::Error::from(error).context(UsageError("".into()))),
            Err(error) => Err(error.into()),
        }
    })
}
