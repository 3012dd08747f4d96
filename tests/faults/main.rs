//! Tries to lose or corrupt data: kills, restarts, commits in limbo, versions that change, sinks that lag.
//!
//! Real Postgres, the real binary, real guests; what is believed is the checker (destination = transform of the
//! source, both ways) and the server's own views.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

mod crash;
mod failover;
mod history;
mod huge;
mod lag;
mod limbo;
mod network;
#[path = "../support/receiver.rs"]
mod receiver;
mod restored;
mod rows;
mod server;
mod slot_held;
mod swap;
mod timeouts;
mod versions;
mod wal;
#[path = "../http/web.rs"]
mod web;
mod world;
