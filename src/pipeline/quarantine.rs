//! Which rows of a mapping are in quarantine, as one lane sees it, and when a failure is none of single rows.
//!
//! The quarantine is the set of rows whose documents may be older than the source, because a change of theirs could
//! not be processed: one entry a row, with the latest change that failed. An entry goes when a later change of the row
//! (or the same, tried again) was accepted. Pure: what is durable, and when, is the lane's business. It must never let
//! an older change close the entry of a newer one.

use std::collections::HashMap;

use crate::model::{Change, ChangeBatch, Lsn, Operation, Origin, push_document_id};

/// Where a change stands in the order of its mapping's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneOrder {
    /// The generation that it was processed for.
    pub generation: i64,
    /// Its commit; for a row of a backfill, everything before this had been handed out before it.
    pub commit_lsn: Lsn,
    /// Its place in the transaction; -1 for a row of a backfill, which comes before what is committed there.
    pub sequence: i64,
}

impl LaneOrder {
    /// The place of a change; `handed` is where the lane stood before a chunk.
    #[must_use]
    pub fn of(batch: &ChangeBatch, change: &Change, generation: i64, handed: Lsn) -> Self {
        match batch.origin {
            Origin::Stream => Self {
                generation,
                commit_lsn: batch.transaction(change).commit_lsn,
                sequence: i64::from(change.sequence),
            },
            Origin::Backfill => Self { generation, commit_lsn: handed, sequence: -1 },
        }
    }
}

/// The rows of one mapping that have an entry, by document id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenRows {
    rows: HashMap<Vec<u8>, LaneOrder>,
}

impl OpenRows {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A row has an entry of this change now, unless it has one of a later one.
    pub fn opened(&mut self, row: &[u8], order: LaneOrder) {
        let kept = self.rows.entry(row.to_vec()).or_insert(order);
        *kept = order.max(*kept);
    }

    /// A row has none any more.
    pub fn closed(&mut self, row: &[u8]) {
        self.rows.remove(row);
    }

    /// Whether the entry of a row is over once this change is accepted.
    #[must_use]
    pub fn is_passed(&self, row: &[u8], order: LaneOrder) -> bool {
        self.rows.get(row).is_some_and(|open| *open <= order)
    }

    /// The rows whose entries are over once this selection is accepted, with the change that ended each. `left` are
    /// the changes that say nothing of their row's document (ascending): they failed, or the transform left what is
    /// there as it is. `kept` are those (ascending) that moved a key, and whose old document is still there, because
    /// the sink would not delete it.
    #[must_use]
    pub fn passed(
        &self,
        batch: &ChangeBatch,
        selection: &[u32],
        left: &[u32],
        kept: &[u32],
        generation: i64,
        handed: Lsn,
    ) -> Vec<(Vec<u8>, LaneOrder)> {
        let mut passed: Vec<(Vec<u8>, LaneOrder)> = Vec::new();
        if self.is_empty() {
            return passed;
        }
        let (mut id, mut old) = (Vec::new(), Vec::new());
        for &index in selection {
            let change = &batch.changes[index as usize];
            let order = LaneOrder::of(batch, change, generation, handed);
            if change.operation == Operation::Truncate {
                let all = self.rows.iter().filter(|(_, open)| **open <= order);
                passed.extend(all.map(|(row, _)| (row.clone(), order)));
                continue;
            }
            let relation = batch.relation(change);
            id.clear();
            let row = change.new.or(change.old).map(|row| batch.row(row));
            let known = row.is_some_and(|row| push_document_id(relation, row, &mut id));
            if known && left.binary_search(&index).is_err() && self.is_passed(&id, order) {
                passed.push((id.clone(), order));
            }
            // A moved key: the document of the old id is deleted, whatever became of the new one, unless the sink
            // refused just that.
            old.clear();
            let before = change.old.filter(|_| change.new.is_some()).map(|row| batch.row(row));
            let moved = before.is_some_and(|row| push_document_id(relation, row, &mut old)) && old != id;
            if moved && kept.binary_search(&index).is_err() && self.is_passed(&old, order) {
                passed.push((old.clone(), order));
            }
        }
        passed
    }

    /// All rows, for a comparison with what is stored.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], LaneOrder)> {
        self.rows.iter().map(|(row, order)| (row.as_slice(), *order))
    }
}

impl FromIterator<(Vec<u8>, LaneOrder)> for OpenRows {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, LaneOrder)>>(rows: I) -> Self {
        let mut open = Self::default();
        rows.into_iter().for_each(|(row, order)| open.opened(&row, order));
        open
    }
}

/// How many have failed one after another, none between them that works: the fault is not theirs then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InARow(usize);

impl InARow {
    /// What it comes to after `total` more, of which those at `failed` (ascending) fail.
    ///
    /// # Errors
    /// More than `limit` fail in a row: how many.
    pub fn after(self, total: usize, failed: &[usize], limit: usize) -> Result<Self, usize> {
        let (mut run, mut next) = (self.0, 0);
        for &at in failed {
            if at > next {
                run = 0;
            }
            run += 1;
            next = at + 1;
            if run > limit {
                return Err(run);
            }
        }
        Ok(Self(if next < total { 0 } else { run }))
    }
}

#[cfg(test)]
mod tests;
