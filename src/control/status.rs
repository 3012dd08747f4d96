//! Where an installation stands, read from its database alone: one shape for the command line and for HTTP.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    model::Lsn,
    pipeline::Identity,
    postgres::{Client, SlotWal, slot_wal},
    state::{Installation, Store, StoredMapping, Suspension},
};

use super::{ControlError, ControlShape, Picture, RequestShape, RunShape};

/// The JSON shape of `status`.
#[derive(Debug, Serialize)]
pub struct StatusShape {
    /// The installation's name, which is its slot's.
    pub installation: String,
    /// What was last saved; null where nothing ever was.
    pub checkpoint: Option<CheckpointShape>,
    /// That nobody is to stream; null where somebody may.
    pub suspended: Option<SuspensionShape>,
    /// The slot as the server shows it; null where there is none.
    pub slot: Option<SlotShape>,
    /// The mappings, by name.
    pub mappings: Vec<MappingShape>,
    /// What was asked for and has not become a run.
    pub requests: Vec<RequestShape>,
    /// The runs, by table.
    pub backfills: Vec<RunShape>,
    /// Pauses and rates of backfills.
    pub controls: Vec<ControlShape>,
}

/// What the leader last saved.
#[derive(Debug, Serialize)]
pub struct CheckpointShape {
    /// The publication that is streamed.
    pub publication: String,
    /// Which cluster it was.
    pub system_identifier: String,
    /// Which of its timelines.
    pub timeline: i32,
    /// What the slot may forget.
    pub confirmed_lsn: String,
    /// How many leaderships there have been.
    pub term: i64,
}

/// A suspension.
#[derive(Debug, Serialize)]
pub struct SuspensionShape {
    /// Since when.
    pub since: String,
    /// Why, in somebody's words.
    pub reason: Option<String>,
    /// Whether the slot stays.
    pub keep_slot: bool,
    /// Whether nobody streams any more, and what is not kept is gone.
    pub settled: bool,
}

/// The replication slot.
#[derive(Debug, Serialize)]
pub struct SlotShape {
    /// Whether somebody streams from it now.
    pub active: bool,
    /// What we have confirmed.
    pub confirmed_lsn: Option<String>,
    /// From where on the server keeps WAL.
    pub restart_lsn: Option<String>,
    /// `reserved`, `extended`, `unreserved` or `lost` (Postgres documentation, `pg_replication_slots`).
    pub wal_status: Option<String>,
    /// WAL that is written and not confirmed.
    pub lag_bytes: Option<i64>,
    /// WAL that the server keeps for the slot.
    pub retained_bytes: Option<i64>,
}

/// A mapping.
#[derive(Debug, Serialize)]
pub struct MappingShape {
    /// Its name.
    pub name: String,
    /// Its table.
    pub entity: String,
    /// The transform's name; null where the stored identity cannot be read.
    pub transform: Option<String>,
    /// Its version, with the manual part.
    pub version: Option<String>,
    /// The sink's name.
    pub sink: Option<String>,
    /// Where its documents land in the sink.
    pub destination: Option<String>,
    /// Counts its rebuilds.
    pub generation: i64,
    /// The last generation whose backfill completed; 0 before the first.
    pub built: i64,
    /// `running`, `failing` or `refused`.
    pub status: &'static str,
    /// What was committed after this is transformed by its present version; null where nobody noted it.
    pub since_lsn: Option<String>,
    /// What its sink has durably accepted.
    pub accepted_lsn: String,
    /// Failures in a row.
    pub attempts: i32,
    /// The last of them.
    pub last_error: Option<String>,
    /// Whether the destination is emptied before the generation is built.
    pub purge: bool,
    /// The place in the sink where a generation is built that readers do not see yet; null where there is none.
    pub building: Option<String>,
    /// A newer revision of the transform that is not taken up, and why; null where there is none.
    pub held_revision: Option<String>,
    /// Rows in quarantine.
    pub quarantined: u64,
}

impl StatusShape {
    /// Reads it.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn read(client: &Client, installation: String) -> Result<Self, ControlError> {
        let store = Store::new(installation.as_str());
        let slot = slot_wal(client, &installation).await;
        let slot = slot.map_err(|error| error.context("the slot could not be looked up"))?;
        let picture = Picture::read(client, &store, &installation).await?;
        let checkpoint = match picture {
            Some(_) => store.installation(client).await?.map(checkpoint),
            None => None,
        };
        let picture = picture.unwrap_or_default();
        Ok(Self {
            installation,
            checkpoint,
            suspended: picture.suspension.as_ref().filter(|suspension| suspension.holds()).map(suspension),
            slot: slot.map(slot_shape),
            requests: picture.requests.iter().map(|pending| RequestShape::new(&picture, pending)).collect(),
            backfills: picture.runs.iter().map(|run| RunShape::new(&picture, run)).collect(),
            controls: picture.controls.iter().map(ControlShape::new).collect(),
            mappings: picture
                .mappings
                .into_iter()
                .map(|stored| mapping(stored, &picture.quarantined))
                .collect(),
        })
    }
}

fn slot_shape(wal: SlotWal) -> SlotShape {
    let behind = |from: Lsn| i64::try_from(i128::from(wal.end.0) - i128::from(from.0)).ok();
    SlotShape {
        active: wal.active,
        confirmed_lsn: wal.confirmed.map(|lsn| lsn.to_string()),
        restart_lsn: wal.restart.map(|lsn| lsn.to_string()),
        lag_bytes: wal.confirmed.and_then(behind),
        retained_bytes: wal.restart.and_then(behind),
        wal_status: wal.status,
    }
}

fn suspension(suspension: &Suspension) -> SuspensionShape {
    let Suspension { since, reason, keep_slot, settled, .. } = suspension.clone();
    SuspensionShape { since, reason, keep_slot, settled }
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

fn mapping(stored: StoredMapping, quarantined: &BTreeMap<String, u64>) -> MappingShape {
    // Another release may have written it; what the columns say is still worth showing.
    let identity = serde_json::from_str::<Identity>(&stored.identity).ok();
    let of = |part: fn(&Identity) -> String| identity.as_ref().map(part);
    MappingShape {
        quarantined: quarantined.get(&stored.name).copied().unwrap_or(0),
        transform: of(|identity| identity.transform.name.clone()),
        version: of(Identity::version_text),
        sink: of(|identity| identity.route.sink.clone()),
        destination: of(|identity| identity.route.destination.clone()),
        name: stored.name,
        entity: stored.entity.to_string(),
        generation: stored.generation,
        built: stored.built,
        status: stored.status.as_str(),
        since_lsn: stored.since.map(|since| since.to_string()),
        accepted_lsn: stored.accepted.to_string(),
        attempts: stored.attempts,
        last_error: stored.last_error,
        purge: stored.purge,
        building: stored.building.map(|place| place.to_string()),
        held_revision: stored.held,
    }
}
