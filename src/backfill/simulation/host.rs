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
        source.published[1] = !late_table;
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
    pub(super) fn crash(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
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

    /// Table 1 joins the publication of the slot that exists.
    pub(super) fn publish(&mut self, source: &mut Source, rng: &mut Prng) {
        if source.published[1] {
            return;
        }
        source.published[1] = true;
        let xid = source.assign_xid();
        source.emit("alter publication".into(), rng);
        let baseline = (self.fault != Some(Fault::NoPublicationBaseline)).then(|| everything_before(xid));
        self.disk.lanes.push(LaneDisk { table: 1, generation: 1, ..LaneDisk::default() });
        // What the stream has of this table from before is not all of it: the lane begins here.
        let received = match self.fault {
            Some(Fault::LaneBeforePublication) => Lsn::ZERO,
            _ => source.wal_end(),
        };
        self.live.lanes.push(Lane { received, accepted: received, ..Lane::default() });
        self.request(1, &[2], baseline.map(Arc::new), source, rng);
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
                self.live.machine.committed(record.xid as Xid, record.start, record.end);
                for event in &events {
                    self.feed(event);
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

    // --- commands -------------------------------------------------------------------------------

    fn carry_out(
        &mut self,
        commands: Vec<Command<Rows>>,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        for command in commands {
            match command {
                Command::Read(request) => self.live.readers.push(Reader { request, stage: Reading::Start }),
                Command::Emit(emission) => self.emit(emission, source, rng)?,
                Command::Reread { .. } => self.rereads += 1,
                Command::SaveCursor { run, cursor, rows, chunks } => {
                    let early = self.live.waiting.values().any(|w| w.run == run && w.chunk < chunks);
                    if early && self.fault.is_none() {
                        return Err(format!("cursor of {run} saved before chunk {chunks} was durable"));
                    }
                    let stored = self.stored(&run);
                    stored.spec.started = true;
                    (stored.spec.cursor, stored.spec.rows, stored.spec.chunks) = (Some(cursor), rows, chunks);
                }
                Command::Complete { run, .. } => self.stored(&run).complete = true,
                Command::Restart { run, .. } => {
                    let stored = self.stored(&run);
                    (stored.spec.cursor, stored.spec.rows, stored.spec.chunks) = (None, 0, 0);
                }
                Command::Supersede { old, new, mappings } => {
                    let baseline = self.stored(&old).spec.baseline.clone();
                    self.stored(&old).complete = true;
                    let new = self.stored(&new);
                    new.spec.mappings = mappings;
                    new.spec.baseline = new.spec.baseline.take().or(baseline);
                }
                Command::Fail { run, attempts, not_before, .. } => {
                    let stored = self.stored(&run);
                    (stored.spec.attempts, stored.spec.not_before) = (attempts, not_before);
                }
                Command::Probe => self.live.probes.push_back(Arc::new(source.snapshot())),
            }
        }
        Ok(())
    }

    fn stored(&mut self, run: &str) -> &mut StoredRun {
        self.disk.runs.iter_mut().find(|stored| *stored.spec.run == *run).unwrap()
    }

    fn emit(
        &mut self,
        mut emission: Emission<Rows>,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        self.emitted += 1;
        self.dropped += emission.dropped.len() as u64;
        match self.fault {
            Some(Fault::EmitAll) => emission.dropped.clear(),
            Some(Fault::ClassicWindow) => {
                let all = self.live.truncated_since_low.contains(&emission.attempt);
                let touched = self.live.since_low.get(&emission.attempt).cloned().unwrap_or_default();
                let rows = (0_u32..).zip(&emission.rows);
                emission.dropped =
                    rows.filter(|(_, (key, _))| all || touched.contains(key)).map(|(at, _)| at).collect();
            }
            _ => {}
        }
        self.live.since_low.remove(&emission.attempt);
        let attempt = emission.attempt;
        if self.fault == Some(Fault::EmitLate) && rng.chance(50) {
            self.live.late.push(emission);
        } else {
            self.deliver_chunk(emission);
        }
        if self.fault == Some(Fault::SaveCursorEarly) {
            let commands = self.live.machine.durable(attempt);
            self.carry_out(commands, source, rng)?;
        }
        Ok(())
    }

    fn deliver_chunk(&mut self, emission: Emission<Rows>) {
        let rows: Rows = (0_u32..)
            .zip(&emission.rows)
            .filter(|(at, _)| emission.dropped.binary_search(at).is_err())
            .map(|(_, row)| *row)
            .collect();
        let spec = self.stored(&emission.run).spec.clone();
        let lanes: BTreeSet<usize> = self.targets(&spec).into_iter().collect();
        for lane in &lanes {
            let generation = self.disk.lanes[*lane].generation;
            self.live.lanes[*lane].queue.push_back(Item::Chunk {
                attempt: emission.attempt,
                rows: rows.clone(),
                generation,
            });
        }
        let waiting = Waiting { run: emission.run, chunk: emission.chunk, lanes };
        self.live.waiting.insert(emission.attempt, waiting);
    }

    // --- readers --------------------------------------------------------------------------------

    pub(super) fn step_reader(
        &mut self,
        at: usize,
        failures: usize,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        if at >= self.live.readers.len() {
            return Ok(());
        }
        let mut reader = self.live.readers.swap_remove(at);
        let request = reader.request.clone();
        let table = table_of(&request);
        if rng.chance(failures) {
            if let Reading::Locked { locked: true, .. } = reader.stage {
                source.unlock(table);
            }
            if let Reading::Done { high: false, .. } = reader.stage
                && rng.chance(50)
            {
                // The answer to its commit got lost.
                source.emit(request.marker(INSTALLATION, MarkerKind::High).encode(), rng);
            }
            let failure = ReadFailure { timed_out: rng.chance(50), message: "injected".into() };
            let commands = self.live.machine.read_failed(request.attempt, failure, self.now);
            return self.carry_out(commands, source, rng);
        }
        reader.stage = match reader.stage {
            Reading::Start => {
                source.emit(request.marker(INSTALLATION, MarkerKind::Low).encode(), rng);
                Reading::Low
            }
            Reading::Low => {
                let locked = self.fault != Some(Fault::NoTableLock);
                if locked && !source.may_lock(table) {
                    Reading::Low
                } else {
                    if locked {
                        source.lock(table);
                    }
                    Reading::Locked { snapshot: Arc::new(source.snapshot()), locked }
                }
            }
            Reading::Locked { snapshot, locked } => {
                if !locked && !source.may_lock(table) {
                    Reading::Locked { snapshot, locked }
                } else {
                    if locked {
                        source.unlock(table);
                    }
                    let read = read_page(&request, &snapshot, source, rng);
                    Reading::Done { read: Some(read), high: false }
                }
            }
            Reading::Done { mut read, mut high } => {
                if !high && rng.chance(50) {
                    source.emit(request.marker(INSTALLATION, MarkerKind::High).encode(), rng);
                    high = true;
                } else if let Some(read) = read.take() {
                    let commands = self.live.machine.chunk_read(read);
                    self.carry_out(commands, source, rng)?;
                }
                if high && read.is_none() {
                    return Ok(());
                }
                Reading::Done { read, high }
            }
        };
        self.live.readers.push(reader);
        Ok(())
    }

    pub(super) fn readers(&self) -> usize {
        self.live.readers.len()
    }

    // --- lanes ----------------------------------------------------------------------------------

    pub(super) fn lanes(&self) -> usize {
        self.live.lanes.len()
    }

    /// The sink of a lane accepts what is first in its queue.
    pub(super) fn deliver(&mut self, lane: usize) -> Result<bool, String> {
        let live = &mut self.live.lanes[lane];
        let Some(item) = live.queue.pop_front() else { return Ok(false) };
        let disk = &mut self.disk.lanes[lane];
        match item {
            Item::Transaction { end, events, generation } => {
                for event in &events {
                    disk.apply(event, generation);
                }
                live.accepted = live.accepted.max(end);
            }
            Item::Chunk { attempt, rows, generation } => {
                for (key, value) in rows {
                    let newest = disk.newest.get(&key).copied().unwrap_or(0).max(disk.newest_truncate);
                    if value < newest && self.fault.is_none() {
                        return Err(format!(
                            "lane {lane}: row {key} = {value} replaces a newer one, {newest}"
                        ));
                    }
                    disk.docs.insert(key, (value, generation));
                }
                if let Some(waiting) = self.live.waiting.get_mut(&attempt) {
                    waiting.lanes.remove(&lane);
                    if waiting.lanes.is_empty() {
                        self.live.waiting.remove(&attempt);
                        self.live.durable.push(attempt);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Tells the machine of a chunk that is durable, in any order.
    pub(super) fn acknowledge(&mut self, source: &mut Source, rng: &mut Prng) -> Result<bool, String> {
        if self.live.durable.is_empty() {
            return Ok(false);
        }
        let attempt = self.live.durable.swap_remove(rng.below(self.live.durable.len()));
        let commands = self.live.machine.durable(attempt);
        self.carry_out(commands, source, rng)?;
        Ok(true)
    }

    /// A lane is torn down and built again: its queue is lost, the stream begins where it was.
    pub(super) fn lose_lane(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        let lane = rng.below(self.live.lanes.len());
        let live = &mut self.live.lanes[lane];
        live.queue.clear();
        live.received = live.accepted;
        let from = live.accepted.max(self.disk.confirmed);
        let position = source.wal.iter().position(|record| record.end > from && record.start >= from);
        self.live.position = self.live.position.min(position.unwrap_or(source.wal.len()));
        self.live.waiting.retain(|_, waiting| !waiting.lanes.contains(&lane));
        if self.fault != Some(Fault::NoRewind) {
            let table = self.disk.lanes[lane].table as u32;
            let commands = self.live.machine.rewind(table);
            return self.carry_out(commands, source, rng);
        }
        Ok(())
    }

    pub(super) fn sink_failed(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        let table = rng.below(TABLES) as u32;
        let commands = self.live.machine.delivery_failed(table, "sink".into(), self.now);
        self.carry_out(commands, source, rng)
    }

    pub(super) fn relation_changed(&mut self, source: &mut Source, rng: &mut Prng) -> Result<(), String> {
        let (table, key) = (rng.below(TABLES) as u32, rng.chance(20));
        let commands = self.live.machine.relation_changed(table, key);
        self.carry_out(commands, source, rng)
    }

    pub(super) fn yield_to_live(
        &mut self,
        on: bool,
        source: &mut Source,
        rng: &mut Prng,
    ) -> Result<(), String> {
        let commands = self.live.machine.yield_to_live(on);
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

impl LaneDisk {
    fn apply(&mut self, event: &Event, generation: u32) {
        let (table, old, new, seq) = keys_of(event);
        if table != self.table {
            return;
        }
        if let Event::Truncate { .. } = event {
            self.docs.clear();
            self.newest_truncate = self.newest_truncate.max(seq);
        }
        for key in old.into_iter().chain(new) {
            self.docs.remove(&key);
            let newest = self.newest.entry(key).or_default();
            *newest = seq.max(*newest);
        }
        if let Some(key) = new {
            self.docs.insert(key, (seq, generation));
        }
    }
}

fn table_of(request: &ReadRequest) -> usize {
    request.table as usize
}

fn read_page(
    request: &ReadRequest,
    snapshot: &Arc<Snapshot>,
    source: &Source,
    rng: &mut Prng,
) -> ChunkRead<Rows> {
    let after = request.after.as_ref().map(|cursor| cursor.values[0].parse().unwrap());
    let mut rows = source.rows(table_of(request), snapshot, after);
    let fits = (request.max_bytes / 10).max(1);
    let exhausted = rows.len() < request.limit as usize && rows.len() <= fits;
    rows.truncate((request.limit as usize).min(fits));
    ChunkRead {
        attempt: request.attempt,
        snapshot: Arc::clone(snapshot),
        key: vec![key_column()],
        keys: rows.iter().map(|(key, _)| key.to_string()).collect::<Keys>(),
        bytes: rows.len() * 10,
        elapsed: Duration::from_millis(rng.below(20) as u64),
        last: rows.last().map(|(key, _)| vec![key.to_string()]),
        rows,
        exhausted,
    }
}
