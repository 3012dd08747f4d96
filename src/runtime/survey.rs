//! What the pump sees of itself, once a second: for health, metrics and the page.
//!
//! Made by the pump and handed over whole, so that nobody who asks is waited for, and nobody who asks waits. Names
//! mappings, tables and plugins; never holds a row. Errors are told as they are in the log: they name the key of the row
//! that they are about, and what a plugin or a receiver has said.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    backfill::Stage,
    model::{ChangeBatch, Failure, FailureClass, Lsn},
    plugin::Instances,
};

use super::{
    health::Health,
    history::Memory,
    intake::Connection,
    metrics::Metrics,
    plan::Verdict,
    pump::Pump,
    shutdown::now_micros,
    spool::{SpoolView, Spooling},
    term::Lane,
};

/// How often the pump looks at itself.
const INTERVAL: Duration = Duration::from_secs(1);
/// How soon after that it does again because a mapping has failed or recovered.
const SOON: Duration = Duration::from_millis(100);
/// Ends of batches that are remembered one by one; what comes on top is remembered with the last of them.
const FLIGHTS: usize = 1024;

/// A term at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// Everything before was read and handed out.
    pub(super) position: Lsn,
    /// Everything before was told to the server as done.
    pub(super) confirmed: Lsn,
    /// Where the server's WAL ended when the stream last told.
    pub(super) wal_end: Lsn,
    /// When the oldest transaction was committed that was read and is not accepted by every mapping: microseconds
    /// since 1970-01-01 UTC.
    pub(super) oldest: Option<i64>,
    /// How long the stream had said nothing, though it was read.
    pub(super) silence: Duration,
    /// What was streamed of transactions that are not committed; none where that was not asked for.
    pub(super) spool: Option<SpoolView>,
    /// How long it may.
    pub(super) silence_limit: Duration,
    pub(super) mappings: Vec<MappingView>,
    pub(super) runs: Vec<RunSight>,
    /// The plugins at work, by name and version.
    pub(super) plugins: BTreeMap<(String, String), Instances>,
}

/// A mapping at a moment.
#[derive(Clone, Debug)]
pub(super) struct MappingView {
    pub(super) name: String,
    pub(super) entity: String,
    pub(super) sink: String,
    pub(super) state: MappingState,
    pub(super) generation: i64,
    pub(super) built: i64,
    /// Failures in a row.
    pub(super) attempts: u32,
    pub(super) error: Option<Told>,
    /// A newer revision of its transform that is not taken up, and why.
    pub(super) held: Option<String>,
    pub(super) queued_bytes: usize,
    /// Rows in quarantine.
    pub(super) quarantined: u64,
}

/// What was last told of a failure.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) class: Option<FailureClass>,
    pub(super) code: String,
    pub(super) message: String,
}

impl From<&Failure> for Told {
    fn from(failure: &Failure) -> Self {
        let Failure { class, code, message, .. } = failure;
        Self { class: Some(*class), code: code.clone(), message: message.clone() }
    }
}

/// How a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MappingState {
    /// It works.
    Running,
    /// The last thing heard of it was a failure; it tries again.
    Failing,
    /// It fell behind while failing: the stream is read again for it once it works.
    LetGo,
    /// It cannot run, and the slot keeps what it misses.
    Held,
    /// It never ran, and cannot.
    Refused,
}

impl MappingState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing => "failing",
            Self::LetGo => "let go",
            Self::Held => "held",
            Self::Refused => "refused",
        }
    }
}

/// A run at a moment.
#[derive(Clone, Debug)]
pub(super) struct RunSight {
    pub(super) entity: String,
    pub(super) run: String,
    /// Whether it reads some rows only.
    pub(super) scoped: bool,
    pub(super) stage: Stage,
    pub(super) rows: u64,
    pub(super) chunks: u64,
    /// From 0 to 1.
    pub(super) share: Option<f64>,
    pub(super) attempts: u32,
}

/// The commit times of what was read and is not accepted everywhere.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// The end of each batch, and when its first transaction was committed.
    ends: VecDeque<(Lsn, i64)>,
    /// The same of a transaction of which only pages were handed out so far.
    open: Option<i64>,
}

