//! Bytes of the replication protocol and of Postgres's text output, to and from our words.
//!
//! Layer 1: pure and synchronous. [`frame`] splits what arrives in CopyData, [`message`] decodes pgoutput
//! (Postgres documentation, "Logical Replication Message Formats"), [`spool`] keeps what is streamed of open transactions,
//! [`transaction`] assembles committed transactions into [`ChangeBatch`](crate::model::ChangeBatch)es, [`text`] turns a value's text into MessagePack or
//! JSON, and [`types`] knows the built-in types.
//!
//! Guarantees: no input makes it panic; every error names the message, table or type and the place; NULL,
//! empty, unchanged and unknown stay four different things; rows cost no allocation of their own.
//! Must never: do I/O, wait, log, or take an undecodable value for NULL.

pub mod frame;
pub mod message;
pub mod spool;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod transaction;
pub mod types;

pub use frame::{Frame, FrameError, StandbyStatusUpdate};
pub use message::{DecodeError, Decoder, Message};
pub use spool::{Spool, SpoolError};
pub use text::{Encoder, JsonEncoder, MsgpackEncoder, ValueError, encode_cell, encode_str, encode_value};
pub use transaction::{AssembleError, Assembler, Committed, Handled, RawColumn, RawRelation};
pub use types::builtin_value_type;
