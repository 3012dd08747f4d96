//! The second of a lane's two tasks: delivers what was transformed, in order.

use std::{borrow::Cow, sync::Arc, time::Instant};

use tokio::sync::mpsc;
use tracing::{Instrument as _, Span, info, warn};

use crate::{
    config::OnFailure,
    model::{Beside, Documents, Failure, FailureClass, Place},
    pipeline::{Placing, WorkId},
    sink::Progress,
};

use super::{
    super::{
        blame::name_document,
        delivery::{Bounds, Load, Outgoing, Piece, Step, line_up},
        metrics::Stage,
        telemetry,
        token::Token,
    },
    LaneEvent, LaneSettings, Shared, Timing, Work,
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
            // What comes behind a begin waits until that is recorded.
            while load.fits(bounds)
                && together.last().is_none_or(|last| !last.work.begins())
                && let Ok(next) = deliveries.try_recv()
            {
                load = load.with(Load::of(&next.made.steps));
                if !load.fits(bounds) {
                    waiting = Some(next);
                    break;
                }
                together.push(next);
            }
            if let Some(begun) = shared.deliver(together, &mut token).await {
                shared.until_recorded(begun).await;
            }
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
    /// Delivers several pieces of work, those that are not given up meanwhile, and reports them accepted. Gives the last
    /// one, where it began a place.
    async fn deliver(&self, deliveries: Vec<Delivery>, token: &mut Token) -> Option<WorkId> {
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
        self.deliver_admitted(admitted, token).await
    }

    async fn deliver_admitted(&self, admitted: Admitted, token: &mut Token) -> Option<WorkId> {
        let started = Instant::now();
        let Admitted { works, pieces, mut group } = admitted;
        let (first, ..) = works.first()?;
        let batches = works.iter().map(|(_, span, _)| span);
        let span = telemetry::delivery(self.settings.sink.kind(), batches);
        for outgoing in line_up(pieces, token) {
            let attempts = self.until_it_works(first, Stage::Deliver, || self.carry_out(&outgoing, &group));
            group.refuse(attempts.instrument(span.clone()).await);
        }
        self.release(first, &group).await;
        drop(span);
        let delivering = started.elapsed() / u32::try_from(works.len()).unwrap_or(1);
        let mut begun = None;
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
            begun = work.begins().then_some(id);
        }
        if let Some(work) = begun {
            self.tell(LaneEvent::Begun { lane: self.settings.id, work });
        }
        begun
    }

    /// Waits until the place that this work began is recorded. One that is not known after a crash is begun again under
    /// another name, and would be built behind the back of readers if they saw anything in the first one.
    async fn until_recorded(&self, begun: WorkId) {
        let mut recorded = self.recorded.subscribe();
        // The sender is this lane's own.
        let _ = recorded.wait_for(|work| *work >= begun).await;
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
            Step::Deliver(documents) => {
                let documents = &*self.but_for_what_is_over(documents);
                if self.settings.quarantine.on_failure == OnFailure::Quarantine {
                    return self.deliver_around(documents, progress.as_ref(), group).await;
                }
                let rejected = sink.deliver(documents, progress.as_ref()).await?;
                match rejected.into_iter().next() {
                    None => Ok(Vec::new()),
                    Some(first) => Err(name_document(first.failure, documents, first.index)),
                }
            }
            Step::Purge { destination, place } => {
                self.purge(destination, progress.as_ref()).await?;
                if let Some(place) = place.as_ref().filter(|place| self.is_built(place)) {
                    sink.begin(destination, place).await?;
                }
                Ok(Vec::new())
            }
            Step::Place { destination, placing } => {
                self.place(destination, placing).await.map(|()| Vec::new())
            }
        }
    }

    /// Whether it is the present generation that is built there. What is still in hand for one that is over is not held
    /// up by its place, which may be gone.
    fn is_built(&self, place: &Place) -> bool {
        self.active.borrow().rules.generation == place.generation()
    }

    fn but_for_what_is_over<'a>(&self, documents: &'a Documents) -> Cow<'a, Documents> {
        let over = documents
            .beside
            .as_ref()
            .filter(|beside| beside.place.as_ref().is_some_and(|place| !self.is_built(place)));
        let Some(beside) = over else { return Cow::Borrowed(documents) };
        let beside = Beside { place: None, ..Beside::clone(beside) };
        Cow::Owned(Documents { beside: Some(Arc::new(beside)), ..documents.clone() })
    }

    /// Does something with a place of the destination.
    async fn place(&self, destination: &str, placing: &Placing) -> Result<(), Failure> {
        let (sink, place) = (&self.settings.sink, placing.place());
        let (mapping, generation) = (&self.settings.mapping, place.generation());
        match placing {
            Placing::Begin(_) | Placing::Switch(_) if !self.is_built(place) => {}
            Placing::Begin(_) => {
                let seen = sink.begin(destination, place).await?;
                if !seen {
                    self.settings.lease.hold().await;
                    sink.switch(destination, place).await?;
                }
                info!(mapping, destination, generation, %place, seen, "is built beside what readers see");
            }
            Placing::Switch(_) => {
                sink.switch(destination, place).await?;
                info!(mapping, destination, generation, %place, "readers see the generation that was built");
            }
            Placing::Abandon(_) => match sink.abandon(destination, place).await {
                Ok(()) => {
                    info!(mapping, destination, generation, %place, "what was begun of a generation is removed")
                }
                Err(failure) if failure.class == FailureClass::Retry => return Err(failure),
                // Nothing of anybody depends on it.
                Err(failure) => warn!(
                    mapping, destination, generation, %place,
                    "what was begun of a generation that is over could not be removed: remove it by hand. {failure}",
                ),
            },
        }
        Ok(())
    }

    /// Empties a destination, where that can be done.
    async fn purge(&self, destination: &str, progress: Option<&Progress>) -> Result<(), Failure> {
        let sink = &self.settings.sink;
        let LaneSettings { mapping, entity, shares, .. } = &self.settings;
        if !sink.capabilities().purge {
            warn!(
                mapping,
                %entity,
                destination,
                "the destination is to be emptied (its table was truncated, or a purge was asked for), but a {} sink \
                 cannot: its documents stay",
                sink.kind(),
            );
            return Ok(());
        }
        if !shares.is_empty() {
            warn!(
                mapping,
                %entity,
                destination,
                "the destination is to be emptied (its table was truncated, or a purge was asked for), but it is shared \
                 with {}: its documents stay; give each mapping a destination of its own, or empty it by hand and \
                 request a backfill of all of them",
                shares.join(", "),
            );
            return Ok(());
        }
        sink.purge(destination, progress).await
    }
}
