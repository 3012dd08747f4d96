//! What a run has done, and where its time went.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{RunStats, Timestamp};

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

impl Stage {
    /// The word in logs and in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Reading => "reading",
            Self::Stream => "stream",
            Self::Yielding => "yielding",
            Self::Transforming => "transforming",
            Self::Delivering => "delivering",
            Self::Throttled => "throttled",
            Self::Backoff => "backoff",
        }
    }
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
    /// Since it was first taken up, without the time when no host ran: the sum of the stages.
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

/// Drives a run's account: who knows where the run is, says so, and every moment counts once.
///
/// While the oldest chunk is with its targets ([`Stage::Delivering`]), nobody knows for which of their parts
/// the run waits; that is said afterwards, by [`Account::settle`].
#[derive(Clone, Debug)]
pub struct Account {
    before: Report,
    /// Microseconds of each stage, in the order of [`Report::times`].
    times: [u64; 8],
    stage: Stage,
    reached: Timestamp,
    /// Microseconds that the oldest chunk is with its targets; counted as delivering until it is settled.
    open: u64,
}

impl Account {
    /// Goes on from what is stored; the run is [`Stage::Queued`] until something else is said.
    #[must_use]
    pub fn new(stored: Report, now: Timestamp) -> Self {
        let micros = |(_, time): (Stage, Duration)| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let times = stored.times().map(micros);
        Self { before: stored, times, stage: Stage::Queued, reached: now, open: 0 }
    }

    /// Time has passed; a clock that went back stands still.
    pub fn advance(&mut self, now: Timestamp) {
        let elapsed = u64::try_from(now.saturating_sub(self.reached)).unwrap_or(0);
        self.reached = self.reached.max(now);
        self.add(self.stage, elapsed);
        if self.stage == Stage::Delivering {
            self.open += elapsed;
        }
    }

    /// From now on the run is in this stage.
    pub fn enter(&mut self, stage: Stage, now: Timestamp) {
        self.advance(now);
        if stage == Stage::Delivering && self.stage != stage {
            self.open = 0;
        }
        self.stage = stage;
    }

    /// The oldest chunk was accepted after its targets worked on it for so long: of the time that passed in
    /// [`Stage::Delivering`] since it was emitted, or since the chunk before it was accepted, so much was
    /// delivering, then transforming; in the rest, live changes or others went first.
    pub fn settle(&mut self, transforming: Duration, delivering: Duration) {
        let open = std::mem::take(&mut self.open);
        let within =
            |time: Duration, left: u64| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min(left);
        let delivered = within(delivering, open);
        let transformed = within(transforming, open - delivered);
        self.take(Stage::Delivering, open - delivered);
        self.add(Stage::Transforming, transformed);
        self.add(Stage::Yielding, open - delivered - transformed);
    }

    /// The account, with what the machine has counted since this one began.
    #[must_use]
    pub fn report(&self, stats: &RunStats) -> Report {
        let mut reached = 0;
        // Rounded so that the parts sum to the whole.
        let [queued, reading, stream, yielding, transforming, delivering, throttled, backoff] =
            self.times.map(|micros| {
                let before = reached;
                reached += micros;
                reached / 1000 - before / 1000
            });
        Report {
            rows: self.before.rows + stats.rows,
            bytes: self.before.bytes + stats.bytes,
            chunks: self.before.chunks + stats.chunks,
            dropped: self.before.dropped + stats.dropped,
            rereads: self.before.rereads + stats.rereads,
            retries: self.before.retries + stats.retries,
            wall_ms: reached / 1000,
            queued_ms: queued,
            reading_ms: reading,
            stream_ms: stream,
            yielding_ms: yielding,
            transforming_ms: transforming,
            delivering_ms: delivering,
            throttled_ms: throttled,
            backoff_ms: backoff,
        }
    }

    /// The same without the time that the oldest chunk is with its targets, of which nobody knows yet whose it was:
    /// none of these numbers ever gets smaller, but for a millisecond of rounding.
    #[must_use]
    pub fn settled(&self, stats: &RunStats) -> Report {
        let mut settled = self.clone();
        settled.take(Stage::Delivering, self.open);
        settled.report(stats)
    }

    fn add(&mut self, stage: Stage, micros: u64) {
        let time = &mut self.times[stage as usize];
        *time = time.saturating_add(micros);
    }

