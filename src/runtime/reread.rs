//! Reads rows again by their keys, where they came without an unchanged TOASTed value, or without a column that
//! was not there at the time.
//!
//! Waits until the change is visible, by the same exact test that the backfill uses: a row that is read
//! before its transaction is visible would be an older one.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::sync::Mutex;
use tracing::warn;

use crate::{
    model::{Cell, ChangeBatch, EntityName, Failure, FailureClass, Origin, Relation, Snapshot},
    pipeline::{complete, incomplete},
    plugin::Transform,
    postgres::{ConnectSettings, Error, Reread, SnapshotReader},
};

use super::metrics::Metrics;

/// How soon a reading that came too early is repeated.
const AGAIN: Duration = Duration::from_millis(20);

/// Completes rows, on one connection that all lanes of a term share.
#[derive(Debug)]
pub(super) struct Rereader {
    settings: ConnectSettings,
    publication: String,
    metrics: Arc<Metrics>,
    connection: Mutex<Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    reader: Option<SnapshotReader>,
    warned: HashSet<EntityName>,
}

impl Rereader {
    pub(super) fn new(settings: ConnectSettings, publication: String, metrics: Arc<Metrics>) -> Self {
        Self { settings, publication, metrics, connection: Mutex::default() }
    }

    /// The batch and selection with complete rows; as they were, where nothing is missing.
    pub(super) async fn complete(
        &self,
        batch: &Arc<ChangeBatch>,
        selection: &[u32],
        transform: &Transform,
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
        let keys: Vec<_> = missing.iter().filter_map(|&index| key_texts(batch, index)).collect();
        let unchanged = batch.cells.contains(&Cell::Unchanged);
        let mut connection = self.connection.lock().await;
        if unchanged && connection.warned.insert(relation.name.clone()) {
            warn!(
                entity = %relation.name,
                "updates come without their unchanged large values, so those rows are read again; \
                 `alter table {} replica identity full` avoids it",
                relation.name,
            );
        }
        let fresh = loop {
            let read = self.read(&mut connection, relation, &keys).await.map_err(|error| {
                let message =
                    format!("rows that came without all their values could not be read again: {error}");
                Failure::new(FailureClass::Retry, "toast-reread", message)
            })?;
            if read.relation.oid != relation.oid {
                // The table that had them is gone, and its documents are purged.
                break ChangeBatch::new(Origin::Backfill);
            }
            if sees_all(&read.snapshot, batch, &missing) {
                break read.batch;
            }
            tokio::time::sleep(AGAIN).await;
        };
        self.metrics.rows_reread(&relation.name.to_string(), missing.len());
        let (batch, selection) = complete(batch, selection, &missing, &fresh, needed);
        Ok((Arc::new(batch), selection))
    }

    async fn read(
        &self,
        connection: &mut Connection,
        relation: &Relation,
        keys: &[Vec<String>],
    ) -> Result<Reread, Error> {
        let mut reader = match connection.reader.take() {
            Some(reader) => reader,
            None => SnapshotReader::open(&self.settings, self.publication.as_str()).await?,
        };
        let read = reader.reread(&relation.name, keys).await?;
        connection.reader = Some(reader);
        Ok(read)
    }
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
