//! Watches the mapped tables for what the stream does not tell: a table that could not be used and now can, one
//! that was dropped and made again before any row of it was changed, and one that is published no more.
//!
//! It looks, on a connection of its own, and says what a new term should take up. For what was missed beyond doubt it
//! asks for a backfill first, as operators do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, warn};

use crate::{
    config::Config,
    model::EntityName,
    postgres::{
        Client, ConnectSettings, PublicationPlan, PublicationState, Purpose, find_publication,
        pending_change, published_tables,
    },
    state::{Store, Target},
};

use super::{
    answer::answered,
    error::TermError,
    partitions::Partitions,
    plan::{self, TableState, Tables, WantedMapping},
};

/// The first server that leaves out in silence what was written while there was no publication of the name.
const SILENT: u32 = 18;

/// How often the catalogue is looked at.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a look may take: the catalogue may be large.
const LIMIT: Duration = Duration::from_secs(60);

/// The pump's end.
#[derive(Debug)]
pub(super) struct Lookout {
    /// Sentences: why a new term is to begin. Or how this one failed.
    pub(super) news: mpsc::UnboundedReceiver<Result<String, TermError>>,
    // Aborts the task when the term ends.
    _task: JoinSet<()>,
}

impl Lookout {
    /// Watches from how the tables were when the term began.
    pub(super) fn start(
        settings: &ConnectSettings,
        config: Arc<Config>,
        wanted: Vec<WantedMapping>,
        tables: Tables,
        publication: Option<u32>,
    ) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        let watch = Watch {
            settings: settings.clone(),
            config,
            wanted,
            tables,
            publication,
            edition: None,
            partitions: Partitions::default(),
            told: BTreeMap::new(),
        };
        let mut task = JoinSet::new();
        task.spawn(watch.serve(tell));
        Self { news, _task: task }
    }
}

struct Watch {
    settings: ConnectSettings,
    config: Arc<Config>,
    wanted: Vec<WantedMapping>,
    tables: Tables,
    /// The publication with which the term began.
    publication: Option<u32>,
    /// Its edition, as it was first seen.
    edition: Option<String>,
    partitions: Partitions,
    /// Problems of tables that run, as they were last told.
    told: BTreeMap<EntityName, String>,
}

impl Watch {
    async fn serve(mut self, tell: mpsc::UnboundedSender<Result<String, TermError>>) {
        let mut client = None;
        loop {
            if self.edition.is_none()
                && let Err(error) = self.look_first(&mut client).await
            {
                debug!(%error, "publication and partitions could not be looked at");
                client = None;
            }
            tokio::time::sleep(INTERVAL).await;
            match answered("the catalogue", LIMIT, self.look(&mut client)).await {
                Ok(Some(news)) => {
                    // The term ends on the first.
                    let _ = tell.send(Ok(news));
                    return;
                }
                Ok(None) => {}
                Err(failure @ TermError::Altered { .. }) => {
                    let _ = tell.send(Err(failure));
                    return;
                }
                Err(error) => {
                    debug!(%error, "the tables could not be looked at");
                    client = None;
                }
            }
        }
    }

