//! A change as people are shown it: its values in the server's own text, as JSON, up to a size.
//!
//! The text and not what it means: a value that cannot be read is there as it came, and reading the JSON needs no
//! type. What was cut ends with `…` and is named.

use crate::{
    model::{Cell, Change, ChangeBatch, Relation, RowView},
    pgoutput::text::{Encoder as _, JsonEncoder},
};

/// A change's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// `{"new": {"column": "text" or null, …}, "old": {…}}`; a row or a value that did not come is not there.
    pub json: String,
    /// Columns of which not all is there.
    pub cut: Vec<String>,
}

/// The values of a change in these columns and the key's (none named: all), in about `limit` bytes.
#[must_use]
pub fn payload(batch: &ChangeBatch, change: &Change, columns: Option<&[String]>, limit: usize) -> Payload {
    let relation = batch.relation(change);
    let mut payload = Writer { json: Vec::new(), cut: Vec::new(), left: limit };
    payload.json.push(b'{');
    for (name, span) in [("new", change.new), ("old", change.old)] {
        let Some(span) = span else { continue };
        if payload.json.len() > 1 {
            payload.json.push(b',');
        }
        payload.string(name);
        payload.json.extend_from_slice(b":{");
        payload.row(relation, batch.row(span), columns);
        payload.json.push(b'}');
    }
    payload.json.push(b'}');
    let Writer { json, mut cut, .. } = payload;
    cut.sort();
    cut.dedup();
    Payload { json: String::from_utf8(json).unwrap_or_default(), cut }
}

/// The beginning of a text that has so many bytes at the most, and whether that is all of it.
#[must_use]
pub fn beginning(text: &str, limit: usize) -> (&str, bool) {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], end == text.len())
}

struct Writer {
    json: Vec<u8>,
    cut: Vec<String>,
    left: usize,
}

impl Writer {
    fn string(&mut self, text: &str) {
        JsonEncoder::new(&mut self.json).string(text);
    }

    fn row(&mut self, relation: &Relation, row: RowView<'_>, columns: Option<&[String]>) {
        let mut first = true;
        for (at, (column, cell)) in relation.columns.iter().zip(row.cells).enumerate() {
            let wanted = columns.is_none_or(|columns| columns.contains(&column.name));
            let missing = matches!(cell, Cell::Unchanged | Cell::Unknown);
            if missing || !(wanted || relation.key.contains(&at)) {
                continue;
            }
            if !std::mem::take(&mut first) {
                self.json.push(b',');
            }
            self.string(&column.name);
            self.json.push(b':');
            match row.text(at) {
                None => self.json.extend_from_slice(b"null"),
                Some(text) => self.value(&column.name, &String::from_utf8_lossy(text)),
            }
        }
    }

    fn value(&mut self, column: &str, text: &str) {
        let (kept, whole) = beginning(text, self.left);
        self.left -= kept.len();
        if whole {
            return self.string(kept);
        }
        self.cut.push(column.to_owned());
        self.string(&format!("{kept}…"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::model::{
        Column, EntityName, Lsn, Operation, Origin, ReplicaIdentity, RowSpan, TransactionInfo, ValueType,
    };

    use super::*;

    fn change(values: &[Option<&str>], old: bool) -> ChangeBatch {
        let mut batch = ChangeBatch::new(Origin::Stream);
        let column = |at: usize| Column {
            name: format!("c{at}"),
            type_oid: 25,
            value_type: ValueType::Text,
            identity: at == 0,
        };
        batch.relations.push(Arc::new(Relation {
            oid: 1,
            name: EntityName::new("public", "t"),
            replica_identity: ReplicaIdentity::Default,
            columns: (0..values.len()).map(column).collect(),
            key: vec![0],
        }));
        batch.transactions.push(TransactionInfo {
            xid: 1,
            commit_lsn: Lsn(1),
            end_lsn: Lsn(2),
            commit_time: 0,
        });
        for value in values {
            let start = u32::try_from(batch.bytes.len()).unwrap();
            batch.cells.push(match value {
                None => Cell::Null,
                Some("<unchanged>") => Cell::Unchanged,
                Some(text) => {
                    batch.bytes.extend_from_slice(text.as_bytes());
                    Cell::Text { start, len: u32::try_from(text.len()).unwrap() }
                }
            });
        }
        let row = Some(RowSpan { first: 0, count: u32::try_from(values.len()).unwrap() });
        let old = row.filter(|_| old);
        let change =
            Change { operation: Operation::Update, relation: 0, transaction: 0, sequence: 0, new: row, old };
        batch.changes.push(change);
        batch
    }

    fn shown(values: &[Option<&str>], columns: Option<&[String]>, limit: usize) -> Payload {
        let batch = change(values, false);
        payload(&batch, &batch.changes[0], columns, limit)
    }

    #[test]
    fn values_are_the_servers_text() {
        let payload = shown(&[Some("7"), None, Some("<unchanged>"), Some("a\"\n")], None, 100);
        assert_eq!(payload.json, r#"{"new":{"c0":"7","c1":null,"c3":"a\"\n"}}"#);
        assert!(payload.cut.is_empty());
        let both = change(&[Some("7")], true);
        assert_eq!(
            super::payload(&both, &both.changes[0], None, 9).json,
            r#"{"new":{"c0":"7"},"old":{"c0":"7"}}"#
        );
    }

    #[test]
    fn c012_an_escaped_nul_stays_what_it_was() {
        let payload = shown(&[Some("1"), Some(r#"{"a":"\u0000"}"#)], None, 100);
        assert_eq!(payload.json, r#"{"new":{"c0":"1","c1":"{\"a\":\"\\u0000\"}"}}"#);
    }

    #[test]
    fn only_what_the_plugin_reads_and_the_key() {
        let payload = shown(&[Some("7"), Some("secret"), Some("x")], Some(&["c2".to_owned()]), 100);
        assert_eq!(payload.json, r#"{"new":{"c0":"7","c2":"x"}}"#);
    }

    #[test]
    fn what_is_too_long_is_cut_at_a_character_and_named() {
        let payload = shown(&[Some("7"), Some("größe"), Some("x")], None, 4);
        assert_eq!(
            payload.json, r#"{"new":{"c0":"7","c1":"gr…","c2":"x"}}"#,
            "one byte is left for the last"
        );
        assert_eq!(payload.cut, ["c1"]);
        assert_eq!(beginning("aé", 2), ("a", false));
        assert_eq!(beginning("aé", 3), ("aé", true));
    }
}
