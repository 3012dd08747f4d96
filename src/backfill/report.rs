//! What a run has done, and where its time went.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a run waits for at a moment: where its oldest chunk is, or why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// For its turn: other tables read, or nothing has begun yet.
    Queued,
    /// For a page from the server.
    Reading,
    /// For its high watermark to come along the stream, or for commits to become visible.
    Stream,
    /// For live changes, which go first.
    Yielding,
    /// For its plugin.
    Transforming,
    /// For its sinks.
    Delivering,
    /// Because somebody paused it, or its rate is limited.
    Throttled,
    /// After a failure.
    Backoff,
}

/// A run's account so far. Kept with the run, so that a restart goes on counting.
///
/// The times are exclusive: every moment of the run's wall time belongs to one [`Stage`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Rows that were read.
    pub rows: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Chunks that were emitted.
    pub chunks: u64,
    /// Rows that the stream had overtaken.
    pub dropped: u64,
    /// Chunks that were read again.
    pub rereads: u64,
    /// Readings and deliveries that failed.
    pub retries: u64,
    /// From the first reading to the end, without the time when no host ran.
    pub wall_ms: u64,
    /// [`Stage::Queued`].
    pub queued_ms: u64,
    /// [`Stage::Reading`].
    pub reading_ms: u64,
    /// [`Stage::Stream`].
    pub stream_ms: u64,
    /// [`Stage::Yielding`].
    pub yielding_ms: u64,
    /// [`Stage::Transforming`].
    pub transforming_ms: u64,
    /// [`Stage::Delivering`].
    pub delivering_ms: u64,
    /// [`Stage::Throttled`].
    pub throttled_ms: u64,
    /// [`Stage::Backoff`].
    pub backoff_ms: u64,
}

impl Report {
    /// How long it was in each stage, in order.
    #[must_use]
    pub fn times(&self) -> [(Stage, Duration); 8] {
        [
            (Stage::Queued, self.queued_ms),
            (Stage::Reading, self.reading_ms),
            (Stage::Stream, self.stream_ms),
            (Stage::Yielding, self.yielding_ms),
            (Stage::Transforming, self.transforming_ms),
            (Stage::Delivering, self.delivering_ms),
            (Stage::Throttled, self.throttled_ms),
            (Stage::Backoff, self.backoff_ms),
        ]
        .map(|(stage, millis)| (stage, Duration::from_millis(millis)))
    }
}
