//! Real guests, built from source, through the plugin room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub)]

mod calls;
mod echo;
mod frozen;
mod guests;
mod hostile;
mod loading;
mod rows;
mod shape;
