//! What an operator does to an installation and its backfills, from any process that has a connection string:
//! no host, no config and no plugin is needed.
//!
//! Guarantees that what a method returned `Ok` for is stored, that it may be called from several places at
//! once and again, and that the leader is woken. It never touches a table of the application, never a slot or a
//! publication but to suspend or to widen, and never changes what a running backfill has done: the leader carries requests
//! out.

mod condition;
mod error;
mod keys;
mod picture;
mod progress;
mod publication;
mod quarantine;
mod shape;
mod status;
mod suspend;
mod wait;

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    model::{EntityName, Scope},
    postgres::{Client, ConnectSettings, Purpose},
    state::{Asked, Store, Target, Withdrawn},
};

pub use crate::state::KEYS_OF_A_REQUEST;
pub use error::ControlError;
pub use picture::Picture;
pub use progress::{Goal, Item, PluginGoal, Standing, Step, Verdict, describe, progress};
pub use publication::{Restored, Widened};
pub use quarantine::{DocumentShape, EntryDetails, EntryShape, ReplayStanding, Replayed};
pub use shape::{ControlShape, RequestShape, RunShape};
pub use status::{CheckpointShape, MappingShape, SlotShape, StatusShape, SuspensionShape};
pub use suspend::{Suspended, settle};
pub use wait::Waited;

/// How long a cancel waits for what the leader is turning into a run at that moment.
const TAKEN_LIMIT: Duration = Duration::from_secs(3);

/// An installation, through a connection of its own.
#[derive(Debug)]
pub struct Control {
    connect: ConnectSettings,
    installation: String,
    store: Store,
    client: Client,
}

/// Which rows are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// The whole table.
    #[default]
    All,
    /// Those for which an SQL condition over the table's columns holds.
    Where(String),
    /// Those of these keys, each written as a document id: the key's text; several columns are joined by `,`,
    /// with `,` and `\` inside a part escaped by `\`.
    Keys(Vec<String>),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// What was meant.
    pub target: Target,
    /// The requests, one for each thousand keys.
    pub asked: Vec<Asked>,
    /// The mappings that are known of the target; none: it stays requested until there is one.
    pub mappings: Vec<String>,
}

/// What became of a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// What was meant.
    pub target: Target,
    /// What was withdrawn, and what was not.
    pub withdrawn: Withdrawn,
}

