//! What the stream has shown and a fresh snapshot may still not see.
//!
//! A commit is sent once its WAL is flushed, and becomes visible later: a moment later, or as late as a
//! synchronous standby answers. In between it is in *limbo*. [`Limbo`] keeps every streamed transaction
//! that no snapshot has been known to see. It answers two questions: which transactions a reading that
//! begins now may miss, and how far the slot may be confirmed so that after a restart every transaction
//! that a fresh snapshot may miss is streamed again.
//!
//! All of it rests on one fact of the source: a snapshot sees whatever an earlier snapshot of the same
//! server saw. That ends where the server does (after a crash, ids whose commits were never flushed are
//! given out again), so neither this nor the machine may outlive the leader's session.

use std::{collections::VecDeque, sync::Arc};

use crate::model::{Lsn, Snapshot, Xid};

/// Whether `snapshot` sees everything that `other` sees.
///
/// `other` may be the snapshot that was exported at the slot's creation (it sees exactly the transactions
/// whose commits precede the slot) or [`everything_before`] an id.
#[must_use]
pub fn covers(snapshot: &Snapshot, other: &Snapshot) -> bool {
    let hidden_from_other = |xid: &u64| *xid >= other.xmax || other.in_progress.binary_search(xid).is_ok();
    if !snapshot.in_progress.iter().all(hidden_from_other) {
        return false;
    }
    // What `snapshot` calls the future, from its xmax up to other's: all of it must be open in `other`.
    let Some(ahead) = other.xmax.checked_sub(snapshot.xmax) else { return true };
    let from = other.in_progress.partition_point(|xid| *xid < snapshot.xmax);
    u64::try_from(other.in_progress.len() - from).is_ok_and(|open| open == ahead)
}

/// A snapshot that sees all transactions before `xid`, finished or not: only when all of them have ended
/// does a real snapshot cover it.
#[must_use]
pub fn everything_before(xid: u64) -> Snapshot {
    Snapshot { xmin: xid, xmax: xid, in_progress: Vec::new() }
}

/// The streamed transactions that are not known to be visible, in stream order.
#[derive(Debug, Default)]
pub struct Limbo {
    unseen: VecDeque<(Lsn, Xid)>,
    reached: Lsn,
    latest: Option<Arc<Snapshot>>,
}

impl Limbo {
    /// The stream has shown the commit of `xid`. Shown again (after a reconnect) changes nothing.
    pub fn committed(&mut self, xid: Xid, commit_lsn: Lsn, end_lsn: Lsn) {
        self.passed(end_lsn);
        if self.latest.as_ref().is_some_and(|snapshot| snapshot.sees(xid)) {
            return;
        }
        match self.unseen.back() {
            Some((last, _)) if *last >= commit_lsn => {
                let at = self.unseen.partition_point(|(lsn, _)| *lsn < commit_lsn);
                if self.unseen.get(at).is_none_or(|(lsn, _)| *lsn != commit_lsn) {
                    self.unseen.insert(at, (commit_lsn, xid));
                }
            }
            _ => self.unseen.push_back((commit_lsn, xid)),
        }
    }

    /// The stream has shown every commit before this position (a message's, a keepalive's).
    pub fn passed(&mut self, position: Lsn) {
        self.reached = self.reached.max(position);
    }

    /// A snapshot was taken some time ago: what it sees is visible for good. Snapshots may come in any
    /// order.
    pub fn observe(&mut self, snapshot: &Arc<Snapshot>) {
        self.unseen.retain(|(_, xid)| !snapshot.sees(*xid));
        if self.latest.as_ref().is_none_or(|latest| covers(snapshot, latest)) {
            self.latest = Some(Arc::clone(snapshot));
        }
    }

    /// What the slot's confirmed position must not pass: where the commit record of the oldest transaction
    /// in limbo begins (a stream that starts there shows it again), or else what the stream has reached *in
    /// this term*. After a restart the ledger may be ahead of both, and a commit that is streamed again in a
    /// moment may still be in limbo.
    #[must_use]
    pub fn confirmable(&self) -> Lsn {
        self.unseen.front().map_or(self.reached, |(commit_lsn, _)| *commit_lsn)
    }

