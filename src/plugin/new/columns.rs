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

/// A text in double quotes, as JSON and every language here read it alike.
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

    pub(super) fn typescript(&self) -> Filling {
        let field = |(column, key): &(&Column, bool)| {
            let null = if *key { "" } else { " | null" };
            let name = if is_word(&column.name) { column.name.clone() } else { quoted(&column.name) };
            format!("  {name}: {}{null};", javascript_type(&column.value_type))
        };
        vec![("fields", lines(self.columns.iter(), field)), ("test_row", self.javascript_row())]
    }

    fn javascript_row(&self) -> String {
        let value =
            |column: &Column| format!("    {}: {},", quoted(&column.name), example(&column.value_type));
        lines(self.each(), value)
    }

    pub(super) fn javascript(&self) -> Filling {
        let property = |(column, key): &(&Column, bool)| {
            let null = if *key { "" } else { " | null" };
            let name = &column.name;
            let name =
                if is_word(name) { name.clone() } else { format!("\"{}\"", name.replace("*/", "* /")) };
            format!(" * @property {{{}{null}}} {name}", javascript_type(&column.value_type))
        };
        vec![("properties", lines(self.columns.iter(), property)), ("test_row", self.javascript_row())]
    }

    pub(super) fn python(&self) -> Filling {
        let value = |column: &Column| {
            format!("            {}: {},", quoted(&column.name), python(&example(&column.value_type)))
        };
        vec![("test_row", lines(self.each(), value))]
    }

    pub(super) fn c(&self, table: &EntityName) -> Filling {
        let named = self.columns.iter().enumerate().map(|(at, (column, key))| {
            let plain = is_word(&column.name) && !column.name.contains(char::is_uppercase);
            let name =
                if plain { format!("COL_{}", column.name.to_uppercase()) } else { format!("COL_{}", at + 1) };
            (name, *column, *key)
        });
        let named: Vec<_> = named.collect();
        let position = |(name, column, key): &(String, &Column, bool)| {
            let null = if *key { "" } else { ", may be NULL" };
            format!("\t{name}, /* {}{null} */", column.value_type.name())
        };
        let put = |(name, column, key): &(String, &Column, bool)| {
            let put = match &column.value_type {
                ValueType::Integer if *key => format!("ab_put_integer(out, ab_integer(change, {name}))"),
                ValueType::Text if *key => format!("ab_put_text(out, ab_text(change, {name}))"),
                _ => format!("ab_put(out, ab_get(change, {name}))"),
            };
            format!("\tab_key(out, {});\n\t{put};", quoted(&column.name))
        };
        let values: Vec<_> =
            self.each().map(|column| format!("\t\t{}", c_value(&column.value_type))).collect();
        vec![
            ("table_comment", table.to_string().replace("*/", "* /")),
            ("positions", lines(named.iter(), position)),
            ("puts", lines(named.iter(), put)),
            ("test_row", values.join(",\n")),
        ]
    }

    pub(super) fn go(&self) -> Filling {
        let mut named: Vec<(String, &(&Column, bool))> = Vec::new();
        for (at, column) in self.columns.iter().enumerate() {
            let name = go_field(&column.0.name)
                .filter(|name| named.iter().all(|(other, _)| other != name))
                .unwrap_or_else(|| format!("Column{}", at + 1));
            named.push((name, column));
        }
        let width = named.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let types: Vec<_> =
            named.iter().map(|(_, (column, key))| go_type(&column.value_type, *key)).collect();
        let type_width = types.iter().map(String::len).max().unwrap_or_default();
        let fields = |tag: &str| {
            let field = |((name, (column, _)), kind): (&(String, &(&Column, bool)), &String)| {
                // A comma of `json` begins an option, and `-` leaves the field out.
                let whole = tag == "json" && (column.name.contains(',') || column.name == "-");
                let key = go_tag(if whole { "key" } else { tag }, &column.name);
                format!("\t{name:width$} {kind:type_width$} {key}")
            };
            lines(named.iter().zip(&types), field)
        };
        let widths = go_widths(&named.iter().map(|(name, _)| name.len()).collect::<Vec<_>>());
        let spaced = named.iter().zip(&widths).map(|((name, (column, key)), width)| {
            (name, " ".repeat(width - name.len()), go_value(&column.value_type, *key))
        });
        let bindings = lines(spaced.clone(), |(name, space, _)| format!("\t\t\t{name}: {space}row.{name},"));
        let test_row = lines(spaced, |(name, space, value)| format!("\t\t{name}: {space}{value},"));
        let mut helpers = String::new();
        for (used, line) in [
            ("text(", "\ttext := func(value string) *string { return &value }\n"),
            ("integer(", "\tinteger := func(value int64) *int64 { return &value }\n"),
            ("float(", "\tfloat := func(value float64) *float64 { return &value }\n"),
            ("boolean(", "\tboolean := func(value bool) *bool { return &value }\n"),
        ] {
            if test_row.contains(used) {
                helpers.push_str(line);
            }
        }
        vec![
            ("fields", fields("column")),
            ("document_fields", fields("json")),
            ("bindings", bindings),
            ("helpers", helpers),
            ("test_row", test_row),
        ]
    }

    pub(super) fn rust(&self) -> Filling {
        let mut fields = Vec::new();
        let mut names = Vec::new();
        for (at, (column, key)) in self.columns.iter().enumerate() {
            let plain = is_word(&column.name)
                && !super::names::RUST.contains(&column.name.as_str())
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

fn c_value(value_type: &ValueType) -> String {
    match value_type {
        ValueType::Bool => "ab_of_bool(true)".to_owned(),
        ValueType::Integer => "ab_of_integer(1)".to_owned(),
        ValueType::Float => "ab_of_float(1.5)".to_owned(),
        ValueType::Bytea => "ab_of_bytes(\"\\0\\377\", 2)".to_owned(),
        ValueType::Json => "ab_of_json(\"{\\\"a\\\":1}\")".to_owned(),
        ValueType::Hstore => "ab_of_map(AB_ROW(ab_of_text(\"a\"), ab_of_text(\"1\")))".to_owned(),
        ValueType::Array(element, _) => format!("ab_of_array(AB_ROW({}))", c_value(element)),
        other => format!("ab_of_text({})", example(other)),
    }
}

/// A field's name: `Name` of `name`, `UnitPrice` of `unit_price`; none for a column that is no word.
fn go_field(column: &str) -> Option<String> {
    let plain = is_word(column) && !column.contains(char::is_uppercase) && !column.starts_with('_');
    let parts = column.split('_').map(|part| {
        if part == "id" {
            return "ID".to_owned();
        }
        let mut letters = part.chars();
        letters
            .next()
            .map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
            .unwrap_or_default()
    });
    plain.then(|| parts.collect())
}

/// How wide gofmt makes the keys of a composite literal that are so long: they are aligned with each other, except where a
/// long one is much longer or shorter than those before it (`exprList` in go/printer).
fn go_widths(lengths: &[usize]) -> Vec<usize> {
    const SMALL: usize = 40;
    const RATIO: f64 = 2.5;
    let mut widths: Vec<usize> = Vec::with_capacity(lengths.len());
    let mut section = 0;
    for (at, &length) in lengths.iter().enumerate() {
        let before = lengths.get(section..at).unwrap_or_default();
        let sum: f64 = before.iter().map(|&length| (length as f64).log2()).sum();
        let ratio = length as f64 / (sum / before.len() as f64).exp2();
        let is_long = length > SMALL || before.last().is_some_and(|&last| last > SMALL);
        if !before.is_empty() && is_long && (ratio * RATIO <= 1.0 || RATIO <= ratio) {
            section = at;
        }
        let width = widths.get(section).map_or(length, |&width| length.max(width));
        widths.push(width);
        widths[section..].fill(width);
    }
    widths
}

/// `` `column:"name"` ``, also for names that have quotes or backquotes.
fn go_tag(tag: &str, name: &str) -> String {
    let inner = format!("{tag}:{}", quoted(name));
    if name.contains('`') { quoted(&inner) } else { format!("`{inner}`") }
}

fn go_type(value_type: &ValueType, key: bool) -> String {
    let plain = match value_type {
        ValueType::Bool => "bool",
        ValueType::Integer => "int64",
        ValueType::Float => "float64",
        ValueType::Bytea => return "[]byte".to_owned(),
        ValueType::Json => return "anabranch.JSON".to_owned(),
        ValueType::Hstore => return "map[string]*string".to_owned(),
        ValueType::Array(element, _) => return format!("[]{}", go_type(element, false)),
        _ => "string",
    };
    if key { plain.to_owned() } else { format!("*{plain}") }
}

fn go_value(value_type: &ValueType, key: bool) -> String {
    let (plain, helper) = match value_type {
        ValueType::Bool => ("true".to_owned(), "boolean"),
        ValueType::Integer => ("1".to_owned(), "integer"),
        ValueType::Float => ("1.5".to_owned(), "float"),
        ValueType::Bytea => return "[]byte{0, 255}".to_owned(),
        ValueType::Json => return "`{\"a\":1}`".to_owned(),
        ValueType::Hstore => return "map[string]*string{\"a\": text(\"1\")}".to_owned(),
        ValueType::Array(element, _) => {
            return format!("{}{{{}}}", go_type(value_type, false), go_value(element, false));
        }
        other => (example(other).to_string(), "text"),
    };
    if key { plain } else { format!("{helper}({plain})") }
}
