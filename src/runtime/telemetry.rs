//! Logs: lines for people or JSON objects for machines, on stderr, so that stdout stays free for results.
//!
//! Libraries are heard from warnings on, whatever level is asked for: what they say below that may have
//! headers or statements in it, and with them secrets or rows.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, util::SubscriberInitExt};

use crate::config::{LogFormat, LogLevel};

/// Starts logging for this process. A second call changes nothing.
pub fn start(format: LogFormat, level: LogLevel) {
    let filter = EnvFilter::new(directives(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error means that somebody else, such as a test harness, listens already: let them.
    let _already = match format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
        LogFormat::Text => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colours).finish().try_init()
        }
    };
}

fn directives(level: LogLevel) -> String {
    let others = if level == LogLevel::Error { "error" } else { "warn" };
    format!("{others},anabranch={}", level.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c096_libraries_are_never_heard_below_warnings() {
        for (_, level) in LogLevel::ALL {
            let directives = directives(level);
            assert!(directives.parse::<EnvFilter>().is_ok());
            assert!(directives.starts_with("warn,") || directives.starts_with("error,"));
        }
    }
}
