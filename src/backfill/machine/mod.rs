//! The machine: all runs of an installation, merged into its one stream.

mod requests;
mod views;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers of tests")]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::model::{ChangeBatch, Lsn, Operation, Relation, RowView, Snapshot, Xid, push_document_id};

use super::{
    Attempt, ChunkRead, Command, Limbo, Marker, MarkerKind, ReadFailure, RunSpec, Settings, Timestamp, Touch,
    pace::Pace,
    run::Run,
    schedule::{after, next},
};

/// How soon a blocked run asks whether it may go on; doubles up to the probe interval.
const BLOCKED_PROBE: Duration = Duration::from_millis(20);

/// The backfill of an installation. Events in, commands out; see the [module](super).
///
/// `P` is what a chunk's rows are kept in; the machine carries it from [`ChunkRead`] to its emission.
#[derive(Debug)]
pub struct Machine<P> {
    settings: Settings,
    incarnation: u64,
    serial: u64,
    turns: u64,
    limbo: Limbo,
    /// What the slot's creation left out; see [`Machine::new`].
    baseline: Option<Arc<Snapshot>>,
    runs: BTreeMap<u32, Run<P>>,
    /// Scoped runs behind the run of their table, in the order in which they were asked for.
    waiting: BTreeMap<u32, VecDeque<RunSpec>>,
    pace: Pace,
    now: Timestamp,
    yielding: bool,
    last_probe: Timestamp,
    blocked_pause: Duration,
    /// The transaction whose touches come next.
    current: (Xid, Lsn),
    scratch: Vec<u8>,
    #[cfg(test)]
    pub(super) sabotage: Option<Sabotage>,
}

/// Rules that the simulation breaks to show that it would notice.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    PruneByNewest,
    KeepWindow,
    ReadUngranted,
    IgnorePause,
    IgnoreRate,
    ScopedAtOnce,
    WholeKeepsScope,
    MappingsNotJoined,
    ForgetWaiting,
    ForgetLimboAtTurn,
}

impl<P> Machine<P> {
    /// A machine for one term.
    ///
    /// `incarnation` must be another one for each machine of an installation. `baseline` is the snapshot
    /// that was exported when the slot was created (`pg_current_snapshot()` of a transaction that imported
    /// it), stored with the slot and given again at every start: what it sees precedes the slot and is
    /// never streamed, so a chunk must see it too. A slot without one gets [`super::everything_before`]
    /// a transaction id that was assigned after it was made.
    #[must_use]
    pub fn new(settings: Settings, incarnation: u64, baseline: Option<Arc<Snapshot>>) -> Self {
        Self {
            settings,
            incarnation,
            serial: 0,
            turns: 0,
            limbo: Limbo::default(),
            baseline,
            runs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            pace: Pace::default(),
            now: 0,
            yielding: false,
            last_probe: Timestamp::MIN,
            blocked_pause: BLOCKED_PROBE,
            current: (0, Lsn::ZERO),
            scratch: Vec::new(),
            #[cfg(test)]
            sabotage: None,
        }
    }

    /// What was streamed and is not known to be visible.
    #[must_use]
    pub fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    // --- the stream ---------------------------------------------------------------------------------

