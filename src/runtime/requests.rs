//! Hears what operators ask for: backfill requests, pauses, rates and suspensions, written into the state schema
//! by any process.
//!
//! A notification says that something was written; polling finds it where the notification was lost. A request
//! is taken here (marked, so that it cannot be withdrawn any more) and deleted only in the transaction that
//! saves the run it becomes: a host that dies in between loses nothing, the next one takes it again. Requests
//! that no mapping of this term is meant by are left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

use crate::{
    model::EntityName,
    postgres::{self, Client, ConnectSettings, Purpose},
    state::{CHANNEL, RunStatus, Store, StoredControl, StoredRequest, Target},
};

use super::{
    answer::{ANSWER_LIMIT, answered},
    error::TermError,
};

/// How often the schema is read without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How soon the connection is made anew.
const RECONNECT: Duration = Duration::from_secs(1);

/// What was asked.
#[derive(Debug)]
pub(super) enum Asked {
    /// Backfills; these requests are taken.
    Backfills(Vec<StoredRequest>),
    /// All controls that there are now.
    Controls(Vec<StoredControl>),
    /// The backfills of these tables are cancelled; what has begun goes on.
    Cancelled(Vec<EntityName>),
    /// How many rows of each mapping are in quarantine; those that have none are left out.
    Quarantined(Vec<(String, u64)>),
    /// The installation is suspended: this term is to end.
    Suspended,
}

/// The pump's end.
#[derive(Debug)]
pub(super) struct Requests {
    pub(super) asked: mpsc::UnboundedReceiver<Asked>,
    // Aborts the task when the term ends.
    _task: JoinSet<()>,
}

impl Requests {
    /// Starts to listen, for the mappings of a term and their tables.
    pub(super) fn start(
        settings: ConnectSettings,
        installation: String,
        mappings: BTreeMap<String, EntityName>,
    ) -> Self {
        let (tell, asked) = mpsc::unbounded_channel();
        let entities = mappings.values().cloned().collect();
        let desk = Desk {
            store: Store::new(installation.as_str()),
            settings,
            installation,
            mappings,
            entities,
            tell,
            warned: BTreeSet::new(),
            told: BTreeSet::new(),
            controls: Vec::new(),
            cancelled: Vec::new(),
            quarantined: Vec::new(),
        };
        let mut task = JoinSet::new();
        task.spawn(desk.serve());
        Self { asked, _task: task }
    }
}

struct Desk {
    store: Store,
    settings: ConnectSettings,
    installation: String,
    mappings: BTreeMap<String, EntityName>,
    entities: BTreeSet<EntityName>,
    tell: mpsc::UnboundedSender<Asked>,
    /// Requests that nobody is meant by, of which was told.
    warned: BTreeSet<i64>,
    /// Requests that were taken and told.
    told: BTreeSet<i64>,
    /// As they were last told.
    controls: Vec<StoredControl>,
    cancelled: Vec<EntityName>,
    quarantined: Vec<(String, u64)>,
}

impl Desk {
    /// Listens, for as long as somebody wants to hear; a broken connection is made anew.
    async fn serve(mut self) {
        while !self.tell.is_closed() {
            if let Err(error) = self.listen().await {
                debug!(%error, "cannot hear what operators ask for; connecting again");
            }
            tokio::time::sleep(RECONNECT).await;
        }
    }

    async fn listen(&mut self) -> Result<(), TermError> {
        let mut client = self.settings.connect(Purpose::Requests).await?;
        client.batch_execute(&format!("listen {CHANNEL}")).await.map_err(postgres::Error::from)?;
        // What was taken and never told: by a host that is no more, or as the connection broke.
        self.store.release_requests(&client).await?;
        loop {
            answered("what operators ask for", ANSWER_LIMIT, self.look(&client)).await?;
            if !self.wait(&mut client).await {
                return Ok(());
            }
        }
    }

    /// Until something may have been written; false when the session is over.
    async fn wait(&self, client: &mut Client) -> bool {
        let poll = Instant::now() + POLL_INTERVAL;
        loop {
            tokio::select! {
                notification = client.notification() => match notification {
                    None => return false,
                    Some(notification) if notification.payload() == self.installation => return true,
                    Some(_) => {}
                },
                () = sleep_until(poll) => return true,
            }
        }
    }

    async fn look(&mut self, client: &Client) -> Result<(), TermError> {
        let suspension = self.store.suspension(client).await?;
        if suspension.is_some_and(|suspension| suspension.holds()) {
            // Told again at every look; the first ends the term.
            let _ = self.tell.send(Asked::Suspended);
            return Ok(());
        }
        let controls = self.store.controls(client).await?;
        if controls != self.controls {
            self.controls.clone_from(&controls);
            let _ = self.tell.send(Asked::Controls(controls));
        }
        let quarantined = self.store.quarantine_counts(client).await?;
        if quarantined != self.quarantined {
            self.quarantined.clone_from(&quarantined);
            let _ = self.tell.send(Asked::Quarantined(quarantined));
        }
        // Before what is requested: that ends the mark.
        let runs = self.store.runs(client).await?.into_iter();
        let cancelled: Vec<EntityName> =
            runs.filter(|run| run.status == RunStatus::Cancelled).map(|run| run.entity).collect();
        if cancelled != self.cancelled {
            self.cancelled.clone_from(&cancelled);
            let _ = self.tell.send(Asked::Cancelled(cancelled));
        }
        let (mut meant, others): (Vec<_>, Vec<_>) =
            self.store.requests(client).await?.into_iter().partition(|request| self.is_meant(request));
        for request in others {
            if self.warned.insert(request.id) {
                warn!(
                    request = request.id,
                    target = %request.target,
                    "a backfill is requested of what is not mapped here; the request waits until it is",
                );
            }
        }
        if meant.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = meant.iter().map(|request| request.id).collect();
        let taken = self.store.take_requests(client, &ids).await?;
        // What was told is on its way, though a broken connection made this take it again.
        meant.retain(|request| taken.contains(&request.id) && self.told.insert(request.id));
        for request in &meant {
            info!(request = request.id, target = %request.target, purge = request.purge, "a backfill is requested");
        }
        // The pump is gone while a term ends: what was taken is released by the next one.
        let _ = self.tell.send(Asked::Backfills(meant));
        Ok(())
    }

    fn is_meant(&self, request: &StoredRequest) -> bool {
        match &request.target {
            Target::Mapping(name) => self.mappings.contains_key(name),
            Target::Table(entity) => self.entities.contains(entity),
        }
    }
}
