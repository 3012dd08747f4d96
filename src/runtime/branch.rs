//! The branch of the river: carries out what the backfill machine commands, and reports progress.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::{
    backfill::{Account, Attempt, Command, Emission, Machine, Report, RunSpec, RunStats, RunView},
    model::{ChangeBatch, EntityName, Scope},
    pipeline::{LaneId, Ledger},
    state::{RunStatus, StoredRequest, StoredRun, Target},
};

use super::{
    lane::{LaneHandle, Timing, Way},
    metrics::Metrics,
    readers::{ReadEvent, Readers, columns},
    recover::go_on_further,
    scribe::{Note, Scribe},
    shutdown::now_micros,
    tally::Tally,
    term::Lane,
    token::{RunToken, handed},
};

/// How often a run in progress is logged.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How often its account is saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

type Rows = Arc<ChangeBatch>;

/// The pump's backfill side.
#[derive(Debug)]
pub(super) struct Branch {
    readers: Readers,
    pub(super) reads: mpsc::UnboundedReceiver<ReadEvent>,
    /// Chunks that were handed out: the lanes that have not accepted them, and of which run they are.
    handed: HashMap<Attempt, (BTreeSet<LaneId>, Arc<str>)>,
    /// Where the time of each run goes.
    accounts: HashMap<Arc<str>, Account>,
    tally: Tally,
    reported: Instant,
    saved: Instant,
}

