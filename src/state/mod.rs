//! What survives a restart: the schema `anabranch` in the source database.
//!
//! Every row belongs to one *installation* (named by its slot) and is found by exact match, so that two
//! installations on one database never touch each other's. The store guarantees that what a method returned
//! `Ok` for is committed. It decides nothing: when a cursor may be saved or a position confirmed is said by
//! `backfill` and `pipeline`.

mod error;
mod store;
mod upgrade;

pub use error::StateError;
pub use store::Store;

use crate::model::{EntityName, Lsn};

/// The checkpoint of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The slot's name, which is the installation's.
    pub name: String,
    /// The publication that the slot is read with.
    pub publication: String,
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

/// What one mapping was last run with, and how far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMapping {
    /// Its name.
    pub name: String,
    /// Its table.
    pub entity: EntityName,
    /// The table's oid: another one under the same name is another table.
    pub table_oid: u32,
    /// What its documents come from: `pipeline::Identity` as JSON.
    pub identity: String,
    /// How often it was rebuilt, from 1.
    pub generation: i64,
    /// The last generation whose backfill completed; 0 before the first.
    pub built: i64,
    /// Everything that was committed before is accepted by its sink.
    pub accepted: Lsn,
    /// How it is.
    pub status: MappingStatus,
    /// Why it does not run, or what it last failed with.
    pub last_error: Option<String>,
    /// Failures in a row.
    pub attempts: i32,
}

/// How a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingStatus {
    /// It follows the stream.
    Running,
    /// It fails and is tried again; the slot waits for it.
    Failing,
    /// It cannot run as it is (a refused revision, a table that cannot be published); the slot waits for it.
    Refused,
}

impl MappingStatus {
    /// The word in the schema and in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Refused => "refused",
        }
    }
}

/// A table's backfill, as it is stored: one for a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The table.
    pub entity: EntityName,
    /// Its id, a UUID's text.
    pub run: String,
    /// The mappings that its rows are for.
    pub mappings: Vec<String>,
    /// Where it is.
    pub status: RunStatus,
    /// The cursor, as JSON.
    pub cursor: Option<String>,
    /// Rows that are durable.
    pub rows: i64,
    /// Chunks that are durable.
    pub chunks: i64,
    /// About how many rows the table had when it began.
    pub estimate: Option<i64>,
    /// Failures in a row.
    pub attempts: i32,
    /// The last failure.
    pub last_error: Option<String>,
    /// Nothing is read before: microseconds since 1970-01-01 UTC.
    pub not_before: i64,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// It reads, or waits for its turn.
    Running,
    /// It failed and waits.
    Failing,
    /// All its rows are durable.
    Complete,
}

impl RunStatus {
    /// The word in the schema and in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Complete => "complete",
        }
    }
}