impl Flights {
    /// A batch was handed out: it ends at a commit boundary, or in the middle of a transaction.
    pub(super) fn handed_out(&mut self, committed: i64, end: Option<Lsn>) {
        let committed = self.open.take().unwrap_or(committed);
        match end {
            None => self.open = Some(committed),
            Some(end) if self.ends.len() < FLIGHTS => self.ends.push_back((end, committed)),
            // Together with the last: older than it is, never younger.
            Some(end) => {
                if let Some(last) = self.ends.back_mut() {
                    last.0 = end;
                }
            }
        }
    }

    /// Everything before this position is accepted; gives the oldest commit time of what is left.
    pub(super) fn accepted(&mut self, position: Lsn) -> Option<i64> {
        while self.ends.front().is_some_and(|(end, _)| *end <= position) {
            self.ends.pop_front();
        }
        self.ends.front().map(|(_, committed)| *committed).or(self.open)
    }

    /// The stream is read again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The pump's way to those who ask.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) memory: Arc<Memory>,
    pub(super) flights: Flights,
    last: Option<Instant>,
    /// Something happened that is worth a look before its time.
    news: bool,
}

impl Observer {
    pub(super) fn new(health: Arc<Health>, metrics: Arc<Metrics>, memory: Arc<Memory>) -> Self {
        Self { health, metrics, memory, flights: Flights::default(), last: None, news: true }
    }

    /// A mapping fails, or works again.
    pub(super) fn news(&mut self) {
        self.news = true;
    }

    /// A batch is handed out; it ends at this boundary, or in the middle of a transaction.
    pub(super) fn handed_out(&mut self, batch: &ChangeBatch, boundary: Option<Lsn>) {
        let Some((first, last)) = batch.transactions.first().zip(batch.transactions.last()) else { return };
        self.memory.delivered(boundary.unwrap_or_else(|| just_beyond(last.commit_lsn)));
        self.flights.handed_out(first.commit_time, boundary);
    }

    pub(super) fn beat(&self) {
        self.health.note(|state, now| state.beats(true, now));
    }
}

impl Pump {
    /// Beats, and looks at itself when it is time.
    pub(super) fn observe(&mut self, connection: &Connection) {
        self.observer.beat();
        let pause = if self.observer.news { SOON } else { INTERVAL };
        if self.observer.last.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        (self.observer.last, self.observer.news) = (Some(Instant::now()), false);
        self.branch.count(&self.machine);
        let accepted = self.confirmable();
        let survey = Survey {
            position: self.ledger.processed(),
            confirmed: connection.status.flushed(),
            wal_end: connection.wal_end,
            oldest: self.observer.flights.accepted(accepted),
            // What is not read, because the lanes are full, says nothing of the link.
            silence: connection.status.silence().min(connection.reading_since.elapsed()),
            spool: connection.spooling.as_ref().map(Spooling::view),
            silence_limit: self.settings.silence_limit,
            mappings: self.lanes.values().map(|lane| self.view(lane)).collect(),
            runs: self.machine.runs().map(|(_, view)| sight(&view)).collect(),
            plugins: self.instances(),
        };
        let survey = Some(Arc::new(survey));
        self.observer.health.note(|state, _| state.survey = survey);
    }

    fn view(&self, lane: &Lane) -> MappingView {
        let stored = &lane.planned.stored;
        let held = |reason: &str| {
            Some(Told { class: None, code: "cannot-run".to_owned(), message: reason.to_owned() })
        };
        let (state, attempts, error) = match (&lane.planned.verdict, &lane.failure) {
            (Verdict::Held { reason } | Verdict::Unusable { reason }, _) => {
                (MappingState::Held, 0, held(reason))
            }
            (Verdict::Refused { reason }, _) => (MappingState::Refused, 0, held(reason)),
            (Verdict::Runs, failure) => {
                let state = match failure {
                    _ if !self.ledger.follows(lane.id) => MappingState::LetGo,
                    Some(_) => MappingState::Failing,
                    None => MappingState::Running,
                };
                let (attempts, told) = failure.as_ref().map_or((0, None), |(n, f)| (*n, Some(f.into())));
                (state, attempts, told)
            }
        };
        MappingView {
            name: stored.name.clone(),
            entity: stored.entity.to_string(),
            sink: lane.planned.mapping.sink.clone(),
            state,
            generation: stored.generation,
            built: stored.built,
            attempts,
            error,
            held: stored.held.clone(),
            queued_bytes: lane.handle.as_ref().map_or(0, |handle| handle.queued_bytes()),
            quarantined: lane.handle.as_ref().map_or(0, |handle| handle.quarantined()),
        }
    }

