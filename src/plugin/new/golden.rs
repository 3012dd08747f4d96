//! The first golden case of a project: one row of its table, and the document that the first transform makes of it.

use super::columns::{Columns, quoted};
use crate::model::{Cell, Relation, RowView, ValueType, document_id};

/// Paths and texts; nothing for a table without a key, whose rows have no documents.
pub(super) fn files(table: &Relation) -> Vec<(String, String)> {
    let texts: Vec<_> = table.columns.iter().map(|column| text(&column.value_type)).collect();
    let Some(id) = id(table, &texts) else { return Vec::new() };
    let lines = |value: &dyn Fn(usize) -> String, indent: &str| {
        let columns = table.columns.iter().enumerate();
        let line = |(at, column): (usize, &crate::model::Column)| {
            format!("{indent}{}: {}", quoted(&column.name), quoted(&value(at)))
        };
        columns.map(line).collect::<Vec<_>>().join(",\n")
    };
    let key: Vec<_> = table.key_names().map(quoted).collect();
    let rows = format!(
        "{{\n  \"table\": {},\n  \"columns\": {{\n{}\n  }},\n  \"key\": [{}],\n  \"rows\": [\n    \
         {{ \"what\": \"a row\", \"new\": {{\n{}\n    }} }}\n  ]\n}}\n",
        quoted(&table.name.to_string()),
        lines(&|at| sql_name(&table.columns[at].value_type), "    "),
        key.join(", "),
        lines(&|at| texts[at].clone(), "      "),
    );
    let documents = format!(
        "[\n  {{ \"row\": \"a row\", \"steps\": [\n    {{ \"upsert\": {}, \"document\": {} }} ] }}\n]\n",
        quoted(&id),
        Columns::of(table).document()
    );
    vec![("golden/first/rows.json".to_owned(), rows), ("golden/first/documents.json".to_owned(), documents)]
}

fn id(table: &Relation, texts: &[String]) -> Option<String> {
    let (mut bytes, mut cells) = (Vec::new(), Vec::new());
    for text in texts {
        let start = u32::try_from(bytes.len()).ok()?;
        bytes.extend_from_slice(text.as_bytes());
        cells.push(Cell::Text { start, len: u32::try_from(text.len()).ok()? });
    }
    document_id(table, RowView { bytes: &bytes, cells: &cells })
}

/// A type's name as `rows.json` has it.
fn sql_name(value_type: &ValueType) -> String {
    match value_type {
        ValueType::Integer => "bigint".to_owned(),
        ValueType::Float => "double precision".to_owned(),
        ValueType::Array(_, b';') => "box[]".to_owned(),
        ValueType::Array(element, _) => format!("{}[]", sql_name(element)),
        other => other.name().to_owned(),
    }
}

/// What Postgres writes for the value that the first test has.
fn text(value_type: &ValueType) -> String {
    let text = match value_type {
        ValueType::Bool => "t",
        ValueType::Integer => "1",
        ValueType::Float => "1.5",
        ValueType::Numeric => "19.90",
        ValueType::Text => "text",
        ValueType::Date => "2026-01-31",
        ValueType::Time => "12:00:00",
        ValueType::Timestamp => "2026-01-31 12:00:00",
        ValueType::TimestampTz => "2026-01-31 12:00:00+00",
        ValueType::Interval => "P1D",
        ValueType::Bytea => "\\x00ff",
        ValueType::Json => "{\"a\":1}",
        ValueType::Hstore => "\"a\"=>\"1\"",
        ValueType::Array(element, _) => return format!("{{{}}}", item(element)),
    };
    text.to_owned()
}

/// As an array has it.
fn item(element: &ValueType) -> String {
    let text = text(element);
    match element {
        ValueType::Bool
        | ValueType::Integer
        | ValueType::Float
        | ValueType::Numeric
        | ValueType::Array(..) => text,
        _ => quoted(&text),
    }
}
