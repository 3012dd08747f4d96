//! What is stored of an installation, all of one moment.

use std::collections::BTreeMap;

use crate::{
    model::EntityName,
    postgres::{self, Client},
    state::{
        PendingRequest, RunAge, StateError, Store, StoredControl, StoredMapping, StoredRun, Suspension,
        Target,
    },
};

use super::ControlError;

/// The backfills of an installation and what they are for.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// The mappings, by name.
    pub mappings: Vec<StoredMapping>,
    /// The runs, by table.
    pub runs: Vec<StoredRun>,
    /// When things happened to each run.
    pub ages: BTreeMap<String, RunAge>,
    /// What was asked for and has not become a run.
    pub requests: Vec<PendingRequest>,
    /// What holds for how backfills read.
    pub controls: Vec<StoredControl>,
    /// How many rows of each mapping are in quarantine; those that have none are left out.
    pub quarantined: BTreeMap<String, u64>,
    /// Whether a host streams.
    pub streaming: bool,
    /// That nobody is to stream, or was not until a moment ago.
    pub suspension: Option<Suspension>,
}

impl Picture {
    /// Reads it; none where no host has run yet.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn read(
        client: &Client,
        store: &Store,
        installation: &str,
    ) -> Result<Option<Self>, ControlError> {
        if !store.ready(client).await? {
            return Ok(None);
        }
        // A request becomes a run in one transaction: read one after another, both could be missed.
        let begin = "begin isolation level repeatable read read only";
        client.batch_execute(begin).await.map_err(postgres::Error::from)?;
        let read = Self::read_all(client, store, installation).await;
        let ended = client.batch_execute("rollback").await.map_err(postgres::Error::from);
        let picture = read?;
        ended?;
        Ok(Some(picture))
    }

    async fn read_all(client: &Client, store: &Store, installation: &str) -> Result<Self, ControlError> {
        let streaming = "select exists (select from pg_replication_slots where slot_name = $1 and active)";
        let ages = store.run_ages(client).await?;
        Ok(Self {
            mappings: store.mappings(client).await?,
            runs: store.runs(client).await?,
            ages: ages.into_iter().map(|age| (age.run.clone(), age)).collect(),
            requests: store.pending_requests(client).await?,
            controls: store.controls(client).await?,
            quarantined: store.quarantine_counts(client).await?.into_iter().collect(),
            streaming: client
                .query_one(streaming, &[&installation])
                .await
                .map_err(postgres::Error::from)?
                .get(0),
            suspension: store.suspension(client).await?,
        })
    }

    /// What a target is: the name of a mapping that is known, or that only a mapping can have; else a table.
    ///
    /// # Errors
    /// It is neither.
    pub fn resolve(&self, text: &str) -> Result<Target, ControlError> {
        let known = self.mappings.iter().any(|mapping| mapping.name == text);
        // A mapping without a name of its own is `table:transform:sink`.
        if known || (text.contains(':') && !text.contains('"')) {
            return Ok(Target::Mapping(text.to_owned()));
        }
        text.parse()
            .map(Target::Table)
            .map_err(|error| ControlError::Usage(format!("{error}; no mapping has this name, either")))
    }

    /// The mappings of a target.
    pub fn mappings_of<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a StoredMapping> {
        self.mappings.iter().filter(move |mapping| match target {
            Target::Mapping(name) => mapping.name == *name,
            Target::Table(entity) => mapping.entity == *entity,
        })
    }

    /// The table of a target, where it is known.
    #[must_use]
    pub fn entity_of(&self, target: &Target) -> Option<EntityName> {
        match target {
            Target::Table(entity) => Some(entity.clone()),
            Target::Mapping(_) => self.mappings_of(target).next().map(|mapping| mapping.entity.clone()),
        }
    }

    /// Whether backfills of a table are paused.
    #[must_use]
    pub fn is_paused(&self, entity: &EntityName) -> bool {
        self.controls_of(entity).any(|control| control.paused)
    }

    /// The smallest rate that holds for a table.
    #[must_use]
    pub fn rate(&self, entity: &EntityName) -> Option<u32> {
        self.controls_of(entity).filter_map(|control| control.rows_per_second).min()
    }

    fn controls_of(&self, entity: &EntityName) -> impl Iterator<Item = &StoredControl> {
        self.controls.iter().filter(move |control| control.entity.as_ref().is_none_or(|of| of == entity))
    }
}

/// Whether the schema is of a release before this one, whose hosts still run.
pub(super) fn is_older(error: &ControlError) -> bool {
    matches!(error, ControlError::State(StateError::Older { .. }))
}
