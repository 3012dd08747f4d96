//! Backfills as operators see them: asked for, withdrawn, slowed down, waited for, purged; in parts; while tables
//! change; with two hosts. On a real server, by the binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod hosts;
mod isolation;
mod mappings;
mod parts;
mod requests;
mod shop;
mod tables;

#[path = "../scene/mod.rs"]
mod scene;

#[path = "../support/receiver.rs"]
mod receiver;
