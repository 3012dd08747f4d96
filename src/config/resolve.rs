//! From what was typed to what is meant: units, references, ranges, defaults, and names that must exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    num::NonZero,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::model::{EntityName, Secret};

use super::{
    error::{At, ConfigError, Problems, did_you_mean, listed},
    file::{
        BackfillTable, File, LimitsTable, LogTable, MapTable, PipelineTable, PluginTable, PluginsTable,
        SinkTable,
    },
    secret::{ReferenceError, References},
    section::{Located, Text},
    settings::{
        BackfillSettings, Config, LogFormat, LogLevel, LogSettings, MapEntry, MapPolicy, OnFailure,
        PipelineSettings, Place, PluginLimits, PluginSettings, PluginsSettings, QuarantineBounds, base_of,
    },
    sinks, unit,
};

/// The longest name Postgres keeps whole: `NAMEDATALEN` - 1 (Postgres documentation, "Identifiers and Key
/// Words").
pub(super) const MAX_NAME: usize = 63;

const SECOND: Duration = Duration::from_secs(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What an environment answers for the name of a variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Gives a file its meaning, or everything that is wrong with it.
pub(super) fn resolve(
    path: &Path,
    text: &str,
    file: &File,
    problems: Problems,
    environment: Environment<'_>,
) -> Result<Config, ConfigError> {
    let references = References { environment, base: base_of(path) };
    let resolver = Resolver { references, problems: &problems, text };
    let source = resolver.source(&file.source);
    let plugins = resolver.plugins(&file.plugins);
    let sinks = resolver.sinks(file);
    let place = |table: &SinkTable| (table.name.value.clone(), resolver.place(&table.at));
    let sink_places = file.sinks.iter().map(place).collect();
    let maps = resolver.maps(file);
    let backfill = resolver.backfill(&file.backfill);
    let pipeline = resolver.pipeline(&file.pipeline);
    let http = resolver.http(file.http.as_ref());
    let traces = resolver.traces(&file.traces);
    let log = resolver.log(&file.log);
    match (problems.into_error(path, text), source) {
        (None, Some(source)) => {
            let file = path.to_owned();
            Ok(Config {
                file,
                source,
                plugins,
                sinks,
                sink_places,
                maps,
                backfill,
                pipeline,
                http,
                traces,
                log,
            })
        }
        (Some(error), _) => Err(error),
        (None, None) => Err(ConfigError::whole(path, "[source] cannot be used")),
    }
}

/// Turns typed values into meant ones. A value that is wrong is told and replaced by its default, so that
/// the others are looked at too.
pub(super) struct Resolver<'a> {
    pub(super) references: References<'a>,
    problems: &'a Problems,
    text: &'a str,
}

