//! Which table reads next, and when one that failed may try again.

use std::time::Duration;

/// Microseconds since 1970-01-01 UTC.
pub type Timestamp = i64;

const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// How long a table pauses after so many failures in a row: 5 s doubling to 5 min.
#[must_use]
pub fn pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

/// `now` and so much more.
pub(super) fn after(now: Timestamp, pause: Duration) -> Timestamp {
    now.saturating_add(i64::try_from(pause.as_micros()).unwrap_or(i64::MAX))
}

/// What the schedule knows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Whether it is one of those that read at the moment.
    pub(super) active: bool,
    /// Failures in a row.
    pub(super) attempts: u32,
    /// Nothing is read for it before.
    pub(super) not_before: Timestamp,
    /// When it was last put at the end of the queue, on a clock of its own.
    pub(super) turn: u64,
}

/// The run to make active next: among those that are ready and whose pause is over, the one that has waited
/// the longest since it was asked for, failed or stood in the way. `ready` is asked only where it matters.
pub(super) fn next<K: Copy>(
    runs: impl Iterator<Item = (K, Standing)>,
    now: Timestamp,
    mut ready: impl FnMut(K) -> bool,
) -> Option<K> {
    let mut waiting: Vec<(u64, K)> = runs
        .filter(|(_, standing)| !standing.active && standing.not_before <= now)
        .map(|(run, standing)| (standing.turn, run))
        .collect();
    waiting.sort_unstable_by_key(|(turn, _)| *turn);
    waiting.into_iter().map(|(_, run)| run).find(|run| ready(*run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let seconds: Vec<u64> = (1..=9).map(|attempts| pause(attempts).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn c071_a_failing_table_goes_to_the_end_of_the_queue() {
        let standing = |attempts, not_before, turn| Standing { active: false, attempts, not_before, turn };
        let failing = standing(3, 100, 9);
        let runs = [(1, failing), (2, standing(0, 0, 2)), (3, standing(0, 0, 1))];
        let pick = |now| next(runs.iter().copied(), now, |_| true);
        assert_eq!(pick(50), Some(3), "the oldest of those whose pause is over");
        assert_eq!(pick(200), Some(3), "also when the failing one may try again");
        assert_eq!(next(runs.iter().copied(), 50, |run| run == 1), None);
        assert_eq!(next([(1, failing)].into_iter(), 100, |_| true), Some(1));
    }
}
