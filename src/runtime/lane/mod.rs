//! One mapping at work: two tasks, so that batch n+1 is transformed while batch n is delivered, and a task for
//! each further batch that waits, so that as many are transformed at once as the plugin has instances.
//!
//! A lane takes work in order and reports it accepted in order, once its sink has made it durable. What fails
//! is retried with backoff and reported; nothing is skipped. It must never hold up another lane: when it
//! cannot keep up while failing, the pump lets go of its queue (see [`LaneHandle::let_go`]) and reads the
//! stream again once it recovers.

mod delivering;
mod quarantining;
mod transforming;
mod turns;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{Span, info, warn};

use crate::{
    backfill::Attempt,
    config::{OnFailure, QuarantineBounds},
    model::{Beside, ChangeBatch, EntityName, Failure, FailureClass, Lsn, Origin, Place, Redactor},
    pipeline::{Backoff, DocumentRules, LaneId, NextAttempt, OpenRows, Placing, RetryPolicy, WorkId},
    plugin::{Plugin, Transform},
    postgres::{ConnectSettings, Lease},
};

use super::{
    metrics::{LaneMetrics, Stage},
    outlet::Outlet,
    reread::Rereader,
    serve::Server,
    token::{Advance, RunAdvance, RunToken, Token},
};
use delivering::deliver_loop;
use quarantining::Ward;
use transforming::transform_loop;
use turns::Turns;

/// Pieces of work that are transformed before their delivery; their bytes count as queued.
const TRANSFORMED_AHEAD: usize = 64;

/// What a lane works with now; replaced as a whole when the plugin is swapped.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) transform: Arc<Transform>,
    pub(super) rules: DocumentRules,
    /// What of its settings is not to be told.
    pub(super) secrets: Redactor,
}

/// A piece of work, handed out in order.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: WorkId,
    pub(super) batch: Arc<ChangeBatch>,
    pub(super) selection: Vec<u32>,
    /// What is in the sink once this work is.
    advance: Advance,
    /// Empties the destination, and has no changes.
    purge: bool,
    /// Does something with a place of the destination, and has no changes.
    placing: Option<Placing>,
    /// Where its documents go.
    way: Way,
    epoch: u64,
}

/// Where the documents of a piece of work go.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// Where the destination is built beside what readers see.
    place: Option<Place>,
    /// Whether they go to what readers see.
    shown: bool,
}

impl Way {
    /// Of what is to be seen at once.
    pub(super) fn of_all(place: Option<&Place>) -> Self {
        Self { place: place.cloned(), shown: true }
    }

    /// Of a row that is read for a generation: it is seen with all the others.
    pub(super) fn of_built(place: Option<&Place>) -> Self {
        Self { place: place.cloned(), shown: place.is_none() }
    }

    fn beside(&self, destination: &str) -> Option<Arc<Beside>> {
        let Self { place, shown } = self.clone();
        place.as_ref()?;
        Some(Arc::new(Beside { destination: destination.to_owned(), place, shown }))
    }
}

/// What a lane tells the pump.
#[derive(Debug)]
pub(super) enum LaneEvent {
    /// The sink has durably accepted this work and all before it.
    Accepted { lane: LaneId, work: WorkId, chunk: Option<Attempt>, timing: Timing },
    /// This work, which was accepted, began a place: nothing more is delivered before [`LaneHandle::recorded`].
    Begun { lane: LaneId, work: WorkId },
    /// It does not work now; it is tried again by itself.
    Failing { lane: LaneId, attempts: u32, failure: Failure },
    /// It works again.
    Recovered { lane: LaneId },
}

/// Where the time of a piece of work went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    pub(super) transforming: Duration,
    pub(super) delivering: Duration,
    pub(super) documents: u64,
}

