//! What guests are offered: one file a capability.

mod address;
pub(super) mod call;
pub(super) mod config;
pub(super) mod http;
pub(super) mod log;
mod memory;
pub mod services;
