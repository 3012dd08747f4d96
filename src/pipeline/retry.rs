//! When to try again: exponential backoff with full jitter, as plain arithmetic.
//!
//! There is no clock and no source of randomness in here: the caller hands a random number in and waits by
//! itself, and the number of attempts can be stored and taken up again after a restart. (The `backon` crate
//! does not fit: its delays come out of an iterator with a random generator of its own, whose state can
//! neither be stored nor start at attempt n, its jitter only ever adds, and it knows no `Retry-After`.)

use std::time::Duration;

/// How delays grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The ceiling of the first delay.
    pub initial: Duration,
    /// The ceiling that no delay exceeds, unless the other side asked for more.
    pub max: Duration,
    /// What the ceiling is multiplied by from one attempt to the next; at least 1.
    pub multiplier: f64,
    /// The most that a `Retry-After` of the other side may ask for; a longer one is cut to this.
    pub retry_after_max: Duration,
    /// After this many failed attempts in a row no further one is made; none means try for ever.
    pub attempts: Option<u32>,
}

impl RetryPolicy {
    /// A delivery that failed for a passing reason: half a second doubling to a minute.
    pub const DELIVERY: Self = Self::doubling(Duration::from_millis(500), Duration::from_secs(60));

    /// Something that a person may have to mend (a sink that cannot be opened, a backfill that fails):
    /// 5 seconds doubling to 5 minutes.
    pub const REPAIR: Self = Self::doubling(Duration::from_secs(5), Duration::from_secs(300));

    /// A ceiling of `initial` that doubles up to `max`, for ever.
    #[must_use]
    pub const fn doubling(initial: Duration, max: Duration) -> Self {
        Self { initial, max, multiplier: 2.0, retry_after_max: Duration::from_secs(3600), attempts: None }
    }

    /// The same policy with a limit on attempts.
    #[must_use]
    pub const fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The longest delay before attempt `attempt + 1`, where `attempt` counts failures from 1.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let growth = self.multiplier.max(1.0).powi(doublings);
        let seconds = (self.initial.as_secs_f64() * growth).min(self.max.as_secs_f64());
        Duration::try_from_secs_f64(seconds).unwrap_or(self.max)
    }

    /// How long to wait after failure number `attempt` (from 1).
    ///
    /// `random` is uniform in `0.0 ..= 1.0`: the delay is that part of the ceiling ("full jitter"), so that
    /// many clients of a server that comes back do not arrive together. It is never shorter than
    /// `retry_after`, which itself is cut to [`RetryPolicy::retry_after_max`].
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64, retry_after: Option<Duration>) -> Duration {
        let part = if random.is_finite() { random.clamp(0.0, 1.0) } else { 1.0 };
        let jittered = self.ceiling(attempt).mul_f64(part);
        retry_after.map_or(jittered, |asked| jittered.max(asked.min(self.retry_after_max)))
    }
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAttempt {
    /// Wait this long, then try again.
    After(Duration),
    /// The policy's attempts are used up.
    GiveUp,
}

/// The failures in a row of one thing, and when to try it again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    policy: RetryPolicy,
    failures: u32,
}

impl Backoff {
    /// No failure so far.
    #[must_use]
    pub const fn new(policy: RetryPolicy) -> Self {
        Self::resume(policy, 0)
    }

    /// Takes up a stored number of failures.
    #[must_use]
    pub const fn resume(policy: RetryPolicy, failures: u32) -> Self {
        Self { policy, failures }
    }

    /// The failures in a row so far.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt failed. For `random` and `retry_after` see [`RetryPolicy::delay`].
    pub fn failed(&mut self, random: f64, retry_after: Option<Duration>) -> NextAttempt {
        self.failures = self.failures.saturating_add(1);
        match self.policy.attempts {
            Some(limit) if self.failures >= limit => NextAttempt::GiveUp,
            _ => NextAttempt::After(self.policy.delay(self.failures, random, retry_after)),
        }
    }

    /// An attempt succeeded: the next failure is the first again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn five_seconds_double_to_five_minutes() {
        let ceilings: Vec<u64> = (1..=8).map(|n| RetryPolicy::REPAIR.ceiling(n).as_secs()).collect();
        assert_eq!(ceilings, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(RetryPolicy::REPAIR.ceiling(0), seconds(5));
        assert_eq!(RetryPolicy::REPAIR.ceiling(u32::MAX), seconds(300), "no overflow");
    }

    #[test]
    fn jitter_takes_a_part_of_the_ceiling() {
        let policy = RetryPolicy::REPAIR;
        assert_eq!(policy.delay(2, 0.5, None), seconds(5));
        assert_eq!(policy.delay(2, 0.0, None), Duration::ZERO);
        assert_eq!(policy.delay(2, 1.0, None), seconds(10));
        assert_eq!(policy.delay(2, f64::NAN, None), seconds(10), "nonsense waits the longest");
    }

    #[test]
    fn c076_retry_after_is_honoured_within_reason() {
        let policy = RetryPolicy::DELIVERY;
        assert_eq!(policy.delay(1, 0.0, Some(seconds(5))), seconds(5));
        assert_eq!(
            policy.delay(1, 0.0, Some(seconds(900))),
            seconds(900),
            "more than the policy's own ceiling"
        );
        assert_eq!(policy.delay(1, 0.0, Some(seconds(999_999))), seconds(3600), "but not a day");
        assert_eq!(policy.delay(9, 1.0, Some(seconds(1))), seconds(60), "never shorter than our own");
    }

    #[test]
    fn c076_attempts_may_be_limited() {
        let mut backoff = Backoff::new(RetryPolicy::REPAIR.with_attempts(3));
        assert_eq!(backoff.failed(1.0, None), NextAttempt::After(seconds(5)));
        assert_eq!(backoff.failed(1.0, None), NextAttempt::After(seconds(10)));
        assert_eq!(backoff.failed(1.0, None), NextAttempt::GiveUp);
        backoff.succeeded();
        assert_eq!(backoff.failed(1.0, None), NextAttempt::After(seconds(5)));
    }

    #[test]
    fn a_stored_count_is_taken_up_again() {
        let mut backoff = Backoff::resume(RetryPolicy::REPAIR, 3);
        assert_eq!(backoff.failed(1.0, None), NextAttempt::After(seconds(40)));
        assert_eq!(backoff.failures(), 4);
    }

    proptest! {
        #[test]
        fn delays_stay_within_the_ceiling(attempt: u32, random in 0.0..=1.0, initial in 0_u64..1_000_000, more in 0_u64..1_000_000, multiplier in 0.0..100.0) {
            let initial = Duration::from_millis(initial);
            let policy = RetryPolicy { multiplier, ..RetryPolicy::doubling(initial, initial + Duration::from_millis(more)) };
            let ceiling = policy.ceiling(attempt);
            prop_assert!(ceiling <= policy.max + Duration::from_micros(1));
            prop_assert!(ceiling <= policy.ceiling(attempt.saturating_add(1)));
            prop_assert!(policy.delay(attempt, random, None) <= ceiling + Duration::from_nanos(1));
        }
    }
}