/// What a lane is made of.
pub(super) struct LaneSettings {
    pub(super) id: LaneId,
    pub(super) mapping: String,
    pub(super) entity: EntityName,
    pub(super) sink: Arc<Outlet>,
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) rereader: Arc<Rereader>,
    /// Whether live rows may be read again.
    pub(super) reread: bool,
    /// The right to deliver.
    pub(super) lease: Lease,
    /// Where rows of backfills are transformed.
    pub(super) background: Handle,
    /// What is in the sink now.
    pub(super) token: Token,
    /// The other mappings that write to the same destination of the same sink.
    pub(super) shares: Vec<String>,
    pub(super) metrics: LaneMetrics,
    pub(super) quarantine: QuarantineSettings,
}

/// What a lane does with changes that can never work.
pub(super) struct QuarantineSettings {
    pub(super) on_failure: OnFailure,
    pub(super) bounds: QuarantineBounds,
    /// The sink's name.
    pub(super) sink: String,
    /// The installation's name.
    pub(super) installation: String,
    /// The leadership that may write to it.
    pub(super) term: i64,
    pub(super) connect: ConnectSettings,
    /// The rows that are in it.
    pub(super) open: OpenRows,
}

/// The pump's end of a lane.
pub(super) struct LaneHandle {
    work: mpsc::UnboundedSender<Work>,
    active: watch::Sender<Arc<Active>>,
    shared: Arc<Shared>,
    failing: bool,
    /// Its backfill begins again: said with the next work.
    restarted: AtomicBool,
    tasks: JoinSet<()>,
}

struct Shared {
    settings: LaneSettings,
    active: watch::Receiver<Arc<Active>>,
    events: mpsc::UnboundedSender<LaneEvent>,
    queued: AtomicUsize,
    epoch: AtomicU64,
    /// Pieces of work that fail and are tried again.
    failing: AtomicUsize,
    turns: Arc<Turns>,
    /// The delivering task's alone.
    ward: Mutex<Ward>,
    /// How many rows are in quarantine.
    quarantined: AtomicU64,
    /// Somebody else has changed what is in it.
    recount: AtomicBool,
    /// Places that were begun up to this work are recorded.
    recorded: watch::Sender<WorkId>,
    stop: CancellationToken,
}

impl LaneHandle {
    /// Starts the two tasks of a lane; they end when the handle is dropped or `stop` is cancelled.
    pub(super) fn start(
        settings: LaneSettings,
        active: Active,
        events: mpsc::UnboundedSender<LaneEvent>,
        stop: CancellationToken,
    ) -> Self {
        let (work, incoming) = mpsc::unbounded_channel();
        let (active, watching) = watch::channel(Arc::new(active));
        let ward = Ward::new(settings.quarantine.open.clone());
        let quarantined = AtomicU64::new(settings.quarantine.open.len() as u64);
        let shared = Arc::new(Shared {
            settings,
            active: watching,
            events,
            queued: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            failing: AtomicUsize::new(0),
            turns: Turns::new(),
            ward: Mutex::new(ward),
            quarantined,
            recount: AtomicBool::new(false),
            recorded: watch::Sender::new(WorkId(0)),
            stop,
        });
        // What waits here is transformed and goes out together.
        let (deliveries, delivering) = mpsc::channel(TRANSFORMED_AHEAD);
        let mut tasks = JoinSet::new();
        tasks.spawn(transform_loop(Arc::clone(&shared), incoming, deliveries));
        tasks.spawn(deliver_loop(Arc::clone(&shared), delivering));
        Self { work, active, shared, failing: false, restarted: AtomicBool::new(false), tasks }
    }