impl Resolver<'_> {
    pub(super) fn complain(&self, at: &At, message: impl Into<String>) {
        self.problems.add(at, message);
    }

    fn followed<T>(&self, at: &At, result: Result<T, ReferenceError>) -> Option<T> {
        result.map_err(|error| self.complain(at, error.to_string())).ok()
    }

    /// A text that is no secret; empty is wrong.
    pub(super) fn plain(&self, typed: &Text) -> Option<String> {
        let text = self.followed(&typed.at, self.references.plain(&typed.value))?;
        if text.is_empty() {
            self.complain(&typed.at, "is empty");
            return None;
        }
        Some(text)
    }

    /// A secret; empty is wrong.
    pub(super) fn secret(&self, typed: &Text) -> Option<Secret> {
        let secret = self.secret_or_empty(typed)?;
        if secret.is_empty() {
            self.complain(&typed.at, format!("`{}` stands for an empty text", typed.value));
            return None;
        }
        Some(secret)
    }

    pub(super) fn secret_or_empty(&self, typed: &Text) -> Option<Secret> {
        self.followed(&typed.at, self.references.secret(&typed.value))
    }

    /// A path, relative to the file's directory.
    pub(super) fn path(&self, typed: &Text) -> Option<PathBuf> {
        self.plain(typed).map(|path| self.references.base.join(path))
    }

    pub(super) fn duration(
        &self,
        typed: Option<&Text>,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let Some(typed) = typed else { return default };
        let Some(text) = self.plain(typed) else { return default };
        match unit::duration(&text) {
            None => self.complain(
                &typed.at,
                format!(
                    "`{}` is not a duration; write a number and a unit (ms, s, m, h), such as \"5s\"",
                    typed.value
                ),
            ),
            Some(value) if !range.contains(&value) => {
                let (least, most) = (unit::show_duration(*range.start()), unit::show_duration(*range.end()));
                self.complain(&typed.at, format!("`{}` is out of range: {least} to {most}", typed.value));
            }
            Some(value) => return value,
        }
        default
    }

    pub(super) fn size(&self, typed: Option<&Text>, default: u64, range: RangeInclusive<u64>) -> usize {
        let read = |typed: &Text| {
            let text = self.plain(typed)?;
            match unit::bytes(&text) {
                None => self.complain(
                    &typed.at,
                    format!(
                        "`{}` is not a size; write a number and a unit (B, KiB, MiB, GiB), such as \"64MiB\"",
                        typed.value
                    ),
                ),
                Some(value) if !range.contains(&value) => {
                    let (least, most) = (unit::show_bytes(*range.start()), unit::show_bytes(*range.end()));
                    self.complain(&typed.at, format!("`{}` is out of range: {least} to {most}", typed.value));
                }
                Some(value) => return Some(value),
            }
            None
        };
        usize::try_from(typed.and_then(read).unwrap_or(default)).unwrap_or(usize::MAX)
    }

    pub(super) fn count(
        &self,
        typed: Option<&Located<i64>>,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> u32 {
        let Some(typed) = typed else { return default };
        match u32::try_from(typed.value).ok().filter(|value| range.contains(value)) {
            Some(value) => value,
            None => {
                let message =
                    format!("{} is out of range: {} to {}", typed.value, range.start(), range.end());
                self.complain(&typed.at, message);
                default
            }
        }
    }

    /// One of some words.
    fn word<T: Copy>(&self, typed: Option<&Text>, words: &[(&str, T)], default: T) -> T {
        let Some(typed) = typed else { return default };
        let Some(text) = self.plain(typed) else { return default };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return *value;
        }
        let names = || words.iter().map(|(word, _)| *word);
        let hint = did_you_mean(&typed.value, names());
        let known = if words.len() > 1 { format!("none of {}", listed(names())) } else { listed(names()) };
        let not = if words.len() > 1 { "is" } else { "is not" };
        self.complain(&typed.at, format!("`{}` {not} {known}{hint}", typed.value));
        default
    }

    fn place(&self, at: &At) -> Place {
        Place {
            position: at.offset.map(|offset| super::error::position(self.text, offset)),
            key: at.key.clone(),
        }
    }

    fn plugins(&self, table: &PluginsTable) -> PluginsSettings {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let default = PluginLimits {
            memory: usize::try_from(128 * MIB).unwrap_or(usize::MAX),
            call_deadline: 10 * SECOND,
            max_output: usize::try_from(64 * MIB).unwrap_or(usize::MAX),
            max_documents: 10_000,
            log_lines: 100,
            instances: cores.min(1024),
        };
        let dir = table.dir.as_ref().and_then(|typed| self.path(typed));
        let dir = dir.unwrap_or_else(|| self.references.base.join("plugins"));
        let cache_dir = table.cache_dir.as_ref().and_then(|typed| self.path(typed));
        let cache_dir = cache_dir.unwrap_or_else(|| self.user_cache().unwrap_or_else(|| dir.join(".cache")));
        let limits = self.limits(&table.limits, &default);
        let named: BTreeMap<String, PluginSettings> =
            table.plugins.iter().map(|plugin| self.plugin(plugin, &limits)).collect();
        let total_memory = self.total_memory(table, &limits, &named);
        PluginsSettings { dir, cache_dir, total_memory, limits, named, dev: false }
    }

    /// What all instances may have together: never less than one of them.
    fn total_memory(
        &self,
        table: &PluginsTable,
        limits: &PluginLimits,
        named: &BTreeMap<String, PluginSettings>,
    ) -> usize {
        let most = named.values().map(|plugin| plugin.limits.memory).fold(limits.memory, usize::max);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        let total = self.size(table.total_memory.as_ref(), GIB.max(most), MIB..=1024 * GIB);
        if let Some(typed) = table.total_memory.as_ref().filter(|_| (total as u64) < most) {
            let message = format!(
                "`{}` is less than one instance may have: the largest `memory_limit` is {}",
                typed.value,
                unit::show_bytes(most)
            );
            self.complain(&typed.at, message);
        }
        total
    }

    /// Where the user's programs keep what they can make again.
    fn user_cache(&self) -> Option<PathBuf> {
        let folder = |name: &str| {
            let path = PathBuf::from((self.references.environment)(name)?);
            path.is_absolute().then_some(path)
        };
        let home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|path| path.join(home)));
        cache.map(|path| path.join("anabranch"))
    }

    fn limits(&self, table: &LimitsTable, default: &PluginLimits) -> PluginLimits {
        let wide = |size: usize| u64::try_from(size).unwrap_or(u64::MAX);
        let instances = u32::try_from(default.instances).unwrap_or(1);
        PluginLimits {
            memory: self.size(table.memory_limit.as_ref(), wide(default.memory), MIB..=4 * GIB),
            call_deadline: self.duration(
                table.call_deadline.as_ref(),
                default.call_deadline,
                SECOND / 1000..=3600 * SECOND,
            ),
            max_output: self.size(table.max_output.as_ref(), wide(default.max_output), KIB..=2 * GIB),
            max_documents: self.count(
                table.max_documents.as_ref(),
                u32::try_from(default.max_documents).unwrap_or(u32::MAX),
                1..=1_000_000,
            ) as usize,
            log_lines: self.count(table.log_lines.as_ref(), default.log_lines, 0..=100_000),
            instances: self.count(table.instances.as_ref(), instances, 1..=1024) as usize,
        }
    }

    fn plugin(&self, table: &PluginTable, default: &PluginLimits) -> (String, PluginSettings) {
        let entry = |(key, typed): &(String, Text)| Some((key.clone(), self.secret_or_empty(typed)?));
        let settings = PluginSettings {
            limits: self.limits(&table.limits, default),
            config: table.config.iter().filter_map(entry).collect(),
            rederive_patch: table.rederive_patch.as_ref().is_none_or(|typed| typed.value),
            grants: self.grants(&table.grants),
            query_connect: self.query_connect(&table.grants),
            place: self.place(&table.name.at),
        };
        (table.name.value.clone(), settings)
    }

    fn sinks(&self, file: &File) -> BTreeMap<String, crate::sink::SinkSettings> {
        if file.sinks.is_empty() && self.problems.is_empty() {
            let message = "there is no sink, so documents have nowhere to go; add [sink.<name>] with a kind, \
                           such as kind = \"sqlite\"";
            self.complain(&At::default(), message);
        }
        let mut settings = BTreeMap::new();
        for table in &file.sinks {
            if !is_short_name(&table.name.value) {
                let message = "a sink's name has letters, digits, `_`, `-` and `.`, at most 63 characters";
                self.complain(&table.name.at, message);
            }
            if let Some(sink) = sinks::resolve(self, table) {
                settings.insert(table.name.value.clone(), sink);
            }
        }
        settings
    }

    fn maps(&self, file: &File) -> Vec<MapEntry> {
        let mut names = BTreeSet::new();
        let mut entries = Vec::new();
        for table in &file.maps {
            let entry = self.map(table, file);
            if let (Some(name), Some(typed)) =
                (entry.as_ref().and_then(|entry| entry.name.clone()), &table.name)
                && !names.insert(name)
            {
                let message = format!("another [[map]] has the name `{}` already", typed.value);
                self.complain(&typed.at, message);
            }
            entries.extend(entry);
        }
        entries
    }

    fn map(&self, table: &MapTable, file: &File) -> Option<MapEntry> {
        let name = table.name.as_ref().and_then(|typed| self.label(typed, "a mapping's name"));
        let version = table.version.as_ref().and_then(|typed| self.label(typed, "a mapping's version"));
        let entity = table.table.as_ref().and_then(|typed| self.entity(typed));
        let destination = table.destination.as_ref().and_then(|typed| self.plain(typed));
        let sink = self.sink_name(table, file);
        let on_failure = self.on_failure(table.on_failure.as_ref());
        let Some(typed_transform) = &table.transform else {
            self.complain(&table.at, "has no `transform`; name the plugin that turns rows into documents");
            return None;
        };
        let flag =
            |typed: &Option<Located<bool>>, default| typed.as_ref().map_or(default, |typed| typed.value);
        let policy = MapPolicy {
            auto_backfill: flag(&table.auto_backfill, true),
            auto_backfill_on_version_change: flag(&table.auto_backfill_on_version_change, true),
            purge_on_change: flag(&table.purge_on_change, false),
            on_failure,
            quarantine: self.quarantine(table, on_failure),
            reread: table.reread.as_ref().is_none_or(|typed| typed.value),
        };
        Some(MapEntry {
            name,
            table: entity,
            transform: self.plain(typed_transform)?,
            sink: sink?,
            destination,
            version,
            policy,
            place: self.place(&table.at),
            transform_place: self.place(&typed_transform.at),
        })
    }

    fn label(&self, typed: &Text, what: &str) -> Option<String> {
        let label = self.plain(typed)?;
        if label.len() > 200 || label.trim() != label || label.contains(char::is_control) {
            let message =
                format!("{what} has at most 200 bytes, no space at its ends and no control characters");
            self.complain(&typed.at, message);
        }
        Some(label)
    }

    fn entity(&self, typed: &Text) -> Option<EntityName> {
        let name = self.plain(typed)?.parse();
        if name.is_err() {
            let message = format!(
                "`{}` does not name a table; write schema.table, with double quotes around a part that has a \
                 dot or a space",
                typed.value
            );
            self.complain(&typed.at, message);
        }
        name.ok()
    }

    fn sink_name(&self, table: &MapTable, file: &File) -> Option<String> {
        let names = || file.sinks.iter().map(|sink| sink.name.value.as_str());
        let Some(typed) = &table.sink else {
            match file.sinks.as_slice() {
                [only] => return Some(only.name.value.clone()),
                [] => {}
                _ => self.complain(&table.at, format!("has no `sink`; there are {}", listed(names()))),
            }
            return None;
        };
        let name = self.plain(typed)?;
        if names().any(|known| known == name) {
            return Some(name);
        }
        let hint = did_you_mean(&typed.value, names());
        let all = if hint.is_empty() { format!("; there are {}", listed(names())) } else { hint };
        self.complain(&typed.at, format!("no sink has the name `{}`{all}", typed.value));
        None
    }

    fn on_failure(&self, typed: Option<&Text>) -> OnFailure {
        let words = [("halt", OnFailure::Halt), ("quarantine", OnFailure::Quarantine)];
        self.word(typed, &words, OnFailure::Halt)
    }

    fn quarantine(&self, table: &MapTable, on_failure: OnFailure) -> QuarantineBounds {
        let default = QuarantineBounds::default();
        let limits = [
            table.quarantine_limit.as_ref().map(|typed| &typed.at),
            table.quarantine_in_a_row.as_ref().map(|typed| &typed.at),
            table.quarantine_payload.as_ref().map(|typed| &typed.at),
        ];
        if on_failure != OnFailure::Quarantine {
            for at in limits.into_iter().flatten() {
                self.complain(
                    at,
                    "bounds the quarantine, which this mapping has none of; add on_failure = \"quarantine\"",
                );
            }
        }
        let count = |typed: &Option<Located<i64>>, default: usize| {
            self.count(typed.as_ref(), u32::try_from(default).unwrap_or(u32::MAX), 1..=1_000_000) as usize
        };
        QuarantineBounds {
            limit: count(&table.quarantine_limit, default.limit),
            in_a_row: count(&table.quarantine_in_a_row, default.in_a_row),
            payload: self.size(table.quarantine_payload.as_ref(), default.payload as u64, 1..=16 * MIB),
        }
    }

    fn backfill(&self, table: &BackfillTable) -> BackfillSettings {
        let max_chunk = self.size(table.max_chunk_bytes.as_ref(), 8 * MIB, KIB..=GIB);
        let prefetch = self.size(table.prefetch_bytes.as_ref(), 32 * MIB, KIB..=4 * GIB);
        BackfillSettings {
            chunk_size: self.count(table.chunk_size.as_ref(), 5000, 1..=1_000_000),
            max_chunk_bytes: max_chunk,
            prefetch_bytes: prefetch,
            max_concurrent: self.count(table.max_concurrent.as_ref(), 1, 1..=64) as usize,
            statement_timeout: self.duration(
                table.statement_timeout.as_ref(),
                60 * SECOND,
                SECOND / 10..=86_400 * SECOND,
            ),
        }
    }

    fn pipeline(&self, table: &PipelineTable) -> PipelineSettings {
        let spool_limit = self.size(table.spool_limit.as_ref(), 64 * GIB, MIB..=16_384 * GIB);
        let spool_dir = table.spool_dir.as_ref().and_then(|typed| self.path(typed));
        let default_dir = || {
            self.user_cache().map_or_else(|| self.references.base.join(".spool"), |cache| cache.join("spool"))
        };
        PipelineSettings {
            batch_rows: self.count(table.batch_rows.as_ref(), 1000, 1..=100_000) as usize,
            batch_bytes: self.size(table.batch_bytes.as_ref(), MIB, KIB..=256 * MIB),
            queue_bytes: self.size(table.queue_bytes.as_ref(), 32 * MIB, KIB..=16 * GIB),
            drain_limit: self.duration(table.drain_limit.as_ref(), 25 * SECOND, SECOND / 10..=3600 * SECOND),
            streaming: table.streaming.as_ref().is_none_or(|typed| typed.value),
            spool_memory: self.size(table.spool_memory.as_ref(), 8 * MIB, KIB..=16 * GIB),
            spool_limit: u64::try_from(spool_limit).unwrap_or(u64::MAX),
            spool_dir: spool_dir.unwrap_or_else(default_dir),
        }
    }

    fn log(&self, table: &LogTable) -> LogSettings {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        LogSettings {
            format: self.word(table.format.as_ref(), &formats, LogFormat::Text),
            level: self.word(table.level.as_ref(), &LogLevel::ALL, LogLevel::Info),
        }
    }
}

fn is_short_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.chars().count() <= MAX_NAME && name.chars().all(allowed)
}
