//! `status`: where an installation stands, read from its database alone.

use anyhow::Context as _;
use serde::Serialize;

use crate::{
    control::Picture,
    model::Lsn,
    pipeline::Identity,
    postgres::{Client, ConnectSettings, Purpose},
    state::{Installation, Store, StoredMapping},
};

use super::{
    Context, Exit,
    backfill::{ControlShape, RequestShape, RunShape, control_line, request_line, run_line},
    output,
    source::SourceArguments,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    source: SourceArguments,
}

/// The JSON shape of `status`.
#[derive(Debug, Serialize)]
struct Shape {
    /// The installation's name, which is its slot's.
    installation: String,
    /// What was last saved; null where nothing ever was.
    checkpoint: Option<CheckpointShape>,
    /// The slot as the server shows it; null where there is none.
    slot: Option<SlotShape>,
    mappings: Vec<MappingShape>,
    /// What was asked for and has not become a run.
    requests: Vec<RequestShape>,
    backfills: Vec<RunShape>,
    /// Pauses and rates of backfills.
    controls: Vec<ControlShape>,
}

#[derive(Debug, Serialize)]
struct CheckpointShape {
    publication: String,
    system_identifier: String,
    timeline: i32,
    confirmed_lsn: String,
    /// How many leaderships there have been.
    term: i64,
}

#[derive(Debug, Serialize)]
struct SlotShape {
    /// Whether somebody streams from it now.
    active: bool,
    confirmed_lsn: Option<String>,
    restart_lsn: Option<String>,
    /// `reserved`, `extended`, `unreserved` or `lost` (Postgres documentation, `pg_replication_slots`).
    wal_status: Option<String>,
    /// WAL that is written and not confirmed.
    lag_bytes: Option<i64>,
    /// WAL that the server keeps for the slot.
    retained_bytes: Option<i64>,
}

#[derive(Debug, Serialize)]
struct MappingShape {
    name: String,
    entity: String,
    /// The transform's name; null where the stored identity cannot be read.
    transform: Option<String>,
    version: Option<String>,
    sink: Option<String>,
    destination: Option<String>,
    generation: i64,
    /// The last generation whose backfill completed; 0 before the first.
    built: i64,
    /// `running`, `failing` or `refused`.
    status: &'static str,
    accepted_lsn: String,
    /// Failures in a row.
    attempts: i32,
    last_error: Option<String>,
    /// Whether the destination is emptied before the generation is built.
    purge: bool,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<Exit> {
    let (connect, slot) = arguments.source.resolve(context)?;
    let shape = context.block_on(read(&connect, slot))?;
    let exit = if shape.checkpoint.is_some() { Exit::Done } else { Exit::Failed };
    context.output.result(&shape, text)?;
    Ok(exit)
}

async fn read(connect: &ConnectSettings, installation: String) -> anyhow::Result<Shape> {
    let client = connect.connect(Purpose::State).await?;
    let store = Store::new(installation.as_str());
    let slot = slot(&client, &installation).await?;
    let picture = Picture::read(&client, &store, &installation).await?;
    let checkpoint = match picture {
        Some(_) => store.installation(&client).await?.map(checkpoint),
        None => None,
    };
    let picture = picture.unwrap_or_default();
    let shape = Shape {
        installation,
        checkpoint,
        slot,
        requests: picture.requests.iter().map(|pending| RequestShape::new(&picture, pending)).collect(),
        backfills: picture.runs.iter().map(|run| RunShape::new(&picture, run)).collect(),
        controls: picture.controls.iter().map(ControlShape::new).collect(),
        mappings: picture.mappings.into_iter().map(mapping).collect(),
    };
    client.close().await;
    Ok(shape)
}

async fn slot(client: &Client, name: &str) -> anyhow::Result<Option<SlotShape>> {
    let query = "select s.active, s.confirmed_flush_lsn::text, s.restart_lsn::text, s.wal_status, \
                 (w.lsn - s.confirmed_flush_lsn)::bigint, (w.lsn - s.restart_lsn)::bigint \
                 from pg_replication_slots as s, \
                 lateral (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() \
                 else pg_current_wal_lsn() end as lsn) as w where s.slot_name = $1";
    let row = client.query_opt(query, &[&name]).await.context("the slot could not be looked up")?;
    Ok(row.map(|row| SlotShape {
        active: row.get(0),
        confirmed_lsn: row.get(1),
        restart_lsn: row.get(2),
        wal_status: row.get(3),
        lag_bytes: row.get(4),
        retained_bytes: row.get(5),
    }))
}

fn checkpoint(stored: Installation) -> CheckpointShape {
    CheckpointShape {
        publication: stored.publication,
        system_identifier: stored.system_identifier,
        timeline: stored.timeline,
        confirmed_lsn: stored.confirmed.to_string(),
        term: stored.term,
    }
}

fn mapping(stored: StoredMapping) -> MappingShape {
    // Another release may have written it; what the columns say is still worth showing.
    let identity = serde_json::from_str::<Identity>(&stored.identity).ok();
    let of = |part: fn(&Identity) -> String| identity.as_ref().map(part);
    MappingShape {
        transform: of(|identity| identity.transform.name.clone()),
        version: of(Identity::version_text),
        sink: of(|identity| identity.route.sink.clone()),
        destination: of(|identity| identity.route.destination.clone()),
        name: stored.name,
        entity: stored.entity.to_string(),
        generation: stored.generation,
        built: stored.built,
        status: stored.status.as_str(),
        accepted_lsn: stored.accepted.to_string(),
        attempts: stored.attempts,
        last_error: stored.last_error,
        purge: stored.purge,
    }
}

fn text(shape: &Shape) -> String {
    let mut text = format!("installation {}\n", shape.installation);
    match &shape.checkpoint {
        Some(checkpoint) => text.push_str(&format!(
            "checkpoint   {} (timeline {}, term {}, publication {})\n",
            checkpoint.confirmed_lsn, checkpoint.timeline, checkpoint.term, checkpoint.publication
        )),
        None => text.push_str("never ran on this database; `anabranch run` sets it up\n"),
    }
    if shape.checkpoint.is_some() || shape.slot.is_some() {
        text.push_str(&slot_text(shape.slot.as_ref()));
    }
    if !shape.mappings.is_empty() {
        let rows: Vec<_> = shape.mappings.iter().map(mapping_row).collect();
        let heading = ["mapping", "version", "generation", "status", "accepted", "last error"];
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
        format!("{}{built}", mapping.generation),
        mapping.status.to_owned(),
        if never { "nothing".to_owned() } else { mapping.accepted_lsn.clone() },
        mapping.last_error.clone().unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_that_never_ran_says_so() {
        let shape = Shape {
            installation: "shop".into(),
            checkpoint: None,
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
