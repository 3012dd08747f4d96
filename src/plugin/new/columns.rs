//! A table's columns in the words of each language: types, and values for a first test.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::model::{Column, EntityName, Relation, ReplicaIdentity, ValueType};

/// The columns of a new project's table.
pub(super) struct Columns<'a> {
    columns: Vec<(&'a Column, bool)>,
}

/// What fills the places of a template.
type Filling = Vec<(&'static str, String)>;

/// The sample's columns under a table's name.
pub(super) fn sample(name: EntityName) -> Relation {
    let column = |name: &str, value_type| Column {
        name: name.to_owned(),
        type_oid: 0,
        value_type,
        identity: name == "id",
    };
    let tags = ValueType::Array(Box::new(ValueType::Text), b',');
    Relation {
        oid: 0,
        name,
        replica_identity: ReplicaIdentity::Default,
        columns: vec![
            column("id", ValueType::Integer),
            column("name", ValueType::Text),
            column("price", ValueType::Numeric),
            column("active", ValueType::Bool),
            column("tags", tags),
            column("attributes", ValueType::Json),
        ],
        key: vec![0],
    }
}

/// A text in double quotes, as JSON, JavaScript, Python and Rust read it alike.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ => out.push(c),
        }
    }
    out + "\""
}

/// A value of a type, as it stands in a document.
fn example(value_type: &ValueType) -> Value {
    match value_type {
        ValueType::Bool => json!(true),
        ValueType::Integer => json!(1),
        ValueType::Float => json!(1.5),
        ValueType::Numeric => json!("19.90"),
        ValueType::Text => json!("text"),
        ValueType::Date => json!("2026-01-31"),
        ValueType::Time => json!("12:00:00"),
        ValueType::Timestamp => json!("2026-01-31T12:00:00"),
        ValueType::TimestampTz => json!("2026-01-31T12:00:00Z"),
        ValueType::Interval => json!("P1D"),
        ValueType::Bytea => json!("AP8="),
        ValueType::Json => json!({"a": 1}),
        ValueType::Hstore => json!({"a": "1"}),
        ValueType::Array(element, _) => json!([example(element)]),
    }
}

fn list<T>(items: impl Iterator<Item = T>, item: impl Fn(T) -> String) -> String {
    items.map(item).collect::<Vec<_>>().join(", ")
}

fn lines<T>(items: impl Iterator<Item = T>, item: impl Fn(T) -> String) -> String {
    items.map(item).collect::<Vec<_>>().join("\n")
}

impl<'a> Columns<'a> {
    pub(super) fn of(table: &'a Relation) -> Self {
        let columns = table.columns.iter().enumerate();
        Self { columns: columns.map(|(at, column)| (column, table.key.contains(&at))).collect() }
    }

