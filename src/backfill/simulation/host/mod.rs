//! The rest of the host: lanes with sinks, readers, the slot, and what survives a crash.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    backfill::{
        Attempt, ChunkRead, Command, Controls, Cursor, Emission, KeyColumn, Keys, Machine, Marker,
        MarkerKind, PageSettings, ReadFailure, ReadRequest, RunSpec, Settings, TableControl, Touch,
        everything_before,
    },
    model::{EntityName, Lsn, Scope, Snapshot, Xid},
};

use super::{
    Fault,
    prng::Prng,
    source::{Body, Event, Shape, Source, TABLES},
};

mod commands;
mod lanes;
mod readers;
mod requests;
mod terms;

type Rows = Vec<(u32, u64)>;

const INSTALLATION: &str = "sim";

/// What a sink and the state schema keep of a mapping.
#[derive(Debug, Default)]
pub(super) struct LaneDisk {
    pub(super) table: usize,
    pub(super) generation: u32,
    /// Key to value and generation.
    pub(super) docs: BTreeMap<u32, (u64, u32)>,
    /// The newest event that was delivered for a key, and for all keys.
    newest: HashMap<u32, u64>,
    newest_truncate: u64,
    accepted: Lsn,
    /// What was never streamed for the table; until a run has made up for it.
    baseline: Option<Arc<Snapshot>>,
    /// It is to be emptied before anything else is delivered.
    purge: bool,
    /// Nobody has asked again since its run was withdrawn.
    cancelled: bool,
    /// Documents that the sink has lost, and whose repair was withdrawn; and how many runs there were then.
    damaged: BTreeMap<u32, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Queued,
    Running,
    Complete,
    /// Withdrawn: its table stays as it is until somebody asks again.
    Cancelled,
    /// Another run took its place, or it was a scoped one and is done.
    Gone,
}

#[derive(Debug)]
struct StoredRun {
    spec: RunSpec,
    status: Status,
}

impl StoredRun {
    fn is_due(&self) -> bool {
        matches!(self.status, Status::Queued | Status::Running)
    }
}

/// What survives.
#[derive(Debug, Default)]
struct Disk {
    confirmed: Lsn,
    slot_made: Lsn,
    lanes: Vec<LaneDisk>,
    runs: Vec<StoredRun>,
    baseline: Option<Arc<Snapshot>>,
    incarnation: u64,
    /// By table, not by oid.
    controls: Controls,
    /// The tables that the mappings are of.
    oids: [u32; TABLES],
}

#[derive(Debug)]
enum Item {
    Transaction { end: Lsn, events: Vec<Event>, generation: u32 },
    Chunk { attempt: Attempt, rows: Rows, generation: u32 },
    Purge,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Item>,
    /// Up to where transactions were put into the queue (or skipped).
    received: Lsn,
    accepted: Lsn,
}

#[derive(Debug)]
enum Reading {
    Start,
    Low,
    Locked { snapshot: Arc<Snapshot>, shape: Shape, locked: bool },
    Done { read: Option<ChunkRead<Rows>>, high: bool },
}

#[derive(Debug)]
struct Reader {
    request: ReadRequest,
    stage: Reading,
}

#[derive(Debug)]
struct Waiting {
    run: Arc<str>,
    chunk: u64,
    lanes: BTreeSet<usize>,
}

/// What a crash loses.
#[derive(Debug)]
struct Live {
    machine: Machine<Rows>,
    position: usize,
    lanes: Vec<Lane>,
    readers: Vec<Reader>,
    /// The tables as this session's stream has described them.
    shapes: [Option<Shape>; TABLES],
    /// Since when the present controls hold, and the rows that were read since.
    paced: (i64, u64),
    probes: VecDeque<Arc<Snapshot>>,
    /// Runs whose beginning was asked for.
    beginnings: VecDeque<Arc<str>>,
    waiting: HashMap<Attempt, Waiting>,
    durable: Vec<Attempt>,
    /// Fault injection: chunks that are emitted later than they should be, and DBLog's own windows.
    late: Vec<Emission<Rows>>,
    since_low: HashMap<Attempt, BTreeSet<u32>>,
    truncated_since_low: BTreeSet<Attempt>,
}

