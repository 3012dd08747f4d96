//! The branch of the river: carries out what the backfill machine commands, and reports progress.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::{
    backfill::{Attempt, Command, Emission, Machine, RunSpec, RunStats, RunView},
    model::{ChangeBatch, EntityName},
    pipeline::{LaneId, Ledger},
    state::{RunStatus, StoredRun},
};

use super::{
    lane::{LaneHandle, Timing},
    plan::Planned,
    readers::{ReadEvent, Readers},
    recover::go_on_further,
    scribe::{Note, Scribe},
    shutdown::now_micros,
    term::Lane,
    token::{RunToken, handed},
};

/// How often a run in progress is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

type Rows = Arc<ChangeBatch>;

/// The pump's backfill side.
#[derive(Debug)]
pub(super) struct Branch {
    readers: Readers,
    pub(super) reads: mpsc::UnboundedReceiver<ReadEvent>,
    /// Chunks that were handed out: the lanes that have not accepted them, and of which run they are.
    handed: HashMap<Attempt, (BTreeSet<LaneId>, Arc<str>)>,
    /// Pages that are being read, and for which run.
    reading: HashMap<Attempt, Arc<str>>,
    clocks: HashMap<Arc<str>, Clock>,
    reported: Instant,
}

/// Where a run's time went.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Instant,
    reading: Duration,
    transforming: Duration,
    delivering: Duration,
}

impl Branch {
    pub(super) fn new(readers: Readers, reads: mpsc::UnboundedReceiver<ReadEvent>) -> Self {
        Self {
            readers,
            reads,
            handed: HashMap::new(),
            reading: HashMap::new(),
            clocks: HashMap::new(),
            reported: Instant::now(),
        }
    }

    /// Carries out one command; what follows from it is returned, to be carried out next.
    pub(super) fn carry_out(
        &mut self,
        command: Command<Rows>,
        machine: &mut Machine<Rows>,
        ledger: &mut Ledger,
        lanes: &mut BTreeMap<LaneId, Lane>,
        scribe: &Scribe,
    ) -> Vec<Command<Rows>> {
        match command {
            Command::Read(request) => {
                self.clock(&request.run);
                self.reading.retain(|_, run| *run != request.run);
                self.reading.insert(request.attempt, Arc::clone(&request.run));
                self.readers.read(request);
            }
            Command::Emit(emission) => return self.emit(&emission, machine, ledger, lanes, scribe),
            Command::Reread { run, chunk, reason } => {
                debug!(%run, chunk, ?reason, "a chunk is read again");
            }
            Command::SaveCursor { run, cursor, rows, chunks } => match serde_json::to_string(&cursor) {
                Ok(cursor) => scribe.note(Note::Cursor { run, cursor, rows, chunks }),
                Err(error) => {
                    warn!(%run, %error, "the cursor cannot be written; a restart reads from the last one")
                }
            },
            Command::Complete { run, rows, chunks, stats } => {
                self.complete(&run, rows, chunks, stats, lanes, scribe);
            }
            Command::Restart { run, reason } => {
                info!(%run, ?reason, "the backfill begins again from the first row");
                let targets = lanes.values().filter(|lane| lane.run.as_ref() == Some(&run));
                targets.filter_map(|lane| lane.handle.as_ref()).for_each(LaneHandle::run_restarted);
                scribe.note(Note::Restart { run });
            }
            Command::Supersede { old, new, mappings } => {
                info!(%old, %new, ?mappings, "a new backfill takes the place of the one in progress");
                self.clocks.remove(&old);
            }
            Command::Fail { run, attempts, not_before, error } => {
                warn!(%run, attempts, error, "the backfill failed and is tried again from its cursor");
                scribe.note(Note::Fail { run, attempts, not_before, error });
            }
            Command::Probe => scribe.note(Note::Probe),
        }
        Vec::new()
    }

    fn clock(&mut self, run: &Arc<str>) -> &mut Clock {
        let zero = Duration::ZERO;
        let fresh = || Clock { began: Instant::now(), reading: zero, transforming: zero, delivering: zero };
        self.clocks.entry(Arc::clone(run)).or_insert_with(fresh)
    }

    /// Hands a chunk to its targets, here in the stream.
    fn emit(
        &mut self,
        emission: &Emission<Rows>,
        machine: &mut Machine<Rows>,
        ledger: &mut Ledger,
        lanes: &mut BTreeMap<LaneId, Lane>,
        scribe: &Scribe,
    ) -> Vec<Command<Rows>> {
        let selection = kept(emission);
        let mut targets = BTreeSet::new();
        if !selection.is_empty() {
            let wanted = machine.run(emission.table).map(|run| run.mappings.clone()).unwrap_or_default();
            for (&id, lane) in lanes.iter_mut().filter(|(_, lane)| wanted.contains(lane.name())) {
                let Some(handle) = lane.handle.as_ref().filter(|_| ledger.follows(id)) else {
                    // It is backfilled by a run of its own once it works again.
                    lane.leave_run(machine, scribe);
                    continue;
                };
                let work = ledger.dispatched(id);
                let (chunk, here) = (RunToken::after(emission), handed(ledger, id));
                handle.send(work, Arc::clone(&emission.rows), selection.clone(), Some(chunk), (here, here));
                targets.insert(id);
            }
        }
        if targets.is_empty() {
            return machine.durable(emission.attempt);
        }
        self.handed.insert(emission.attempt, (targets, Arc::clone(&emission.run)));
        Vec::new()
    }

