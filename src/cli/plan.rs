//! `plan`: what `run` would do about versions: which mappings are new, rebuilt, refused or gone, and why.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    config::{Config, Mappings},
    model::EntityName,
    pipeline::{Decision, Stored, Wanted, compare},
    postgres::{Catalog, Purpose},
    state::{RunStatus, Store, StoredRun, Suspension},
};

use super::{Context, Exit, output, prepare::Plugins};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// What `run --dev` would do: other bytes of the same version are a bump.
    #[arg(long)]
    dev: bool,
}

/// The JSON shape of `plan`.
#[derive(Debug, Serialize)]
struct Shape {
    /// Whether anything would change.
    changes: bool,
    mappings: Vec<StepShape>,
    /// Plugins that do nothing, or cannot be loaded, and why.
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StepShape {
    mapping: String,
    /// Null for a mapping that is gone.
    entity: Option<String>,
    /// `new`, `unchanged`, `adopt`, `rebuild`, `held`, `refused` or `removed`.
    action: &'static str,
    /// What differs, a sentence each.
    reasons: Vec<String>,
    /// Whether the table would be read.
    backfill: bool,
    /// Whether the destination would be emptied first.
    purge: bool,
    /// About how many rows would be read; null where none are, or nobody knows.
    rows: Option<i64>,
    /// About how long that takes, at the speed of the table's last run; null where there was none.
    seconds: Option<i64>,
    /// Whether the table was cancelled, so that it is read only when it is requested.
    cancelled: bool,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut config = context.config()?;
    config.plugins.dev = arguments.dev;
    let plugins = Plugins::load(&config)?;
    let failures: Vec<_> = plugins.failures().map(ToString::to_string).collect();
    let mappings = match plugins.mappings(&config) {
        Err(error) if !failures.is_empty() => {
            return Err(anyhow::Error::from(error).context(failures.join("\n")));
        }
        mappings => mappings?,
    };
    let wanted = wanted(&config, &plugins, &mappings);
    let notices = failures.into_iter().chain(mappings.notices.iter().cloned()).collect();
    let mut shape = context.block_on(compared(&config, &mappings, &wanted, notices))?;
    hold(&mut shape, &config, &mappings, &plugins);
    let refused = shape.mappings.iter().any(|step| matches!(step.action, "held" | "refused"));
    context.output.result(&shape, text)?;
    Ok(if refused { Exit::Failed } else { Exit::Done })
}

fn wanted(config: &Config, plugins: &Plugins, mappings: &Mappings) -> Vec<Wanted> {
    let with_plugin = mappings.mappings.iter().filter_map(|mapping| {
        let plugin = plugins.named(&mapping.transform)?;
        let kind = config.sinks.get(&mapping.sink)?.kind();
        let sink_plugin = match config.sink_plugin(&mapping.sink) {
            Some(name) => Some(&**plugins.named(name)?.revision()),
            None => None,
        };
        Some(mapping.wanted(plugin.revision(), plugin.description(), kind, sink_plugin))
    });
    with_plugin.collect()
}

async fn compared(
    config: &Config,
    mappings: &Mappings,
    wanted: &[Wanted],
    mut notices: Vec<String>,
) -> anyhow::Result<Shape> {
    let client = config.source.connect.connect(Purpose::State).await?;
    let store = Store::new(config.source.slot.as_str());
    let (mut stored, mut runs) = (Vec::new(), Vec::new());
    if store.ready(&client).await? {
        runs = store.runs(&client).await?;
        let suspension = store.suspension(&client).await?.filter(Suspension::holds);
        notices.extend(suspension.map(|suspension| suspended(&suspension)));
        for mapping in store.mappings(&client).await? {
            let identity = serde_json::from_str(&mapping.identity).with_context(|| {
                format!(
                    "the stored identity of mapping `{}` cannot be read; was it changed by hand?",
                    mapping.name
                )
            })?;
            stored.push(Stored { name: mapping.name, identity });
        }
    }
    let entities: BTreeMap<&str, &EntityName> =
        mappings.mappings.iter().map(|mapping| (mapping.name.as_str(), &mapping.entity)).collect();
    let mut tables: Vec<EntityName> = entities.values().map(|&entity| entity.clone()).collect();
    tables.sort();
    tables.dedup();
    let found = Catalog::new(config.source.publication.as_str()).tables(&client, &tables).await?;
    client.close().await;

    let steps = compare(wanted, &stored, config.plugins.dev).into_iter().map(|step| {
        let entity = entities.get(step.mapping.as_str()).copied();
        let table = found.iter().find(|table| Some(&table.name) == entity);
        let rows = table.and_then(|table| table.estimated_rows);
        let run = runs.iter().find(|run| run.scope.is_none() && Some(&run.entity) == entity);
        step_shape(step.mapping, entity, &step.decision, rows, run)
    });
    let mappings: Vec<_> = steps.collect();
    Ok(Shape { changes: changes(&mappings), mappings, notices })
}

fn changes(steps: &[StepShape]) -> bool {
    steps.iter().any(|step| !matches!(step.action, "unchanged" | "held" | "refused"))
}

/// A mapping whose transform or sink asks for what is not granted does nothing else.
fn hold(shape: &mut Shape, config: &Config, mappings: &Mappings, plugins: &Plugins) {
    for step in shape.mappings.iter_mut().filter(|step| step.action != "removed") {
        let mapping = mappings.mappings.iter().find(|mapping| mapping.name == step.mapping);
        let Some(mapping) = mapping else { continue };
        let used = [Some(mapping.transform.as_str()), config.sink_plugin(&mapping.sink)];
        let new = step.action == "new";
        let asked = used.into_iter().flatten().filter_map(|name| plugins.named(name)).filter_map(|plugin| {
            let ungranted = plugin.ungranted()?;
            let (revision, words) = (plugin.revision(), ungranted.words());
            let lines = ungranted.toml().replace('\n', " ");
            let more = if new { "" } else { " in addition" };
            Some(format!("{revision} asks for {words}{more}, which the config does not grant: add {lines}"))
        });
        let asked: Vec<String> = asked.collect();
        if asked.is_empty() {
            continue;
        }
        step.action = if new { "refused" } else { "held" };
        step.reasons.splice(0..0, asked);
        (step.backfill, step.purge, step.rows, step.seconds, step.cancelled) =
            (false, false, None, None, false);
    }
    shape.changes = changes(&shape.mappings);
}

fn suspended(suspension: &Suspension) -> String {
    let since = &suspension.since;
    let then = if suspension.keep_slot { "goes on where it was" } else { "builds every mapped table again" };
    format!("suspended since {since}: nothing is streamed, and `anabranch resume` {then}")
}

fn step_shape(
    mapping: String,
    entity: Option<&EntityName>,
    decision: &Decision,
    rows: Option<i64>,
    last: Option<&StoredRun>,
) -> StepShape {
    let mut shape = StepShape {
        mapping,
        entity: entity.map(ToString::to_string),
        action: "unchanged",
        reasons: Vec::new(),
        backfill: false,
        purge: false,
        rows: None,
        seconds: None,
        cancelled: false,
    };
    match decision {
        Decision::New { backfill } => {
            shape.action = "new";
            shape.backfill = *backfill;
        }
        Decision::Unchanged => {}
        Decision::Adopt { differences } => {
            shape.action = "adopt";
            shape.reasons = differences.iter().map(ToString::to_string).collect();
        }
        Decision::Rebuild { differences, backfill, purge } => {
            shape.action = "rebuild";
            shape.reasons = differences.iter().map(ToString::to_string).collect();
            (shape.backfill, shape.purge) = (*backfill, *purge);
        }
        Decision::Refused { conflicts } => {
            shape.action = "refused";
            shape.reasons = conflicts.iter().map(ToString::to_string).collect();
        }
        Decision::Removed => shape.action = "removed",
    }
    shape.rows = rows.filter(|_| shape.backfill);
    shape.seconds = shape.rows.zip(last).and_then(|(rows, last)| seconds(rows, last));
    shape.cancelled = shape.backfill && last.is_some_and(|run| run.status == RunStatus::Cancelled);
    shape
}

/// How long so many rows take at the speed that a run had.
pub(super) fn seconds(rows: i64, last: &StoredRun) -> Option<i64> {
    let read = i128::from(last.report.rows);
    let millis = i128::from(rows) * i128::from(last.report.wall_ms);
    (read > 0 && last.report.wall_ms > 0).then(|| millis / read / 1000).and_then(|s| s.try_into().ok())
}

fn text(shape: &Shape) -> String {
    let mut lines: Vec<_> = shape.notices.iter().map(|notice| format!("note: {notice}")).collect();
    if !shape.changes && shape.mappings.iter().all(|step| step.action == "unchanged") {
        lines.push("no change".to_owned());
        return lines.join("\n");
    }
    lines.extend(shape.mappings.iter().map(step_line));
    if shape.mappings.iter().all(|step| matches!(step.action, "unchanged" | "adopt" | "removed")) {
        lines.push("nothing is rebuilt".to_owned());
    }
    lines.join("\n")
}

/// `public.products:product-search:search  rebuild: product-search 1.4.0 → 1.5.0; reads ~1 000 000 rows`
fn step_line(step: &StepShape) -> String {
    let mut line = format!("{}  {}", step.mapping, step.action);
    if !step.reasons.is_empty() {
        line.push_str(": ");
        line.push_str(&step.reasons.join(", "));
    }
    if step.purge {
        line.push_str("; empties the destination");
    }
    match (step.backfill, step.rows) {
        (true, _) if step.cancelled => line.push_str("; was cancelled, so it is read only when requested"),
        (true, Some(rows)) => {
            line.push_str(&format!("; reads ~{} rows", output::count(rows)));
            if let Some(seconds) = step.seconds.and_then(|seconds| seconds.try_into().ok()) {
                line.push_str(&format!(", ~{}", output::duration(Duration::from_secs(seconds))));
            }
        }
        (true, None) => line.push_str("; reads the whole table"),
        (false, _) if matches!(step.action, "new" | "rebuild") => {
            line.push_str("; no backfill, as configured")
        }
        (false, _) if step.action == "removed" => line.push_str("; its documents stay"),
        (false, _) if step.action == "adopt" => line.push_str("; a patch release, exempt from rebuilding"),
        (false, _) => {}
    }
    line
}

#[cfg(test)]
mod tests {
    use crate::{backfill::Report, pipeline::Difference};