    fn take(&mut self, stage: Stage, micros: u64) {
        let time = &mut self.times[stage as usize];
        *time = time.saturating_sub(micros);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Stage; 8] = [
        Stage::Queued,
        Stage::Reading,
        Stage::Stream,
        Stage::Yielding,
        Stage::Transforming,
        Stage::Delivering,
        Stage::Throttled,
        Stage::Backoff,
    ];

    fn sum(report: &Report) -> Duration {
        report.times().iter().map(|(_, time)| *time).sum()
    }

    #[test]
    fn stages_are_in_the_order_of_their_times() {
        assert_eq!(Report::default().times().map(|(stage, _)| stage), ALL);
        assert_eq!(ALL.map(|stage| stage as usize), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn the_targets_time_is_split_when_their_answer_is_there() {
        let ms = Duration::from_millis;
        let mut account = Account::new(Report::default(), 0);
        account.enter(Stage::Reading, 1_000);
        account.enter(Stage::Delivering, 3_000);
        account.advance(13_000);
        assert_eq!(account.report(&RunStats::default()).delivering_ms, 10, "until it is known");
        account.settle(ms(3), ms(5));
        // The next chunk was emitted meanwhile; it was transformed while the first was delivered.
        account.advance(17_000);
        account.settle(ms(100), ms(1));
        account.enter(Stage::Reading, 17_000);
        account.settle(ms(9), ms(9));
        let report = account.report(&RunStats { rows: 3, ..RunStats::default() });
        let expected = Report {
            rows: 3,
            wall_ms: 17,
            queued_ms: 1,
            reading_ms: 2,
            delivering_ms: 6,
            transforming_ms: 6,
            yielding_ms: 2,
            ..Report::default()
        };
        assert_eq!(report, expected);
        let mut next = Account::new(report, 50_000);
        next.enter(Stage::Backoff, 51_000);
        next.advance(49_000);
        next.advance(61_000);
        let stats = RunStats { rows: 2, retries: 1, ..RunStats::default() };
        let expected = Report { rows: 5, retries: 1, wall_ms: 28, queued_ms: 2, backoff_ms: 10, ..expected };
        assert_eq!(next.report(&stats), expected);
    }

    #[test]
    fn what_was_never_accepted_stays_delivering() {
        let mut account = Account::new(Report::default(), 0);
        account.enter(Stage::Delivering, 0);
        account.enter(Stage::Reading, 5_000);
        account.enter(Stage::Delivering, 6_000);
        account.advance(8_000);
        account.settle(Duration::ZERO, Duration::ZERO);
        let report = account.report(&RunStats::default());
        assert_eq!((report.delivering_ms, report.reading_ms, report.yielding_ms), (5, 1, 2));
    }

    proptest! {
        #[test]
        fn the_stages_sum_to_the_wall_time(
            stored in proptest::collection::vec(0..100_000_u64, 8),
            steps in proptest::collection::vec((0..8_usize, 0..5_000_i64, 0..3_u8, 0..4_000_u64, 0..4_000_u64), 0..60),
        ) {
            let mut before = Report { queued_ms: stored[0], reading_ms: stored[1], ..Report::default() };
            (before.stream_ms, before.yielding_ms, before.delivering_ms) = (stored[2], stored[3], stored[5]);
            (before.transforming_ms, before.throttled_ms, before.backoff_ms) = (stored[4], stored[6], stored[7]);
            before.wall_ms = stored.iter().sum();
            let mut account = Account::new(before.clone(), 77);
            prop_assert_eq!(&account.report(&RunStats::default()), &before);
            let mut now = 77;
            let mut grown = account.settled(&RunStats::default());
            for (stage, pause, what, transforming, delivering) in steps {
                now += pause;
                match what {
                    0 => account.advance(now),
                    1 => account.enter(ALL[stage], now),
                    _ => {
                        account.advance(now);
                        account.settle(Duration::from_micros(transforming), Duration::from_micros(delivering));
                    }
                }
                let report = account.report(&RunStats::default());
                let settled = account.settled(&RunStats::default());
                for ((stage, now), (_, before)) in settled.times().iter().zip(grown.times()) {
                    prop_assert!(*now + Duration::from_millis(1) >= before, "{stage:?} {before:?} {now:?}");
                }
                grown = settled;
                let elapsed = u64::try_from(now - 77).unwrap();
                prop_assert_eq!(report.wall_ms, before.wall_ms + elapsed / 1000);
                prop_assert_eq!(sum(&report), Duration::from_millis(report.wall_ms));
            }
        }
    }
}
