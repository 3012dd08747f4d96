//! The source, brought to what the config means: state schema, publication, slot, and whether the stream has
//! a gap.

use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    model::{EntityName, Lsn},
    postgres::{
        Client, ErrorKind, PublicationPlan, SlotState, SystemIdentity, create_slot, drop_slot,
        ensure_publication, find_slot, published_tables,
    },
    state::{Installation, Store},
};

use super::{error::TermError, plan, term::Context, term::warn_of_gap};

/// A baseline that is not known yet: the process ended between publishing a table and noting after which
/// transaction that was.
const UNKNOWN_BASELINE: u64 = i64::MAX.cast_unsigned();

/// What a term starts from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The slot's confirmed position.
    pub(super) confirmed: Lsn,
    /// Where mappings begin that were not there before: every mapped table is published from here on. What the
    /// slot may still show of a table before is only part of its history.
    pub(super) joined: Lsn,
    /// The stream does not go on from where it was: everything is rebuilt.
    pub(super) repaired: bool,
    /// What such a rebuild does first: it empties the destinations, where their sinks can.
    pub(super) purge: bool,
    /// The checkpoint to save, once what a repair means for the mappings is saved.
    pub(super) installation: Installation,
}

/// Makes what is missing. None when it was told to stop.
///
/// # Errors
/// What the server refuses.
pub(super) async fn prepare(
    context: &Context,
    control: &Client,
    state: &Client,
    wanted: &[plan::WantedMapping],
    tables: &plan::Tables,
    shutdown: &CancellationToken,
) -> Result<Option<Source>, TermError> {
    let settings = &context.config.source;
    let store = Store::new(settings.slot.as_str());
    store.upgrade(state).await?;
    let mut replication = context.settings.connect_replication().await?;
    let system = replication.identify_system().await?;
    replication.close().await;
    let stored = store.installation(state).await?;
    let slot = find_slot(control, &settings.slot).await?;
    let gap = stored.as_ref().and_then(|stored| gap(stored, slot.as_ref(), &system));
    if let (Some(reason), Some(stored)) = (&gap, &stored) {
        warn_of_gap(reason, stored.confirmed);
    }
    let mut installation = Installation {
        name: settings.slot.clone(),
        publication: settings.publication.clone(),
        system_identifier: system.system_identifier,
        timeline: system.timeline,
        confirmed: stored.as_ref().map_or(Lsn::ZERO, |stored| stored.confirmed),
        term: stored.as_ref().map_or(0, |stored| stored.term) + 1,
        baseline: stored.as_ref().and_then(|stored| stored.baseline),
    };
    publish(control, state, &store, settings, &mut installation, &plan::entities(wanted, tables)).await?;
    let published = wal_position(control).await?;
    let fresh = slot.is_none() || gap.is_some();
    if fresh && slot.is_some() {
        drop_slot(control, &settings.slot).await?;
    }
    let confirmed = match slot.filter(|_| !fresh) {
        Some(slot) => slot.confirmed,
        None => match make_slot(context, control, &settings.slot, shutdown).await? {
            Some(position) => {
                installation.baseline = Some(assigned_xid(control).await?);
                position
            }
            None => return Ok(None),
        },
    };
    if installation.baseline == Some(UNKNOWN_BASELINE) {
        installation.baseline = Some(assigned_xid(control).await?);
    }
    installation.confirmed = confirmed;
    let joined = confirmed.max(published);
    Ok(Some(Source {
        confirmed,
        joined,
        repaired: gap.is_some(),
        purge: settings.purge_on_repair,
        installation,
    }))
}

/// Publishes exactly the mapped tables. What transactions that are open now have already written to a table
/// that is added will never be streamed: backfills must wait for them, also after a crash in between.
async fn publish(
    control: &Client,
    state: &Client,
    store: &Store,
    settings: &crate::config::SourceSettings,
    installation: &mut Installation,
    tables: &[EntityName],
) -> Result<(), TermError> {
    if settings.manage_publication {
        let published = published_tables(control, &settings.publication).await?;
        if tables.iter().any(|table| !published.contains(table)) {
            installation.baseline = Some(UNKNOWN_BASELINE);
            store.save_installation(state, installation).await?;
        }
    }
    let plan = PublicationPlan { name: &settings.publication, managed: settings.manage_publication, tables };
    let change = ensure_publication(control, &plan).await?;
    if change.created || !change.added.is_empty() || !change.dropped.is_empty() {
        let names =
            |tables: &[EntityName]| tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        info!(
            publication = settings.publication,
            created = change.created,
            added = names(&change.added),
            dropped = names(&change.dropped),
            "published the mapped tables"
        );
    }
    Ok(())
}

/// Why the stream cannot go on from where it was.
fn gap(stored: &Installation, slot: Option<&SlotState>, system: &SystemIdentity) -> Option<String> {
    if stored.system_identifier != system.system_identifier {
        let (from, to) = (&stored.system_identifier, &system.system_identifier);
        return Some(format!("this is another cluster (system identifier {from} before, {to} now)"));
    }
    // Nothing was ever confirmed: the first start was interrupted before there was a slot.
    if stored.confirmed == Lsn::ZERO {
        return None;
    }
    let Some(slot) = slot else { return Some(format!("the slot {} is gone", stored.name)) };
    if let Some(reason) = &slot.lost {
        return Some(format!("the server has given the slot {} up: {reason}", stored.name));
    }
    // A position is saved before it is confirmed, so ours is never behind.
    (slot.confirmed > stored.confirmed).then(|| {
        format!(
            "the slot {} stands at {}, ahead of the {} that was saved: somebody moved it or made it anew",
            stored.name, slot.confirmed, stored.confirmed
        )
    })
}

async fn make_slot(
    context: &Context,
    control: &Client,
    name: &str,
    shutdown: &CancellationToken,
) -> Result<Option<Lsn>, TermError> {
    match create_slot(&context.settings, control, name, false, shutdown).await {
        Ok(slot) => {
            info!(slot = name, at = %slot.consistent_point, "made the replication slot");
            Ok(Some(slot.consistent_point))
        }
        Err(error) if error.kind() == ErrorKind::Cancelled && shutdown.is_cancelled() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An id that was assigned now: every transaction that may have begun to write before has a lower one.
async fn assigned_xid(control: &Client) -> Result<u64, TermError> {
    let row = control
        .query_one("select pg_current_xact_id()::text", &[])
        .await
        .map_err(crate::postgres::Error::from)?;
    let text: &str = row.get(0);
    text.parse().map_err(|_| TermError::Stored {
        what: "pg_current_xact_id()".to_owned(),
        problem: format!("`{text}` is not a number"),
    })
}

/// Where the next WAL record will be.
async fn wal_position(control: &Client) -> Result<Lsn, TermError> {
    let row = control
        .query_one("select pg_current_wal_insert_lsn()::text", &[])
        .await
        .map_err(crate::postgres::Error::from)?;
    let text: &str = row.get(0);
    text.parse().map_err(|error: crate::model::ParseLsnError| TermError::Stored {
        what: "pg_current_wal_insert_lsn()".to_owned(),
        problem: error.to_string(),
    })
}
