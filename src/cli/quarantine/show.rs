//! `quarantine show`: entries with all that is known of them.

use serde::Serialize;
use serde_json::Value;

use crate::control::{EntryDetails, EntryShape};

use super::{
    super::{Context, Exit, source::SourceArguments, with_control},
    missing,
};
use crate::state::QuarantineFilter;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Numbers of entries.
    #[arg(required = true, value_name = "ENTRY")]
    entries: Vec<i64>,
}

/// The JSON shape of `quarantine show`.
#[derive(Debug, Serialize)]
struct Shape {
    entries: Vec<EntryDetails>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let filter = QuarantineFilter { ids: arguments.entries.clone(), ..QuarantineFilter::default() };
    let shape = with_control(context, &arguments.source, async |control| {
        let (entries, _) = control.quarantine(&filter, None).await?;
        Ok(Shape { entries: entries.iter().map(EntryDetails::from).collect() })
    })?;
    let found: Vec<i64> = shape.entries.iter().map(|details| details.entry.id).collect();
    let missing = missing(&arguments.entries, &found);
    context.output.result(&shape, |shape| {
        let mut parts: Vec<String> = shape.entries.iter().map(text).collect();
        parts.extend(missing.iter().map(|id| format!("there is no entry {id}\n")));
        parts.join("\n")
    })?;
    Ok(if missing.is_empty() { Exit::Done } else { Exit::Failed })
}

fn text(details: &EntryDetails) -> String {
    let EntryDetails { entry, payload, cut, document } = details;
    let EntryShape { id, mapping, entity, key, .. } = entry;
    let mut lines = vec![
        format!("entry {id}: row {key} of {entity}, mapping {mapping}"),
        format!("  change     {} ({}) at LSN {}{}", entry.operation, entry.origin, entry.lsn, place(entry)),
        format!("  failed     {} time(s) in {}: {}", entry.attempts, entry.stage, entry.code),
        format!("  reason     {}", entry.reason),
        format!("  plugin     {}", entry.plugin),
        format!("  sink       {}, generation {}", entry.sink, entry.generation),
        format!("  since      {}, last {}", entry.first, entry.last),
        format!("  status     {}", status(entry)),
    ];
    for row in ["new", "old"] {
        let Some(Value::Object(values)) = payload.get(row) else { continue };
        lines.push(format!("  {row} row"));
        lines.extend(values.iter().map(|(column, value)| {
            let mark = if cut.contains(column) { " (cut)" } else { "" };
            format!("    {column} = {value}{mark}")
        }));
    }
    if let Some(document) = document {
        let body = document.body.as_deref().unwrap_or("(a delete)");
        lines.push(format!("  document {} in {}", document.id, document.destination));
        lines.push(format!("    {body}"));
    }
    lines.join("\n") + "\n"
}

fn place(entry: &EntryShape) -> String {
    let index = entry.index.map(|index| format!(", change {index} of its transaction"));
    let when = entry.committed.as_ref().map(|when| format!(", committed {when}"));
    index.unwrap_or_default() + &when.unwrap_or_default()
}

fn status(entry: &EntryShape) -> &'static str {
    match (entry.status, entry.replayable) {
        ("replaying", _) => "its row is about to be read again",
        (_, true) => "waiting: `anabranch quarantine replay` reads its row again",
        (_, false) => "waiting, and cannot be read again: the row came without its whole key",
    }
}
