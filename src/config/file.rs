//! A config file as it was typed: TOML, its keys and the types of their values.
//!
//! The tree of the TOML parser is read key by key rather than by serde's derive: every problem is told in
//! one go, each with the place of its key or value, and an unknown key is answered with the nearest known
//! one or with the section where it belongs. What the values mean is not decided here (see `resolve`).

use std::{borrow::Cow, collections::BTreeMap};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::error::{At, Problems, did_you_mean, listed, nearest};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) at: At,
}

/// A text as typed: its `${…}` not yet replaced, so that it may be quoted in messages.
pub(super) type Text = Located<String>;

/// The whole file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) source: SourceTable,
    pub(super) plugins: PluginsTable,
    /// The `[sink.<name>]` tables, whose keys depend on their kind.
    pub(super) sinks: Vec<SinkTable>,
    pub(super) maps: Vec<MapTable>,
    pub(super) backfill: BackfillTable,
    pub(super) pipeline: PipelineTable,
    /// None where there is no such section: then nothing listens.
    pub(super) http: Option<HttpTable>,
    pub(super) log: LogTable,
}

/// `[source]`
#[derive(Debug, Default)]
pub(super) struct SourceTable {
    pub(super) url: Option<Text>,
    pub(super) slot: Option<Text>,
    pub(super) publication: Option<Text>,
    pub(super) manage_publication: Option<Located<bool>>,
    pub(super) purge_on_repair: Option<Located<bool>>,
    pub(super) status_interval: Option<Text>,
    pub(super) silence_limit: Option<Text>,
    pub(super) heartbeat_interval: Option<Text>,
}

/// `[plugins]`
#[derive(Debug, Default)]
pub(super) struct PluginsTable {
    pub(super) dir: Option<Text>,
    pub(super) cache_dir: Option<Text>,
    pub(super) limits: LimitsTable,
    pub(super) plugins: Vec<PluginTable>,
}

/// The keys that `[plugins]` and `[plugins.<name>]` share.
#[derive(Debug, Default)]
pub(super) struct LimitsTable {
    pub(super) memory_limit: Option<Text>,
    pub(super) call_deadline: Option<Text>,
    pub(super) max_output: Option<Text>,
    pub(super) instances: Option<Located<i64>>,
}

/// `[plugins.<name>]`
#[derive(Debug)]
pub(super) struct PluginTable {
    pub(super) name: Text,
    pub(super) limits: LimitsTable,
    pub(super) config: Vec<(String, Text)>,
    pub(super) rederive_patch: Option<Located<bool>>,
}

/// `[sink.<name>]`: every value as typed; which keys there may be is known once the kind is.
#[derive(Debug)]
pub(super) struct SinkTable {
    pub(super) name: Text,
    pub(super) at: At,
    pub(super) kind: Option<Text>,
    pub(super) options: BTreeMap<String, Located<Value>>,
}

/// A value whose type depends on something else.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Bool(bool),
    Table(Vec<(String, Text)>),
    List(Vec<Text>),
    /// Anything else, by the name of its type.
    Other(&'static str),
}

/// `[[map]]`
#[derive(Debug)]
pub(super) struct MapTable {
    pub(super) at: At,
    pub(super) name: Option<Text>,
    pub(super) table: Option<Text>,
    pub(super) transform: Option<Text>,
    pub(super) sink: Option<Text>,
    pub(super) destination: Option<Text>,
    pub(super) version: Option<Text>,
    pub(super) auto_backfill: Option<Located<bool>>,
    pub(super) auto_backfill_on_version_change: Option<Located<bool>>,
    pub(super) purge_on_change: Option<Located<bool>>,
    pub(super) on_failure: Option<Text>,
}

