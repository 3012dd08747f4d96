//! Transactions that are streamed while they are still open (protocol 2 and later, `streaming 'on'`).
//!
//! The server sends them in blocks, those of several transactions in turn, and tells later what became of each. The
//! [`Spool`] keeps what came by its top-level transaction, in memory up to a bound and beyond it in pages that its
//! caller writes away ([`Spool::spill`]); it cuts off what a rolled back savepoint had written; and at Stream Commit it
//! hands out a [`Replay`]: the messages of the transaction in their order, as of a plain one between Begin and Commit,
//! for the [`Assembler`](super::Assembler).
//!
//! What a savepoint wrote is cut off at its first message. That is exact: a subtransaction that can still be rolled
//! back is the innermost one that is open, so whatever its transaction has written since is its own or its
//! children's, which are rolled back with it.
//!
//! A replay comes later than its descriptions of tables came from the server. Its rows follow them; rows that come after
//! it follow the newest of all, which its caller gives to the assembler again ([`Spool::newer_descriptions`]).
//!
//! Guarantees: a replay has every message of what was committed, in the order in which they came, and none of what was
//! rolled back; what is read back is what was written, by length and checksum, or an error; what waits in
//! memory for its commit is bounded by the limit, whatever is streamed. On top of it come the places of savepoints and
//! pages, which cannot be written away: some 40 bytes for each savepoint of an open transaction (that of one that was
//! released is not told, and its rows may still be rolled back with an outer one; the server keeps several hundred
//! bytes for each as long), and some 50 for each page in a file.
//! Only whole pages are written away, as long as there are any: a write costs far more than the bytes in it.
//! Must never: give out anything of a transaction before its commit; do I/O; outlive its connection, since the server
//! streams every open transaction again from its beginning on the next one.

mod described;
mod error;
mod machine;
mod pages;
mod replay;
#[cfg(test)]
mod tests;

pub use error::SpoolError;
pub use machine::{Spool, SpoolUsage, Taken, Write};
pub use pages::Extent;
pub use replay::{Page, Replay, Source};
