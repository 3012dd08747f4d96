//! `quarantine replay`: rows are read again.

use std::time::Duration;

use serde::Serialize;

use crate::control::{Control, EntryShape, Replayed};

use super::{
    super::{Context, Exit, limit, output, source::SourceArguments},
    ChosenArguments, missing, table,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
    #[command(flatten)]
    chosen: ChosenArguments,
    /// Wait until the rows were read, and tell what became of them.
    #[arg(long)]
    wait: bool,
    /// Give up waiting after so long, with exit code 3.
    #[arg(long, value_name = "DURATION", value_parser = limit, requires = "wait")]
    timeout: Option<Duration>,
}

/// The JSON shape of `quarantine replay`.
#[derive(Debug, Serialize)]
struct Shape {
    #[serde(flatten)]
    replayed: Replayed,
    /// Entries that were named and are not there.
    missing: Vec<i64>,
    /// Null where nobody waited.
    waited: Option<WaitedShape>,
}

#[derive(Debug, Serialize)]
struct WaitedShape {
    /// Rows that were accepted.
    accepted: usize,
    /// Rows that are still to be read.
    pending: usize,
    /// Those that are still in quarantine.
    failed: Vec<EntryShape>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let filter = arguments.chosen.filter()?;
    let (connect, installation) = arguments.source.resolve(context)?;
    let shape = context.block_on(async {
        let mut control = Control::connect(&connect, installation).await?;
        let asked = ask(&mut control, &filter, arguments).await;
        control.close().await;
        asked
    })?;
    let exit = match &shape.waited {
        Some(waited) if waited.pending > 0 => Exit::NotReady,
        Some(waited) if !waited.failed.is_empty() => Exit::Failed,
        _ if !shape.missing.is_empty() || !shape.replayed.without_key.is_empty() => Exit::Failed,
        _ => Exit::Done,
    };
    context.output.result(&shape, text)?;
    Ok(exit)
}

async fn ask(
    control: &mut Control,
    filter: &crate::state::QuarantineFilter,
    arguments: &Arguments,
) -> anyhow::Result<Shape> {
    let replayed = control.replay(filter).await?;
    let found: Vec<i64> = replayed.asked.iter().chain(&replayed.without_key).copied().collect();
    let missing = missing(&arguments.chosen.entries, &found);
    let mut shape = Shape { replayed, missing, waited: None };
    if arguments.wait {
        let standing = control.replay_wait(&shape.replayed.asked, arguments.timeout).await?;
        let (accepted, pending, failed) = (standing.gone, standing.pending, standing.failed);
        shape.waited = Some(WaitedShape { accepted, pending, failed });
    }
    Ok(shape)
}

fn text(shape: &Shape) -> String {
    let rows = |count: usize| output::several(count as u64, "row");
    let mut lines = Vec::new();
    match &shape.waited {
        None if shape.replayed.asked.is_empty() => lines.push("nothing is read again".to_owned()),
        None => lines.push(format!("asked to read {} again", rows(shape.replayed.asked.len()))),
        Some(waited) => {
            lines.push(format!("accepted {}", rows(waited.accepted)));
            if waited.pending > 0 {
                lines.push(format!("not read in time: {}; it goes on", rows(waited.pending)));
            }
            if !waited.failed.is_empty() {
                lines.push(format!("still in quarantine: {}", rows(waited.failed.len())));
                lines.push(table(&waited.failed));
            }
        }
    }
    let without_key = shape.replayed.without_key.iter();
    lines.extend(without_key.map(|id| {
        format!(
            "entry {id} came without its whole key and cannot be read again: request a backfill of its table"
        )
    }));
    lines.extend(shape.missing.iter().map(|id| format!("there is no entry {id}")));
    lines.join("\n")
}
