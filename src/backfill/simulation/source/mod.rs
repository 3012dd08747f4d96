//! A small Postgres: versions of rows, snapshots, locks, a WAL, and commits that become visible late.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Lsn, Snapshot};

use super::prng::Prng;

mod ddl;

pub(super) const TABLES: usize = 2;

#[derive(Clone, Debug)]
struct Version {
    key: u32,
    value: u64,
    /// None: the transaction that made it was rolled back.
    xmin: Option<u64>,
    xmax: Option<u64>,
}

#[derive(Clone, Debug)]
enum Undo {
    Created(usize, usize),
    Ended(usize, usize),
    Heap(usize, u64),
    Shape(usize, Shape),
}

/// What DDL changes of a table, by count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Grows with every table that is made.
    pub(super) oid: u32,
    /// Its key. An even one sorts upwards, an odd one downwards.
    pub(super) key: i16,
    pub(super) layout: u32,
}

impl Shape {
    fn behind(self, key: u32, after: u32) -> bool {
        if self.key % 2 == 0 { key > after } else { key < after }
    }
}

/// What the stream shows of a row event. `seq` grows with every event of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Upsert {
        table: usize,
        old: Option<u32>,
        key: u32,
        seq: u64,
    },
    Delete {
        table: usize,
        key: u32,
        seq: u64,
    },
    Truncate {
        table: usize,
        seq: u64,
    },
    /// A Relation message, before what comes next of the table.
    Described {
        table: usize,
        shape: Shape,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Its commit is in the WAL; snapshots still call it in progress.
    Limbo,
}

#[derive(Debug)]
struct Transaction {
    state: State,
    /// The last of its own and its savepoints' ids.
    last_xid: u64,
    events: Vec<Event>,
    undo: Vec<Undo>,
    savepoints: Vec<(usize, usize)>,
    commit: Lsn,
    published: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    Commit(Vec<Event>),
    Message(String),
}

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) start: Lsn,
    pub(super) end: Lsn,
    pub(super) xid: u64,
    last_xid: u64,
    undo: Vec<Undo>,
    pub(super) body: Body,
}

#[derive(Debug, Default)]
struct Table {
    versions: Vec<Version>,
    shape: Shape,
    /// Who made the present heap: an older snapshot finds it empty.
    heap: u64,
    /// Readers that hold a lock.
    readers: usize,
}

#[derive(Debug)]
pub(super) struct Source {
    tables: Vec<Table>,
    transactions: BTreeMap<u64, Transaction>,
    rows: BTreeMap<(usize, u32), u64>,
    shared: BTreeSet<(usize, u64)>,
    exclusive: [Option<u64>; TABLES],
    pub(super) published: [bool; TABLES],
    next_xid: u64,
    next_oid: u32,
    completed: u64,
    seq: u64,
    end: Lsn,
    pub(super) wal: Vec<Record>,
    pub(super) flushed: usize,
    keys: usize,
}

impl Source {
    pub(super) fn new(first_xid: u64, keys: usize) -> Self {
        Self {
            tables: (0..TABLES as u32)
                .map(|oid| Table { shape: Shape { oid, ..Shape::default() }, ..Table::default() })
                .collect(),
            transactions: BTreeMap::new(),
            rows: BTreeMap::new(),
            shared: BTreeSet::new(),
            exclusive: [None; TABLES],
            published: [true; TABLES],
            next_xid: first_xid,
            next_oid: TABLES as u32,
            completed: first_xid - 1,
            seq: 0,
            end: Lsn(1000),
            wal: Vec::new(),
            flushed: 0,
            keys,
        }
    }

    // --- transactions ---------------------------------------------------------------------------

    pub(super) fn assign_xid(&mut self) -> u64 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    pub(super) fn begin(&mut self) -> u64 {
        let xid = self.assign_xid();
        self.transactions.insert(
            xid,
            Transaction {
                state: State::Open,
                last_xid: xid,
                events: Vec::new(),
                undo: Vec::new(),
                savepoints: Vec::new(),
                commit: Lsn::ZERO,
                published: false,
            },
        );
        xid
    }

