//! Reads rows again by their keys, where they came without an unchanged TOASTed value, or without a column that
//! was not there at the time.
//!
//! Waits until the change is visible, by the same exact test that the backfill uses: a row that is read
//! before its transaction is visible would be an older one. A reading is bounded in time, like those of a backfill,
//! and one table's must never hold up another's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as Shelf, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex, Semaphore};
use tracing::warn;

use crate::{
    model::{Cell, ChangeBatch, EntityName, Failure, FailureClass, Origin, Relation, Snapshot},
    pipeline::{complete, incomplete},
    plugin::Transform,
    postgres::{ConnectSettings, Error, ErrorKind, Reread, SnapshotReader},
};

use super::{blame::name_row, metrics::Metrics};

/// How soon a reading that came too early is repeated.
const AGAIN: Duration = Duration::from_millis(20);
/// Tables that are read at once.
const SESSIONS: usize = 4;

/// Completes rows, on a few connections that all lanes of a term share.
#[derive(Debug)]
pub(super) struct Rereader {
    settings: ConnectSettings,
    publication: String,
    /// How long the server may take.
    timeout: Duration,
    tables: Shelf<BTreeMap<EntityName, Arc<Mutex<Table>>>>,
    sessions: Semaphore,
    idle: Shelf<Vec<SnapshotReader>>,
    metrics: Arc<Metrics>,
}

/// One table is read by one of its lanes at a time, so that it never takes all sessions.
#[derive(Debug, Default)]
struct Table {
    warned: bool,
}

impl Rereader {
    pub(super) fn new(
        settings: ConnectSettings,
        publication: String,
        timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (tables, idle) = (Shelf::default(), Shelf::default());
        let sessions = Semaphore::new(SESSIONS);
        Self { settings, publication, timeout, tables, sessions, idle, metrics }
    }

    /// The batch and selection with complete rows; as they were, where nothing is missing. Live rows are only read
    /// again where that is `allowed`.
    pub(super) async fn complete(
        &self,
        batch: &Arc<ChangeBatch>,
        selection: &[u32],
        transform: &Transform,
        allowed: bool,
    ) -> Result<(Arc<ChangeBatch>, Vec<u32>), Failure> {
        let needed = transform.plugin().description().columns.as_deref();
        let missing = incomplete(batch, selection, needed);
        if missing.is_empty() {
            return Ok((Arc::clone(batch), selection.to_vec()));
        }
        let Some(relation) = missing.first().map(|&index| batch.relation(&batch.changes[index as usize]))
        else {
            return Ok((Arc::clone(batch), selection.to_vec()));
        };
        if !allowed && batch.origin == Origin::Stream {
            return Err(name_row(not_allowed(relation), batch, missing[0]));
        }
        let keys: Vec<_> = missing.iter().filter_map(|&index| key_texts(batch, index)).collect();
        let unchanged = batch.cells.contains(&Cell::Unchanged);
        let table = self.table(&relation.name);
        let mut table = table.lock().await;
        if unchanged && !std::mem::replace(&mut table.warned, true) {
            warn!(
                entity = %relation.name,
                "updates come without their unchanged large values, so those rows are read again; \
                 `alter table {} replica identity full` avoids it",
                relation.name,
            );
        }
        let fresh = loop {
            let read = match self.read(relation, &keys).await {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::KeyChanged => {
                    warn!(
                        entity = %relation.name,
                        "rows that came without all their values are not read again, since all of the table is built again: {error}"
                    );
                    break ChangeBatch::new(Origin::Backfill);
                }
                Err(error) => {
                    let message =
                        format!("rows that came without all their values could not be read again: {error}");
                    return Err(Failure::new(FailureClass::Retry, "toast-reread", message));
                }
            };
            if !sees_all(&read.snapshot, batch, &missing) {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            if read.relation.oid != relation.oid {
                // The table that had them is gone, and its documents are purged.
                break ChangeBatch::new(Origin::Backfill);
            }
            break read.batch;
        };
        self.metrics.rows_reread(&relation.name.to_string(), missing.len());
        let (batch, selection) = complete(batch, selection, &missing, &fresh, needed);
        Ok((Arc::new(batch), selection))
    }

    fn table(&self, entity: &EntityName) -> Arc<Mutex<Table>> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(tables.entry(entity.clone()).or_default())
    }

    async fn read(&self, relation: &Relation, keys: &[Vec<String>]) -> Result<Reread, Error> {
        // Nobody closes it.
        let _session = self.sessions.acquire().await;
        let idle = self.idle().pop();
        let mut reader = match idle {
            Some(reader) => reader,
            None => SnapshotReader::open(&self.settings, self.publication.as_str()).await?,
        };
        let read = reader.reread(&relation.name, (keys, Some(relation)), Some(self.timeout)).await?;
        self.idle().push(reader);
        Ok(read)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SnapshotReader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a row fails with that came incomplete, where it may not be read again.
pub(super) fn not_allowed(relation: &Relation) -> Failure {
    let message = format!(
        "it came without a value that the transform reads (unchanged and large, or of a column that was not published), \
         and the mapping's `reread = false` forbids to read it again; run: alter table {} replica identity full; and \
         allow it, or request a backfill of the table after a start without the mapping",
        relation.name
    );
    Failure::new(FailureClass::Poison, "incomplete-row", message)
}

fn sees_all(snapshot: &Snapshot, batch: &ChangeBatch, missing: &[u32]) -> bool {
    // A backfill's rows are of an earlier snapshot, which sees no more than this one.
    if batch.origin == Origin::Backfill {
        return true;
    }
    let xid = |&index: &u32| batch.transaction(&batch.changes[index as usize]).xid;
    missing.iter().all(|index| snapshot.sees(xid(index)))
}

/// The key of a change's new row, as text.
fn key_texts(batch: &ChangeBatch, index: u32) -> Option<Vec<String>> {
    let change = &batch.changes[index as usize];
    let relation = batch.relation(change);
    let row = batch.row(change.new?);
    let text = |&at: &usize| row.text(at).and_then(|text| String::from_utf8(text.to_vec()).ok());
    relation.key.iter().map(text).collect()
}
