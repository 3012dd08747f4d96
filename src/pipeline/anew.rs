//! What a transform leaves as it is (`skip`), where a destination is built anew and nothing of it is there yet.
//!
//! A rebuild leaves out rows that the stream has overtaken: the live change brings them. One that is skipped brings
//! nothing. It is asked about once more, as a row that is read, for what is built alone.

use crate::model::{ChangeBatch, Operation, Origin, Outcome, Outcomes};

/// The live changes with a row that were answered with `skip`, of those that were asked about.
#[must_use]
pub fn left_as_it_is(batch: &ChangeBatch, asked: &[u32], outcomes: &Outcomes) -> Vec<u32> {
    if batch.origin != Origin::Stream {
        return Vec::new();
    }
    let has_row = |index: u32| {
        let operation = batch.changes[index as usize].operation;
        matches!(operation, Operation::Insert | Operation::Update)
    };
    let answers = asked.iter().zip(&outcomes.outcomes);
    answers
        .filter(|(index, outcome)| matches!(outcome, Outcome::Skip) && has_row(**index))
        .map(|(index, _)| *index)
        .collect()
}

/// The batch with these changes as if their rows were read at their place.
#[must_use]
pub fn as_read(batch: &ChangeBatch, changes: &[u32]) -> ChangeBatch {
    let mut batch = batch.clone();
    for &index in changes {
        let change = &mut batch.changes[index as usize];
        (change.operation, change.old) = (Operation::Read, None);
    }
    batch
}

#[cfg(test)]
mod tests {
    use crate::model::{Change, RowSpan};

    use super::*;

    fn batch(origin: Origin, operations: &[Operation]) -> ChangeBatch {
        let mut batch = ChangeBatch::new(origin);
        for (sequence, &operation) in (0..).zip(operations) {
            let row = Some(RowSpan { first: sequence, count: 1 });
            batch.changes.push(Change {
                operation,
                relation: 0,
                transaction: 0,
                sequence,
                new: row,
                old: row,
            });
        }
        batch
    }

    #[test]
    fn live_rows_that_are_skipped_are_asked_about_as_read_ones() {
        let all = [Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];
        let live = batch(Origin::Stream, &[&all[..], &all].concat());
        let asked = [0, 1, 2, 3, 4, 5];
        let mut outcomes = Outcomes { outcomes: vec![Outcome::Skip; 6], ..Outcomes::default() };
        outcomes.outcomes[4] = Outcome::Delete;
        let skipped = left_as_it_is(&live, &asked, &outcomes);
        assert_eq!(skipped, [0, 1, 5], "neither what has no row, nor what was answered otherwise");
        let read = as_read(&live, &skipped);
        for (index, (change, before)) in (0..).zip(read.changes.iter().zip(&live.changes)) {
            if skipped.contains(&index) {
                assert_eq!((change.operation, change.new, change.old), (Operation::Read, before.new, None));
            } else {
                assert_eq!(change, before);
            }
        }
        let built = batch(Origin::Backfill, &[Operation::Insert, Operation::Read]);
        assert!(
            left_as_it_is(&built, &[0, 1], &outcomes).is_empty(),
            "what is read is not asked about twice"
        );
    }
}