impl Branch {
    pub(super) fn new(
        readers: Readers,
        reads: mpsc::UnboundedReceiver<ReadEvent>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            readers,
            reads,
            handed: HashMap::new(),
            accounts: HashMap::new(),
            tally: Tally::new(metrics),
            reported: Instant::now(),
            saved: Instant::now(),
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
            Command::Begin { run } => scribe.note(Note::Begin { run }),
            Command::Read(request) => {
                let targets = targets(machine, lanes, request.table);
                let handles = targets.filter_map(|(_, lane)| lane.handle.as_ref());
                self.readers.read(request, columns(handles.map(LaneHandle::plugin)));
            }
            Command::Emit(emission) => return self.emit(&emission, machine, ledger, lanes, scribe),
            Command::Reread { run, chunk, reason } => {
                debug!(%run, chunk, ?reason, "a chunk is read again");
            }
            Command::SaveCursor { run, cursor, rows, chunks } => match serde_json::to_string(&cursor) {
                Ok(cursor) => {
                    let report = self.report_of(&run, machine);
                    scribe.note(Note::Cursor { run, cursor, rows, chunks, report });
                }
                Err(error) => {
                    warn!(%run, %error, "the cursor cannot be written; a restart reads from the last one")
                }
            },
            Command::Complete { run, rows, chunks, stats } => {
                self.complete(&run, rows, chunks, &stats, lanes, scribe);
            }
            Command::Restart { run, reason } => {
                info!(%run, ?reason, "the backfill begins again from the first row");
                let targets = lanes.values().filter(|lane| lane.run.as_ref() == Some(&run));
                targets.filter_map(|lane| lane.handle.as_ref()).for_each(LaneHandle::run_restarted);
                scribe.note(Note::Restart { run });
            }
            Command::Supersede { old, new, mappings } => {
                info!(%old, %new, ?mappings, "a new backfill takes the place of another");
                self.accounts.remove(&old);
                self.tally.forget(&old);
                scribe.note(Note::ForgetScoped { run: old });
            }
            Command::Fail { run, attempts, not_before, error } => {
                warn!(%run, attempts, error, "the backfill failed and is tried again from its cursor");
                scribe.note(Note::Fail { run, attempts, not_before, error });
            }
            Command::Probe => scribe.note(Note::Probe),
        }
        Vec::new()
    }

    /// Says where every run is now, so that every moment of it is accounted for.
    pub(super) fn account(&mut self, machine: &Machine<Rows>) {
        let now = now_micros();
        for (_, view) in machine.runs().filter(|(_, view)| view.started) {
            if let Some(account) = self.accounts.get_mut(view.run) {
                account.enter(view.stage, now);
            } else {
                let account = Account::new(Report::default(), now);
                self.accounts.insert(Arc::clone(view.run), account);
                self.tally.take_up(view.run, view.entity, Report::default());
            }
        }
    }

    fn report_of(&self, run: &Arc<str>, machine: &Machine<Rows>) -> Report {
        let stats = machine.runs().find(|(_, view)| view.run == run).map(|(_, view)| view.stats);
        let account = self.accounts.get(run);
        account.map(|account| account.report(&stats.unwrap_or_default())).unwrap_or_default()
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
        let (mut targets, mut missed) = (BTreeSet::new(), Vec::new());
        // What is read again of a part is to be seen at once.
        let is_part = machine.run(emission.table).is_some_and(|run| run.scope.is_some());
        if !selection.is_empty() {
            for (id, lane) in self::targets(machine, lanes, emission.table) {
                let Some(handle) = lane.handle.as_ref().filter(|_| ledger.follows(id)) else {
                    // It is backfilled by a run of its own once it works again.
                    missed.push(id);
                    continue;
                };
                let work = ledger.dispatched(id);
                let (chunk, here) = (RunToken::after(emission), handed(ledger, id));
                let way = if is_part { Way::of_all(lane.place()) } else { Way::of_built(lane.place()) };
                let rows = Arc::clone(&emission.rows);
                handle.send(work, rows, selection.clone(), (Some(chunk), way), (here, here));
                targets.insert(id);
            }
        }
        for id in missed {
            if let Some(lane) = lanes.get_mut(&id) {
                lane.leave_run(machine, scribe);
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
            if let Some(account) = self.accounts.get_mut(&run) {
                account.advance(now_micros());
                account.settle(timing.transforming, timing.delivering);
            }
        }
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
            ReadEvent::Read(read) => machine.chunk_read(*read),
            ReadEvent::KeyChanged { .. } => Vec::new(),
            ReadEvent::Failed { attempt, failure } => machine.read_failed(attempt, failure, now_micros()),
        }
    }

    fn complete(
        &mut self,
        run: &Arc<str>,
        rows: u64,
        chunks: u64,
        stats: &RunStats,
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
        let report = self.accounts.remove(run).map(|mut account| {
            account.advance(now_micros());
            account.report(stats)
        });
        let report = report.unwrap_or_default();
        self.tally.complete(run, &report);
        log_complete(run, entity.as_ref(), rows, chunks, &report, &built);
        scribe.note(Note::Complete { run: Arc::clone(run), rows, chunks, report, built });
    }

    /// Takes up what is stored of a run.
    fn go_on(&mut self, spec: &mut RunSpec, stored: &StoredRun) {
        go_on(spec, stored);
        self.accounts.insert(Arc::clone(&spec.run), Account::new(stored.report.clone(), now_micros()));
        self.tally.take_up(&spec.run, &spec.entity, stored.report.clone());
    }

    /// The runs that a term begins with. A stored run that has begun goes on from its cursor, for the mappings that
    /// it is for; the others of its table, new ones or new generations, get a run of their own once it is done, so
    /// that nothing that it has read is read again.
    pub(super) fn first_runs(
        &mut self,
        lanes: &mut BTreeMap<LaneId, Lane>,
        ledger: &Ledger,
        scribe: &Scribe,
    ) -> Vec<RunSpec> {
        let mut tables: BTreeMap<u32, Vec<LaneId>> = BTreeMap::new();
        for (&id, lane) in lanes.iter().filter(|(_, lane)| lane.planned.needs_backfill()) {
            tables.entry(lane.planned.table.oid).or_default().push(id);
        }
        tables.values().filter_map(|ids| self.first_run(lanes, ids, ledger, scribe)).collect()
    }

    /// The first run of one table, of which these lanes wait for one.
    fn first_run(
        &mut self,
        lanes: &mut BTreeMap<LaneId, Lane>,
        ids: &[LaneId],
        ledger: &Ledger,
        scribe: &Scribe,
    ) -> Option<RunSpec> {
        let stored = ids.iter().find_map(|id| lanes.get(id)?.planned.own_run().cloned());
        let is_of = |id: &LaneId| {
            let own = lanes.get(id).and_then(|lane| lane.planned.own_run());
            own.map(|run| &run.run) == stored.as_ref().map(|run| &run.run)
        };
        let (of, others): (Vec<LaneId>, Vec<LaneId>) = ids.iter().copied().partition(is_of);
        // One that has not begun has nothing to lose.
        let stored = stored.filter(|run| others.is_empty() || run.status != RunStatus::Queued);
        let Some(stored) = stored else {
            let spec = self.run_for(lanes, ids, ledger)?;
            scribe.note(Note::Run(Box::new(stored_run(&spec, false))));
            return Some(spec);
        };
        for lane in others.iter().filter_map(|id| lanes.get(id)) {
            info!(
                mapping = lane.name(),
                entity = %stored.entity,
                run = stored.run,
                "its table's backfill goes on for others; it gets one of its own behind it",
            );
        }
        let mut spec = self.run_for(lanes, &of, ledger)?;
        // Its cursor is of all its mappings, also where one of them is mapped no more.
        for gone in stored.mappings.iter().filter(|name| !spec.mappings.contains(*name)) {
            scribe.note(Note::Leave { run: stored.run.as_str().into(), mapping: gone.clone() });
        }
        self.go_on(&mut spec, &stored);
        go_on_further(&mut spec, &stored, lanes);
        for id in &of {
            if let Some(lane) = lanes.get_mut(id) {
                lane.run = Some(Arc::clone(&spec.run));
            }
        }
        Some(spec)
    }

    /// The scoped runs that are stored, behind the whole ones of their tables.
    pub(super) fn scoped_runs(
        &mut self,
        stored: &[StoredRun],
        lanes: &BTreeMap<LaneId, Lane>,
        ledger: &Ledger,
        scribe: &Scribe,
    ) -> Vec<RunSpec> {
        let mut specs = Vec::new();
        for stored in stored {
            let meant = |lane: &&Lane| {
                lane.planned.stored.entity == stored.entity
                    && stored.mappings.iter().any(|name| name == lane.name())
            };
            let meant: Vec<LaneId> = lanes.values().filter(meant).map(|lane| lane.id).collect();
            let spec =
                stored.scope.clone().and_then(|scope| scoped(&stored.run, scope, &meant, lanes, ledger));
            match spec {
                Some(mut spec) => {
                    self.go_on(&mut spec, stored);
                    go_on_further(&mut spec, stored, lanes);
                    specs.push(spec);
                }
                None => scribe.note(Note::ForgetScoped { run: stored.run.as_str().into() }),
            }
        }
        specs
    }

    /// A run for the mappings of lanes, which are of one table, joined with those of the table that are part of
    /// a run that is in progress.
    pub(super) fn run_for(
        &mut self,
        lanes: &mut BTreeMap<LaneId, Lane>,
        ids: &[LaneId],
        ledger: &Ledger,
    ) -> Option<RunSpec> {
        let planned = &lanes.get(ids.first()?)?.planned;
        let (table, entity, estimate) =
            (planned.table.oid, planned.stored.entity.clone(), planned.table.estimate);
        let run: Arc<str> = uuid::Uuid::new_v4().to_string().into();
        let mut spec = RunSpec { estimate, ..RunSpec::new(Arc::clone(&run), entity, table) };
        for (lane_id, lane) in lanes.iter_mut().filter(|(_, lane)| lane.planned.table.oid == table) {
            if !ids.contains(lane_id) && lane.run.is_none() {
                continue;
            }
            lane.run = Some(Arc::clone(&run));
            spec.mappings.insert(lane.name().to_owned());
            spec.skip_until = spec.skip_until.max(ledger.skipped_until(*lane_id));
            // Withdrawn, it would leave readers with what the generation that is given up was to replace.
            spec.started |= lane.planned.stored.gives_up_a_place();
        }
        Some(spec)
    }

    /// Forgets a run that somebody withdrew before it began.
    pub(super) fn withdrawn(&mut self, run: &Arc<str>, lanes: &mut BTreeMap<LaneId, Lane>) {
        self.accounts.remove(run);
        self.tally.forget(run);
        for lane in lanes.values_mut().filter(|lane| lane.run.as_ref() == Some(run)) {
            info!(mapping = lane.name(), entity = %lane.planned.stored.entity, %run, "its backfill was cancelled");
            (lane.run, lane.planned.cancelled, lane.planned.stored.purge) = (None, true, false);
        }
    }

    /// Counts what the runs have done since the last time.
    pub(super) fn count(&mut self, machine: &Machine<Rows>) {
        for (_, view) in machine.runs().filter(|(_, view)| view.started) {
            if let Some(account) = self.accounts.get(view.run) {
                self.tally.count(view.run, account.settled(&view.stats));
            }
        }
    }

    /// Saves the accounts of what runs.
    pub(super) fn save(&mut self, machine: &Machine<Rows>, scribe: &Scribe) {
        if self.saved.elapsed() < SAVE_INTERVAL {
            return;
        }
        self.saved = Instant::now();
        for (_, view) in machine.runs().filter(|(_, view)| view.started) {
            if let Some(account) = self.accounts.get(view.run) {
                let report = account.report(&view.stats);
                scribe.note(Note::Report { run: Arc::clone(view.run), report });
            }
        }
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
        let report =
            self.accounts.get(view.run).map(|account| account.report(&view.stats)).unwrap_or_default();
        info!(
            entity = %view.entity,
            scoped = view.scope.is_some(),
            stage = ?view.stage,
            rows = view.rows,
            chunks = view.chunks,
            dropped = view.stats.dropped,
            rereads = view.stats.rereads,
            attempts = view.attempts,
            blocked = view.blocked,
            times = %times(&report),
            "backfill {share}",
        );
    }
}

