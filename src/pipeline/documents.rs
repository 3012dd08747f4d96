//! From a transform's outcomes to the documents that a sink gets.
//!
//! Keeps the order of the changes, deletes by document id where the transform does not want deletes, and
//! turns an update of a key into a delete of the old id before the upsert of the new.

use crate::model::{
    Change, ChangeBatch, DocumentEntry, DocumentOperation, Documents, EmittedDocument, Failure, FailureClass,
    Operation, Outcome, Outcomes, push_document_id,
};

/// How a mapping turns outcomes into documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRules {
    /// Where documents land unless they say otherwise.
    pub destination: String,
    /// The generation that they belong to.
    pub generation: i64,
    /// Deletes go to the transform; otherwise the host deletes by document id.
    pub wants_deletes: bool,
    /// The transform names its own ids, so the host never deletes by the key on its own.
    pub names_ids: bool,
}

/// A change that could not become documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeFailure {
    /// Index into the batch's changes.
    pub change: u32,
    /// Why.
    pub failure: Failure,
}

/// Those changes of a selection that the transform is asked about.
#[must_use]
pub fn guest_selection(batch: &ChangeBatch, selection: &[u32], rules: &DocumentRules) -> Vec<u32> {
    let asks = |change: &Change| match change.operation {
        Operation::Insert | Operation::Update | Operation::Read => true,
        Operation::Delete => rules.wants_deletes,
        Operation::Truncate => false,
    };
    selection.iter().copied().filter(|&index| asks(&batch.changes[index as usize])).collect()
}

/// Makes the documents of `selection`, given one outcome for each change of its [`guest_selection`].
///
/// Nothing of a selection with a failed change is returned: its mapping halts.
pub fn assemble(
    batch: &ChangeBatch,
    selection: &[u32],
    outcomes: &Outcomes,
    rules: &DocumentRules,
    documents: &mut Documents,
) -> Result<(), ChangeFailure> {
    assemble_each(batch, selection, outcomes, rules, documents, &mut Err)
}

/// The same, with changes that can never work set aside: they have no documents, except that the document of a key
/// that moved away is deleted. Gives them in order.
///
/// # Errors
/// A failure that is none of the change alone.
pub fn assemble_around(
    batch: &ChangeBatch,
    selection: &[u32],
    outcomes: &Outcomes,
    rules: &DocumentRules,
    documents: &mut Documents,
) -> Result<Vec<ChangeFailure>, ChangeFailure> {
    let mut aside = Vec::new();
    let mut failed = |failed: ChangeFailure| {
        if failed.failure.class != FailureClass::Poison {
            return Err(failed);
        }
        aside.push(failed);
        Ok(())
    };
    assemble_each(batch, selection, outcomes, rules, documents, &mut failed)?;
    Ok(aside)
}

fn assemble_each(
    batch: &ChangeBatch,
    selection: &[u32],
    outcomes: &Outcomes,
    rules: &DocumentRules,
    documents: &mut Documents,
    failed: &mut dyn FnMut(ChangeFailure) -> Result<(), ChangeFailure>,
) -> Result<(), ChangeFailure> {
    // Most changes have one document, with an id of a few bytes.
    documents.entries.reserve(selection.len());
    documents.bytes.reserve(outcomes.bytes.len() + selection.len() * 12);
    let mut assembly = Assembly { batch, rules, documents, id: Vec::new(), destination: 0 };
    assembly.destination = assembly.documents.destination(&rules.destination);
    let mut answers = outcomes.outcomes.iter();
    for &index in selection {
        let change = &batch.changes[index as usize];
        let kept = (assembly.documents.entries.len(), assembly.documents.bytes.len());
        let step = match change.operation {
            Operation::Truncate => Ok(()),
            Operation::Delete if !rules.wants_deletes => assembly.delete_old(index, change),
            _ => {
                let answer = answers.next().ok_or_else(missing_outcome);
                answer.and_then(|outcome| assembly.apply(index, change, outcome, outcomes))
            }
        };
        if let Err(failure) = step {
            failed(ChangeFailure { change: index, failure })?;
            assembly.documents.entries.truncate(kept.0);
            assembly.documents.bytes.truncate(kept.1);
            assembly.leave_moved(index, change);
        }
    }
    Ok(())
}

fn missing_outcome() -> Failure {
    Failure::new(
        FailureClass::Fatal,
        "outcome-count",
        "the transform answered fewer changes than it was sent",
    )
}