pub(super) struct Host {
    disk: Disk,
    live: Live,
    /// Readings of hosts that are gone; their sessions still do what they were told.
    ghosts: Vec<Reader>,
    fault: Option<Fault>,
    now: i64,
    runs_made: u64,
    pub(super) emitted: u64,
    pub(super) dropped: u64,
    pub(super) rereads: u64,
    pub(super) scoped: u64,
    pub(super) cancelled: u64,
}

fn settings(rng: &mut Prng) -> Settings {
    Settings {
        page: PageSettings {
            most: 1 + rng.below(6) as u32,
            floor: 1,
            time: Duration::from_millis(10),
            bytes: 10 + rng.below(60),
        },
        prefetch_bytes: 20 + rng.below(300),
        window_bytes: if rng.chance(20) { 60 } else { 1 << 20 },
        max_concurrent: 1 + rng.below(2),
        probe_interval: Duration::from_millis(50),
    }
}

fn key_columns(shape: Shape) -> Vec<KeyColumn> {
    vec![KeyColumn { name: "id".into(), attribute: shape.key, type_oid: 23, collation: 0 }]
}

/// Whether a scope has the row of a key.
fn within(scope: Option<&Scope>, key: u32) -> bool {
    match scope {
        None => true,
        Some(Scope::Where(condition)) => condition.parse().is_ok_and(|limit: u32| key < limit),
        Some(Scope::Keys(keys)) => keys.iter().any(|values| values[0] == key.to_string()),
    }
}

fn keys_of(event: &Event) -> (usize, Option<u32>, Option<u32>, u64) {
    match *event {
        Event::Upsert { table, old, key, seq } => (table, old, Some(key), seq),
        Event::Delete { table, key, seq } => (table, Some(key), None, seq),
        Event::Truncate { table, seq } => (table, None, None, seq),
        Event::Described { table, .. } => (table, None, None, 0),
    }
}

impl Host {
    /// Makes publication, slot and three mappings: two of table 0, one of table 1, which joins the
    /// publication later when `late_table`.
    pub(super) fn install(
        source: &mut Source,
        late_table: bool,
        fault: Option<Fault>,
        rng: &mut Prng,
    ) -> Self {
        if late_table && rng.chance(50) {
            source.unpublish(1);
        }
        let baseline = match rng.chance(80) {
            true => source.slot_snapshot(),
            false => {
                let xid = source.assign_xid();
                source.emit("nothing".into(), rng);
                everything_before(xid)
            }
        };
        source.flush();
        let mut disk = Disk { confirmed: source.wal_end(), slot_made: source.wal_end(), ..Disk::default() };
        disk.oids = std::array::from_fn(|table| source.visible_oid(table));
        disk.baseline = (fault != Some(Fault::NoSlotBaseline)).then(|| Arc::new(baseline));
        for table in if late_table { vec![0, 0] } else { vec![0, 0, 1] } {
            disk.lanes.push(LaneDisk { table, generation: 1, ..LaneDisk::default() });
        }
        let live = Self::boot(&mut disk, source, fault, 0, rng);
        let mut host = Self {
            disk,
            live,
            ghosts: Vec::new(),
            fault,
            now: 0,
            runs_made: 0,
            emitted: 0,
            dropped: 0,
            rereads: 0,
            scoped: 0,
            cancelled: 0,
        };
        for (table, lanes) in [(0, vec![0, 1]), (1, vec![2])] {
            if table == 0 || !late_table {
                host.request(table, &lanes, source, rng);
            }
        }
        host
    }

    fn targets(&self, spec: &RunSpec) -> Vec<usize> {
        spec.mappings.iter().map(|name| name.parse().unwrap()).collect()
    }

    // --- the stream -----------------------------------------------------------------------------

