//! What the runs of a term have added to the counters of their tables.
//!
//! An account grows over restarts, and belongs to a run; counters are of this process, and of a table. What is between
//! the two is how much of each account was counted.

use std::{collections::HashMap, sync::Arc};

use crate::{backfill::Report, model::EntityName};

use super::metrics::Metrics;

/// See the module.
#[derive(Debug)]
pub(super) struct Tally {
    metrics: Arc<Metrics>,
    counted: HashMap<Arc<str>, Counted>,
}

#[derive(Debug)]
struct Counted {
    entity: String,
    report: Report,
}

impl Tally {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, counted: HashMap::new() }
    }

    /// A run begins, or goes on from an account that others have counted.
    pub(super) fn take_up(&mut self, run: &Arc<str>, entity: &EntityName, report: Report) {
        self.counted.insert(Arc::clone(run), Counted { entity: entity.to_string(), report });
    }

    /// A run has got so far.
    pub(super) fn count(&mut self, run: &Arc<str>, report: Report) {
        let Some(counted) = self.counted.get_mut(run) else { return };
        self.metrics.run_moved(&counted.entity, &counted.report, &report);
        counted.report = most(&counted.report, report);
    }

    /// A run is complete.
    pub(super) fn complete(&mut self, run: &Arc<str>, report: &Report) {
        self.count(run, report.clone());
        if let Some(counted) = self.counted.remove(run) {
            self.metrics.run_completed(&counted.entity);
        }
    }

    pub(super) fn forget(&mut self, run: &Arc<str>) {
        self.counted.remove(run);
    }
}

/// The greater of each number: rounding takes back a millisecond at times, which must not be counted twice.
fn most(before: &Report, now: Report) -> Report {
    Report {
        rows: now.rows.max(before.rows),
        bytes: now.bytes.max(before.bytes),
        chunks: now.chunks.max(before.chunks),
        dropped: now.dropped.max(before.dropped),
        rereads: now.rereads.max(before.rereads),
        retries: now.retries.max(before.retries),
        wall_ms: now.wall_ms.max(before.wall_ms),
        queued_ms: now.queued_ms.max(before.queued_ms),
        reading_ms: now.reading_ms.max(before.reading_ms),
        stream_ms: now.stream_ms.max(before.stream_ms),
        yielding_ms: now.yielding_ms.max(before.yielding_ms),
        transforming_ms: now.transforming_ms.max(before.transforming_ms),
        delivering_ms: now.delivering_ms.max(before.delivering_ms),
        throttled_ms: now.throttled_ms.max(before.throttled_ms),
        backoff_ms: now.backoff_ms.max(before.backoff_ms),
    }
}
