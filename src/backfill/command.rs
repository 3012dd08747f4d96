//! What goes into the machine and what comes out of it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crate::model::{EntityName, Lsn, Scope, Snapshot};

use super::{
    Attempt, Cursor, KeyColumn, Keys, Marker, MarkerKind, PageSettings, RereadReason, Stage, Timestamp,
};

/// The bounds of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Page sizes.
    pub page: PageSettings,
    /// Bytes of rows that were read and are not yet durable, over all tables. A table may always have one
    /// chunk.
    pub prefetch_bytes: usize,
    /// Bytes of touched keys that one table may keep.
    pub window_bytes: usize,
    /// Tables that read at once.
    pub max_concurrent: usize,
    /// How often a visibility probe is asked for while streamed commits are not known to be visible.
    pub probe_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            page: PageSettings::default(),
            prefetch_bytes: 32 << 20,
            window_bytes: 16 << 20,
            max_concurrent: 1,
            probe_interval: Duration::from_secs(1),
        }
    }
}

/// A run as it is asked for, or as it was stored.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Its id, a UUID's text.
    pub run: Arc<str>,
    /// The table's name.
    pub entity: EntityName,
    /// The table's oid, as the stream says it.
    pub table: u32,
    /// The mappings that its rows are for.
    pub mappings: BTreeSet<String>,
    /// The rows that it reads, where not all.
    pub scope: Option<Arc<Scope>>,
    /// Where it stands; none at the beginning.
    pub cursor: Option<Cursor>,
    /// Rows that were read and are durable.
    pub rows: u64,
    /// Chunks that were read and are durable.
    pub chunks: u64,
    /// About how many rows the table has.
    pub estimate: Option<u64>,
    /// Whether its beginning was granted before: it can no longer be withdrawn.
    pub started: bool,
    /// Failures in a row.
    pub attempts: u32,
    /// Nothing is read before.
    pub not_before: Timestamp,
    /// The highest position up to which a target's lane skips what is streamed again. A transaction that
    /// ends at or before it is not known to have reached every target *of this run*.
    pub skip_until: Lsn,
    /// What this snapshot sees may never have been streamed for this table: [`super::everything_before`]
    /// an id that was assigned after the table was added to the publication of an existing slot. Stored
    /// with the run.
    pub baseline: Option<Arc<Snapshot>>,
}

impl RunSpec {
    /// A run of a table from its first row.
    #[must_use]
    pub fn new(run: impl Into<Arc<str>>, entity: EntityName, table: u32) -> Self {
        Self {
            run: run.into(),
            entity,
            table,
            mappings: BTreeSet::new(),
            scope: None,
            cursor: None,
            rows: 0,
            chunks: 0,
            estimate: None,
            started: false,
            attempts: 0,
            not_before: Timestamp::MIN,
            skip_until: Lsn::ZERO,
            baseline: None,
        }
    }
}

/// One page to read.
///
/// The reader commits the low marker; begins a repeatable-read transaction, locks the table in access
/// share mode, takes `pg_current_snapshot()`, reads rows `where key > after order by key limit`; hands them
/// over ([`ChunkRead`]); commits the high marker. It may stop after any row once it has `max_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The run.
    pub run: Arc<str>,
    /// The table's name.
    pub entity: EntityName,
    /// The table's oid: a table of this name with another oid is another table.
    pub table: u32,
    /// The chunk's number.
    pub chunk: u64,
    /// This reading.
    pub attempt: Attempt,
    /// Only these rows.
    pub scope: Option<Arc<Scope>>,
    /// The last key that was read; none at the table's beginning.
    pub after: Option<Cursor>,
    /// The most rows.
    pub limit: u32,
    /// About the most bytes.
    pub max_bytes: usize,
}

impl ReadRequest {
    /// One of its two watermarks.
    #[must_use]
    pub fn marker(&self, installation: &str, kind: MarkerKind) -> Marker {
        Marker {
            installation: installation.to_owned(),
            run: self.run.to_string(),
            chunk: self.chunk,
            attempt: self.attempt,
            kind,
        }
    }
}

/// A page that was read. `P` holds the rows; the machine only carries it.
#[derive(Clone, Debug)]
pub struct ChunkRead<P> {
    /// Which reading.
    pub attempt: Attempt,
    /// The snapshot that the rows were read in.
    pub snapshot: Arc<Snapshot>,
    /// The table's key, as the reading's own transaction saw it.
    pub key: Vec<KeyColumn>,
    /// The rows' document ids, in order.
    pub keys: Keys,
    /// The rows.
    pub rows: P,
    /// The bytes that they hold.
    pub bytes: usize,
    /// How long the reading took.
    pub elapsed: Duration,
    /// The last row's key texts; none when there is no row.
    pub last: Option<Vec<String>>,
    /// Whether there was nothing behind the last row: fewer rows than the limit, and not cut for bytes.
    pub exhausted: bool,
}

