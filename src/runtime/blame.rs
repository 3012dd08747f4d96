//! Says of a failure which row or document it is about.

use crate::model::{ChangeBatch, DocumentOperation, Documents, Failure, Origin};

/// Names the row that a transform failed on.
pub(super) fn name_row(failure: Failure, batch: &ChangeBatch, change: u32) -> Failure {
    let Some(change) = batch.changes.get(change as usize) else { return failure };
    let relation = batch.relation(change);
    let row = change.new.or(change.old).map(|span| batch.row(span));
    let id = row.and_then(|row| crate::model::document_id(relation, row));
    let at = match batch.origin {
        Origin::Stream => format!("LSN {}", batch.transaction(change).commit_lsn),
        Origin::Backfill => "a backfill".to_owned(),
    };
    let id = id.unwrap_or_else(|| "unknown".to_owned());
    Failure { message: format!("{} (row {id} of {}, {at})", failure.message, relation.name), ..failure }
}

/// Names the document that a sink did not take.
pub(super) fn name_document(failure: Failure, documents: &Documents, index: usize) -> Failure {
    let Some(document) = documents.view(index) else { return failure };
    let verb = match document.operation {
        DocumentOperation::Upsert => "upsert",
        DocumentOperation::Delete => "delete",
    };
    let message = format!(
        "{} ({verb} of document {} in {}, from {})",
        failure.message, document.id, document.destination, documents.entity
    );
    Failure { message, ..failure }
}
