//! `plugin bench`: rows a second, and what a row costs.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    author::{Comparison, Measured, Measurement, Pace, Rows, cases, generate, measure},
    config::Config,
    model::{ChangeBatch, EntityName},
    plugin::{Plugin, services::Services},
};

use super::{
    super::{Context, Exit, UsageError, output},
    author::{Component, SampleArguments, config_if_any, host, settings},
    table_of,
};

/// Rows that are made where neither golden ones nor a sample are asked for.
const GENERATED: u32 = 1000;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The component, or a project's folder, which is built first.
    #[arg(value_name = "FILE|PROJECT")]
    component: PathBuf,
    /// Send the rows of the golden cases in this folder. Without it and `--sample`, rows are made up for the columns
    /// of the source's table.
    #[arg(long, value_name = "DIR", conflicts_with = "sample")]
    golden: Option<PathBuf>,
    /// Rows of a batch.
    #[arg(
        long,
        value_name = "ROWS",
        value_delimiter = ',',
        default_value = "1,100,1000",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    batch: Vec<u32>,
    /// How long each size is measured.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Keep what was measured in this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with what was kept in this file.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    sample: SampleArguments,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "seconds, such as 3 or 0.5, at most 3600".to_owned())
}

/// The JSON shape of `plugin bench`.
#[derive(Debug, Serialize)]
struct Shape {
    #[serde(flatten)]
    measurement: Measurement,
    /// What it is as a multiple of another, where that was asked for.
    against: Option<Comparison>,
}

/// What is sent.
struct Load {
    batch: ChangeBatch,
    table: EntityName,
    from: &'static str,
    settings: std::collections::BTreeMap<String, String>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    if let Some(problem) = unused(arguments) {
        return Err(UsageError(problem).into());
    }
    // What cannot be compared with is told before anything is measured.
    let before = arguments.against.as_ref().map(kept).transpose()?;
    let component = Component::of(&arguments.component)?;
    let (plugin, load) = match &arguments.golden {
        Some(folder) => {
            let config = config_if_any(context)?;
            (component.load(&host(config.as_ref())?)?, golden(folder)?)
        }
        None => from_source(context, arguments, &component)?,
    };
    let transform = plugin.transform(&load.table, load.settings).with_services(Services::in_memory());
    let known = Measurement {
        plugin: plugin.revision().name.clone(),
        version: plugin.revision().version.to_string(),
        table: load.table.to_string(),
        rows_from: load.from.to_owned(),
        rows: 0,
        row_bytes: 0.0,
        output_bytes: 0.0,
        memory_bytes: 0,
        batches: Vec::new(),
    };
    // One thread, whose time of the processor is then that of the calls.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured =
        runtime.block_on(measure(&transform, load.batch, &arguments.batch, arguments.seconds, known))?;
    let measurement = measured.ok_or_else(|| {
        UsageError(format!("there is no row of {} that reaches the plugin; give it others", load.table))
    })?;
    if let Some(path) = &arguments.save {
        let text = serde_json::to_string_pretty(&measurement)? + "\n";
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    let against = before.map(|before| measurement.against(&before));
    context.output.result(&Shape { measurement, against }, text)?;
    Ok(Exit::Done)
}

/// What is given and would be ignored.
fn unused(arguments: &Arguments) -> Option<String> {
    let mut typed = arguments.sample.typed();
    if arguments.golden.is_some() {
        let leave =
            |option| format!("{option} is not used with --golden, whose rows are of no source: leave it out");
        return typed.next().map(leave);
    }
    let is_sample = arguments.sample.sample.is_some();
    let timeout = typed.find(|option| *option == "--timeout" && !is_sample)?;
    Some(format!(
        "{timeout} is used with --sample only, for rows that are made up are not read: leave it out, or add `--sample N`"
    ))
}

fn kept(path: &PathBuf) -> anyhow::Result<Measurement> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is nothing that `plugin bench --save` wrote", path.display()))
}

