//! Backfill: reads what is already there in keyset chunks and merges them with the live stream, exactly.
//!
//! Layer 1: pure machines without I/O, clock or tasks. [`Machine`] takes events (transactions of the
//! stream, watermarks, chunks that were read, what became durable) and answers with commands.
//!
//! # What it guarantees
//! - A row of a chunk is emitted only where the stream has not overtaken it: no transaction that was
//!   streamed before touched its key and is invisible in the chunk's snapshot. After quiet, destination and
//!   source agree, and no emitted row ever replaces a newer one, not for a moment.
//! - A cursor is saved only when its chunk and all before it are durable in every target.
//! - A run ends, whatever its chunks are like, once its reads succeed and its transactions become visible.
//! - Nothing is read for a run before its beginning was granted, nor while its table is paused.
//!
//! # What it relies on
//! - A chunk is read in one `repeatable read` transaction that *first* locks the table (`lock table … in
//!   access share mode`) and *then* takes its snapshot: TRUNCATE and rewriting DDL are not MVCC-safe, and
//!   without the lock a snapshot from before them finds the table empty.
//! - Every transaction of the stream passes through [`Machine::apply`], also those that lanes skip.
//! - The slot is never confirmed past [`Machine::confirmable`].
//! - A machine lives no longer than the leader's session.
//!
//! # What it must never do
//! Guess visibility from positions or time; wait for the stream; trust a position that a function returned.

mod command;
mod cursor;
mod keys;
mod machine;
mod marker;
mod pace;
mod report;
mod run;
mod schedule;
mod visibility;
mod window;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers of tests")]
mod simulation;

pub use command::{
    ChunkRead, Command, Emission, ReadFailure, ReadRequest, RestartReason, RunSpec, RunStats, RunView,
    Settings,
};
pub use cursor::{Cursor, KeyColumn, Page, PageSettings, share_done};
pub use keys::Keys;
pub use machine::Machine;
pub use marker::{Attempt, MESSAGE_PREFIX, Marker, MarkerKind};
pub use pace::{Controls, TableControl};
pub use report::{Account, Report, Stage};
pub use schedule::{Timestamp, pause};
pub use visibility::{Limbo, covers, everything_before};
pub use window::{RereadReason, Touch, Verdict, Window};
