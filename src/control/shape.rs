//! The JSON shapes of what is stored about backfills: the same on every way that tells of them.

use serde::Serialize;

use crate::{
    backfill::Report,
    model::Scope,
    state::{PendingRequest, StoredControl, StoredRun},
};

use super::{Item, Picture, describe};

/// A request that has not become a run.
#[derive(Debug, Serialize)]
pub struct RequestShape {
    /// Its number.
    pub id: i64,
    /// The table or the mapping.
    pub target: String,
    /// Null for all rows.
    pub scope: Option<Scope>,
    /// Whether the destination is emptied before.
    pub purge: bool,
    /// Whether the leader is turning it into a run.
    pub taken: bool,
    /// How long ago it was asked for.
    pub seconds: u64,
    /// Whether a mapping of it is known.
    pub mapped: bool,
}

impl RequestShape {
    /// As it is stored.
    #[must_use]
    pub fn new(picture: &Picture, pending: &PendingRequest) -> Self {
        let request = &pending.request;
        Self {
            id: request.id,
            target: request.target.to_string(),
            scope: request.scope.clone(),
            purge: request.purge,
            taken: pending.taken,
            seconds: pending.age.as_secs(),
            mapped: picture.mappings_of(&request.target).next().is_some(),
        }
    }
}

/// A run.
#[derive(Debug, Serialize)]
pub struct RunShape {
    /// The table.
    pub entity: String,
    /// Its name.
    pub run: String,
    /// Null for all rows.
    pub scope: Option<Scope>,
    /// Whom it is for.
    pub mappings: Vec<String>,
    /// `queued`, `running`, `failing`, `complete` or `cancelled`.
    pub status: &'static str,
    /// Whether somebody paused it.
    pub paused: bool,
    /// Rows a second at the most.
    pub rows_per_second: Option<u32>,
    /// Rows that are durable in every sink.
    pub rows: i64,
    /// Chunks that are.
    pub chunks: i64,
    /// About how many rows the table had.
    pub estimate: Option<i64>,
    /// How much of it is done.
    pub percent: Option<u64>,
    /// Since its first page was asked for; of one that is complete, until then.
    pub elapsed_seconds: Option<u64>,
    /// About how long it still takes.
    pub left_seconds: Option<u64>,
    /// Failures in a row.
    pub attempts: i32,
    /// The last of them.
    pub last_error: Option<String>,
    /// What it has done, and where its time went.
    pub report: Report,
    /// The same as something that is waited for.
    #[serde(skip)]
    pub item: Item,
}

impl RunShape {
    /// As it is stored.
    #[must_use]
    pub fn new(picture: &Picture, run: &StoredRun) -> Self {
        let item = describe(picture, run);
        Self {
            entity: run.entity.to_string(),
            run: run.run.clone(),
            scope: run.scope.clone(),
            mappings: run.mappings.clone(),
            status: run.status.as_str(),
            paused: picture.is_paused(&run.entity),
            rows_per_second: picture.rate(&run.entity),
            rows: run.rows,
            chunks: run.chunks,
            estimate: run.estimate,
            percent: item.percent(),
            elapsed_seconds: item.elapsed.map(|elapsed| elapsed.as_secs()),
            left_seconds: item.left.map(|left| left.as_secs()),
            attempts: run.attempts,
            last_error: run.last_error.clone(),
            report: run.report.clone(),
            item,
        }
    }
}

/// What holds for how backfills read.
#[derive(Debug, Serialize)]
pub struct ControlShape {
    /// Null for all tables together.
    pub entity: Option<String>,
    /// Whether reading is stopped.
    pub paused: bool,
    /// Rows a second at the most.
    pub rows_per_second: Option<u32>,
}

impl ControlShape {
    /// As it is stored.
    #[must_use]
    pub fn new(control: &StoredControl) -> Self {
        Self {
            entity: control.entity.as_ref().map(ToString::to_string),
            paused: control.paused,
            rows_per_second: control.rows_per_second,
        }
    }
}
