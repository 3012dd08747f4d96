//! What a mapping cannot process: kept, told, tried again, and never a flood. Real servers, real guests, real sinks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod bounds;
mod kills;
mod notes;
#[path = "../support/receiver.rs"]
mod receiver;
mod replay;
#[path = "../scene/mod.rs"]
mod scene;
mod sinks;
mod state;
mod transforms;
#[path = "../http/web.rs"]
mod web;
