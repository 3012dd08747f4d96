//! What `plugin test`, `bench` and `diff` have in common: the component, the host that runs it, and rows of a table.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use serde_json::value::RawValue;
use tracing::warn;

use crate::{
    author::{Answer, Step},
    config::Config,
    model::{ChangeBatch, Description, EntityName, Failure, PluginKind, document_id},
    plugin::{
        HostSettings, Plugin, PluginHost,
        build::{self, BuildOptions},
    },
    postgres::{Sample, SampleRequest, SnapshotReader},
};

use super::super::{
    Context, UsageError, limit,
    source::{Source, UrlArgument},
};

/// No more text than this is taken of a table.
const SAMPLE_BYTES: usize = 256 << 20;
/// How long a statement may take where nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which rows of which table.
#[derive(Debug, clap::Args)]
pub(super) struct SampleArguments {
    /// The table [default: the one that the plugin names].
    #[arg(long, value_name = "SCHEMA.TABLE")]
    pub(super) table: Option<EntityName>,
    /// Take so many rows of the source's table, at random.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) sample: Option<u32>,
    /// How long a statement may take [default: 30s].
    #[arg(long, value_name = "DURATION", value_parser = limit)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) url: UrlArgument,
}

impl SampleArguments {
    /// What of it stands on the command line, `--sample` aside: no command may ignore it.
    pub(super) fn typed(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--table", self.table.is_some()),
            ("--timeout", self.timeout.is_some()),
            ("--url", self.url.is_typed()),
        ];
        options.into_iter().filter_map(|(option, is_typed)| is_typed.then_some(option))
    }

    /// The table that is meant.
    pub(super) fn table(&self, description: &Description) -> Result<EntityName, UsageError> {
        if let Some(table) = &self.table {
            return Ok(table.clone());
        }
        let [table] = description.tables.as_slice() else {
            let names = description.tables.join(", ");
            let says =
                if names.is_empty() { "no table".to_owned() } else { format!("several tables ({names})") };
            return Err(UsageError(format!(
                "{} names {says}; say which: --table SCHEMA.TABLE",
                description.name
            )));
        };
        table
            .parse()
            .map_err(|error| UsageError(format!("the table that {} names: {error}", description.name)))
    }

    /// Takes the rows. Reads only.
    pub(super) async fn take(
        &self,
        source: &Source,
        table: &EntityName,
        columns: Option<&[String]>,
        rows: u32,
    ) -> anyhow::Result<Sample> {
        let mut reader = SnapshotReader::open(&source.connect, source.publication.as_str()).await?;
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        let request = SampleRequest { entity: table, columns, rows, max_bytes: SAMPLE_BYTES, timeout };
        let sample = reader.sample(&request).await;
        reader.close().await;
        Ok(sample?)
    }
}

/// A component: the file itself, or one that was built for this command alone.
pub(super) struct Component {
    path: PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl Component {
    /// A folder is a project, which is built first.
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        if !path.is_dir() {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let folder = tempfile::tempdir()?;
        let options = BuildOptions {
            project: path.to_owned(),
            output: Some(folder.path().to_owned()),
            ..BuildOptions::default()
        };
        let built = build::build(&options)?;
        Ok(Self { path: built.path, _folder: Some(folder) })
    }

    /// Loads it; only transforms can be tried with rows.
    pub(super) fn load(&self, host: &PluginHost) -> anyhow::Result<Plugin> {
        let plugin = host.load_blocking(&self.path)?;
        if plugin.description().kind == PluginKind::Sink {
            let (path, revision) = (self.path.display(), plugin.revision());
            anyhow::bail!(
                "{path}: {revision} is a sink, and rows are for transforms; a sink is tested by its unit tests"
            );
        }
        let asks: Vec<_> = plugin.asks().iter().map(ToString::to_string).collect();
        if !asks.is_empty() {
            warn!(
                plugin = %plugin.revision(),
                asks = asks.join(", "),
                "here state and metrics are in memory, requests go where the config file grants it, and questions to the \
                 source are refused",
            );
        }
        Ok(plugin)
    }
}

/// A host with the config's limits, or the defaults.
pub(super) fn host(config: Option<&Config>) -> anyhow::Result<PluginHost> {
    let settings = config.map_or_else(HostSettings::default, |config| config.plugins.host_settings());
    Ok(PluginHost::new(HostSettings { lenient: true, ..settings })?)
}

/// The config file, where there is one and nothing else was named.
pub(super) fn config_if_any(context: &Context) -> anyhow::Result<Option<Config>> {
    if context.global.config.is_file() {
        return Ok(Some(context.config()?));
    }
    context.start_logs(crate::config::LogFormat::Text, crate::config::LogLevel::Info);
    Ok(None)
}

/// What the config tells a plugin.
pub(super) fn settings(config: Option<&Config>, plugin: &Plugin) -> BTreeMap<String, String> {
    config.map(|config| config.plugins.of(&plugin.revision().name).guest_config()).unwrap_or_default()
}

/// The document id of a change, or its place.
pub(super) fn row_name(batch: &ChangeBatch, at: usize) -> String {
    let id = batch.changes.get(at).and_then(|change| {
        let row = batch.row(change.new.or(change.old)?);
        document_id(batch.relation(change), row)
    });
    id.unwrap_or_else(|| format!("row {}", at + 1))
}

/// The JSON shape of an answer.
#[derive(Debug, Serialize)]
pub(super) struct AnswerShape {
    /// The row's document id.
    pub(super) row: String,
    pub(super) steps: Vec<StepShape>,
    pub(super) failure: Option<FailureShape>,
}

/// The JSON shape of a step, as in `documents.json`.
#[derive(Debug, Serialize)]
pub(super) struct StepShape {
    #[serde(skip_serializing_if = "Option::is_none")]
    upsert: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Box<RawValue>>,
}

/// The JSON shape of a failure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FailureShape {
    pub(super) class: &'static str,
    pub(super) code: String,
    pub(super) message: String,
}

impl From<Failure> for FailureShape {
    fn from(failure: Failure) -> Self {
        Self { class: failure.class.as_str(), code: failure.code, message: failure.message }
    }
}

impl AnswerShape {
    pub(super) fn new(row: String, answer: Answer) -> Self {
        match answer {
            Answer::Steps(steps) => {
                Self { row, steps: steps.into_iter().map(StepShape::from).collect(), failure: None }
            }
            Answer::Failed(failure) => Self { row, steps: Vec::new(), failure: Some(failure.into()) },
        }
    }

    /// `upsert 1: {…}`, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        if let Some(failure) = &self.failure {
            let FailureShape { class, code, message } = failure;
            return vec![format!("row {} fails: {message} ({code}, {class})", self.row)];
        }
        if self.steps.is_empty() {
            return vec![format!("row {}: skip", self.row)];
        }
        self.steps.iter().map(StepShape::line).collect()
    }
}

impl From<Step> for StepShape {
    fn from(step: Step) -> Self {
        let Step { destination, id, document } = step;
        // The host has validated it.
        let document = document.and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
        let (upsert, delete) = if document.is_some() { (Some(id), None) } else { (None, Some(id)) };
        Self { upsert, delete, destination, document }
    }
}

impl StepShape {
    fn line(&self) -> String {
        let place = self.destination.as_ref().map(|name| format!(" in {name}")).unwrap_or_default();
        match (&self.upsert, &self.document) {
            (Some(id), Some(document)) => format!("upsert {id}{place}: {}", document.get()),
            _ => format!("delete {}{place}", self.delete.as_deref().unwrap_or_default()),
        }
    }
}
