//! What each mapping's sink has durably accepted, and so what the slot may confirm.
//!
//! Pure bookkeeping: the pump says what it read and handed out, lanes say what was accepted, and
//! [`Ledger::confirmable`] answers with the one position that may be told to the server. It guarantees that
//! this position is a commit boundary (or a keepalive position with nothing before it outstanding), that it
//! never passes a change that some mapping has not accepted, and that it never goes back.
//!
//! It must never guess: work that was dropped (a lane that fell behind its queue) freezes its lane's position
//! until the stream is read again from there.

use std::collections::{BTreeMap, VecDeque};

use crate::model::Lsn;

/// One mapping's place in the ledger. Lanes are numbered by the runtime and never reused within a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Names one piece of work handed to one lane; work of a lane is accepted in the order it was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId(pub u64);

#[derive(Debug)]
struct Lane {
    /// Work handed out and not yet accepted, with the commit boundary before it.
    pending: VecDeque<(WorkId, Lsn)>,
    /// Set while the lane does not follow the stream: all before this position is accepted.
    frozen: Option<Lsn>,
    /// Transactions whose commit record lies before this position need not be handed out (again).
    next: Lsn,
}

/// The positions of all mappings of an installation, in memory.
#[derive(Debug)]
pub struct Ledger {
    lanes: BTreeMap<LaneId, Lane>,
    /// The last commit boundary (or idle keepalive position) that the pump has read and handed out.
    processed: Lsn,
    confirmed: Lsn,
    next_work: u64,
}

impl Ledger {
    /// A ledger whose stream starts at `start`, the slot's confirmed position.
    #[must_use]
    pub fn new(start: Lsn) -> Self {
        Self { lanes: BTreeMap::new(), processed: start, confirmed: start, next_work: 0 }
    }

    /// Adds a mapping that follows the stream and has accepted everything before `accepted`.
    pub fn attach(&mut self, lane: LaneId, accepted: Lsn) {
        self.lanes.insert(lane, Lane { pending: VecDeque::new(), frozen: None, next: accepted });
    }

    /// Adds a mapping that cannot run now: the slot waits for it at `accepted`.
    pub fn attach_frozen(&mut self, lane: LaneId, accepted: Lsn) {
        let lane_state = Lane { pending: VecDeque::new(), frozen: Some(accepted), next: accepted };
        self.lanes.insert(lane, lane_state);
    }