/// A run over part of the table of some lanes; none where none of them runs.
pub(super) fn scoped(
    run: &str,
    scope: Scope,
    ids: &[LaneId],
    lanes: &BTreeMap<LaneId, Lane>,
    ledger: &Ledger,
) -> Option<RunSpec> {
    let runs = |id: &LaneId| lanes.get(id).filter(|lane| lane.handle.is_some());
    let planned = &ids.iter().find_map(runs)?.planned;
    let mut spec = RunSpec::new(run, planned.stored.entity.clone(), planned.table.oid);
    spec.scope = Some(Arc::new(scope));
    for lane in ids.iter().filter_map(runs) {
        spec.mappings.insert(lane.name().to_owned());
        spec.skip_until = spec.skip_until.max(ledger.skipped_until(lane.id));
    }
    Some(spec)
}

/// What a mapping that leaves a scoped run asks for, to have it later.
pub(super) fn again(mapping: &str, scope: &Scope) -> StoredRequest {
    StoredRequest {
        id: 0,
        target: Target::Mapping(mapping.to_owned()),
        scope: Some(scope.clone()),
        purge: false,
    }
}

/// The lanes of the mappings that a table's run is for.
fn targets<'a>(
    machine: &'a Machine<Rows>,
    lanes: &'a BTreeMap<LaneId, Lane>,
    table: u32,
) -> impl Iterator<Item = (LaneId, &'a Lane)> {
    let wanted = machine.run(table).map(|run| run.mappings);
    let lanes =
        lanes.iter().filter(move |(_, lane)| wanted.is_some_and(|wanted| wanted.contains(lane.name())));
    lanes.map(|(&id, lane)| (id, lane))
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
    spec.started = stored.status != RunStatus::Queued;
    spec.estimate = stored.estimate.and_then(|rows| rows.try_into().ok()).or(spec.estimate);
    spec.attempts = stored.attempts.try_into().unwrap_or(0);
    spec.not_before = stored.not_before;
    info!(entity = %spec.entity, run = %spec.run, rows = spec.rows, "the backfill goes on from its cursor");
}

