//! The first of a lane's two tasks: transforms work, and hands it on in order.

use std::{sync::Arc, time::Instant};

use futures_util::{StreamExt as _, stream::FuturesOrdered};
use tokio::{sync::mpsc, task::JoinError};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::{
    model::{Documents, Failure, Origin},
    pipeline::{Segment, assemble, guest_selection, segments},
};

use super::{
    super::{
        blame::name_row,
        delivery::{Load, Step},
        metrics::Stage,
        telemetry,
    },
    Active, Shared, Timing, Work,
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
        let Some(delivery) = done else { return false };
        if self.is_stale(&delivery.work) {
            self.let_drop(&delivery.work);
            return true;
        }
        deliveries.send(delivery).await.is_ok()
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
}