    /// Whether a transaction whose commit record begins at `commit_lsn` is still to be handed to `lane`.
    #[must_use]
    pub fn wants(&self, lane: LaneId, commit_lsn: Lsn) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.frozen.is_none() && commit_lsn >= lane.next)
    }

    /// Whether `lane` follows the stream.
    #[must_use]
    pub fn follows(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.frozen.is_none())
    }

    /// Up to where `lane` skips what is streamed again.
    #[must_use]
    pub fn skipped_until(&self, lane: LaneId) -> Lsn {
        self.lanes.get(&lane).map_or(Lsn::ZERO, |lane| lane.next)
    }

    /// Records that work is handed to `lane`, before the position of [`Ledger::processed`] moves past it.
    pub fn dispatched(&mut self, lane: LaneId) -> WorkId {
        self.next_work += 1;
        let id = WorkId(self.next_work);
        let boundary = self.processed;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.pending.push_back((id, boundary.max(lane.next)));
        }
        id
    }

    /// Records that `lane` has durably accepted `work` and all work before it.
    pub fn accepted(&mut self, lane: LaneId, work: WorkId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            while lane.pending.front().is_some_and(|(id, _)| *id <= work) {
                lane.pending.pop_front();
            }
        }
    }

    /// Records that everything up to the boundary `position` was handed out.
    pub fn advance(&mut self, position: Lsn) {
        self.processed = self.processed.max(position);
    }

    /// The last boundary up to which everything was handed out.
    #[must_use]
    pub fn processed(&self) -> Lsn {
        self.processed
    }

    /// How many pieces of work `lane` has not accepted yet.
    #[must_use]
    pub fn outstanding(&self, lane: LaneId) -> usize {
        self.lanes.get(&lane).map_or(0, |lane| lane.pending.len())
    }

    /// `lane` stops following the stream, because it fell behind its queue or cannot run: what it has not
    /// accepted will be handed out again after [`Ledger::rewind`].
    pub fn freeze(&mut self, lane: LaneId) {
        let position = self.position(lane);
        if let Some(lane) = self.lanes.get_mut(&lane) {
            let position = lane.frozen.unwrap_or(position);
            *lane = Lane { pending: VecDeque::new(), frozen: Some(position), next: position };
        }
    }

    /// Everything before this position was accepted by `lane`.
    #[must_use]
    pub fn position(&self, lane: LaneId) -> Lsn {
        self.lanes.get(&lane).map_or(Lsn::ZERO, |lane| match (lane.frozen, lane.pending.front()) {
            (Some(frozen), _) => frozen,
            (None, Some((_, boundary))) => *boundary,
            (None, None) => self.processed.max(lane.next),
        })
    }

    /// The stream is about to be read again, so that the lanes of `thaw` may follow from their frozen
    /// positions on: gives the position to start at. The other lanes skip what they were handed before; a
    /// transaction that was handed out in part is handed out again as a whole.
    pub fn rewind(&mut self, thaw: &[LaneId]) -> Lsn {
        for (id, lane) in &mut self.lanes {
            match lane.frozen {
                None => lane.next = lane.next.max(self.processed),
                Some(_) if thaw.contains(id) => lane.frozen = None,
                Some(_) => {}
            }
        }
        self.processed = self.confirmed;
        self.confirmed
    }

    /// The highest position that may be confirmed, given the `limit` that transactions which are not yet
    /// visible set (see `backfill::Limbo`). Never goes back.
    pub fn confirmable(&mut self, limit: Lsn) -> Lsn {
        let lowest = self.lanes.keys().map(|&lane| self.position(lane)).min();
        let accepted = lowest.unwrap_or(self.processed).min(self.processed);
        self.confirmed = self.confirmed.max(accepted.min(limit));
        self.confirmed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: LaneId = LaneId(1);
    const B: LaneId = LaneId(2);
    const ANYWHERE: Lsn = Lsn(u64::MAX);

    #[test]
    fn the_slowest_lane_decides() {
        let mut ledger = Ledger::new(Lsn(10));
        ledger.attach(A, Lsn(10));
        ledger.attach(B, Lsn(10));
        let first = ledger.dispatched(A);
        let other = ledger.dispatched(B);
        ledger.advance(Lsn(20));
        ledger.accepted(A, first);
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(10));
        ledger.accepted(B, other);
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(20));
    }

    #[test]
    fn a_transaction_that_is_not_visible_yet_holds_the_position() {
        let mut ledger = Ledger::new(Lsn(10));
        ledger.attach(A, Lsn(10));
        ledger.advance(Lsn(30));
        assert_eq!(ledger.confirmable(Lsn(20)), Lsn(20));
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(30));
        assert_eq!(ledger.confirmable(Lsn(20)), Lsn(30), "never back");
    }

    #[test]
    fn a_frozen_lane_keeps_the_slot_and_is_served_again() {
        let mut ledger = Ledger::new(Lsn(0));
        ledger.attach(A, Lsn(0));
        ledger.attach(B, Lsn(0));
        ledger.dispatched(A);
        let other = ledger.dispatched(B);
        ledger.advance(Lsn(20));
        ledger.accepted(B, other);
        ledger.freeze(A);
        ledger.advance(Lsn(50));
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(0));
        assert!(!ledger.wants(A, Lsn(60)));
        assert_eq!(ledger.rewind(&[A]), Lsn(0));
        assert!(ledger.wants(A, Lsn(10)));
        assert!(!ledger.wants(B, Lsn(10)), "had it before");
        let again = ledger.dispatched(A);
        ledger.advance(Lsn(20));
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(0));
        ledger.accepted(A, again);
        assert_eq!(ledger.confirmable(ANYWHERE), Lsn(20));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Transaction { lanes: u8, pages: u8 },
        Accept { lane: u8, count: u8 },
        Freeze { lane: u8 },
        Rewind { mask: u8 },
        Confirm,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1u8..8, 1u8..3).prop_map(|(lanes, pages)| Step::Transaction { lanes, pages }),
            4 => (0u8..3, 1u8..4).prop_map(|(lane, count)| Step::Accept { lane, count }),
            1 => (0u8..3).prop_map(|lane| Step::Freeze { lane }),
            1 => (0u8..8).prop_map(|mask| Step::Rewind { mask }),
            2 => Just(Step::Confirm),
        ];
        proptest::collection::vec(step, 0..80)
    }

    /// Transaction `n` has its commit record at `10 n` and ends at `10 n + 5`; the oracle knows which lane
    /// must get which, and which it has accepted.
    #[derive(Default)]
    struct Oracle {
        log: Vec<(u8, u8)>,
        read: usize,
        handed: Vec<VecDeque<(WorkId, usize, bool)>>,
        accepted: Vec<Vec<bool>>,
    }

    impl Oracle {
        fn deliver(&mut self, ledger: &mut Ledger) {
            while self.read < self.log.len() {
                let n = self.read;
                let (lanes, pages) = self.log[n];
                let commit = Lsn(10 * (n as u64 + 1));
                for page in 1..=pages {
                    for lane in (0..3).filter(|lane| lanes & (1 << lane) != 0) {
                        if ledger.wants(LaneId(lane), commit) {
                            let work = ledger.dispatched(LaneId(lane));
                            self.handed[lane as usize].push_back((work, n, page == pages));
                        }
                    }
                }
                ledger.advance(Lsn(commit.0 + 5));
                self.read += 1;
            }
        }

        fn accept(&mut self, ledger: &mut Ledger, lane: usize, count: usize) {
            for _ in 0..count {
                let Some((work, n, last)) = self.handed[lane].pop_front() else { return };
                ledger.accepted(LaneId(u32::try_from(lane).unwrap()), work);
                self.accepted[lane][n] |= last;
            }
        }

        fn check(&self, confirmed: Lsn) {
            for (n, (lanes, _)) in self.log.iter().enumerate() {
                for lane in (0..3).filter(|lane| lanes & (1 << lane) != 0) {
                    let passed = confirmed >= Lsn(10 * (n as u64 + 1) + 5);
                    assert!(!passed || self.accepted[lane][n], "{confirmed} passed {n} of lane {lane}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn never_passes_what_a_lane_lacks_and_gets_there_in_the_end(steps in steps()) {
            let mut ledger = Ledger::new(Lsn(0));
            let mut oracle = Oracle { handed: vec![VecDeque::new(); 3], accepted: vec![Vec::new(); 3], ..Oracle::default() };
            for lane in 0..3 {
                ledger.attach(LaneId(lane), Lsn(0));
            }
            let rewind = |ledger: &mut Ledger, oracle: &mut Oracle, mask: u8| {
                let thaw: Vec<_> = (0..3).filter(|lane| mask & (1 << lane) != 0).map(LaneId).collect();
                let start = ledger.rewind(&thaw);
                oracle.read = oracle.log.iter().enumerate().filter(|(n, _)| Lsn(10 * (*n as u64 + 1) + 5) <= start).count();
                oracle.deliver(ledger);
            };
            for step in steps {
                match step {
                    Step::Transaction { lanes, pages } => {
                        oracle.log.push((lanes, pages));
                        oracle.accepted.iter_mut().for_each(|lane| lane.push(false));
                        oracle.deliver(&mut ledger);
                    }
                    Step::Accept { lane, count } => oracle.accept(&mut ledger, lane.into(), count.into()),
                    Step::Freeze { lane } => {
                        ledger.freeze(LaneId(lane.into()));
                        oracle.handed[usize::from(lane)].clear();
                    }
                    Step::Rewind { mask } => rewind(&mut ledger, &mut oracle, mask),
                    Step::Confirm => {}
                }
                oracle.check(ledger.confirmable(ANYWHERE));
            }
            rewind(&mut ledger, &mut oracle, 7);
            (0..3).for_each(|lane| oracle.accept(&mut ledger, lane, usize::MAX));
            let end = if oracle.log.is_empty() { Lsn(0) } else { Lsn(10 * oracle.log.len() as u64 + 5) };
            prop_assert_eq!(ledger.confirmable(ANYWHERE), end);
            oracle.check(end);
        }
    }
}
