//! From decoded messages to batches of committed transactions.
//!
//! The [`Assembler`] is fed message by message and fills one [`ChangeBatch`] until its caller takes it:
//! small transactions coalesce, a large one can be taken in pages. It asks its caller to complete each
//! Relation message from the catalogue.
//!
//! Guarantees: changes and transactions are in commit order; each row names the version of its relation that
//! was valid for it, also inside one batch; a row costs no allocation of its own; a batch that
//! [`ends_at_commit`](ChangeBatch::ends_at_commit) has whole transactions only.
//! Must never: fold NULL, unchanged and unknown; give out a position before its commit message; take a
//! streamed (uncommitted) row for a committed one.
//!
//! Streamed transactions (protocol 2 with `streaming`) are refused by name. They go to the
//! [`spool`](super::spool) in front of this, and come here as plain ones once they are committed.

mod assemble;
mod error;
mod relations;
#[cfg(test)]
mod tests;
mod tuples;

pub use assemble::Assembler;
pub use error::AssembleError;

#[cfg(doc)]
use crate::model::ChangeBatch;
use crate::model::{EntityName, ReplicaIdentity, TransactionInfo};

/// The prefix of Anabranch's own logical messages.
pub const MARKER_PREFIX: &[u8] = b"anabranch";

/// How much marker content one transaction may have, in bytes. Ours have far less; what is beyond was
/// written by somebody else under our name, and is ignored.
pub const MARKER_LIMIT: usize = 64 * 1024;

/// A column of a [`RawRelation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawColumn {
    /// Its name, unquoted.
    pub name: String,
    /// Its type in `pg_type`; a domain's own oid.
    pub type_oid: u32,
    /// Its `atttypmod`.
    pub type_modifier: i32,
    /// Whether it is part of the replica identity (every column is, under FULL).
    pub identity: bool,
}

/// A Relation message as it came, to be completed from the catalogue and given to [`Assembler::define`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRelation {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Its name.
    pub name: EntityName,
    /// What its old tuples carry.
    pub replica_identity: ReplicaIdentity,
    /// Its published columns, in the order of tuples.
    pub columns: Vec<RawColumn>,
}

/// A transaction whose commit message came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// With its end position.
    pub info: TransactionInfo,
    /// How many changes of it went into batches; 0 when all its tables are ignored, or it had no rows.
    pub changes: u64,
    /// How many rows of it were of ignored tables.
    pub ignored: u64,
    /// The contents of its messages under [`MARKER_PREFIX`], in order.
    pub markers: Vec<Vec<u8>>,
}

/// What the caller has to know or do after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Nothing: go on.
    Nothing,
    /// Call [`Assembler::define`] or [`Assembler::define_ignored`] before the table's next row.
    Relation(RawRelation),
    /// A commit boundary: [`Assembler::take`] now gives whole transactions.
    Committed(Committed),
}