/// `[backfill]`
#[derive(Debug, Default)]
pub(super) struct BackfillTable {
    pub(super) chunk_size: Option<Located<i64>>,
    pub(super) max_chunk_bytes: Option<Text>,
    pub(super) prefetch_bytes: Option<Text>,
    pub(super) max_concurrent: Option<Located<i64>>,
    pub(super) statement_timeout: Option<Text>,
}

/// `[pipeline]`
#[derive(Debug, Default)]
pub(super) struct PipelineTable {
    pub(super) batch_rows: Option<Located<i64>>,
    pub(super) batch_bytes: Option<Text>,
    pub(super) queue_bytes: Option<Text>,
    pub(super) drain_limit: Option<Text>,
}

/// `[http]`
#[derive(Debug, Default)]
pub(super) struct HttpTable {
    pub(super) listen: Option<Text>,
}

/// `[log]`
#[derive(Debug, Default)]
pub(super) struct LogTable {
    pub(super) format: Option<Text>,
    pub(super) level: Option<Text>,
}

const DURATION: &str = "a duration in quotes, such as \"5s\"";
const SIZE: &str = "a size in quotes, such as \"64MiB\"";
const ADDRESS: &str = "an address and a port in quotes, such as \"127.0.0.1:9187\"";
const TEXT: &str = "text in quotes";

/// The sections, and the keys that people put into the wrong one.
const HOMES: &[(&str, &[&str])] = &[
    (
        "source",
        &[
            "url",
            "slot",
            "publication",
            "manage_publication",
            "purge_on_repair",
            "status_interval",
            "silence_limit",
            "heartbeat_interval",
        ],
    ),
    ("plugins", &["dir", "cache_dir", "memory_limit", "call_deadline", "max_output", "instances"]),
    ("backfill", &["chunk_size", "max_chunk_bytes", "prefetch_bytes", "max_concurrent", "statement_timeout"]),
    ("pipeline", &["batch_rows", "batch_bytes", "queue_bytes", "drain_limit"]),
    ("http", &["listen"]),
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
        ],
    ),
];

/// Reads the text of a file. What is wrong is added to `problems`; what could be read is given back.
pub(super) fn read(text: &str, problems: &Problems) -> File {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = At { offset: error.span().map(|span| span.start), key: String::new() };
        problems.add(&at, syntax_message(text, error));
    }
    if !errors.is_empty() {
        // What follows a syntax error is guesswork; other complaints would only hide it.
        return File::default();
    }
    let mut top = Section::new(root.get_ref(), At::default(), problems);
    let file = File {
        source: top.table("source").map(source).unwrap_or_default(),
        plugins: top.table("plugins").map(plugins).unwrap_or_default(),
        sinks: top.table("sink").map(sinks).unwrap_or_default(),
        maps: top.tables("map").into_iter().map(map).collect(),
        backfill: top.table("backfill").map(backfill).unwrap_or_default(),
        pipeline: top.table("pipeline").map(pipeline).unwrap_or_default(),
        http: top.table("http").map(http),
        log: top.table("log").map(log).unwrap_or_default(),
    };
    top.finish();
    file
}

fn syntax_message(text: &str, error: &toml::de::Error) -> String {
    let typed = error.span().and_then(|span| text.get(span)).unwrap_or_default();
    match error.message() {
        "duplicate key" => format!("`{typed}` is set twice; keep one of the two"),
        message => format!("this is not TOML: {message}"),
    }
}

fn source(mut section: Section<'_>) -> SourceTable {
    let table = SourceTable {
        url: section.text("url", TEXT),
        slot: section.text("slot", TEXT),
        publication: section.text("publication", TEXT),
        manage_publication: section.boolean("manage_publication"),
        purge_on_repair: section.boolean("purge_on_repair"),
        status_interval: section.text("status_interval", DURATION),
        silence_limit: section.text("silence_limit", DURATION),
        heartbeat_interval: section.text("heartbeat_interval", DURATION),
    };
    section.finish();
    table
}

