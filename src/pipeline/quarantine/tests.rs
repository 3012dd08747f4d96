use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use crate::model::{
    Cell, Column, EntityName, Relation, ReplicaIdentity, RowSpan, TransactionInfo, ValueType,
};

use super::*;

fn relation() -> Arc<Relation> {
    let id = Column { name: "id".to_owned(), type_oid: 25, value_type: ValueType::Text, identity: true };
    Arc::new(Relation {
        oid: 1,
        name: EntityName::new("public", "t"),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![id],
        key: vec![0],
    })
}

/// One change a transaction, committed at 10, 20 …
fn batch(origin: Origin, first: u64, changes: &[(Operation, Option<u8>, Option<u8>)]) -> ChangeBatch {
    let mut batch = ChangeBatch::new(origin);
    batch.relations.push(relation());
    for (number, &(operation, old, new)) in (0_u32..).zip(changes) {
        let at = (first + u64::from(number)) * 10;
        batch.transactions.push(TransactionInfo {
            xid: 1,
            commit_lsn: Lsn(at),
            end_lsn: Lsn(at + 5),
            commit_time: 0,
        });
        let mut row = |key: Option<u8>| {
            key.map(|key| {
                let (start, first) = (batch.bytes.len(), batch.cells.len());
                batch.bytes.push(b'0' + key);
                batch.cells.push(Cell::Text { start: u32::try_from(start).unwrap(), len: 1 });
                RowSpan { first: u32::try_from(first).unwrap(), count: 1 }
            })
        };
        let (old, new) = (row(old), row(new));
        batch.changes.push(Change { operation, relation: 0, transaction: number, sequence: 0, new, old });
    }
    batch
}

fn order(commit: u64) -> LaneOrder {
    LaneOrder { generation: 1, commit_lsn: Lsn(commit), sequence: 0 }
}

fn ids(passed: &[(Vec<u8>, LaneOrder)]) -> Vec<&str> {
    passed.iter().map(|(row, _)| std::str::from_utf8(row).unwrap()).collect()
}

#[test]
fn an_entry_ends_with_a_later_change_of_its_row() {
    let open: OpenRows = [(b"1".to_vec(), order(20)), (b"2".to_vec(), order(20))].into_iter().collect();
    let changes =
        batch(Origin::Stream, 1, &[(Operation::Insert, None, Some(1)), (Operation::Update, None, Some(2))]);
    assert_eq!(ids(&open.passed(&changes, &[0, 1], &[], &[], 1, Lsn(0))), ["2"], "the first is older");
    assert!(
        open.passed(&changes, &[0, 1], &[1], &[], 1, Lsn(0)).is_empty(),
        "it failed, or left what is there"
    );
    assert_eq!(
        ids(&open.passed(&changes, &[0], &[], &[], 2, Lsn(0))),
        ["1"],
        "a generation is later than all before"
    );
    let chunk = batch(Origin::Backfill, 0, &[(Operation::Read, None, Some(1))]);
    assert_eq!(ids(&open.passed(&chunk, &[0], &[], &[], 1, Lsn(25))), ["1"], "read again");
    assert!(open.passed(&chunk, &[0], &[], &[], 1, Lsn(20)).is_empty(), "handed out before what failed");
}

#[test]
fn a_moved_key_ends_the_entry_of_the_old_one_even_when_it_fails() {
    let open: OpenRows = [(b"1".to_vec(), order(10))].into_iter().collect();
    let moved = batch(Origin::Stream, 2, &[(Operation::Update, Some(1), Some(2))]);
    assert_eq!(ids(&open.passed(&moved, &[0], &[0], &[], 1, Lsn(0))), ["1"]);
    assert!(open.passed(&moved, &[0], &[], &[0], 1, Lsn(0)).is_empty(), "the old document is there still");
    let stays = batch(Origin::Stream, 2, &[(Operation::Update, Some(1), Some(1))]);
    assert!(open.passed(&stays, &[0], &[0], &[], 1, Lsn(0)).is_empty(), "the whole old row came along");
}