    /// The stream has shown transactions, all of them, in order; also those that some or all lanes skip.
    /// Pages of one huge transaction come one after the other. A transaction without changes (a marker's)
    /// only moves the position.
    pub fn apply(&mut self, batch: &ChangeBatch) {
        let mut last = None;
        for change in &batch.changes {
            if last != Some(change.transaction) {
                last = Some(change.transaction);
                let transaction = batch.transaction(change);
                self.limbo.committed(transaction.xid, transaction.commit_lsn, transaction.end_lsn);
            }
        }
        if let Some(transaction) = batch.transactions.last() {
            self.limbo.passed(transaction.end_lsn);
        }
        if self.runs.is_empty() {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        // The table and transaction whose changes matter to nobody: most of them.
        let mut idle = None;
        for change in &batch.changes {
            if idle == Some((change.relation, change.transaction)) {
                continue;
            }
            let (relation, transaction) = (batch.relation(change), batch.transaction(change));
            let run = self.runs.get_mut(&relation.oid).filter(|run| !run.window.is_past(transaction.xid));
            let Some(run) = run else {
                idle = Some((change.relation, change.transaction));
                continue;
            };
            let mut touch = |touch: Touch<'_>| run.touch(transaction.xid, transaction.end_lsn, touch);
            if change.operation == Operation::Truncate {
                touch(Touch::All);
                continue;
            }
            let old = change.old.map(|span| batch.row(span));
            let new = change.new.map(|span| batch.row(span));
            let before = key_of(relation, old, &mut scratch).map(|key| touch(Touch::Key(key))).is_some();
            let after = key_of(relation, new, &mut scratch).map(|key| touch(Touch::Key(key))).is_some();
            if !before && !after {
                touch(Touch::Unknown);
            }
        }
        self.scratch = scratch;
    }

    /// The stream has shown this commit; its touches follow. For callers without a [`ChangeBatch`].
    pub fn committed(&mut self, xid: Xid, commit_lsn: Lsn, end_lsn: Lsn) {
        self.limbo.committed(xid, commit_lsn, end_lsn);
        self.current = (xid, end_lsn);
    }

    /// The stream has shown every commit before this position: a keepalive's with nothing in hand, or the
    /// end of a message's transaction.
    pub fn passed(&mut self, position: Lsn) {
        self.limbo.passed(position);
    }

    /// What the slot's confirmed position must not pass, whatever the ledger says; keepalive positions
    /// neither. See [`Limbo::confirmable`].
    #[must_use]
    pub fn confirmable(&self) -> Lsn {
        self.limbo.confirmable()
    }

    /// The transaction of the last [`Machine::committed`] touched a table.
    pub fn touched(&mut self, table: u32, touch: Touch<'_>) {
        let (xid, end_lsn) = self.current;
        if let Some(run) = self.runs.get_mut(&table) {
            run.touch(xid, end_lsn, touch);
        }
    }

    /// The stream has shown a relation of this table that differs from the one it showed before.
    pub fn relation_changed(&mut self, table: u32, key_changed: bool) -> Vec<Command<P>> {
        let mut out = Vec::new();
        if key_changed {
            self.key_changed(table, &mut out);
        } else if let Some(run) = self.runs.get_mut(&table) {
            run.relation_changed();
        }
        self.proceed(out)
    }

    /// The stream has shown a marker of this installation, after all transactions that were applied.
    pub fn marker(&mut self, marker: &Marker) -> Vec<Command<P>> {
        if let Some(run) = self.run_of(marker.attempt) {
            match marker.kind {
                MarkerKind::Low => run.low(marker.attempt),
                MarkerKind::High => run.high(marker.attempt),
            }
        }
        self.proceed(Vec::new())
    }

    /// While true, chunks wait behind live transactions. A chunk is judged where it is emitted, so that
    /// waiting costs nothing but time.
    pub fn yield_to_live(&mut self, yielding: bool) -> Vec<Command<P>> {
        self.yielding = yielding;
        self.proceed(Vec::new())
    }

    // --- reading ------------------------------------------------------------------------------------

    /// A page was read. It may come before or after its high watermark. Readings that were abandoned are
    /// ignored.
    pub fn chunk_read(&mut self, read: ChunkRead<P>) -> Vec<Command<P>> {
        let mut out = Vec::new();
        self.limbo.observe(&read.snapshot);
        if let Some(run) = self.run_of(read.attempt) {
            let table = run.spec.table;
            if let Some((rows, began)) = run.arrived(read, &mut out) {
                self.pace.read(table, rows, began);
            }
        }
        self.proceed(out)
    }

    /// A page could not be read, or its high marker may not have been committed.
    pub fn read_failed(&mut self, attempt: Attempt, failure: ReadFailure, now: Timestamp) -> Vec<Command<P>> {
        self.now = self.now.max(now);
        let (mut out, turn) = (Vec::new(), self.next_turn());
        let now = self.now;
        if let Some(run) = self.run_of(attempt)
            && run.read_failed(attempt, failure.timed_out)
        {
            run.fail(now, turn, failure.message, &mut out);
        }
        self.proceed(out)
    }

    /// A snapshot that was taken now or some time ago, on the same server.
    pub fn probe(&mut self, snapshot: &Arc<Snapshot>) -> Vec<Command<P>> {
        self.limbo.observe(snapshot);
        self.proceed(Vec::new())
    }

    // --- delivery -----------------------------------------------------------------------------------

    /// A chunk is durable in all targets of its run.
    pub fn durable(&mut self, attempt: Attempt) -> Vec<Command<P>> {
        let mut out = Vec::new();
        if let Some(run) = self.run_of(attempt) {
            let table = run.spec.table;
            if run.durable(attempt, &mut out) {
                self.end(table);
            }
        }
        self.proceed(out)
    }

    /// A target of the table's run cannot deliver: the run waits like after a failed reading, and lets
    /// other tables read. What is in flight stays, and the pause ends when a chunk of it is durable. To be
    /// told once a failed delivery.
    pub fn delivery_failed(&mut self, table: u32, error: String, now: Timestamp) -> Vec<Command<P>> {
        self.now = self.now.max(now);
        let (mut out, turn) = (Vec::new(), self.next_turn());
        if let Some(run) = self.runs.get_mut(&table) {
            run.fail(self.now, turn, error, &mut out);
            run.undelivered = true;
            run.stats.retries += 1;
        }
        self.proceed(out)
    }

    /// A target has lost what was emitted and not yet durable (its lane was torn down): the table's run
    /// reads on from its saved cursor.
    pub fn rewind(&mut self, table: u32) -> Vec<Command<P>> {
        if let Some(run) = self.runs.get_mut(&table) {
            run.rewind();
        }
        self.proceed(Vec::new())
    }

    // --- time ---------------------------------------------------------------------------------------

    /// Time has passed.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Command<P>> {
        self.now = self.now.max(now);
        self.proceed(Vec::new())
    }

