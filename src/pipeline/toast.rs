//! Rows that came incomplete: the server does not send a TOASTed value that an update did not touch, nor a column
//! that the table did not have when the row was sent, and has (again) today.
//!
//! Where the replica identity did not carry it either, the row is read again by its key, once the change is
//! visible, and takes the place of what came. Pure: says which rows, and puts them in.

use std::{collections::HashMap, sync::Arc};

use crate::model::{Cell, Change, ChangeBatch, Column, Operation, Relation, RowSpan, push_document_id};

use super::Selection;

/// Those changes of a selection whose new row lacks a column that is needed (none named: any column).
#[must_use]
pub fn incomplete(batch: &ChangeBatch, selection: &[u32], needed: Option<&[String]>) -> Selection {
    let narrow: Vec<bool> = batch.relations.iter().map(|relation| is_narrow(relation, needed)).collect();
    if !batch.cells.contains(&Cell::Unchanged) && !narrow.contains(&true) {
        return Vec::new();
    }
    let lacks = |change: &Change| {
        let Some(new) = change.new else { return false };
        let relation = batch.relation(change);
        if narrow.get(change.relation as usize) == Some(&true) {
            return true;
        }
        let row = batch.row(new);
        let needs = |name: &String| needed.is_none_or(|needed| needed.contains(name));
        let mut cells = relation.columns.iter().zip(row.cells);
        cells.any(|(column, cell)| *cell == Cell::Unchanged && needs(&column.name))
    };
    selection.iter().copied().filter(|&index| lacks(&batch.changes[index as usize])).collect()
}

/// Whether a relation has not all columns that are needed.
fn is_narrow(relation: &Relation, needed: Option<&[String]>) -> bool {
    needed.into_iter().flatten().any(|name| relation.column(name).is_none())
}

/// Puts rows that were read again in the place of the incomplete ones, matched by document id. A row that is
/// gone leaves the selection, since its delete follows; where its key had moved, the delete of the old id
/// stays.
#[must_use]
pub fn complete(
    batch: &ChangeBatch,
    selection: &[u32],
    incomplete: &[u32],
    fresh: &ChangeBatch,
    needed: Option<&[String]>,
) -> (ChangeBatch, Selection) {
    let rows = by_id(fresh);
    let mut completed = batch.clone();
    widen(&mut completed, fresh, needed);
    let batch = &completed.clone();
    let mut gone = Vec::new();
    let mut id = Vec::new();
    for &index in incomplete {
        let change = batch.changes[index as usize];
        let relation = batch.relation(&change);
        id.clear();
        let known = change.new.is_some_and(|new| push_document_id(relation, batch.row(new), &mut id));
        match rows.get(&id).filter(|_| known) {
            Some(&(fresh_relation, span)) => {
                let own = change.new.map_or(&[][..], |new| batch.row(new).cells);
                let span = adopt(&mut completed, (relation, own), fresh, fresh_relation, span);
                completed.changes[index as usize].new = Some(span);
            }
            None if moved(batch, &change) => {
                let change = &mut completed.changes[index as usize];
                (change.operation, change.new) = (Operation::Delete, None);
            }
            None => gone.push(index),
        }
    }
    let selection = selection.iter().copied().filter(|index| !gone.contains(index)).collect();
    (completed, selection)
}

/// Gives the relations of a batch the columns that they lack, where the table has them today: behind the others,
/// unknown in every row.
fn widen(batch: &mut ChangeBatch, fresh: &ChangeBatch, needed: Option<&[String]>) {
    let (Some(needed), Some(today)) = (needed, fresh.relations.first()) else { return };
    for at in 0..batch.relations.len() {
        let relation = &batch.relations[at];
        let lacking = needed.iter().filter(|name| relation.column(name).is_none());
        let found: Vec<Column> = lacking
            .filter_map(|name| today.column(name))
            .map(|at| Column { identity: false, ..today.columns[at].clone() })
            .collect();
        if found.is_empty() {
            continue;
        }
        let mut wider = Relation::clone(relation);
        wider.columns.extend(found.iter().cloned());
        batch.relations[at] = Arc::new(wider);
        for index in 0..batch.changes.len() {
            let change = batch.changes[index];
            if change.relation as usize == at {
                let (new, old) =
                    (widen_row(batch, change.new, found.len()), widen_row(batch, change.old, found.len()));
                (batch.changes[index].new, batch.changes[index].old) = (new, old);
            }
        }
    }
}

