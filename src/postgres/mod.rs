//! The source: everything that speaks to Postgres as Postgres.
//!
//! Guarantees that every connection, of both kinds, comes from one parsed [`ConnectSettings`] with the same
//! pinned session settings, so that the same value is the same text in the stream and in a snapshot; that a
//! server's SQLSTATE is kept; that no error, log or `Debug` shows a password or a row. Must never alter a
//! table of the application, nor make its own statements fail.

mod catalog;
mod column_lists;
mod connect;
mod enrich;
mod error;
mod frames;
mod identity;
mod keyset;
mod leader;
mod marks;
mod parse;
mod preflight;
mod publication;
mod quote;
mod settings;
mod slot;
mod snapshot;
mod status;
mod stream;
mod tls;
mod transport;
mod types;
mod wire;

pub use catalog::{Catalog, ResolvedRelation, StreamRelation, TableColumn, TableInfo};
pub use column_lists::ColumnLists;
pub use connect::{Client, Purpose};
pub use enrich::{Allowance, QueryError, QuerySession};
pub use error::{Error, ErrorKind};
pub use frames::Frames;
pub use identity::{UnusableIdentity, unusable_identities};
pub use leader::{Holder, Leadership, Lease, fence, holder, lock_key};
pub use marks::{Flush, MESSAGE_PREFIX, Sight};
pub use preflight::{Finding, PreflightRequest, Severity, preflight};
pub use publication::{
    PublicationChange, PublicationPlan, PublicationState, drop_publication, ensure_publication,
    find_publication, pending_change, published_tables, restore_publication, touch_publication,
    widen_publication, withdraw_unusable,
};
pub use settings::{
    Address, ChannelBinding, ConnectSettings, Host, Keepalives, Roots, TargetSession, TlsMode,
};
pub use slot::{
    Blocker, SlotState, SlotWal, blockers, check_slot_name, create_slot, drop_slot, find_slot, slot_user,
    slot_wal,
};
pub use snapshot::{ChunkRead, ChunkRequest, Reread, Sample, SampleRequest, SnapshotReader};
pub use status::StatusHandle;
pub use stream::{CreatedSlot, ReplicationClient, ReplicationStream, StreamOptions, SystemIdentity};