    fn instances(&self) -> BTreeMap<(String, String), Instances> {
        let handles = self.lanes.values().filter_map(|lane| lane.handle.as_ref());
        let plugins = handles.flat_map(|handle| [Some(handle.plugin()), handle.sink_plugin()]).flatten();
        plugins
            .map(|plugin| {
                let revision = plugin.revision();
                ((revision.name.clone(), revision.version.to_string()), plugin.instances())
            })
            .collect()
    }
}

fn just_beyond(position: Lsn) -> Lsn {
    Lsn(position.0.saturating_add(1))
}

fn sight(view: &crate::backfill::RunView<'_>) -> RunSight {
    RunSight {
        entity: view.entity.to_string(),
        run: view.run.to_string(),
        scoped: view.scope.is_some(),
        stage: view.stage,
        rows: view.rows,
        chunks: view.chunks,
        share: view.share,
        attempts: view.attempts,
    }
}

/// How old something is that was committed at `committed`, by this host's clock.
pub(super) fn age_seconds(committed: i64) -> f64 {
    let micros = u64::try_from(now_micros().saturating_sub(committed)).unwrap_or(0);
    Duration::from_micros(micros).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Origin, TransactionInfo};

    #[test]
    fn the_oldest_transaction_that_is_not_accepted_counts() {
        let mut flights = Flights::default();
        assert_eq!(flights.accepted(Lsn(0)), None);
        flights.handed_out(100, Some(Lsn(10)));
        flights.handed_out(200, Some(Lsn(20)));
        assert_eq!(flights.accepted(Lsn(9)), Some(100));
        assert_eq!(flights.accepted(Lsn(10)), Some(200));
        assert_eq!(flights.accepted(Lsn(25)), None, "idle");
    }

    #[test]
    fn pages_count_from_the_first_on() {
        let mut flights = Flights::default();
        flights.handed_out(100, None);
        flights.handed_out(100, None);
        assert_eq!(flights.accepted(Lsn(50)), Some(100), "no page is accepted before the last");
        flights.handed_out(100, Some(Lsn(60)));
        assert_eq!(flights.accepted(Lsn(59)), Some(100));
        assert_eq!(flights.accepted(Lsn(60)), None);
    }

    fn batch(commits: &[u64], ends_at_commit: bool) -> ChangeBatch {
        let mut batch = ChangeBatch::new(Origin::Stream);
        batch.ends_at_commit = ends_at_commit;
        batch.transactions = commits
            .iter()
            .map(|&at| TransactionInfo { xid: 1, commit_lsn: Lsn(at), end_lsn: Lsn(at + 10), commit_time: 0 })
            .collect();
        batch
    }

    #[test]
    fn c060_parts_of_a_transaction_are_remembered_up_to_its_commit_and_no_further() {
        let health = Arc::new(Health::new());
        let metrics = Arc::new(Metrics::new(&health));
        let memory = Arc::new(Memory::default());
        let mut observer = Observer::new(health, metrics, Arc::clone(&memory));
        let installation = crate::state::Installation {
            name: "shop".to_owned(),
            publication: "shop".to_owned(),
            publication_oid: None,
            system_identifier: "730".to_owned(),
            timeline: 1,
            confirmed: Lsn(1),
            term: 1,
            baseline: None,
        };
        memory.begins(&installation, Lsn(1));
        let mut delivered = |commits: &[u64], boundary: Option<u64>| {
            observer.handed_out(&batch(commits, boundary.is_some()), boundary.map(Lsn));
            memory.seen().map(|seen| seen.delivered)
        };
        assert_eq!(delivered(&[100], Some(110)), Some(Lsn(110)));
        assert_eq!(delivered(&[200, 300], None), Some(Lsn(301)), "the second goes on");
        assert_eq!(
            delivered(&[200], Some(210)),
            Some(Lsn(301)),
            "read again: parts of the later one are out"
        );
        assert_eq!(delivered(&[300], Some(310)), Some(Lsn(310)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut flights = Flights::default();
        for at in 0..5000_u64 {
            flights.handed_out(i64::try_from(at).unwrap(), Some(Lsn(at + 1)));
        }
        assert_eq!(flights.ends.len(), FLIGHTS);
        assert_eq!(flights.accepted(Lsn(4999)), Some(1023), "too old, never too young");
        assert_eq!(flights.accepted(Lsn(5000)), None);
    }
}
