//! A config file as it was typed: TOML, its keys and the types of their values.
//!
//! The tree of the TOML parser is read key by key rather than by serde's derive: every problem is told in
//! one go, each with the place of its key or value, and an unknown key is answered with the nearest known
//! one or with the section where it belongs. What the values mean is not decided here (see `resolve`).

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::{
    error::{At, Problems, did_you_mean, listed},
    grants::{self, GrantsTable},
    section::{Located, Section, TEXT, Text, Value},
};

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
    pub(super) traces: TracesTable,
    pub(super) log: LogTable,
}

/// `[source]`
#[derive(Debug, Default)]
pub(super) struct SourceTable {
    pub(super) url: Option<Text>,
    pub(super) slot: Option<Text>,
    pub(super) publication: Option<Text>,
    pub(super) manage_publication: Option<Located<bool>>,
    pub(super) column_lists: Option<Located<bool>>,
    pub(super) purge_on_repair: Option<Located<bool>>,
    pub(super) failover_slot: Option<Located<bool>>,
    pub(super) status_interval: Option<Text>,
    pub(super) silence_limit: Option<Text>,
    pub(super) heartbeat_interval: Option<Text>,
}

/// `[plugins]`
#[derive(Debug, Default)]
pub(super) struct PluginsTable {
    pub(super) dir: Option<Text>,
    pub(super) cache_dir: Option<Text>,
    pub(super) total_memory: Option<Text>,
    pub(super) limits: LimitsTable,
    pub(super) plugins: Vec<PluginTable>,
}

/// The keys that `[plugins]` and `[plugins.<name>]` share.
#[derive(Debug, Default)]
pub(super) struct LimitsTable {
    pub(super) memory_limit: Option<Text>,
    pub(super) call_deadline: Option<Text>,
    pub(super) max_output: Option<Text>,
    pub(super) max_documents: Option<Located<i64>>,
    pub(super) log_lines: Option<Located<i64>>,
    pub(super) instances: Option<Located<i64>>,
}

/// `[plugins.<name>]`
#[derive(Debug)]
pub(super) struct PluginTable {
    pub(super) name: Text,
    pub(super) limits: LimitsTable,
    pub(super) config: Vec<(String, Text)>,
    pub(super) rederive_patch: Option<Located<bool>>,
    pub(super) grants: GrantsTable,
}

/// `[sink.<name>]`: every value as typed; which keys there may be is known once the kind is.
#[derive(Debug)]
pub(super) struct SinkTable {
    pub(super) name: Text,
    pub(super) at: At,
    pub(super) kind: Option<Text>,
    pub(super) options: BTreeMap<String, Located<Value>>,
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
    pub(super) quarantine_limit: Option<Located<i64>>,
    pub(super) quarantine_in_a_row: Option<Located<i64>>,
    pub(super) quarantine_payload: Option<Text>,
    pub(super) reread: Option<Located<bool>>,
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
    pub(super) streaming: Option<Located<bool>>,
    pub(super) spool_memory: Option<Text>,
    pub(super) spool_limit: Option<Text>,
    pub(super) spool_dir: Option<Text>,
}

/// `[traces]`
#[derive(Debug, Default)]
pub(super) struct TracesTable {
    pub(super) endpoint: Option<Text>,
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
        traces: top.table("traces").map(traces).unwrap_or_default(),
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
        column_lists: section.boolean("column_lists"),
        purge_on_repair: section.boolean("purge_on_repair"),
        failover_slot: section.boolean("failover_slot"),
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
        max_documents: section.integer("max_documents"),
        log_lines: section.integer("log_lines"),
        instances: section.integer("instances"),
    }
}

fn plugins(mut section: Section<'_>) -> PluginsTable {
    let dir = section.text("dir", TEXT);
    let cache_dir = section.text("cache_dir", TEXT);
    let total_memory = section.text("total_memory", SIZE);
    let limits = limits(&mut section);
    // Every other key that holds a table is the name of a plugin.
    let plugins =
        section.remaining_tables().into_iter().map(|(name, section)| plugin(name, section)).collect();
    section.finish();
    PluginsTable { dir, cache_dir, total_memory, limits, plugins }
}

fn plugin(name: Text, mut section: Section<'_>) -> PluginTable {
    let limits = limits(&mut section);
    let config = section.texts("config");
    let rederive_patch = section.table("rederive").and_then(|mut rederive| {
        let patch = rederive.boolean("patch");
        rederive.finish();
        patch
    });
    let grants = section.table("grants").map(grants::read).unwrap_or_default();
    section.finish();
    PluginTable { name, limits, config, rederive_patch, grants }
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
        quarantine_limit: section.integer("quarantine_limit"),
        quarantine_in_a_row: section.integer("quarantine_in_a_row"),
        quarantine_payload: section.text("quarantine_payload", SIZE),
        reread: section.boolean("reread"),
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
        streaming: section.boolean("streaming"),
        spool_memory: section.text("spool_memory", SIZE),
        spool_limit: section.text("spool_limit", SIZE),
        spool_dir: section.text("spool_dir", TEXT),
    };
    section.finish();
    table
}

fn http(mut section: Section<'_>) -> HttpTable {
    let table = HttpTable { listen: section.text("listen", ADDRESS) };
    section.finish();
    table
}

fn traces(mut section: Section<'_>) -> TracesTable {
    let table = TracesTable { endpoint: section.text("endpoint", TEXT) };
    section.finish();
    table
}

fn log(mut section: Section<'_>) -> LogTable {
    let table = LogTable { format: section.text("format", TEXT), level: section.text("level", TEXT) };
    section.finish();
    table
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

#[cfg(test)]
mod tests {
    use super::{super::section::HOMES, *};

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
                let text = if *section == "plugins.<name>.grants" {
                    // The one key that holds an array.
                    format!("[plugins.p.grants]\n{key} = 2000-01-01\n")
                } else {
                    text
                };
                let text = if *section == "[map]" { format!("[[map]]\n{key} = []\n") } else { text };
                read(&text, &problems);
                let error = problems.into_error("x", &text).unwrap().to_string();
                assert!(error.contains("expected") && !error.contains("unknown"), "{error}");
            }
        }
    }
}
