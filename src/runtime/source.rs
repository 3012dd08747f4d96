//! The source, brought to what the config means: state schema, publication, slot, and whether the stream has
//! a gap.

use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::SourceSettings,
    model::{EntityName, Lsn},
    postgres::{
        Client, ColumnLists, ErrorKind, PublicationPlan, SlotState, SystemIdentity, create_slot, drop_slot,
        ensure_publication, find_publication, find_slot, published_tables,
    },
    state::{Installation, Store, Suspension},
};

use super::{error::TermError, plan, term::Context};

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
    let publication = published_as(control, settings).await?;
    let found = Found { slot: slot.as_ref(), system: &system, publication, named: &settings.publication };
    let gap = stored.as_ref().and_then(|stored| gap(stored, &found)).or_else(|| undecodable(context));
    let resumed = store.suspension(state).await?.filter(|suspension| !suspension.holds());
    if let (Some(reason), Some(stored)) = (&gap, &stored) {
        tell_gap(reason, stored.confirmed, resumed.as_ref().filter(|_| slot.is_none()));
    }
    // As before until the slot is read: or a crash in between would hide the gap.
    let mut installation = match stored {
        Some(stored) => Installation { term: stored.term + 1, ..stored },
        None => Installation {
            name: settings.slot.clone(),
            publication: settings.publication.clone(),
            publication_oid: None,
            system_identifier: system.system_identifier.clone(),
            timeline: system.timeline,
            confirmed: Lsn::ZERO,
            term: 1,
            baseline: None,
        },
    };
    let fresh = slot.is_none() || gap.is_some();
    let entities = plan::entities(wanted, tables);
    if settings.manage_publication {
        let missing = unpublished(control, &settings.publication, &entities, tables).await?;
        if !missing.is_empty() {
            installation.baseline = Some(UNKNOWN_BASELINE);
            store.save_installation(state, &installation).await?;
        }
        if !fresh {
            warn_of_missed(&store.miss_changes(state, &missing, settings.purge_on_repair).await?);
        }
    }
    // By the session that is fenced: what a former leader begins late is never made.
    publish(state, settings, &entities, plan::column_lists(&context.config, wanted).as_ref()).await?;
    let publication = published_as(control, settings).await?;
    let published = wal_position(control).await?;
    if fresh && slot.is_some() {
        drop_slot(state, &settings.slot).await?;
    }
    let confirmed = match slot.filter(|_| !fresh) {
        Some(slot) => slot.confirmed.ok_or_else(|| TermError::HalfMade { slot: settings.slot.clone() })?,
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
    // A slot may be long in the making.
    if published_as(control, settings).await? != publication {
        return Err(TermError::Unpublished { publication: settings.publication.clone() });
    }
    context.undecodable.store(false, Ordering::Release);
    installation.publication.clone_from(&settings.publication);
    installation.publication_oid = publication;
    (installation.system_identifier, installation.timeline) = (system.system_identifier, system.timeline);
    let joined = confirmed.max(published);
    Ok(Some(Source {
        confirmed,
        joined,
        repaired: gap.is_some(),
        purge: settings.purge_on_repair || resumed.is_some_and(|resumed| resumed.purge),
        installation,
    }))
}

/// The oid of the publication, where it is there.
async fn published_as(control: &Client, settings: &SourceSettings) -> Result<Option<u32>, TermError> {
    Ok(find_publication(control, &settings.publication).await?.map(|found| found.oid))
}

fn undecodable(context: &Context) -> Option<String> {
    let name = &context.config.source.publication;
    context.undecodable.load(Ordering::Acquire).then(|| {
        format!(
            "the slot has changes from when the publication {name} did not exist, which nobody can decode"
        )
    })
}

/// A gap that somebody made on purpose, by a suspension, is no cause for alarm.
fn tell_gap(reason: &str, from: Lsn, on_purpose: Option<&Suspension>) {
    match on_purpose {
        Some(Suspension { since, purge, .. }) => info!(
            lost_from = %from,
            since,
            purge,
            "resumed: a new slot is made and every mapped table is backfilled again",
        ),
        None => warn!(
            lost_from = %from,
            "THE STREAM HAS A GAP: {reason}; a new slot is made and every mapped table is backfilled again",
        ),
    }
}

