//! `log`: lines of guests as `tracing` events.
//!
//! Guarantees: a line is one event of bounded length without control characters, so that it can forge neither
//! another line nor terminal escapes; each revision has a rate, each call a number of lines (`log_lines` both), and what
//! goes beyond is counted and told.

use std::{
    fmt::Write,
    sync::Mutex,
    time::{Duration, Instant},
};

use tracing::{debug, error, info, trace, warn};

use crate::model::{Lsn, Revision};

/// The most bytes of a line that are kept.
const LINE_LIMIT: usize = 2048;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plugin) enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The lines of one revision.
#[derive(Debug)]
pub(in crate::plugin) struct LogGate {
    window: Mutex<Window>,
    limit: u32,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    passed: u32,
    dropped: u64,
}

/// What a gate says of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Drop,
    /// Let it through, after telling how many were dropped before it.
    Pass {
        dropped: u64,
    },
}

impl LogGate {
    /// A gate for so many lines a second, and a call.
    pub(in crate::plugin) fn new(limit: u32) -> Self {
        let window = Window { since: Instant::now(), passed: 0, dropped: 0 };
        Self { window: Mutex::new(window), limit }
    }

    /// How many lines a second may have, and a call.
    pub(in crate::plugin) fn limit(&self) -> u32 {
        self.limit
    }

    /// Counts a line that goes beyond its call's number.
    pub(in crate::plugin) fn drop_line(&self) {
        self.window.lock().unwrap_or_else(std::sync::PoisonError::into_inner).dropped += 1;
    }

    fn judge(&self, now: Instant) -> Verdict {
        let mut window = self.window.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if now.duration_since(window.since) >= Duration::from_secs(1) {
            window.since = now;
            window.passed = 0;
        }
        if window.passed >= self.limit {
            window.dropped += 1;
            return Verdict::Drop;
        }
        window.passed += 1;
        Verdict::Pass { dropped: std::mem::take(&mut window.dropped) }
    }

    /// Writes a line, or counts it.
    pub(in crate::plugin) fn write(&self, line: Line<'_>) {
        let Verdict::Pass { dropped } = self.judge(Instant::now()) else { return };
        let (plugin, version) = (line.revision.name.as_str(), line.revision.version.to_string());
        if dropped > 0 {
            self.tell(line.revision, dropped);
        }
        let (entity, lsn) = (line.entity, tracing::field::display(line.lsn));
        let message = clean(line.message);
        match line.level {
            Level::Error => error!(target: "anabranch::guest", plugin, version, entity, lsn, "{message}"),
            Level::Warn => warn!(target: "anabranch::guest", plugin, version, entity, lsn, "{message}"),
            Level::Info => info!(target: "anabranch::guest", plugin, version, entity, lsn, "{message}"),
            Level::Debug => debug!(target: "anabranch::guest", plugin, version, entity, lsn, "{message}"),
            Level::Trace => trace!(target: "anabranch::guest", plugin, version, entity, lsn, "{message}"),
        }
    }

    fn tell(&self, revision: &Revision, dropped: u64) {
        let (plugin, version, limit) = (revision.name.as_str(), revision.version.to_string(), self.limit);
        warn!(
            target: "anabranch::guest",
            plugin,
            version,
            dropped,
            limit,
            "log lines were dropped: more than one second, or one call, may have (`[plugins] log_lines`)",
        );
    }

    /// Tells of lines that were dropped and not told yet: when the revision is unloaded.
    pub(in crate::plugin) fn close(&self, revision: &Revision) {
        let mut window = self.window.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dropped = std::mem::take(&mut window.dropped);
        if dropped > 0 {
            self.tell(revision, dropped);
        }
    }
}

/// A line and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) struct Line<'a> {
    pub(in crate::plugin) revision: &'a Revision,
    pub(in crate::plugin) entity: &'a str,
    /// The first position of the call.
    pub(in crate::plugin) lsn: Lsn,
    pub(in crate::plugin) level: Level,
    pub(in crate::plugin) message: &'a str,
}

/// Escapes control and formatting characters, and cuts what is too long.
pub(in crate::plugin) fn clean(message: &str) -> String {
    let mut out = String::with_capacity(message.len().min(LINE_LIMIT + 32));
    for (at, c) in message.char_indices() {
        if out.len() >= LINE_LIMIT {
            let _ = write!(out, "… ({} bytes more)", message.len() - at);
            break;
        }
        // Bidirectional controls and line separators reorder or break a line as well as control characters do.
        let hostile = c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if hostile {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c086_a_line_cannot_forge_another() {
        let line = "fine\n{\"level\":\"ERROR\"}\r\u{1b}[31mred\u{7}\u{202e}x\u{2028}";
        let cleaned = clean(line);
        assert_eq!(cleaned, "fine\\n{\"level\":\"ERROR\"}\\r\\u{1b}[31mred\\u{7}\\u{202e}x\\u{2028}");
        assert!(!cleaned.chars().any(char::is_control));
    }

    #[test]
    fn c086_a_long_line_is_cut() {
        let cleaned = clean(&"é".repeat(1 << 20));
        assert!(cleaned.len() < LINE_LIMIT + 40, "{}", cleaned.len());
        assert!(cleaned.ends_with("bytes more)"));
        assert_eq!(clean("short"), "short");
    }

    #[test]
    fn c086_a_flood_is_counted() {
        let gate = LogGate::new(100);
        let start = Instant::now();
        let passed = (0..1000).filter(|_| gate.judge(start) != Verdict::Drop).count();
        assert_eq!(passed, 100);
        let later = start + Duration::from_secs(2);
        assert_eq!(gate.judge(later), Verdict::Pass { dropped: 900 });
        gate.drop_line();
        assert_eq!(gate.judge(later), Verdict::Pass { dropped: 1 }, "those of one call, too");
        assert_eq!(gate.judge(later), Verdict::Pass { dropped: 0 });
    }
}
