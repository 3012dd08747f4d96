//! Rows that nobody has: values of a table's types, the same every time.

use std::sync::Arc;

use super::rows::Push;
use crate::model::{ChangeBatch, Operation, Origin, Relation, RowSpan, ValueType};

const WORDS: [&str; 8] = ["oak", "chair", "green", "kettle", "steel", "Größe", "lamp", "daily"];

/// Inserts of so many rows of a table, none of them NULL.
#[must_use]
pub fn generate(relation: &Arc<Relation>, rows: u32) -> ChangeBatch {
    let mut batch = ChangeBatch::new(Origin::Stream);
    batch.intern(relation);
    for row in 0..rows {
        let first = u32::try_from(batch.cells.len()).unwrap_or(u32::MAX);
        for ((at, column), place) in relation.columns.iter().enumerate().zip(0..) {
            let text = match relation.key.contains(&at) {
                true => key(&column.value_type, row),
                false => value(&column.value_type, row.wrapping_mul(31).wrapping_add(place)),
            };
            let cell = batch.push_text(&text);
            batch.cells.push(cell);
        }
        let count = u32::try_from(relation.columns.len()).unwrap_or(u32::MAX);
        batch.push_alone(Operation::Insert, Some(RowSpan { first, count }), None);
    }
    batch
}

/// No two alike where the type has so many values.
fn key(value_type: &ValueType, row: u32) -> String {
    match value_type {
        ValueType::Integer | ValueType::Numeric | ValueType::Float => (row + 1).to_string(),
        ValueType::Text => format!("key-{row:08}"),
        other => value(other, row),
    }
}

fn value(value_type: &ValueType, seed: u32) -> String {
    let word = |at: u32| WORDS[(seed.wrapping_add(at) % 8) as usize];
    let (small, second) = (seed % 28 + 1, seed % 60);
    match value_type {
        ValueType::Bool => if seed.is_multiple_of(4) { "f" } else { "t" }.to_owned(),
        ValueType::Integer => (seed % 100_000).to_string(),
        ValueType::Float => format!("{}.5", seed % 1000),
        ValueType::Numeric => format!("{}.{:02}", seed % 1000, seed % 100),
        ValueType::Text => (0..seed % 12 + 1).map(word).collect::<Vec<_>>().join(" "),
        ValueType::Date => format!("2026-01-{small:02}"),
        ValueType::Time => format!("12:00:{second:02}"),
        ValueType::Timestamp => format!("2026-01-{small:02} 12:00:{second:02}"),
        ValueType::TimestampTz => format!("2026-01-{small:02} 12:00:{second:02}+00"),
        ValueType::Interval => format!("P{small}D"),
        ValueType::Bytea => format!("\\x{seed:08x}"),
        ValueType::Json => {
            format!("{{\"colour\": \"{}\", \"width\": {}.50, \"eco\": true}}", word(0), seed % 500)
        }
        ValueType::Hstore => format!("\"{}\"=>\"{}\"", word(0), word(1)),
        ValueType::Array(element, delimiter) => {
            let items: Vec<_> = (0..seed % 3 + 1)
                .map(|at| match **element {
                    ValueType::Array(..) | ValueType::Json | ValueType::Hstore => "NULL".to_owned(),
                    ValueType::Integer | ValueType::Numeric | ValueType::Float | ValueType::Bool => {
                        value(element, seed.wrapping_add(at))
                    }
                    _ => format!("\"{}\"", value(element, seed.wrapping_add(at)).replace('\\', "\\\\")),
                })
                .collect();
            format!("{{{}}}", items.join(&char::from(*delimiter).to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        model::{Column, EntityName, ReplicaIdentity, document_id},
        pgoutput::{JsonEncoder, encode_value},
    };

    #[test]
    fn every_value_is_of_its_type_and_every_key_its_own() {
        let scalars = [
            ValueType::Integer,
            ValueType::Bool,
            ValueType::Float,
            ValueType::Numeric,
            ValueType::Text,
            ValueType::Date,
            ValueType::Time,
            ValueType::Timestamp,
            ValueType::TimestampTz,
            ValueType::Interval,
            ValueType::Bytea,
            ValueType::Json,
            ValueType::Hstore,
        ];
        let arrays = scalars.iter().map(|scalar| ValueType::Array(Box::new(scalar.clone()), b','));
        let types: Vec<_> = scalars.iter().cloned().chain(arrays).collect();
        let column = |(at, value_type): (usize, &ValueType)| Column {
            name: format!("c{at}"),
            type_oid: 0,
            value_type: value_type.clone(),
            identity: at == 0,
        };
        let relation = Arc::new(Relation {
            oid: 1,
            name: EntityName::new("public", "t"),
            replica_identity: ReplicaIdentity::Default,
            columns: types.iter().enumerate().map(column).collect(),
            key: vec![0],
        });
        let batch = generate(&relation, 100);
        let mut ids = BTreeSet::new();
        for change in &batch.changes {
            let row = batch.row(change.new.unwrap());
            ids.insert(document_id(&relation, row).unwrap());
            for (at, value_type) in types.iter().enumerate() {
                let text = row.text(at).unwrap();
                let mut out = Vec::new();
                encode_value(value_type, text, &mut JsonEncoder::new(&mut out))
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
        assert_eq!(ids.len(), 100);
    }
}
