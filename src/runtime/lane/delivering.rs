//! The second of a lane's two tasks: delivers what was transformed, in order.

use std::{sync::Arc, time::Instant};

use tokio::sync::mpsc;
use tracing::{Instrument as _, Span, warn};

use crate::{config::OnFailure, model::Failure};

use super::{
    super::{
        blame::name_document,
        delivery::{Bounds, Load, Outgoing, Piece, Step, line_up},
        metrics::Stage,
        telemetry,
        token::Token,
    },
    LaneEvent, Shared, Timing, Work,
    quarantining::{Group, Refused},
    transforming::Transformed,
    turns::Hold,
};

/// A piece of work, transformed.
pub(super) struct Delivery {
    pub(super) work: Work,
    pub(super) span: Span,
    pub(super) made: Transformed,
    pub(super) timing: Timing,
    /// It may be transformed again: it has changes that are to be kept first.
    pub(super) hold: Option<Hold>,
}

/// Delivers in order. What has piled up behind a slow sink goes into one call, up to about `batch_rows`
/// documents and `batch_bytes`.
pub(super) async fn deliver_loop(shared: Arc<Shared>, mut deliveries: mpsc::Receiver<Delivery>) {
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
            let mut load = Load::of(&first.made.steps);
            let mut together = vec![first];
            while load.fits(bounds)
                && let Ok(next) = deliveries.try_recv()
            {
                load = load.with(Load::of(&next.made.steps));
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

/// What goes out together: the pieces of work, and what the sink is to do for each.
#[derive(Default)]
struct Admitted {
    works: Vec<(Work, Span, Timing)>,
    pieces: Vec<Piece>,
    group: Group,
}

impl Admitted {
    fn add(&mut self, delivery: Delivery) {
        let Delivery { work, span, mut made, timing, .. } = delivery;
        let mut steps = std::mem::take(&mut made.steps);
        self.group.add(&work, made, &mut steps);
        let generation = self.group.last_generation();
        self.pieces.push(Piece { advance: work.advance.clone(), generation, steps });
        self.works.push((work, span, timing));
    }
}

impl Shared {
    /// Delivers several pieces of work, those that are not given up meanwhile, and reports them accepted.
    async fn deliver(&self, deliveries: Vec<Delivery>, token: &mut Token) {
        self.recount().await;
        let mut admitted = Admitted::default();
        for mut delivery in deliveries {
            if self.is_stale(&delivery.work) {
                self.let_drop(&delivery.work);
                continue;
            }
            if let Err(halted) = self.keep(&delivery.work, &delivery.made).await {
                // What came before it does not halt with it.
                self.deliver_admitted(std::mem::take(&mut admitted), token).await;
                delivery = self.admit(delivery, halted).await;
            }
            admitted.add(delivery);
        }
        self.deliver_admitted(admitted, token).await;
    }

    async fn deliver_admitted(&self, admitted: Admitted, token: &mut Token) {
        let started = Instant::now();
        let Admitted { works, pieces, mut group } = admitted;
        let Some((first, ..)) = works.first() else { return };
        let batches = works.iter().map(|(_, span, _)| span);
        let span = telemetry::delivery(self.settings.sink.kind(), batches);
        for outgoing in line_up(pieces, token) {
            let attempts = self.until_it_works(first, Stage::Deliver, || self.carry_out(&outgoing, &group));
            group.refuse(attempts.instrument(span.clone()).await);
        }
        self.release(first, &group).await;
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

    /// Gives the documents that the sink did not take, and whose changes are in quarantine now.
    async fn carry_out(
        &self,
        Outgoing { step, token }: &Outgoing,
        group: &Group,
    ) -> Result<Vec<Refused>, Failure> {
        // After a retry's pause, or a sleep of the whole process, another host may lead.
        self.settings.lease.hold().await;
        let sink = &self.settings.sink;
        let progress = if sink.capabilities().progress { Some(token.progress()?) } else { None };
        match step {
            Step::Deliver(documents) if self.settings.quarantine.on_failure == OnFailure::Quarantine => {
                self.deliver_around(documents, progress.as_ref(), group).await
            }
            Step::Deliver(documents) => {
                let rejected = sink.deliver(documents, progress.as_ref()).await?;
                match rejected.into_iter().next() {
                    None => Ok(Vec::new()),
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
                Ok(Vec::new())
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
                Ok(Vec::new())
            }
            Step::Purge(destination) => sink.purge(destination, progress.as_ref()).await.map(|()| Vec::new()),
        }
    }
}