    fn each(&self) -> impl Iterator<Item = &'a Column> {
        self.columns.iter().map(|(column, _)| *column)
    }

    pub(super) fn names(&self) -> String {
        list(self.each(), |column| quoted(&column.name))
    }

    pub(super) fn raw(&self) -> String {
        list(self.each().filter(|column| column.value_type == ValueType::Json), |column| quoted(&column.name))
    }

    /// The document of the first test.
    pub(super) fn document(&self) -> String {
        let entry = |column: &Column| format!("{}:{}", quoted(&column.name), example(&column.value_type));
        format!("{{{}}}", self.each().map(entry).collect::<Vec<_>>().join(","))
    }

    pub(super) fn javascript(&self) -> Filling {
        let property = |(column, key): &(&Column, bool)| {
            let null = if *key { "" } else { " | null" };
            let name = &column.name;
            let name =
                if is_word(name) { name.clone() } else { format!("\"{}\"", name.replace("*/", "* /")) };
            format!(" * @property {{{}{null}}} {name}", javascript_type(&column.value_type))
        };
        let value =
            |column: &Column| format!("    {}: {},", quoted(&column.name), example(&column.value_type));
        vec![("properties", lines(self.columns.iter(), property)), ("test_row", lines(self.each(), value))]
    }

    pub(super) fn python(&self) -> Filling {
        let value = |column: &Column| {
            format!("            {}: {},", quoted(&column.name), python(&example(&column.value_type)))
        };
        vec![("test_row", lines(self.each(), value))]
    }

    pub(super) fn rust(&self) -> Filling {
        let mut fields = Vec::new();
        let mut names = Vec::new();
        for (at, (column, key)) in self.columns.iter().enumerate() {
            let plain = is_word(&column.name)
                && !super::RUST.contains(&column.name.as_str())
                && !column.name.contains(char::is_uppercase);
            let name = if plain { column.name.clone() } else { format!("column_{}", at + 1) };
            let renamed = if plain {
                String::new()
            } else {
                format!("    #[serde(rename = {})]\n", quoted(&column.name))
            };
            fields.push(format!("{renamed}    {name}: {},", rust_type(&column.value_type, *key)));
            names.push(name);
        }
        let fields = fields.join("\n");
        let lifetime = if fields.contains("'a") { "<'a>" } else { "" };
        let values: Vec<_> = self
            .each()
            .map(|column| {
                format!("            ({}, {}),", quoted(&column.name), rust_value(&column.value_type))
            })
            .collect();
        let values = values.join("\n");
        let all = fields.clone() + &values;
        let mut imports = vec!["Change", "Failure"];
        imports.extend(all.contains("RawJson").then_some("RawJson"));
        imports.push("Transform");
        imports.extend(fields.contains("Value<").then_some("Value"));
        let test_imports = if fields.contains("Value<") { "testing::Table" } else { "Value, testing::Table" };
        let maps = if values.contains("BTreeMap") { "use std::collections::BTreeMap;\n\n    " } else { "" };
        vec![
            ("imports", format!("{{{}}}", imports.join(", "))),
            ("test_imports", format!("{maps}use anabranch_sdk::{{{test_imports}}};")),
            ("fields", fields),
            ("a", lifetime.to_owned()),
            ("bindings", names.join(", ")),
            ("test_row", values),
        ]
    }
}

/// Whether a text is a name in every language (keywords aside).
fn is_word(text: &str) -> bool {
    let first = text.chars().next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || (c == '_' && text.len() > 1))
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn javascript_type(value_type: &ValueType) -> &'static str {
    match value_type {
        ValueType::Bool => "boolean",
        ValueType::Integer => "number | bigint",
        ValueType::Float => "number | string",
        ValueType::Json => "import(\"anabranch-sdk\").RawJson",
        ValueType::Hstore => "Record<string, string | null>",
        ValueType::Array(..) => "any[]",
        _ => "string",
    }
}

/// JSON as Python writes it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", list(items.iter(), python)),
        Value::Object(entries) => {
            let entries: BTreeMap<_, _> = entries.iter().collect();
            format!(
                "{{{}}}",
                list(entries.into_iter(), |(key, value)| format!("{}: {}", quoted(key), python(value)))
            )
        }
        Value::String(text) => quoted(text),
        Value::Number(number) => number.to_string(),
    }
}

fn rust_type(value_type: &ValueType, key: bool) -> String {
    let plain = match value_type {
        ValueType::Bool => "bool",
        ValueType::Integer => "i64",
        ValueType::Json => "RawJson<'a>",
        // Floats may be `NaN`, which is text; bytes and the inside of arrays have no type of their own.
        ValueType::Float | ValueType::Bytea | ValueType::Hstore | ValueType::Array(..) => {
            return "Value<'a>".to_owned();
        }
        _ => "&'a str",
    };
    if key { plain.to_owned() } else { format!("Option<{plain}>") }
}

fn rust_value(value_type: &ValueType) -> String {
    match value_type {
        ValueType::Bool => "Value::Bool(true)".to_owned(),
        ValueType::Integer => "Value::Integer(1)".to_owned(),
        ValueType::Float => "Value::Float(1.5)".to_owned(),
        ValueType::Bytea => "Value::Bytes(&[0, 255])".to_owned(),
        ValueType::Json => r##"Value::Json(RawJson::new(r#"{"a":1}"#))"##.to_owned(),
        ValueType::Hstore => r#"Value::Map(BTreeMap::from([("a", Value::Text("1"))]))"#.to_owned(),
        ValueType::Array(element, _) => format!("Value::Array(vec![{}])", rust_value(element)),
        other => format!("Value::Text({})", example(other)),
    }
}
