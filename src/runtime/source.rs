//! The source, brought to what the config means: state schema, publication, slot, and whether the stream has
//! a gap.

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::SourceSettings,
    model::{EntityName, Lsn},
    postgres::{
        Client, ColumnLists, ErrorKind, PublicationPlan, SlotState, SystemIdentity, create_slot, drop_slot,
        ensure_publication, find_publication, published_tables,
    },
    state::{Installation, MappingStatus, Store, Suspension},
};

use super::{
    error::TermError,
    held,
    history::{Found, gap, is_behind},
    lookout::Before,
    partitions, plan,
    term::Context,
};

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
    /// The server as it was then: every connection of the term must lead to it.
    pub(super) system: SystemIdentity,
    /// What such a rebuild does first: it empties the destinations, where their sinks can.
    pub(super) purge: bool,
    /// Publication and partitions, as they are from here on.
    pub(super) before: Before,
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
    let Some(slot) = held::free(context, control, shutdown).await? else { return Ok(None) };
    let stored = store.installation(state).await?;
    let (system, ends) = identify(context, stored.as_ref()).await?;
    let seen = context.memory.seen();
    if let Some(before) = is_behind(seen.as_ref(), &system) {
        return Err(TermError::FormerPrimary { now: system.timeline, before });
    }
    let publication = published_as(control, settings).await?;
    let named = settings.publication.as_str();
    let found = Found { slot: slot.as_ref(), system: &system, publication, named, ends: &ends };
    let gap = stored
        .as_ref()
        .and_then(|stored| gap(stored, seen.as_ref(), &found))
        .or_else(|| context.given_up.reason());
    let resumed = store.suspension(state).await?.filter(|suspension| !suspension.holds());
    match (&gap, &stored) {
        (Some(reason), Some(stored)) => {
            let lost = (stored.confirmed, system.flushed);
            tell_gap(reason, lost, resumed.as_ref().filter(|_| slot.is_none()));
        }
        (None, Some(stored)) if stored.timeline != system.timeline => info!(
            before = stored.timeline,
            now = system.timeline,
            "the server was promoted, and has the slot and all that was read: the stream goes on",
        ),
        _ => {}
    }
    // As before until the slot is read, the term too: or an attempt that ends in between would hide a gap, or make
    // one, for the next knows what was read in this term.
    let mut installation = stored.unwrap_or_else(|| Installation {
        name: settings.slot.clone(),
        publication: settings.publication.clone(),
        publication_oid: None,
        system_identifier: system.system_identifier.clone(),
        timeline: system.timeline,
        confirmed: Lsn::ZERO,
        term: 0,
        baseline: None,
    });
    let fresh = slot.is_none() || gap.is_some();
    let entities = plan::entities(wanted, tables);
    let leaves = partitions::Found::look(control, state, &store, tables).await?;
    let missing = if settings.manage_publication {
        unpublished(control, &settings.publication, &entities, tables).await?
    } else {
        Vec::new()
    };
    let joins = !settings.manage_publication && joins(&store, state, wanted, tables).await?;
    if !missing.is_empty() || !leaves.attached.is_empty() || joins {
        installation.baseline = Some(UNKNOWN_BASELINE);
        store.save_installation(state, &installation).await?;
    }
    if !fresh {
        warn_of_missed(&store.miss_changes(state, &missing, settings.purge_on_repair).await?);
        let missed = store.miss_changes(state, &leaves.attached, settings.purge_on_repair).await?;
        leaves.tell_missed(&missed, settings);
    }
    // By the session that is fenced: what a former leader begins late is never made.
    publish(state, settings, &entities, plan::column_lists(&context.config, wanted).as_ref()).await?;
    leaves.take_up(state, &store, settings).await?;
    let before = find_publication(control, &settings.publication).await?;
    let publication = before.as_ref().map(|found| found.oid);
    let published = wal_position(control).await?;
    if fresh && slot.is_some() {
        drop_slot(state, &settings.slot).await?;
    } else if let Some(slot) = &slot {
        keep_on_standbys(context, slot).await;
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
    installation.term += 1;
    // A slot may be long in the making.
    if published_as(control, settings).await? != publication {
        return Err(TermError::Unpublished { publication: settings.publication.clone() });
    }
    context.given_up.forget();
    installation.publication.clone_from(&settings.publication);
    installation.publication_oid = publication;
    installation.system_identifier.clone_from(&system.system_identifier);
    installation.timeline = system.timeline;
    let joined = confirmed.max(published);
    Ok(Some(Source {
        confirmed,
        joined,
        repaired: gap.is_some(),
        system,
        purge: settings.purge_on_repair || resumed.is_some_and(|resumed| resumed.purge),
        before: Before { publication: before, partitions: leaves.now },
        installation,
    }))
}

