//! Logs: lines for people or JSON objects for machines, on stderr, so that stdout stays free for results; and
//! traces, where a collector is named.
//!
//! Libraries are heard from warnings on, whatever level is asked for: what they say below that may have
//! headers or statements in it, and with them secrets or rows. No library's span is ever exported.

mod spans;
mod traces;

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogFormat, LogLevel, TracesSettings};

pub(in crate::runtime) use spans::{batch, chunk, delivery, transform};
pub use traces::{Traces, TracesError};

/// Starts logging for this process, and exporting traces where `settings` name a collector. A second call changes
/// nothing. Not to be called where blocking is forbidden.
///
/// # Errors
/// Traces cannot be exported there.
pub fn start(format: LogFormat, level: LogLevel, settings: &TracesSettings) -> Result<Traces, TracesError> {
    let (traces, exporting) = match Traces::start(settings)? {
        Some((traces, layer)) => (traces, Some(layer)),
        None => (Traces::default(), None),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let layer = match format {
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Text => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colours).boxed()
        }
    };
    // An error means that somebody else, such as a test harness, listens already: let them.
    let registry = tracing_subscriber::registry().with(exporting).with(layer.with_filter(targets(level)));
    let _already = registry.try_init();
    Ok(traces)
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
    let libraries = Targets::new().with_default(own.min(LevelFilter::WARN));
    libraries.with_target("anabranch", own).with_target(spans::TARGET, LevelFilter::OFF)
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
            assert!(!targets.would_enable(spans::TARGET, &Level::INFO), "spans are no lines");
            assert_eq!(targets.would_enable("tokio_postgres", &Level::WARN), level != LogLevel::Error);
        }
        assert!(targets(LogLevel::Debug).would_enable("anabranch::plugin", &Level::DEBUG));
    }
}
