//! The one ordered stream of a term: reads it, hands changes to lanes, merges backfills in, and tells the
//! server how far it may forget.
//!
//! The pump is a loop over events; every decision is made by the machines of `pgoutput`, `backfill` and
//! `pipeline`, and carried out here. It never waits for a sink, a plugin or the state schema: lanes, readers
//! and the scribe are tasks of their own, with what they hold bounded in bytes. It confirms a position only
//! when the ledger and the limbo both allow it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    backfill::{Attempt, Command, Machine},
    model::{ChangeBatch, Lsn},
    pipeline::{LaneId, Ledger, Subscriptions},
    postgres::ReplicationStream,
    state::{MappingStatus, StoredRequest},
};

use super::{
    branch::Branch,
    error::TermError,
    intake::Connection,
    lane::LaneEvent,
    lookout::Lookout,
    plan::ReloadContext,
    readers::ReadEvent,
    relations::Relations,
    reload::{PluginSet, Reloads},
    requests::Requests,
    scribe::{Note, Scribe, ScribeEvent},
    shutdown::now_micros,
    spool::Spooling,
    survey::Observer,
    term::Lane,
};

/// How often the pump looks at what has no event of its own.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// How often positions are saved in the state schema.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// How soon a visibility probe may follow another.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How long chunks wait behind live changes that do not end; then those that are ready have their turn.
const LONGEST_YIELD: Duration = Duration::from_millis(200);

/// Bounds of the pump.
#[derive(Clone, Debug)]
pub(super) struct PumpSettings {
    pub(super) installation: String,
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) queue_bytes: usize,
    pub(super) silence_limit: Duration,
    pub(super) heartbeat_interval: Duration,
    pub(super) drain_limit: Duration,
}

/// Why a pump stopped in good order.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The process is to end; everything in hand was delivered and confirmed, or given up at the limit.
    Shutdown,
    /// Plugins changed in a way that needs a new term.
    Reconfigure(Arc<PluginSet>),
    /// A new term is to look at everything again: the installation is suspended, a table became usable, or is
    /// another one than before.
    Again,
    /// Lanes that fell behind can work again: the stream is to be read again from the ledger's position.
    Restream(Vec<LaneId>),
}

/// Everything of a term that outlives one connection of the stream.
pub(super) struct Pump {
    pub(super) settings: PumpSettings,
    pub(super) context: ReloadContext,
    pub(super) ledger: Ledger,
    pub(super) machine: Machine<Arc<ChangeBatch>>,
    pub(super) branch: Branch,
    pub(super) subscriptions: Subscriptions,
    pub(super) lanes: BTreeMap<LaneId, Lane>,
    pub(super) relations: Relations,
    pub(super) scribe: Scribe,
    pub(super) lane_events: mpsc::UnboundedReceiver<LaneEvent>,
    pub(super) probe: Probe,
    /// Since when chunks wait for live changes.
    pub(super) yielding: Option<Instant>,
    /// The position that is saved, and so may be confirmed.
    pub(super) secured: Lsn,
    /// How many barriers the scribe was given.
    pub(super) barriers: u64,
    pub(super) saving: Saving,
    pub(super) wrote: Instant,
    pub(super) requests: Requests,
    /// Requests that were taken and wait for a mapping that does not work now.
    pub(super) parked: Vec<StoredRequest>,
    pub(super) lookout: Lookout,
    /// Readings that found another key, and their tables: the stream may still show rows by the old one until it
    /// shows the reading's high watermark.
    pub(super) rekeying: BTreeMap<Attempt, u32>,
    pub(super) observer: Observer,
}

/// The visibility probe that is under way, and when the last one began.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) pending: bool,
    pub(super) last: Instant,
}

/// What was last given to the scribe to save.
#[derive(Debug)]
pub(super) struct Saving {
    pub(super) last: Instant,
    /// Whether a lane has accepted something since.
    pub(super) worked: bool,
    pub(super) noted: Lsn,
}

