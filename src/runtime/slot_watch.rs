//! What the server keeps for the slot: sampled as long as the process lives, told to the health, and to the log when
//! it gets much.
//!
//! Guarantees that it is looked at whatever the leader is at: streaming, backfilling, waiting for the slot, between two
//! terms, or suspended with the slot kept. A standby leaves it to the leader. It only looks.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::postgres::{self, Client, ConnectSettings, Purpose, SlotWal, slot_wal};

use super::{
    answer::answered,
    error::TermError,
    health::{Health, Role},
};

/// How often the slot is looked at.
const INTERVAL: Duration = Duration::from_secs(10);
/// How soon it is looked at again while nobody has the lead yet.
const SOON: Duration = Duration::from_secs(1);
/// How long a look may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Looks until told to stop.
pub(super) async fn keep(
    settings: ConnectSettings,
    name: String,
    health: Arc<Health>,
    shutdown: CancellationToken,
) {
    let mut watch = SlotWatch { name, health, warned: false, told_lost: false };
    let mut client = None;
    loop {
        let role = watch.health.look().0.role;
        let looks = matches!(role, Role::Leading | Role::Suspended | Role::BetweenTerms | Role::Stuck);
        if looks {
            let looked = answered(
                "what the server keeps for the slot",
                LIMIT,
                look(&settings, &mut client, &watch.name),
            );
            match looked.await {
                Ok(wal) => watch.note(wal),
                Err(error) => {
                    debug!(%error, "the slot could not be looked at");
                    client = None;
                }
            }
        } else {
            client = None;
        }
        let pause = tokio::time::sleep(if looks { INTERVAL } else { SOON });
        if shutdown.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}

async fn look(
    settings: &ConnectSettings,
    client: &mut Option<Client>,
    name: &str,
) -> Result<Option<SlotWal>, TermError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(settings.connect(Purpose::Control).await?),
    };
    Ok(slot_wal(client, name).await.map_err(|error: postgres::Error| error)?)
}

/// What was told of the slot.
#[derive(Debug)]
struct SlotWatch {
    name: String,
    health: Arc<Health>,
    warned: bool,
    told_lost: bool,
}

impl SlotWatch {
    fn note(&mut self, wal: Option<SlotWal>) {
        let is_lost = wal.as_ref().is_some_and(SlotWal::is_lost);
        if is_lost && !self.told_lost {
            error!(
                slot = self.name,
                "THE SLOT IS LOST: the server has given it up (max_slot_wal_keep_size, idle_replication_slot_timeout); \
                 whoever streams next makes a new one, and every mapped table is backfilled again",
            );
        }
        self.told_lost = is_lost;
        if let Some(wal) = wal.as_ref().filter(|wal| self.is_news(wal)) {
            let (retained, remaining) = (wal.retained, wal.remaining);
            warn!(
                slot = self.name,
                retained,
                remaining,
                limit = wal.limit,
                wal_status = wal.status_word(),
                "the slot keeps half of the WAL that the server allows, or more (max_slot_wal_keep_size): beyond the \
                 limit it is lost, and everything is backfilled again; `anabranch status` shows which mapping has \
                 accepted least",
            );
        }
        self.health.note(|state, now| state.slot = wal.map(|wal| (wal, now)));
    }

    /// Whether more than half is kept now; told again only after it was much less.
    fn is_news(&mut self, wal: &SlotWal) -> bool {
        if wal.is_lost() {
            return false;
        }
        let news = wal.past_half() && !self.warned;
        if wal.past_half() {
            self.warned = true;
        } else if wal.limit.is_none_or(|limit| wal.retained < limit / 4) {
            self.warned = false;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c100_half_of_the_limit_is_told_once() {
        let health = Arc::new(Health::new());
        let mut watch = SlotWatch { name: "s".to_owned(), health, warned: false, told_lost: false };
        let told = [10, 50, 60, 40, 55, 20, 70, 90].map(|retained| {
            watch.is_news(&SlotWal {
                retained,
                limit: Some(100),
                status: Some("reserved".to_owned()),
                ..SlotWal::default()
            })
        });
        assert_eq!(told, [false, true, false, false, false, false, true, false]);
    }
}