    fn in_state(&self, state: State) -> Vec<u64> {
        self.transactions.iter().filter(|(_, t)| t.state == state).map(|(xid, _)| *xid).collect()
    }

    pub(super) fn open(&self) -> Vec<u64> {
        self.in_state(State::Open)
    }

    pub(super) fn limbo(&self) -> Vec<u64> {
        self.in_state(State::Limbo)
    }

    fn current(&self, table: usize, key: u32) -> Option<usize> {
        let versions = &self.tables[table].versions;
        versions.iter().position(|v| v.key == key && v.xmin.is_some() && v.xmax.is_none())
    }

    fn lock_row(&mut self, xid: u64, table: usize, key: u32) -> bool {
        *self.rows.entry((table, key)).or_insert(xid) == xid
    }

    fn enter(&mut self, xid: u64, table: usize) -> bool {
        let free = self.exclusive[table].is_none_or(|owner| owner == xid);
        if free {
            self.shared.insert((table, xid));
        }
        free
    }

    fn seal(&mut self, xid: u64, table: usize) -> bool {
        let alone = self.shared.iter().all(|(t, owner)| *t != table || *owner == xid);
        let free = alone
            && self.tables[table].readers == 0
            && self.exclusive[table].is_none_or(|owner| owner == xid);
        if free {
            self.exclusive[table] = Some(xid);
        }
        free
    }

    fn undo_of(&mut self, xid: u64) -> &mut Vec<Undo> {
        &mut self.transactions.get_mut(&xid).unwrap().undo
    }

    fn end_version(&mut self, xid: u64, table: usize, at: usize) {
        self.tables[table].versions[at].xmax = Some(xid);
        self.undo_of(xid).push(Undo::Ended(table, at));
    }

    fn create(&mut self, xid: u64, table: usize, key: u32) -> u64 {
        self.seq += 1;
        let value = self.seq;
        let versions = &mut self.tables[table].versions;
        versions.push(Version { key, value, xmin: Some(xid), xmax: None });
        let at = versions.len() - 1;
        self.undo_of(xid).push(Undo::Created(table, at));
        value
    }

    fn log(&mut self, xid: u64, table: usize, event: Event) {
        if self.published[table] {
            let shape = self.tables[table].shape;
            let events = &mut self.transactions.get_mut(&xid).unwrap().events;
            let described =
                |event: &&Event| matches!(event, Event::Described { table: of, .. } if *of == table);
            let known = events.iter().rev().find(described).copied();
            let description = Event::Described { table, shape };
            if known != Some(description) {
                events.push(description);
            }
            events.push(event);
        }
    }

    /// One random statement; does nothing where it would have to wait.
    pub(super) fn write(&mut self, xid: u64, rng: &mut Prng, truncate: usize) {
        let table = rng.below(TABLES);
        if rng.chance(truncate) {
            if self.seal(xid, table) {
                match rng.below(10) {
                    0..=4 => self.truncate(xid, table),
                    5 => self.rewrite(xid, table),
                    6 => self.recreate(xid, table),
                    other => self.reshape(xid, table, other == 7),
                }
            }
            return;
        }
        if !self.enter(xid, table) {
            return;
        }
        let key = rng.below(self.keys) as u32;
        if !self.lock_row(xid, table, key) {
            return;
        }
        match (self.current(table, key), rng.below(10)) {
            (None, _) => {
                let seq = self.create(xid, table, key);
                self.log(xid, table, Event::Upsert { table, old: None, key, seq });
            }
            (Some(at), 0..=4) => {
                self.end_version(xid, table, at);
                let seq = self.create(xid, table, key);
                self.log(xid, table, Event::Upsert { table, old: None, key, seq });
            }
            (Some(at), 5..=7) => {
                let to = rng.below(self.keys) as u32;
                if to == key || !self.lock_row(xid, table, to) || self.current(table, to).is_some() {
                    return;
                }
                self.end_version(xid, table, at);
                let seq = self.create(xid, table, to);
                self.log(xid, table, Event::Upsert { table, old: Some(key), key: to, seq });
            }
            (Some(at), _) => {
                self.end_version(xid, table, at);
                self.seq += 1;
                self.log(xid, table, Event::Delete { table, key, seq: self.seq });
            }
        }
    }

