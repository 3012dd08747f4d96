//! What a transform answers to rows, as a sink would get it.

use std::ops::Range;

use crate::{
    model::{ChangeBatch, DocumentOperation, Documents, Failure, Outcome, Outcomes},
    pipeline::{DocumentRules, assemble, guest_selection},
    plugin::{PluginFault, Transform},
};

/// What comes of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What a sink is told, in order; nothing where the destination stays as it is.
    Steps(Vec<Step>),
    /// The row cannot be processed.
    Failed(Failure),
}

/// One document that is put or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its destination, where the transform names another than its own.
    pub destination: Option<String>,
    /// Its id.
    pub id: String,
    /// JSON text; none to remove it.
    pub document: Option<String>,
}

/// The answers to some changes of a batch, one for each.
///
/// # Errors
/// The plugin, not a row, is broken: nothing is answered.
pub async fn answers(
    transform: &Transform,
    batch: &ChangeBatch,
    range: Range<u32>,
) -> Result<Vec<Answer>, PluginFault> {
    let description = transform.description();
    let table = batch.relations.first().map(|relation| relation.name.table.clone()).unwrap_or_default();
    let rules = DocumentRules {
        destination: description.destination.clone().unwrap_or(table),
        generation: 1,
        wants_deletes: description.wants_deletes,
        names_ids: description.names_ids,
    };
    let rows: Vec<u32> = range.collect();
    let asked = guest_selection(batch, &rows, &rules);
    let outcomes = transform.call_isolating(batch, &asked).await?;
    Ok(each(batch, &rows, &asked, outcomes, &rules))
}

/// One row at a time, so that a failure is its own row's.
fn each(
    batch: &ChangeBatch,
    rows: &[u32],
    asked: &[u32],
    mut outcomes: Outcomes,
    rules: &DocumentRules,
) -> Vec<Answer> {
    let mut answered = std::mem::take(&mut outcomes.outcomes).into_iter();
    let mut documents = Documents::new("", batch.origin, rules.generation);
    let mut answers = Vec::with_capacity(rows.len());
    for &row in rows {
        outcomes.outcomes.clear();
        if asked.binary_search(&row).is_ok() {
            outcomes.outcomes.extend(answered.next());
        }
        documents.entries.clear();
        documents.bytes.clear();
        let assembled = match outcomes.outcomes.first() {
            Some(Outcome::Failed(failure)) => Err(failure.clone()),
            _ => assemble(batch, &[row], &outcomes, rules, &mut documents).map_err(|failed| failed.failure),
        };
        answers.push(match assembled {
            Ok(()) => Answer::Steps(steps(&documents, &rules.destination)),
            Err(failure) => Answer::Failed(failure),
        });
    }
    answers
}

fn steps(documents: &Documents, own: &str) -> Vec<Step> {
    let step = |view: crate::model::DocumentView<'_>| Step {
        destination: (view.destination != own).then(|| view.destination.to_owned()),
        id: view.id.to_owned(),
        document: (view.operation == DocumentOperation::Upsert).then(|| view.body.to_owned()),
    };
    documents.iter().map(step).collect()
}