struct Assembly<'a> {
    batch: &'a ChangeBatch,
    rules: &'a DocumentRules,
    documents: &'a mut Documents,
    id: Vec<u8>,
    destination: u32,
}

impl Assembly<'_> {
    fn apply(
        &mut self,
        index: u32,
        change: &Change,
        outcome: &Outcome,
        outcomes: &Outcomes,
    ) -> Result<(), Failure> {
        if let Outcome::Failed(failure) = outcome {
            return Err(failure.clone());
        }
        if !self.rules.names_ids {
            self.delete_moved(index, change)?;
        }
        match outcome {
            Outcome::Failed(_) | Outcome::Skip => Ok(()),
            Outcome::Delete => {
                self.load_id(change)?;
                self.push(index, change, DocumentOperation::Delete, self.destination, None);
                Ok(())
            }
            Outcome::Emit { first, count } => {
                let range = *first as usize..(*first + *count) as usize;
                outcomes.documents[range]
                    .iter()
                    .try_for_each(|document| self.emit(index, change, document, outcomes))
            }
        }
    }

    fn emit(
        &mut self,
        index: u32,
        change: &Change,
        document: &EmittedDocument,
        outcomes: &Outcomes,
    ) -> Result<(), Failure> {
        match document.id {
            Some(span) => {
                self.id.clear();
                self.id.extend_from_slice(outcomes.slice(span));
            }
            None => self.load_id(change)?,
        }
        let destination = match document.destination {
            Some(span) => {
                let name = String::from_utf8_lossy(outcomes.slice(span));
                self.documents.destination(&name)
            }
            None => self.destination,
        };
        match outcomes.slice(document.body) {
            [] => self.push(index, change, DocumentOperation::Delete, destination, None),
            body => self.push(index, change, DocumentOperation::Upsert, destination, Some(body)),
        }
        Ok(())
    }

    /// The id under which this change's document stands.
    fn load_id(&mut self, change: &Change) -> Result<(), Failure> {
        let relation = self.batch.relation(change);
        let row = change.new.or(change.old).map(|span| self.batch.row(span));
        self.id.clear();
        let found = row.is_some_and(|row| push_document_id(relation, row, &mut self.id));
        if found { self.check_id() } else { Err(no_id(&relation.name.to_string())) }
    }

    fn check_id(&self) -> Result<(), Failure> {
        std::str::from_utf8(&self.id)
            .map(|_| ())
            .map_err(|_| Failure::new(FailureClass::Poison, "document-id", "the key's text is not UTF-8"))
    }

    fn delete_old(&mut self, index: u32, change: &Change) -> Result<(), Failure> {
        self.load_id(change)?;
        self.push(index, change, DocumentOperation::Delete, self.destination, None);
        Ok(())
    }

    /// An update that moved the key: the document under the old key goes first.
    fn delete_moved(&mut self, index: u32, change: &Change) -> Result<(), Failure> {
        let (Some(old), Some(new)) = (change.old, change.new) else { return Ok(()) };
        let relation = self.batch.relation(change);
        let (old, new) = (self.batch.row(old), self.batch.row(new));
        let moved = relation.key.iter().any(|&column| old.text(column) != new.text(column));
        self.id.clear();
        if moved && push_document_id(relation, old, &mut self.id) {
            self.check_id()?;
            self.push(index, change, DocumentOperation::Delete, self.destination, None);
        }
        Ok(())
    }

    /// A change that failed: what stood under a key that is none any more goes in any case.
    fn leave_moved(&mut self, index: u32, change: &Change) {
        let kept = self.documents.entries.len();
        if !self.rules.names_ids && self.delete_moved(index, change).is_err() {
            // An id that is none has no document.
            self.documents.entries.truncate(kept);
        }
    }

    fn push(
        &mut self,
        index: u32,
        change: &Change,
        operation: DocumentOperation,
        destination: u32,
        body: Option<&[u8]>,
    ) {
        let id = self.documents.push_bytes(&self.id);
        let body = body.map_or((0, 0), |body| self.documents.push_bytes(body));
        let transaction = self.batch.transaction(change);
        self.documents.entries.push(DocumentEntry {
            operation,
            destination,
            id,
            body,
            change: index,
            source: change.operation,
            commit_lsn: transaction.commit_lsn,
            commit_time: transaction.commit_time,
        });
    }
}