    pub(super) fn savepoint(&mut self, xid: u64) {
        let sub = self.assign_xid();
        let transaction = self.transactions.get_mut(&xid).unwrap();
        transaction.last_xid = sub;
        transaction.savepoints.push((transaction.events.len(), transaction.undo.len()));
    }

    pub(super) fn rollback_to(&mut self, xid: u64) {
        let transaction = self.transactions.get_mut(&xid).unwrap();
        let Some((events, undo)) = transaction.savepoints.pop() else { return };
        transaction.events.truncate(events);
        let undone = transaction.undo.split_off(undo);
        self.undo(undone);
    }

    fn undo(&mut self, undo: Vec<Undo>) {
        for step in undo.into_iter().rev() {
            match step {
                Undo::Created(table, at) => self.tables[table].versions[at].xmin = None,
                Undo::Ended(table, at) => self.tables[table].versions[at].xmax = None,
                Undo::Heap(table, heap) => self.tables[table].heap = heap,
                Undo::Shape(table, shape) => self.tables[table].shape = shape,
            }
        }
    }

    fn finish(&mut self, xid: u64, last_xid: u64) {
        self.rows.retain(|_, owner| *owner != xid);
        self.shared.retain(|(_, owner)| *owner != xid);
        for owner in &mut self.exclusive {
            *owner = owner.filter(|owner| *owner != xid);
        }
        self.completed = self.completed.max(last_xid);
    }

    pub(super) fn abort(&mut self, xid: u64) {
        let transaction = self.transactions.remove(&xid).unwrap();
        self.undo(transaction.undo);
        self.finish(xid, transaction.last_xid);
    }

    fn append(&mut self, xid: u64, last_xid: u64, undo: Vec<Undo>, body: Body, rng: &mut Prng) -> Lsn {
        let start = self.end;
        // Records of open transactions lie between commit records now and then.
        let start = if rng.chance(30) { Lsn(start.0 + 7) } else { start };
        self.end = Lsn(start.0 + 1 + rng.below(20) as u64);
        self.wal.push(Record { start, end: self.end, xid, last_xid, undo, body });
        start
    }

    /// The table leaves the publication. (No transaction is open across the table's leaving and joining
    /// again: its changes from before would be streamed after the joining, without those in between.)
    pub(super) fn unpublish(&mut self, table: usize) {
        for xid in self.open() {
            if self.shared.contains(&(table, xid)) || self.exclusive[table] == Some(xid) {
                self.abort(xid);
            }
        }
        self.published[table] = false;
    }

    /// Writes the commit. With `synchronous_commit = off` (`lazy`) it is visible before it is flushed,
    /// else it is flushed and in limbo until [`Source::release`].
    pub(super) fn commit(&mut self, xid: u64, lazy: bool, rng: &mut Prng) {
        let transaction = self.transactions.get_mut(&xid).unwrap();
        let events = std::mem::take(&mut transaction.events);
        let undo = std::mem::take(&mut transaction.undo);
        let last_xid = transaction.last_xid;
        transaction.state = State::Limbo;
        transaction.published = !events.is_empty();
        let commit = self.append(xid, last_xid, undo, Body::Commit(events), rng);
        self.transactions.get_mut(&xid).unwrap().commit = commit;
        if lazy {
            self.release(xid);
        } else {
            self.flush();
        }
    }

