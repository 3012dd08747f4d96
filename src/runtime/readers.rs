//! Reads chunks: each reading is a task with a connection of its own, so that reading, transforming and
//! delivering overlap.
//!
//! A chunk is handed to the pump *before* its high watermark is written: when the watermark comes along the
//! stream, the rows are there.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::{runtime::Handle, sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, debug};

use crate::{
    backfill::{Attempt, ChunkRead, Keys, MarkerKind, ReadFailure, ReadRequest},
    model::{ChangeBatch, EntityName},
    plugin::Plugin,
    postgres::{ChunkRequest, Client, ConnectSettings, Error, ErrorKind, Flush, Purpose, SnapshotReader},
};

use super::telemetry;

/// What a reading tells the pump.
#[derive(Debug)]
pub(super) enum ReadEvent {
    /// The rows of a chunk.
    Read(Box<ChunkRead<Arc<ChangeBatch>>>),
    /// It could not be read, or its watermark not be written.
    Failed { attempt: Attempt, failure: ReadFailure },
    /// The cursor is of another key; the attempt's high watermark comes after what the old key has numbered.
    KeyChanged { attempt: Attempt, table: u32 },
}

/// The columns that a reading needs beside the key; none for all.
pub(super) type Columns = Option<Vec<String>>;

/// What these plugins read, each of its own table's columns. A row that lacks what a plugin needs that comes in
/// only while the row is on its way is read again by its key (see `reread.rs`).
pub(super) fn columns(plugins: impl Iterator<Item = Plugin>) -> Columns {
    let mut all = BTreeSet::new();
    for plugin in plugins {
        all.extend(plugin.description().columns.clone()?);
    }
    Some(all.into_iter().collect())
}

/// Where readings connect to, and what they read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) settings: ConnectSettings,
    pub(super) installation: String,
    pub(super) publication: String,
    pub(super) timeout: Duration,
}

/// The pump's end of the readers.
#[derive(Debug)]
pub(super) struct Readers {
    requests: mpsc::UnboundedSender<(ReadRequest, Columns)>,
    // Aborts every reading when the term ends.
    _task: JoinSet<()>,
}

impl Readers {
    /// Starts readers; the events come through the second part.
    pub(super) fn start(reading: Reading, background: &Handle) -> (Self, mpsc::UnboundedReceiver<ReadEvent>) {
        let (requests, incoming) = mpsc::unbounded_channel();
        let (outgoing, events) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn_on(serve(Arc::new(reading), incoming, outgoing), background);
        (Self { requests, _task: task }, events)
    }

    /// Begins a reading, and abandons the one that the run may still have.
    pub(super) fn read(&self, request: ReadRequest, columns: Columns) {
        // The machine has at most one reading a run, and bounds what is read ahead.
        let _ = self.requests.send((request, columns));
    }
}

/// What a reader needs: a session for pages, and one for watermarks.
#[derive(Debug)]
struct Sessions {
    pages: SnapshotReader,
    marks: Client,
}

impl Sessions {
    async fn open(reading: &Reading) -> Result<Self, Error> {
        let pages = SnapshotReader::open(&reading.settings, reading.publication.as_str()).await?;
        let marks = reading.settings.connect(Purpose::Control).await?;
        Ok(Self { pages, marks })
    }
}

async fn serve(
    reading: Arc<Reading>,
    mut requests: mpsc::UnboundedReceiver<(ReadRequest, Columns)>,
    events: mpsc::UnboundedSender<ReadEvent>,
) {
    let mut idle: Vec<Sessions> = Vec::new();
    let mut tasks: JoinSet<Option<Sessions>> = JoinSet::new();
    let mut by_run: HashMap<Arc<str>, CancellationToken> = HashMap::new();
    loop {
        tokio::select! {
            // Sessions come back before they are asked for.
            biased;
            Some(done) = tasks.join_next() => {
                if let Ok(Some(sessions)) = done {
                    idle.push(sessions);
                }
            }
            request = requests.recv() => {
                let Some((request, columns)) = request else { return };
                let abandon = CancellationToken::new();
                if let Some(before) = by_run.insert(Arc::clone(&request.run), abandon.clone()) {
                    before.cancel();
                }
                let span = telemetry::chunk(&request.entity, request.chunk);
                let read = one(Arc::clone(&reading), request, columns, idle.pop(), events.clone(), abandon);
                tasks.spawn(read.instrument(span));
            }
        }
    }
}

