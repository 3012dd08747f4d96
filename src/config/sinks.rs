//! `[sink.<name>]`: the options of each kind of sink.

use std::{collections::BTreeMap, time::Duration};

use crate::sink::{HttpSettings, JsonlSettings, PluginSinkSettings, SinkSettings, SqliteSettings};

use super::{
    error::{At, did_you_mean, listed},
    file::{SinkTable, unknown_option},
    resolve::Resolver,
    section::{Located, TEXT, Text, Value},
};

/// The kinds of sinks, as config writes them.
const KINDS: &[&str] = &["sqlite", "jsonl", "stdout", "http", "plugin", "null"];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

pub(super) fn resolve(resolver: &Resolver<'_>, table: &SinkTable) -> Option<SinkSettings> {
    let Some(typed) = &table.kind else {
        let message = format!("has no `kind`; there are {}", listed(KINDS.iter().copied()));
        resolver.complain(&table.at, message);
        return None;
    };
    let kind = resolver.plain(typed)?;
    let mut options = Options { resolver, table, left: table.options.clone(), known: Vec::new() };
    let settings = match kind.as_str() {
        "sqlite" => options.sqlite(),
        "jsonl" => options.jsonl(),
        "stdout" => Some(SinkSettings::Jsonl(JsonlSettings::new("-"))),
        "http" => options.http(),
        "plugin" => options.plugin(),
        "null" => Some(SinkSettings::Null),
        _ => {
            let hint = did_you_mean(&typed.value, KINDS.iter().copied());
            let all =
                if hint.is_empty() { format!("; there are {}", listed(KINDS.iter().copied())) } else { hint };
            resolver.complain(&typed.at, format!("no kind of sink is called `{}`{all}", typed.value));
            return None;
        }
    };
    options.finish(&kind);
    settings
}

/// The keys of one table, taken one by one.
struct Options<'a> {
    resolver: &'a Resolver<'a>,
    table: &'a SinkTable,
    left: BTreeMap<String, Located<Value>>,
    known: Vec<&'static str>,
}

