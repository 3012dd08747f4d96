//! Counters of the process, in methods named by what happened.
//!
//! Counting costs something per batch, never per row, and waits for nobody. Labels are names from the config and
//! fixed words, never keys, ids or texts of errors; the series of a mapping or a table go when a term begins that
//! does not know it any more. Gauges are not kept here: they are read from the health at each scrape (`gauges`).

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::{
    backfill::{Report, Stage as RunStage},
    model::{ChangeBatch, FailureClass, Operation},
    state::QuarantineStage,
};

use super::{gauges::Gauges, health::Health, numbers::Numbers};

/// Upper ends of the buckets of times, in seconds. Few, for there are two sets for each mapping.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

/// The value of a label that comes from the config; the library escapes it.
pub(super) type Label = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Target {
    mapping: Label,
    sink: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tried {
    mapping: Label,
    sink: Label,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    mapping: Label,
    sink: Label,
    stage: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Table {
    entity: Label,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableStage {
    entity: Label,
    stage: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kept {
    mapping: Label,
    sink: Label,
    stage: &'static str,
}

const OUTCOMES: [&str; 2] = ["ok", "failed"];
const CLASSES: [FailureClass; 3] = [FailureClass::Retry, FailureClass::Poison, FailureClass::Fatal];
const STAGES: [Stage; 2] = [Stage::Transform, Stage::Deliver];

/// What of a piece of work is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Transform,
    Deliver,
}

impl Stage {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Transform => "transform",
            Self::Deliver => "delivery",
        }
    }
}

/// Why a batch was handed out when it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushReason {
    /// It has as many changes or bytes as a batch may have.
    Full,
    /// A lane had nothing to do.
    Idle,
    /// A table is another one from the next change on.
    Relation,
    /// A watermark of a backfill.
    Watermark,
    /// The stream ends.
    Drain,
}

impl FlushReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Relation => "relation",
            Self::Watermark => "watermark",
            Self::Drain => "drain",
        }
    }
}

/// What became of a transaction that was streamed before its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Streamed {
    Committed,
    Aborted,
}

impl Streamed {
    fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Aborted => "aborted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fate {
    outcome: &'static str,
}

/// The counters of transactions that were streamed before their commit.
#[derive(Debug, Default)]
struct Spools {
    transactions: Family<Fate, Counter>,
    rolled_back: Counter,
    files: Counter,
    written: Counter,
    failures: Counter,
}

type Histograms = Family<Tried, Histogram, fn() -> Histogram>;
type Seconds = Counter<f64, AtomicU64>;

/// The counters of a table's backfills.
#[derive(Debug, Default)]
struct Backfills {
    rows: Family<Table, Counter>,
    bytes: Family<Table, Counter>,
    chunks: Family<Table, Counter>,
    overtaken: Family<Table, Counter>,
    rereads: Family<Table, Counter>,
    retries: Family<Table, Counter>,
    completed: Family<Table, Counter>,
    seconds: Family<TableStage, Seconds>,
}

/// All counters.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    changes: Family<Kind, Counter>,
    transactions: Counter,
    batches: Family<Reason, Counter>,
    received: Counter,
    spools: Spools,
    terms: Counter,
    documents: Family<Target, Counter>,
    transforming: Histograms,
    delivering: Histograms,
    failures: Family<Failed, Counter>,
    quarantined: Family<Kept, Counter>,
    reread: Family<Table, Counter>,
    backfills: Backfills,
    numbers: Numbers,
    /// The mappings and tables that have series.
    known: Mutex<(BTreeSet<Target>, BTreeSet<Table>)>,
}

