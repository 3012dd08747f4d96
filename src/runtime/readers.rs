//! Reads chunks: each reading is a task with a connection of its own, so that reading, transforming and
//! delivering overlap.
//!
//! A chunk is handed to the pump *before* its high watermark is written: when the watermark comes along the
//! stream, the rows are there.

use std::{collections::HashMap, sync::Arc};

use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use tracing::debug;

use crate::{
    backfill::{Attempt, ChunkRead, Keys, MarkerKind, ReadFailure, ReadRequest},
    model::ChangeBatch,
    postgres::{Client, ConnectSettings, ErrorKind, PageRequest, Purpose, emit_marks, read_page},
};

/// What a reading tells the pump.
#[derive(Debug)]
pub(super) enum ReadEvent {
    /// The rows of a chunk.
    Read(Box<ChunkRead<Arc<ChangeBatch>>>),
    /// It could not be read, or its watermark not be written.
    Failed { attempt: Attempt, failure: ReadFailure },
}

/// Where readings connect to, and what they read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) settings: ConnectSettings,
    pub(super) installation: String,
    pub(super) publication: String,
}

/// The pump's end of the readers.
#[derive(Debug)]
pub(super) struct Readers {
    requests: mpsc::UnboundedSender<ReadRequest>,
    // Aborts every reading when the term ends.
    _task: JoinSet<()>,
}

impl Readers {
    /// Starts readers; the events come through the second part.
    pub(super) fn start(reading: Reading) -> (Self, mpsc::UnboundedReceiver<ReadEvent>) {
        let (requests, incoming) = mpsc::unbounded_channel();
        let (outgoing, events) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(serve(Arc::new(reading), incoming, outgoing));
        (Self { requests, _task: task }, events)
    }

    /// Begins a reading, and abandons the one that the run may still have.
    pub(super) fn read(&self, request: ReadRequest) {
        // The machine has at most one reading a run, and bounds what is read ahead.
        let _ = self.requests.send(request);
    }
}

async fn serve(
    reading: Arc<Reading>,
    mut requests: mpsc::UnboundedReceiver<ReadRequest>,
    events: mpsc::UnboundedSender<ReadEvent>,
) {
    let mut idle: Vec<Client> = Vec::new();
    let mut tasks: JoinSet<Option<Client>> = JoinSet::new();
    let mut by_run: HashMap<Arc<str>, AbortHandle> = HashMap::new();
    loop {
        tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return };
                let run = Arc::clone(&request.run);
                let task = tasks.spawn(one(Arc::clone(&reading), request, idle.pop(), events.clone()));
                if let Some(abandoned) = by_run.insert(run, task) {
                    abandoned.abort();
                }
            }
            Some(done) = tasks.join_next() => {
                if let Ok(Some(client)) = done {
                    idle.push(client);
                }
            }
        }
    }
}

/// One reading; gives its connection back where that is still good.
async fn one(
    reading: Arc<Reading>,
    request: ReadRequest,
    client: Option<Client>,
    events: mpsc::UnboundedSender<ReadEvent>,
) -> Option<Client> {
    let attempt = request.attempt;
    let fail = |error: &crate::postgres::Error| {
        debug!(entity = %request.entity, chunk = request.chunk, %error, "a chunk could not be read");
        let timed_out = error.kind() == ErrorKind::Cancelled;
        let failure = ReadFailure { timed_out, message: error.to_string() };
        let _ = events.send(ReadEvent::Failed { attempt, failure });
    };
    let client = match client {
        Some(client) => client,
        None => match reading.settings.connect(Purpose::Snapshot).await {
            Ok(client) => client,
            Err(error) => {
                fail(&error);
                return None;
            }
        },
    };
    match read(&reading, &request, &client, &events).await {
        Ok(()) => Some(client),
        Err(error) => {
            fail(&error);
            None
        }
    }
}

async fn read(
    reading: &Reading,
    request: &ReadRequest,
    client: &Client,
    events: &mpsc::UnboundedSender<ReadEvent>,
) -> Result<(), crate::postgres::Error> {
    let mark = |kind| request.marker(&reading.installation, kind).encode();
    emit_marks(client, &[mark(MarkerKind::Low).as_bytes()]).await?;
    let page = PageRequest {
        entity: &request.entity,
        table: request.table,
        publication: &reading.publication,
        after: request.after.as_ref(),
        limit: request.limit,
        max_bytes: request.max_bytes,
    };
    let page = read_page(client, &page).await?;
    let keys = Keys::of_batch(&page.batch).ok_or_else(|| page.null_key(&request.entity))?;
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
    emit_marks(client, &[mark(MarkerKind::High).as_bytes()]).await
}