fn widen_row(batch: &mut ChangeBatch, span: Option<RowSpan>, by: usize) -> Option<RowSpan> {
    let RowSpan { first, count } = span?;
    let start = batch.cells.len();
    batch.cells.extend_from_within(first as usize..(first + count) as usize);
    batch.cells.resize(batch.cells.len() + by, Cell::Unknown);
    let length = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Some(RowSpan { first: length(start), count: count + length(by) })
}

type FreshRow<'a> = (&'a Relation, RowSpan);

fn by_id(fresh: &ChangeBatch) -> HashMap<Vec<u8>, FreshRow<'_>> {
    let mut rows = HashMap::new();
    for change in &fresh.changes {
        let Some(span) = change.new else { continue };
        let relation = fresh.relation(change);
        let mut id = Vec::new();
        if push_document_id(relation, fresh.row(span), &mut id) {
            rows.insert(id, (&**relation, span));
        }
    }
    rows
}

/// Copies a row of `fresh` behind the others, its columns matched by name: the table may have changed since. What it has
/// not under that name any more is as the change came, `own`.
fn adopt(
    batch: &mut ChangeBatch,
    (relation, own): (&Relation, &[Cell]),
    fresh: &ChangeBatch,
    fresh_relation: &Relation,
    span: RowSpan,
) -> RowSpan {
    let row = fresh.row(span);
    let length = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let first = length(batch.cells.len());
    for (at, column) in relation.columns.iter().enumerate() {
        let kept = || own.get(at).copied().filter(|cell| *cell != Cell::Unchanged).unwrap_or(Cell::Unknown);
        let cell = fresh_relation.column(&column.name).map_or_else(kept, |at| match row.text(at) {
            Some(text) => {
                let start = length(batch.bytes.len());
                batch.bytes.extend_from_slice(text);
                Cell::Text { start, len: length(text.len()) }
            }
            None => row.cells.get(at).copied().unwrap_or(Cell::Unknown),
        });
        batch.cells.push(cell);
    }
    RowSpan { first, count: length(relation.columns.len()) }
}

fn moved(batch: &ChangeBatch, change: &Change) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return false };
    let (old, new) = (batch.row(old), batch.row(new));
    batch.relation(change).key.iter().any(|&at| old.text(at).is_some() && old.text(at) != new.text(at))
}

#[cfg(test)]
mod tests {
    use crate::model::{EntityName, Lsn, Origin, ReplicaIdentity, TransactionInfo, ValueType};

    use super::*;

    fn relation(names: &[&str]) -> Arc<Relation> {
        let column = |name: &&str| Column {
            name: (*name).to_owned(),
            type_oid: 25,
            value_type: ValueType::Text,
            identity: *name == "id",
        };
        Arc::new(Relation {
            oid: 1,
            name: EntityName::new("public", "t"),
            replica_identity: ReplicaIdentity::Default,
            columns: names.iter().map(column).collect(),
            key: vec![names.iter().position(|name| *name == "id").unwrap()],
        })
    }

    struct Build(ChangeBatch);

    impl Build {
        fn new(names: &[&str]) -> Self {
            let mut batch = ChangeBatch::new(Origin::Stream);
            batch.relations.push(relation(names));
            let info = TransactionInfo { xid: 1, commit_lsn: Lsn(1), end_lsn: Lsn(2), commit_time: 0 };
            batch.transactions.push(info);
            Self(batch)
        }

        /// `~` is unchanged, `-` is NULL.
        fn row(&mut self, cells: &[&str]) -> RowSpan {
            let first = u32::try_from(self.0.cells.len()).unwrap();
            for text in cells {
                let start = u32::try_from(self.0.bytes.len()).unwrap();
                self.0.cells.push(match *text {
                    "~" => Cell::Unchanged,
                    "-" => Cell::Null,
                    text => {
                        self.0.bytes.extend_from_slice(text.as_bytes());
                        Cell::Text { start, len: u32::try_from(text.len()).unwrap() }
                    }
                });
            }
            RowSpan { first, count: u32::try_from(cells.len()).unwrap() }
        }

