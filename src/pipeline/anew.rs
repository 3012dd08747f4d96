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