#[test]
fn truncate_ends_what_was_before_it() {
    let open: OpenRows = [(b"1".to_vec(), order(10)), (b"2".to_vec(), order(30))].into_iter().collect();
    let emptied = batch(Origin::Stream, 2, &[(Operation::Truncate, None, None)]);
    assert_eq!(ids(&open.passed(&emptied, &[0], &[], &[], 1, Lsn(0))), ["1"]);
}

#[test]
fn what_fails_in_a_row_is_counted_over_batches() {
    let all = |count: usize| (0..count).collect::<Vec<_>>();
    let one = InARow::default().after(3, &all(3), 5).unwrap();
    assert_eq!(one.after(4, &all(3), 5), Err(6));
    assert_eq!(one.after(4, &[1, 2, 3], 5), Ok(InARow(3)), "the first of them works");
    assert_eq!(one.after(2, &[0], 5), Ok(InARow(0)));
    assert_eq!(one.after(0, &[], 5), Ok(one), "nothing was tried");
}

proptest! {
    #[test]
    fn in_a_row_is_what_counting_one_by_one_comes_to(
        batches in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..12), 0..8),
        limit in 1_usize..10,
    ) {
        let mut counted = Ok(InARow::default());
        for batch in &batches {
            let failed: Vec<usize> = batch.iter().enumerate().filter(|(_, fails)| **fails).map(|(at, _)| at).collect();
            counted = counted.and_then(|in_a_row| in_a_row.after(batch.len(), &failed, limit));
        }
        let mut run = 0;
        let mut longest = 0;
        for fails in batches.iter().flatten() {
            run = if *fails { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        match counted {
            Ok(InARow(at)) => prop_assert!(at == run && longest <= limit),
            Err(_) => prop_assert!(longest > limit),
        }
    }
}

// --- a lane with its sink and its state, against an oracle ---------------------------------------------------

/// What happens to the source.
#[derive(Clone, Copy, Debug)]
struct Event {
    operation: Operation,
    old: Option<u8>,
    row: u8,
    /// The transform answers skip: nothing that its document shows has changed.
    skips: bool,
    /// It cannot be processed by the plugin of so many revisions from now on.
    fails_until: u8,
    /// The sink refuses its document until so many revisions, and the delete of the old one of a moved key.
    refused_until: u8,
    old_refused_until: u8,
}

#[derive(Clone, Debug)]
enum Step {
    /// Process so many changes in one batch, and be killed at this point (0: before anything; 1: entries of what the
    /// transform fails for are stored; 2: documents are delivered; 3: entries of what the sink refused are stored;
    /// 4: entries are closed; 5: the position is saved).
    Batch(usize, Option<u8>),
    /// Read rows again: a replay.
    Read(u8, Option<u8>),
    /// The next revision of the plugin.
    Bump,
    /// The lane falls behind, and is handed again what it has not saved.
    LetGo,
}

#[derive(Debug, Default)]
struct World {
    log: Vec<Event>,
    revision: u8,
    /// Changes that are processed, and of these, that are saved as such.
    at: usize,
    saved: usize,
    sink: BTreeMap<u8, usize>,
    stored: BTreeMap<Vec<u8>, LaneOrder>,
    open: OpenRows,
}

impl World {
    /// The document of each row after so many changes: the number of the change that made it.
    fn rows(&self, until: usize) -> BTreeMap<u8, usize> {
        let mut rows = BTreeMap::new();
        for (number, event) in self.log[..until].iter().enumerate() {
            self.effect(number, event, &mut rows);
        }
        rows
    }

    fn effect(&self, number: usize, event: &Event, rows: &mut BTreeMap<u8, usize>) {
        if let Some(old) = event.old {
            rows.remove(&old);
        }
        match event.operation {
            Operation::Truncate => rows.clear(),
            Operation::Delete => drop(rows.remove(&event.row)),
            _ if event.skips && rows.contains_key(&event.row) => {}
            _ => drop(rows.insert(event.row, number)),
        }
    }

    fn fails(&self, number: usize) -> bool {
        let event = &self.log[number];
        self.revision < event.fails_until && event.operation != Operation::Truncate && !event.skips
    }

    fn refuses(&self, number: usize) -> bool {
        let event = &self.log[number];
        self.revision < event.refused_until && event.operation != Operation::Truncate && !event.skips
    }

    fn refuses_old(&self, number: usize) -> bool {
        self.revision < self.log[number].old_refused_until
    }

    fn store(&mut self, entries: &[(Vec<u8>, LaneOrder)]) {
        for (row, order) in entries {
            let kept = self.stored.entry(row.clone()).or_insert(*order);
            *kept = (*order).max(*kept);
            self.open.opened(row, *order);
        }
    }

    fn close(&mut self, passed: &[(Vec<u8>, LaneOrder)]) {
        for (row, order) in passed {
            if self.stored.get(row).is_some_and(|stored| stored <= order) {
                self.stored.remove(row);
            }
            self.open.closed(row);
        }
    }

    fn restart(&mut self) {
        self.at = self.saved;
        self.open = self.stored.iter().map(|(row, order)| (row.clone(), *order)).collect();
    }

    /// One delivery of a lane, up to the point at which it is killed; whether it came to its end.
    fn deliver(&mut self, batch: &ChangeBatch, numbers: &[usize], handed: Lsn, kill: Option<u8>) -> bool {
        let stream = batch.origin == Origin::Stream;
        let failed: Vec<u32> = (0_u32..)
            .zip(numbers)
            .filter(|(_, number)| self.fails(**number))
            .map(|(index, _)| index)
            .collect();
        let mut left: Vec<u32> = (0_u32..)
            .zip(numbers)
            .filter(|(index, number)| failed.contains(index) || (stream && self.log[**number].skips))
            .map(|(index, _)| index)
            .collect();
        if kill == Some(0) {
            return false;
        }
        let entry = |index: u32, row: RowSpan| {
            let change = &batch.changes[index as usize];
            let mut id = Vec::new();
            assert!(push_document_id(batch.relation(change), batch.row(row), &mut id));
            (id, LaneOrder::of(batch, change, 1, handed))
        };
        let row = |index: u32| {
            let change = &batch.changes[index as usize];
            change.new.or(change.old).unwrap()
        };
        let entries: Vec<_> = failed.iter().map(|&index| entry(index, row(index))).collect();
        self.store(&entries);
        if kill == Some(1) {
            return false;
        }
        let mut sink = std::mem::take(&mut self.sink);
        let (mut refused, mut kept) = (Vec::new(), Vec::new());
        for (index, &number) in (0_u32..).zip(numbers) {
            let event = self.log[number];
            let change = &batch.changes[index as usize];
            if let (true, Some(old)) = (stream, event.old) {
                if self.refuses_old(number) {
                    refused.push(entry(index, change.old.unwrap()));
                    kept.push(index);
                } else {
                    sink.remove(&old);
                }
            }
            if failed.contains(&index) {
                continue;
            }
            if self.refuses(number) {
                refused.push(entry(index, row(index)));
                left.push(index);
                continue;
            }
            match change.operation {
                _ if stream => self.effect(number, &Event { old: None, ..event }, &mut sink),
                Operation::Delete => drop(sink.remove(&(entry(index, row(index)).0[0] - b'0'))),
                _ => drop(sink.insert(event.row, number)),
            }
        }
        self.sink = sink;
        if kill == Some(2) {
            return false;
        }
        self.store(&refused);
        if kill == Some(3) {
            return false;
        }
        left.sort_unstable();
        let selection: Vec<u32> = (0..u32::try_from(numbers.len()).unwrap()).collect();
        let passed = self.open.passed(batch, &selection, &left, &kept, 1, handed);
        self.close(&passed);
        kill != Some(4)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Batch(count, kill) => {
                let numbers: Vec<usize> = (self.at..self.log.len()).take(count).collect();
                let Some(&first) = numbers.first() else { return };
                let changes: Vec<_> = numbers
                    .iter()
                    .map(|&number| {
                        let Event { operation, old, row, .. } = self.log[number];
                        match operation {
                            Operation::Truncate => (operation, None, None),
                            Operation::Delete => (operation, Some(row), None),
                            _ => (operation, old, Some(row)),
                        }
                    })
                    .collect();
                let batch = batch(Origin::Stream, first as u64 + 1, &changes);
                if self.deliver(&batch, &numbers, Lsn(0), kill) {
                    self.at += numbers.len();
                    if kill.is_none() || kill == Some(5) {
                        self.saved = self.at;
                    }
                }
                if kill.is_some() {
                    self.restart();
                }
            }
            Step::Read(row, kill) => {
                let there = self.rows(self.at).get(&row).copied();
                // A row that is gone is deleted, whatever its last change was.
                let last =
                    self.log[..self.at].iter().rposition(|event| event.row == row || event.old == Some(row));
                let (Some(last), operation) = (last, there.map_or(Operation::Delete, |_| Operation::Read))
                else {
                    return;
                };
                let number = there.unwrap_or(last);
                let (old, new) =
                    if operation == Operation::Delete { (Some(row), None) } else { (None, Some(row)) };
                let batch = batch(Origin::Backfill, 0, &[(operation, old, new)]);
                let handed = Lsn(self.at as u64 * 10 + 5);
                self.deliver(&batch, &[number], handed, kill);
                if kill.is_some() {
                    self.restart();
                }
            }
            Step::Bump => self.revision += 1,
            Step::LetGo => self.at = self.saved,
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let operation = prop_oneof![
        4 => Just(Operation::Insert),
        4 => Just(Operation::Update),
        2 => Just(Operation::Delete),
        1 => Just(Operation::Truncate),
    ];
    let until = || prop_oneof![3 => Just(0_u8), 1 => 1_u8..3];
    let refused = (until(), until());
    (operation, prop::option::weighted(0.2, 0_u8..4), 0_u8..4, any::<bool>(), 0_u8..3, refused).prop_map(
        |(operation, old, row, skips, fails_until, (refused_until, old_refused_until))| {
            let update = operation == Operation::Update;
            let old = old.filter(|old| update && *old != row);
            let skips = skips && update && old.is_none();
            Event { operation, old, row, skips, fails_until, refused_until, old_refused_until }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let kill = || prop::option::weighted(0.3, 0_u8..6);
    prop_oneof![
        6 => (1_usize..5, kill()).prop_map(|(count, kill)| Step::Batch(count, kill)),
        3 => (0_u8..4, kill()).prop_map(|(row, kill)| Step::Read(row, kill)),
        1 => Just(Step::Bump),
        1 => Just(Step::LetGo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// In the end every row's document is the source's, or the row has an entry; and what has an entry did fail.
    #[test]
    fn a_row_is_right_or_in_quarantine(
        log in prop::collection::vec(event(), 1..24),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let mut world = World { log, ..World::default() };
        for step in &steps {
            world.step(step);
        }
        while world.at < world.log.len() {
            world.step(&Step::Batch(3, None));
        }
        let rows = world.rows(world.log.len());
        for row in 0..4_u8 {
            let open = world.stored.contains_key(&vec![b'0' + row]);
            let right = rows.get(&row) == world.sink.get(&row);
            prop_assert!(open || right, "row {row}: {:?} is {:?}", rows.get(&row), world.sink.get(&row));
        }
        // A plugin that fails for nothing any more: replays empty the quarantine, and all is right.
        world.revision = u8::MAX;
        for row in 0..4_u8 {
            if world.stored.contains_key(&vec![b'0' + row]) {
                world.step(&Step::Read(row, None));
            }
        }
        prop_assert!(world.stored.is_empty(), "{:?}", world.stored);
        prop_assert_eq!(&world.rows(world.log.len()), &world.sink);
    }
}