    /// The transactions that a snapshot taken from now on may not see, in stream order.
    pub fn unseen(&self) -> impl Iterator<Item = Xid> + '_ {
        self.unseen.iter().map(|(_, xid)| *xid)
    }

    /// How many these are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.unseen.len()
    }

    /// Whether everything that was streamed is visible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unseen.is_empty()
    }

    /// The newest snapshot that was observed.
    #[must_use]
    pub fn latest(&self) -> Option<&Arc<Snapshot>> {
        self.latest.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(text: &str) -> Arc<Snapshot> {
        Arc::new(text.parse().unwrap())
    }

    #[test]
    fn c048_the_slot_is_held_before_the_oldest_invisible_commit() {
        let mut limbo = Limbo::default();
        assert_eq!(limbo.confirmable(), Lsn::ZERO, "nothing was streamed yet");
        for (at, xid) in [(100, 846), (110, 847), (120, 845)] {
            limbo.committed(xid, Lsn(at), Lsn(at + 5));
        }
        assert_eq!(limbo.confirmable(), Lsn(100));
        limbo.observe(&snapshot("846:848:846"));
        assert_eq!(limbo.unseen().collect::<Vec<_>>(), [846]);
        assert_eq!(limbo.confirmable(), Lsn(100));
        limbo.observe(&snapshot("849:849:"));
        assert_eq!(limbo.confirmable(), Lsn(125));
        limbo.passed(Lsn(130));
        assert_eq!(limbo.confirmable(), Lsn(130));
        assert!(limbo.is_empty());
    }

    #[test]
    fn an_older_snapshot_that_comes_late_takes_nothing_back() {
        let mut limbo = Limbo::default();
        limbo.observe(&snapshot("20:20:"));
        limbo.observe(&snapshot("10:12:10"));
        limbo.committed(15, Lsn(1), Lsn(2));
        assert!(limbo.is_empty());
    }

    #[test]
    fn transactions_streamed_again_are_kept_once_and_in_order() {
        let mut limbo = Limbo::default();
        limbo.observe(&snapshot("5:5:"));
        for (at, xid) in [(10, 7), (30, 9), (10, 7), (20, 8), (30, 9), (4, 6)] {
            limbo.committed(xid, Lsn(at), Lsn(at + 5));
        }
        assert_eq!(limbo.unseen().collect::<Vec<_>>(), [6, 7, 8, 9]);
    }

    #[test]
    fn a_snapshot_covers_what_it_sees() {
        for (one, other, expected) in [
            ("10:10:", "10:10:", true),
            ("10:12:10", "10:12:10", true),
            ("12:12:", "10:12:10", true),
            ("10:12:10", "12:12:", false),
            ("10:10:", "10:12:10,11", true),
            ("10:10:", "10:12:10", false),
            ("10:30:10", "9:9:", true),
            ("10:30:10", "11:11:", false),
            ("9:30:9", "9:11:9", true),
        ] {
            assert_eq!(covers(&snapshot(one), &snapshot(other)), expected, "{one} covers {other}");
        }
        assert!(!covers(&snapshot("846:848:846"), &everything_before(847)));
        assert!(covers(&snapshot("847:848:847"), &everything_before(847)));
    }

    proptest! {
        #[test]
        fn covering_is_seeing_all_of_it(
            one in (0..12_u64, proptest::collection::btree_set(0..12_u64, 0..8)),
            other in (0..12_u64, proptest::collection::btree_set(0..12_u64, 0..8)),
        ) {
            let build = |(xmax, open): (u64, std::collections::BTreeSet<u64>)| {
                let in_progress: Vec<u64> = open.into_iter().map(|x| x + 100).filter(|x| *x < xmax + 100).collect();
                Snapshot { xmin: in_progress.first().copied().unwrap_or(xmax + 100), xmax: xmax + 100, in_progress }
            };
            let (one, other) = (build(one), build(other));
            let expected = (90..120).all(|xid| !other.sees(xid) || one.sees(xid));
            prop_assert_eq!(covers(&one, &other), expected);
        }
    }
}