    /// A lane has accepted a chunk; whether it was the last.
    pub(super) fn accepted(&mut self, lane: LaneId, attempt: Attempt, timing: Timing) -> bool {
        let Some((left, run)) = self.handed.get_mut(&attempt) else { return false };
        // A lane that left the run meanwhile is not waited for.
        if !left.remove(&lane) {
            return false;
        }
        let (last, run) = (left.is_empty(), Arc::clone(run));
        if last {
            self.handed.remove(&attempt);
        }
        let clock = self.clock(&run);
        clock.transforming += timing.transforming;
        clock.delivering += timing.delivering;
        last
    }

    /// A lane is waited for no more: the chunks that only waited for it.
    pub(super) fn release(&mut self, lane: LaneId) -> Vec<Attempt> {
        let mut done = Vec::new();
        self.handed.retain(|attempt, (left, _)| {
            let last = left.remove(&lane) && left.is_empty();
            if last {
                done.push(*attempt);
            }
            !last
        });
        done
    }

    /// Gives a reading's answer to the machine.
    pub(super) fn on_read(&mut self, event: ReadEvent, machine: &mut Machine<Rows>) -> Vec<Command<Rows>> {
        match event {
            ReadEvent::Read(read) => {
                if let Some(run) = self.reading.remove(&read.attempt) {
                    self.clock(&run).reading += read.elapsed;
                }
                machine.chunk_read(*read)
            }
            ReadEvent::KeyChanged { table } => machine.restart(table),
            ReadEvent::Failed { attempt, failure } => machine.read_failed(attempt, failure, now_micros()),
        }
    }

    fn complete(
        &mut self,
        run: &Arc<str>,
        rows: u64,
        chunks: u64,
        stats: RunStats,
        lanes: &mut BTreeMap<LaneId, Lane>,
        scribe: &Scribe,
    ) {
        let mut built = Vec::new();
        let mut entity = None;
        for lane in lanes.values_mut().filter(|lane| lane.run.as_ref() == Some(run)) {
            lane.planned.stored.built = lane.planned.stored.generation;
            lane.run = None;
            built.push((lane.name().to_owned(), lane.planned.stored.generation));
            entity = Some(lane.planned.stored.entity.clone());
        }
        let clock = self.clocks.remove(run);
        log_complete(entity.as_ref(), rows, chunks, stats, clock, &built);
        scribe.note(Note::Complete { run: Arc::clone(run), rows, chunks, built });
    }

    /// The runs that a term begins with: for each table the mappings that wait for one, going on from the
    /// stored cursor where it is of exactly these mappings.
    pub(super) fn first_runs(
        &mut self,
        lanes: &mut BTreeMap<LaneId, Lane>,
        ledger: &Ledger,
        scribe: &Scribe,
    ) -> Vec<RunSpec> {
        let mut specs: BTreeMap<u32, RunSpec> = BTreeMap::new();
        let mut stored: BTreeMap<u32, Option<StoredRun>> = BTreeMap::new();
        for (&id, lane) in lanes.iter().filter(|(_, lane)| lane.planned.needs_backfill()) {
            let Planned { table, stored: mapping, run, .. } = &lane.planned;
            let fresh = || {
                let run = uuid::Uuid::new_v4().to_string();
                let spec = RunSpec::new(run, mapping.entity.clone(), table.oid);
                RunSpec { estimate: table.estimate, ..spec }
            };
            let spec = specs.entry(table.oid).or_insert_with(fresh);
            spec.mappings.insert(mapping.name.clone());
            spec.skip_until = spec.skip_until.max(ledger.skipped_until(id));
            let same = stored.entry(table.oid).or_insert_with(|| run.clone());
            if run.as_ref().map(|run| &run.run) != same.as_ref().map(|run| &run.run) || lane.planned.rebuilt {
                *same = None;
            }
        }
        for (table, spec) in &mut specs {
            let stored = stored.remove(table).flatten();
            match stored.filter(|run| run.mappings.iter().eq(&spec.mappings)) {
                Some(run) => {
                    go_on(spec, &run);
                    go_on_further(spec, &run, lanes);
                }
                None => scribe.note(Note::Run(Box::new(stored_run(spec)))),
            }
            for lane in lanes.values_mut().filter(|lane| lane.planned.table.oid == *table) {
                if spec.mappings.contains(lane.name()) {
                    lane.run = Some(Arc::clone(&spec.run));
                }
            }
        }
        specs.into_values().collect()
    }

