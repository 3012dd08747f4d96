//! `plugin build` and `plugin inspect`.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    config::{LogFormat, LogLevel},
    model::PluginKind,
    plugin::{
        HostSettings, Inspection, PluginHost,
        build::{self, BuildOptions, Built},
    },
};

use super::{Context, Exit, output};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Build a component from a Rust project, optimised.
    Build(BuildArguments),
    /// Show what a file is, and whether this host can run it.
    Inspect(InspectArguments),
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
    context.start_logs(LogFormat::Text, LogLevel::Info);
    match &arguments.command {
        Command::Build(arguments) => build(context, arguments),
        Command::Inspect(arguments) => inspect(context, arguments),
    }
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
    let host = PluginHost::new(HostSettings::default())?;
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
    }
    lines.push(("verdict", inspection.verdict.clone()));
    lines.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { names.join(", ") }
}
