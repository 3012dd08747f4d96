//! What can be wrong with a sequence of messages.

use crate::model::{Lsn, Xid};

/// The messages do not make transactions. The assembler is of no use afterwards: reconnect and resume from
/// the last confirmed position with a new one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// A message of a transaction that is still in progress.
    #[error(
        "{message} of the streamed transaction {xid}: streaming was not asked for; start the replication with streaming off"
    )]
    Streamed {
        /// The kind of message.
        message: &'static str,
        /// The top-level or sub-transaction.
        xid: Xid,
    },
    /// A message that belongs inside a transaction, or a Begin inside of one.
    #[error("{message} {place} after {position}; the stream is out of order, reconnect")]
    OutOfOrder {
        /// The kind of message.
        message: &'static str,
        /// `inside a transaction` or `outside of a transaction`.
        place: &'static str,
        /// The end of the last whole transaction.
        position: Lsn,
    },
    /// Begin and Commit name different commit records.
    #[error("transaction {xid} began with commit position {begin} and ended with {commit}; reconnect")]
    CommitMismatch {
        /// The transaction.
        xid: Xid,
        /// What Begin said.
        begin: Lsn,
        /// What Commit said.
        commit: Lsn,
    },
    /// A row before its table's Relation message.
    #[error(
        "{message} in transaction {xid} for the table with oid {oid}, which no Relation message described; reconnect"
    )]
    UnknownRelation {
        /// The kind of message.
        message: &'static str,
        /// The transaction.
        xid: Xid,
        /// The table.
        oid: u32,
    },
    /// A row of a relation that the caller was told of and did not define. A fault of this program.
    #[error(
        "{message} in transaction {xid} for {table}, which was not defined after its Relation message; please report this"
    )]
    Undefined {
        /// The kind of message.
        message: &'static str,
        /// The transaction.
        xid: Xid,
        /// The table.
        table: String,
    },
    /// A definition that does not fit the Relation message. A fault of this program.
    #[error(
        "{table} was defined with {defined} columns where its Relation message has {described}; please report this"
    )]
    Definition {
        /// The table.
        table: String,
        /// The columns defined.
        defined: usize,
        /// The columns in the message.
        described: usize,
    },
    /// A row with another number of columns than its relation.
    #[error(
        "a row of {table} in transaction {xid} has {found} columns where its relation has {expected}; reconnect"
    )]
    Columns {
        /// The table.
        table: String,
        /// The transaction.
        xid: Xid,
        /// The relation's.
        expected: usize,
        /// The row's.
        found: usize,
    },
    /// A value in Postgres's binary form.
    #[error(
        "{table}.{column} in transaction {xid} came in binary form; start the replication with binary off"
    )]
    Binary {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The transaction.
        xid: Xid,
    },
    /// The batch's spans have 32 bits. The caller lets batches grow too far.
    #[error("a batch with rows of {table} from transaction {xid} is larger than 4 GiB; take batches earlier")]
    TooLarge {
        /// The table.
        table: String,
        /// The transaction.
        xid: Xid,
    },
}