impl Metrics {
    pub(super) fn new(health: &Arc<Health>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("anabranch"),
            changes: Family::default(),
            transactions: Counter::default(),
            batches: Family::default(),
            received: Counter::default(),
            spools: Spools::default(),
            terms: Counter::default(),
            documents: Family::default(),
            transforming: Family::new_with_constructor(histogram as fn() -> Histogram),
            delivering: Family::new_with_constructor(histogram as fn() -> Histogram),
            failures: Family::default(),
            quarantined: Family::default(),
            reread: Family::default(),
            backfills: Backfills::default(),
            numbers: Numbers::default(),
            known: Mutex::default(),
        };
        metrics.register_stream();
        metrics.register_spools();
        metrics.register_mappings();
        metrics.register_backfills();
        metrics.registry.register_collector(Box::new(Gauges::new(Arc::clone(health))));
        metrics.registry.register_collector(Box::new(metrics.numbers.clone()));
        metrics
    }

    fn register_stream(&mut self) {
        let registry = &mut self.registry;
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The version that runs", Info::new(version));
        registry.register("terms", "Leaderships begun by this process", self.terms.clone());
        registry.register(
            "changes_received",
            "Row changes of mapped tables received from the stream",
            self.changes.clone(),
        );
        registry.register(
            "transactions_received",
            "Committed transactions with such changes",
            self.transactions.clone(),
        );
        registry.register(
            "batches",
            "Batches handed to mappings, by why at that moment",
            self.batches.clone(),
        );
        let help = "Bytes of the replication stream";
        registry.register_with_unit("received", help, Unit::Bytes, self.received.clone());
    }

    fn register_spools(&mut self) {
        let Self { registry, spools, .. } = self;
        registry.register(
            "streamed_transactions",
            "Large transactions that were streamed before their commit, by what became of them",
            spools.transactions.clone(),
        );
        registry.register(
            "streamed_savepoints_rolled_back",
            "Savepoints of such transactions that were rolled back",
            spools.rolled_back.clone(),
        );
        let registry = registry.sub_registry_with_prefix("spool");
        registry.register("files", "Files made for what was too much for the memory", spools.files.clone());
        let help = "Bytes written to such files";
        registry.register_with_unit("written", help, Unit::Bytes, spools.written.clone());
        registry.register("errors", "Terms that a failure of the spool has ended", spools.failures.clone());
    }

    fn register_mappings(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "documents_delivered",
            "Documents, upserts and deletes, that the sink has durably accepted",
            self.documents.clone(),
        );
        let help = "Time of one attempt to transform a batch, with the plugin's waiting for its turn";
        registry.register_with_unit("transform", help, Unit::Seconds, self.transforming.clone());
        let help = "Time of one attempt to deliver documents to the sink";
        registry.register_with_unit("delivery", help, Unit::Seconds, self.delivering.clone());
        registry.register("failures", "Attempts that failed", self.failures.clone());
        let help = "Changes put into quarantine, by what failed; those that were tried again count again";
        registry.register("quarantined", help, self.quarantined.clone());
        registry.register(
            "rows_reread",
            "Rows read again by key, because they came without an unchanged large value or a column",
            self.reread.clone(),
        );
    }

    fn register_backfills(&mut self) {
        let Self { registry, backfills, .. } = self;
        let registry = registry.sub_registry_with_prefix("backfill");
        registry.register("rows", "Rows read", backfills.rows.clone());
        registry.register_with_unit("read", "Bytes read", Unit::Bytes, backfills.bytes.clone());
        registry.register("chunks", "Chunks merged into the stream", backfills.chunks.clone());
        registry.register(
            "overtaken_rows",
            "Rows that live changes had overtaken",
            backfills.overtaken.clone(),
        );
        registry.register("rereads", "Chunks read again", backfills.rereads.clone());
        registry.register("retries", "Readings and deliveries that failed", backfills.retries.clone());
        registry.register("runs_completed", "Runs that were completed", backfills.completed.clone());
        let help = "Where the time of runs went; every moment of a run counts once";
        registry.register_with_unit("stage", help, Unit::Seconds, backfills.seconds.clone());
    }

    /// All metrics, as OpenMetrics text.
    ///
    /// # Errors
    /// A text could not be written; it never is so.
    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }

    // --- the stream -----------------------------------------------------------------------------------

    pub(super) fn term_began(&self) {
        self.terms.inc();
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    pub(super) fn transaction(&self) {
        self.transactions.inc();
    }

    pub(super) fn streamed(&self, fate: Streamed) {
        self.spools.transactions.get_or_create(&Fate { outcome: fate.as_str() }).inc();
    }

    /// A savepoint of a streamed transaction was rolled back.
    pub(super) fn rolled_back(&self) {
        self.spools.rolled_back.inc();
    }

    /// Something was written away, to a new file or to one that there was.
    pub(super) fn spooled(&self, bytes: usize, made: bool) {
        self.spools.written.inc_by(bytes as u64);
        self.spools.files.inc_by(u64::from(made));
    }

    pub(super) fn spool_failed(&self) {
        self.spools.failures.inc();
    }

    /// A batch of the stream was handed out.
    pub(super) fn batch(&self, batch: &ChangeBatch, reason: FlushReason) {
        self.batches.get_or_create(&Reason { reason: reason.as_str() }).inc();
        let mut kinds = [("insert", 0), ("update", 0), ("delete", 0), ("truncate", 0)];
        for change in &batch.changes {
            let at = match change.operation {
                Operation::Insert | Operation::Read => 0,
                Operation::Update => 1,
                Operation::Delete => 2,
                Operation::Truncate => 3,
            };
            kinds[at].1 += 1;
        }
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            self.changes.get_or_create(&Kind { kind }).inc_by(count);
        }
    }

    pub(super) fn rows_reread(&self, entity: &str, rows: usize) {
        self.reread.get_or_create(&Table { entity: Label::from(entity) }).inc_by(rows as u64);
    }

    /// What guests tell.
    pub(super) fn numbers(&self) -> Numbers {
        self.numbers.clone()
    }

    // --- mappings -------------------------------------------------------------------------------------

    /// The counters of a mapping.
    pub(super) fn mapping(self: &Arc<Self>, mapping: &str, sink: &str) -> LaneMetrics {
        let target = Target { mapping: Label::from(mapping), sink: Label::from(sink) };
        let documents = self.documents.get_or_create_owned(&target);
        LaneMetrics { metrics: Arc::clone(self), target, documents }
    }

    /// A term begins: series of mappings and tables that are none any more go.
    pub(super) fn know<'a>(&self, mappings: impl IntoIterator<Item = (&'a str, &'a str, String)>) {
        let (mut targets, mut tables) = (BTreeSet::new(), BTreeSet::new());
        for (mapping, sink, entity) in mappings {
            targets.insert(Target { mapping: Label::from(mapping), sink: Label::from(sink) });
            tables.insert(Table { entity: Label::from(entity) });
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.numbers.know(&targets.iter().map(|target| &*target.mapping).collect());
        known.0.difference(&targets).for_each(|gone| self.forget_target(gone));
        known.1.difference(&tables).for_each(|gone| self.forget_table(gone));
        *known = (targets, tables);
    }

    fn forget_target(&self, target: &Target) {
        self.documents.remove(target);
        for outcome in OUTCOMES {
            let tried = target.tried(outcome);
            self.transforming.remove(&tried);
            self.delivering.remove(&tried);
        }
        for (stage, class) in STAGES.into_iter().flat_map(|stage| CLASSES.map(|class| (stage, class))) {
            self.failures.remove(&target.failed(stage, class));
        }
        for stage in STAGES {
            self.quarantined.remove(&target.kept(stage));
        }
    }

    fn forget_table(&self, table: &Table) {
        self.reread.remove(table);
        let Backfills { rows, bytes, chunks, overtaken, rereads, retries, completed, seconds } =
            &self.backfills;
        for family in [rows, bytes, chunks, overtaken, rereads, retries, completed] {
            family.remove(table);
        }
        for (stage, _) in Report::default().times() {
            seconds.remove(&TableStage { entity: table.entity.clone(), stage: stage.as_str() });
        }
    }

    // --- backfills ------------------------------------------------------------------------------------

    /// A run has got from one account to the next; what is smaller in the next counts nothing.
    pub(super) fn run_moved(&self, entity: &str, before: &Report, now: &Report) {
        let table = Table { entity: Label::from(entity) };
        let Backfills { rows, bytes, chunks, overtaken, rereads, retries, completed: _, seconds } =
            &self.backfills;
        for (family, before, now) in [
            (rows, before.rows, now.rows),
            (bytes, before.bytes, now.bytes),
            (chunks, before.chunks, now.chunks),
            (overtaken, before.dropped, now.dropped),
            (rereads, before.rereads, now.rereads),
            (retries, before.retries, now.retries),
        ] {
            family.get_or_create(&table).inc_by(now.saturating_sub(before));
        }
        for ((stage, before), (_, now)) in before.times().into_iter().zip(now.times()) {
            let grown: Duration = now.saturating_sub(before);
            let stage: RunStage = stage;
            let labels = TableStage { entity: table.entity.clone(), stage: stage.as_str() };
            seconds.get_or_create(&labels).inc_by(grown.as_secs_f64());
        }
    }

    pub(super) fn run_completed(&self, entity: &str) {
        self.backfills.completed.get_or_create(&Table { entity: Label::from(entity) }).inc();
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Target {
    fn tried(&self, outcome: &'static str) -> Tried {
        Tried { mapping: self.mapping.clone(), sink: self.sink.clone(), outcome }
    }

    fn failed(&self, stage: Stage, class: FailureClass) -> Failed {
        let (stage, class) = (stage.as_str(), class.as_str());
        Failed { mapping: self.mapping.clone(), sink: self.sink.clone(), stage, class }
    }

    fn kept(&self, stage: Stage) -> Kept {
        Kept { mapping: self.mapping.clone(), sink: self.sink.clone(), stage: stage.as_str() }
    }
}

/// The counters of one mapping.
#[derive(Clone, Debug)]
pub(super) struct LaneMetrics {
    metrics: Arc<Metrics>,
    target: Target,
    documents: Counter,
}

impl LaneMetrics {
    pub(super) fn delivered(&self, documents: u64) {
        self.documents.inc_by(documents);
    }

    /// A change was put into quarantine.
    pub(super) fn quarantined(&self, stage: QuarantineStage) {
        let stage = match stage {
            QuarantineStage::Transform => Stage::Transform,
            QuarantineStage::Delivery => Stage::Deliver,
        };
        self.metrics.quarantined.get_or_create(&self.target.kept(stage)).inc();
    }

    /// One attempt, and what it failed with.
    pub(super) fn tried(&self, stage: Stage, took: Duration, failed: Option<FailureClass>) {
        let Metrics { transforming, delivering, failures, .. } = &*self.metrics;
        let outcome = if failed.is_some() { "failed" } else { "ok" };
        let histograms = match stage {
            Stage::Transform => transforming,
            Stage::Deliver => delivering,
        };
        histograms.get_or_create(&self.target.tried(outcome)).observe(took.as_secs_f64());
        if let Some(class) = failed {
            failures.get_or_create(&self.target.failed(stage, class)).inc();
        }
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
