//! Which mapping gets which change of a batch, in commit order.

use std::collections::HashMap;

use crate::model::{ChangeBatch, EntityName, Operation};

use super::{LaneId, Ledger};

/// Which lanes follow which entity.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    by_entity: HashMap<EntityName, Vec<LaneId>>,
}

/// The changes of one batch for one lane: indices into [`ChangeBatch::changes`], ascending.
pub type Selection = Vec<u32>;

impl Subscriptions {
    /// `lane` follows `entity`.
    pub fn add(&mut self, entity: EntityName, lane: LaneId) {
        self.by_entity.entry(entity).or_default().push(lane);
    }

    /// Whether any lane follows `entity`.
    #[must_use]
    pub fn contains(&self, entity: &EntityName) -> bool {
        self.by_entity.contains_key(entity)
    }

    /// The lanes that follow `entity`.
    #[must_use]
    pub fn lanes(&self, entity: &EntityName) -> &[LaneId] {
        self.by_entity.get(entity).map_or(&[], Vec::as_slice)
    }

    /// Splits a batch of the stream by lane. A lane that was handed a transaction before (it is re-read after
    /// a restart), or that does not follow the stream now, does not get it.
    #[must_use]
    pub fn route(&self, batch: &ChangeBatch, ledger: &Ledger) -> Vec<(LaneId, Selection)> {
        let targets: Vec<&[LaneId]> =
            batch.relations.iter().map(|relation| self.lanes(&relation.name)).collect();
        let mut selections: Vec<(LaneId, Selection)> = Vec::new();
        for (index, change) in (0u32..).zip(&batch.changes) {
            let commit_lsn = batch.transaction(change).commit_lsn;
            for &lane in targets[change.relation as usize] {
                if !ledger.wants(lane, commit_lsn) {
                    continue;
                }
                match selections.iter_mut().find(|(known, _)| *known == lane) {
                    Some((_, selection)) => selection.push(index),
                    None => selections.push((lane, vec![index])),
                }
            }
        }
        selections
    }
}

/// A run of changes of one relation version, or a TRUNCATE: what one call of a transform, or one purge,
/// can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Changes of rows, all of the same relation.
    Rows(Selection),
    /// The table was emptied by this change.
    Truncate(u32),
}

/// Cuts a selection into segments, keeping its order.
#[must_use]
pub fn segments(batch: &ChangeBatch, selection: &[u32], max_rows: usize) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for &index in selection {
        let change = &batch.changes[index as usize];
        if change.operation == Operation::Truncate {
            segments.push(Segment::Truncate(index));
            continue;
        }
        match segments.last_mut() {
            Some(Segment::Rows(rows))
                if rows.len() < max_rows && batch.changes[rows[0] as usize].relation == change.relation =>
            {
                rows.push(index);
            }
            _ => segments.push(Segment::Rows(vec![index])),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::model::{Change, Lsn, Origin, Relation, ReplicaIdentity, TransactionInfo};

    use super::*;

    fn relation(schema: &str, table: &str) -> Arc<Relation> {
        Arc::new(Relation {
            oid: 1,
            name: EntityName::new(schema, table),
            replica_identity: ReplicaIdentity::Default,
            columns: Vec::new(),
            key: Vec::new(),
        })
    }

    fn batch(changes: &[(usize, u64, Operation)], relations: Vec<Arc<Relation>>) -> ChangeBatch {
        let mut batch = ChangeBatch::new(Origin::Stream);
        batch.relations = relations;
        for (sequence, &(relation, lsn, operation)) in (0u32..).zip(changes) {
            let info =
                TransactionInfo { xid: 1, commit_lsn: Lsn(lsn), end_lsn: Lsn(lsn + 5), commit_time: 0 };
            if batch.transactions.last() != Some(&info) {
                batch.transactions.push(info);
            }
            batch.changes.push(Change {
                operation,
                relation: u32::try_from(relation).unwrap(),
                transaction: u32::try_from(batch.transactions.len() - 1).unwrap(),
                sequence,
                new: None,
                old: None,
            });
        }
        batch
    }

    #[test]
    fn c021_same_name_in_two_schemas() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add(EntityName::new("a", "items"), LaneId(1));
        subscriptions.add(EntityName::new("b", "items"), LaneId(2));
        let mut ledger = Ledger::new(Lsn(0));
        ledger.attach(LaneId(1), Lsn(0));
        ledger.attach(LaneId(2), Lsn(0));
        let batch = batch(
            &[(0, 10, Operation::Insert), (1, 10, Operation::Insert), (0, 20, Operation::Delete)],
            vec![relation("a", "items"), relation("b", "items")],
        );
        let routed = subscriptions.route(&batch, &ledger);
        assert_eq!(routed, vec![(LaneId(1), vec![0, 2]), (LaneId(2), vec![1])]);
    }

    #[test]
    fn what_a_lane_had_before_is_not_handed_out_again() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add(EntityName::new("a", "items"), LaneId(1));
        let mut ledger = Ledger::new(Lsn(0));
        ledger.attach(LaneId(1), Lsn(15));
        let batch =
            batch(&[(0, 10, Operation::Insert), (0, 15, Operation::Insert)], vec![relation("a", "items")]);
        assert_eq!(subscriptions.route(&batch, &ledger), vec![(LaneId(1), vec![1])]);
    }

    #[test]
    fn a_truncate_and_a_new_relation_cut_a_selection() {
        let batch = batch(
            &[
                (0, 10, Operation::Insert),
                (0, 10, Operation::Insert),
                (0, 10, Operation::Truncate),
                (0, 20, Operation::Insert),
                (1, 20, Operation::Insert),
            ],
            vec![relation("a", "items"), relation("a", "items")],
        );
        let cut = segments(&batch, &[0, 1, 2, 3, 4], 100);
        let rows = |list: &[u32]| Segment::Rows(list.to_vec());
        assert_eq!(cut, vec![rows(&[0, 1]), Segment::Truncate(2), rows(&[3]), rows(&[4])]);
        assert_eq!(segments(&batch, &[0, 1], 1), vec![rows(&[0]), rows(&[1])]);
    }
}