impl Pump {
    /// Pumps one connection until it is told to stop or something breaks.
    ///
    /// # Errors
    /// The connection, the leader's state or the protocol broke: the term ends.
    pub(super) async fn run(
        &mut self,
        stream: ReplicationStream,
        spooling: Option<Spooling>,
        reloads: &mut Reloads,
        shutdown: &CancellationToken,
    ) -> Result<Stopped, TermError> {
        let mut connection = Connection::new(stream, spooling);
        self.observer.flights.clear();
        // Lanes may follow it that did not, and others for the first time.
        self.begin_places();
        let _pumping = self.observer.health.pumping();
        let stopped = self.pump_and_drain(&mut connection, reloads, shutdown).await;
        if let Some(spooling) = connection.spooling.take() {
            spooling.end().await;
        }
        let stopped = stopped?;
        if let Err(error) = connection.stream.close(Duration::from_secs(2)).await {
            debug!(%error, "the stream did not end in good order");
        }
        Ok(stopped)
    }

    async fn pump_and_drain(
        &mut self,
        connection: &mut Connection,
        reloads: &mut Reloads,
        shutdown: &CancellationToken,
    ) -> Result<Stopped, TermError> {
        let stopped = self.pump(connection, reloads, shutdown).await?;
        if !matches!(stopped, Stopped::Restream(_)) {
            self.drain(connection).await?;
        }
        Ok(stopped)
    }

