//! A table of a config file, read key by key.
//!
//! Each key is asked for once, by name and type; what was not asked for is told, with the nearest key that is known or
//! the section where it belongs. Every problem has the place of its key or value.

use std::{borrow::Cow, collections::BTreeMap};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::error::{At, Problems, listed, nearest};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) at: At,
}

/// A text as typed: its `${…}` not yet replaced, so that it may be quoted in messages.
pub(super) type Text = Located<String>;

/// A value whose type depends on something else.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Bool(bool),
    Table(BTreeMap<String, Located<Value>>),
    List(Vec<Text>),
    /// Anything else, by the name of its type.
    Other(&'static str),
}

impl Value {
    /// The name of its type.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Integer(_) => "a whole number",
            Self::Bool(_) => "true or false",
            Self::Table(_) => "a table",
            Self::List(_) => "an array",
            Self::Other(what) => what,
        }
    }
}

pub(super) const TEXT: &str = "text in quotes";

/// The sections, and the keys that people put into the wrong one.
pub(super) const HOMES: &[(&str, &[&str])] = &[
    (
        "source",
        &[
            "url",
            "slot",
            "publication",
            "manage_publication",
            "column_lists",
            "purge_on_repair",
            "failover_slot",
            "status_interval",
            "silence_limit",
            "heartbeat_interval",
        ],
    ),
    (
        "plugins",
        &[
            "dir",
            "cache_dir",
            "total_memory",
            "memory_limit",
            "call_deadline",
            "max_output",
            "max_documents",
            "log_lines",
            "instances",
        ],
    ),
    ("plugins.<name>.grants", super::grants::KEYS),
    ("backfill", &["chunk_size", "max_chunk_bytes", "prefetch_bytes", "max_concurrent", "statement_timeout"]),
    (
        "pipeline",
        &[
            "batch_rows",
            "batch_bytes",
            "queue_bytes",
            "drain_limit",
            "streaming",
            "spool_memory",
            "spool_limit",
            "spool_dir",
        ],
    ),
    ("http", &["listen"]),
    ("traces", &["endpoint"]),
    ("log", &["format", "level"]),
    (
        "[map]",
        &[
            "table",
            "transform",
            "sink",
            "destination",
            "auto_backfill",
            "auto_backfill_on_version_change",
            "purge_on_change",
            "on_failure",
            "quarantine_limit",
            "quarantine_in_a_row",
            "quarantine_payload",
            "reread",
        ],
    ),
];