    /// A run for the mapping of a lane, joined with those of its table that still wait for theirs; stored
    /// before it begins.
    pub(super) fn run_for(
        &mut self,
        lanes: &mut BTreeMap<LaneId, Lane>,
        id: LaneId,
        ledger: &Ledger,
        scribe: &Scribe,
    ) -> Option<RunSpec> {
        let (table, entity) =
            lanes.get(&id).map(|lane| (lane.planned.table.oid, lane.planned.stored.entity.clone()))?;
        let run: Arc<str> = uuid::Uuid::new_v4().to_string().into();
        let mut spec = RunSpec::new(Arc::clone(&run), entity.clone(), table);
        for (&lane_id, lane) in lanes.iter_mut().filter(|(_, lane)| lane.planned.table.oid == table) {
            if lane_id != id && lane.run.is_none() {
                continue;
            }
            lane.run = Some(Arc::clone(&run));
            spec.mappings.insert(lane.name().to_owned());
            spec.skip_until = spec.skip_until.max(ledger.skipped_until(lane_id));
        }
        spec.estimate = lanes.get(&id).and_then(|lane| lane.planned.table.estimate);
        scribe.note(Note::Run(Box::new(stored_run(&spec))));
        Some(spec)
    }

    /// Logs the progress of what reads, every ten seconds.
    pub(super) fn report(&mut self, machine: &Machine<Rows>) {
        if self.reported.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported = Instant::now();
        for (_, view) in machine.runs() {
            self.log_progress(&view);
        }
    }

    fn log_progress(&self, view: &RunView<'_>) {
        let share = view.share.map_or_else(|| "?".to_owned(), |share| format!("{:.0}%", share * 100.0));
        let seconds = self.clocks.get(view.run).map_or(0.0, |clock| clock.began.elapsed().as_secs_f64());
        info!(
            entity = %view.entity,
            rows = view.rows,
            chunks = view.chunks,
            dropped = view.stats.dropped,
            rereads = view.stats.rereads,
            attempts = view.attempts,
            blocked = view.blocked,
            seconds,
            "backfill {share}",
        );
    }
}

/// The rows that the stream has not overtaken.
fn kept(emission: &Emission<Rows>) -> Vec<u32> {
    let count = u32::try_from(emission.rows.changes.len()).unwrap_or(u32::MAX);
    let mut dropped = emission.dropped.iter().copied().peekable();
    (0..count).filter(|index| dropped.next_if_eq(index).is_none()).collect()
}

/// Takes up a stored run. A cursor that cannot be read begins again from the first row.
fn go_on(spec: &mut RunSpec, stored: &StoredRun) {
    spec.run = stored.run.as_str().into();
    let cursor = stored.cursor.as_deref().map(serde_json::from_str);
    match cursor.transpose() {
        Ok(cursor) => spec.cursor = cursor,
        Err(error) => warn!(entity = %spec.entity, %error, "the stored cursor cannot be read"),
    }
    if spec.cursor.is_some() {
        spec.rows = stored.rows.try_into().unwrap_or(0);
        spec.chunks = stored.chunks.try_into().unwrap_or(0);
    }
    spec.started = true;
    spec.estimate = stored.estimate.and_then(|rows| rows.try_into().ok()).or(spec.estimate);
    spec.attempts = stored.attempts.try_into().unwrap_or(0);
    spec.not_before = stored.not_before;
    info!(entity = %spec.entity, run = %spec.run, rows = spec.rows, "the backfill goes on from its cursor");
}

/// How a run that begins is stored.
pub(super) fn stored_run(spec: &RunSpec) -> StoredRun {
    StoredRun {
        entity: spec.entity.clone(),
        run: spec.run.to_string(),
        mappings: spec.mappings.iter().cloned().collect(),
        status: RunStatus::Running,
        cursor: None,
        rows: 0,
        chunks: 0,
        estimate: spec.estimate.and_then(|rows| i64::try_from(rows).ok()),
        attempts: 0,
        last_error: None,
        not_before: 0,
    }
}

fn log_complete(
    entity: Option<&EntityName>,
    rows: u64,
    chunks: u64,
    stats: RunStats,
    clock: Option<Clock>,
    built: &[(String, i64)],
) {
    let seconds =
        |pick: fn(&Clock) -> Duration| clock.as_ref().map_or(0.0, |clock| pick(clock).as_secs_f64());
    info!(
        entity = entity.map(tracing::field::display),
        rows,
        chunks,
        bytes = stats.bytes,
        dropped = stats.dropped,
        rereads = stats.rereads,
        retries = stats.retries,
        seconds = seconds(|clock| clock.began.elapsed()),
        reading = seconds(|clock| clock.reading),
        transforming = seconds(|clock| clock.transforming),
        delivering = seconds(|clock| clock.delivering),
        mappings = ?built,
        "backfill complete",
    );
}
