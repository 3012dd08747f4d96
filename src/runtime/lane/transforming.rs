//! The first of a lane's two tasks: transforms work, and hands it on in order.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use futures_util::{StreamExt as _, stream::FuturesOrdered};
use tokio::{sync::mpsc, task::JoinError};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::{
    config::OnFailure,
    model::{ChangeBatch, Description, Documents, Failure, Operation, Origin, Outcome, Outcomes, Revision},
    pipeline::{
        ChangeFailure, Segment, as_read, assemble, assemble_around, guest_selection, incomplete,
        left_as_it_is, segments,
    },
    plugin::{PluginFault, Transform},
};

use super::{
    super::{
        blame::name_row,
        delivery::{Load, Step},
        metrics::Stage,
        reread::not_allowed,
        telemetry,
    },
    Active, Shared, Timing, Way, Work,
    delivering::Delivery,
};

pub(super) async fn transform_loop(
    shared: Arc<Shared>,
    mut incoming: mpsc::UnboundedReceiver<Work>,
    deliveries: mpsc::Sender<Delivery>,
) {
    let stop = shared.stop.clone();
    let work = async {
        let mut under_way = FuturesOrdered::new();
        let mut numbers = 0_u64..;
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
                    let Some(turn) = numbers.next() else { return };
                    let live = work.batch.origin != Origin::Backfill;
                    if live && under_way.is_empty() && incoming.is_empty() {
                        // Nothing else to do: not a task of its own, for the sake of latency.
                        let done = transformed(Arc::clone(&shared), work, turn).await;
                        if !shared.pass_on(Some(done), &deliveries).await {
                            return;
                        }
                    } else {
                        let task = transformed(Arc::clone(&shared), work, turn);
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

async fn transformed(shared: Arc<Shared>, work: Work, turn: u64) -> Delivery {
    let started = Instant::now();
    let (mapping, entity) = (&shared.settings.mapping, &shared.settings.entity);
    let backfill = work.batch.origin == Origin::Backfill;
    let span = telemetry::batch(mapping, entity, work.selection.len(), work.first_lsn(), backfill);
    let attempts = shared.until_it_works(&work, Stage::Transform, || shared.transform(&work, Some(turn)));
    let made = attempts.instrument(telemetry::transform(&span)).await;
    let timing = Timing {
        transforming: started.elapsed(),
        documents: Load::of(&made.steps).documents() as u64,
        ..Timing::default()
    };
    Delivery { work, span, made, timing, hold: None }
}

/// What a task came to; its panic goes on here.
fn ended(done: Result<Delivery, JoinError>) -> Option<Delivery> {
    match done {
        Ok(delivery) => Some(delivery),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Aborted: the runtime ends.
            Err(_) => None,
        },
    }
}

impl Shared {
    /// Hands a transformed piece of work on; false when nobody takes it any more.
    async fn pass_on(&self, done: Option<Delivery>, deliveries: &mpsc::Sender<Delivery>) -> bool {
        let Some(mut delivery) = done else { return false };
        if self.is_stale(&delivery.work) {
            self.let_drop(&delivery.work);
            self.turns.next();
            return true;
        }
        if !delivery.made.failed.is_empty() {
            delivery.hold = Some(self.turns.hold());
        }
        let sent = deliveries.send(delivery).await.is_ok();
        self.turns.next();
        sent
    }

    /// What to work with, which may have been replaced while its turn was waited for.
    async fn active_at(&self, turn: Option<u64>) -> Arc<Active> {
        loop {
            let active = self.active.borrow().clone();
            match turn {
                Some(turn) if active.transform.keeps_state() && !self.turns.is(turn) => {
                    self.turns.wait(turn).await;
                }
                _ => return active,
            }
        }
    }

    /// What the sink is to do, and what of the work has no documents. Where the transform keeps state, only once it is
    /// the `turn` of the work; none: everything after it waits for this work.
    pub(super) async fn transform(&self, work: &Work, turn: Option<u64>) -> Result<Transformed, Failure> {
        let active = self.active_at(turn).await;
        let Active { transform, rules, .. } = &*active;
        let mut made = Transformed::new(work, rules.generation, transform);
        if work.purge {
            made.steps = vec![Step::Purge { destination: rules.destination.clone(), place: None }];
            return Ok(made);
        }
        if let Some(placing) = work.placing.clone() {
            made.steps = vec![Step::Place { destination: rules.destination.clone(), placing }];
            return Ok(made);
        }
        let quarantines = self.settings.quarantine.on_failure == OnFailure::Quarantine;
        let notes_left = quarantines || self.quarantined.load(Ordering::Acquire) > 0;
        let refused = self.complete(work, transform, quarantines, &mut made).await?;
        if rules.names_ids {
            // Of a row that is gone only the key is known, and that is none of its documents' ids.
            made.selection.retain(|&index| !is_gone(&made.batch, index));
        }
        let entity = self.settings.entity.to_string();
        let (origin, beside) = (made.batch.origin, work.way.beside(&rules.destination));
        let none = || Documents {
            beside: beside.clone(),
            ..Documents::new(entity.clone(), origin, rules.generation)
        };
        let mut documents = none();
        for segment in segments(&made.batch, &made.selection, self.settings.batch_rows) {
            match segment {
                Segment::Rows(rows) => {
                    let asked = guest_selection(&made.batch, &rows, rules);
                    let batch = &made.batch;
                    let of = (rows.as_slice(), asked.as_slice(), refused.as_slice());
                    let (outcomes, failed) = written(&active, batch, of, quarantines, &mut documents).await?;
                    let skipped = match &work.way.place {
                        Some(_) => left_as_it_is(batch, &asked, &outcomes),
                        None => Vec::new(),
                    };
                    let mut failed_as_read = Vec::new();
                    if !skipped.is_empty() {
                        // Before everything else: what the others come to is what readers see, too.
                        let reads = as_read(batch, &skipped);
                        let way = Way { shown: false, ..work.way.clone() };
                        let mut built = Documents { beside: way.beside(&rules.destination), ..none() };
                        let of = (skipped.as_slice(), skipped.as_slice(), &[][..]);
                        (_, failed_as_read) = written(&active, &reads, of, quarantines, &mut built).await?;
                        made.steps.push(Step::Deliver(built));
                    }
                    if notes_left {
                        made.left.extend(left(batch, &asked, &outcomes));
                    }
                    made.note(&asked, failed);
                    if !failed_as_read.is_empty() {
                        made.failed.extend(failed_as_read);
                        made.failed.sort_by_key(|failed| failed.change);
                    }
                }
                Segment::Truncate(_) => {
                    made.steps.push(Step::Deliver(std::mem::replace(&mut documents, none())));
                    let (destination, place) = (rules.destination.clone(), work.way.place.clone());
                    made.steps.push(Step::Purge { destination, place });
                }
            }
        }
        made.steps.push(Step::Deliver(documents));
        made.steps.retain(|step| !matches!(step, Step::Deliver(documents) if documents.is_empty()));
        Ok(made)
    }

    /// Puts complete rows in the place of those that came incomplete. Gives the changes that fail because that is
    /// not allowed.
    async fn complete(
        &self,
        work: &Work,
        transform: &Transform,
        quarantines: bool,
        made: &mut Transformed,
    ) -> Result<Vec<u32>, Failure> {
        let Work { batch, selection, .. } = work;
        if quarantines && !self.settings.reread && batch.origin == Origin::Stream {
            let needed = transform.description().columns.as_deref();
            return Ok(incomplete(batch, selection, needed));
        }
        let completed = self.settings.rereader.complete(batch, selection, transform, self.settings.reread);
        (made.batch, made.selection) = completed.await?;
        Ok(Vec::new())
    }
}

/// A piece of work, transformed.
#[derive(Debug)]
pub(super) struct Transformed {
    /// The generation that made the documents.
    pub(super) generation: i64,
    pub(super) steps: Vec<Step>,
    /// The changes, complete.
    pub(super) batch: Arc<ChangeBatch>,
    pub(super) selection: Vec<u32>,
    /// Those that can never work, in order.
    pub(super) failed: Vec<ChangeFailure>,
    /// Those that say nothing of their row's document, in order: they failed, or the transform left what is there.
    pub(super) left: Vec<u32>,
    /// How many were asked about, and the places among them of those that failed.
    pub(super) asked: usize,
    pub(super) failed_at: Vec<usize>,
    /// Whose answers these are.
    pub(super) revision: Arc<Revision>,
    /// What the transform says of itself.
    pub(super) description: Arc<Description>,
}

impl Transformed {
    fn new(work: &Work, generation: i64, transform: &Transform) -> Self {
        Self {
            generation,
            steps: Vec::new(),
            batch: Arc::clone(&work.batch),
            selection: work.selection.clone(),
            failed: Vec::new(),
            left: Vec::new(),
            asked: 0,
            failed_at: Vec::new(),
            revision: Arc::clone(transform.revision()),
            description: Arc::clone(transform.description()),
        }
    }

    /// Takes up what became of a segment.
    fn note(&mut self, asked: &[u32], failed: Vec<ChangeFailure>) {
        let places = failed.iter().filter_map(|failed| asked.binary_search(&failed.change).ok());
        self.failed_at.extend(places.map(|at| self.asked + at));
        self.asked += asked.len();
        self.left.extend(failed.iter().map(|failed| failed.change));
        self.left.sort_unstable();
        self.left.dedup();
        self.failed.extend(failed);
    }
}

/// Has documents made of `rows`, of which the transform is asked about those that are `asked`, and not about those that are
/// `refused`. Gives its answers, and the changes that can never work where a quarantine sets them aside.
async fn written(
    active: &Active,
    batch: &ChangeBatch,
    (rows, asked, refused): (&[u32], &[u32], &[u32]),
    quarantines: bool,
    documents: &mut Documents,
) -> Result<(Outcomes, Vec<ChangeFailure>), Failure> {
    let Active { transform, rules, secrets } = active;
    let asking = ask(transform, batch, asked, refused, quarantines);
    let outcomes = asking.await.map_err(|fault| secrets.clean_failure(fault.to_failure()))?;
    let aside = if quarantines {
        assemble_around(batch, rows, &outcomes, rules, documents)
    } else {
        assemble(batch, rows, &outcomes, rules, documents).map(|()| Vec::new())
    };
    let clean =
        |failed: ChangeFailure| ChangeFailure { failure: secrets.clean_failure(failed.failure), ..failed };
    match aside {
        Ok(aside) => Ok((outcomes, aside.into_iter().map(clean).collect())),
        Err(failed) => Err(name_row(secrets.clean_failure(failed.failure), batch, failed.change)),
    }
}

/// Asks about changes; those that are `refused` have their answer already.
async fn ask(
    transform: &Transform,
    batch: &ChangeBatch,
    asked: &[u32],
    refused: &[u32],
    isolating: bool,
) -> Result<Outcomes, PluginFault> {
    if asked.is_empty() {
        return Ok(Outcomes::default());
    }
    if !isolating {
        return transform.call(batch, asked).await;
    }
    if refused.is_empty() {
        return transform.call_isolating(batch, asked).await;
    }
    let (known, others): (Vec<u32>, Vec<u32>) =
        asked.iter().partition(|index| refused.binary_search(index).is_ok());
    let mut outcomes = match others.as_slice() {
        [] => Outcomes::default(),
        others => transform.call_isolating(batch, others).await?,
    };
    let mut answers = std::mem::take(&mut outcomes.outcomes).into_iter();
    for index in asked {
        let answer = match known.binary_search(index) {
            Ok(_) => Some(Outcome::Failed(not_allowed(batch.relation(&batch.changes[*index as usize])))),
            Err(_) => answers.next(),
        };
        outcomes.outcomes.extend(answer);
    }
    Ok(outcomes)
}

/// The changes whose row's document stays as it is. What a backfill reads has the last word in any case.
fn left<'a>(
    batch: &'a ChangeBatch,
    asked: &'a [u32],
    outcomes: &'a Outcomes,
) -> impl Iterator<Item = u32> + use<'a> {
    let answers = asked.iter().zip(&outcomes.outcomes).filter(|_| batch.origin == Origin::Stream);
    answers.filter(|(_, outcome)| matches!(outcome, Outcome::Skip)).map(|(index, _)| *index)
}

/// Whether a change says that a row which was to be read again is not there.
fn is_gone(batch: &ChangeBatch, index: u32) -> bool {
    batch.origin == Origin::Backfill && batch.changes[index as usize].operation == Operation::Delete
}
