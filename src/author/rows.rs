//! `rows.json`: a table and changes of it, in the text of Postgres.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::model::{
    Cell, Change, ChangeBatch, Column, EntityName, Lsn, Operation, Origin, Relation, ReplicaIdentity,
    RowSpan, TransactionInfo, ValueType,
};

/// When each of the rows was committed: 2026-01-01 00:00 UTC, in microseconds since 1970.
const COMMIT_TIME: i64 = 1_767_225_600_000_000;

/// A table and changes of it.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The changes, each a transaction of its own.
    pub batch: ChangeBatch,
    /// What each change is called, in order; no two are called the same.
    pub names: Vec<String>,
    /// Settings that the transform is given.
    pub settings: BTreeMap<String, String>,
}

/// A JSON object as it is written: in its order, no key twice.
#[derive(Debug)]
struct Ordered<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Ordered<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object whose keys are columns")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries: Vec<(String, T)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if entries.iter().any(|(known, _)| *known == key) {
                        return Err(serde::de::Error::custom(format!(
                            "the column `{key}` stands there twice"
                        )));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    table: String,
    columns: Ordered<String>,
    #[serde(default)]
    key: Vec<String>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    what: Option<String>,
    operation: Option<String>,
    new: Option<Ordered<Text>>,
    old: Option<Ordered<Text>>,
}