fn limits(section: &mut Section<'_>) -> LimitsTable {
    LimitsTable {
        memory_limit: section.text("memory_limit", SIZE),
        call_deadline: section.text("call_deadline", DURATION),
        max_output: section.text("max_output", SIZE),
        instances: section.integer("instances"),
    }
}

fn plugins(mut section: Section<'_>) -> PluginsTable {
    let dir = section.text("dir", TEXT);
    let cache_dir = section.text("cache_dir", TEXT);
    let limits = limits(&mut section);
    // Every other key that holds a table is the name of a plugin.
    let plugins =
        section.remaining_tables().into_iter().map(|(name, section)| plugin(name, section)).collect();
    section.finish();
    PluginsTable { dir, cache_dir, limits, plugins }
}

fn plugin(name: Text, mut section: Section<'_>) -> PluginTable {
    let limits = limits(&mut section);
    let config = section.texts("config");
    let rederive_patch = section.table("rederive").and_then(|mut rederive| {
        let patch = rederive.boolean("patch");
        rederive.finish();
        patch
    });
    section.finish();
    PluginTable { name, limits, config, rederive_patch }
}

fn sinks(mut section: Section<'_>) -> Vec<SinkTable> {
    let tables = section.remaining_tables();
    let is_kind = section.has("kind");
    section.finish_with(|key| {
        if is_kind {
            "a sink needs a name: write [sink.<name>]".to_owned()
        } else {
            format!("expected a table, as in [sink.{key}]")
        }
    });
    tables.into_iter().map(|(name, section)| sink(name, section)).collect()
}

fn sink(name: Text, mut section: Section<'_>) -> SinkTable {
    let kind = section.text("kind", TEXT);
    let options = section.remaining_values();
    SinkTable { name, at: section.at, kind, options }
}

fn map(mut section: Section<'_>) -> MapTable {
    let table = MapTable {
        name: section.text("name", TEXT),
        table: section.text("table", "a table in quotes, as \"schema.table\""),
        transform: section.text("transform", "the name of a plugin in quotes"),
        sink: section.text("sink", "the name of a sink in quotes"),
        destination: section.text("destination", TEXT),
        version: section.text("version", "any text in quotes, such as \"2\""),
        auto_backfill: section.boolean("auto_backfill"),
        auto_backfill_on_version_change: section.boolean("auto_backfill_on_version_change"),
        purge_on_change: section.boolean("purge_on_change"),
        on_failure: section.text("on_failure", TEXT),
        at: section.at.clone(),
    };
    section.finish();
    table
}

fn backfill(mut section: Section<'_>) -> BackfillTable {
    let table = BackfillTable {
        chunk_size: section.integer("chunk_size"),
        max_chunk_bytes: section.text("max_chunk_bytes", SIZE),
        prefetch_bytes: section.text("prefetch_bytes", SIZE),
        max_concurrent: section.integer("max_concurrent"),
        statement_timeout: section.text("statement_timeout", DURATION),
    };
    section.finish();
    table
}

fn pipeline(mut section: Section<'_>) -> PipelineTable {
    let table = PipelineTable {
        batch_rows: section.integer("batch_rows"),
        batch_bytes: section.text("batch_bytes", SIZE),
        queue_bytes: section.text("queue_bytes", SIZE),
        drain_limit: section.text("drain_limit", DURATION),
    };
    section.finish();
    table
}

fn http(mut section: Section<'_>) -> HttpTable {
    let table = HttpTable { listen: section.text("listen", ADDRESS) };
    section.finish();
    table
}

fn log(mut section: Section<'_>) -> LogTable {
    let table = LogTable { format: section.text("format", TEXT), level: section.text("level", TEXT) };
    section.finish();
    table
}

