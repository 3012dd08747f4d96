//! What the host offers: a log, and the mapping's settings.
//!
//! Natively (in unit tests) log lines go to standard error and settings are those of
//! [`testing::set_config`](crate::testing::set_config).

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something looks wrong.
    Warn,
    /// Something worth knowing.
    Info,
    /// For the developer.
    Debug,
    /// Every detail.
    Trace,
}

/// Writes a line to the host's log. The host limits their rate and length.
pub fn log(level: Level, message: &str) {
    #[cfg(target_family = "wasm")]
    {
        use crate::bindings::anabranch::plugin::log as host;
        let level = match level {
            Level::Error => host::Level::Error,
            Level::Warn => host::Level::Warn,
            Level::Info => host::Level::Info,
            Level::Debug => host::Level::Debug,
            Level::Trace => host::Level::Trace,
        };
        host::log(level, message);
    }
    #[cfg(not(target_family = "wasm"))]
    crate::testing::record_log(level, message);
}

/// The value under a key of the mapping's `config` table, where it has one.
#[must_use]
pub fn config(key: &str) -> Option<String> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::anabranch::plugin::config::get(key);
    #[cfg(not(target_family = "wasm"))]
    return crate::testing::config(key);
}

/// Makes the message of a panic a line of the host's log, before the panic ends the instance.
#[doc(hidden)]
pub fn log_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| log(Level::Error, &panic.to_string()))));
}

/// Writes a formatted line of level info to the host's log.
#[macro_export]
macro_rules! info {
    ($($part:tt)*) => { $crate::host::log($crate::host::Level::Info, &::std::format!($($part)*)) };
}

/// Writes a formatted line of level warn to the host's log.
#[macro_export]
macro_rules! warn {
    ($($part:tt)*) => { $crate::host::log($crate::host::Level::Warn, &::std::format!($($part)*)) };
}