    /// Hands out work; never waits. [`LaneHandle::queued_bytes`] tells when to hold back. The lane has been
    /// handed everything before `handed.0` already, and with this everything before `handed.1`; `chunk` is what
    /// a chunk of a backfill comes to.
    pub(super) fn send(
        &self,
        id: WorkId,
        batch: Arc<ChangeBatch>,
        selection: Vec<u32>,
        (chunk, way): (Option<RunToken>, Way),
        handed: (Lsn, Lsn),
    ) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        self.shared.queued.fetch_add(batch.size(), Ordering::AcqRel);
        let advance = self.advance(chunk, handed);
        // A lane that ended is noticed by the term, which ends with it.
        let work = Work { id, batch, selection, advance, purge: false, placing: None, way, epoch };
        let _ = self.work.send(work);
    }

    /// Empties the mapping's destination, in order.
    pub(super) fn purge(&self, id: WorkId, handed: Lsn) {
        self.send_without_changes(id, handed, true, None);
    }

    /// Does something with a place of the mapping's destination, in order.
    pub(super) fn place(&self, id: WorkId, placing: Placing, handed: Lsn) {
        self.send_without_changes(id, handed, false, Some(placing));
    }

    /// The place that this work began is recorded: what waits behind it goes out.
    pub(super) fn recorded(&self, begun: WorkId) {
        self.shared.recorded.send_replace(begun);
    }

    fn send_without_changes(&self, id: WorkId, handed: Lsn, purge: bool, placing: Option<Placing>) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        let batch = Arc::new(ChangeBatch::new(Origin::Backfill));
        let advance = self.advance(None, (handed, handed));
        // As in `send`.
        let (selection, way) = (Vec::new(), Way::of_all(None));
        let _ = self.work.send(Work { id, batch, selection, advance, purge, placing, way, epoch });
    }

    /// What was delivered of its backfill counts no more, from the next work on.
    pub(super) fn run_restarted(&self) {
        self.restarted.store(true, Ordering::Release);
    }

    fn advance(&self, chunk: Option<RunToken>, (from, position): (Lsn, Lsn)) -> Advance {
        let restarted = self.restarted.swap(false, Ordering::AcqRel);
        let run = match chunk {
            Some(chunk) => RunAdvance::At(chunk),
            None if restarted => RunAdvance::None,
            None => RunAdvance::Same,
        };
        Advance { from, position, run }
    }

    /// Bytes handed out and not yet accepted.
    pub(super) fn queued_bytes(&self) -> usize {
        self.shared.queued.load(Ordering::Acquire)
    }

    /// The plugin that it works with.
    pub(super) fn plugin(&self) -> Plugin {
        self.shared.active.borrow().transform.plugin().clone()
    }

    /// How many pieces of work are transformed at once.
    pub(super) fn at_once(&self) -> usize {
        self.shared.at_once()
    }

    /// Drops all queued work but what is being tried: the stream will be read again for it.
    pub(super) fn let_go(&self) {
        self.shared.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Swaps the transform at the next batch boundary, and ends the pause of what fails: what has changed may help.
    pub(super) fn replace(&self, active: Active) {
        self.active.send_replace(Arc::new(active));
    }

    /// The plugin that its sink is, where it is one and that is there.
    pub(super) fn sink_plugin(&self) -> Option<Plugin> {
        self.shared.settings.sink.plugin()
    }

    /// Goes on with the same transform as another generation, for which all is read again.
    pub(super) fn regenerate(&self, generation: i64, server: &Server) {
        self.active.send_modify(|active| {
            let mut next = Active::clone(active);
            next.rules.generation = generation;
            let plugin = next.transform.plugin();
            let services = server.of(&self.shared.settings.mapping, generation, false, plugin);
            next.transform = Arc::new(next.transform.served_by(services));
            *active = Arc::new(next);
        });
    }

    /// Whether the last thing heard was a failure.
    pub(super) fn failing(&self) -> bool {
        self.failing
    }

    /// Notes what an event said.
    pub(super) fn set_failing(&mut self, failing: bool) {
        self.failing = failing;
    }

    /// How many rows are in quarantine.
    pub(super) fn quarantined(&self) -> u64 {
        self.shared.quarantined.load(Ordering::Acquire)
    }

    /// So many rows are stored as being in quarantine; where that is news, somebody else has let some of them go.
    pub(super) fn quarantine_is(&self, rows: u64) {
        if self.shared.quarantined.swap(rows, Ordering::AcqRel) != rows {
            self.shared.recount.store(true, Ordering::Release);
        }
    }

    /// Waits for both tasks to end.
    pub(super) async fn join(mut self) {
        drop(self.work);
        self.shared.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Shared {
    fn tell(&self, event: LaneEvent) {
        // Nobody listens any more while a term ends.
        let _ = self.events.send(event);
    }

    fn at_once(&self) -> usize {
        self.active.borrow().transform.at_once()
    }

    fn is_stale(&self, work: &Work) -> bool {
        work.epoch < self.epoch.load(Ordering::Acquire)
    }

    fn let_drop(&self, work: &Work) {
        self.queued.fetch_sub(work.batch.size(), Ordering::AcqRel);
    }

    /// Tries until it works, with backoff; a swapped plugin is tried at once. Reports failures, and the
    /// recovery after them.
    async fn until_it_works<T, F>(&self, work: &Work, stage: Stage, attempt: impl Fn() -> F) -> T
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut backoff: Option<Backoff> = None;
        let mut active = self.active.clone();
        loop {
            active.mark_unchanged();
            let began = Instant::now();
            let tried = attempt().await;
            let failed = tried.as_ref().err().map(|failure| failure.class);
            self.settings.metrics.tried(stage, began.elapsed(), failed);
            let failure = match tried {
                Ok(value) => {
                    if let Some(backoff) = backoff {
                        self.report_recovery(backoff.failures());
                    }
                    return value;
                }
                Err(failure) => failure,
            };
            let backoff = backoff.get_or_insert_with(|| {
                self.failing.fetch_add(1, Ordering::AcqRel);
                Backoff::new(policy(failure.class))
            });
            let NextAttempt::After(delay) = backoff.failed(rand::random(), failure.retry_after) else {
                continue;
            };
            self.report_failure(work, stage, backoff.failures(), delay, &failure);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                Ok(()) = active.changed() => {}
            }
        }
    }

    fn report_failure(&self, work: &Work, stage: Stage, attempts: u32, delay: Duration, failure: &Failure) {
        let active = self.active.borrow().clone();
        let lsn = work.first_lsn();
        Span::current().record("failures", attempts);
        warn!(
            mapping = self.settings.mapping,
            entity = %self.settings.entity,
            plugin = %active.transform.plugin().revision(),
            sink = self.settings.sink.kind(),
            lsn = %lsn,
            attempts,
            class = %failure.class,
            code = failure.code,
            "{} failed: {}; trying again in {delay:.1?}",
            stage.as_str(),
            failure.message,
        );
        let failure = Failure { message: format!("{} (at LSN {lsn})", failure.message), ..failure.clone() };
        self.tell(LaneEvent::Failing { lane: self.settings.id, attempts, failure });
    }

    fn report_recovery(&self, attempts: u32) {
        // Another piece of work may still fail.
        if self.failing.fetch_sub(1, Ordering::AcqRel) == 1 {
            info!(mapping = self.settings.mapping, attempts, "works again");
            self.tell(LaneEvent::Recovered { lane: self.settings.id });
        }
    }
}

impl Work {
    /// Whether it begins a place.
    fn begins(&self) -> bool {
        matches!(self.placing, Some(Placing::Begin(_)))
    }

    /// The chunk of a backfill that it is.
    fn chunk(&self) -> Option<Attempt> {
        match &self.advance.run {
            RunAdvance::At(run) => Some(run.attempt()),
            RunAdvance::Same | RunAdvance::None => None,
        }
    }

    fn first_lsn(&self) -> Lsn {
        let first = self.selection.first().and_then(|&index| self.batch.changes.get(index as usize));
        first.map_or(Lsn::ZERO, |change| self.batch.transaction(change).commit_lsn)
    }
}

/// What cannot be cured by trying again soon is tried again seldom.
fn policy(class: FailureClass) -> RetryPolicy {
    match class {
        FailureClass::Retry => RetryPolicy::DELIVERY,
        FailureClass::Poison | FailureClass::Fatal => RetryPolicy::REPAIR,
    }
}
