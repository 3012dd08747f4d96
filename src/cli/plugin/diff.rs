//! `plugin diff`: what another version changes in the documents of a sample, and about how long a rebuild takes.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    author::{Diff, Example, answers},
    model::Revision,
    plugin::{Plugin, Transform, services::Services},
    postgres::{Purpose, Sample},
    state::Store,
};

use super::{
    super::{Context, Exit, output, plan, source::Source},
    author::{Component, SampleArguments, host, row_name, settings},
};

/// Rows that are taken if no number is given.
const ROWS: u32 = 1000;
/// Rows that are answered at once: their documents are in memory twice.
const PIECE: u32 = 500;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The component as it is, or its project's folder.
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The component as it shall be, or its project's folder.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    sample: SampleArguments,
    /// The installation's slot, in place of the config's: how fast its last run of the table was is told.
    #[arg(long, value_name = "SLOT")]
    slot: Option<String>,
}

/// The JSON shape of `plugin diff`.
#[derive(Debug, Serialize)]
struct Shape {
    old: String,
    new: String,
    table: String,
    #[serde(flatten)]
    diff: Diff,
    rebuild: Rebuild,
    notes: Vec<String>,
}

/// What a rebuild costs, about.
#[derive(Debug, Default, Serialize)]
struct Rebuild {
    /// Rows of the table, as the planner guesses; null where it does not know.
    rows: Option<i64>,
    /// Microseconds that the new version took for a row of the sample, one after the other.
    transform_us: f64,
    /// So long for all rows, in seconds: the transform alone, on one thread.
    transform_seconds: Option<i64>,
    /// How long it takes at the speed of the table's last run, in seconds; null where there was none.
    seconds: Option<i64>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut source = arguments.sample.url.source(context)?;
    if let Some(slot) = &arguments.slot {
        source.slot.clone_from(slot);
    }
    let host = host(source.config.as_ref())?;
    let old = Component::of(&arguments.old)?.load(&host)?;
    let new = Component::of(&arguments.new)?.load(&host)?;
    let table = arguments.sample.table(new.description())?;
    let at_work = |plugin: &Plugin| {
        plugin
            .transform(&table, settings(source.config.as_ref(), plugin))
            .with_services(Services::in_memory())
    };
    let (before, after) = (at_work(&old), at_work(&new));
    let columns = both(&old, &new);
    let (diff, rebuild) = context.block_on(async {
        let rows = arguments.sample.sample.unwrap_or(ROWS);
        let sample = arguments.sample.take(&source, &table, columns.as_deref(), rows).await?;
        let (diff, spent) = compared(&before, &after, &sample).await?;
        let rebuild = rebuild(&source, &table.to_string(), &sample, spent).await?;
        Ok((diff, rebuild))
    })?;
    let shape = Shape {
        old: old.revision().to_string(),
        new: new.revision().to_string(),
        table: table.to_string(),
        notes: notes(old.revision(), new.revision(), diff.is_empty()),
        diff,
        rebuild,
    };
    context.output.result(&shape, text)?;
    Ok(Exit::Done)
}

/// The columns that either of them reads; none for all.
fn both(old: &Plugin, new: &Plugin) -> Option<Vec<String>> {
    let (old, new) = (old.description().columns.as_ref()?, new.description().columns.as_ref()?);
    Some(old.iter().chain(new.iter().filter(|name| !old.contains(name))).cloned().collect())
}

/// What differs, and how long the new version took.
async fn compared(old: &Transform, new: &Transform, sample: &Sample) -> anyhow::Result<(Diff, Duration)> {
    let (mut diff, mut spent) = (Diff::default(), Duration::ZERO);
    let rows = u32::try_from(sample.batch.changes.len()).unwrap_or(u32::MAX);
    let mut from = 0;
    while from < rows {
        let piece = from..rows.min(from.saturating_add(PIECE));
        let before = answers(old, &sample.batch, piece.clone()).await?;
        let started = Instant::now();
        let after = answers(new, &sample.batch, piece.clone()).await?;
        spent += started.elapsed();
        for (at, (before, after)) in piece.clone().zip(before.iter().zip(&after)) {
            diff.add(&row_name(&sample.batch, at as usize), before, after);
        }
        from = piece.end;
    }
    Ok((diff, spent))
}

async fn rebuild(source: &Source, entity: &str, sample: &Sample, spent: Duration) -> anyhow::Result<Rebuild> {
    let read = i64::try_from(sample.batch.changes.len()).unwrap_or(i64::MAX);
    let micros = i64::try_from(spent.as_micros()).unwrap_or(i64::MAX);
    let rows = sample.estimated_rows;
    let all = |rows: i64| {
        let micros = i128::from(rows) * i128::from(micros) / i128::from(read.max(1));
        i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX)
    };
    let client = source.connect.connect(Purpose::State).await?;
    let store = Store::new(source.slot.as_str());
    // A state schema of another release is nothing to fail over: the measured time is there anyway.
    let runs = match store.ready(&client).await {
        Ok(true) => store.runs(&client).await.unwrap_or_default(),
        _ => Vec::new(),
    };
    client.close().await;
    let last = runs.iter().find(|run| run.scope.is_none() && run.entity.to_string() == entity);
    Ok(Rebuild {
        rows,
        transform_us: if read > 0 {
            spent.as_secs_f64() * 1e6 / f64::from(u32::try_from(read).unwrap_or(u32::MAX))
        } else {
            0.0
        },
        transform_seconds: rows.filter(|_| read > 0).map(all),
        seconds: rows.zip(last).and_then(|(rows, last)| plan::seconds(rows, last)),
    })
}