    use super::*;

    fn step(decision: &Decision, rows: Option<i64>) -> StepShape {
        step_shape("m".into(), Some(&EntityName::new("public", "t")), decision, rows, None)
    }

    #[test]
    fn reasons_and_costs_are_told() {
        let differences = vec![Difference::VersionKey { from: Some("1".into()), to: Some("2".into()) }];
        let rebuild = Decision::Rebuild { differences: differences.clone(), backfill: true, purge: true };
        assert_eq!(
            step_line(&step(&rebuild, Some(1_000_000))),
            "m  rebuild: version \"1\" → \"2\"; empties the destination; reads ~1 000 000 rows"
        );
        assert_eq!(
            step_line(&step(&Decision::New { backfill: false }, None)),
            "m  new; no backfill, as configured"
        );
        assert_eq!(step_line(&step(&Decision::Removed, None)), "m  removed; its documents stay");
        let adopt = Decision::Adopt { differences };
        assert!(step_line(&step(&adopt, None)).ends_with("; a patch release, exempt from rebuilding"));
    }

    #[test]
    fn the_last_run_tells_how_long_it_takes() {
        let mut last = StoredRun {
            status: RunStatus::Complete,
            rows: 10,
            chunks: 1,
            report: Report { rows: 10_000, wall_ms: 2_000, ..Report::default() },
            ..StoredRun::new(EntityName::new("public", "t"), "r", Vec::new())
        };
        let new = Decision::New { backfill: true };
        let with = |last: &StoredRun| step_shape("m".into(), None, &new, Some(1_000_000), Some(last));
        assert_eq!(step_line(&with(&last)), "m  new; reads ~1 000 000 rows, ~3 min 20 s");
        last.report.rows = 0;
        assert_eq!(step_line(&with(&last)), "m  new; reads ~1 000 000 rows");
        last.status = RunStatus::Cancelled;
        assert_eq!(step_line(&with(&last)), "m  new; was cancelled, so it is read only when requested");
    }

    #[test]
    fn nothing_to_do_is_said() {
        let mappings = vec![step(&Decision::Unchanged, Some(5))];
        assert_eq!(mappings[0].rows, None);
        let shape = Shape { changes: false, mappings, notices: vec!["n".into()] };
        assert_eq!(text(&shape), "note: n\nno change");
        let removed =
            Shape { changes: true, mappings: vec![step(&Decision::Removed, None)], notices: Vec::new() };
        assert_eq!(text(&removed), "m  removed; its documents stay\nnothing is rebuilt");
    }
}
