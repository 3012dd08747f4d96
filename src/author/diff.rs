//! What two versions of a transform make of the same rows, counted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    answers::{Answer, Step},
    document::compare,
};
use crate::model::Failure;

/// So many examples are kept of each kind.
const EXAMPLES: usize = 3;
/// So many fields are told apart; documents may have keys that are data.
const FIELDS: usize = 200;

/// The difference so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diff {
    /// Rows that were compared.
    pub rows: u64,
    /// Documents that are the same in both.
    pub unchanged: u64,
    /// Documents that differ.
    pub changed: u64,
    /// Documents that only the new version makes.
    pub added: u64,
    /// Documents that only the old version makes.
    pub removed: u64,
    /// Rows without any document that one version answers with a delete and the other with skip.
    pub answered_otherwise: u64,
    /// Rows that fail in both.
    pub failing: u64,
    /// Rows that fail in the new version only.
    pub broken: u64,
    /// Rows that failed in the old version only.
    pub mended: u64,
    /// What changes in documents, by the path of the field; positions in arrays are left out.
    pub fields: BTreeMap<String, FieldChanges>,
    /// Further fields that changed, of which there were too many to tell apart; counted once a document.
    pub further_fields: u64,
    /// Ids of some documents that were added.
    pub added_ids: Vec<String>,
    /// Ids of some documents that were removed.
    pub removed_ids: Vec<String>,
    /// Some rows that fail in the new version.
    pub failures: Vec<FailedRow>,
}

/// How one field changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldChanges {
    /// In how many documents.
    pub documents: u64,
    /// Some of them.
    pub examples: Vec<Example>,
}

/// One field of one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The document.
    pub id: String,
    /// The field, with positions in arrays.
    pub path: String,
    /// The old value, none where there was none.
    pub old: Option<String>,
    /// The new value, none where there is none.
    pub new: Option<String>,
}

/// A row that fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRow {
    /// The row's document id.
    pub row: String,
    /// The class of the failure.
    pub class: &'static str,
    /// Its code.
    pub code: String,
    /// Its message.
    pub message: String,
    /// Whether the old version failed too.
    pub failed_before: bool,
}

fn keep<T>(examples: &mut Vec<T>, example: impl FnOnce() -> T) {
    if examples.len() < EXAMPLES {
        examples.push(example());
    }
}

impl Diff {
    /// Whether the versions make the same of every row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed + self.added + self.removed + self.answered_otherwise + self.broken + self.mended == 0
    }

    /// Counts the answers to one row.
    pub fn add(&mut self, row: &str, old: &Answer, new: &Answer) {
        self.rows += 1;
        match (old, new) {
            (Answer::Steps(old), Answer::Steps(new)) => self.add_steps(old, new),
            (Answer::Failed(_), Answer::Steps(_)) => self.mended += 1,
            (old, Answer::Failed(failure)) => {
                let failed_before = matches!(old, Answer::Failed(_));
                *(if failed_before { &mut self.failing } else { &mut self.broken }) += 1;
                self.add_failure(row, failure, failed_before);
            }
        }
    }

    fn add_failure(&mut self, row: &str, failure: &Failure, failed_before: bool) {
        keep(&mut self.failures, || FailedRow {
            row: row.to_owned(),
            class: failure.class.as_str(),
            code: failure.code.clone(),
            message: failure.message.clone(),
            failed_before,
        });
    }

    fn add_steps(&mut self, old: &[Step], new: &[Step]) {
        let (olds, news) = (documents(old), documents(new));
        if olds.is_empty() && news.is_empty() && old != new {
            self.answered_otherwise += 1;
        }
        for (key, before) in &olds {
            match news.get(key) {
                Some(after) => self.add_pair(key.1, before, after),
                None => {
                    self.removed += 1;
                    keep(&mut self.removed_ids, || key.1.to_owned());
                }
            }
        }
        for key in news.keys().filter(|key| !olds.contains_key(*key)) {
            self.added += 1;
            keep(&mut self.added_ids, || key.1.to_owned());
        }
    }

    fn add_pair(&mut self, id: &str, old: &str, new: &str) {
        let differences = compare(old, new);
        if differences.is_empty() {
            self.unchanged += 1;
            return;
        }
        self.changed += 1;
        let mut counted = BTreeSet::new();
        let mut further = false;
        for difference in differences {
            if !self.fields.contains_key(&difference.pattern) && self.fields.len() >= FIELDS {
                further = true;
                continue;
            }
            let field = self.fields.entry(difference.pattern.clone()).or_default();
            if counted.insert(difference.pattern) {
                field.documents += 1;
                keep(&mut field.examples, || Example {
                    id: id.to_owned(),
                    path: difference.path,
                    old: difference.left,
                    new: difference.right,
                });
            }
        }
        self.further_fields += u64::from(further);
    }
}

