//! One mapping at work: two tasks, so that batch n+1 is transformed while batch n is delivered, and a task for
//! each further batch that waits, so that as many are transformed at once as the plugin has instances.
//!
//! A lane takes work in order and reports it accepted in order, once its sink has made it durable. What fails
//! is retried with backoff and reported; nothing is skipped. It must never hold up another lane: when it
//! cannot keep up while failing, the pump lets go of its queue (see [`LaneHandle::let_go`]) and reads the
//! stream again once it recovers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesOrdered};
use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{Instrument as _, Span, info, warn};

use crate::{
    backfill::Attempt,
    model::{ChangeBatch, Documents, EntityName, Failure, FailureClass, Lsn, Origin},
    pipeline::{
        Backoff, DocumentRules, LaneId, NextAttempt, RetryPolicy, Segment, WorkId, assemble, guest_selection,
        segments,
    },
    plugin::{Plugin, Transform},
    postgres::Lease,
};

use super::{
    blame::{name_document, name_row},
    delivery::{Bounds, Load, Outgoing, Piece, Step, line_up},
    metrics::{LaneMetrics, Stage},
    outlet::Outlet,
    reread::Rereader,
    telemetry,
    token::{Advance, RunAdvance, RunToken, Token},
};

/// Pieces of work that are transformed before their delivery; their bytes count as queued.
const TRANSFORMED_AHEAD: usize = 64;

/// What a lane works with now; replaced as a whole when the plugin is swapped.
#[derive(Clone, Debug)]
pub(super) struct Active {
    pub(super) transform: Arc<Transform>,
    pub(super) rules: DocumentRules,
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
    epoch: u64,
}

/// What a lane tells the pump.
#[derive(Debug)]
pub(super) enum LaneEvent {
    /// The sink has durably accepted this work and all before it.
    Accepted { lane: LaneId, work: WorkId, chunk: Option<Attempt>, timing: Timing },
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
        let shared = Arc::new(Shared {
            settings,
            active: watching,
            events,
            queued: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            failing: AtomicUsize::new(0),
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
        chunk: Option<RunToken>,
        handed: (Lsn, Lsn),
    ) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        self.shared.queued.fetch_add(batch.size(), Ordering::AcqRel);
        let advance = self.advance(chunk, handed);
        // A lane that ended is noticed by the term, which ends with it.
        let _ = self.work.send(Work { id, batch, selection, advance, purge: false, epoch });
    }

    /// Empties the mapping's destination, in order.
    pub(super) fn purge(&self, id: WorkId, handed: Lsn) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        let batch = Arc::new(ChangeBatch::new(Origin::Backfill));
        let advance = self.advance(None, (handed, handed));
        // As in `send`.
        let _ = self.work.send(Work { id, batch, selection: Vec::new(), advance, purge: true, epoch });
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

    /// Swaps the transform at the next batch boundary.
    pub(super) fn replace(&self, active: Active) {
        self.active.send_replace(Arc::new(active));
    }