    async fn pump(
        &mut self,
        connection: &mut Connection,
        reloads: &mut Reloads,
        shutdown: &CancellationToken,
    ) -> Result<Stopped, TermError> {
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let may_read = self.may_read();
            if !may_read || connection.replays() {
                connection.reading_since = Instant::now();
            }
            let free = self.backfills_free_in();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(Stopped::Shutdown),
                Some(event) = self.lane_events.recv() => self.on_lane_event(event),
                Some(event) = self.branch.reads.recv() => self.on_read(event),
                Some(event) = self.scribe.events.recv() => self.on_scribe_event(event)?,
                Some(asked) = self.requests.asked.recv() => {
                    if let Some(stopped) = self.on_asked(asked) {
                        return Ok(stopped);
                    }
                }
                Some(news) = self.lookout.news.recv() => {
                    info!("{}: a new term takes it up", news?);
                    return Ok(Stopped::Again);
                }
                Some(plugins) = reloads.next() => {
                    if let Some(stopped) = self.on_reload(plugins, reloads)? {
                        return Ok(stopped);
                    }
                }
                // Before the stream, which may never pause.
                _ = ticker.tick() => {
                    self.on_tick(connection)?;
                    self.observe(connection);
                }
                () = tokio::time::sleep(free.unwrap_or_default()), if free.is_some() => {
                    let commands = self.machine.tick(now_micros());
                    self.carry_out(commands);
                }
                () = std::future::ready(()), if may_read && connection.replays() => {
                    self.replay(connection).await?;
                    // What came behind it, and has waited in the buffer.
                    self.take_buffered(connection).await?;
                }
                filled = connection.stream.fill(), if may_read && !connection.replays() => {
                    filled?;
                    self.take_buffered(connection).await?;
                }
            }
            if may_read != self.may_read() && self.may_read() {
                // What had to wait in the buffer for room in a lane.
                self.take_buffered(connection).await?;
            }
            self.flush_when_idle(connection);
            self.put_live_first();
            self.branch.account(&self.machine);
            self.confirm(connection);
            if let Some(lanes) = self.recovered_lanes(connection) {
                return Ok(Stopped::Restream(lanes));
            }
        }
    }

    // --- which goes first -----------------------------------------------------------------------------

    /// Chunks wait while the lanes have enough in hand: a live change then waits behind a chunk or two, never
    /// behind everything that was read ahead. Where a chunk is emitted is where it is judged, so that waiting
    /// costs nothing but time.
    fn put_live_first(&mut self) {
        let has_enough =
            |(&id, lane): (&LaneId, &Lane)| lane.works() && self.ledger.outstanding(id) >= lane.enough();
        let busy = self.lanes.iter().any(has_enough);
        let waited = self.yielding.is_some_and(|since| since.elapsed() > LONGEST_YIELD);
        if waited || (self.yielding.is_some() && !busy) {
            self.yielding = None;
            let commands = self.machine.yield_to_live(false);
            self.carry_out(commands);
        }
        if busy && self.yielding.is_none() {
            self.yielding = Some(Instant::now());
            let commands = self.machine.yield_to_live(true);
            self.carry_out(commands);
        }
    }

    /// Whether every lane that follows the stream has room. A lane that fails and has none is let go: it
    /// must not hold up the others, and is served again from the stream when it recovers.
    pub(super) fn may_read(&mut self) -> bool {
        let limit = self.settings.queue_bytes;
        let mut room = true;
        let mut rewound = Vec::new();
        for (&id, lane) in &mut self.lanes {
            let Some(handle) = &lane.handle else { continue };
            if handle.queued_bytes() < limit || !self.ledger.follows(id) {
                continue;
            }
            if handle.failing() {
                warn!(
                    mapping = lane.planned.stored.name,
                    position = %self.ledger.position(id),
                    queued_bytes = handle.queued_bytes(),
                    "fell behind while failing: its queue is let go, the slot keeps what it has not accepted",
                );
                handle.let_go();
                self.ledger.freeze(id);
                lane.purging = None;
                lane.places.let_go();
                lane.leave_run(&mut self.machine, &self.scribe);
                rewound.push(lane.planned.table.oid);
            } else {
                room = false;
            }
        }
        for table in rewound {
            let commands = self.machine.rewind(table);
            self.carry_out(commands);
        }
        room
    }

    /// Lanes that were let go and work again.
    fn recovered_lanes(&mut self, connection: &Connection) -> Option<Vec<LaneId>> {
        if connection.assembler.in_transaction() {
            return None;
        }
        let back = |(&id, lane): (&LaneId, &Lane)| {
            let handle = lane.handle.as_ref()?;
            (!self.ledger.follows(id) && !handle.failing()).then_some(id)
        };
        let lanes: Vec<LaneId> = self.lanes.iter().filter_map(back).collect();
        (!lanes.is_empty()).then_some(lanes)
    }

    // --- what lanes, readers, the scribe and the clock say ---------------------------------------------

    pub(super) fn on_lane_event(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Accepted { lane, work, chunk, timing } => {
                self.ledger.accepted(lane, work);
                self.saving.worked = true;
                if let Some(state) = self.lanes.get_mut(&lane) {
                    state.documents += timing.documents;
                }
                self.purged(lane, work);
                self.placed(lane, work);
                if let Some(attempt) = chunk
                    && self.branch.accepted(lane, attempt, timing)
                {
                    let commands = self.machine.durable(attempt);
                    self.carry_out(commands);
                }
            }
            LaneEvent::Begun { lane, work } => self.begun(lane, work),
            LaneEvent::Failing { lane, attempts, failure } => {
                let Some(state) = self.lanes.get_mut(&lane) else { return };
                if let Some(handle) = &mut state.handle {
                    handle.set_failing(true);
                }
                state.failure = Some((attempts, failure.clone()));
                self.observer.news();
                self.scribe.note(Note::MappingStatus {
                    mapping: state.name().to_owned(),
                    status: MappingStatus::Failing,
                    error: Some(failure.to_string()),
                    attempts,
                });
                self.target_failed(lane, attempts, &failure);
            }
            LaneEvent::Recovered { lane } => {
                let Some(state) = self.lanes.get_mut(&lane) else { return };
                if let Some(handle) = &mut state.handle {
                    handle.set_failing(false);
                }
                state.failure = None;
                self.observer.news();
                self.scribe.note(Note::MappingStatus {
                    mapping: state.name().to_owned(),
                    status: MappingStatus::Running,
                    error: None,
                    attempts: 0,
                });
            }
        }
    }

    /// Takes what readers have handed over, without waiting: a chunk is handed over before its high
    /// watermark is written, so it is here when the watermark is.
    pub(super) fn collect_reads(&mut self) {
        while let Ok(event) = self.branch.reads.try_recv() {
            self.on_read(event);
        }
    }

    fn on_read(&mut self, event: ReadEvent) {
        if let ReadEvent::KeyChanged { attempt, table } = event {
            self.rekeying.insert(attempt, table);
            return;
        }
        if let ReadEvent::Read(read) = &event
            && let Some(relation) = read.rows.relations.first()
        {
            self.relations.numbered_by(relation.oid, &read.key);
        }
        let commands = self.branch.on_read(event, &mut self.machine);
        self.carry_out(commands);
    }

    pub(super) fn on_scribe_event(&mut self, event: ScribeEvent) -> Result<(), TermError> {
        match event {
            ScribeEvent::Snapshot(snapshot) => {
                self.probe.pending = false;
                let commands = self.machine.probe(&Arc::new(snapshot));
                self.carry_out(commands);
                Ok(())
            }
            ScribeEvent::Begun { run, granted } => {
                if !granted {
                    self.withdrawn(&run);
                    return Ok(());
                }
                let commands = self.machine.begun(&run, true);
                self.hand_out_purges();
                self.carry_out(commands);
                Ok(())
            }
            ScribeEvent::Passed(barrier) => {
                self.passed(barrier);
                Ok(())
            }
            ScribeEvent::Saved(position) => {
                self.secured = self.secured.max(position);
                self.observer.memory.saved(position);
                Ok(())
            }
            ScribeEvent::Failed(error) => Err(error),
        }
    }

    fn on_tick(&mut self, connection: &mut Connection) -> Result<(), TermError> {
        // A link that we do not read from, because the lanes are full, is not silent.
        let silence = connection.status.silence().min(connection.reading_since.elapsed());
        if silence > self.settings.silence_limit {
            return Err(TermError::Silent { limit: self.settings.silence_limit });
        }
        let commands = self.machine.tick(now_micros());
        self.carry_out(commands);
        self.branch.report(&self.machine);
        self.branch.save(&self.machine, &self.scribe);
        self.take_up_backfills();
        self.take_up_parked();
        self.look_at_places();
        if !self.machine.limbo().is_empty() {
            self.ask_probe();
        }
        self.save_when_due();
        if self.wrote.elapsed() >= self.settings.heartbeat_interval {
            self.wrote = Instant::now();
            self.scribe.note(Note::Heartbeat);
        }
        Ok(())
    }

    /// How long until a rate lets a backfill read on, where that is before the next tick.
    fn backfills_free_in(&self) -> Option<Duration> {
        let at = self.machine.next_free()?;
        let left = Duration::from_micros(u64::try_from(at.saturating_sub(now_micros())).unwrap_or(0));
        (left < TICK).then_some(left)
    }

    pub(super) fn ask_probe(&mut self) {
        if !self.probe.pending && self.probe.last.elapsed() >= PROBE_INTERVAL {
            self.probe = Probe { pending: true, last: Instant::now() };
            self.scribe.note(Note::Probe);
        }
    }

    // --- positions ------------------------------------------------------------------------------------

    /// Tells the server what it may forget: what every sink has accepted, what is visible, and what is saved,
    /// so that a slot that is ahead of the saved position is known to be another one.
    pub(super) fn confirm(&mut self, connection: &Connection) {
        if self.secured > connection.status.flushed() {
            connection.status.confirm(self.secured);
        }
    }

    pub(super) fn confirmable(&mut self) -> Lsn {
        self.ledger.confirmable(self.machine.confirmable())
    }

    /// Saves positions soon after work was accepted, and seldom while there is none: saving writes WAL, too.
    fn save_when_due(&mut self) {
        let position = self.confirmable();
        let pause = if self.saving.worked { CHECKPOINT_INTERVAL } else { self.settings.heartbeat_interval };
        if position > self.saving.noted && self.saving.last.elapsed() >= pause {
            self.save_positions();
        }
    }

    pub(super) fn save_positions(&mut self) {
        let confirmed = self.confirmable();
        self.saving = Saving { last: Instant::now(), worked: false, noted: confirmed };
        let accepted =
            self.lanes.iter().map(|(&id, lane)| (lane.name().to_owned(), self.ledger.position(id))).collect();
        self.scribe.note(Note::Positions { confirmed, accepted });
    }

    // --- backfill -------------------------------------------------------------------------------------

    pub(super) fn carry_out(&mut self, commands: Vec<Command<Arc<ChangeBatch>>>) {
        let mut commands = std::collections::VecDeque::from(commands);
        while let Some(command) = commands.pop_front() {
            if matches!(command, Command::Emit(_)) {
                // Its rows are not younger than its high watermark, up to which everything was handed out.
                self.observer.memory.delivered(self.ledger.processed());
            }
            let more = self.branch.carry_out(
                command,
                &mut self.machine,
                &mut self.ledger,
                &mut self.lanes,
                &self.scribe,
            );
            commands.extend(more);
        }
    }
}
