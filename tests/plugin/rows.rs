//! Batches of `public.products`.

use std::sync::Arc;

use anabranch::model::{
    Cell, Change, ChangeBatch, Column, EntityName, Lsn, Operation, Origin, Relation, ReplicaIdentity,
    RowSpan, TransactionInfo, ValueType,
};

/// `None`: not sent; `Some(None)`: NULL.
pub type Text<'a> = Option<Option<&'a str>>;

pub fn text(text: &str) -> Text<'_> {
    Some(Some(text))
}

pub fn relation(columns: &[(&str, ValueType)]) -> Arc<Relation> {
    let column = |(name, value_type): &(&str, ValueType)| Column {
        name: (*name).to_owned(),
        type_oid: 25,
        value_type: value_type.clone(),
        identity: *name == "id",
    };
    Arc::new(Relation {
        oid: 16384,
        name: EntityName::new("public", "products"),
        replica_identity: ReplicaIdentity::Full,
        columns: columns.iter().map(column).collect(),
        key: vec![0],
    })
}

/// The columns of the sample's table, in an order of their own.
pub fn products() -> Arc<Relation> {
    let text = || ValueType::Text;
    relation(&[
        ("id", ValueType::Integer),
        ("sku", text()),
        ("name", text()),
        ("description", text()),
        ("brand", text()),
        ("price", ValueType::Numeric),
        ("currency", text()),
        ("stock", ValueType::Integer),
        ("active", ValueType::Bool),
        ("tags", ValueType::Array(Box::new(ValueType::Text), b',')),
        ("attributes", ValueType::Json),
        ("updated_at", ValueType::TimestampTz),
    ])
}

/// A row of [`products`], of about 500 bytes.
pub fn product(batch: &mut ChangeBatch, id: usize, active: bool) {
    let (key, sku, name) = (id.to_string(), format!("SKU-{id:09}"), format!("Oak chair \"{id}\""));
    let description = "Made to be used every day. Größe nach Maß. ".repeat(5);
    let attributes =
        format!(r#"{{"colour": "green", "width_mm": {id}, "eco": true, "batch": "0cc175b9c0f1b6a831"}}"#);
    let row = [
        text(&key),
        text(&sku),
        text(&name),
        text(&description),
        Some(None),
        text("19.90"),
        text("EUR"),
        text("12"),
        text(if active { "t" } else { "f" }),
        text("{tag1,\"tag 2\"}"),
        text(&attributes),
        text("2026-01-31 12:00:00.5+00"),
    ];
    push(batch, Operation::Insert, Some(&row), None);
}

/// A batch whose every change is a transaction of its own, 16 bytes apart from LSN 0/1000 on.
pub fn batch(relation: &Arc<Relation>) -> ChangeBatch {
    let mut batch = ChangeBatch::new(Origin::Stream);
    batch.intern(relation);
    batch
}

fn push_row(batch: &mut ChangeBatch, row: &[Text<'_>]) -> RowSpan {
    let first = u32::try_from(batch.cells.len()).unwrap();
    for cell in row {
        batch.cells.push(match cell {
            None => Cell::Unchanged,
            Some(None) => Cell::Null,
            Some(Some(text)) => {
                let start = u32::try_from(batch.bytes.len()).unwrap();
                batch.bytes.extend_from_slice(text.as_bytes());
                Cell::Text { start, len: u32::try_from(text.len()).unwrap() }
            }
        });
    }
    RowSpan { first, count: u32::try_from(row.len()).unwrap() }
}

/// Adds a change of the relation that was interned last.
pub fn push(
    batch: &mut ChangeBatch,
    operation: Operation,
    new: Option<&[Text<'_>]>,
    old: Option<&[Text<'_>]>,
) {
    let transaction = u32::try_from(batch.transactions.len()).unwrap();
    let commit_lsn = Lsn(0x1000 + 16 * u64::from(transaction));
    let commit_time = 1_767_225_600_000_000;
    batch.transactions.push(TransactionInfo {
        xid: 700,
        commit_lsn,
        end_lsn: Lsn(commit_lsn.0 + 8),
        commit_time,
    });
    let relation = u32::try_from(batch.relations.len() - 1).unwrap();
    let new = new.map(|row| push_row(batch, row));
    let old = old.map(|row| push_row(batch, row));
    batch.changes.push(Change { operation, relation, transaction, sequence: 0, new, old });
}

/// Inserts of (id, note).
pub fn notes(rows: &[(&str, &str)]) -> ChangeBatch {
    let relation = relation(&[("id", ValueType::Integer), ("note", ValueType::Text)]);
    let mut batch = batch(&relation);
    for (id, note) in rows {
        push(&mut batch, Operation::Insert, Some(&[text(id), text(note)]), None);
    }
    batch
}

pub fn all(batch: &ChangeBatch) -> Vec<u32> {
    (0..u32::try_from(batch.changes.len()).unwrap()).collect()
}