    /// Goes on with the same transform as another generation.
    pub(super) fn regenerate(&self, generation: i64) {
        self.active.send_modify(|active| {
            let mut next = Active::clone(active);
            next.rules.generation = generation;
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

    /// Waits for both tasks to end.
    pub(super) async fn join(mut self) {
        drop(self.work);
        self.shared.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Delivery {
    work: Work,
    span: Span,
    /// The generation that made the documents.
    generation: i64,
    steps: Vec<Step>,
    timing: Timing,
}

async fn transform_loop(
    shared: Arc<Shared>,
    mut incoming: mpsc::UnboundedReceiver<Work>,
    deliveries: mpsc::Sender<Delivery>,
) {
    let stop = shared.stop.clone();
    let work = async {
        let mut under_way = FuturesOrdered::new();
        loop {
            tokio::select! {
                biased;
                Some(done) = under_way.next(), if !under_way.is_empty() => {
                    if !shared.pass_on(ended(done), &deliveries).await {
                        return;
                    }
                }
                work = incoming.recv(), if under_way.len() < shared.at_once() => {
                    let Some(work) = work else { break };
                    if shared.is_stale(&work) {
                        shared.let_drop(&work);
                        continue;
                    }
                    let live = work.batch.origin != Origin::Backfill;
                    if live && under_way.is_empty() && incoming.is_empty() {
                        // Nothing else to do: not a task of its own, for the sake of latency.
                        let done = transformed(Arc::clone(&shared), work).await;
                        if !shared.pass_on(Some(done), &deliveries).await {
                            return;
                        }
                    } else {
                        let task = transformed(Arc::clone(&shared), work);
                        let task = if live { tokio::spawn(task) } else { shared.settings.background.spawn(task) };
                        under_way.push_back(AbortOnDropHandle::new(task));
                    }
                }
            }
        }
        while let Some(done) = under_way.next().await {
            if !shared.pass_on(ended(done), &deliveries).await {
                return;
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

async fn transformed(shared: Arc<Shared>, work: Work) -> Delivery {
    let started = Instant::now();
    let (mapping, entity) = (&shared.settings.mapping, &shared.settings.entity);
    let backfill = work.batch.origin == Origin::Backfill;
    let span = telemetry::batch(mapping, entity, work.selection.len(), work.first_lsn(), backfill);
    let attempts = shared.until_it_works(&work, Stage::Transform, || shared.transform(&work));
    let (generation, steps) = attempts.instrument(telemetry::transform(&span)).await;
    let timing = Timing {
        transforming: started.elapsed(),
        documents: Load::of(&steps).documents() as u64,
        ..Timing::default()
    };
    Delivery { work, span, generation, steps, timing }
}

/// What a task came to; its panic goes on here.
fn ended(done: Result<Delivery, tokio::task::JoinError>) -> Option<Delivery> {
    match done {
        Ok(delivery) => Some(delivery),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Aborted: the runtime ends.
            Err(_) => None,
        },
    }
}

/// Delivers in order. What has piled up behind a slow sink goes into one call, up to about `batch_rows`
/// documents and `batch_bytes`.
async fn deliver_loop(shared: Arc<Shared>, mut deliveries: mpsc::Receiver<Delivery>) {
    let stop = shared.stop.clone();
    let bounds = Bounds { documents: shared.settings.batch_rows, bytes: shared.settings.batch_bytes };
    let work = async {
        let mut token = shared.settings.token.clone();
        let mut waiting = None;
        loop {
            let first = match waiting.take() {
                Some(first) => first,
                None => match deliveries.recv().await {
                    Some(first) => first,
                    None => return,
                },
            };
            let mut load = Load::of(&first.steps);
            let mut together = vec![first];
            while load.fits(bounds)
                && let Ok(next) = deliveries.try_recv()
            {
                load = load.with(Load::of(&next.steps));
                if !load.fits(bounds) {
                    waiting = Some(next);
                    break;
                }
                together.push(next);
            }
            shared.deliver(together, &mut token).await;
        }
    };
    stop.run_until_cancelled(work).await;
}

impl Shared {
    fn tell(&self, event: LaneEvent) {
        // Nobody listens any more while a term ends.
        let _ = self.events.send(event);
    }

    fn at_once(&self) -> usize {
        self.active.borrow().transform.at_once()
    }

    /// Hands a transformed piece of work on; false when nobody takes it any more.
    async fn pass_on(&self, done: Option<Delivery>, deliveries: &mpsc::Sender<Delivery>) -> bool {
        let Some(delivery) = done else { return false };
        if self.is_stale(&delivery.work) {
            self.let_drop(&delivery.work);
            return true;
        }
        deliveries.send(delivery).await.is_ok()
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

    /// The generation that made the documents, and what the sink is to do.
    async fn transform(&self, work: &Work) -> Result<(i64, Vec<Step>), Failure> {
        let active = self.active.borrow().clone();
        let Active { transform, rules } = &*active;
        if work.purge {
            return Ok((rules.generation, vec![Step::Purge(rules.destination.clone())]));
        }
        let Work { batch, selection, .. } = work;
        let completed = self.settings.rereader.complete(batch, selection, transform, self.settings.reread);
        let (batch, selection) = completed.await?;
        let entity = self.settings.entity.to_string();
        let mut documents = Documents::new(entity.clone(), batch.origin, rules.generation);
        let mut steps = Vec::new();
        for segment in segments(&batch, &selection, self.settings.batch_rows) {
            match segment {
                Segment::Rows(rows) => {
                    let asked = guest_selection(&batch, &rows, rules);
                    let outcomes = if asked.is_empty() {
                        Default::default()
                    } else {
                        transform.call(&batch, &asked).await.map_err(|fault| fault.to_failure())?
                    };
                    assemble(&batch, &rows, &outcomes, rules, &mut documents)
                        .map_err(|failed| name_row(failed.failure, &batch, failed.change))?;
                }
                Segment::Truncate(_) => {
                    let next = Documents::new(entity.clone(), batch.origin, rules.generation);
                    steps.push(Step::Deliver(std::mem::replace(&mut documents, next)));
                    steps.push(Step::Purge(rules.destination.clone()));
                }
            }
        }
        steps.push(Step::Deliver(documents));
        steps.retain(|step| !matches!(step, Step::Deliver(documents) if documents.is_empty()));
        Ok((rules.generation, steps))
    }

    /// Delivers several pieces of work, those that are not given up meanwhile, and reports them accepted.
    async fn deliver(&self, deliveries: Vec<Delivery>, token: &mut Token) {
        let started = Instant::now();
        let (stale, live): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|delivery| self.is_stale(&delivery.work));
        stale.iter().for_each(|delivery| self.let_drop(&delivery.work));
        let mut pieces = Vec::new();
        let mut works = Vec::new();
        for Delivery { work, span, generation, steps, timing } in live {
            pieces.push(Piece { advance: work.advance.clone(), generation, steps });
            works.push((work, span, timing));
        }
        let Some((first, ..)) = works.first() else { return };
        let batches = works.iter().map(|(_, span, _)| span);
        let span = telemetry::delivery(self.settings.sink.kind(), batches);
        for outgoing in line_up(pieces, token) {
            let attempts = self.until_it_works(first, Stage::Deliver, || self.carry_out(&outgoing));
            attempts.instrument(span.clone()).await;
        }
        drop(span);
        let delivering = started.elapsed() / u32::try_from(works.len()).unwrap_or(1);
        for (work, _, timing) in works {
            self.let_drop(&work);
            if self.is_stale(&work) {
                continue;
            }
            let chunk = work.chunk();
            let id = work.id;
            let timing = Timing { delivering, ..timing };
            self.settings.metrics.delivered(timing.documents);
            self.tell(LaneEvent::Accepted { lane: self.settings.id, work: id, chunk, timing });
        }
    }

    async fn carry_out(&self, Outgoing { step, token }: &Outgoing) -> Result<(), Failure> {
        // After a retry's pause, or a sleep of the whole process, another host may lead.
        self.settings.lease.hold().await;
        let sink = &self.settings.sink;
        let progress = if sink.capabilities().progress { Some(token.progress()?) } else { None };
        match step {
            Step::Deliver(documents) => {
                let rejected = sink.deliver(documents, progress.as_ref()).await?;
                match rejected.into_iter().next() {
                    None => Ok(()),
                    Some(first) => Err(name_document(first.failure, documents, first.index)),
                }
            }
            Step::Purge(destination) if !sink.capabilities().purge => {
                warn!(
                    mapping = self.settings.mapping,
                    entity = %self.settings.entity,
                    destination,
                    "the destination is to be emptied (its table was truncated, or a purge was asked for), but a {} \
                     sink cannot: its documents stay",
                    sink.kind(),
                );
                Ok(())
            }
            Step::Purge(destination) if !self.settings.shares.is_empty() => {
                warn!(
                    mapping = self.settings.mapping,
                    entity = %self.settings.entity,
                    destination,
                    "the destination is to be emptied (its table was truncated, or a purge was asked for), but it is \
                     shared with {}: its documents stay; give each mapping a destination of its own, or empty it by \
                     hand and request a backfill of all of them",
                    self.settings.shares.join(", "),
                );
                Ok(())
            }
            Step::Purge(destination) => sink.purge(destination, progress.as_ref()).await,
        }
    }
}

impl Work {
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
