//! The rest of the host: lanes with sinks, readers, the slot, and what survives a crash.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    backfill::{
        Attempt, ChunkRead, Command, Emission, KeyColumn, Keys, Machine, Marker, MarkerKind, PageSettings,
        ReadFailure, ReadRequest, RunSpec, Settings, Touch, everything_before,
    },
    model::{EntityName, Lsn, Snapshot, Xid},
};

use super::{
    Fault,
    prng::Prng,
    source::{Body, Event, Source, TABLES},
};

mod commands;
mod lanes;
mod readers;

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
}

#[derive(Debug)]
struct StoredRun {
    spec: RunSpec,
    complete: bool,
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
}

#[derive(Debug)]
enum Item {
    Transaction { end: Lsn, events: Vec<Event>, generation: u32 },
    Chunk { attempt: Attempt, rows: Rows, generation: u32 },
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
    Locked { snapshot: Arc<Snapshot>, locked: bool },
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
    fault: Option<Fault>,
    now: i64,
    runs_made: u64,
    pub(super) emitted: u64,
    pub(super) dropped: u64,
    pub(super) rereads: u64,
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

fn key_column() -> KeyColumn {
    KeyColumn { name: "id".into(), attribute: 1, type_oid: 23, collation: 0 }
}

fn keys_of(event: &Event) -> (usize, Option<u32>, Option<u32>, u64) {
    match *event {
        Event::Upsert { table, old, key, seq } => (table, old, Some(key), seq),
        Event::Delete { table, key, seq } => (table, Some(key), None, seq),
        Event::Truncate { table, seq } => (table, None, None, seq),
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
        disk.baseline = (fault != Some(Fault::NoSlotBaseline)).then(|| Arc::new(baseline));
        for table in if late_table { vec![0, 0] } else { vec![0, 0, 1] } {
            disk.lanes.push(LaneDisk { table, generation: 1, ..LaneDisk::default() });
        }
        let live = Self::boot(&mut disk, source, fault, rng);
        let mut host = Self { disk, live, fault, now: 0, runs_made: 0, emitted: 0, dropped: 0, rereads: 0 };
        for (table, lanes) in [(0, vec![0, 1]), (1, vec![2])] {
            if table == 0 || !late_table {
                host.request(table, &lanes, None, source, rng);
            }
        }
        host
    }

    fn boot(disk: &mut Disk, source: &Source, fault: Option<Fault>, rng: &mut Prng) -> Live {
        disk.incarnation += 1;
        let machine = Machine::new(settings(rng), disk.incarnation, disk.baseline.clone());
        let position = source.wal.iter().position(|record| record.start >= disk.confirmed);
        let lanes = disk.lanes.iter().map(|lane| Lane {
            received: lane.accepted,
            accepted: lane.accepted,
            ..Lane::default()
        });
        let mut live = Live {
            machine,
            position: position.unwrap_or(source.wal.len()),
            lanes: lanes.collect(),
            readers: Vec::new(),
            probes: VecDeque::new(),
            beginnings: VecDeque::new(),
            waiting: HashMap::new(),
            durable: Vec::new(),
            late: Vec::new(),
            since_low: HashMap::new(),
            truncated_since_low: BTreeSet::new(),
        };
        live.machine.sabotage = fault.and_then(Fault::inside);
        live
    }

    /// A crash of the host (or of the server, with it), and the next start.
    pub(super) fn crash(&mut self, server: bool, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        if server && self.fault == Some(Fault::MachineOutlivesServer) {
            return self.reconnect(source, rng);
        }
        for reader in &self.live.readers {
            if let Reading::Locked { locked: true, .. } = reader.stage {
                source.unlock(table_of(&reader.request));
            }
        }
        self.live = Self::boot(&mut self.disk, source, self.fault, rng);
        for at in 0..self.disk.runs.len() {
            if !self.disk.runs[at].complete {
                let mut spec = self.disk.runs[at].spec.clone();
                let table = spec.table as usize;
                let accepted = self.targets(&spec).into_iter().map(|lane| self.disk.lanes[lane].accepted);
                spec.skip_until = accepted.max().unwrap_or(Lsn::ZERO);
                if self.fault == Some(Fault::SkippedCountsAsReceived) {
                    spec.skip_until = Lsn::ZERO;
                }
                debug_assert!(table < TABLES);
                let commands = self.live.machine.add(spec);
                self.carry_out(commands, source, rng)?;
            }
        }
        Ok(())
    }

    /// What must not be done when the server was restarted: only the readings fail.
    fn reconnect(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        for reader in std::mem::take(&mut self.live.readers) {
            let failure = ReadFailure { timed_out: false, message: "server restarted".into() };
            let commands = self.live.machine.read_failed(reader.request.attempt, failure, self.now);
            self.carry_out(commands, source, rng)?;
        }
        Ok(())
    }

    fn targets(&self, spec: &RunSpec) -> Vec<usize> {
        spec.mappings.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// A request for some mappings of a table, whose generation becomes the next one.
    fn request(
        &mut self,
        table: usize,
        lanes: &[usize],
        baseline: Option<Arc<Snapshot>>,
        source: &mut Source,
        rng: &mut Prng,
    ) {
        self.runs_made += 1;
        let mut spec = RunSpec::new(
            format!("run-{}", self.runs_made),
            EntityName::new("public", format!("t{table}")),
            table as u32,
        );
        spec.mappings = lanes.iter().map(ToString::to_string).collect();
        spec.skip_until = lanes.iter().map(|lane| self.live.lanes[*lane].received).max().unwrap_or_default();
        spec.baseline = baseline;
        spec.estimate = Some(10);
        for lane in lanes {
            self.disk.lanes[*lane].generation += 1;
        }
        self.disk.runs.push(StoredRun { spec: spec.clone(), complete: false });
        if self.fault == Some(Fault::ForgetLimboAtBegin) {
            // A lie: everything that has begun is visible.
            let xid = source.snapshot().xmax.max(source.open().last().map_or(0, |xid| xid + 1));
            let xid = xid.max(source.limbo().last().map_or(0, |xid| xid + 1));
            let commands = self.live.machine.probe(&Arc::new(everything_before(xid)));
            self.carry_out(commands, source, rng).unwrap();
        }
        let commands = self.live.machine.add(spec);
        self.carry_out(commands, source, rng).unwrap();
    }

    /// A version bump of some mappings of one table, or a plain request for all of it.
    pub(super) fn bump(&mut self, source: &mut Source, rng: &mut Prng) {
        let table = rng.below(TABLES);
        let all: Vec<usize> =
            (0..self.disk.lanes.len()).filter(|lane| self.disk.lanes[*lane].table == table).collect();
        let some: Vec<usize> = all.into_iter().filter(|_| rng.chance(70)).collect();
        if !some.is_empty() {
            self.request(table, &some, None, source, rng);
        }
    }

    /// Table 1 gets its mapping: it joins the publication of the slot that exists, or is in it already. Or it
    /// leaves the publication first, unless `now`.
    pub(super) fn map_late_table(&mut self, now: bool, source: &mut Source, rng: &mut Prng) {
        if self.disk.lanes.len() > 2 {
            return;
        }
        if source.published[1] && !now && rng.chance(60) {
            return source.unpublish(1);
        }
        let streamed = source.wal.get(self.live.position.wrapping_sub(1)).map_or(Lsn::ZERO, |r| r.end);
        let (mut begin, mut baseline) = (streamed, None);
        if !source.published[1] {
            source.published[1] = true;
            let xid = source.assign_xid();
            source.emit("alter publication".into(), rng);
            if self.fault != Some(Fault::NoPublicationBaseline) {
                baseline = Some(Arc::new(everything_before(xid)));
            }
            // What the stream has of this table from before is not all of it: the lane begins here.
            if self.fault != Some(Fault::LaneBeforePublication) {
                begin = source.wal_end();
            }
        }
        let disk = LaneDisk { table: 1, generation: 1, accepted: begin, ..LaneDisk::default() };
        self.disk.lanes.push(disk);
        self.live.lanes.push(Lane { received: begin, accepted: begin, ..Lane::default() });
        self.request(1, &[2], baseline, source, rng);
    }

    // --- the stream -----------------------------------------------------------------------------

    /// The next record of the stream; false when there is none.
    pub(super) fn stream(&mut self, source: &mut Source, rng: &mut Prng) -> Result<bool, String> {
        if self.live.position >= source.flushed {
            return Ok(false);
        }
        let record = source.wal[self.live.position].clone();
        self.live.position += 1;
        match record.body {
            Body::Commit(events) => {
                let wanted = self.live.lanes.iter().any(|lane| record.end > lane.received);
                if wanted || self.fault != Some(Fault::FeedOnlyDelivered) {
                    self.live.machine.committed(record.xid as Xid, record.start, record.end);
                    events.iter().for_each(|event| self.feed(event));
                }
                for (lane, live) in self.live.lanes.iter_mut().enumerate() {
                    if record.end > live.received {
                        live.received = record.end;
                        let generation = self.disk.lanes[lane].generation;
                        live.queue.push_back(Item::Transaction {
                            end: record.end,
                            events: events.clone(),
                            generation,
                        });
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

    fn feed(&mut self, event: &Event) {
        let (table, old, new, _) = keys_of(event);
        let mut touch = |touch: Touch<'_>| self.live.machine.touched(table as u32, touch);
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

    /// The state schema's answer to a run's beginning.
    pub(super) fn answer_beginning(&mut self, source: &mut Source, rng: &mut Prng) -> Result<bool, String> {
        let Some(run) = self.live.beginnings.pop_front() else { return Ok(false) };
        let stored = self.stored(&run);
        let granted = !stored.complete;
        stored.spec.started |= granted;
        let commands = self.live.machine.begun(&run, granted);
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
        if let Some(run) = self.disk.runs.iter().find(|run| !run.complete) {
            return Err(format!("{} is not complete", run.spec.run));
        }
        let snapshot = source.snapshot();
        for (at, lane) in self.disk.lanes.iter().enumerate() {
            let rows = source.rows(lane.table, &snapshot, None);
            let expected: BTreeMap<u32, (u64, u32)> =
                rows.into_iter().map(|(key, value)| (key, (value, lane.generation))).collect();
            if expected != lane.docs {
                return Err(format!("lane {at}: expected {expected:?}, found {:?}", lane.docs));
            }
        }
        Ok(())
    }
}

fn table_of(request: &ReadRequest) -> usize {
    request.table as usize
}