/// A table being read. Each key is asked for once; [`Section::finish`] complains about those that were not.
struct Section<'a> {
    at: At,
    entries: BTreeMap<&'a str, (usize, &'a Spanned<DeValue<'a>>)>,
    /// The keys that were asked for, whether they were there or not.
    known: Vec<&'static str>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    fn new(table: &'a DeTable<'a>, at: At, problems: &'a Problems) -> Self {
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

    fn has(&self, key: &str) -> bool {
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

    fn text(&mut self, key: &'static str, expected: &str) -> Option<Text> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::String(text) => Some(Located { value: text.to_string(), at }),
            other => {
                self.wrong_type(&at, expected, other);
                None
            }
        }
    }

    fn boolean(&mut self, key: &'static str) -> Option<Located<bool>> {
        let (at, value) = self.take(key)?;
        match value {
            DeValue::Boolean(value) => Some(Located { value: *value, at }),
            other => {
                self.wrong_type(&at, "true or false, without quotes", other);
                None
            }
        }
    }

    fn integer(&mut self, key: &'static str) -> Option<Located<i64>> {
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

    /// A table of texts under names that are free.
    fn texts(&mut self, key: &'static str) -> Vec<(String, Text)> {
        let Some(section) = self.table(key) else { return Vec::new() };
        section.into_texts()
    }

    fn into_texts(self) -> Vec<(String, Text)> {
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

    fn table(&mut self, key: &'static str) -> Option<Section<'a>> {
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
    fn tables(&mut self, key: &'static str) -> Vec<Section<'a>> {
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
    fn remaining_tables(&mut self) -> Vec<(Text, Section<'a>)> {
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
    fn remaining_values(&mut self) -> BTreeMap<String, Located<Value>> {
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
                    Value::Table(Section::new(table, at.clone(), self.problems).into_texts())
                }
                DeValue::Array(items) => self.text_list(&at, items),
                other => Value::Other(kind_of(other)),
            };
            values.insert(key.to_owned(), Located { value, at });
        }
        values
    }

    fn text_list(&self, at: &At, items: &[Spanned<DeValue<'_>>]) -> Value {
        let mut texts = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let at = At { offset: Some(item.span().start), key: format!("{}[{index}]", at.key) };
            match item.get_ref() {
                DeValue::String(text) => texts.push(Located { value: text.to_string(), at }),
                other => self.wrong_type(&at, TEXT, other),
            }
        }
        Value::List(texts)
    }

    /// Complains about every key that was not asked for.
    fn finish(self) {
        let known = self.known.clone();
        let inside = self.at.key.clone();
        self.finish_with(|key| unknown_key(key, &inside, &known));
    }

    fn finish_with(self, message: impl Fn(&str) -> String) {
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

/// What to say about an option that a kind of sink does not have.
pub(super) fn unknown_option(key: &str, kind: &str, known: &[&str]) -> String {
    let hint = did_you_mean(key, known.iter().copied());
    if hint.is_empty() {
        format!("a sink of kind `{kind}` has no such key; it has {}", listed(known.iter().copied()))
    } else {
        format!("a sink of kind `{kind}` has no such key{hint}")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The page tells every key.
    #[test]
    fn every_key_is_documented() {
        let page = include_str!("../../docs/configuration.md");
        for (section, keys) in HOMES {
            for key in *keys {
                assert!(
                    page.contains(&format!("`{key}`")),
                    "{section} {key} is not in docs/configuration.md"
                );
            }
        }
    }

    /// Every key that a hint sends people to is a key there.
    #[test]
    fn hints_lead_to_keys_that_exist() {
        for (section, keys) in HOMES {
            for key in *keys {
                let problems = Problems::default();
                // No key holds an array, so a known one is of the wrong type.
                let text = format!("[{section}]\n{key} = []\n");
                let text = if *section == "[map]" { format!("[[map]]\n{key} = []\n") } else { text };
                read(&text, &problems);
                let error = problems.into_error("x", &text).unwrap().to_string();
                assert!(error.contains("expected") && !error.contains("unknown"), "{error}");
            }
        }
    }
}
