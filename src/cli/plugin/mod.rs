//! `plugin new`, `plugin build` and `plugin inspect`; the author's loop has a file for each of its commands.

mod author;
mod bench;
mod diff;
mod test;

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    config::{LogFormat, LogLevel},
    model::{EntityName, PluginKind, Relation},
    plugin::{
        Asked, HostSettings, Inspection, PluginHost,
        build::{self, BuildOptions, Built},
        new::{self, NewPlugin, NewProject, ProjectLanguage},
    },
    postgres::{Catalog, ConnectSettings, Purpose},
};

use super::{Context, Exit, UsageError, output, source::UrlArgument};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a project to begin with: a transform for a table's columns, or a sink, with its test and a copy of the SDK.
    New(NewArguments),
    /// Build a component from a project in Rust (Cargo.toml), JavaScript (package.json), Python (pyproject.toml), Go (go.mod) or C (plugin.toml).
    Build(BuildArguments),
    /// Show what a file is, and whether this host can run it.
    Inspect(InspectArguments),
    /// Compare what a component makes of golden rows with what is expected, or show what it makes of a sample of a table.
    Test(test::Arguments),
    /// Measure how fast a component is, on golden rows, a sample of a table or generated rows.
    Bench(bench::Arguments),
    /// Show which documents of a sample another version changes, and how.
    Diff(diff::Arguments),
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LanguageName {
    Rust,
    #[value(name = "javascript", alias = "js")]
    JavaScript,
    #[value(name = "typescript", alias = "ts")]
    TypeScript,
    Python,
    C,
    Go,
}

#[derive(Debug, clap::Args)]
struct NewArguments {
    /// The language.
    #[arg(value_enum, value_name = "LANGUAGE")]
    language: LanguageName,
    /// The plugin's name, and that of the folder to make.
    #[arg(value_name = "NAME")]
    name: String,
    /// The table that it is for. Its columns are read from the source, if there is a config file or a connection
    /// string; the sample's stand there otherwise.
    #[arg(long, value_name = "SCHEMA.TABLE")]
    table: Option<EntityName>,
    /// Make a sink, which delivers documents to where they are wanted, in place of a transform.
    #[arg(long)]
    sink: bool,
    #[command(flatten)]
    url: UrlArgument,
}