fn no_id(table: &str) -> Failure {
    let message = format!(
        "a row of {table} came without its whole key, so its document has no id: \
         give the table a primary key, or a replica identity that covers it"
    );
    Failure::new(FailureClass::Poison, "document-id", message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::model::{
        Cell, Column, EntityName, Lsn, Origin, Relation, ReplicaIdentity, RowSpan, TransactionInfo, ValueType,
    };

    use super::*;

    const RULES: fn() -> DocumentRules = || DocumentRules {
        destination: "products".to_owned(),
        generation: 1,
        wants_deletes: false,
        names_ids: false,
    };

    fn relation() -> Arc<Relation> {
        let column = |name: &str, identity| Column {
            name: name.to_owned(),
            type_oid: 25,
            value_type: ValueType::Text,
            identity,
        };
        Arc::new(Relation {
            oid: 1,
            name: EntityName::new("public", "products"),
            replica_identity: ReplicaIdentity::Default,
            columns: vec![column("id", true), column("name", false)],
            key: vec![0],
        })
    }

    /// A batch of `(operation, old key, new key)`.
    fn batch(changes: &[(Operation, Option<&str>, Option<&str>)]) -> ChangeBatch {
        let mut batch = ChangeBatch::new(Origin::Stream);
        batch.relations.push(relation());
        batch.transactions.push(TransactionInfo {
            xid: 7,
            commit_lsn: Lsn(100),
            end_lsn: Lsn(110),
            commit_time: 0,
        });
        for (sequence, &(operation, old, new)) in (0u32..).zip(changes) {
            let mut row = |key: Option<&str>, rest: Cell| {
                key.map(|key| {
                    let start = u32::try_from(batch.bytes.len()).unwrap();
                    batch.bytes.extend_from_slice(key.as_bytes());
                    let first = u32::try_from(batch.cells.len()).unwrap();
                    batch.cells.push(Cell::Text { start, len: u32::try_from(key.len()).unwrap() });
                    batch.cells.push(rest);
                    RowSpan { first, count: 2 }
                })
            };
            let (old, new) = (row(old, Cell::Unknown), row(new, Cell::Null));
            batch.changes.push(Change { operation, relation: 0, transaction: 0, sequence, new, old });
        }
        batch
    }

    /// Emits `{"n":<position>}` for each `Some(id)`; the id is the document's own where it is not empty.
    fn emitted(ids: &[&str]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let push = |bytes: &mut Vec<u8>, text: &str| {
            let start = u32::try_from(bytes.len()).unwrap();
            bytes.extend_from_slice(text.as_bytes());
            (start, u32::try_from(text.len()).unwrap())
        };
        for (first, id) in (0u32..).zip(ids) {
            let body = push(&mut outcomes.bytes, &format!("{{\"n\":{first}}}"));
            let id = (!id.is_empty()).then(|| push(&mut outcomes.bytes, id));
            outcomes.documents.push(EmittedDocument { id, destination: None, body });
            outcomes.outcomes.push(Outcome::Emit { first, count: 1 });
        }
        outcomes
    }

    fn run(
        changes: &[(Operation, Option<&str>, Option<&str>)],
        outcomes: &Outcomes,
        rules: &DocumentRules,
    ) -> Result<Vec<String>, ChangeFailure> {
        let batch = batch(changes);
        let selection: Vec<u32> = (0..u32::try_from(changes.len()).unwrap()).collect();
        let mut documents = Documents::new("public.products", Origin::Stream, 1);
        assemble(&batch, &selection, outcomes, rules, &mut documents)?;
        let line = |view: crate::model::DocumentView<'_>| match view.operation {
            DocumentOperation::Upsert => format!("+{}/{}={}", view.destination, view.id, view.body),
            DocumentOperation::Delete => format!("-{}/{}", view.destination, view.id),
        };
        Ok(documents.iter().map(line).collect())
    }

    #[test]
    fn documents_keep_the_order_of_the_changes() {
        let changes = [
            (Operation::Insert, None, Some("1")),
            (Operation::Delete, Some("1"), None),
            (Operation::Insert, None, Some("1")),
        ];
        let lines = run(&changes, &emitted(&["", ""]), &RULES()).unwrap();
        assert_eq!(lines, [r#"+products/1={"n":0}"#, "-products/1", r#"+products/1={"n":1}"#]);
    }

    #[test]
    fn a_moved_key_is_a_delete_and_an_upsert() {
        let changes = [(Operation::Update, Some("1"), Some("2"))];
        let lines = run(&changes, &emitted(&[""]), &RULES()).unwrap();
        assert_eq!(lines, ["-products/1", r#"+products/2={"n":0}"#]);
        let skipped = Outcomes { outcomes: vec![Outcome::Skip], ..Outcomes::default() };
        assert_eq!(run(&changes, &skipped, &RULES()).unwrap(), ["-products/1"], "also when it is skipped");
        let same = [(Operation::Update, Some("1"), Some("1"))];
        assert_eq!(run(&same, &emitted(&[""]), &RULES()).unwrap(), [r#"+products/1={"n":0}"#]);
    }

    #[test]
    fn a_transform_that_names_its_ids_deletes_by_itself() {
        let rules = DocumentRules { wants_deletes: true, names_ids: true, ..RULES() };
        let changes = [(Operation::Update, Some("1"), Some("2")), (Operation::Delete, Some("2"), None)];
        let mut outcomes = emitted(&["p-2", "p-2"]);
        outcomes.documents[1].body = (0, 0);
        let lines = run(&changes, &outcomes, &rules).unwrap();
        assert_eq!(lines, [r#"+products/p-2={"n":0}"#, "-products/p-2"], "no body: the document goes");
    }

    #[test]
    fn a_row_answered_with_delete_has_no_document() {
        let outcomes = Outcomes { outcomes: vec![Outcome::Delete], ..Outcomes::default() };
        let changes = [(Operation::Update, None, Some("1"))];
        assert_eq!(run(&changes, &outcomes, &RULES()).unwrap(), ["-products/1"]);
    }

    #[test]
    fn a_failed_change_is_named() {
        let failure = Failure::new(FailureClass::Poison, "price", "no price");
        let mut outcomes = emitted(&[""]);
        outcomes.outcomes.push(Outcome::Failed(failure.clone()));
        let changes = [(Operation::Insert, None, Some("1")), (Operation::Insert, None, Some("2"))];
        assert_eq!(run(&changes, &outcomes, &RULES()), Err(ChangeFailure { change: 1, failure }));
    }

    #[test]
    fn failed_changes_are_set_aside_and_the_others_keep_their_order() {
        let changes = [
            (Operation::Insert, None, Some("1")),
            (Operation::Update, Some("2"), Some("3")),
            (Operation::Delete, Some("4"), None),
        ];
        let failure = |class| Outcome::Failed(Failure::new(class, "price", "no price"));
        let around = |class| {
            let mut outcomes = emitted(&[""]);
            outcomes.outcomes.push(failure(class));
            let mut documents = Documents::new("public.products", Origin::Stream, 1);
            let batch = batch(&changes);
            let aside = assemble_around(&batch, &[0, 1, 2], &outcomes, &RULES(), &mut documents)?;
            let ids: Vec<String> = documents.iter().map(|view| view.id.to_owned()).collect();
            Ok::<_, ChangeFailure>((aside.into_iter().map(|failed| failed.change).collect::<Vec<_>>(), ids))
        };
        let ids = ["1", "2", "4"].map(str::to_owned).to_vec();
        assert_eq!(around(FailureClass::Poison), Ok((vec![1], ids)), "the old id of the moved key goes");
        assert_eq!(around(FailureClass::Retry).unwrap_err().change, 1);
        assert_eq!(around(FailureClass::Fatal).unwrap_err().change, 1);
    }

    #[test]
    fn a_missing_outcome_is_never_taken_for_skip() {
        let changes = [(Operation::Insert, None, Some("1")), (Operation::Insert, None, Some("2"))];
        let failed = run(&changes, &emitted(&[""]), &RULES()).unwrap_err();
        assert_eq!((failed.change, failed.failure.code.as_str()), (1, "outcome-count"));
    }

    #[test]
    fn deletes_go_to_the_transform_only_where_it_wants_them() {
        let batch = batch(&[
            (Operation::Insert, None, Some("1")),
            (Operation::Delete, Some("1"), None),
            (Operation::Truncate, None, None),
        ]);
        assert_eq!(guest_selection(&batch, &[0, 1, 2], &RULES()), [0]);
        let rules = DocumentRules { wants_deletes: true, ..RULES() };
        assert_eq!(guest_selection(&batch, &[0, 1, 2], &rules), [0, 1]);
    }
}