    /// When [`Machine::tick`] has something to do next, if nothing else happens.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let waiting = self.runs.values().filter(|run| !run.active && !self.pace.paused(run.spec.table));
        let begins = waiting.map(|run| run.spec.not_before).filter(|at| *at > self.now);
        let probe = self.probe_pause().map(|pause| after(self.last_probe, pause).max(self.now));
        begins.chain(probe).chain(self.next_free()).min()
    }

    /// When a rate lets a run read on that would read now.
    #[must_use]
    pub fn next_free(&self) -> Option<Timestamp> {
        let share = self.share();
        let reads = |run: &&Run<P>| run.active && !self.pace.paused(run.spec.table) && run.wants_page(share);
        let free = self.runs.values().filter(reads).map(|run| self.pace.free_at(run.spec.table));
        free.filter(|at| *at > self.now).min()
    }

    // --- inside -------------------------------------------------------------------------------------

    fn run_of(&mut self, attempt: Attempt) -> Option<&mut Run<P>> {
        self.runs.values_mut().find(|run| run.has(attempt))
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// What follows from an event: chunks to emit, runs to make active, pages to read, a probe to take.
    fn proceed(&mut self, mut out: Vec<Command<P>>) -> Vec<Command<P>> {
        for run in self.runs.values_mut() {
            if !self.yielding {
                run.settle(&mut out);
            }
            #[cfg(test)]
            if self.sabotage == Some(Sabotage::PruneByNewest)
                && let Some(latest) = self.limbo.latest()
            {
                run.window.advance(latest);
                continue;
            }
            run.advance(self.limbo.latest());
        }
        self.step_aside();
        self.activate();
        self.read(&mut out);
        self.probe_if_due(&mut out);
        out
    }

    fn probe_if_due(&mut self, out: &mut Vec<Command<P>>) {
        let blocked = self.is_blocked();
        if let Some(pause) = self.probe_pause()
            && after(self.last_probe, pause) <= self.now
        {
            self.last_probe = self.now;
            self.blocked_pause = (self.blocked_pause * 2).min(self.settings.probe_interval);
            out.push(Command::Probe);
        }
        if !blocked {
            self.blocked_pause = BLOCKED_PROBE;
        }
    }

    /// A run that must wait for visibility, or for somebody to resume it, does not stand in the way of others.
    fn step_aside(&mut self) {
        let latest = self.limbo.latest().map(AsRef::as_ref);
        for run in self.runs.values_mut().filter(|run| run.active) {
            let waits = self.pace.paused(run.spec.table) || !run.window.may_read(latest);
            if run.in_flight() == 0 && waits {
                self.turns += 1;
                (run.active, run.turn) = (false, self.turns);
            }
        }
    }

    fn activate(&mut self) {
        let mut active = self.runs.values().filter(|run| run.active).count();
        while active < self.settings.max_concurrent.max(1) {
            let latest = self.limbo.latest().map(AsRef::as_ref);
            let standings = self.runs.iter().map(|(table, run)| (*table, run.standing()));
            let ready = |table| {
                !self.pace.paused(table)
                    && self.runs.get(&table).is_some_and(|run| run.window.may_read(latest))
            };
            let Some(table) = next(standings, self.now, ready) else { return };
            let Some(run) = self.runs.get_mut(&table) else { return };
            run.active = true;
            active += 1;
        }
    }

    /// The bytes that each active run may hold.
    fn share(&self) -> usize {
        let active = self.runs.values().filter(|run| run.active).count();
        self.settings.prefetch_bytes / active.max(1)
    }

    fn read(&mut self, out: &mut Vec<Command<P>>) {
        let share = self.share();
        let latest = self.limbo.latest();
        for run in self.runs.values_mut().filter(|run| run.active && run.wants_page(share)) {
            let table = run.spec.table;
            let held = self.pace.paused(table) || self.pace.free_at(table) > self.now;
            #[cfg(test)]
            let held = match self.sabotage {
                Some(Sabotage::IgnorePause) => self.pace.free_at(table) > self.now,
                Some(Sabotage::IgnoreRate) => self.pace.paused(table),
                _ => held,
            };
            if held || !run.window.may_read(latest.map(AsRef::as_ref)) {
                continue;
            }
            #[cfg(test)]
            if self.sabotage == Some(Sabotage::ReadUngranted) {
                run.spec.started = true;
            }
            if !run.spec.started {
                if !std::mem::replace(&mut run.asked, true) {
                    out.push(Command::Begin { run: Arc::clone(&run.spec.run) });
                }
                continue;
            }
            self.serial += 1;
            let attempt = Attempt { incarnation: self.incarnation, serial: self.serial };
            let (bytes, most) = (self.settings.page.bytes, self.pace.most(table));
            out.push(Command::Read(run.begin_read(attempt, latest.cloned(), bytes, most, self.now)));
            run.advance(latest);
        }
    }

    /// Whether a run waits for visibility, and for nothing else.
    fn is_blocked(&self) -> bool {
        let latest = self.limbo.latest().map(AsRef::as_ref);
        let due = |run: &&Run<P>| {
            (run.active || run.spec.not_before <= self.now) && !self.pace.paused(run.spec.table)
        };
        self.runs.values().filter(due).any(|run| !run.window.may_read(latest))
    }

    /// How long after the last probe the next one is wanted.
    fn probe_pause(&self) -> Option<Duration> {
        match self.is_blocked() {
            true => Some(self.blocked_pause),
            false => (!self.limbo.is_empty()).then_some(self.settings.probe_interval),
        }
    }
}

/// The document id of a tuple, in `scratch`.
fn key_of<'s>(relation: &Relation, row: Option<RowView<'_>>, scratch: &'s mut Vec<u8>) -> Option<&'s [u8]> {
    scratch.clear();
    push_document_id(relation, row?, scratch).then_some(scratch.as_slice())
}
