//! Calls of a transform: from changes to outcomes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::warn;

use super::{
    Plugin,
    abi::v1::{Answers, Projection, ReplyLimits, ReplyProblem, Request, read_reply},
    fault::{FaultKind, PluginFault},
    grants::Capability,
    host::{
        call::Call,
        config::Settings,
        services::{Services, Writes},
    },
    limits::LimitError,
};
use crate::model::{
    Change, ChangeBatch, Description, Encoding, EntityName, Failure, FailureClass, Lsn, Operation, Origin,
    Outcome, Outcomes, Relation, Revision,
};
use crate::pipeline::{Bisection, BisectionLimits, Found, TooMany};

/// A plugin at work on one entity, with the settings of one mapping. Calls may run at the same time.
#[derive(Debug)]
pub struct Transform {
    plugin: Plugin,
    entity: Arc<str>,
    settings: Settings,
    services: Services,
    /// The columns for the relation that was seen last.
    projection: Mutex<Option<(Arc<Relation>, Arc<Projection>)>>,
    buffers: Mutex<Vec<Buffers>>,
    pace: Pace,
}

/// How many changes a call has where each of them may wait for a server: fewer once they took too long together, and more
/// again while they are quick.
#[derive(Debug)]
struct Pace(AtomicUsize);

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Pace {
    fn most(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// So many took longer than a call may; gives how many the next may have.
    fn too_slow(&self, changes: usize) -> usize {
        let fewer = (changes / 2).max(1);
        self.0.fetch_min(fewer, Ordering::Relaxed);
        fewer
    }

    /// So many were answered in that time.
    fn answered(&self, changes: usize, took: Duration, deadline: Duration) {
        let most = self.most();
        if most != usize::MAX && changes >= most && took < deadline / 4 {
            // Another call may have lowered it.
            let _ =
                self.0.compare_exchange(most, most.saturating_mul(2), Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// What is reused from call to call.
#[derive(Debug, Default)]
struct Buffers {
    request: Vec<u8>,
    id: Vec<u8>,
}

/// A request that was written: how far it reaches, and the host's own answers between.
struct Written {
    to: usize,
    sent: usize,
    host: Vec<(u32, Outcome)>,
}

/// Buffers above this size are not kept.
const KEEP: usize = 4 << 20;
/// How often a call is made that needs more memory than all may have together.
const ATTEMPTS: usize = 3;

impl Transform {
    pub(super) fn new(plugin: Plugin, entity: &EntityName, settings: BTreeMap<String, String>) -> Self {
        Self {
            plugin,
            entity: Arc::from(entity.to_string()),
            settings: Arc::new(settings),
            services: Services::default(),
            projection: Mutex::default(),
            buffers: Mutex::default(),
            pace: Pace::default(),
        }
    }

    /// The same, served by a runtime.
    #[must_use]
    pub fn with_services(self, services: Services) -> Self {
        Self { services, ..self }
    }

    /// The same work, served otherwise.
    #[must_use]
    pub fn served_by(&self, services: Services) -> Self {
        Self {
            plugin: self.plugin.clone(),
            entity: Arc::clone(&self.entity),
            settings: Arc::clone(&self.settings),
            services,
            projection: Mutex::default(),
            buffers: Mutex::default(),
            pace: Pace::default(),
        }
    }

    /// What it is served with.
    #[must_use]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The plugin.
    #[must_use]
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// The plugin's name, version and bytes.
    #[must_use]
    pub fn revision(&self) -> &Arc<Revision> {
        self.plugin.revision()
    }

    /// What the plugin says of itself.
    #[must_use]
    pub fn description(&self) -> &Arc<Description> {
        self.plugin.description()
    }

    /// Whether it may wait for a server in a call: how long that takes is no change's fault.
    fn waits(&self) -> bool {
        let waiting = |asked: &Capability| matches!(asked, Capability::Http | Capability::Query);
        self.plugin.asks().iter().any(waiting)
    }

    /// How many calls may run at once: one, where what a call writes is for the next to read.
    #[must_use]
    pub fn at_once(&self) -> usize {
        if self.keeps_state() { 1 } else { self.plugin.settings().instances.max(1) }
    }

    /// Whether what a call writes is for the next to read: its calls are made one after the other, in order.
    #[must_use]
    pub fn keeps_state(&self) -> bool {
        self.plugin.asks().contains(&Capability::State)
    }

    /// Answers the changes at `selection` (indexes into the batch's changes, ascending): one outcome for each,
    /// in order.
    ///
    /// What does not reach the guest is answered here: a delete that it does not want with
    /// [`Outcome::Delete`], a truncate with [`Outcome::Skip`], and a change with a value that cannot be read
    /// with [`Outcome::Failed`]. A key update is one change: removing the old id is the caller's business. Large
    /// selections and versions of the relation are split into several calls.
    ///
    /// A plugin that waits for others (`http`, `query`) and does not answer in time is called with fewer changes, until
    /// one alone takes too long.
    ///
    /// May be cancelled: the instance that was running is thrown away.
    ///
    /// # Errors
    /// A call failed as a whole; nothing of the selection is answered. See
    /// [`PluginFault::may_be_one_change`] and [`Transform::call_isolating`].
    pub async fn call(&self, batch: &ChangeBatch, selection: &[u32]) -> Result<Outcomes, PluginFault> {
        let mut outcomes = Outcomes::default();
        outcomes.outcomes.reserve(selection.len());
        self.call_range(batch, selection, 0, selection.len(), &mut outcomes).await?;
        Ok(outcomes)
    }

    /// The same, but a call that fails as a whole is split until the culprit is alone, which then is
    /// [`Outcome::Failed`].
    ///
    /// # Errors
    /// The fault is none of a single change: it may work later, or never for any, or so many changes are culprits
    /// that the plugin is. A passed deadline of a plugin that waits for others (`http`, `query`) is tried again with
    /// fewer changes, and blamed on none.
    pub async fn call_isolating(
        &self,
        batch: &ChangeBatch,
        selection: &[u32],
    ) -> Result<Outcomes, PluginFault> {
        let mut outcomes = Outcomes::default();
        outcomes.outcomes.reserve(selection.len());
        let mut bisection = Bisection::new(selection.len(), BisectionLimits::default());
        let mut buffers = self.take_buffers();
        while let Some(range) = bisection.next_range() {
            let kept = outcomes.extent();
            let called = self
                .call_once(batch, &selection[..range.end], range.start, &mut buffers, &mut outcomes)
                .await;
            match called {
                Ok(to) => bisection.worked(to),
                Err(fault) => {
                    outcomes.cut_back(kept);
                    // What waits for others may be done in time for fewer, but a change is never to blame for that.
                    self.slow_down(&fault);
                    let blames = fault.class() == FailureClass::Poison;
                    if !(blames || fault.is_slow() && fault.may_be_one_change()) {
                        return Err(fault);
                    }
                    match bisection.failed(fault.positions().end, fault.is_slow()) {
                        Ok(Found::More) => {}
                        _ if !blames => return Err(fault),
                        Ok(Found::Culprit(_)) => outcomes.outcomes.push(Outcome::Failed(fault.to_failure())),
                        Err(TooMany { culprits }) => return Err(fault.of_the_plugin(culprits)),
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        self.keep_buffers(buffers);
        Ok(outcomes)
    }

    fn take_buffers(&self) -> Buffers {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn keep_buffers(&self, buffers: Buffers) {
        if buffers.request.capacity() <= KEEP {
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        }
    }

    async fn call_range(
        &self,
        batch: &ChangeBatch,
        selection: &[u32],
        mut from: usize,
        to: usize,
        outcomes: &mut Outcomes,
    ) -> Result<(), PluginFault> {
        let mut buffers = self.take_buffers();
        while from < to {
            match self.call_once(batch, &selection[..to], from, &mut buffers, outcomes).await {
                Ok(next) => from = next,
                // Of one that was too slow nothing was read.
                Err(fault) if self.slow_down(&fault) => {}
                Err(fault) => return Err(fault),
            }
            if from < to {
                // A large batch never waits by itself, and whoever else is ready would wait for the whole of it.
                tokio::task::yield_now().await;
            }
        }
        self.keep_buffers(buffers);
        Ok(())
    }

    /// Whether a call failed since its changes waited for others, one after the other, longer than a call may take: the next
    /// one has fewer.
    fn slow_down(&self, fault: &PluginFault) -> bool {
        let changes = fault.positions().len();
        if changes < 2 || !fault.is_slow() || !self.waits() {
            return false;
        }
        let fewer = self.pace.too_slow(changes);
        warn!(
            plugin = %self.revision(),
            entity = &*self.entity,
            changes,
            "the changes of one call did not have the answers of others within {:?} (`[plugins] call_deadline`): it goes on with \
             {fewer} in a call. Let the plugin ask once for all changes of a batch (`prepare`), or raise the deadline",
            self.plugin.settings().call_deadline,
        );
        true
    }

    /// One call of the guest, from a position on; gives the position after it.
    async fn call_once(
        &self,
        batch: &ChangeBatch,
        selection: &[u32],
        from: usize,
        buffers: &mut Buffers,
        outcomes: &mut Outcomes,
    ) -> Result<usize, PluginFault> {
        let position_of = |at: usize| batch.transaction(&batch.changes[selection[at] as usize]).commit_lsn;
        let fault = |to: usize, kind: FaultKind| {
            let lsn = (position_of(from), position_of(to - 1));
            let revision = Arc::clone(self.revision());
            PluginFault::new(revision, Arc::clone(&self.entity), lsn, (from, to), kind).waiting(self.waits())
        };
        let written = self.write(batch, selection, from, buffers).map_err(|kind| fault(from + 1, kind))?;
        if written.sent == 0 {
            outcomes.outcomes.extend(written.host.into_iter().map(|(_, outcome)| outcome));
            return Ok(written.to);
        }
        let to = written.to;
        let call = || self.call_of(batch, &selection[from..to]);
        let began = Instant::now();
        let exchanged = self.exchange(&buffers.request, position_of(from), call).await;
        let (reply, writes) = exchanged.map_err(|kind| fault(to, kind))?;
        let settings = self.plugin.settings();
        self.pace.answered(written.sent, began.elapsed(), settings.call_deadline);
        let limits = ReplyLimits { bytes: settings.max_output, documents: settings.max_documents };
        let mut answers = Answers::new(outcomes, limits, written.sent, written.host);
        read_reply(self.encoding(), reply, &mut answers)
            .map_err(|problem| fault(to, self.reply_fault(problem, written.sent)))?;
        let kept = self.plugin.pool().granted().keep(&self.services, writes).await;
        kept.map_err(|failure| fault(to, FaultKind::State(failure)))?;
        Ok(to)
    }

    fn encoding(&self) -> Encoding {
        self.plugin.description().encoding
    }

    fn reply_fault(&self, problem: ReplyProblem, changes: usize) -> FaultKind {
        let encoding = match self.encoding() {
            Encoding::Msgpack => "msgpack",
            Encoding::Json => "json",
        };
        match problem {
            ReplyProblem::Malformed { at, problem } => FaultKind::BadReply { at, problem, encoding },
            ReplyProblem::Documents { limit } => FaultKind::TooManyDocuments { limit },
            ReplyProblem::Count { outcomes } => FaultKind::OutcomeCount { changes, outcomes },
            ReplyProblem::TooLarge { bytes } => {
                FaultKind::OutputTooLarge { bytes, limit: self.plugin.settings().max_output }
            }
        }
    }

    /// What host functions know of a call about these changes.
    fn call_of(&self, batch: &ChangeBatch, selection: &[u32]) -> Call {
        let mut sees = Vec::new();
        // A backfill's rows are of an earlier snapshot, which sees no more than a later one.
        if batch.origin == Origin::Stream && self.plugin.asks().contains(&Capability::Query) {
            sees.extend(selection.iter().map(|&at| batch.transaction(&batch.changes[at as usize]).xid));
            sees.dedup();
        }
        Call { services: self.services.clone(), sees, ..Call::default() }
    }

    /// One call, and what it wrote. One that finds the memory of all used up is made again when there is as much as it came
    /// to: it held its own until then, and could not wait with it.
    async fn exchange(
        &self,
        request: &[u8],
        lsn: Lsn,
        call: impl Fn() -> Call,
    ) -> Result<(Vec<u8>, Writes), FaultKind> {
        let deadline = self.plugin.settings().call_deadline;
        let (mut need, mut left) = (0, ATTEMPTS);
        let (mut lease, reply) = loop {
            let mut lease = self.plugin.pool().lease(&self.settings, need).await?;
            left -= 1;
            match lease.guest.transform(&self.entity, lsn, call(), request, deadline).await {
                Err(FaultKind::Memory(LimitError::Total { own, .. })) if left > 0 => need = own,
                reply => break (lease, reply?),
            }
        };
        let writes = lease.guest.take_writes();
        lease.give_back();
        reply.map(|reply| (reply, writes)).map_err(FaultKind::Guest)
    }

    fn projection(&self, relation: &Arc<Relation>) -> Result<Arc<Projection>, FaultKind> {
        let mut known = self.projection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((same, projection)) = &*known
            && Arc::ptr_eq(same, relation)
        {
            return Ok(Arc::clone(projection));
        }
        let description = self.plugin.description();
        let projection = Projection::new(relation, description.columns.as_deref(), &description.raw)
            .map_err(|column| {
                let names: Vec<_> = relation.columns.iter().map(|column| column.name.as_str()).collect();
                FaultKind::MissingColumn { column, table: names.join(", ") }
            })?;
        let projection = Arc::new(projection);
        *known = Some((Arc::clone(relation), Arc::clone(&projection)));
        Ok(projection)
    }

    /// Writes changes from a position on: as many as one call takes.
    fn write(
        &self,
        batch: &ChangeBatch,
        selection: &[u32],
        from: usize,
        buffers: &mut Buffers,
    ) -> Result<Written, FaultKind> {
        let settings = self.plugin.settings();
        let change_at = |at: usize| &batch.changes[selection[at] as usize];
        let index = change_at(from).relation;
        let relation = batch.relation(change_at(from));
        let projection = self.projection(relation)?;
        let Buffers { request, id } = buffers;
        let mut request = Request::begin(self.encoding(), relation, &projection, batch.origin, request, id);
        let mut host = Vec::new();
        let mut at = from;
        let most = settings.batch_changes.min(self.pace.most());
        while at < selection.len() && change_at(at).relation == index {
            let sent = request.count();
            if sent as usize >= most || (sent > 0 && request.len() >= settings.batch_bytes) {
                break;
            }
            let change = change_at(at);
            if let Some(outcome) = self.answered_here(change) {
                host.push((sent, outcome));
            } else if let Err(unsendable) = request.push(batch, change, &projection) {
                let message =
                    format!("column `{}` of {}: {}", unsendable.column, self.entity, unsendable.error);
                let failure = Failure::new(FailureClass::Poison, "undecodable-value", message);
                host.push((sent, Outcome::Failed(failure)));
            }
            at += 1;
        }
        let sent = request.count() as usize;
        request.finish();
        Ok(Written { to: at, sent, host })
    }

    fn answered_here(&self, change: &Change) -> Option<Outcome> {
        match change.operation {
            Operation::Truncate => Some(Outcome::Skip),
            Operation::Delete if !self.plugin.description().wants_deletes => Some(Outcome::Delete),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_fewer_changes_once_they_were_slow_and_more_while_they_are_quick() {
        let (pace, deadline) = (Pace::default(), Duration::from_secs(8));
        pace.answered(1000, Duration::ZERO, deadline);
        assert_eq!(pace.most(), usize::MAX, "as many as there are");
        assert_eq!((pace.too_slow(1000), pace.too_slow(500), pace.most()), (500, 250, 250));
        assert_eq!((pace.too_slow(1000), pace.most()), (500, 250), "of another call, from before");
        pace.answered(250, Duration::from_secs(2), deadline);
        pace.answered(100, Duration::ZERO, deadline);
        assert_eq!(pace.most(), 250, "not quick enough, and fewer than it may have");
        pace.answered(250, Duration::from_secs(1), deadline);
        assert_eq!(pace.most(), 500);
        assert_eq!((pace.too_slow(2), pace.too_slow(1), pace.most()), (1, 1, 1));
    }
}