fn notes(old: &Revision, new: &Revision, is_empty: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if old.name != new.name {
        notes.push(format!("`{}` and `{}` are two plugins, not two versions of one", old.name, new.name));
    } else if old.sha256 == new.sha256 {
        notes.push("both files are the same, byte for byte".to_owned());
    } else if old.version == new.version {
        let raise =
            format!("both are {}: a host refuses other bytes under the same version; raise it", new.version);
        notes.push(raise);
    }
    if is_empty && old.sha256 != new.sha256 {
        notes.push("no row of the sample tells them apart; rows that were not taken may".to_owned());
    }
    notes
}

fn text(shape: &Shape) -> String {
    let Shape { old, new, table, diff, rebuild, notes } = shape;
    let mut lines = vec![format!("{old} → {new}, on {} of {table}", output::several(diff.rows, "row"))];
    lines.extend(notes.iter().map(|note| format!("note: {note}")));
    lines.push(format!(
        "documents: {} changed, {} added, {} removed, {} the same",
        diff.changed, diff.added, diff.removed, diff.unchanged
    ));
    if !diff.added_ids.is_empty() {
        lines.push(format!("  added: {}", some(&diff.added_ids, diff.added)));
    }
    if !diff.removed_ids.is_empty() {
        lines.push(format!("  removed: {}", some(&diff.removed_ids, diff.removed)));
    }
    if diff.answered_otherwise > 0 {
        lines.push(format!(
            "rows with no document, deleted in one and skipped in the other: {}",
            diff.answered_otherwise
        ));
    }
    for (field, changes) in &diff.fields {
        let field = if field.is_empty() { "the whole document" } else { field };
        lines.push(format!("{field}: {}", output::several(changes.documents, "document")));
        lines.extend(changes.examples.iter().map(example_line));
    }
    if diff.further_fields > 0 {
        lines.push(format!("further fields: {}", output::several(diff.further_fields, "document")));
    }
    lines.push(format!(
        "rows that fail: {} only now, {} only before, {} in both",
        diff.broken, diff.mended, diff.failing
    ));
    lines.extend(diff.failures.iter().map(|row| {
        let before = if row.failed_before { ", as before" } else { "" };
        format!("  {}: {} ({}, {}){before}", row.row, row.message, row.code, row.class)
    }));
    lines.push(rebuild_line(rebuild));
    lines.join("\n")
}

fn some(ids: &[String], all: u64) -> String {
    let dots = if (ids.len() as u64) < all { ", …" } else { "" };
    format!("{}{dots}", ids.join(", "))
}

fn example_line(example: &Example) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
    format!("  {} {}: {} → {}", example.id, example.path, text(&example.old), text(&example.new))
}

fn rebuild_line(rebuild: &Rebuild) -> String {
    let time = |seconds: Option<i64>| {
        seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(|seconds| output::duration(Duration::from_secs(seconds)))
    };
    let Some(rows) = rebuild.rows else {
        return "a rebuild reads the whole table, of which nobody knows how many rows it has: analyze it"
            .to_owned();
    };
    let mut line = format!("a rebuild reads ~{} rows", output::count(rows));
    if let Some(all) = time(rebuild.transform_seconds) {
        line.push_str(&format!(
            ", ~{all} of the transform alone, on one thread ({:.1} µs a row)",
            rebuild.transform_us
        ));
    }
    if let Some(all) = time(rebuild.seconds) {
        line.push_str(&format!(", ~{all} at the speed of the last run"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(version: &str, sha256: &str) -> Revision {
        Revision {
            name: "p".to_owned(),
            version: version.parse().unwrap(),
            sha256: sha256.to_owned(),
            interface: String::new(),
        }
    }

    #[test]
    fn a_version_that_was_not_raised_is_told() {
        let told = |old: (&str, &str), new: (&str, &str), is_empty| {
            notes(&revision(old.0, old.1), &revision(new.0, new.1), is_empty).join("; ")
        };
        assert_eq!(told(("1.0.0", "a"), ("1.1.0", "b"), false), "");
        assert!(told(("1.0.0", "a"), ("1.0.0", "b"), false).contains("raise it"));
        assert!(told(("1.0.0", "a"), ("1.0.0", "a"), true).contains("byte for byte"));
        assert!(told(("1.0.0", "a"), ("1.1.0", "b"), true).contains("no row of the sample"));
    }

    #[test]
    fn what_nobody_knows_is_not_guessed() {
        let unknown = Rebuild::default();
        assert!(rebuild_line(&unknown).contains("analyze it"));
        let known =
            Rebuild { rows: Some(2_000_000), transform_us: 10.0, transform_seconds: Some(20), seconds: None };
        assert_eq!(
            rebuild_line(&known),
            "a rebuild reads ~2 000 000 rows, ~20 s of the transform alone, on one thread (10.0 µs a row)"
        );
        let run = Rebuild { seconds: Some(180), ..known };
        assert!(rebuild_line(&run).ends_with(", ~3 min 0 s at the speed of the last run"));
    }
}
