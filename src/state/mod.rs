//! What survives a restart: the schema `anabranch` in the source database.
//!
//! Every row belongs to one *installation* (named by its slot) and is found by exact match, so that two
//! installations on one database never touch each other's. The store guarantees that what a method returned
//! `Ok` for is committed. It decides nothing: when a cursor may be saved or a position confirmed is said by
//! `backfill` and `pipeline`.

mod control;
mod error;
mod guest;
mod mapping;
mod partitions;
mod quarantine;
mod request;
mod run;
mod store;
mod suspension;
mod upgrade;

pub use control::StoredControl;
pub use error::StateError;
pub use guest::GuestWrite;
pub use mapping::{MappingStatus, StoredMapping};
pub use partitions::StoredPartition;
pub use quarantine::{Kept, NewEntry, QuarantineEntry, QuarantineFilter, QuarantineStage, RejectedDocument};
pub use request::{
    Asked, CHANNEL, KEYS_OF_A_REQUEST, PendingRequest, StoredRequest, StoredRunState, Target, Withdrawn,
};
pub use run::{RunAge, RunStatus, StoredRun};
pub use store::Store;
pub use suspension::Suspension;

use crate::model::Lsn;

/// The checkpoint of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The slot's name, which is the installation's.
    pub name: String,
    /// The publication that the slot is read with.
    pub publication: String,
    /// The publication's oid: another one under the same name was made anew. None: not known.
    pub publication_oid: Option<u32>,
    /// `system_identifier` of the cluster that the slot was made on.
    pub system_identifier: String,
    /// Its timeline when the checkpoint was saved.
    pub timeline: i32,
    /// Confirmed to the server at least up to here, when it was saved.
    pub confirmed: Lsn,
    /// How many leaderships there have been.
    pub term: i64,
    /// Set while tables were published after transactions had begun that the stream does not show for them:
    /// backfills read nothing until all transactions before this id have ended.
    pub baseline: Option<u64>,
}