    /// The next record of the stream; false when there is none.
    pub(super) fn stream(&mut self, source: &mut Source, rng: &mut Prng) -> Result<bool, String> {
        if self.live.position >= source.flushed {
            return Ok(false);
        }
        let record = source.wal[self.live.position].clone();
        if let Body::Commit(events) = &record.body
            && self.is_recreated(events)
        {
            self.crash(false, source, rng)?;
            return Ok(false);
        }
        self.live.position += 1;
        match record.body {
            Body::Commit(events) => {
                self.relations(&events, source, rng)?;
                let wanted = self.live.lanes.iter().any(|lane| record.end > lane.received);
                if wanted || self.fault != Some(Fault::FeedOnlyDelivered) {
                    self.live.machine.committed(record.xid as Xid, record.start, record.end);
                    self.of_present_tables(&events).iter().for_each(|event| self.feed(event));
                }
                let delivered = match self.fault {
                    Some(Fault::FormerTable) => events,
                    _ => self.of_present_tables(&events),
                };
                for (lane, live) in self.live.lanes.iter_mut().enumerate() {
                    if record.end > live.received {
                        live.received = record.end;
                        let generation = self.disk.lanes[lane].generation;
                        let events = delivered.clone();
                        live.queue.push_back(Item::Transaction { end: record.end, events, generation });
                    }
                }
            }
            Body::Message(content) => {
                self.message(&content, source, rng)?;
                self.live.machine.passed(record.end);
                for live in &mut self.live.lanes {
                    if record.end > live.received {
                        live.received = record.end;
                        let events = Vec::new();
                        live.queue.push_back(Item::Transaction { end: record.end, events, generation: 0 });
                    }
                }
            }
        }
        if rng.chance(30) {
            for emission in std::mem::take(&mut self.live.late) {
                self.deliver_chunk(emission);
            }
        }
        Ok(true)
    }

    /// Relation messages come before the transaction that they are in is applied.
    fn relations(&mut self, events: &[Event], source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        for event in events {
            let Event::Described { table, shape } = *event else { continue };
            if shape.oid != self.disk.oids[table] {
                continue;
            }
            let known = self.live.shapes[table].replace(shape);
            if let Some(known) = known.filter(|known| *known != shape) {
                let key = known.key != shape.key;
                let commands = self.live.machine.relation_changed(shape.oid, key);
                self.carry_out(commands, source, rng)?;
            }
        }
        Ok(())
    }

    /// Whether the stream shows a table that was made after this term began.
    fn is_recreated(&self, events: &[Event]) -> bool {
        let newer = |event: &Event| match *event {
            Event::Described { table, shape } => shape.oid > self.disk.oids[table] && self.is_mapped(table),
            _ => false,
        };
        events.iter().any(newer)
    }

    fn is_mapped(&self, table: usize) -> bool {
        self.disk.lanes.iter().any(|lane| lane.table == table)
    }

    /// What of a transaction is of the tables that the mappings are of, not of former ones of their names.
    fn of_present_tables(&self, events: &[Event]) -> Vec<Event> {
        let mut present = [false; TABLES];
        let keep = |event: &&Event| {
            if let Event::Described { table, shape } = **event {
                present[table] = shape.oid == self.disk.oids[table];
            }
            present[keys_of(event).0]
        };
        events.iter().filter(keep).copied().collect()
    }

    fn feed(&mut self, event: &Event) {
        let (table, old, new, _) = keys_of(event);
        let oid = self.disk.oids[table];
        let mut touch = |touch: Touch<'_>| self.live.machine.touched(oid, touch);
        if let Event::Truncate { .. } = event {
            if self.fault != Some(Fault::IgnoreTruncate) {
                touch(Touch::All);
            }
            let attempts = self.live.since_low.keys().copied();
            self.live.truncated_since_low.extend(attempts);
            return;
        }
        for key in old.filter(|_| self.fault != Some(Fault::IgnoreOldKeys)).into_iter().chain(new) {
            touch(Touch::Key(key.to_string().as_bytes()));
        }
        for touched in self.live.since_low.values_mut() {
            touched.extend(old.into_iter().chain(new));
        }
    }

    fn message(&mut self, content: &str, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        let Some(mut marker) = Marker::parse(content.as_bytes(), INSTALLATION) else { return Ok(()) };
        if self.fault == Some(Fault::NoIncarnation) {
            marker.attempt.incarnation = self.disk.incarnation;
        }
        if marker.kind == MarkerKind::Low {
            self.live.since_low.insert(marker.attempt, BTreeSet::new());
        }
        let commands = self.live.machine.marker(&marker);
        self.carry_out(commands, source, rng)
    }

