//! What is in quarantine, and what an operator does with it: look, try again, drop.
//!
//! Trying again is reading the rows again: a request for a backfill of their keys, for the one mapping, which the
//! leader carries out beside the stream. So it runs under today's revision, brings what the source has today, and
//! loses against every change that comes meanwhile; a row that is gone loses its document. Guarantees that an entry
//! goes only with a change of its row that the sink has accepted, or because somebody drops it. Must never deliver
//! what is stored in an entry.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use crate::state::{CHANNEL, QuarantineEntry, QuarantineFilter};

use super::{Control, ControlError};

/// How often is looked, where nobody tells.
const POLL: Duration = Duration::from_secs(1);

/// The JSON shape of an entry.
#[derive(Clone, Debug, Serialize)]
pub struct EntryShape {
    /// Its number.
    pub id: i64,
    /// Whose it is.
    pub mapping: String,
    /// The mapping's table.
    pub entity: String,
    /// The document id of the row: its key.
    pub key: String,
    /// `insert`, `update`, `delete` or `read`.
    pub operation: String,
    /// `stream` or `backfill`.
    pub origin: String,
    /// The commit of the change; for a row of a backfill, where it stood.
    pub lsn: String,
    /// Its place in the transaction; null for a row of a backfill.
    pub index: Option<i64>,
    /// When it was committed; null for a row of a backfill.
    pub committed: Option<String>,
    /// The generation of the mapping.
    pub generation: i64,
    /// `transform` or `delivery`.
    pub stage: String,
    /// The transform's revision.
    pub plugin: String,
    /// The sink's name.
    pub sink: String,
    /// A failure of this class: always `poison`.
    pub class: &'static str,
    /// A short stable word.
    pub code: String,
    /// What is wrong.
    pub reason: String,
    /// How often changes of the row have failed since it is here.
    pub attempts: i32,
    /// Since when it is here.
    pub first: String,
    /// When the last of them failed.
    pub last: String,
    /// `waiting`, or `replaying` while the row is about to be read again.
    pub status: &'static str,
    /// Whether its row can be read again by its key.
    pub replayable: bool,
}

/// An entry with what it is about.
#[derive(Clone, Debug, Serialize)]
pub struct EntryDetails {
    /// What the list shows, too.
    #[serde(flatten)]
    pub entry: EntryShape,
    /// The row's values in the server's text, `new` and `old` as far as they came.
    pub payload: serde_json::Value,
    /// Columns of which the payload has only the beginning.
    pub cut: Vec<String>,
    /// The document that the sink did not take; null where it was the transform that failed.
    pub document: Option<DocumentShape>,
}

/// A document that a sink did not take.
#[derive(Clone, Debug, Serialize)]
pub struct DocumentShape {
    /// Where it was to go.
    pub destination: String,
    /// Its id.
    pub id: String,
    /// The beginning of its body; null for a delete.
    pub body: Option<String>,
}

/// What became of trying again.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Replayed {
    /// The entries whose rows are read again.
    pub asked: Vec<i64>,
    /// Those whose rows cannot be found by a key.
    pub without_key: Vec<i64>,
}

/// Where entries stand that are tried again.
#[derive(Clone, Debug, Default)]
pub struct ReplayStanding {
    /// Not there any more: accepted, or dropped.
    pub gone: usize,
    /// Still about to be read.
    pub pending: usize,
    /// Read again, and still there.
    pub failed: Vec<EntryShape>,
}

impl From<&QuarantineEntry> for EntryShape {
    fn from(entry: &QuarantineEntry) -> Self {
        Self {
            id: entry.id,
            mapping: entry.mapping.clone(),
            entity: entry.entity.to_string(),
            key: entry.row.clone(),
            operation: entry.operation.clone(),
            origin: entry.origin.clone(),
            lsn: entry.order.commit_lsn.to_string(),
            index: Some(entry.order.sequence).filter(|sequence| *sequence >= 0),
            committed: entry.committed.clone(),
            generation: entry.order.generation,
            stage: entry.stage.clone(),
            plugin: entry.plugin.clone(),
            sink: entry.sink.clone(),
            class: "poison",
            code: entry.code.clone(),
            reason: entry.reason.clone(),
            attempts: entry.attempts,
            first: entry.first.clone(),
            last: entry.last.clone(),
            status: if entry.replaying { "replaying" } else { "waiting" },
            replayable: entry.key.is_some(),
        }
    }
}

impl From<&QuarantineEntry> for EntryDetails {
    fn from(entry: &QuarantineEntry) -> Self {
        let payload = serde_json::from_str(&entry.payload);
        Self {
            entry: EntryShape::from(entry),
            payload: payload.unwrap_or_else(|_| serde_json::Value::String(entry.payload.clone())),
            cut: entry.cut.clone(),
            document: entry.document.as_ref().map(|document| DocumentShape {
                destination: document.destination.clone(),
                id: document.id.clone(),
                body: document.body.clone(),
            }),
        }
    }
}

impl Control {
    /// Entries, the oldest first, and how many more there are than `limit`. None where no host has run yet.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn quarantine(
        &self,
        filter: &QuarantineFilter,
        limit: Option<u32>,
    ) -> Result<(Vec<QuarantineEntry>, u64), ControlError> {
        if !self.store.ready(&self.client).await? {
            return Ok((Vec::new(), 0));
        }
        Ok(self.store.quarantine_entries(&self.client, filter, limit.map(i64::from)).await?)
    }

    /// Has the rows of entries read again, for their mapping alone.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn replay(&self, filter: &QuarantineFilter) -> Result<Replayed, ControlError> {
        let (entries, _) = self.quarantine(filter, None).await?;
        let mut replayed = Replayed::default();
        let mut keys: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        for entry in entries {
            match entry.key {
                Some(key) => {
                    replayed.asked.push(entry.id);
                    keys.entry(entry.mapping).or_default().insert(key);
                }
                None => replayed.without_key.push(entry.id),
            }
        }
        for (mapping, keys) in keys {
            self.store.read_again(&self.client, &mapping, keys).await?;
        }
        Ok(replayed)
    }

    /// Waits until none of these entries is about to be read any more, for so long at the most.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn replay_wait(
        &mut self,
        ids: &[i64],
        limit: Option<Duration>,
    ) -> Result<ReplayStanding, ControlError> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if ids.is_empty() {
            return Ok(ReplayStanding::default());
        }
        let listened = self.client.batch_execute(&format!("listen {CHANNEL}")).await.is_ok();
        let filter = QuarantineFilter { ids: ids.to_vec(), ..QuarantineFilter::default() };
        loop {
            let (left, _) = self.quarantine(&filter, None).await?;
            let (pending, failed): (Vec<_>, Vec<_>) = left.iter().partition(|entry| entry.replaying);
            let standing = ReplayStanding {
                gone: ids.len() - left.len(),
                pending: pending.len(),
                failed: failed.into_iter().map(EntryShape::from).collect(),
            };
            if standing.pending == 0 || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(standing);
            }
            let pause = until.map_or(POLL, |until| POLL.min(until.saturating_duration_since(Instant::now())));
            if listened {
                // Told, or time to look.
                let _ = timeout(pause, self.client.notification()).await;
            } else {
                sleep(pause).await;
            }
        }
    }

    /// Forgets entries; their rows' documents stay as they are. Gives their numbers.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn drop_quarantined(&self, filter: &QuarantineFilter) -> Result<Vec<i64>, ControlError> {
        if !self.store.ready(&self.client).await? {
            return Ok(Vec::new());
        }
        Ok(self.store.drop_quarantined(&self.client, filter).await?)
    }
}
