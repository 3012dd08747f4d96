//! Real guests, built from source, through the plugin room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub)]

mod calls;
mod echo;
mod frozen;
mod guests;
mod hostile;
mod http;
mod limits;
mod loading;
mod memory;
#[path = "../support/receiver.rs"]
mod receiver;
mod rows;
mod shape;
mod sinks;
