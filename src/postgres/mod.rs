//! The source: everything that speaks to Postgres as Postgres.
//!
//! Guarantees that every connection, of both kinds, comes from one parsed [`ConnectSettings`] with the same
//! pinned session settings, so that the same value is the same text in the stream and in a snapshot; that a
//! server's SQLSTATE is kept; that no error, log or `Debug` shows a password or a row. Must never alter a
//! table of the application, nor make its own statements fail.

mod connect;
mod error;
mod leader;
mod parse;
mod preflight;
mod settings;
mod tls;
mod transport;
mod wire;

pub use connect::{Client, Purpose};
pub use error::{Error, ErrorKind};
pub use leader::{Holder, Leader, holder, lock_key};
pub use preflight::{Code, Finding, Scope, Severity, Wanted, preflight};
pub use settings::{Address, ChannelBinding, ConnectSettings, Host, Keepalives, Roots, TargetSession, TlsMode};
