//! `backfill`: what an operator asks of the backfills of an installation, with its database alone.

mod show;
mod wait;

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    control::{Cancelled, Requested, Rows},
    model::EntityName,
};

use super::{Context, Exit, UsageError, output, source::SourceArguments, with_control};

pub(super) use show::{control_line, request_line, run_line};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Ask for a backfill, of a whole table or mapping or of some rows.
    Request(RequestArguments),
    /// Withdraw what was asked for and has not begun; the table is then left alone until it is asked for again.
    Cancel(TargetsArguments),
    /// Show requests, runs, pauses and rates.
    Status(StatusArguments),
    /// Wait until backfills are complete.
    Wait(wait::Arguments),
    /// Stop reading for backfills; live changes go on.
    Pause(TableArguments),
    /// Let paused backfills go on.
    Resume(TableArguments),
    /// Limit how many rows a second are read for backfills.
    Rate(RateArguments),
}

#[derive(Debug, clap::Args)]
struct RequestArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Tables (`schema.table`) or mappings.
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<String>,
    /// Empty the destinations first, where the sinks can.
    #[arg(long, conflicts_with_all = ["condition", "keys", "keys_from"])]
    purge: bool,
    /// Only rows for which this SQL condition over the table's columns holds.
    #[arg(long = "where", value_name = "CONDITION", conflicts_with_all = ["keys", "keys_from"])]
    condition: Option<String>,
    /// Only rows of these keys; the parts of a composite key are separated by `,`, and `,` and `\` inside a part
    /// are written `\,` and `\\`.
    #[arg(long, value_name = "KEY", num_args = 1.., allow_negative_numbers = true)]
    keys: Vec<String>,
    /// The same from a file, one key a line; `-` for the standard input.
    #[arg(long, value_name = "FILE")]
    keys_from: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct TargetsArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Tables (`schema.table`) or mappings.
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct StatusArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Tables (`schema.table`) or mappings; all of them where none is named.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct TableArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// A table (`schema.table`), or a mapping, whose table is meant; all of them where none is named.
    #[arg(value_name = "TABLE")]
    table: Option<String>,
}

#[derive(Debug, clap::Args)]
struct RateArguments {
    #[command(flatten)]
    source: SourceArguments,
    /// Rows a second at the most, or `none`.
    #[arg(value_name = "ROWS", value_parser = rate)]
    rows_per_second: Rate,
    /// A table (`schema.table`), or a mapping, whose table is meant; all of them together where none is named.
    #[arg(value_name = "TABLE")]
    table: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Rate(Option<u32>);

fn rate(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(None));
    }
    let number = text.replace('_', "").parse::<u32>().ok();
    let number = number.filter(|rows| (1..=i32::MAX.cast_unsigned()).contains(rows));
    number.map(|rows| Rate(Some(rows))).ok_or_else(|| "a number of rows from 1, or `none`".to_owned())
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Request(arguments) => request(context, arguments),
        Command::Cancel(arguments) => cancel(context, arguments),
        Command::Status(arguments) => show::run(context, &arguments.source, &arguments.targets),
        Command::Wait(arguments) => wait::run(context, arguments),
        Command::Pause(arguments) => pause(context, arguments, true),
        Command::Resume(arguments) => pause(context, arguments, false),
        Command::Rate(arguments) => limit(context, arguments),
    }
}

/// The JSON shape of `backfill request`.
#[derive(Debug, Serialize)]
struct RequestedShape {
    requests: Vec<TargetShape>,
}

#[derive(Debug, Serialize)]
struct TargetShape {
    /// The table or the mapping.
    target: String,
    /// The requests' numbers.
    ids: Vec<i64>,
    /// Whether anything was asked for that was not asked for already.
    new: bool,
    /// The mappings that are known of it; none: it stays requested until there is one.
    mappings: Vec<String>,
}