/// The text of a value, or NULL.
#[derive(Debug)]
struct Text(Option<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "null, or a string with the text that Postgres writes, as \"19.90\", \"t\" or \"{a,b}\"",
                )
            }
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Some(text.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Text, E> {
                Ok(Text(None))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl Rows {
    /// Reads the text of a `rows.json`.
    ///
    /// # Errors
    /// A sentence that says where and what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let relation = Arc::new(relation(&file)?);
        let mut rows =
            Self { batch: ChangeBatch::new(Origin::Stream), names: Vec::new(), settings: file.settings };
        rows.batch.intern(&relation);
        for (at, row) in file.rows.iter().enumerate() {
            let name = row.what.clone().unwrap_or_else(|| format!("row {}", at + 1));
            rows.push(&relation, row).map_err(|problem| format!("{name}: {problem}"))?;
            if rows.names.contains(&name) {
                return Err(format!("two rows are called `{name}`; give them a \"what\" of their own"));
            }
            rows.names.push(name);
        }
        if rows.names.is_empty() {
            return Err("it has no rows".to_owned());
        }
        Ok(rows)
    }

    /// The table.
    #[must_use]
    pub fn relation(&self) -> &Arc<Relation> {
        &self.batch.relations[0]
    }

    /// Appends the rows of another file for the same table; false, and nothing is done, where the tables differ.
    #[must_use]
    pub fn append(&mut self, more: &Self) -> bool {
        if **self.relation() != **more.relation() || self.settings != more.settings {
            return false;
        }
        let batch = &mut self.batch;
        let (bytes, cells) = (offset(batch.bytes.len()), offset(batch.cells.len()));
        batch.bytes.extend_from_slice(&more.batch.bytes);
        batch.cells.extend(more.batch.cells.iter().map(|&cell| match cell {
            Cell::Text { start, len } => Cell::Text { start: start + bytes, len },
            other => other,
        }));
        let moved = |span: RowSpan| RowSpan { first: span.first + cells, ..span };
        for change in &more.batch.changes {
            batch.push_alone(change.operation, change.new.map(moved), change.old.map(moved));
        }
        self.names.extend(more.names.iter().cloned());
        true
    }

    fn push(&mut self, relation: &Relation, row: &Row) -> Result<(), String> {
        let operation = match row.operation.as_deref() {
            None | Some("insert") => Operation::Insert,
            Some("update") => Operation::Update,
            Some("delete") => Operation::Delete,
            Some("read") => Operation::Read,
            Some(other) => {
                return Err(format!("`{other}` is no operation; write insert, update, delete or read"));
            }
        };
        match (operation, &row.new, &row.old) {
            (Operation::Delete, None, Some(_)) | (Operation::Update, Some(_), _) => {}
            (Operation::Insert | Operation::Read, Some(_), None) => {}
            (Operation::Delete, ..) => return Err("a delete has \"old\", and no \"new\"".to_owned()),
            (Operation::Update, ..) => return Err("an update has \"new\"".to_owned()),
            _ => return Err(format!("an {} has \"new\", and no \"old\"", operation.as_str())),
        }
        let new = self.tuple(relation, row.new.as_ref(), Cell::Unchanged)?;
        let old = self.tuple(relation, row.old.as_ref(), Cell::Unknown)?;
        self.batch.push_alone(operation, new, old);
        Ok(())
    }

    fn tuple(
        &mut self,
        relation: &Relation,
        texts: Option<&Ordered<Text>>,
        missing: Cell,
    ) -> Result<Option<RowSpan>, String> {
        let Some(Ordered(texts)) = texts else { return Ok(None) };
        if let Some((unknown, _)) = texts.iter().find(|(name, _)| relation.column(name).is_none()) {
            return Err(format!("`{unknown}` is none of the columns"));
        }
        let batch = &mut self.batch;
        let first = offset(batch.cells.len());
        for column in &relation.columns {
            let cell = match texts.iter().find(|(name, _)| *name == column.name) {
                None => missing,
                Some((_, Text(None))) => Cell::Null,
                Some((_, Text(Some(text)))) => batch.push_text(text),
            };
            batch.cells.push(cell);
        }
        Ok(Some(RowSpan { first, count: offset(relation.columns.len()) }))
    }
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Building batches by hand.
pub(super) trait Push {
    /// Appends a text; gives its cell.
    fn push_text(&mut self, text: &str) -> Cell;
    /// Appends a change in a transaction of its own.
    fn push_alone(&mut self, operation: Operation, new: Option<RowSpan>, old: Option<RowSpan>);
}

impl Push for ChangeBatch {
    fn push_text(&mut self, text: &str) -> Cell {
        let start = offset(self.bytes.len());
        self.bytes.extend_from_slice(text.as_bytes());
        Cell::Text { start, len: offset(text.len()) }
    }

    fn push_alone(&mut self, operation: Operation, new: Option<RowSpan>, old: Option<RowSpan>) {
        let transaction = offset(self.transactions.len());
        let commit_lsn = Lsn(0x1000 + 16 * u64::from(transaction));
        self.transactions.push(TransactionInfo {
            xid: 700,
            commit_lsn,
            end_lsn: Lsn(commit_lsn.0 + 8),
            commit_time: COMMIT_TIME,
        });
        self.changes.push(Change { operation, relation: 0, transaction, sequence: 0, new, old });
    }
}

fn relation(file: &File) -> Result<Relation, String> {
    let name: EntityName = file.table.parse().map_err(|error| format!("table: {error}"))?;
    let names: Vec<&str> = file.columns.0.iter().map(|(name, _)| name.as_str()).collect();
    let id = ["id".to_owned()];
    let key = if file.key.is_empty() { &id[..] } else { &file.key };
    let place = |wanted: &String| {
        names.iter().position(|name| name == wanted).ok_or_else(|| {
            format!("there is no column `{wanted}` for the key; name the key's columns: \"key\": [\"…\"]")
        })
    };
    let key: Vec<usize> = key.iter().map(place).collect::<Result<_, _>>()?;
    let columns = file.columns.0.iter().enumerate().map(|(at, (name, type_name))| Column {
        name: name.clone(),
        type_oid: 0,
        value_type: value_type(type_name),
        identity: key.contains(&at),
    });
    let columns = columns.collect();
    Ok(Relation { oid: 16384, name, replica_identity: ReplicaIdentity::Default, columns, key })
}

/// How values of a type are read, by its name in SQL. What is not known is text, as enums, ranges and composites are.
#[must_use]
pub fn value_type(name: &str) -> ValueType {
    let name = name.trim().to_lowercase();
    if let Some(element) = name.strip_suffix("[]") {
        let delimiter = if element.trim() == "box" { b';' } else { b',' };
        // Arrays of any number of dimensions are one type.
        let element = element.trim_end_matches("[]");
        return ValueType::Array(Box::new(value_type(element)), delimiter);
    }
    let mut plain = String::new();
    let mut depth = 0usize;
    for c in name.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    match plain.split_whitespace().collect::<Vec<_>>().join(" ").as_str() {
        "bool" | "boolean" => ValueType::Bool,
        "smallint" | "integer" | "int" | "bigint" | "int2" | "int4" | "int8" | "oid" | "serial"
        | "bigserial" | "smallserial" => ValueType::Integer,
        "real" | "double precision" | "float" | "float4" | "float8" => ValueType::Float,
        "numeric" | "decimal" => ValueType::Numeric,
        "date" => ValueType::Date,
        "time" | "time without time zone" => ValueType::Time,
        "timestamp" | "timestamp without time zone" => ValueType::Timestamp,
        "timestamptz" | "timestamp with time zone" => ValueType::TimestampTz,
        "interval" => ValueType::Interval,
        "bytea" => ValueType::Bytea,
        "json" | "jsonb" => ValueType::Json,
        "hstore" => ValueType::Hstore,
        _ => ValueType::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document_id;

    fn parse(rows: &str) -> Result<Rows, String> {
        Rows::parse(&format!(
            r#"{{"table": "public.products", "columns": {{"id": "bigint", "note": "text"}}, "rows": {rows}}}"#
        ))
    }

    #[test]
    fn null_empty_and_what_was_not_sent_are_three_things() {
        let rows = parse(
            r#"[{"new": {"note": null, "id": "1"}}, {"new": {"id": "2", "note": ""}},
                {"what": "moved", "operation": "update", "new": {"id": "4"}, "old": {"id": "3"}},
                {"operation": "delete", "old": {"id": "4"}}]"#,
        )
        .unwrap();
        assert_eq!(rows.names, ["row 1", "row 2", "moved", "row 4"]);
        let cell = |at: usize, span: fn(&Change) -> Option<RowSpan>| {
            rows.batch.row(span(&rows.batch.changes[at]).unwrap()).cells[1]
        };
        assert_eq!(cell(0, |change| change.new), Cell::Null);
        assert!(matches!(cell(1, |change| change.new), Cell::Text { len: 0, .. }));
        assert_eq!(cell(2, |change| change.new), Cell::Unchanged);
        assert_eq!(cell(2, |change| change.old), Cell::Unknown);
        assert_eq!(rows.batch.changes[3].operation, Operation::Delete);
        assert_eq!(rows.relation().key, [0]);
        assert_eq!(rows.relation().columns[0].value_type, ValueType::Integer);
    }

    #[test]
    fn rows_of_one_table_come_together() {
        let mut rows = parse(r#"[{"new": {"id": "1", "note": "a"}}]"#).unwrap();
        let more =
            parse(r#"[{"operation": "update", "new": {"id": "22"}, "old": {"id": "2", "note": null}}]"#);
        assert!(rows.append(&more.unwrap()));
        let id = |span: Option<RowSpan>| document_id(rows.relation(), rows.batch.row(span.unwrap())).unwrap();
        let changes = &rows.batch.changes;
        assert_eq!(
            (id(changes[0].new), id(changes[1].new), id(changes[1].old)),
            ("1".into(), "22".into(), "2".into())
        );
        assert_eq!(changes[1].transaction, 1);
        let other =
            Rows::parse(r#"{"table": "t", "columns": {"id": "int"}, "rows": [{"new": {}}]}"#).unwrap();
        assert!(!rows.append(&other));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_row() {
        let said = |rows: &str, words: &[&str]| {
            let error = parse(rows).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        said(r#"[{"new": {"id": 1}}]"#, &["line 1", "a string with the text that Postgres writes"]);
        said(r#"[{"new": {"id": "1", "nmae": "x"}}]"#, &["row 1", "`nmae` is none of the columns"]);
        said(r#"[{"new": {"id": "1", "id": "2"}}]"#, &["`id` stands there twice"]);
        said(r#"[{"operation": "upsert", "new": {}}]"#, &["`upsert` is no operation"]);
        said(r#"[{"operation": "delete", "new": {}}]"#, &["a delete has \"old\""]);
        said(r#"[{"operation": "insert"}]"#, &["has \"new\""]);
        said(r#"[{"what": "a", "new": {}}, {"what": "a", "new": {}}]"#, &["two rows are called `a`"]);
        said("[]", &["no rows"]);
        let error = Rows::parse(r#"{"table": "t", "columns": {"n": "int"}, "rows": []}"#).unwrap_err();
        assert!(error.contains("\"key\""), "{error}");
    }

    #[test]
    fn types_are_known_by_their_names_in_sql() {
        assert_eq!(value_type(" Numeric(12, 2)"), ValueType::Numeric);
        assert_eq!(value_type("timestamp(3) with time zone"), ValueType::TimestampTz);
        assert_eq!(value_type("character varying(20)"), ValueType::Text);
        assert_eq!(value_type("order_status"), ValueType::Text);
        assert_eq!(value_type("numeric(3,1)[][]"), ValueType::Array(Box::new(ValueType::Numeric), b','));
        assert_eq!(value_type("box[]"), ValueType::Array(Box::new(ValueType::Text), b';'));
    }
}