/// Why a page could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFailure {
    /// Whether the server's statement timeout ended it (SQLSTATE 57014).
    pub timed_out: bool,
    /// For people.
    pub message: String,
}

/// A chunk at its place in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission<P> {
    /// The run.
    pub run: Arc<str>,
    /// The table.
    pub table: u32,
    /// The chunk's number.
    pub chunk: u64,
    /// Its reading; to be named when it is durable.
    pub attempt: Attempt,
    /// Where the run stands once this chunk and all before it are durable.
    pub cursor: Option<Cursor>,
    /// How many rows it has read then.
    pub read: u64,
    /// All rows that were read.
    pub rows: P,
    /// Indexes (ascending) of the rows that must not be delivered.
    pub dropped: Vec<u32>,
}

/// Why a run began again from the first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartReason {
    /// The table's key changed: ids and cursor mean something else now.
    KeyChanged,
    /// The caller said so.
    Asked,
}

/// Counters of a run, since this machine knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Rows that were read.
    pub rows: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Chunks that were emitted.
    pub chunks: u64,
    /// Rows that the stream had overtaken.
    pub dropped: u64,
    /// Chunks that were read again.
    pub rereads: u64,
    /// Readings and deliveries that failed.
    pub retries: u64,
}

/// What somebody else has to do. Commands are carried out in order, before the next event of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<P> {
    /// Store that the run begins, unless somebody has withdrawn it, and answer with
    /// [`super::Machine::begun`]. Nothing is read for it before.
    Begin {
        /// The run.
        run: Arc<str>,
    },
    /// Read a page, and abandon whatever is still being read for this run.
    Read(ReadRequest),
    /// Deliver the chunk to the run's mappings, *here*: after every transaction that was applied so far
    /// and before the next one.
    Emit(Emission<P>),
    /// A chunk was discarded and will be read again; to be logged.
    Reread {
        /// The run.
        run: Arc<str>,
        /// The chunk's number.
        chunk: u64,
        /// Why.
        reason: RereadReason,
    },
    /// Store the run's progress; failures in a row are over.
    SaveCursor {
        /// The run.
        run: Arc<str>,
        /// All up to here is durable.
        cursor: Cursor,
        /// Rows so far.
        rows: u64,
        /// Chunks so far.
        chunks: u64,
    },
    /// Store that the run is done; the machine has forgotten it.
    Complete {
        /// The run.
        run: Arc<str>,
        /// Rows in all.
        rows: u64,
        /// Chunks in all.
        chunks: u64,
        /// Counters.
        stats: RunStats,
    },
    /// Store that the run has no progress any more: it begins again.
    Restart {
        /// The run.
        run: Arc<str>,
        /// Why.
        reason: RestartReason,
    },
    /// Store that a new request took the place of a run, which may be a scoped one.
    Supersede {
        /// The run that is no more.
        old: Arc<str>,
        /// The run that goes on.
        new: Arc<str>,
        /// Its mappings: those of both.
        mappings: BTreeSet<String>,
    },
    /// Store that a run failed and waits.
    Fail {
        /// The run.
        run: Arc<str>,
        /// Failures in a row.
        attempts: u32,
        /// Nothing is read before.
        not_before: Timestamp,
        /// For people.
        error: String,
    },
    /// Take a `pg_current_snapshot()` on any connection and give it to [`super::Machine::probe`].
    Probe,
}

/// A run as status pages show it.
#[derive(Clone, Debug)]
pub struct RunView<'a> {
    /// The run.
    pub run: &'a Arc<str>,
    /// The table's name.
    pub entity: &'a EntityName,
    /// The mappings that its rows are for.
    pub mappings: &'a BTreeSet<String>,
    /// The rows that it reads, where not all.
    pub scope: Option<&'a Scope>,
    /// Rows that are durable.
    pub rows: u64,
    /// Chunks that are durable.
    pub chunks: u64,
    /// The part of the table that is done, from 0 to 1, where it can be told.
    pub share: Option<f64>,
    /// Whether its beginning was granted: it can no longer be withdrawn.
    pub started: bool,
    /// Whether it reads, rather than waits for its turn.
    pub active: bool,
    /// Whether it waits for streamed commits to become visible.
    pub blocked: bool,
    /// What it waits for. Once its oldest chunk is emitted: [`Stage::Delivering`], whatever its targets do.
    pub stage: Stage,
    /// Chunks in flight.
    pub in_flight: usize,
    /// Failures in a row.
    pub attempts: u32,
    /// Nothing is read before.
    pub not_before: Timestamp,
    /// Bytes of touched keys.
    pub window_bytes: usize,
    /// Counters.
    pub stats: RunStats,
}