        fn update(mut self, old: Option<&[&str]>, new: &[&str]) -> Self {
            let old = old.map(|cells| self.row(cells));
            let new = Some(self.row(new));
            let sequence = u32::try_from(self.0.changes.len()).unwrap();
            let operation = Operation::Update;
            self.0.changes.push(Change { operation, relation: 0, transaction: 0, sequence, new, old });
            self
        }
    }

    fn texts(batch: &ChangeBatch, index: usize) -> Vec<Option<String>> {
        let row = batch.row(batch.changes[index].new.unwrap());
        let text = |at| row.text(at).map(|text| String::from_utf8(text.to_vec()).unwrap());
        (0..row.cells.len()).map(text).collect()
    }

    #[test]
    fn only_columns_that_are_needed_are_missed() {
        let batch =
            Build::new(&["id", "big", "n"]).update(None, &["1", "~", "5"]).update(None, &["2", "x", "6"]).0;
        assert_eq!(incomplete(&batch, &[0, 1], None), [0]);
        assert_eq!(incomplete(&batch, &[0, 1], Some(&["n".to_owned()])), Vec::<u32>::new());
        assert_eq!(incomplete(&batch, &[1], None), Vec::<u32>::new());
    }

    #[test]
    fn rows_are_completed_by_name_and_vanished_ones_leave() {
        let batch =
            Build::new(&["id", "big", "n"]).update(None, &["1", "~", "5"]).update(None, &["2", "~", "6"]).0;
        let fresh = Build::new(&["n", "id", "added", "big"]).update(None, &["-", "1", "a", "large"]).0;
        let (completed, selection) = complete(&batch, &[0, 1], &[0, 1], &fresh, None);
        assert_eq!(selection, [0]);
        assert_eq!(texts(&completed, 0), [Some("1".into()), Some("large".into()), None]);
    }

    #[test]
    fn what_the_table_has_no_more_stays_as_it_came() {
        let batch = Build::new(&["id", "big", "was", "lost"]).update(None, &["1", "~", "w", "~"]).0;
        let fresh = Build::new(&["id", "big", "is"]).update(None, &["1", "large", "x"]).0;
        let (completed, _) = complete(&batch, &[0], &[0], &fresh, None);
        assert_eq!(texts(&completed, 0), [Some("1".into()), Some("large".into()), Some("w".into()), None]);
    }

    #[test]
    fn a_column_that_is_back_is_filled_in() {
        let needed = ["id".to_owned(), "n".to_owned()];
        let batch =
            Build::new(&["id", "m"]).update(Some(&["7", "-"]), &["1", "5"]).update(None, &["2", "6"]).0;
        assert_eq!(incomplete(&batch, &[0, 1], Some(&needed)), [0, 1]);
        assert_eq!(incomplete(&batch, &[0, 1], Some(&needed[..1])), Vec::<u32>::new());
        let away = Build::new(&["id", "m"]).update(None, &["1", "5"]).update(None, &["2", "6"]).0;
        let (same, _) = complete(&batch, &[0, 1], &[0, 1], &away, Some(&needed));
        assert_eq!(same.relations, batch.relations, "it is still away");
        let fresh = Build::new(&["n", "id"]).update(None, &["50", "1"]).0;
        let (completed, selection) = complete(&batch, &[0, 1], &[0, 1], &fresh, Some(&needed));
        assert_eq!(selection, [0], "the other row is gone");
        assert_eq!(texts(&completed, 0), [Some("1".into()), Some("5".into()), Some("50".into())]);
        let old = completed.row(completed.changes[0].old.unwrap());
        assert_eq!((old.text(0), old.cells.len()), (Some(&b"7"[..]), 3));
    }

    #[test]
    fn a_moved_key_still_deletes_the_old_document() {
        let batch = Build::new(&["id", "big"]).update(Some(&["1", "-"]), &["2", "~"]).0;
        let (completed, selection) = complete(&batch, &[0], &[0], &ChangeBatch::new(Origin::Backfill), None);
        assert_eq!(selection, [0]);
        assert_eq!((completed.changes[0].operation, completed.changes[0].new), (Operation::Delete, None));
    }
}