/// Who the server is; where it is on another timeline than before, also where its earlier ones ended.
async fn identify(
    context: &Context,
    stored: Option<&Installation>,
) -> Result<(SystemIdentity, Vec<(i32, Lsn)>), TermError> {
    let mut replication = context.settings.connect_replication().await?;
    let system = replication.identify_system().await?;
    let ends = if stored.is_some_and(|stored| stored.timeline != system.timeline) {
        replication.timeline_ends(system.timeline).await.unwrap_or_else(|error| {
            // The files may have been cleaned up: nobody knows then.
            warn!(%error, "the history of the server's timelines cannot be read");
            Vec::new()
        })
    } else {
        Vec::new()
    };
    replication.close().await;
    Ok((system, ends))
}

/// A slot that was made by an earlier release, or another config.
async fn keep_on_standbys(context: &Context, slot: &SlotState) {
    let settings = &context.config.source;
    if slot.lost.is_some() || slot.failover.is_none_or(|failover| failover == settings.failover_slot) {
        return;
    }
    let altered = async {
        let mut replication = context.settings.connect_replication().await?;
        replication.set_failover(&settings.slot, settings.failover_slot).await?;
        replication.close().await;
        Ok::<_, crate::postgres::Error>(())
    };
    match altered.await {
        Ok(()) => {
            info!(slot = settings.slot, failover = settings.failover_slot, "altered the replication slot")
        }
        Err(error) => warn!(%error, "whether standbys keep the slot (failover_slot) could not be changed"),
    }
}

/// The oid of the publication, where it is there.
async fn published_as(control: &Client, settings: &SourceSettings) -> Result<Option<u32>, TermError> {
    Ok(find_publication(control, &settings.publication).await?.map(|found| found.oid))
}

/// A gap that somebody made on purpose, by a suspension, is no cause for alarm. What is lost is known up to here; the
/// new slot may begin a little later, and everything before it is backfilled.
fn tell_gap(reason: &str, (from, to): (Lsn, Lsn), on_purpose: Option<&Suspension>) {
    match on_purpose {
        Some(Suspension { since, purge, .. }) => info!(
            lost_from = %from,
            lost_to = %to,
            since,
            purge,
            "resumed: a new slot is made and every mapped table is backfilled again",
        ),
        None => warn!(
            lost_from = %from,
            lost_to = %to,
            "THE STREAM HAS A GAP: {reason}; what was committed from {from} to {to} cannot be streamed; a new slot is \
             made and every mapped table is backfilled again",
        ),
    }
}

/// Whether a mapping begins whose table may have come into a publication that is not ours at any time. What transactions
/// that are open now have written to it before will never be streamed, either.
async fn joins(
    store: &Store,
    state: &Client,
    wanted: &[plan::WantedMapping],
    tables: &plan::Tables,
) -> Result<bool, TermError> {
    let stored = store.mappings(state).await?;
    let ran = |name: &str| {
        stored.iter().any(|of| of.name == name && of.generation > 0 && of.status != MappingStatus::Refused)
    };
    Ok(wanted.iter().any(|wanted| {
        let usable = tables.get(&wanted.mapping.entity).is_some_and(|table| table.problem.is_none());
        usable && wanted.stopped.is_none() && !ran(&wanted.mapping.name)
    }))
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

async fn make_slot(
    context: &Context,
    control: &Client,
    name: &str,
    shutdown: &CancellationToken,
) -> Result<Option<Lsn>, TermError> {
    let failover = context.config.source.failover_slot;
    match create_slot(&context.settings, control, name, failover, shutdown).await {
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
