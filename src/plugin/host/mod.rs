//! What guests are offered: one file a capability.

pub(super) mod config;
pub(super) mod log;
