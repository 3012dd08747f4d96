//! What can be wrong with streamed transactions.

use crate::model::Xid;

/// The spool is of no use afterwards: reconnect, and the server streams its transactions again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpoolError {
    /// A message in a place where it makes no sense.
    #[error("{message} of the streamed transaction {xid} {place}; the stream is out of order, reconnect")]
    OutOfOrder {
        /// The kind of message.
        message: &'static str,
        /// The top-level transaction.
        xid: Xid,
        /// What is wrong with its place.
        place: &'static str,
    },
    /// What was read back is not what was written.
    #[error(
        "what was spooled of transaction {xid} cannot be read back: {problem} at byte {offset} of its file; \
         the server streams it again"
    )]
    Damaged {
        /// The top-level transaction.
        xid: Xid,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        problem: &'static str,
    },
}