/// The tables that are to be published and are not, with their oids.
///
/// What transactions that are open now have already written to them will never be streamed: backfills must wait
/// for those, also after a crash in between. And what was changed of them since they were published last, if
/// they ever were, is not in the stream either.
async fn unpublished(
    control: &Client,
    publication: &str,
    entities: &[EntityName],
    tables: &plan::Tables,
) -> Result<Vec<(EntityName, u32)>, TermError> {
    let whole = find_publication(control, publication).await?.is_some_and(|found| found.is_whole());
    let published = if whole { published_tables(control, publication).await? } else { Vec::new() };
    let missing = entities.iter().filter(|entity| !published.contains(entity));
    let oid = |entity: &EntityName| tables.get(entity).map_or(0, |table| table.oid);
    Ok(missing.map(|entity| (entity.clone(), oid(entity))).collect())
}

fn warn_of_missed(mappings: &[String]) {
    if !mappings.is_empty() {
        warn!(
            mappings = mappings.join(", "),
            "CHANGES WERE MISSED: the tables of these mappings were not in the publication for a while; they are \
             backfilled again",
        );
    }
}

/// Publishes exactly the mapped tables, and of each the columns that are read.
async fn publish(
    control: &Client,
    settings: &SourceSettings,
    tables: &[EntityName],
    columns: Option<&ColumnLists>,
) -> Result<(), TermError> {
    let (name, managed) = (settings.publication.as_str(), settings.manage_publication);
    let change = ensure_publication(control, &PublicationPlan { name, managed, tables, columns }).await?;
    if !change.is_nothing() {
        let names =
            |tables: &[EntityName]| tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        info!(
            publication = settings.publication,
            created = change.created,
            added = names(&change.added),
            dropped = names(&change.dropped),
            relisted = names(&change.relisted),
            "published the mapped tables"
        );
    }
    Ok(())
}

/// What there is of an installation on the server.
struct Found<'a> {
    slot: Option<&'a SlotState>,
    system: &'a SystemIdentity,
    publication: Option<u32>,
    /// The publication's name, by the config.
    named: &'a str,
}

/// Why the stream cannot go on from where it was.
fn gap(stored: &Installation, found: &Found<'_>) -> Option<String> {
    if stored.system_identifier != found.system.system_identifier {
        let (from, to) = (&stored.system_identifier, &found.system.system_identifier);
        return Some(format!("this is another cluster (system identifier {from} before, {to} now)"));
    }
    // Nothing was ever confirmed: the first start was interrupted before there was a slot.
    if stored.confirmed == Lsn::ZERO {
        return None;
    }
    let Some(slot) = found.slot else { return Some(format!("the slot {} is gone", stored.name)) };
    // Whoever makes it, it is not the one that was read.
    let Some(confirmed) = slot.confirmed else {
        return Some(format!("the slot {} was made anew, and is not finished", stored.name));
    };
    if let Some(reason) = &slot.lost {
        return Some(format!("the server has given the slot {} up: {reason}", stored.name));
    }
    // A position is saved before it is confirmed, so ours is never behind.
    if confirmed > stored.confirmed {
        return Some(format!(
            "the slot {} stands at {confirmed}, ahead of the {} that was saved: somebody moved it or made it anew",
            stored.name, stored.confirmed
        ));
    }
    publication_gap(stored, found)
}

/// The stream is decoded with the publication as it was at each change (Postgres documentation, "Logical
/// Decoding Output Plugins": catalogues are seen as of then): what was written while there was none is refused
/// for ever, or left out in silence from Postgres 18 on.
fn publication_gap(stored: &Installation, found: &Found<'_>) -> Option<String> {
    let Found { publication, named, .. } = found;
    if stored.publication != *named {
        let before = &stored.publication;
        return Some(format!("the publication is {named} now, and was {before} when the slot was read last"));
    }
    match (stored.publication_oid, publication) {
        (_, None) => Some(format!("the publication {named} is gone")),
        (Some(before), Some(now)) if before != *now => {
            Some(format!("the publication {named} was dropped and made anew"))
        }
        _ => None,
    }
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
