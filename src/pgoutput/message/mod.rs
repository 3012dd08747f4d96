//! Decoder of pgoutput messages, protocol versions 1, 2 and 4 (Postgres documentation, "Logical
//! Replication Message Formats").
//!
//! Guarantees: a decoded [`Message`] borrows from its bytes and allocates nothing; its tuples, column lists
//! and oid lists were walked once, so that iterating over them cannot fail; any input gives a message or a
//! [`DecodeError`] with kind and offset, never a panic; bytes after the end of a message are an error.
//! Must never: guess at an unknown kind.

mod decode;
#[cfg(test)]
mod tests;
mod tuple;

pub use decode::{DecodeError, Decoder};
pub use tuple::{Tuple, TupleSpan, Value};

use crate::model::{Lsn, ReplicaIdentity, Xid};

/// One message. `xid` is there for messages inside a streamed block (protocol 2 and later): the
/// (sub)transaction that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// `B`: a committed transaction begins.
    Begin {
        /// Where its commit record begins.
        final_lsn: Lsn,
        /// When it was committed: microseconds since 1970-01-01 UTC.
        commit_time: i64,
        /// Its top-level id.
        xid: Xid,
    },
    /// `C`: the transaction ends.
    Commit {
        /// Where the commit record begins.
        commit_lsn: Lsn,
        /// Where it ends: the position to confirm.
        end_lsn: Lsn,
        /// Microseconds since 1970-01-01 UTC.
        commit_time: i64,
    },
    /// `O`: the transaction came from another server.
    Origin {
        /// Its commit there.
        commit_lsn: Lsn,
        /// The origin's name, as bytes.
        name: &'a [u8],
    },
    /// `R`: a table, as valid for the rows that follow.
    Relation(RelationMessage<'a>),
    /// `Y`: a type that is not built in.
    Type {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// Its oid.
        oid: u32,
        /// Its schema; empty means `pg_catalog`.
        namespace: &'a str,
        /// Its name; for a domain, its base type's.
        name: &'a str,
    },
    /// `I`.
    Insert {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// The table's oid.
        relation: u32,
        /// The new row.
        new: Tuple<'a>,
    },
    /// `U`.
    Update {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// The table's oid.
        relation: u32,
        /// The old row, as far as it was sent.
        old: Option<OldTuple<'a>>,
        /// The new row.
        new: Tuple<'a>,
    },
    /// `D`.
    Delete {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// The table's oid.
        relation: u32,
        /// The old row, as far as it was sent.
        old: OldTuple<'a>,
    },
    /// `T`.
    Truncate {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// `CASCADE` was said.
        cascade: bool,
        /// `RESTART IDENTITY` was said.
        restart_identity: bool,
        /// The tables, in order.
        relations: Oids<'a>,
    },
    /// `M`: what `pg_logical_emit_message` wrote, by anybody.
    Logical {
        /// Inside a streamed block.
        xid: Option<Xid>,
        /// Whether it belongs to a transaction; others come on their own.
        transactional: bool,
        /// Where it was written.
        lsn: Lsn,
        /// Whose it is, as bytes.
        prefix: &'a [u8],
        /// Any bytes.
        content: &'a [u8],
    },
    /// `S`: a block of a transaction in progress begins.
    StreamStart {
        /// The top-level id.
        xid: Xid,
        /// Whether it is the transaction's first block.
        first_segment: bool,
    },
    /// `E`: the block ends.
    StreamStop,
    /// `c`: a streamed transaction was committed.
    StreamCommit {
        /// The top-level id.
        xid: Xid,
        /// Where the commit record begins.
        commit_lsn: Lsn,
        /// Where it ends.
        end_lsn: Lsn,
        /// Microseconds since 1970-01-01 UTC.
        commit_time: i64,
    },
    /// `A`: a streamed transaction, or a savepoint of it, was rolled back.
    StreamAbort {
        /// The top-level id.
        xid: Xid,
        /// What was rolled back; equals `xid` for the whole.
        subxid: Xid,
        /// Position and time (microseconds since 1970-01-01 UTC); sent by protocol 4 in parallel mode.
        abort: Option<(Lsn, i64)>,
    },
}

/// `R`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationMessage<'a> {
    /// Inside a streamed block.
    pub xid: Option<Xid>,
    /// `pg_class.oid`.
    pub oid: u32,
    /// Its schema; empty means `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// What its old tuples carry.
    pub replica_identity: ReplicaIdentity,
    /// Its published columns.
    pub columns: Columns<'a>,
}

/// The columns of a [`RelationMessage`], in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns<'a> {
    pub(super) count: u16,
    pub(super) body: &'a [u8],
}

/// One column of a [`RelationMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnMessage<'a> {
    /// Part of the replica identity.
    pub identity: bool,
    /// Its name.
    pub name: &'a str,
    /// Its type; a domain's own oid.
    pub type_oid: u32,
    /// `atttypmod`.
    pub type_modifier: i32,
}

impl<'a> Columns<'a> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none (a table may have no columns).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each column.
    pub fn iter(&self) -> impl Iterator<Item = ColumnMessage<'a>> + use<'a> {
        decode::columns(self.body)
    }
}

/// Oids on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oids<'a> {
    pub(super) body: &'a [u8],
}

impl<'a> Oids<'a> {
    /// Each oid, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.body.as_chunks().0.iter().map(|chunk| u32::from_be_bytes(*chunk))
    }
}

/// How much of an old row was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKind {
    /// `K`: the replica identity's columns; the others say `n`, which here means unknown.
    Key,
    /// `O`: the whole row.
    Full,
}

/// An old row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldTuple<'a> {
    /// How much of it there is.
    pub kind: OldKind,
    /// Its columns.
    pub tuple: Tuple<'a>,
}