fn golden(folder: &std::path::Path) -> anyhow::Result<Load> {
    let mut rows: Option<Rows> = None;
    for case in cases(folder)? {
        let Some(rows) = &mut rows else {
            rows = Some(case.rows);
            continue;
        };
        if !rows.append(&case.rows) {
            return Err(UsageError(format!(
                "{}: the case {} has another table, columns or settings than those before it; give the folder of \
                 one case",
                folder.display(),
                case.name
            ))
            .into());
        }
    }
    let Some(rows) = rows else { return Err(UsageError(format!("{} has no rows", folder.display())).into()) };
    let table = rows.relation().name.clone();
    Ok(Load { batch: rows.batch, table, from: "golden", settings: rows.settings })
}

/// A sample, or rows made for the columns that the source's table has.
fn from_source(
    context: &Context,
    arguments: &Arguments,
    component: &Component,
) -> anyhow::Result<(Plugin, Load)> {
    if !arguments.sample.url.is_given() && !context.global.config.is_file() {
        let message = "no rows to measure with: give --golden DIR, or a source whose table tells the columns \
                       (--url, or a config file)";
        return Err(UsageError(message.to_owned()).into());
    }
    let source = arguments.sample.url.source(context)?;
    let config: Option<&Config> = source.config.as_ref();
    let plugin = component.load(&host(config)?)?;
    let table = arguments.sample.table(plugin.description())?;
    let columns = plugin.description().columns.clone();
    let (batch, from) = context.block_on(async {
        Ok(match arguments.sample.sample {
            Some(rows) => {
                let sample = arguments.sample.take(&source, &table, columns.as_deref(), rows).await?;
                (sample.batch, "sample")
            }
            None => {
                let relation = table_of(&source.connect, &table).await?;
                (generate(&std::sync::Arc::new(relation), GENERATED), "generated")
            }
        })
    })?;
    let settings = settings(config, &plugin);
    Ok((plugin, Load { batch, table, from, settings }))
}

fn text(shape: &Shape) -> String {
    let Measurement { plugin, version, table, rows_from, rows, memory_bytes, .. } = &shape.measurement;
    let mut text = format!(
        "{plugin} {version} on {}, {rows_from}, of {table}: {:.0} bytes a row in, {:.0} out; {} an instance\n",
        output::several(*rows, "row"),
        shape.measurement.row_bytes,
        shape.measurement.output_bytes,
        output::bytes(*memory_bytes)
    );
    let line = |measured: &Measured| {
        vec![
            measured.batch.to_string(),
            format!("{:.0}", measured.rows_per_second),
            micros(measured.p50_us),
            micros(measured.p99_us),
            measured.cpu_us.map_or_else(|| "-".to_owned(), micros),
            measured.failed_rows.to_string(),
        ]
    };
    let lines: Vec<_> = shape.measurement.batches.iter().map(line).collect();
    text.push_str(&output::table(&["batch", "rows/s", "p50", "p99", "cpu a row", "failed rows"], &lines));
    if let Some(against) = &shape.against {
        text.push_str(&against_text(against));
    }
    text
}

fn micros(micros: f64) -> String {
    if micros < 1000.0 { format!("{micros:.1} µs") } else { format!("{:.2} ms", micros / 1000.0) }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("×{ratio:.2}"))
}

fn against_text(against: &Comparison) -> String {
    let mut text = format!("\nas a multiple of {}:\n", against.before);
    for note in &against.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    let line = |pace: &Pace| {
        let Pace { batch, rows_per_second, p50, p99, cpu } = pace;
        vec![batch.to_string(), times(*rows_per_second), times(*p50), times(*p99), times(*cpu)]
    };
    let lines: Vec<_> = against.batches.iter().map(line).collect();
    text.push_str(&output::table(&["batch", "rows/s", "p50", "p99", "cpu a row"], &lines));
    text.push_str(&format!(
        "memory of an instance {}, bytes out {}\n",
        times(against.memory),
        times(against.output)
    ));
    text
}
