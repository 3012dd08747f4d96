//! The config as it is meant: every value checked, every default filled in.
//!
//! What is secret is a [`Secret`], whose `Debug` shows nothing of it, so that a whole [`Config`] may be
//! logged.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    model::{EntityName, Secret},
    plugin::{GuestLimits, HostSettings, grants::Grants},
    postgres::ConnectSettings,
    sink::SinkSettings,
};

/// A config file whose every value is usable. Whether what it names exists is for others to find out.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it came from, as it was named.
    pub file: PathBuf,
    /// `[source]`
    pub source: SourceSettings,
    /// `[plugins]`
    pub plugins: PluginsSettings,
    /// The `[sink.<name>]` tables by name; at least one.
    pub sinks: BTreeMap<String, SinkSettings>,
    pub(super) sink_places: BTreeMap<String, Place>,
    /// The `[[map]]` entries in their order; what they leave out is completed by
    /// [`resolve_mappings`](super::resolve_mappings).
    pub maps: Vec<MapEntry>,
    /// `[backfill]`
    pub backfill: BackfillSettings,
    /// `[pipeline]`
    pub pipeline: PipelineSettings,
    /// `[http]`
    pub http: HttpSettings,
    /// `[traces]`
    pub traces: TracesSettings,
    /// `[log]`
    pub log: LogSettings,
}

impl Config {
    /// The name of the plugin that a sink is; none where it is built in.
    #[must_use]
    pub fn sink_plugin(&self, sink: &str) -> Option<&str> {
        match self.sinks.get(sink)? {
            SinkSettings::Plugin(settings) => Some(&settings.plugin),
            _ => None,
        }
    }

    /// What a sink writes to: the same for two that name one SQLite file, or one plugin with the same settings. Where
    /// others lead to one server by other settings is not known.
    #[must_use]
    pub fn writes_to(&self, sink: &str) -> String {
        match self.sinks.get(sink) {
            Some(SinkSettings::Sqlite(settings)) => std::path::absolute(&settings.path)
                .unwrap_or_else(|_| settings.path.clone())
                .display()
                .to_string(),
            Some(settings @ SinkSettings::Plugin(_)) => {
                let first = self.sinks.iter().find(|(_, other)| *other == settings);
                first.map_or(sink, |(name, _)| name).to_owned()
            }
            _ => sink.to_owned(),
        }
    }
}

/// `[source]`: the database and how to listen to it.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// How to connect: `url`, completed by the `PG*` variables of the environment.
    pub connect: ConnectSettings,
    /// The replication slot: also the installation's name.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Whether the publication is created and altered to fit the mappings.
    pub manage_publication: bool,
    /// Whether the publication has only the columns that the transforms of a table declare, and its identity.
    pub column_lists: bool,
    /// Whether destinations are emptied before the rebuild that repairs a gap in the stream, where their sinks
    /// can: rows that were deleted while nobody listened leave documents behind otherwise.
    pub purge_on_repair: bool,
    /// Whether standbys are to keep a copy of the slot, where the server can (from Postgres 17 on).
    pub failover_slot: bool,
    /// How often the position is told to the server at the least.
    pub status_interval: Duration,
    /// How long the server may say nothing until the link counts as dead.
    pub silence_limit: Duration,
    /// How often an idle source is written a heartbeat, so that the slot moves.
    pub heartbeat_interval: Duration,
}

/// `[plugins]`: where plugins are and what they may use.
#[derive(Clone, Debug)]
pub struct PluginsSettings {
    /// The folder of `.wasm` files.
    pub dir: PathBuf,
    /// The folder of compiled code.
    pub cache_dir: PathBuf,
    /// Linear memory of all instances of all plugins, in bytes.
    pub total_memory: usize,
    /// What a plugin may use unless its own table says otherwise.
    pub limits: PluginLimits,
    /// The `[plugins.<name>]` tables by name.
    pub named: BTreeMap<String, PluginSettings>,
    /// Whether other bytes of the same version are a bump. No key of the file: `run --dev`.
    pub dev: bool,
}

impl PluginsSettings {
    /// The settings of the plugin host.
    #[must_use]
    pub fn host_settings(&self) -> HostSettings {
        HostSettings {
            cache_dir: Some(self.cache_dir.clone()),
            total_memory: self.total_memory,
            memory: self.limits.memory,
            call_deadline: self.limits.call_deadline,
            max_output: self.limits.max_output,
            instances: self.limits.instances,
            max_documents: self.limits.max_documents,
            log_lines: self.limits.log_lines,
            named: self.named.iter().map(|(name, plugin)| (name.clone(), plugin.limits.guest())).collect(),
            grants: self.named.iter().map(|(name, plugin)| (name.clone(), plugin.grants.clone())).collect(),
            ..HostSettings::default()
        }
    }

    /// The settings of a plugin, whether it has a table or not.
    #[must_use]
    pub fn of(&self, plugin: &str) -> PluginSettings {
        self.named.get(plugin).cloned().unwrap_or_else(|| PluginSettings {
            limits: self.limits.clone(),
            config: BTreeMap::new(),
            rederive_patch: true,
            grants: Grants::default(),
            query_connect: None,
            place: Place::default(),
        })
    }
}

impl PluginSettings {
    /// What the plugin is told, in clear: for the plugin room alone.
    #[must_use]
    pub fn guest_config(&self) -> BTreeMap<String, String> {
        self.config.iter().map(|(key, value)| (key.clone(), value.expose().to_owned())).collect()
    }
}