/// How a run that begins is stored: withdrawable, unless it takes the place of one that has `begun`, or of what that has
/// built.
pub(super) fn stored_run(spec: &RunSpec, begun: bool) -> StoredRun {
    let mappings = spec.mappings.iter().cloned().collect();
    StoredRun {
        status: if begun || spec.started { RunStatus::Running } else { RunStatus::Queued },
        estimate: spec.estimate.and_then(|rows| i64::try_from(rows).ok()),
        scope: spec.scope.as_deref().cloned(),
        ..StoredRun::new(spec.entity.clone(), &*spec.run, mappings)
    }
}

fn log_complete(
    run: &Arc<str>,
    entity: Option<&EntityName>,
    rows: u64,
    chunks: u64,
    report: &Report,
    built: &[(String, i64)],
) {
    info!(
        entity = entity.map(tracing::field::display),
        %run,
        rows,
        chunks,
        bytes = report.bytes,
        dropped = report.dropped,
        rereads = report.rereads,
        retries = report.retries,
        seconds = Duration::from_millis(report.wall_ms).as_secs_f64(),
        times = %times(report),
        mappings = ?built,
        "backfill complete",
    );
}

/// The stages that took time, in seconds: `reading 1.2, delivering 0.4`.
fn times(report: &Report) -> String {
    let times = report.times().into_iter().filter(|(_, time)| !time.is_zero());
    let times = times.map(|(stage, time)| format!("{} {:.1}", stage.as_str(), time.as_secs_f64()));
    times.collect::<Vec<_>>().join(", ")
}