    // --- positions ------------------------------------------------------------------------------

    pub(super) fn save_positions(&mut self) {
        for (disk, live) in self.disk.lanes.iter_mut().zip(&self.live.lanes) {
            disk.accepted = disk.accepted.max(live.accepted);
        }
    }

    pub(super) fn confirm(&mut self, source: &Source) -> Result<(), String> {
        let ledger = self.live.lanes.iter().map(|lane| lane.accepted).min().unwrap_or_default();
        let limbo = self.live.machine.limbo();
        let position = match self.fault {
            Some(Fault::ConfirmPastLimbo) => ledger,
            Some(Fault::ConfirmBeforeStreamed) if limbo.is_empty() => ledger,
            _ => ledger.min(limbo.confirmable()),
        };
        self.disk.confirmed = self.disk.confirmed.max(position);
        if self.fault.is_none() {
            let first = source.oldest_limbo(self.disk.slot_made);
            if let Some(limbo) = first.filter(|limbo| *limbo < self.disk.confirmed) {
                return Err(format!("confirmed {position} past a commit in limbo at {limbo}"));
            }
        }
        Ok(())
    }

    // --- time -----------------------------------------------------------------------------------

    pub(super) fn tick(&mut self, micros: i64, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        self.now += micros;
        let commands = self.live.machine.tick(self.now);
        self.carry_out(commands, source, rng)
    }

    /// Until the machine has something to do.
    pub(super) fn sleep(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        let wake = self.live.machine.next_wake().unwrap_or(self.now);
        self.tick((wake - self.now).clamp(1, 400_000_000), source, rng)
    }

    pub(super) fn answer_probe(&mut self, source: &mut Source, rng: &mut Prng) -> Result<bool, String> {
        let Some(snapshot) = self.live.probes.pop_front() else { return Ok(false) };
        let commands = self.live.machine.probe(&snapshot);
        self.carry_out(commands, source, rng)?;
        Ok(true)
    }

    // --- the end --------------------------------------------------------------------------------

    pub(super) fn flush_late(&mut self) {
        for emission in std::mem::take(&mut self.live.late) {
            self.deliver_chunk(emission);
        }
    }

    pub(super) fn is_quiet(&self, source: &Source) -> bool {
        self.live.position >= source.flushed
            && self.live.readers.is_empty()
            && self.live.durable.is_empty()
            && self.live.lanes.iter().all(|lane| lane.queue.is_empty())
            && self.live.machine.runs().next().is_none()
    }

    pub(super) fn describe(&self) -> String {
        let runs: Vec<_> = self.live.machine.runs().map(|(_, view)| format!("{view:?}")).collect();
        format!("readers {:?}; runs {}", self.live.readers, runs.join("; "))
    }

    /// Destination and source, both ways.
    pub(super) fn check(&self, source: &Source) -> Result<(), String> {
        if let Some(run) = self.disk.runs.iter().find(|run| run.is_due()) {
            return Err(format!("{} is not complete", run.spec.run));
        }
        let snapshot = source.snapshot();
        for (at, lane) in self.disk.lanes.iter().enumerate() {
            let rows = source.rows(lane.table, &snapshot, None);
            let expected: BTreeMap<u32, (u64, u32)> =
                rows.into_iter().map(|(key, value)| (key, (value, lane.generation))).collect();
            let missing = |key: &u32| !lane.docs.contains_key(key) && !lane.damaged.contains_key(key);
            let right = match lane.cancelled {
                // Not filled, or of an older generation; but nothing in it is stale.
                true => lane
                    .docs
                    .iter()
                    .all(|(key, (value, _))| expected.get(key).map(|row| row.0) == Some(*value)),
                false => {
                    lane.docs.iter().all(|(key, doc)| expected.get(key) == Some(doc))
                        && !expected.keys().any(missing)
                }
            };
            if !right {
                return Err(format!("lane {at}: expected {expected:?}, found {:?}", lane.docs));
            }
        }
        Ok(())
    }
}

fn table_of(request: &ReadRequest) -> usize {
    request.entity.table.trim_start_matches('t').parse().unwrap()
}
