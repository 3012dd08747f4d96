//! Ending in order: the first signal asks for a drain, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The exit status of a process that was told twice to stop: 128 + SIGTERM.
const ENDED_AT_ONCE: i32 = 143;

/// Watches SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers; must run inside a Tokio runtime. From here on the signals no longer end the
    /// process by themselves.
    pub fn install() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Cancels `shutdown` at the first signal and ends the process at the second. Runs until aborted.
    pub async fn govern(mut self, shutdown: CancellationToken) {
        let first = self.next().await;
        info!(signal = first, "draining: no more changes are read, what is in hand is delivered");
        shutdown.cancel();
        let second = self.next().await;
        warn!(signal = second, "ending at once; what was not acknowledged will be delivered again");
        std::process::exit(ENDED_AT_ONCE);
    }
}

/// Now, in microseconds since 1970-01-01 UTC.
pub(super) fn now_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
