//! `quarantine`: what could not be processed, and what an operator does with it, with the installation's database
//! alone.

mod replay;
mod show;

use serde::Serialize;

use crate::{
    control::EntryShape,
    model::EntityName,
    state::{QuarantineEntry, QuarantineFilter},
};

use super::{Context, Exit, UsageError, output, source::SourceArguments, with_control};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List entries, the oldest first.
    List(ListArguments),
    /// Show entries with the rows and documents that they are about.
    Show(show::Arguments),
    /// Read the rows of entries again, under today's revision; an entry goes when its row was accepted.
    Replay(replay::Arguments),
    /// Forget entries; the documents of their rows stay as they are.
    Drop(DropArguments),
}

/// Which entries are meant.
#[derive(Debug, clap::Args)]
struct FilterArguments {
    /// Only those of this mapping.
    #[arg(long, value_name = "MAPPING")]
    mapping: Option<String>,
    /// Only those of this table (`schema.table`).
    #[arg(long, value_name = "TABLE")]
    table: Option<EntityName>,
    /// Only that of the row with this key, written as a document id.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
    /// Only those that failed with this code.
    #[arg(long, value_name = "CODE")]
    code: Option<String>,
}

impl FilterArguments {
    fn filter(&self, ids: &[i64]) -> QuarantineFilter {
        QuarantineFilter {
            ids: ids.to_vec(),
            mapping: self.mapping.clone(),
            entity: self.table.clone(),
            row: self.key.clone(),
            code: self.code.clone(),
        }
    }
}

/// Which entries are meant, for what changes something.
#[derive(Debug, clap::Args)]
struct ChosenArguments {
    #[command(flatten)]
    filter: FilterArguments,
    /// Numbers of entries.
    #[arg(value_name = "ENTRY")]
    entries: Vec<i64>,
    /// All of them.
    #[arg(long)]
    all: bool,
}

impl ChosenArguments {
    /// All entries are meant only where that is said.
    fn filter(&self) -> Result<QuarantineFilter, UsageError> {
        let filter = self.filter.filter(&self.entries);
        if filter == QuarantineFilter::default() && !self.all {
            let message = "no entry is named: give numbers, --mapping, --table, --key or --code, or --all";
            return Err(UsageError(message.to_owned()));
        }
        Ok(filter)
    }
}

#[derive(Debug, clap::Args)]
struct ListArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    filter: FilterArguments,
    /// Show so many at the most.
    #[arg(long, value_name = "ENTRIES", default_value_t = 100)]
    limit: u32,
}

#[derive(Debug, clap::Args)]
struct DropArguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    chosen: ChosenArguments,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::List(arguments) => list(context, arguments),
        Command::Show(arguments) => show::run(context, arguments),
        Command::Replay(arguments) => replay::run(context, arguments),
        Command::Drop(arguments) => drop_entries(context, arguments),
    }
}

/// The JSON shape of `quarantine list`.
#[derive(Debug, Serialize)]
struct ListShape {
    entries: Vec<EntryShape>,
    /// How many more there are.
    more: u64,
}

fn list(context: &Context, arguments: &ListArguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let filter = arguments.filter.filter(&[]);
        let (entries, more) = control.quarantine(&filter, Some(arguments.limit)).await?;
        Ok(ListShape { entries: shapes(&entries), more })
    })?;
    context.output.result(&shape, listed)?;
    Ok(Exit::Done)
}

fn shapes(entries: &[QuarantineEntry]) -> Vec<EntryShape> {
    entries.iter().map(EntryShape::from).collect()
}

fn listed(shape: &ListShape) -> String {
    if shape.entries.is_empty() {
        return "nothing is in quarantine".to_owned();
    }
    let mut text = table(&shape.entries);
    if shape.more > 0 {
        text.push_str(&format!(
            "and {} more\n",
            output::count(i64::try_from(shape.more).unwrap_or(i64::MAX))
        ));
    }
    text
}

fn table(entries: &[EntryShape]) -> String {
    let row = |entry: &EntryShape| {
        vec![
            entry.id.to_string(),
            entry.mapping.clone(),
            entry.key.clone(),
            entry.operation.clone(),
            entry.lsn.clone(),
            entry.status.to_owned(),
            entry.attempts.to_string(),
            entry.last.clone(),
            entry.code.clone(),
            first_line(&entry.reason),
        ]
    };
    let heading =
        ["entry", "mapping", "key", "change", "lsn", "status", "failures", "last", "code", "reason"];
    output::table(&heading, &entries.iter().map(row).collect::<Vec<_>>())
}

/// What fits into a line of a list.
fn first_line(text: &str) -> String {
    const MOST: usize = 120;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The JSON shape of `quarantine drop`.
#[derive(Debug, Serialize)]
struct DropShape {
    dropped: Vec<i64>,
}

fn drop_entries(context: &Context, arguments: &DropArguments) -> anyhow::Result<Exit> {
    let filter = arguments.chosen.filter()?;
    let shape = with_control(context, &arguments.source, async |control| {
        Ok(DropShape { dropped: control.drop_quarantined(&filter).await? })
    })?;
    let missing = missing(&arguments.chosen.entries, &shape.dropped);
    context.output.result(&shape, |shape| {
        let mut lines = vec![match shape.dropped.len() as u64 {
            0 => "nothing was dropped".to_owned(),
            dropped => format!("dropped {} from the quarantine", output::several(dropped, "row")),
        }];
        lines.extend(missing.iter().map(|id| format!("there is no entry {id}")));
        lines.join("\n")
    })?;
    Ok(if missing.is_empty() { Exit::Done } else { Exit::Failed })
}

/// The entries that were named and are not among these.
fn missing(named: &[i64], found: &[i64]) -> Vec<i64> {
    named.iter().copied().filter(|id| !found.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_meant_only_where_that_is_said() {
        let chosen = |key: Option<&str>, entries: &[i64], all| {
            let key = key.map(str::to_owned);
            let filter = FilterArguments { mapping: None, table: None, key, code: None };
            ChosenArguments { filter, entries: entries.to_vec(), all }.filter()
        };
        assert!(chosen(None, &[], false).is_err());
        assert!(chosen(None, &[], true).is_ok());
        assert!(chosen(None, &[7], false).is_ok());
        assert!(chosen(Some("7"), &[], false).is_ok());
    }

    #[test]
    fn reasons_fit_into_a_line() {
        assert_eq!(first_line("a\nb"), "a");
        assert_eq!(first_line(&"é".repeat(200)), format!("{}…", "é".repeat(120)));
    }
}