impl Control {
    /// Connects to the database of an installation, which is named by its slot.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn connect(
        connect: &ConnectSettings,
        installation: impl Into<String>,
    ) -> Result<Self, ControlError> {
        let installation = installation.into();
        let client = connect.connect(Purpose::State).await?;
        let store = Store::new(installation.as_str());
        Ok(Self { connect: connect.clone(), installation, store, client })
    }

    /// The installation's name, which is its slot's.
    #[must_use]
    pub fn installation(&self) -> &str {
        &self.installation
    }

    /// Ends the session in good order.
    pub async fn close(self) {
        self.client.close().await;
    }

    /// What is stored, all of one moment; none where no host has run yet.
    ///
    /// # Errors
    /// The schema is of another release, or the server refuses.
    pub async fn status(&self) -> Result<Option<Picture>, ControlError> {
        Picture::read(&self.client, &self.store, &self.installation).await
    }

    /// Asks for a backfill of a mapping or a table. What is asked for already stays one request.
    ///
    /// # Errors
    /// The target, the condition or a key cannot be meant, or the server refuses.
    pub async fn request(&self, target: &str, rows: &Rows, purge: bool) -> Result<Requested, ControlError> {
        if purge && *rows != Rows::All {
            return Err(ControlError::Usage(
                "a purge empties the whole destination, so it cannot go with a part of the table: leave out \
                 the purge, or the condition or keys"
                    .to_owned(),
            ));
        }
        let picture = self.writable().await?;
        let target = picture.resolve(target)?;
        let entity = picture.entity_of(&target);
        let scopes = self.scopes(&target, entity.as_ref(), rows).await?;
        let asked = self.store.ask(&self.client, &target, &scopes, purge).await?;
        let mappings = picture.mappings_of(&target).map(|mapping| mapping.name.clone()).collect();
        Ok(Requested { target, asked, mappings })
    }

    async fn scopes(
        &self,
        target: &Target,
        entity: Option<&EntityName>,
        rows: &Rows,
    ) -> Result<Vec<Option<Scope>>, ControlError> {
        if *rows == Rows::All {
            return Ok(vec![None]);
        }
        let Some(entity) = entity else {
            return Err(ControlError::Usage(format!(
                "nothing is known of the mapping `{target}` yet, so that neither a condition nor keys can be \
                 checked: name its table"
            )));
        };
        match rows {
            Rows::Where(text) => {
                condition::check(&self.client, entity, text).await?;
                Ok(vec![Some(Scope::Where(text.trim().to_owned()))])
            }
            Rows::Keys(written) => {
                let keys = keys::check(&self.client, &self.installation, entity, written).await?;
                Ok(keys.chunks(KEYS_OF_A_REQUEST).map(|keys| Some(Scope::Keys(keys.to_vec()))).collect())
            }
            Rows::All => Ok(vec![None]),
        }
    }

    /// Withdraws what was asked of a target and has not begun. What the leader is turning into a run at this
    /// moment is waited for, shortly.
    ///
    /// # Errors
    /// The target cannot be meant, or the server refuses.
    pub async fn cancel(&self, target: &str) -> Result<Cancelled, ControlError> {
        let target = self.writable().await?.resolve(target)?;
        let limit = Instant::now() + TAKEN_LIMIT;
        let mut withdrawn = Withdrawn::default();
        loop {
            let more = self.store.withdraw(&self.client, &target).await?;
            withdrawn = Withdrawn {
                requests: withdrawn.requests + more.requests,
                scoped: withdrawn.scoped + more.scoped,
                run: withdrawn.run || more.run,
                ..more
            };
            if withdrawn.taken == 0 || Instant::now() >= limit {
                return Ok(Cancelled { target, withdrawn });
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops reading for backfills of a table, or of all of them, until [`Control::resume`]. Live changes go on.
    /// Gives the table.
    ///
    /// # Errors
    /// The target cannot be meant, or the server refuses.
    pub async fn pause(&self, target: Option<&str>) -> Result<Option<EntityName>, ControlError> {
        self.set_paused(target, true).await
    }

    /// Ends what [`Control::pause`] began. A table's own pause and that of all are two.
    ///
    /// # Errors
    /// The target cannot be meant, or the server refuses.
    pub async fn resume(&self, target: Option<&str>) -> Result<Option<EntityName>, ControlError> {
        self.set_paused(target, false).await
    }

    async fn set_paused(
        &self,
        target: Option<&str>,
        paused: bool,
    ) -> Result<Option<EntityName>, ControlError> {
        let entity = self.table(target).await?;
        self.store.save_paused(&self.client, entity.as_ref(), paused).await?;
        Ok(entity)
    }

    /// Limits how many rows a second are read for backfills of a table, or of all together; none: no limit.
    ///
    /// # Errors
    /// The target cannot be meant, or the server refuses.
    pub async fn rate(
        &self,
        target: Option<&str>,
        rows_per_second: Option<u32>,
    ) -> Result<Option<EntityName>, ControlError> {
        let entity = self.table(target).await?;
        self.store.save_rate(&self.client, entity.as_ref(), rows_per_second).await?;
        Ok(entity)
    }

    /// The table that a target is, or is of.
    async fn table(&self, target: Option<&str>) -> Result<Option<EntityName>, ControlError> {
        let picture = self.writable().await?;
        let Some(text) = target else { return Ok(None) };
        let target = picture.resolve(text)?;
        picture.entity_of(&target).map(Some).ok_or_else(|| {
            ControlError::Usage(format!("nothing is known of the mapping `{text}` yet: name its table"))
        })
    }

    /// What is stored, where the schema may be written; made where there is none.
    async fn writable(&self) -> Result<Picture, ControlError> {
        self.store.ensure(&self.client).await?;
        Ok(self.status().await?.unwrap_or_default())
    }
}
