//! Finds those of many that cannot be done, where a call takes several and fails as a whole.
//!
//! Pure: says which range to try next, hears what became of it, and comes to an end. What was done is never tried
//! again, everything is answered once and in order, and one is only blamed when it failed alone. A fault of the
//! whole (too many of them fail, or slow failures cost too much time) is told from the faults of a few. It must never
//! blame one for what another did.

use std::ops::Range;

/// When the fault is not one of a few any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BisectionLimits {
    /// So many may be blamed.
    pub culprits: usize,
    /// So many slow failures may be waited for.
    pub slow: usize,
}

impl Default for BisectionLimits {
    fn default() -> Self {
        Self { culprits: 64, slow: 64 }
    }
}

/// A search through positions `0 .. total`.
#[derive(Clone, Debug)]
pub struct Bisection {
    limits: BisectionLimits,
    /// All before is answered.
    from: usize,
    /// Ends of ranges that begin at `from`, the next one last.
    ends: Vec<Goal>,
    culprits: usize,
    slow: usize,
    /// How often the one at `from` has failed alone.
    alone: u32,
}

#[derive(Clone, Copy, Debug)]
struct Goal {
    end: usize,
    /// All of it failed together, and nobody was blamed for that yet.
    bad: bool,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet: go on with [`Bisection::next_range`].
    More,
    /// The one at this position is to blame, and answered with that.
    Culprit(usize),
}

/// The fault is one of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    /// How many had been blamed before.
    pub culprits: usize,
}

impl Bisection {
    /// A search through so many.
    #[must_use]
    pub fn new(total: usize, limits: BisectionLimits) -> Self {
        let ends = vec![Goal { end: total, bad: false }];
        Self { limits, from: 0, ends, culprits: 0, slow: 0, alone: 0 }
    }

    /// The range to try next; none when all are answered. A call may take less of it, from its beginning on.
    pub fn next_range(&mut self) -> Option<Range<usize>> {
        while self.ends.last().is_some_and(|goal| goal.end <= self.from) {
            self.ends.pop();
        }
        let goal = *self.ends.last()?;
        if goal.bad && goal.end - self.from > 1 {
            // That all of it fails is known.
            let end = self.from + (goal.end - self.from) / 2;
            self.ends.push(Goal { end, bad: false });
            return Some(self.from..end);
        }
        Some(self.from..goal.end)
    }

    /// Everything before `to` was done.
    pub fn worked(&mut self, to: usize) {
        self.from = to;
        self.alone = 0;
    }