/// A table being read. Each key is asked for once; [`Section::finish`] complains about those that were not.
pub(super) struct Section<'a> {
    pub(super) at: At,
    entries: BTreeMap<&'a str, (usize, &'a Spanned<DeValue<'a>>)>,
    /// The keys that were asked for, whether they were there or not.
    known: Vec<&'static str>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    pub(super) fn new(table: &'a DeTable<'a>, at: At, problems: &'a Problems) -> Self {
        let entry =
            |(key, value): (&'a Spanned<Cow<'a, str>>, _)| (&**key.get_ref(), (key.span().start, value));
        Self { at, entries: table.iter().map(entry).collect(), known: Vec::new(), problems }
    }

    fn path(&self, key: &str) -> String {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let plain = !key.is_empty() && key.chars().all(bare);
        let key = if plain { key.to_owned() } else { format!("{key:?}") };
        if self.at.key.is_empty() { key } else { format!("{}.{key}", self.at.key) }
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    fn take(&mut self, key: &'static str) -> Option<(At, &'a DeValue<'a>)> {
        self.known.push(key);
        let (_, value) = self.entries.remove(key)?;
        Some((At { offset: Some(value.span().start), key: self.path(key) }, value.get_ref()))
    }

    fn wrong_type(&self, at: &At, expected: &str, found: &DeValue<'_>) {
        // Where free text is wanted, what was typed may be a secret, even as a number.
        let found = if expected == TEXT { kind_of(found).to_owned() } else { described(found) };
        self.problems.add(at, format!("expected {expected}, found {found}"));
    }

    pub(super) fn text(&mut self, key: &'static str, expected: &str) -> Option<Text> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::String(text) => Some(Located { value: text.to_string(), at }),
            other => {
                self.wrong_type(&at, expected, other);
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, key: &'static str) -> Option<Located<bool>> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::Boolean(value) => Some(Located { value: *value, at }),
            other => {
                self.wrong_type(&at, "true or false, without quotes", other);
                None
            }
        }
    }

    pub(super) fn integer(&mut self, key: &'static str) -> Option<Located<i64>> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
                Ok(value) => Some(Located { value, at }),
                Err(_) => {
                    self.problems.add(&at, format!("{digits} is too large a number"));
                    None
                }
            },
            other => {
                self.wrong_type(&at, "a whole number, without quotes", other);
                None
            }
        }
    }

    /// A list of texts.
    pub(super) fn text_list(&mut self, key: &'static str, expected: &str) -> Vec<Text> {
        let Some((at, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.wrong_type(&at, expected, value);
            return Vec::new();
        };
        self.texts_of(&at, items)
    }

    /// A table of texts under names that are free.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<(String, Text)> {
        let Some(section) = self.table(key) else { return Vec::new() };
        section.into_texts()
    }

    pub(super) fn into_texts(self) -> Vec<(String, Text)> {
        let read = |(&key, &(_, value)): (&&'a str, &(usize, &'a Spanned<DeValue<'a>>))| {
            let at = At { offset: Some(value.span().start), key: self.path(key) };
            match value.get_ref() {
                DeValue::String(text) => Some((key.to_owned(), Located { value: text.to_string(), at })),
                other => {
                    self.wrong_type(&at, TEXT, other);
                    None
                }
            }
        };
        self.entries.iter().filter_map(read).collect()
    }

    pub(super) fn table(&mut self, key: &'static str) -> Option<Section<'a>> {
        let path = self.path(key);
        let (at, value) = self.take(key)?;
        match value {
            DeValue::Table(table) => Some(Section::new(table, at, self.problems)),
            other => {
                let example = if path == "sink" { "sink.<name>" } else { path.as_str() };
                self.wrong_type(&at, &format!("a table, as in [{example}]"), other);
                None
            }
        }
    }

    /// An array of tables.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
        let Some((at, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.wrong_type(&at, &format!("[[{key}]] with two brackets"), value);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let at = At { offset: Some(item.span().start), key: format!("{}[{index}]", at.key) };
            match item.get_ref() {
                DeValue::Table(table) => sections.push(Section::new(table, at, self.problems)),
                other => self.wrong_type(&at, &format!("a table, as in [[{key}]]"), other),
            }
        }
        sections
    }

    /// The keys that were not asked for and hold tables.
    pub(super) fn remaining_tables(&mut self) -> Vec<(Text, Section<'a>)> {
        let mut sections = Vec::new();
        for (key, (offset, value)) in std::mem::take(&mut self.entries) {
            if let DeValue::Table(table) = value.get_ref() {
                let at = At { offset: Some(offset), key: self.path(key) };
                let name = Located { value: key.to_owned(), at: at.clone() };
                sections.push((name, Section::new(table, at, self.problems)));
            } else {
                self.entries.insert(key, (offset, value));
            }
        }
        sections
    }

    /// All keys that were not asked for. A key's own place stands for it where its value is no scalar.
    pub(super) fn remaining_values(&mut self) -> BTreeMap<String, Located<Value>> {
        let mut values = BTreeMap::new();
        for (key, (_, value)) in std::mem::take(&mut self.entries) {
            let at = At { offset: Some(value.span().start), key: self.path(key) };
            let value = match value.get_ref() {
                DeValue::String(text) => Value::Text(text.to_string()),
                DeValue::Boolean(value) => Value::Bool(*value),
                DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
                    Ok(value) => Value::Integer(value),
                    Err(_) => Value::Other("a number that is too large"),
                },
                DeValue::Table(table) => {
                    Value::Table(Section::new(table, at.clone(), self.problems).remaining_values())
                }
                DeValue::Array(items) => Value::List(self.texts_of(&at, items)),
                other => Value::Other(kind_of(other)),
            };
            values.insert(key.to_owned(), Located { value, at });
        }
        values
    }

    fn texts_of(&self, at: &At, items: &[Spanned<DeValue<'_>>]) -> Vec<Text> {
        let mut texts = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let at = At { offset: Some(item.span().start), key: format!("{}[{index}]", at.key) };
            match item.get_ref() {
                DeValue::String(text) => texts.push(Located { value: text.to_string(), at }),
                other => self.wrong_type(&at, TEXT, other),
            }
        }
        texts
    }

    /// Complains about every key that was not asked for.
    pub(super) fn finish(self) {
        let known = self.known.clone();
        let inside = self.at.key.clone();
        self.finish_with(|key| unknown_key(key, &inside, &known));
    }

    pub(super) fn finish_with(self, message: impl Fn(&str) -> String) {
        for (key, (offset, _)) in &self.entries {
            self.problems.add(&At { offset: Some(*offset), key: self.path(key) }, message(key));
        }
    }
}

/// What to say about a key that nobody knows: the nearest one, the section where it belongs, or all there are.
fn unknown_key(key: &str, inside: &str, known: &[&str]) -> String {
    let unknown = if inside.is_empty() { "unknown section" } else { "unknown key" };
    if let Some(name) = nearest(key, known.iter().copied()) {
        return format!("{unknown}; did you mean `{name}`?");
    }
    let home = HOMES.iter().find(|(section, keys)| !inside.starts_with(section) && keys.contains(&key));
    match home {
        Some((section, _)) => format!("{unknown} here; `{key}` belongs in [{section}]"),
        None => format!("{unknown}; there are {}", listed(known.iter().copied())),
    }
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// A value for a message. Texts are not quoted: one may be a secret in the wrong place.
fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(digits) => format!("the number {digits}"),
        DeValue::Float(digits) => format!("the number {digits}"),
        DeValue::Boolean(value) => format!("{value} without quotes"),
        other => kind_of(other).to_owned(),
    }
}
