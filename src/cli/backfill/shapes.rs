//! The JSON shapes of what is stored about backfills.

use serde::Serialize;

use crate::{
    backfill::Report,
    control::{Item, Picture, describe},
    model::Scope,
    state::{PendingRequest, StoredControl, StoredRun},
};

/// A request that has not become a run.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct RequestShape {
    id: i64,
    /// The table or the mapping.
    pub(super) target: String,
    /// Null for all rows.
    pub(super) scope: Option<Scope>,
    pub(super) purge: bool,
    /// Whether the leader is turning it into a run.
    pub(super) taken: bool,
    /// How long ago it was asked for.
    pub(super) seconds: u64,
    /// Whether a mapping of it is known.
    pub(super) mapped: bool,
}

impl RequestShape {
    pub(in crate::cli) fn new(picture: &Picture, pending: &PendingRequest) -> Self {
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
pub(in crate::cli) struct RunShape {
    entity: String,
    run: String,
    /// Null for all rows.
    scope: Option<Scope>,
    mappings: Vec<String>,
    /// `queued`, `running`, `failing`, `complete` or `cancelled`.
    pub(super) status: &'static str,
    paused: bool,
    /// Rows a second at the most.
    rows_per_second: Option<u32>,
    /// Rows that are durable in every sink.
    rows: i64,
    chunks: i64,
    /// About how many rows the table had.
    estimate: Option<i64>,
    percent: Option<u64>,
    /// Since its first page was asked for; of one that is complete, until then.
    elapsed_seconds: Option<u64>,
    /// About how long it still takes.
    left_seconds: Option<u64>,
    /// Failures in a row.
    attempts: i32,
    last_error: Option<String>,
    /// What it has done, and where its time went.
    report: Report,
    #[serde(skip)]
    pub(super) item: Item,
}

impl RunShape {
    pub(in crate::cli) fn new(picture: &Picture, run: &StoredRun) -> Self {
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

    pub(super) fn report(&self) -> &Report {
        &self.report
    }
}

/// What holds for how backfills read.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct ControlShape {
    /// Null for all tables together.
    pub(super) entity: Option<String>,
    pub(super) paused: bool,
    pub(super) rows_per_second: Option<u32>,
}

impl ControlShape {
    pub(in crate::cli) fn new(control: &StoredControl) -> Self {
        Self {
            entity: control.entity.as_ref().map(ToString::to_string),
            paused: control.paused,
            rows_per_second: control.rows_per_second,
        }
    }
}
