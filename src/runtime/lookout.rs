//! Watches the mapped tables for what the stream does not tell: a table that could not be used and now can, one
//! that was dropped and made again, or got another key, before any row of it was changed, one that is published no
//! more, and one that must not be any more.
//!
//! It looks, on a connection of its own, and says what a new term should take up. What it cannot do itself it tells as a
//! warning, and goes on looking. Must never: write anything but that a table is not published whose application could
//! not update it, and that the publication is what it is, for a server that does not learn of partitions otherwise.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, warn};

use crate::{
    config::Config,
    model::EntityName,
    postgres::{
        Client, ConnectSettings, Error, PublicationPlan, PublicationState, Purpose, find_publication,
        pending_change, published_tables, touch_publication, withdraw_unusable,
    },
};

use super::{
    answer::answered,
    error::TermError,
    partitions::{self, Partitions},
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

/// What looks are compared with: how the term has left it, before the stream began.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    pub(super) publication: Option<PublicationState>,
    pub(super) partitions: Partitions,
}

impl Lookout {
    /// Watches from how the tables were when the term began.
    pub(super) fn start(
        settings: &ConnectSettings,
        config: Arc<Config>,
        wanted: Vec<WantedMapping>,
        tables: Tables,
        before: Before,
    ) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        let watch = Watch {
            settings: settings.clone(),
            config,
            wanted,
            tables,
            before,
            told: BTreeMap::new(),
            told_of_publication: None,
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
    before: Before,
    /// Problems of tables that run, as they were last told.
    told: BTreeMap<EntityName, String>,
    /// Why the publication cannot be what it is to be, as it was last told.
    told_of_publication: Option<String>,
}

impl Watch {
    async fn serve(mut self, tell: mpsc::UnboundedSender<Result<String, TermError>>) {
        let mut client = None;
        loop {
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

    async fn look(&mut self, client: &mut Option<Client>) -> Result<Option<String>, TermError> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.settings.connect(Purpose::Control).await?),
        };
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
        // Last, for these need a publication that is ours to alter, and the others do not.
        let mut news = self.identity_news(client, &now).await;
        if matches!(news, Ok(None)) {
            news = self.partition_news(client).await;
        }
        if matches!(news, Ok(None)) {
            news = self.list_news(client, &now).await;
        }
        self.heard_of_publication(news)
    }

    /// Whether a table that runs has lost its identity. It is taken out of the publication here and now: a term that could
    /// not do so would stop the other tables, too. The next one builds it again once it can be used.
    async fn identity_news(&self, client: &Client, now: &Tables) -> Result<Option<String>, Error> {
        let (name, managed) = (&self.config.source.publication, self.config.source.manage_publication);
        let ran = |entity: &EntityName| self.tables.get(entity).is_some_and(|table| table.problem.is_none());
        let broken = now.iter().filter(|(entity, table)| table.problem.is_some() && ran(entity));
        let broken: Vec<EntityName> = broken.map(|(entity, _)| entity.clone()).collect();
        if !managed || broken.is_empty() {
            return Ok(None);
        }
        let withdrawn = withdraw_unusable(client, name, &broken).await?;
        Ok(withdrawn.first().map(|table| {
            format!(
                "the table {} was taken out of the publication {name}, so that its application can update and delete again \
                 ({}: {})",
                table.entity, table.relation, table.why
            )
        }))
    }

    /// Whether a table was attached to a mapped one where that needs more than a word to the server.
    async fn partition_news(&mut self, client: &Client) -> Result<Option<String>, Error> {
        let now = Partitions::look(client, &self.tables).await?;
        let difference = now.since(&self.before.partitions);
        if let Some((entity, _)) = partitions::named(&difference.attached, &self.tables).first() {
            return Ok(Some(format!("a table was attached to {entity} as a partition")));
        }
        if difference.any && self.config.source.manage_publication {
            touch_publication(client, &self.config.source.publication).await?;
        }
        self.before.partitions = now;
        Ok(None)
    }

    /// What stands in the way of altering the publication is told once, and again when it is something else.
    fn heard_of_publication(
        &mut self,
        news: Result<Option<String>, Error>,
    ) -> Result<Option<String>, TermError> {
        match news {
            Err(error) if !error.is_retryable() => {
                let problem = error.to_string();
                if self.told_of_publication.as_ref() != Some(&problem) {
                    warn!(
                        publication = self.config.source.publication,
                        "cannot be brought up to date: {problem}"
                    );
                    self.told_of_publication = Some(problem);
                }
                Ok(None)
            }
            Err(error) => Err(error.into()),
            Ok(news) => {
                self.told_of_publication = None;
                Ok(news)
            }
        }
    }

    /// Whether the publication, or a table of it, was taken away: a new term brings it back, and repairs.
    async fn publication_news(&mut self, client: &Client, now: &Tables) -> Result<Option<String>, TermError> {
        let name = self.config.source.publication.clone();
        let found = find_publication(client, &name).await?;
        let before = self.before.publication.as_ref();
        let Some((found, before)) = found.zip(before).filter(|(found, before)| found.oid == before.oid)
        else {
            return Ok(Some(format!("the publication {name} was dropped or made anew")));
        };
        if self.config.source.manage_publication && !found.is_whole() {
            return Ok(Some(format!("the publication {name} leaves operations out")));
        }
        if client.server_version() >= SILENT && found.is_another_edition(before) {
            return Err(TermError::Altered { publication: name });
        }
        self.before.publication = Some(found);
        let published = published_tables(client, &name).await?;
        // Of those that run: the others are taken up when they become usable.
        let is_taken_out = |entity: &&EntityName| {
            let before = self.tables.get(*entity).filter(|table| table.problem.is_none());
            let is_there =
                before.is_some_and(|before| now.get(*entity).is_some_and(|now| now.oid == before.oid));
            is_there && !published.contains(entity)
        };
        let taken_out = now.keys().find(is_taken_out);
        Ok(taken_out.map(|entity| format!("the table {entity} was taken out of the publication")))
    }

    /// Whether other columns are published than are to be: lists were restored, or a table's identity is another
    /// one, which a list must have.
    async fn list_news(&self, client: &Client, now: &Tables) -> Result<Option<String>, Error> {
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
    if before.problem.is_some() || now.problem.is_some() {
        return None;
    }
    if before.oid != now.oid {
        return Some(format!(
            "the table {entity} was dropped and created again, or another one has its name now"
        ));
    }
    // Where a row follows, its description tells as well.
    (before.key != now.key).then(|| format!("the key of the table {entity} is another one"))
}

#[cfg(test)]
mod tests {
    use crate::backfill::KeyColumn;

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
        let keyed = |name: &str, attribute| {
            let key = KeyColumn { name: name.to_owned(), attribute, type_oid: 23, collation: 0 };
            TableState { key: vec![key], ..table(1, None) }
        };
        assert!(told(keyed("id", 1), keyed("id", 2)));
        assert!(!told(keyed("id", 1), keyed("renamed", 1)));
    }
}
