//! The operations endpoint from outside: probes through a life, exact counts, answers that are safe to show, and
//! clients that misbehave. On a real server, by the binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod counts;
mod probes;
mod web;

#[path = "../scene/mod.rs"]
mod scene;

#[path = "../support/receiver.rs"]
mod receiver;