/// The JSON shape of `plugin new`.
#[derive(Debug, Serialize)]
struct NewShape {
    folder: String,
    language: String,
    /// `transform` or `sink`.
    kind: &'static str,
    /// Null for a sink.
    table: Option<String>,
    /// Whether the columns are those of the source's table, not the sample's.
    from_source: bool,
    files: Vec<String>,
    /// The commands that come next.
    next: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct BuildArguments {
    /// The project's folder.
    #[arg(value_name = "DIR", default_value = ".")]
    project: PathBuf,
    /// The folder to write `NAME.wasm` to [default: the project's dist].
    #[arg(long, value_name = "DIR", conflicts_with = "output")]
    out: Option<PathBuf>,
    /// The file to write.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Cargo features, separated by commas.
    #[arg(long, value_name = "FEATURES", value_delimiter = ',')]
    features: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct InspectArguments {
    /// The component.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The JSON shape of `plugin build`.
#[derive(Debug, Serialize)]
struct BuiltShape {
    path: String,
    size: usize,
    /// `transform` or `sink`.
    kind: &'static str,
    interface: String,
    imports: Vec<String>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::New(arguments) => create(context, arguments),
        Command::Build(arguments) => {
            context.start_logs(LogFormat::Text, LogLevel::Info);
            build(context, arguments)
        }
        Command::Inspect(arguments) => {
            context.start_logs(LogFormat::Text, LogLevel::Info);
            inspect(context, arguments)
        }
        Command::Test(arguments) => test::run(context, arguments),
        Command::Bench(arguments) => bench::run(context, arguments),
        Command::Diff(arguments) => diff::run(context, arguments),
    }
}

fn create(context: &Context, arguments: &NewArguments) -> anyhow::Result<Exit> {
    let language = match arguments.language {
        LanguageName::Rust => ProjectLanguage::Rust,
        LanguageName::JavaScript => ProjectLanguage::JavaScript,
        LanguageName::TypeScript => ProjectLanguage::TypeScript,
        LanguageName::Python => ProjectLanguage::Python,
        LanguageName::C => ProjectLanguage::C,
        LanguageName::Go => ProjectLanguage::Go,
    };
    if arguments.sink {
        if let Some(table) = &arguments.table {
            return Err(UsageError(format!(
                "--sink and --table exclude each other: a sink delivers documents of any table; leave out `--table {table}`, \
                 or --sink for a transform"
            ))
            .into());
        }
        if arguments.url.is_typed() {
            return Err(UsageError(
                "--url is used with --table only, and a sink has no table: leave it out, or --sink for a transform"
                    .to_owned(),
            )
            .into());
        }
        return made(context, language, &arguments.name, NewPlugin::Sink, false);
    }
    if arguments.table.is_none() && arguments.url.is_typed() {
        return Err(UsageError(
            "--url is used with --table only, whose columns are read there: add `--table SCHEMA.TABLE`, or leave it out for \
             the sample's columns"
                .to_owned(),
        )
        .into());
    }
    let known = arguments.url.is_given() || context.global.config.is_file();
    let (table, from_source) = match &arguments.table {
        Some(name) if known => {
            let source = arguments.url.source(context)?;
            (context.block_on(table_of(&source.connect, name))?, true)
        }
        Some(name) => (new::sample_table(name.clone()), false),
        None => (new::sample_table(EntityName::new("public", "products")), false),
    };
    made(context, language, &arguments.name, NewPlugin::Transform(&table), from_source)
}

/// Makes the project and says what comes next.
fn made(
    context: &Context,
    language: ProjectLanguage,
    name: &str,
    plugin: NewPlugin<'_>,
    from_source: bool,
) -> anyhow::Result<Exit> {
    let folder = PathBuf::from(name);
    let project = NewProject { language, name, folder: &folder, plugin };
    let files = new::create(&project)?;
    let (kind, table) = match plugin {
        NewPlugin::Transform(table) => ("transform", Some(table.name.to_string())),
        NewPlugin::Sink => ("sink", None),
    };
    let enter = format!("cd {name}");
    let shape = NewShape {
        folder: folder.display().to_string(),
        language: language.to_string(),
        kind,
        table,
        from_source,
        files: files.iter().map(|file| file.display().to_string()).collect(),
        next: std::iter::once(enter).chain(project.commands()).collect(),
    };
    context.output.result(&shape, new_text)?;
    Ok(Exit::Done)
}

/// A table as the source has it.
async fn table_of(connect: &ConnectSettings, name: &EntityName) -> anyhow::Result<Relation> {
    let client = connect.connect(Purpose::State).await?;
    // The publication's column list is not asked for: there may be none yet.
    let mut catalog = Catalog::new("");
    let tables = catalog.tables(&client, std::slice::from_ref(name)).await?;
    let table = tables.first().ok_or_else(|| UsageError(format!("the source has no table {name}")))?;
    Ok(catalog.relation(table))
}

fn new_text(made: &NewShape) -> String {
    let what = match &made.table {
        Some(table) => {
            let columns =
                if made.from_source { "its own columns" } else { "the sample's columns: mend them" };
            format!("a plugin in {} for {table} ({columns})", made.language)
        }
        None => format!("a sink in {}", made.language),
    };
    let mut text = format!("{}: {what}\n", made.folder);
    for command in &made.next {
        text.push_str(&format!("  {command}\n"));
    }
    text
}

fn build(context: &Context, arguments: &BuildArguments) -> anyhow::Result<Exit> {
    let built = build::build(&BuildOptions {
        project: arguments.project.clone(),
        output: arguments.output.clone().or_else(|| arguments.out.clone()),
        features: arguments.features.clone(),
        environment: Vec::new(),
    })?;
    context.output.result(&built_shape(built), |built| {
        format!("{}: {} of {}, {}", built.path, built.kind, built.interface, size(built.size))
    })?;
    Ok(Exit::Done)
}

fn built_shape(built: Built) -> BuiltShape {
    BuiltShape {
        path: built.path.display().to_string(),
        size: built.size,
        kind: match built.shape.kind {
            PluginKind::Transform => "transform",
            PluginKind::Sink => "sink",
        },
        interface: built.shape.interface,
        imports: built.shape.imports,
    }
}

/// A file that no host can run is an answer, with exit code 1; a file that cannot be read is an error.
fn inspect(context: &Context, arguments: &InspectArguments) -> anyhow::Result<Exit> {
    // Nothing is kept: inspecting leaves no trace.
    let config = author::config_if_any(context)?;
    let grants = config.map(|config| config.plugins.host_settings().grants).unwrap_or_default();
    let host = PluginHost::new(HostSettings { grants, ..HostSettings::default() })?;
    let inspection = host.inspect(&arguments.file)?;
    context.output.result(&inspection, text)?;
    Ok(if inspection.loadable { Exit::Done } else { Exit::Failed })
}

fn size(bytes: usize) -> String {
    output::bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn text(inspection: &Inspection) -> String {
    let mut lines = vec![
        ("file", inspection.path.display().to_string()),
        ("size", size(inspection.size)),
        ("sha256", inspection.sha256.clone()),
    ];
    if let Some(described) = &inspection.description {
        lines.push(("name", described.name.clone()));
        lines.push(("version", described.version.clone()));
        lines.push(("tables", list(&described.tables, "none declared")));
        lines.push((
            "columns",
            described.columns.as_ref().map_or("all".to_owned(), |names| list(names, "none")),
        ));
        lines.push((
            "destination",
            described.destination.clone().unwrap_or_else(|| "none declared".to_owned()),
        ));
        if !described.unknown.is_empty() {
            lines.push(("not known", list(&described.unknown, "")));
        }
    }
    if let Some(kind) = inspection.kind {
        lines.push(("kind", kind.to_owned()));
    }
    if let Some(interface) = &inspection.interface {
        lines.push(("interface", interface.clone()));
        lines.push(("imports", list(&inspection.imports, "none")));
        lines.push(("exports", list(&inspection.exports, "none")));
        let asked: Vec<String> = inspection.capabilities.iter().map(asked_text).collect();
        lines.push(("asks for", list(&asked, "nothing")));
    }
    lines.push(("verdict", inspection.verdict.clone()));
    lines.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn asked_text(asked: &Asked) -> String {
    match asked.granted {
        Some(true) => format!("{} (granted)", asked.name),
        Some(false) => format!("{} (not granted by the config)", asked.name),
        None => asked.name.to_owned(),
    }
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}
