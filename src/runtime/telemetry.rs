//! Logs: lines for people or JSON objects for machines, on stderr, so that stdout stays free for results.
//!
//! Libraries are heard from warnings on, whatever level is asked for: what they say below that may have
//! headers or statements in it, and with them secrets or rows.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogLevel};

/// Starts logging for this process. A second call changes nothing.
pub fn start(format: LogFormat, level: LogLevel) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colours).boxed()
        }
    };
    // An error means that somebody else, such as a test harness, listens already: let them.
    let _already = tracing_subscriber::registry().with(layer.with_filter(targets(level))).try_init();
}

/// What is heard of whom.
fn targets(level: LogLevel) -> Targets {
    let own = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(own.min(LevelFilter::WARN)).with_target("anabranch", own)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn c096_libraries_are_never_heard_below_warnings() {
        for (_, level) in LogLevel::ALL {
            let targets = targets(level);
            assert!(targets.would_enable("anabranch::runtime", &Level::ERROR));
            assert!(targets.would_enable("tokio_postgres", &Level::ERROR));
            assert!(!targets.would_enable("tokio_postgres", &Level::INFO));
            assert_eq!(targets.would_enable("tokio_postgres", &Level::WARN), level != LogLevel::Error);
        }
        assert!(targets(LogLevel::Debug).would_enable("anabranch::plugin", &Level::DEBUG));
    }
}
