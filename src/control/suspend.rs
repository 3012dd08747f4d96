//! Suspending an installation and letting it go on: nobody streams in between, whoever starts a host.
//!
//! Guarantees that a suspension that is *settled* left nothing behind that it does not keep: the slot and our
//! publication were looked for and are not there. Whoever has the lead drops them (the host that streamed, or
//! this process where no host runs), so that nothing is dropped under a host that still streams.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    postgres::{
        Client, ConnectSettings, Holder, Leadership, Purpose, drop_publication, drop_slot, fence,
        find_publication, find_slot, holder,
    },
    state::{Store, Suspension},
};

use super::{Control, ControlError};

/// How long the host that leads may take before this process asks for the lead itself.
const LEADER_FIRST: Duration = Duration::from_secs(2);
/// How often is looked whether it is settled.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long the server may take to notice that nobody streams from the slot any more.
const RELEASED_WITHIN: Duration = Duration::from_secs(15);

/// What became of a suspension that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspended {
    /// Whether it was not suspended before.
    pub new: bool,
    /// Whether a host has run before.
    pub known: bool,
    /// Where it stands; not settled where the time was too short.
    pub suspension: Suspension,
    /// Who leads still, where it is not settled.
    pub leader: Option<Holder>,
}

impl Control {
    /// Suspends: the leader drains and ends its term, the slot and our publication are dropped (unless they are
    /// kept), and no host streams, through restarts, until [`Control::end_suspension`]. May be repeated.
    ///
    /// # Errors
    /// Somebody else streams from the slot, or the server refuses.
    pub async fn suspend(
        &self,
        keep_slot: bool,
        reason: Option<&str>,
        limit: Duration,
    ) -> Result<Suspended, ControlError> {
        self.writable().await?;
        let known = self.store.installation(&self.client).await?.is_some();
        self.refuse_slot_of_others(known).await?;
        let new = self.store.suspend(&self.client, keep_slot, reason).await?;
        let until = Instant::now() + limit;
        let settled = timeout_at(until, async {
            tokio::select! {
                settled = self.settled() => settled,
                settled = self.settle_instead() => settled,
            }
        });
        let leader = match settled.await {
            Ok(settled) => settled.map(|()| None)?,
            Err(_) => holder(&self.client, &self.installation).await?,
        };
        Ok(Suspended { new, known, suspension: self.suspension().await?, leader })
    }

    /// A slot of the installation's name may be anybody's in the cluster.
    async fn refuse_slot_of_others(&self, known: bool) -> Result<(), ControlError> {
        let name = &self.installation;
        let Some(slot) = find_slot(&self.client, name).await? else { return Ok(()) };
        let database: String = self
            .client
            .query_one("select current_database()::text", &[])
            .await
            .and_then(|row| row.try_get(0))
            .map_err(crate::postgres::Error::from)?;
        let whose = match &slot.database {
            None => "is a physical slot".to_owned(),
            Some(other) if *other != database => {
                format!("is a slot of database {other}, and this is {database}")
            }
            Some(_) if slot.plugin.as_deref() != Some("pgoutput") => "is not for pgoutput".to_owned(),
            Some(_) if !known => {
                "is there, and no host of this installation has run in this database".to_owned()
            }
            Some(_) => return Ok(()),
        };
        Err(ControlError::Usage(format!(
            "slot {name} {whose}: it is somebody else's, and is left alone; check --url and --slot"
        )))
    }

    /// Lets an installation go on; says whether it was suspended. Where its slot was dropped, every mapped table
    /// is built again, with `purge` from emptied destinations.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn end_suspension(&self, purge: bool) -> Result<bool, ControlError> {
        self.writable().await?;
        Ok(self.store.resume(&self.client, purge).await?)
    }

    async fn suspension(&self) -> Result<Suspension, ControlError> {
        let found = self.store.suspension(&self.client).await?;
        found.filter(Suspension::holds).ok_or_else(ended_meanwhile)
    }

    /// Until somebody has settled it.
    async fn settled(&self) -> Result<(), ControlError> {
        while !self.suspension().await?.settled {
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Settles it here, where no host does.
    async fn settle_instead(&self) -> Result<(), ControlError> {
        sleep(LEADER_FIRST).await;
        settle(&self.connect, &self.installation, &CancellationToken::new()).await
    }
}

/// Settles a suspension, once the lead can be had: unless somebody else does first, it is resumed, or `cancel`
/// ends it. On sessions of its own, so that whoever looks sees only what is committed.
///
/// # Errors
/// [`ControlError::SlotHeld`] where another client streams from the slot; what the server refuses.
pub async fn settle(
    connect: &ConnectSettings,
    installation: &str,
    cancel: &CancellationToken,
) -> Result<(), ControlError> {
    let client = connect.connect(Purpose::State).await?;
    let store = Store::new(installation);
    let leadership = tokio::select! {
        taken = Leadership::acquire(connect, installation, cancel) => match taken {
            Err(_) if cancel.is_cancelled() => return Ok(()),
            taken => taken?,
        },
        over = no_more_to_settle(&store, &client) => return over,
    };
    let settled = tokio::select! {
        settled = settle_as_leader(&store, &client, &leadership, installation) => settled,
        lost = leadership.lost() => Err(lost.into()),
        () = cancel.cancelled() => Ok(()),
    };
    leadership.release().await;
    client.close().await;
    settled
}

async fn no_more_to_settle(store: &Store, client: &Client) -> Result<(), ControlError> {
    while to_settle(store, client).await?.is_some() {
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn to_settle(store: &Store, client: &Client) -> Result<Option<Suspension>, ControlError> {
    let found = store.suspension(client).await?;
    Ok(found.filter(|suspension| suspension.holds() && !suspension.settled))
}

async fn settle_as_leader(
    store: &Store,
    client: &Client,
    leadership: &Leadership,
    installation: &str,
) -> Result<(), ControlError> {
    fence(client, leadership).await?;
    let Some(suspension) = to_settle(store, client).await? else { return Ok(()) };
    released(client, installation).await?;
    if !suspension.keep_slot {
        drop_slot(client, installation).await?;
        if find_slot(client, installation).await?.is_some() {
            return Err(ControlError::Left { what: format!("the slot {installation}") });
        }
        if let Some(stored) = store.installation(client).await?
            && drop_publication(client, &stored.publication).await?
            && find_publication(client, &stored.publication).await?.is_some()
        {
            return Err(ControlError::Left { what: format!("the publication {}", stored.publication) });
        }
    }
    Ok(store.settle_suspension(client, suspension.keep_slot).await?)
}

/// Until nobody streams from the slot.
async fn released(client: &Client, installation: &str) -> Result<(), ControlError> {
    let until = Instant::now() + RELEASED_WITHIN;
    loop {
        let slot = find_slot(client, installation).await?;
        let Some(pid) = slot.and_then(|slot| slot.active_pid) else { return Ok(()) };
        if Instant::now() >= until {
            return Err(ControlError::SlotHeld { slot: installation.to_owned(), pid });
        }
        sleep(LOOK_EVERY).await;
    }
}

fn ended_meanwhile() -> ControlError {
    ControlError::Usage("the installation was resumed by somebody else meanwhile".to_owned())
}
