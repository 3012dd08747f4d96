//! Says of a failure which row or document it is about.

use std::sync::Arc;

use crate::model::{ChangeBatch, DocumentOperation, Documents, Failure, Origin};

/// The shortest text that is taken for a secret: shorter ones stand in ordinary words, too.
const SECRET: usize = 8;

/// Takes the values of a plugin's settings out of what it says: it was given them, and may repeat them.
#[derive(Clone, Debug, Default)]
pub(super) struct Redactor(Arc<[String]>);

impl Redactor {
    pub(super) fn new<'a>(values: impl IntoIterator<Item = &'a String>) -> Self {
        let mut values: Vec<String> =
            values.into_iter().filter(|value| value.len() >= SECRET).cloned().collect();
        // A value that is part of another one must not spoil it.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values.into())
    }

    pub(super) fn clean(&self, failure: Failure) -> Failure {
        let clean = |text: String| self.0.iter().fold(text, |text, value| text.replace(value, "***"));
        Failure { code: clean(failure.code), message: clean(failure.message), ..failure }
    }
}

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

#[cfg(test)]
mod tests {
    use crate::model::FailureClass;

    use super::*;

    #[test]
    fn c096_what_a_plugin_repeats_of_its_settings_is_taken_out() {
        let values = ["token-1234".to_owned(), "token-1234-longer".to_owned(), "en".to_owned()];
        let redactor = Redactor::new(&values);
        let failure = Failure::new(FailureClass::Poison, "token-1234", "en: token-1234-longer, token-1234");
        let clean = redactor.clean(failure);
        assert_eq!((clean.code.as_str(), clean.message.as_str()), ("***", "en: ***, ***"));
    }
}
