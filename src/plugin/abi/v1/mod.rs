//! `anabranch:plugin` 1: bindings, and the bytes of batches in both encodings (`wit/v1/payload-*.md`).

mod bindings;
pub(in crate::plugin) mod deliver;
mod reply;
mod reply_json;
mod reply_msgpack;
mod request;
mod rows;
#[cfg(test)]
mod tests;

pub(in crate::plugin) use bindings::{
    Called, Exports, Instance, Optional, PlaceCall, add_always, add_capability, describe, prepare,
};
pub(in crate::plugin) use reply::{Answers, ReplyLimits, ReplyProblem};
pub(in crate::plugin) use request::{Projection, Request};
pub(in crate::plugin) use rows::write_rows;

use crate::model::Encoding;

/// The interface that this host has.
pub(in crate::plugin) const PACKAGE: &str = "anabranch:plugin";
/// Its version.
pub(in crate::plugin) const VERSION: semver::Version = semver::Version::new(1, 0, 0);
/// What it offers to guests.
pub(in crate::plugin) const OFFERED: [&str; 6] = ["config", "log", "metrics", "query", "state", "types"];

/// Reads a reply into `answers`.
pub(in crate::plugin) fn read_reply(
    encoding: Encoding,
    reply: Vec<u8>,
    answers: &mut Answers<'_>,
) -> Result<(), ReplyProblem> {
    match encoding {
        Encoding::Msgpack => reply_msgpack::read(&reply, answers)?,
        Encoding::Json => reply_json::read(&reply, answers)?,
    }
    answers.finish(reply)
}