fn request(context: &Context, arguments: &RequestArguments) -> anyhow::Result<Exit> {
    let rows = rows(arguments)?;
    let shape = with_control(context, &arguments.source, async |control| {
        let mut requests = Vec::new();
        for target in &arguments.targets {
            let Requested { target, asked, mappings } =
                control.request(target, &rows, arguments.purge).await?;
            requests.push(TargetShape {
                target: target.to_string(),
                new: asked.iter().any(|asked| asked.new),
                ids: asked.into_iter().map(|asked| asked.id).collect(),
                mappings,
            });
        }
        Ok(RequestedShape { requests })
    })?;
    context
        .output
        .result(&shape, |shape| shape.requests.iter().map(requested_line).collect::<Vec<_>>().join("\n"))?;
    Ok(Exit::Done)
}

fn requested_line(shape: &TargetShape) -> String {
    let what = if shape.new { "requested" } else { "was requested already" };
    let for_whom = match shape.mappings.as_slice() {
        [] => "no mapping of it is known so far, so it stays requested until there is one".to_owned(),
        mappings => format!("for {}", mappings.join(", ")),
    };
    format!("{} {what}: {for_whom}", shape.target)
}

fn rows(arguments: &RequestArguments) -> anyhow::Result<Rows> {
    if let Some(condition) = &arguments.condition {
        return Ok(Rows::Where(condition.clone()));
    }
    if arguments.keys.is_empty() && arguments.keys_from.is_none() {
        return Ok(Rows::All);
    }
    let mut keys = arguments.keys.clone();
    if let Some(file) = &arguments.keys_from {
        let text = read(file).with_context(|| format!("the keys cannot be read from {}", file.display()))?;
        let lines = text.lines().map(|line| line.strip_suffix('\r').unwrap_or(line));
        keys.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
    }
    if keys.is_empty() {
        return Err(UsageError("no key is given".to_owned()).into());
    }
    Ok(Rows::Keys(keys))
}