impl Options<'_> {
    fn sqlite(&mut self) -> Option<SinkSettings> {
        let path = self.required("path", "the file, such as path = \"search.db\"");
        let busy_timeout = self.duration("busy_timeout", Duration::from_secs(5));
        let path = self.resolver.path(&path?)?;
        Some(SinkSettings::Sqlite(SqliteSettings { busy_timeout, ..SqliteSettings::new(path) }))
    }

    fn jsonl(&mut self) -> Option<SinkSettings> {
        let path = self.required("path", "the file, such as path = \"out.jsonl\"")?;
        // `-` is standard output, not a file of that name.
        let path = if path.value == "-" { "-".into() } else { self.resolver.path(&path)? };
        Some(SinkSettings::Jsonl(JsonlSettings::new(path)))
    }

    fn http(&mut self) -> Option<SinkSettings> {
        let url = self.required("url", "the address that gets the batches");
        let headers = self.texts("headers");
        let secrets = self.text_or_list("secret");
        let gzip = self.boolean("gzip");
        let timeout = self.duration("timeout", Duration::from_secs(30));
        let connect_timeout = self.duration("connect_timeout", Duration::from_secs(10));
        let max_documents = self.count("max_documents", 500, 100_000);
        let max_bytes = self.text("max_bytes", "a size in quotes, such as \"1MiB\"");
        let ca_file = self.text("ca_file", "a path in quotes");
        let resolver = self.resolver;
        let header = |(name, typed): &(String, Text)| Some((name.clone(), resolver.secret(typed)?));
        Some(SinkSettings::Http(HttpSettings {
            url: resolver.secret(&url?)?,
            headers: headers.iter().filter_map(header).collect(),
            secrets: secrets.iter().filter_map(|typed| resolver.secret(typed)).collect(),
            gzip,
            timeout,
            connect_timeout,
            max_documents,
            max_bytes: resolver.size(max_bytes.as_ref(), MIB, KIB..=256 * MIB),
            ca_file: ca_file.and_then(|typed| resolver.path(&typed)),
        }))
    }

    fn plugin(&mut self) -> Option<SinkSettings> {
        let plugin =
            self.required("plugin", "the name of the plugin that delivers, as its `describe` says it");
        let config = match self.take("config") {
            None => BTreeMap::new(),
            Some(Located { value: Value::Table(values), .. }) => self.json_object(values),
            Some(Located { value, at }) => {
                let expected = "a table of the plugin's settings, such as config = { url = \"…\" }";
                self.wrong_type(&at, &format!("{expected}, found {}", value.kind()));
                BTreeMap::new()
            }
        };
        let plugin = self.resolver.plain(&plugin?)?;
        Some(SinkSettings::Plugin(PluginSinkSettings::new(plugin, &config)))
    }

    /// Settings of a plugin. Each text may be a secret, or refer to one.
    fn json_object(&self, values: BTreeMap<String, Located<Value>>) -> BTreeMap<String, serde_json::Value> {
        let value = |(key, value): (String, Located<Value>)| {
            if key.is_empty() {
                self.resolver.complain(&value.at, "a setting has a name");
                return None;
            }
            Some((key, self.json(value)?))
        };
        values.into_iter().filter_map(value).collect()
    }

    fn json(&self, Located { value, at }: Located<Value>) -> Option<serde_json::Value> {
        let text = |value, at| {
            let secret = self.resolver.secret_or_empty(&Located { value, at })?;
            Some(serde_json::Value::from(secret.expose()))
        };
        match value {
            Value::Text(value) => text(value, at),
            Value::Integer(value) => Some(value.into()),
            Value::Bool(value) => Some(value.into()),
            Value::Table(values) => Some(serde_json::Value::from_iter(self.json_object(values))),
            Value::List(texts) => texts.into_iter().map(|Located { value, at }| text(value, at)).collect(),
            Value::Other(what) => {
                let expected = "text in quotes, a whole number, true or false, an array of texts, or a table";
                self.wrong_type(&at, &format!("{expected}, found {what}"));
                None
            }
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Located<Value>> {
        self.known.push(key);
        self.left.remove(key)
    }

    fn wrong_type(&self, at: &At, expected: &str) {
        self.resolver.complain(at, format!("expected {expected}"));
    }

    fn text(&mut self, key: &'static str, expected: &str) -> Option<Text> {
        let Located { value, at } = self.take(key)?;
        match value {
            Value::Text(value) => Some(Located { value, at }),
            other => {
                self.wrong_type(&at, &format!("{expected}, found {}", other.kind()));
                None
            }
        }
    }

    fn required(&mut self, key: &'static str, what: &str) -> Option<Text> {
        if !self.left.contains_key(key) {
            self.known.push(key);
            self.resolver.complain(&self.table.at, format!("has no `{key}`: {what}"));
            return None;
        }
        self.text(key, "text in quotes")
    }

    fn duration(&mut self, key: &'static str, default: Duration) -> Duration {
        let typed = self.text(key, "a duration in quotes, such as \"5s\"");
        let range = Duration::from_millis(1)..=Duration::from_secs(3600);
        self.resolver.duration(typed.as_ref(), default, range)
    }

    fn boolean(&mut self, key: &'static str) -> bool {
        match self.take(key) {
            None => false,
            Some(Located { value: Value::Bool(value), .. }) => value,
            Some(Located { at, .. }) => {
                self.wrong_type(&at, "true or false, without quotes");
                false
            }
        }
    }

    fn count(&mut self, key: &'static str, default: u32, most: u32) -> usize {
        match self.take(key) {
            None => default as usize,
            Some(Located { value: Value::Integer(value), at }) => {
                self.resolver.count(Some(&Located { value, at }), default, 1..=most) as usize
            }
            Some(Located { at, .. }) => {
                self.wrong_type(&at, "a whole number, without quotes");
                default as usize
            }
        }
    }

    fn texts(&mut self, key: &'static str) -> Vec<(String, Text)> {
        match self.take(key) {
            None => Vec::new(),
            Some(Located { value: Value::Table(values), .. }) => {
                values.into_iter().filter_map(|(name, value)| Some((name, self.of_texts(value)?))).collect()
            }
            Some(Located { at, .. }) => {
                self.wrong_type(&at, &format!("a table of texts, such as {key} = {{ name = \"value\" }}"));
                Vec::new()
            }
        }
    }

    fn of_texts(&self, Located { value, at }: Located<Value>) -> Option<Text> {
        match value {
            Value::Text(value) => Some(Located { value, at }),
            other => {
                self.wrong_type(&at, &format!("{TEXT}, found {}", other.kind()));
                None
            }
        }
    }

    fn text_or_list(&mut self, key: &'static str) -> Vec<Text> {
        match self.take(key) {
            None => Vec::new(),
            Some(Located { value: Value::Text(value), at }) => vec![Located { value, at }],
            Some(Located { value: Value::List(texts), .. }) => texts,
            Some(Located { at, .. }) => {
                self.wrong_type(&at, "text in quotes, or an array of texts");
                Vec::new()
            }
        }
    }

    fn finish(self, kind: &str) {
        for (key, Located { at, .. }) in &self.left {
            self.resolver.complain(at, unknown_option(key, kind, &self.known));
        }
    }
}