/// One reading; gives its sessions back where they are still good.
async fn one(
    reading: Arc<Reading>,
    request: ReadRequest,
    columns: Columns,
    idle: Option<Sessions>,
    events: mpsc::UnboundedSender<ReadEvent>,
    abandon: CancellationToken,
) -> Option<Sessions> {
    let read = async {
        let mut sessions = match idle {
            Some(sessions) => sessions,
            None => Sessions::open(&reading).await?,
        };
        let whole = read(&reading, &request, columns.as_deref(), &mut sessions, &events, &abandon).await?;
        Ok::<_, Error>(whole.then_some(sessions))
    };
    let error = match read.await {
        Ok(sessions) => return sessions,
        Err(error) => error,
    };
    debug!(entity = %request.entity, chunk = request.chunk, %error, "a chunk could not be read");
    let timed_out = error.kind() == ErrorKind::Cancelled && !error.is_lock_timeout();
    let failure = ReadFailure { timed_out, message: error.to_string() };
    // Nobody listens any more while a term ends.
    let _ = events.send(ReadEvent::Failed { attempt: request.attempt, failure });
    None
}

/// Whether the reading came to its end. Abandoning ends the reading of rows, never the watermark of a chunk that
/// was handed over: the next reading of a run is asked for at that very moment.
async fn read(
    reading: &Reading,
    request: &ReadRequest,
    columns: Option<&[String]>,
    sessions: &mut Sessions,
    events: &mpsc::UnboundedSender<ReadEvent>,
    abandon: &CancellationToken,
) -> Result<bool, Error> {
    let mark = |kind| request.marker(&reading.installation, kind).encode();
    // It is in the WAL before the snapshot and flushed with the high one, before which nobody needs it.
    sessions.marks.emit_messages(&[mark(MarkerKind::Low)], Flush::WithTheNext).await?;
    let page = ChunkRequest {
        entity: &request.entity,
        scope: request.scope.as_deref(),
        columns,
        after: request.after.as_ref(),
        max_rows: request.limit,
        max_bytes: request.max_bytes,
        timeout: Some(reading.timeout),
    };
    let Some(page) = abandon.run_until_cancelled(sessions.pages.read_chunk(&page)).await else {
        return Ok(false);
    };
    let page = match page {
        Err(error) if error.kind() == ErrorKind::KeyChanged => {
            debug!(entity = %request.entity, %error, "the key is another one");
            let _ = events.send(ReadEvent::KeyChanged { attempt: request.attempt, table: request.table });
            return sessions.marks.emit_messages(&[mark(MarkerKind::High)], Flush::Now).await.map(|_| true);
        }
        page => page?,
    };
    if page.relation.oid != request.table {
        return Err(recreated(request));
    }
    let Some(keys) = Keys::of_batch(&page.batch) else { return Err(null_key(&request.entity)) };
    Span::current().record("rows", page.batch.changes.len()).record("bytes", page.bytes);
    let chunk = ChunkRead {
        attempt: request.attempt,
        snapshot: Arc::new(page.snapshot),
        key: page.key,
        keys,
        bytes: page.bytes,
        rows: Arc::new(page.batch),
        elapsed: page.elapsed,
        last: page.last,
        exhausted: page.exhausted,
    };
    let _ = events.send(ReadEvent::Read(Box::new(chunk)));
    sessions.marks.emit_messages(&[mark(MarkerKind::High)], Flush::Now).await.map(|_| true)
}

fn recreated(request: &ReadRequest) -> Error {
    let message = format!(
        "table {} is another one than when this term began (its oid is not {} any more): it was dropped and made \
         again, or its name was given to another table",
        request.entity, request.table
    );
    Error::new(ErrorKind::Table, message)
}

fn null_key(entity: &EntityName) -> Error {
    let message =
        format!("a row of {entity} has NULL in its key, so it has no document id; declare the key not null");
    Error::new(ErrorKind::Table, message)
}
