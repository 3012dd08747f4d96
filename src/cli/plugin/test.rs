//! `plugin test`: golden cases through a component, or a sample of a real table.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    author::{Answer, Case, Mismatch, answers, cases},
    plugin::{Plugin, services::Services},
};

use super::{
    super::{Context, Exit, UsageError, output},
    author::{AnswerShape, Component, SampleArguments, config_if_any, host, row_name, settings},
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The component, or a project's folder, which is built first.
    #[arg(value_name = "FILE|PROJECT", default_value = ".")]
    component: PathBuf,
    /// The folder of golden cases [default: `golden`, in the project].
    #[arg(long, value_name = "DIR", conflicts_with = "sample")]
    golden: Option<PathBuf>,
    /// Write what comes out as what is expected.
    #[arg(long, conflicts_with = "sample")]
    update: bool,
    #[command(flatten)]
    sample: SampleArguments,
}

/// The JSON shape of golden cases.
#[derive(Debug, Serialize)]
struct GoldenShape {
    /// Name and version.
    plugin: String,
    ok: bool,
    cases: Vec<CaseShape>,
}

#[derive(Debug, Serialize)]
struct CaseShape {
    name: String,
    ok: bool,
    rows: usize,
    /// Rows that fail, whether that is expected or not.
    failures: usize,
    /// Whether its expectations were written anew.
    updated: bool,
    /// Why no row was answered: the plugin as a whole is broken.
    fault: Option<String>,
    mismatches: Vec<Mismatch>,
}

/// The JSON shape of a sample.
#[derive(Debug, Serialize)]
struct SampleShape {
    plugin: String,
    table: String,
    ok: bool,
    rows: usize,
    failures: usize,
    answers: Vec<AnswerShape>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    match arguments.sample.sample {
        Some(rows) => sample(context, arguments, rows),
        None => golden(context, arguments),
    }
}

fn golden(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    if let Some(option) = arguments.sample.typed().next() {
        return Err(UsageError(format!(
            "{option} is used with --sample only, and golden rows are of no source: leave it out, or add `--sample N`"
        ))
        .into());
    }
    let config = config_if_any(context)?;
    let folder = arguments.golden.clone().unwrap_or_else(|| match arguments.component.is_dir() {
        true => arguments.component.join("golden"),
        false => PathBuf::from("golden"),
    });
    let component = Component::of(&arguments.component)?;
    let plugin = component.load(&host(config.as_ref())?)?;
    let cases = cases(&folder)?;
    let mut shape = GoldenShape {
        plugin: plugin.revision().to_string(),
        ok: true,
        cases: Vec::with_capacity(cases.len()),
    };
    for case in &cases {
        let done = context.block_on(tried(&plugin, case, arguments.update))?;
        shape.ok &= done.ok;
        shape.cases.push(done);
    }
    context.output.result(&shape, golden_text)?;
    Ok(if shape.ok { Exit::Done } else { Exit::Failed })
}

async fn tried(plugin: &Plugin, case: &Case, update: bool) -> anyhow::Result<CaseShape> {
    let rows = &case.rows;
    let transform =
        plugin.transform(&rows.relation().name, rows.settings.clone()).with_services(Services::in_memory());
    let mut shape = CaseShape {
        name: case.name.clone(),
        ok: true,
        rows: rows.names.len(),
        failures: 0,
        updated: false,
        fault: None,
        mismatches: Vec::new(),
    };
    let all = 0..u32::try_from(rows.batch.changes.len()).unwrap_or(u32::MAX);
    match answers(&transform, &rows.batch, all).await {
        Ok(answers) => {
            shape.failures = failures(&answers);
            shape.mismatches = case.mismatches(&answers);
            shape.ok = shape.mismatches.is_empty();
            // A case that agrees stays as it was written.
            if update && !shape.ok {
                case.update(&answers)?;
                (shape.updated, shape.ok) = (true, true);
            }
        }
        Err(fault) => (shape.ok, shape.fault) = (false, Some(fault.to_string())),
    }
    Ok(shape)
}

fn failures(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| matches!(answer, Answer::Failed(_))).count()
}

fn golden_text(shape: &GoldenShape) -> String {
    let mut lines = Vec::new();
    for case in &shape.cases {
        let verdict = match case {
            CaseShape { fault: Some(fault), .. } => format!("fails: {fault}"),
            CaseShape { updated: true, .. } => "written".to_owned(),
            CaseShape { ok: true, .. } => "ok".to_owned(),
            _ => format!("differs in {}", output::several(case.mismatches.len() as u64, "place")),
        };
        let failing = match case.failures {
            0 => String::new(),
            failures => format!(", of which {failures} cannot be processed"),
        };
        lines.push(format!(
            "{}: {verdict} ({}{failing})",
            case.name,
            output::several(case.rows as u64, "row")
        ));
        lines.extend(case.mismatches.iter().flat_map(mismatch_lines));
    }
    let differ = shape.cases.iter().filter(|case| !case.ok).count();
    let all = output::several(shape.cases.len() as u64, "case");
    lines.push(match differ {
        0 => format!("{}: {all} as expected", shape.plugin),
        _ => format!("{}: {differ} of {all} not as expected", shape.plugin),
    });
    lines.join("\n")
}

/// The row and the field, what was expected, and what came out.
fn mismatch_lines(mismatch: &Mismatch) -> Vec<String> {
    let Mismatch { row, id, field, expected, actual } = mismatch;
    let document = id.as_ref().map(|id| format!(", document {id}")).unwrap_or_default();
    let field = if field.is_empty() { "the whole document" } else { field };
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
    vec![
        format!("  {row}{document}, {field}"),
        format!("    expected  {}", text(expected)),
        format!("    actual    {}", text(actual)),
    ]
}

fn sample(context: &Context, arguments: &Arguments, rows: u32) -> anyhow::Result<Exit> {
    let source = arguments.sample.url.source(context)?;
    let component = Component::of(&arguments.component)?;
    let plugin = component.load(&host(source.config.as_ref())?)?;
    let table = arguments.sample.table(plugin.description())?;
    let transform = plugin
        .transform(&table, settings(source.config.as_ref(), &plugin))
        .with_services(Services::in_memory());
    let (batch, answers) = context.block_on(async {
        let columns = plugin.description().columns.clone();
        let sample = arguments.sample.take(&source, &table, columns.as_deref(), rows).await?;
        let all = 0..u32::try_from(sample.batch.changes.len()).unwrap_or(u32::MAX);
        let answers = answers(&transform, &sample.batch, all).await?;
        Ok((sample.batch, answers))
    })?;
    let failures = failures(&answers);
    let shape = SampleShape {
        plugin: plugin.revision().to_string(),
        table: table.to_string(),
        ok: failures == 0,
        rows: answers.len(),
        failures,
        answers: answers
            .into_iter()
            .enumerate()
            .map(|(at, answer)| AnswerShape::new(row_name(&batch, at), answer))
            .collect(),
    };
    context.output.result(&shape, sample_text)?;
    Ok(if shape.ok { Exit::Done } else { Exit::Failed })
}

fn sample_text(shape: &SampleShape) -> String {
    let mut lines: Vec<_> = shape.answers.iter().flat_map(AnswerShape::lines).collect();
    let rows = output::several(shape.rows as u64, "row");
    let failing = match shape.failures {
        0 => "none fails".to_owned(),
        1 => "1 fails".to_owned(),
        several => format!("{several} fail"),
    };
    lines.push(format!("{}: {rows} of {}, {failing}", shape.plugin, shape.table));
    lines.join("\n")
}
