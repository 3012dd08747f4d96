//! Guests in every language, built from source and run as components.
//!
//! Where the tools of a language are missing, its tests are left out, loudly; never in continuous integration.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub)]

mod capabilities;
mod documents;
mod failures;
mod live;
mod measure;
mod projects;
mod sinks;

#[path = "../support/receiver.rs"]
mod receiver;
#[allow(dead_code, reason = "shared with the tests of the plugin room")]
#[path = "../plugin/rows.rs"]
mod rows;
#[path = "../scene/mod.rs"]
mod scene;
#[path = "../http/web.rs"]
mod web;
