//! `status`: where an installation stands, read from its database alone.

use crate::{
    control::{MappingShape, SlotShape, StatusShape, SuspensionShape},
    model::Lsn,
    postgres::Purpose,
};

use super::{
    Context, Exit,
    backfill::{control_line, request_line, run_line},
    output,
    source::SourceArguments,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let (connect, slot) = arguments.source.resolve(context)?;
    let shape = context.block_on(async {
        let client = connect.connect(Purpose::State).await?;
        let shape = StatusShape::read(&client, slot).await?;
        client.close().await;
        Ok(shape)
    })?;
    let exit = if shape.checkpoint.is_some() { Exit::Done } else { Exit::Failed };
    context.output.result(&shape, text)?;
    Ok(exit)
}

fn text(shape: &StatusShape) -> String {
    let mut text = format!("installation {}\n", shape.installation);
    match &shape.checkpoint {
        Some(checkpoint) => text.push_str(&format!(
            "checkpoint   {} (timeline {}, term {}, publication {})\n",
            checkpoint.confirmed_lsn, checkpoint.timeline, checkpoint.term, checkpoint.publication
        )),
        None => text.push_str("never ran on this database; `anabranch run` sets it up\n"),
    }
    if let Some(SuspensionShape { since, reason, .. }) = &shape.suspended {
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        text.push_str(&format!("suspended    since {since}{reason}; `anabranch resume` lets it go on\n"));
    }
    if shape.checkpoint.is_some() || shape.slot.is_some() {
        text.push_str(&slot_text(shape.slot.as_ref()));
    }
    if !shape.mappings.is_empty() {
        let rows: Vec<_> = shape.mappings.iter().map(mapping_row).collect();
        let heading = [
            "mapping",
            "version",
            "since",
            "generation",
            "status",
            "accepted",
            "in quarantine",
            "last error",
        ];
        text.push('\n');
        text.push_str(&output::table(&heading, &rows));
    }
    let requests = shape.requests.iter().map(request_line);
    let runs = shape.backfills.iter().map(run_line);
    let controls = shape.controls.iter().map(control_line);
    let lines: Vec<String> = requests.chain(runs).chain(controls).collect();
    if !lines.is_empty() {
        text.push('\n');
        text.push_str(&lines.join("\n"));
        text.push('\n');
    }
    text
}

fn slot_text(slot: Option<&SlotShape>) -> String {
    let Some(slot) = slot else { return "slot         does not exist\n".to_owned() };
    let activity = if slot.active { "streaming" } else { "nobody streams" };
    let size = |bytes: Option<i64>| {
        bytes.map_or("unknown".to_owned(), |bytes| output::bytes(u64::try_from(bytes).unwrap_or(0)))
    };
    format!(
        "slot         {activity}, confirmed {}, lag {}, WAL kept {} ({})\n",
        slot.confirmed_lsn.as_deref().unwrap_or("nothing"),
        size(slot.lag_bytes),
        size(slot.retained_bytes),
        slot.wal_status.as_deref().unwrap_or("unknown"),
    )
}

fn mapping_row(mapping: &MappingShape) -> Vec<String> {
    let built = if mapping.built < mapping.generation { ", being built" } else { "" };
    let never = mapping.accepted_lsn == Lsn::ZERO.to_string();
    vec![
        mapping.name.clone(),
        mapping.version.clone().unwrap_or_else(|| "unknown".to_owned()),
        mapping.since_lsn.clone().unwrap_or_default(),
        format!("{}{built}", mapping.generation),
        mapping.status.to_owned(),
        if never { "nothing".to_owned() } else { mapping.accepted_lsn.clone() },
        output::count(i64::try_from(mapping.quarantined).unwrap_or(i64::MAX)),
        mapping.last_error.iter().chain(&mapping.held_revision).cloned().collect::<Vec<_>>().join("; "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_that_never_ran_says_so() {
        let shape = StatusShape {
            installation: "shop".into(),
            checkpoint: None,
            suspended: None,
            slot: None,
            mappings: Vec::new(),
            requests: Vec::new(),
            backfills: Vec::new(),
            controls: Vec::new(),
        };
        assert_eq!(
            text(&shape),
            "installation shop\nnever ran on this database; `anabranch run` sets it up\n"
        );
    }
}