    async fn connected<'a>(&self, client: &'a mut Option<Client>) -> Result<&'a Client, TermError> {
        Ok(match client {
            Some(client) => client,
            None => client.insert(self.settings.connect(Purpose::Control).await?),
        })
    }

    /// What later looks are compared with.
    async fn look_first(&mut self, client: &mut Option<Client>) -> Result<(), TermError> {
        self.look_at_partitions(client).await?;
        let client = self.connected(client).await?;
        let found = find_publication(client, &self.config.source.publication).await?;
        self.edition = found.map(|found| found.edition);
        Ok(())
    }

    /// Which partitions came that this server's connection does not publish. Where changes may have been missed, the
    /// table is to be read again.
    async fn look_at_partitions(&mut self, client: &mut Option<Client>) -> Result<Option<String>, TermError> {
        let client = self.connected(client).await?;
        let arrived = self.partitions.look(client, &self.tables).await?;
        let store = Store::new(self.config.source.slot.as_str());
        for entity in &arrived.attached {
            warn!(
                %entity,
                "CHANGES MAY HAVE BEEN MISSED: a table was attached to it as a partition, and a connection of Postgres \
                 14 goes on without its changes; its documents are purged where the sink can, and it is backfilled again",
            );
            store.ask(client, &Target::Table(entity.clone()), &[None], true).await?;
        }
        let told = arrived.entities.first();
        Ok(told
            .map(|entity| format!("the table {entity} has got a partition, which needs another connection")))
    }

    async fn look(&mut self, client: &mut Option<Client>) -> Result<Option<String>, TermError> {
        if let Some(news) = self.look_at_partitions(client).await? {
            return Ok(Some(news));
        }
        let client = self.connected(client).await?;
        let (now, _) = plan::look(&self.config, client, &self.wanted).await?;
        if let Some(news) = self.publication_news(client, &now).await? {
            return Ok(Some(news));
        }
        for (entity, table) in &now {
            let Some(before) = self.tables.get(entity) else { continue };
            if let Some(news) = news(entity, before, table) {
                return Ok(Some(news));
            }
            if before.problem.is_none() {
                self.tell_problem(entity, table);
            }
        }
        Ok(None)
    }

    /// Whether the publication, or a table of it, was taken away: a new term brings it back, and repairs.
    async fn publication_news(&self, client: &Client, now: &Tables) -> Result<Option<String>, TermError> {
        let name = &self.config.source.publication;
        let found = find_publication(client, name).await?;
        if self.publication != found.as_ref().map(|found| found.oid) {
            return Ok(Some(format!("the publication {name} was dropped or made anew")));
        }
        let managed = self.config.source.manage_publication;
        if managed && found.as_ref().is_some_and(|found| !found.is_whole()) {
            return Ok(Some(format!("the publication {name} leaves operations out")));
        }
        let altered =
            |found: &PublicationState| self.edition.as_ref().is_some_and(|edition| *edition != found.edition);
        if client.server_version() >= SILENT && found.as_ref().is_some_and(altered) {
            return Err(TermError::Altered { publication: name.clone() });
        }
        let published = published_tables(client, name).await?;
        // Of those that run: the others are taken up when they become usable.
        let is_taken_out = |entity: &&EntityName| {
            let before = self.tables.get(*entity).filter(|table| table.problem.is_none());
            let is_there =
                before.is_some_and(|before| now.get(*entity).is_some_and(|now| now.oid == before.oid));
            is_there && !published.contains(entity)
        };
        if let Some(entity) = now.keys().find(is_taken_out) {
            return Ok(Some(format!("the table {entity} was taken out of the publication")));
        }
        self.list_news(client, now).await
    }

    /// Whether other columns are published than are to be: lists were restored, or a table's identity is another
    /// one, which a list must have.
    async fn list_news(&self, client: &Client, now: &Tables) -> Result<Option<String>, TermError> {
        let (name, managed) = (&self.config.source.publication, self.config.source.manage_publication);
        if !managed {
            return Ok(None);
        }
        let (tables, columns) =
            (plan::entities(&self.wanted, now), plan::column_lists(&self.config, &self.wanted));
        let wanted = PublicationPlan { name, managed, tables: &tables, columns: columns.as_ref() };
        let pending = pending_change(client, &wanted).await?;
        let other = pending.relisted.first();
        Ok(other.map(|entity| format!("the publication {name} is to have other columns of {entity}")))
    }

    /// A table that runs has got a problem: worth a line, once.
    fn tell_problem(&mut self, entity: &EntityName, table: &TableState) {
        match &table.problem {
            Some(problem) if self.told.get(entity) != Some(problem) => {
                warn!(%entity, "{problem}");
                self.told.insert(entity.clone(), problem.clone());
            }
            Some(_) => {}
            None => drop(self.told.remove(entity)),
        }
    }
}

/// Whether a table changed in a way that needs a new term.
fn news(entity: &EntityName, before: &TableState, now: &TableState) -> Option<String> {
    if before.problem.is_some() && now.problem.is_none() {
        return Some(format!("the table {entity} can be used now"));
    }
    let another = before.problem.is_none() && now.problem.is_none() && before.oid != now.oid;
    another
        .then(|| format!("the table {entity} was dropped and created again, or another one has its name now"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(oid: u32, problem: Option<&str>) -> TableState {
        TableState { oid, problem: problem.map(str::to_owned), ..TableState::default() }
    }

    #[test]
    fn only_what_can_be_taken_up_is_news() {
        let entity = EntityName::new("public", "t");
        let told = |before: TableState, now: TableState| news(&entity, &before, &now).is_some();
        assert!(told(table(1, Some("no key")), table(1, None)));
        assert!(told(table(1, None), table(2, None)));
        assert!(told(table(0, Some("not there")), table(7, None)));
        assert!(!told(table(1, None), table(1, None)));
        assert!(!told(table(1, None), table(0, Some("not there"))), "it may come back");
        assert!(!told(table(1, Some("no key")), table(1, Some("no key"))));
    }
}