    /// What was tried failed as a whole, up to `to`. A `slow` failure may be the machine's: one that fails so alone
    /// is tried once more.
    ///
    /// # Errors
    /// There are too many.
    pub fn failed(&mut self, to: usize, slow: bool) -> Result<Found, TooMany> {
        let too_many = TooMany { culprits: self.culprits };
        self.slow += usize::from(slow);
        if self.slow > self.limits.slow {
            return Err(too_many);
        }
        if to.saturating_sub(self.from) > 1 {
            match self.ends.last_mut() {
                Some(goal) if goal.end == to => goal.bad = true,
                _ => self.ends.push(Goal { end: to, bad: true }),
            }
            return Ok(Found::More);
        }
        self.alone += 1;
        if slow && self.alone < 2 {
            return Ok(Found::More);
        }
        self.culprits += 1;
        if self.culprits > self.limits.culprits {
            return Err(too_many);
        }
        let culprit = self.from;
        self.worked(culprit + 1);
        // It explains why what it was part of failed.
        self.ends.iter_mut().for_each(|goal| goal.bad = false);
        Ok(Found::Culprit(culprit))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What a search comes to.
    #[derive(Debug, Default)]
    struct Searched {
        done: Vec<usize>,
        blamed: Vec<usize>,
        calls: usize,
        failures: usize,
        given_up: bool,
    }

    /// Searches, with calls that take `most` at once and fail as `fails` says of a range.
    fn search(
        total: usize,
        most: usize,
        limits: BisectionLimits,
        slow: bool,
        fails: impl Fn(&Range<usize>, usize) -> bool,
    ) -> Searched {
        let mut bisection = Bisection::new(total, limits);
        let mut searched = Searched::default();
        while let Some(range) = bisection.next_range() {
            assert!(range.start < range.end && range.end <= total, "{range:?}");
            assert_eq!(range.start, searched.done.len() + searched.blamed.len(), "nothing is tried twice");
            let call = range.start..range.end.min(range.start + most);
            searched.calls += 1;
            assert!(searched.calls < 100_000, "it comes to an end");
            if !fails(&call, searched.calls) {
                searched.done.extend(call.clone());
                bisection.worked(call.end);
                continue;
            }
            searched.failures += 1;
            match bisection.failed(call.end, slow) {
                Ok(Found::More) => {}
                Ok(Found::Culprit(at)) => {
                    assert_eq!(call, at..at + 1, "it failed alone");
                    searched.blamed.push(at);
                }
                Err(TooMany { culprits }) => {
                    assert_eq!(culprits, searched.blamed.len());
                    searched.given_up = true;
                    return searched;
                }
            }
        }
        searched
    }

    #[test]
    fn one_of_a_thousand_is_found_in_few_calls() {
        for bad in [0, 1, 499, 500, 998, 999] {
            let searched =
                search(1000, 1000, BisectionLimits::default(), false, |range, _| range.contains(&bad));
            assert_eq!(searched.blamed, [bad]);
            assert!(searched.calls <= 21, "{bad}: {} calls", searched.calls);
        }
    }

    #[test]
    fn what_fails_for_everything_is_no_fault_of_single_ones() {
        let searched = search(1000, 1000, BisectionLimits::default(), false, |_, _| true);
        assert!(searched.given_up && searched.blamed.len() == 64, "{searched:?}");
        assert!(searched.calls < 200, "{} calls", searched.calls);
        let slow = search(1000, 1000, BisectionLimits::default(), true, |_, _| true);
        assert!(slow.given_up && slow.failures == 65, "{slow:?}");
    }

    #[test]
    fn a_slow_failure_alone_is_tried_once_more() {
        // The machine is busy while the first five calls are made, and nothing is wrong with any of them.
        let searched = search(8, 8, BisectionLimits::default(), true, |_, call| call <= 4);
        assert_eq!((searched.blamed.len(), searched.done.len()), (0, 8), "{searched:?}");
        let searched = search(8, 8, BisectionLimits::default(), true, |range, _| range.contains(&3));
        assert_eq!(searched.blamed, [3]);
    }

    #[test]
    fn too_much_at_once_blames_nobody() {
        let searched = search(1000, 1000, BisectionLimits::default(), false, |range, _| range.len() > 300);
        assert_eq!((searched.blamed.len(), searched.done.len()), (0, 1000));
    }

    proptest! {
        /// Against the plain answer: exactly the bad ones are blamed, all others are done once, in order.
        #[test]
        fn exactly_the_bad_ones_are_blamed(
            total in 1_usize..400,
            most in 1_usize..400,
            bad in prop::collection::btree_set(0_usize..400, 0..20),
            slow in any::<bool>(),
        ) {
            let bad: BTreeSet<usize> = bad.into_iter().filter(|at| *at < total).collect();
            let limits = BisectionLimits { culprits: 20, slow: usize::MAX };
            let searched = search(total, most, limits, slow, |range, _| bad.range(range.clone()).next().is_some());
            prop_assert!(!searched.given_up);
            prop_assert_eq!(&searched.blamed, &bad.iter().copied().collect::<Vec<_>>());
            let good: Vec<usize> = (0..total).filter(|at| !bad.contains(at)).collect();
            prop_assert_eq!(&searched.done, &good);
            let depth = (usize::BITS - total.leading_zeros()) as usize + 2;
            let bound = total.div_ceil(most) + 2 + bad.len() * (2 * depth + 2);
            prop_assert!(searched.calls <= bound, "{} calls, {bound} are enough", searched.calls);
        }

        /// Whatever fails at whatever time: it ends, nothing is answered twice, and only what failed alone is blamed.
        #[test]
        fn it_ends_whatever_happens(
            total in 0_usize..200,
            most in 1_usize..200,
            slow in any::<bool>(),
            failing in prop::collection::vec(any::<bool>(), 1..64),
        ) {
            let limits = BisectionLimits { culprits: 10, slow: 40 };
            let searched = search(total, most, limits, slow, |_, call| failing[call % failing.len()]);
            let answered = searched.done.len() + searched.blamed.len();
            prop_assert!(searched.given_up || answered == total);
        }
    }
}
