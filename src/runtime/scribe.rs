//! Writes what must survive a restart, in order, on a connection of its own.
//!
//! The pump notes and goes on; nothing waits for the state schema. What is noted late is only ever progress:
//! a crash before it was written repeats work and loses none.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::{
    backfill::Report,
    model::{Lsn, Place, Snapshot},
    postgres::{Client, Flush},
    state::{MappingStatus, Store, StoredMapping, StoredRequest, StoredRun},
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    error::TermError,
};

/// Something to write, or to ask.
#[derive(Debug)]
pub(super) enum Note {
    /// How far everything is.
    Positions { confirmed: Lsn, accepted: Vec<(String, Lsn)> },
    /// A mapping as a whole.
    Mapping(Box<StoredMapping>),
    /// How a mapping is.
    MappingStatus { mapping: String, status: MappingStatus, error: Option<String>, attempts: u32 },
    /// A run as a whole.
    Run(Box<StoredRun>),
    /// What was asked for is about to be done: mappings and a run as wholes, in place of the requests.
    Requested { mappings: Vec<StoredMapping>, run: Option<Box<StoredRun>>, requests: Vec<i64> },
    /// A part of what was asked for could not be done now: it is asked for again.
    AskAgain(Box<StoredRequest>),
    /// The first page of a run is about to be read, unless somebody has withdrawn it.
    Begin { run: Arc<str> },
    /// A scoped run was covered by another.
    ForgetScoped { run: Arc<str> },
    /// The purge of a mapping that was due is done.
    Purged { mapping: String },
    /// Where a mapping is built beside what readers see; none: nowhere any more.
    Building { mapping: String, building: Option<Place> },
    /// Tell when everything that was noted before is saved.
    Barrier(u64),
    /// A run's progress.
    Cursor { run: Arc<str>, cursor: String, rows: u64, chunks: u64, report: Report },
    /// A run's account.
    Report { run: Arc<str>, report: Report },
    /// A run begins again.
    Restart { run: Arc<str> },
    /// A mapping is no part of a run any more.
    Leave { run: Arc<str>, mapping: String },
    /// A run failed.
    Fail { run: Arc<str>, attempts: u32, not_before: i64, error: String },
    /// A run is complete, and built these generations.
    Complete { run: Arc<str>, rows: u64, chunks: u64, report: Report, built: Vec<(String, i64)> },
    /// Take a snapshot and tell it.
    Probe,
    /// Write something into the WAL, so that an idle slot moves.
    Heartbeat,
}

/// What the scribe tells.
#[derive(Debug)]
pub(super) enum ScribeEvent {
    /// The answer to [`Note::Probe`].
    Snapshot(Snapshot),
    /// The answer to [`Note::Begin`].
    Begun { run: Arc<str>, granted: bool },
    /// Everything that was noted before this [`Note::Barrier`] is saved.
    Passed(u64),
    /// This position is saved, and may be confirmed to the server.
    Saved(Lsn),
    /// Nothing can be written any more: the term ends.
    Failed(TermError),
}

/// The pump's end of the scribe.
#[derive(Debug)]
pub(super) struct Scribe {
    notes: mpsc::UnboundedSender<Note>,
    pub(super) events: mpsc::UnboundedReceiver<ScribeEvent>,
    task: AbortOnDropHandle<()>,
}

impl Scribe {
    /// Starts the scribe of an installation.
    pub(super) fn start(installation: &str, client: Client) -> Self {
        let (notes, incoming) = mpsc::unbounded_channel();
        let (outgoing, events) = mpsc::unbounded_channel();
        let store = Store::new(installation);
        let task = AbortOnDropHandle::new(tokio::spawn(serve(
            store,
            client,
            installation.to_owned(),
            incoming,
            outgoing,
        )));
        Self { notes, events, task }
    }

    /// Notes something; never waits.
    pub(super) fn note(&self, note: Note) {
        // A scribe that ended has told why, which ends the term.
        let _ = self.notes.send(note);
    }

    /// Writes what was noted and ends, within `limit`.
    pub(super) async fn finish(self, limit: Duration) {
        let Self { notes, mut task, .. } = self;
        drop(notes);
        if tokio::time::timeout(limit, &mut task).await.is_err() {
            debug!(
                "the state schema did not take the last notes in time; they are repeated at the next start"
            );
            task.abort();
        }
    }
}

async fn serve(
    store: Store,
    client: Client,
    installation: String,
    mut notes: mpsc::UnboundedReceiver<Note>,
    events: mpsc::UnboundedSender<ScribeEvent>,
) {
    while let Some(note) = notes.recv().await {
        let written = tokio::select! {
            written = answered("the state schema", ANSWER_LIMIT, write(&store, &client, &installation, note, &events)) => written,
            error = client.ended() => Err(error.into()),
        };
        if let Err(error) = written {
            let _ = events.send(ScribeEvent::Failed(error));
            return;
        }
    }
    client.close().await;
}

async fn write(
    store: &Store,
    client: &Client,
    installation: &str,
    note: Note,
    events: &mpsc::UnboundedSender<ScribeEvent>,
) -> Result<(), TermError> {
    match note {
        Note::Positions { confirmed, accepted } => {
            store.save_positions(client, confirmed, &accepted).await?;
            let _ = events.send(ScribeEvent::Saved(confirmed));
        }
        Note::Mapping(mapping) => store.save_mapping(client, &mapping).await?,
        Note::MappingStatus { mapping, status, error, attempts } => {
            let attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
            store.save_mapping_status(client, &mapping, status, error.as_deref(), attempts).await?;
        }
        Note::Run(run) => store.save_run(client, &run).await?,
        Note::Requested { mappings, run, requests } => {
            store.start_requested(client, &mappings, run.as_deref(), &requests).await?;
        }
        Note::AskAgain(request) => store.request_again(client, &request).await?,
        Note::Begin { run } => {
            let granted = store.begin_run(client, &run).await?;
            let _ = events.send(ScribeEvent::Begun { run, granted });
        }
        Note::ForgetScoped { run } => store.forget_scoped(client, &run).await?,
        Note::Purged { mapping } => store.purged(client, &mapping).await?,
        Note::Building { mapping, building } => {
            store.save_building(client, &mapping, building.as_ref()).await?;
        }
        Note::Barrier(number) => {
            let _ = events.send(ScribeEvent::Passed(number));
        }
        Note::Cursor { run, cursor, rows, chunks, report } => {
            store.save_cursor(client, &run, &cursor, signed(rows), signed(chunks), &report).await?;
        }
        Note::Report { run, report } => store.save_report(client, &run, &report).await?,
        Note::Restart { run } => store.restart_run(client, &run).await?,
        Note::Leave { run, mapping } => store.leave_run(client, &run, &mapping).await?,
        Note::Fail { run, attempts, not_before, error } => {
            let attempts = i32::try_from(attempts).unwrap_or(i32::MAX);
            store.fail_run(client, &run, attempts, not_before, &error).await?;
        }
        Note::Complete { run, rows, chunks, report, built } => {
            store.complete_run(client, &run, signed(rows), signed(chunks), &built, &report).await?;
        }
        Note::Probe => {
            let snapshot = client.current_snapshot().await?;
            let _ = events.send(ScribeEvent::Snapshot(snapshot));
        }
        Note::Heartbeat => {
            let content = format!("heartbeat/1 {installation}");
            client.emit_messages(&[content], Flush::Now).await?;
        }
    }
    Ok(())
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