    /// The commit becomes visible.
    pub(super) fn release(&mut self, xid: u64) {
        let transaction = self.transactions.remove(&xid).unwrap();
        self.finish(xid, transaction.last_xid);
    }

    /// A committed logical message (`synchronous_commit = local`).
    pub(super) fn emit(&mut self, content: String, rng: &mut Prng) {
        let xid = self.assign_xid();
        self.append(xid, xid, Vec::new(), Body::Message(content), rng);
        self.completed = self.completed.max(xid);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        self.flushed = self.wal.len();
    }

    /// An immediate restart of the server: what was not flushed is lost, and its ids are used again.
    pub(super) fn crash(&mut self) {
        for xid in self.open().into_iter().rev() {
            self.abort(xid);
        }
        for xid in self.limbo() {
            self.release(xid);
        }
        while self.wal.len() > self.flushed {
            let record = self.wal.pop().unwrap();
            self.undo(record.undo);
        }
        let known = self.wal.iter().map(|record| record.last_xid).max();
        if let Some(known) = known {
            self.next_xid = known + 1;
            self.completed = known;
        }
        self.end = self.wal.last().map_or(self.end, |record| record.end);
        for table in &mut self.tables {
            table.readers = 0;
        }
    }

    // --- reading --------------------------------------------------------------------------------

    pub(super) fn snapshot(&self) -> Snapshot {
        let xmax = self.completed + 1;
        let in_progress: Vec<u64> = self.transactions.keys().copied().filter(|xid| *xid < xmax).collect();
        Snapshot { xmin: in_progress.first().copied().unwrap_or(xmax), xmax, in_progress }
    }

    /// What the creation of a slot exports: it sees exactly the commits that the WAL has.
    pub(super) fn slot_snapshot(&self) -> Snapshot {
        let open = self.open();
        let committed = self.wal.iter().map(|record| record.last_xid).max();
        let xmax = committed.map_or(self.completed + 1, |xid| xid + 1);
        let in_progress: Vec<u64> = open.into_iter().filter(|xid| *xid < xmax).collect();
        Snapshot { xmin: in_progress.first().copied().unwrap_or(xmax), xmax, in_progress }
    }

    pub(super) fn may_lock(&self, table: usize) -> bool {
        self.exclusive[table].is_none()
    }

    pub(super) fn lock(&mut self, table: usize) {
        self.tables[table].readers += 1;
    }

    pub(super) fn unlock(&mut self, table: usize) {
        let readers = &mut self.tables[table].readers;
        *readers = readers.saturating_sub(1);
    }

    /// What a table is like for whoever holds a lock on it.
    pub(super) fn shape(&self, table: usize) -> Shape {
        self.tables[table].shape
    }

    /// `select … where key > after order by key`, in a snapshot.
    pub(super) fn rows(&self, table: usize, snapshot: &Snapshot, after: Option<u32>) -> Vec<(u32, u64)> {
        let sees = |xid: u64| xid < snapshot.xmax && !snapshot.in_progress.contains(&xid);
        let table = &self.tables[table];
        let shape = table.shape;
        if !sees(table.heap) {
            return Vec::new();
        }
        let mut rows: Vec<(u32, u64)> = table
            .versions
            .iter()
            .filter(|v| v.xmin.is_some_and(sees) && !v.xmax.is_some_and(sees))
            .filter(|v| after.is_none_or(|after| shape.behind(v.key, after)))
            .map(|v| (v.key, v.value))
            .collect();
        rows.sort_unstable();
        if shape.key % 2 != 0 {
            rows.reverse();
        }
        rows
    }

    /// Where the oldest commit in limbo that the stream shows begins, from a position on.
    pub(super) fn oldest_limbo(&self, from: Lsn) -> Option<Lsn> {
        let limbo = self.transactions.values().filter(|t| t.state == State::Limbo && t.published);
        limbo.map(|t| t.commit).filter(|commit| *commit >= from).min()
    }

    pub(super) fn wal_end(&self) -> Lsn {
        self.end
    }
}
