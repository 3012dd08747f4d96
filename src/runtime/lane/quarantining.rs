//! What becomes of a change that can never work, where its mapping has a quarantine.
//!
//! All of this is in the delivering task, in the order of the lane: what a transform could not process is kept in the
//! state schema before anything that came after it is delivered, what a sink did not take before its token or the
//! ledger moves past it, and an entry is let go only once a later change of its row was accepted. So a kill at any
//! moment loses nothing: the change is streamed again, and comes to the same entry. When so much fails that the plugin
//! or the sink has to be at fault, or the quarantine is full, nothing is kept and the lane halts as it would without one.

use std::{
    sync::{Mutex as Cell, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use tracing::{Instrument as _, warn};

use crate::{
    model::{
        Change, ChangeBatch, DocumentOperation, Documents, Failure, FailureClass, Lsn, Origin, document_id,
        push_document_id,
    },
    pipeline::{Bisection, BisectionLimits, Found, InARow, LaneOrder, OpenRows, TooMany, beginning, payload},
    postgres::{self, Client, Purpose},
    sink::{Progress, Rejected},
    state::{Kept, NewEntry, QuarantineStage, RejectedDocument, StateError, Store},
};

use super::{
    super::{answer::ANSWER_LIMIT, delivery::Step, metrics::Stage, outlet::Outlet},
    LaneSettings, Shared, Work,
    delivering::Delivery,
    transforming::Transformed,
};

/// Entries of a second that are told one by one.
const LINES_PER_SECOND: u32 = 10;

/// What the delivering task knows of the lane's quarantine.
#[derive(Debug)]
pub(super) struct Ward {
    open: OpenRows,
    client: Option<Client>,
    /// Changes that the transform failed for, and documents that the sink did not take, one after another.
    transforms: InARow,
    deliveries: InARow,
    told: Told,
}

/// How much was logged of it lately.
#[derive(Debug)]
struct Told {
    since: Instant,
    lines: u32,
    /// Whether this second's rest was told as a number.
    summed: bool,
    silent: u64,
}

impl Ward {
    pub(super) fn new(open: OpenRows) -> Self {
        let told = Told { since: Instant::now(), lines: 0, summed: false, silent: 0 };
        let (transforms, deliveries) = (InARow::default(), InARow::default());
        Self { open, client: None, transforms, deliveries, told }
    }
}

/// Pieces of work that go out together. Their documents name the changes by numbers of the group.
#[derive(Debug, Default)]
pub(super) struct Group {
    pieces: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    /// The number of its first change.
    base: u32,
    made: Transformed,
    /// Everything before this had been handed out before it.
    handed: Lsn,
    purge: bool,
    /// Changes that moved a key, and whose old document the sink would not delete, in order.
    kept: Vec<u32>,
}

/// A document that the sink did not take, and that is in quarantine now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// The number of its change.
    change: u32,
    /// It was to delete the document of the key that the change moved away from.
    old: bool,
}

impl Group {
    pub(super) fn add(&mut self, work: &Work, made: Transformed, steps: &mut [Step]) {
        let changes = |member: &Member| u32::try_from(member.made.batch.changes.len()).unwrap_or(u32::MAX);
        let base = self.pieces.last().map_or(0, |last| last.base.saturating_add(changes(last)));
        for step in steps.iter_mut().filter(|_| base > 0) {
            if let Step::Deliver(documents) = step {
                documents
                    .entries
                    .iter_mut()
                    .for_each(|entry| entry.change = entry.change.saturating_add(base));
            }
        }
        self.pieces.push(Member {
            base,
            made,
            handed: work.advance.from,
            purge: work.purge,
            kept: Vec::new(),
        });
    }

    pub(super) fn last_generation(&self) -> i64 {
        self.pieces.last().map_or(0, |last| last.made.generation)
    }

    /// The sink did not take these documents.
    pub(super) fn refuse(&mut self, documents: Vec<Refused>) {
        for Refused { change, old } in documents {
            let at = self.pieces.partition_point(|piece| piece.base <= change);
            if let Some(piece) = at.checked_sub(1).and_then(|at| self.pieces.get_mut(at)) {
                let changes = if old { &mut piece.kept } else { &mut piece.made.left };
                changes.push(change - piece.base);
                changes.sort_unstable();
                changes.dedup();
            }
        }
    }

    fn member(&self, change: u32) -> Option<(&Member, u32)> {
        let at = self.pieces.partition_point(|piece| piece.base <= change);
        let piece = self.pieces.get(at.checked_sub(1)?)?;
        Some((piece, change - piece.base))
    }
}

impl Shared {
    /// Keeps the changes of a piece of work that its transform cannot process, which could not be done at once. While
    /// that cannot be (there is no room, or so many fail that the plugin is at fault) the lane halts, and the work is
    /// transformed anew at each attempt.
    pub(super) async fn admit(&self, delivery: Delivery, halted: Failure) -> Delivery {
        let Delivery { work, span, made, timing, hold } = delivery;
        let waiting = Cell::new((halted.class == FailureClass::Retry).then_some(made));
        let first = Cell::new(Some(halted));
        let attempt = async || {
            if let Some(halted) = taken(&first) {
                return Err(halted);
            }
            let made = match taken(&waiting) {
                Some(made) => made,
                None => self.transform(&work, None).await?,
            };
            match self.keep(&work, &made).await {
                Ok(()) => Ok(made),
                Err(failure) => {
                    if failure.class == FailureClass::Retry {
                        *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
                    }
                    Err(failure)
                }
            }
        };
        let made = self.until_it_works(&work, Stage::Transform, attempt).instrument(span.clone()).await;
        Delivery { work, span, made, timing, hold }
    }

    /// Keeps the changes of a piece of work that its transform cannot process.
    pub(super) async fn keep(&self, work: &Work, made: &Transformed) -> Result<(), Failure> {
        let mut ward = self.ward.lock().await;
        if made.failed.is_empty() {
            if let Ok(in_a_row) = ward.transforms.after(made.asked, &[], usize::MAX) {
                ward.transforms = in_a_row;
            }
            return Ok(());
        }
        let limit = self.settings.quarantine.bounds.in_a_row;
        let in_a_row = ward.transforms.after(made.asked, &made.failed_at, limit).map_err(|_| {
            let last = made.failed.last().map_or("", |failed| &failed.failure.message);
            let message = format!(
                "it fails for more than {limit} changes one after another: the plugin is taken to be at fault and not \
                 the rows, and none of these is put into quarantine (the setting `quarantine_in_a_row` of the mapping). \
                 The last: {last}"
            );
            Failure::new(FailureClass::Poison, "plugin-fails-in-a-row", message)
        })?;
        let entry = |failed: &crate::pipeline::ChangeFailure| {
            self.entry(made, work.advance.from, (failed.change, false), failed.failure.clone(), None)
        };
        let entries: Vec<NewEntry> = made.failed.iter().map(entry).collect();
        self.store(&mut ward, &entries).await?;
        ward.transforms = in_a_row;
        Ok(())
    }

    /// Delivers documents, and keeps the changes of those that can never be taken. Gives these.
    pub(super) async fn deliver_around(
        &self,
        documents: &Documents,
        progress: Option<&Progress>,
        group: &Group,
    ) -> Result<Vec<Refused>, Failure> {
        let sink = &self.settings.sink;
        let (rejected, whole) = match sink.deliver(documents, progress).await {
            Ok(rejected) => (rejected, true),
            Err(failure) if failure.class == FailureClass::Poison => {
                (in_parts(sink, documents).await?, false)
            }
            Err(failure) => return Err(failure),
        };
        let mut ward = self.ward.lock().await;
        let limit = self.settings.quarantine.bounds.in_a_row;
        let places: Vec<usize> = rejected.iter().map(|rejected| rejected.index).collect();
        let in_a_row = ward.deliveries.after(documents.len(), &places, limit).map_err(|_| {
            let last = rejected.last().map_or("", |rejected| &rejected.failure.message);
            sink_at_fault(&format!("more than {limit} documents one after another"), last)
        })?;
        let mut refused = Vec::new();
        let mut entries: Vec<NewEntry> = Vec::new();
        for Rejected { index, failure } in rejected {
            let Some((one, entry)) = self.refused(documents, index, failure, group) else { continue };
            refused.push(one);
            // Several documents of one change come to one entry: the first is told.
            if entries.iter().all(|other| (&other.row, other.order) != (&entry.row, entry.order)) {
                entries.push(entry);
            }
        }
        if !entries.is_empty() {
            self.store(&mut ward, &entries).await?;
        }
        ward.deliveries = in_a_row;
        drop(ward);
        // A sink keeps no token with a batch of which it did not take all.
        if let Some(progress) = progress.filter(|_| !whole || !entries.is_empty()) {
            let nothing = Documents::new(documents.entity.as_str(), documents.origin, documents.generation);
            sink.deliver(&nothing, Some(progress)).await?;
        }
        Ok(refused)
    }

    /// The document that was not taken, and its entry.
    fn refused(
        &self,
        documents: &Documents,
        index: usize,
        failure: Failure,
        group: &Group,
    ) -> Option<(Refused, NewEntry)> {
        let number = documents.entries.get(index)?.change;
        let (member, change) = group.member(number)?;
        let limit = self.settings.quarantine.bounds.payload;
        let document = documents.view(index).map(|view| RejectedDocument {
            destination: view.destination.to_owned(),
            id: view.id.to_owned(),
            body: (view.operation == DocumentOperation::Upsert).then(|| {
                let (kept, whole) = beginning(view.body, limit);
                if whole { kept.to_owned() } else { format!("{kept}…") }
            }),
        });
        let old = document.as_ref().is_some_and(|document| {
            let batch = &*member.made.batch;
            let moved = moved_from(batch, &batch.changes[change as usize]);
            document.body.is_none() && moved.as_deref() == Some(document.id.as_str())
        });
        let refused = Refused { change: number, old };
        Some((refused, self.entry(&member.made, member.handed, (change, old), failure, document)))
    }

    /// The entry of a change: of its row, or of the one whose key it moved away from (`old`).
    fn entry(
        &self,
        made: &Transformed,
        handed: Lsn,
        (index, old): (u32, bool),
        failure: Failure,
        document: Option<RejectedDocument>,
    ) -> NewEntry {
        let batch = &*made.batch;
        let change = &batch.changes[index as usize];
        let order = LaneOrder::of(batch, change, made.generation, handed);
        let row = if old { change.old } else { change.new.or(change.old) };
        let stage = document.as_ref().map_or(QuarantineStage::Transform, |_| QuarantineStage::Delivery);
        let relation = batch.relation(change);
        let known = row.and_then(|row| document_id(relation, batch.row(row)));
        let text = |&at: &usize| {
            let text = row.and_then(|row| batch.row(row).text(at));
            text.and_then(|text| String::from_utf8(text.to_vec()).ok())
        };
        let key = known.as_ref().and_then(|_| relation.key.iter().map(text).collect());
        let payload = payload(
            batch,
            change,
            made.description.columns.as_deref(),
            self.settings.quarantine.bounds.payload,
        );
        NewEntry {
            row: known.unwrap_or_else(|| format!("?{}/{}", order.commit_lsn, order.sequence)),
            key,
            operation: change.operation.as_str(),
            origin: batch.origin.as_str(),
            order,
            committed: (batch.origin == Origin::Stream).then(|| batch.transaction(change).commit_time),
            stage,
            plugin: made.revision.to_string(),
            sink: self.settings.quarantine.sink.clone(),
            code: failure.code,
            reason: failure.message,
            payload: payload.json,
            cut: payload.cut,
            document,
        }
    }

    async fn store(&self, ward: &mut Ward, entries: &[NewEntry]) -> Result<(), Failure> {
        let settings = &self.settings;
        let limit = settings.quarantine.bounds.limit;
        let stored = self
            .with_state(ward, async |store, client| {
                let of = (settings.mapping.as_str(), &settings.entity);
                store.quarantine(client, settings.quarantine.term, of, entries, limit).await
            })
            .await?;
        let rows = match stored {
            Kept::Rows(rows) => rows,
            Kept::Overtaken => return Err(overtaken()),
            Kept::Full { others } => {
                let message = format!(
                    "the quarantine of mapping {} has room for {limit} rows (its setting `quarantine_limit`), \
                     {others} are in it and {} more have failed: mend the plugin, the rows or the sink, or drop entries \
                     (anabranch quarantine drop), or raise the setting. The first: {}",
                    settings.mapping,
                    entries.len(),
                    entries.first().map_or("", |entry| &entry.reason),
                );
                return Err(Failure::new(FailureClass::Poison, "quarantine-full", message));
            }
        };
        entries.iter().for_each(|entry| ward.open.opened(entry.row.as_bytes(), entry.order));
        self.quarantined.store(rows as u64, Ordering::Release);
        for entry in entries {
            settings.metrics.quarantined(entry.stage);
            self.tell_entry(&mut ward.told, entry);
        }
        let Told { summed, silent, .. } = &mut ward.told;
        if *silent > 0 && !std::mem::replace(summed, true) {
            let more = std::mem::take(silent);
            warn!(mapping = settings.mapping, more, "more rows were put into quarantine");
        }
        Ok(())
    }

    fn tell_entry(&self, told: &mut Told, entry: &NewEntry) {
        if told.since.elapsed() >= Duration::from_secs(1) {
            *told = Told { since: Instant::now(), lines: 0, summed: false, silent: told.silent };
        }
        if told.lines >= LINES_PER_SECOND {
            told.silent += 1;
            return;
        }
        told.lines += 1;
        warn!(
            mapping = self.settings.mapping,
            entity = %self.settings.entity,
            key = entry.row,
            operation = entry.operation,
            lsn = %entry.order.commit_lsn,
            plugin = entry.plugin,
            sink = entry.sink,
            code = entry.code,
            "a row was put into quarantine: {}",
            entry.reason,
        );
    }

    /// What was delivered closes the entries of its rows. Before it is told as accepted, so that none is left open that
    /// nothing would close any more.
    pub(super) async fn release(&self, first: &Work, group: &Group) {
        if self.ward.lock().await.open.is_empty() {
            return;
        }
        for Member { made, handed, purge, kept, .. } in &group.pieces {
            let release = async || {
                let mut ward = self.ward.lock().await;
                let Transformed { batch, selection, left, generation, .. } = made;
                let passed = ward.open.passed(batch, selection, left, kept, *generation, *handed);
                if !passed.is_empty() {
                    self.store_release(&mut ward, &passed).await?;
                }
                if *purge && self.purges() {
                    let LaneSettings { mapping, quarantine, .. } = &self.settings;
                    let led = self.with_state(&mut ward, async |store, client| {
                        store.release_before(client, quarantine.term, mapping, made.generation).await
                    });
                    if !led.await? {
                        return Err(overtaken());
                    }
                    self.reload(&mut ward).await?;
                }
                Ok(())
            };
            self.until_it_works(first, Stage::Deliver, release).await;
        }
    }

    async fn store_release(&self, ward: &mut Ward, passed: &[(Vec<u8>, LaneOrder)]) -> Result<(), Failure> {
        let named: Vec<(String, LaneOrder)> =
            passed.iter().map(|(row, order)| (String::from_utf8_lossy(row).into_owned(), *order)).collect();
        let LaneSettings { mapping, quarantine, .. } = &self.settings;
        let led = self.with_state(ward, async |store, client| {
            store.release(client, quarantine.term, mapping, &named).await
        });
        if !led.await? {
            return Err(overtaken());
        }
        passed.iter().for_each(|(row, _)| ward.open.closed(row));
        self.quarantined.store(ward.open.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Whether a purge empties the destination.
    fn purges(&self) -> bool {
        self.settings.sink.capabilities().purge && self.settings.shares.is_empty()
    }

    /// Reads again what is in quarantine, where somebody else has changed it. What cannot be read now is known too
    /// large, which costs questions and closes nothing that should stay.
    pub(super) async fn recount(&self) {
        let mut ward = self.ward.lock().await;
        let overfull = ward.open.len() > self.settings.quarantine.bounds.limit;
        if (self.recount.swap(false, Ordering::AcqRel) || overfull)
            && let Err(failure) = self.reload(&mut ward).await
        {
            self.recount.store(true, Ordering::Release);
            warn!(mapping = self.settings.mapping, %failure, "its quarantine could not be read");
        }
    }

    async fn reload(&self, ward: &mut Ward) -> Result<(), Failure> {
        let mapping = self.settings.mapping.as_str();
        let rows = self
            .with_state(ward, async |store, client| store.quarantined_rows(client, Some(mapping)).await)
            .await?;
        ward.open = rows.into_iter().map(|(_, row, order)| (row.into_bytes(), order)).collect();
        self.quarantined.store(ward.open.len() as u64, Ordering::Release);
        Ok(())
    }

    /// Asks the state schema, on a connection of this lane's own that is made when it is first needed.
    async fn with_state<T>(
        &self,
        ward: &mut Ward,
        ask: impl AsyncFnOnce(&Store, &Client) -> Result<T, StateError>,
    ) -> Result<T, Failure> {
        let settings = &self.settings.quarantine;
        let failed = |error: String| {
            let message =
                format!("the state schema does not take what goes into quarantine or out of it: {error}");
            Failure::new(FailureClass::Retry, "quarantine-state", message)
        };
        let store = Store::new(settings.installation.as_str());
        // Taken out: whoever gives up in the middle leaves no session behind whose state is not known.
        let held = ward.client.take().filter(|client| !client.is_closed());
        let asked = async {
            let client = match held {
                Some(client) => client,
                None => {
                    let connected = settings.connect.connect(Purpose::State).await;
                    connected.map_err(|error: postgres::Error| failed(error.to_string()))?
                }
            };
            let answer = ask(&store, &client).await.map_err(|error| failed(error.to_string()))?;
            Ok::<_, Failure>((answer, client))
        };
        match tokio::time::timeout(ANSWER_LIMIT, asked).await {
            Ok(Ok((answer, client))) => {
                ward.client = Some(client);
                Ok(answer)
            }
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(failed(format!("no answer within {ANSWER_LIMIT:?}"))),
        }
    }
}

fn taken<T>(cell: &Cell<Option<T>>) -> Option<T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The document id of the key that an update moved away from.
fn moved_from(batch: &ChangeBatch, change: &Change) -> Option<String> {
    let (old, new) = (change.old?, change.new?);
    let relation = batch.relation(change);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let known = push_document_id(relation, batch.row(old), &mut before);
    push_document_id(relation, batch.row(new), &mut after);
    (known && before != after).then(|| String::from_utf8(before).ok()).flatten()
}

fn overtaken() -> Failure {
    let message = "another host leads, and this one keeps nothing in quarantine and lets nothing go any more";
    Failure::new(FailureClass::Retry, "quarantine-leader", message)
}

fn sink_at_fault(how: &str, last: &str) -> Failure {
    let message = format!(
        "the sink does not take {how}: it is taken to be at fault and not the rows, and none of these is put into \
         quarantine (the setting `quarantine_in_a_row` of the mapping). The last: {last}"
    );
    Failure::new(FailureClass::Poison, "sink-refuses-in-a-row", message)
}

/// A batch that the sink refused as a whole, in smaller ones, until those that it does not take are alone.
async fn in_parts(sink: &Outlet, documents: &Documents) -> Result<Vec<Rejected>, Failure> {
    let mut bisection = Bisection::new(documents.len(), BisectionLimits::default());
    let mut rejected = Vec::new();
    while let Some(range) = bisection.next_range() {
        match sink.deliver(&documents.part(range.clone()), None).await {
            Ok(more) => {
                let moved = |one: Rejected| Rejected { index: one.index + range.start, ..one };
                rejected.extend(more.into_iter().map(moved));
                bisection.worked(range.end);
            }
            Err(failure) if failure.class == FailureClass::Poison => {
                match bisection.failed(range.end, false) {
                    Ok(Found::More) => {}
                    Ok(Found::Culprit(index)) => rejected.push(Rejected { index, failure }),
                    Err(TooMany { culprits }) => {
                        let how = format!("more than {culprits} documents of one batch");
                        return Err(sink_at_fault(&how, &failure.message));
                    }
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(rejected)
}

#[cfg(test)]
#[path = "quarantining_tests.rs"]
mod tests;