/// What is in the destinations after some steps, of what they name.
fn documents(steps: &[Step]) -> BTreeMap<(Option<&str>, &str), &str> {
    let mut documents = BTreeMap::new();
    for step in steps {
        let key = (step.destination.as_deref(), step.id.as_str());
        match &step.document {
            Some(document) => documents.insert(key, document.as_str()),
            None => documents.remove(&key),
        };
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FailureClass;

    fn steps(steps: &[(&str, Option<&str>)]) -> Answer {
        let step = |&(id, document): &(&str, Option<&str>)| Step {
            destination: None,
            id: id.to_owned(),
            document: document.map(str::to_owned),
        };
        Answer::Steps(steps.iter().map(step).collect())
    }

    fn failed() -> Answer {
        Answer::Failed(Failure::new(FailureClass::Poison, "x", "y"))
    }

    #[test]
    fn documents_are_counted_by_what_happens_to_them() {
        let mut diff = Diff::default();
        diff.add("1", &steps(&[("1", Some("{\"a\": 1}"))]), &steps(&[("1", Some("{\"a\":1}"))]));
        assert!(diff.is_empty(), "white space is nothing");
        diff.add("2", &steps(&[("2", Some("{\"a\":1}"))]), &steps(&[("2", Some("{\"a\":2,\"b\":3}"))]));
        diff.add("3", &steps(&[("3", Some("{}"))]), &steps(&[("3", None)]));
        diff.add("4", &steps(&[("4", None)]), &steps(&[("4", Some("{}")), ("5", Some("{}"))]));
        diff.add("6", &steps(&[("6", None)]), &steps(&[]));
        diff.add("7", &steps(&[("7", Some("{}"))]), &failed());
        diff.add("8", &failed(), &steps(&[("8", Some("{}"))]));
        diff.add("9", &failed(), &failed());
        let counts =
            [diff.rows, diff.unchanged, diff.changed, diff.added, diff.removed, diff.answered_otherwise];
        assert_eq!(counts, [8, 1, 1, 2, 1, 1]);
        assert_eq!([diff.broken, diff.mended, diff.failing], [1, 1, 1]);
        assert_eq!(
            (diff.added_ids.join(","), diff.removed_ids.join(",")),
            ("4,5".to_owned(), "3".to_owned())
        );
        assert_eq!(diff.failures.iter().map(|row| row.failed_before).collect::<Vec<_>>(), [false, true]);
        let b = &diff.fields["b"].examples[0];
        assert_eq!((b.id.as_str(), b.old.as_deref(), b.new.as_deref()), ("2", None, Some("3")));
    }

    #[test]
    fn a_field_counts_once_a_document_and_examples_are_few() {
        let mut diff = Diff::default();
        for id in 0..10 {
            let id = id.to_string();
            diff.add(
                &id,
                &steps(&[(&id, Some("{\"tags\":[1,2,3]}"))]),
                &steps(&[(&id, Some("{\"tags\":[4,5,6]}"))]),
            );
        }
        let tags = &diff.fields["tags[]"];
        assert_eq!((tags.documents, tags.examples.len(), diff.fields.len()), (10, EXAMPLES, 1));
        assert_eq!(tags.examples[0].path, "tags[0]");
    }

    #[test]
    fn keys_that_are_data_do_not_grow_without_end() {
        let mut diff = Diff::default();
        for id in 0..FIELDS + 5 {
            let id = id.to_string();
            let new = format!("{{\"k{id}\":1}}");
            diff.add(&id, &steps(&[(&id, Some("{}"))]), &steps(&[(&id, Some(&new))]));
        }
        assert_eq!((diff.fields.len(), diff.further_fields), (FIELDS, 5));
    }
}