fn read(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// The JSON shape of `backfill cancel`.
#[derive(Debug, Serialize)]
struct CancelShape {
    targets: Vec<CancelledShape>,
}

#[derive(Debug, Serialize)]
struct CancelledShape {
    /// The table or the mapping.
    target: String,
    /// Whether anything was withdrawn.
    withdrawn: bool,
    /// Requests that were withdrawn.
    requests: u64,
    /// Runs of parts of the table that were withdrawn.
    parts: u64,
    /// Whether the whole table's run was withdrawn.
    run: bool,
    /// Whether the table is left alone until it is asked for again.
    marked: bool,
    /// The run that goes on; null where there is none.
    remains: Option<RemainsShape>,
    /// Requests that the leader was turning into runs, and that were not withdrawn.
    taken: u64,
}

#[derive(Debug, Serialize)]
struct RemainsShape {
    entity: String,
    status: String,
    mappings: Vec<String>,
}

fn cancel(context: &Context, arguments: &TargetsArguments) -> anyhow::Result<Exit> {
    let shape = with_control(context, &arguments.source, async |control| {
        let mut targets = Vec::new();
        for target in &arguments.targets {
            targets.push(cancelled(control.cancel(target).await?));
        }
        Ok(CancelShape { targets })
    })?;
    context
        .output
        .result(&shape, |shape| shape.targets.iter().map(cancelled_line).collect::<Vec<_>>().join("\n"))?;
    Ok(Exit::Done)
}

fn cancelled(cancelled: Cancelled) -> CancelledShape {
    let Cancelled { target, withdrawn } = cancelled;
    CancelledShape {
        target: target.to_string(),
        withdrawn: withdrawn.requests > 0 || withdrawn.scoped > 0 || withdrawn.run,
        requests: withdrawn.requests,
        parts: withdrawn.scoped,
        run: withdrawn.run,
        marked: withdrawn.marked,
        remains: withdrawn.remains.map(|run| RemainsShape {
            entity: run.entity,
            status: run.status,
            mappings: run.mappings,
        }),
        taken: withdrawn.taken,
    }
}

fn cancelled_line(shape: &CancelledShape) -> String {
    let mut withdrawn = Vec::new();
    if shape.requests > 0 {
        withdrawn.push(output::several(shape.requests, "request"));
    }
    if shape.run {
        withdrawn.push("the queued run".to_owned());
    }
    if shape.parts > 0 {
        withdrawn.push(output::several(shape.parts, "queued part"));
    }
    let mut line = match withdrawn.as_slice() {
        [] => format!("{}: there was nothing to withdraw", shape.target),
        withdrawn => format!("{}: withdrew {}", shape.target, withdrawn.join(" and ")),
    };
    if let Some(run) = &shape.remains {
        let whose = run.mappings.join(", ");
        line.push_str(&format!("; the run of {} for {whose} is {} and goes on", run.entity, run.status));
    }
    if shape.taken > 0 {
        line.push_str(&format!(
            "; {} being taken up by the leader, and not withdrawn: cancel again in a moment",
            output::several_are(shape.taken, "request")
        ));
    }
    if shape.marked {
        line.push_str("; it is not read until it is requested again");
    }
    line
}

/// The JSON shape of `backfill pause`, `resume` and `rate`.
#[derive(Debug, Serialize)]
struct SettingShape {
    /// Null where all tables are meant.
    entity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_per_second: Option<Option<u32>>,
}

impl SettingShape {
    fn whose(&self) -> String {
        self.entity.clone().unwrap_or_else(|| "all tables".to_owned())
    }
}

fn name(entity: Option<EntityName>) -> Option<String> {
    entity.map(|entity| entity.to_string())
}

fn pause(context: &Context, arguments: &TableArguments, paused: bool) -> anyhow::Result<Exit> {
    let table = arguments.table.as_deref();
    let entity = with_control(context, &arguments.source, async |control| {
        Ok(if paused { control.pause(table).await? } else { control.resume(table).await? })
    })?;
    let shape = SettingShape { entity: name(entity), paused: Some(paused), rows_per_second: None };
    context.output.result(&shape, |shape| {
        let what = if paused { "paused" } else { "resumed" };
        format!("backfills of {} are {what}", shape.whose())
    })?;
    Ok(Exit::Done)
}

fn limit(context: &Context, arguments: &RateArguments) -> anyhow::Result<Exit> {
    let (table, Rate(rate)) = (arguments.table.as_deref(), arguments.rows_per_second);
    let entity =
        with_control(context, &arguments.source, async |control| Ok(control.rate(table, rate).await?))?;
    let shape = SettingShape { entity: name(entity), paused: None, rows_per_second: Some(rate) };
    context.output.result(&shape, |shape| match rate {
        Some(rate) => {
            format!(
                "backfills of {} read {} rows a second at the most",
                shape.whose(),
                output::count(rate.into())
            )
        }
        None => format!("backfills of {} read as fast as they can", shape.whose()),
    })?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers_or_none() {
        assert_eq!(rate("none").unwrap().0, None);
        assert_eq!(rate("1_000").unwrap().0, Some(1000));
        for bad in ["0", "-1", "", "fast", "3000000000"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cancel_says_what_it_did() {
        let nothing = CancelledShape {
            target: "public.t".into(),
            withdrawn: false,
            requests: 0,
            parts: 0,
            run: false,
            marked: true,
            remains: None,
            taken: 0,
        };
        assert_eq!(
            cancelled_line(&nothing),
            "public.t: there was nothing to withdraw; it is not read until it is requested again"
        );
        let much = CancelledShape { requests: 2, run: true, parts: 1, taken: 1, ..nothing };
        assert!(cancelled_line(&much).starts_with(
            "public.t: withdrew 2 requests and the queued run and 1 queued part; 1 request is being taken up"
        ));
    }
}