/// What a plugin may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginLimits {
    /// Linear memory of one instance, in bytes.
    pub memory: usize,
    /// How long one call may take.
    pub call_deadline: Duration,
    /// How much one call may answer, in bytes.
    pub max_output: usize,
    /// How many documents one change may have.
    pub max_documents: usize,
    /// How many lines it may log in one second, and in one call.
    pub log_lines: u32,
    /// How many instances may run side by side.
    pub instances: usize,
}

impl PluginLimits {
    fn guest(&self) -> GuestLimits {
        GuestLimits {
            memory: self.memory,
            call_deadline: self.call_deadline,
            max_output: self.max_output,
            instances: self.instances,
            max_documents: self.max_documents,
            log_lines: self.log_lines,
        }
    }
}

/// `[plugins.<name>]`: one plugin's own settings.
#[derive(Clone, Debug)]
pub struct PluginSettings {
    /// What it may use.
    pub limits: PluginLimits,
    /// What it is told through the `config` interface.
    pub config: BTreeMap<String, Secret>,
    /// Whether a patch release rebuilds, as any other version does.
    pub rederive_patch: bool,
    /// What it may use beside the log and its settings.
    pub grants: Grants,
    /// Whom its questions go to the source as, where that is not the role of `[source] url`.
    pub query_connect: Option<ConnectSettings>,
    pub(super) place: Place,
}

/// Where something stands in the file, for errors that are found after the file was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) position: Option<(usize, usize)>,
    pub(super) key: String,
}

/// One `[[map]]`, as far as the file says it.
#[derive(Clone, Debug)]
pub struct MapEntry {
    /// Its name, where it has one of its own.
    pub name: Option<String>,
    /// The table, unless the plugin's declared tables are meant.
    pub table: Option<EntityName>,
    /// The name of the transform.
    pub transform: String,
    /// The name of the sink: one of [`Config::sinks`].
    pub sink: String,
    /// Where its documents land, unless the plugin's declared destination is meant.
    pub destination: Option<String>,
    /// The manual part of its version.
    pub version: Option<String>,
    /// What to do when things change or fail.
    pub policy: MapPolicy,
    pub(super) place: Place,
    pub(super) transform_place: Place,
}

/// What a mapping does when things change or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPolicy {
    /// Whether a mapping that is seen for the first time is backfilled.
    pub auto_backfill: bool,
    /// Whether a change of version is followed by a backfill.
    pub auto_backfill_on_version_change: bool,
    /// Whether the destination is emptied before such a backfill.
    pub purge_on_change: bool,
    /// What happens to a change that cannot be processed.
    pub on_failure: OnFailure,
    /// The bounds of its quarantine.
    pub quarantine: QuarantineBounds,
    /// Whether live rows that came without all that the transform reads are read again by their keys; otherwise
    /// they cannot be processed.
    pub reread: bool,
}

impl Default for MapPolicy {
    fn default() -> Self {
        Self {
            auto_backfill: true,
            auto_backfill_on_version_change: true,
            purge_on_change: false,
            on_failure: OnFailure::Halt,
            quarantine: QuarantineBounds::default(),
            reread: true,
        }
    }
}

/// What happens to a change that cannot be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The mapping stops, keeps the slot and tries again with backoff; nothing is skipped.
    Halt,
    /// The change is kept in the state schema, and the mapping goes on.
    Quarantine,
}

/// The bounds of a mapping's quarantine: beyond them it halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineBounds {
    /// Rows that may be in it.
    pub limit: usize,
    /// Changes, or documents, that may fail one after another with none between them that works.
    pub in_a_row: usize,
    /// About how many bytes of a row, and of a document, are kept.
    pub payload: usize,
}

impl Default for QuarantineBounds {
    fn default() -> Self {
        Self { limit: 10_000, in_a_row: 100, payload: 64 << 10 }
    }
}

/// `[backfill]`: how existing rows are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillSettings {
    /// Rows of a chunk at the most.
    pub chunk_size: u32,
    /// Bytes of a chunk at the most; pages shrink to fit.
    pub max_chunk_bytes: usize,
    /// Bytes of chunks in flight.
    pub prefetch_bytes: usize,
    /// Tables that are read at the same time.
    pub max_concurrent: usize,
    /// How long the server may take for a statement of a reading.
    pub statement_timeout: Duration,
}

/// `[pipeline]`: how changes move from the stream to the sinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSettings {
    /// Changes of a batch, about.
    pub batch_rows: usize,
    /// Bytes of a batch, about.
    pub batch_bytes: usize,
    /// Bytes that may wait for one mapping.
    pub queue_bytes: usize,
    /// How long what is in hand may take to be delivered when the process is told to stop.
    pub drain_limit: Duration,
    /// Whether large transactions are asked for before they commit.
    pub streaming: bool,
    /// Bytes of such transactions in memory.
    pub spool_memory: usize,
    /// Bytes of such transactions on disk.
    pub spool_limit: u64,
    /// Where on disk.
    pub spool_dir: PathBuf,
}

/// `[http]`: the operations endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where it listens; none: nowhere.
    pub listen: Option<SocketAddr>,
}

/// `[traces]`: where spans are exported to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracesSettings {
    /// The base URL of an OpenTelemetry collector's OTLP receiver; none: nothing is exported.
    pub endpoint: Option<Secret>,
}

/// `[log]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Text for people or JSON for machines.
    pub format: LogFormat,
    /// What is worth a line.
    pub level: LogLevel,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least that is logged; later ones log more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What stops work.
    Error,
    /// What needs attention.
    Warn,
    /// What happened.
    Info,
    /// Why it happened.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, from the quietest, with their words.
    pub const ALL: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// The level's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Config {
    /// The directory that relative paths start from: the file's own.
    #[must_use]
    pub fn base(&self) -> &Path {
        base_of(&self.file)
    }
}

/// The directory of a file; the current one where it has none.
pub(super) fn base_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}
