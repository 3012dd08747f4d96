//! The replication slot: looked at, made, dropped.
//!
//! Guarantees that a slot is named exactly, never by a pattern, and that a creation that was given up leaves
//! none behind.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{
    connect::Client,
    error::{Error, ErrorKind},
    leader::Holder,
    settings::ConnectSettings,
    stream::CreatedSlot,
};
use crate::model::Lsn;

/// A slot as `pg_replication_slots` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Its name.
    pub name: String,
    /// `pgoutput`; None for a physical slot.
    pub plugin: Option<String>,
    /// The database that it streams.
    pub database: Option<String>,
    /// The server process that streams it now.
    pub active_pid: Option<i32>,
    /// What has been confirmed: streaming resumes here. None while the slot is still being made.
    pub confirmed: Option<Lsn>,
    /// Why it cannot be streamed from any more.
    pub lost: Option<String>,
    /// Whether standbys keep a copy of it; None before Postgres 17.
    pub failover: Option<bool>,
}

/// A slot and the WAL that the server keeps for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotWal {
    /// Whether somebody streams from it now.
    pub active: bool,
    /// What has been confirmed.
    pub confirmed: Option<Lsn>,
    /// From where on WAL is kept.
    pub restart: Option<Lsn>,
    /// Where the server's WAL ends.
    pub end: Lsn,
    /// Bytes that are kept for the slot.
    pub retained: u64,
    /// Bytes that may still be written before the slot is in danger (`safe_wal_size`); none without a limit.
    pub remaining: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost` (Postgres documentation, `pg_replication_slots`).
    pub status: Option<String>,
    /// `max_slot_wal_keep_size` in bytes; none without a limit.
    pub limit: Option<u64>,
}

impl SlotWal {
    /// Its status, or `unknown`.
    #[must_use]
    pub fn status_word(&self) -> &str {
        self.status.as_deref().unwrap_or("unknown")
    }

    /// Whether the server has given it up, for whatever reason.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.status.as_deref() == Some("lost")
    }

    /// Whether half of what the server may keep is used, or the slot is in danger already.
    #[must_use]
    pub fn past_half(&self) -> bool {
        let danger = matches!(self.status.as_deref(), Some("unreserved" | "lost"));
        danger || self.limit.is_some_and(|limit| self.retained >= limit / 2)
    }
}

/// The WAL that is kept for the slot of exactly this name; none where there is no such slot.
///
/// # Errors
/// What the server reports.
pub async fn slot_wal(client: &Client, name: &str) -> Result<Option<SlotWal>, Error> {
    // `max_slot_wal_keep_size` is shown in MB there, and -1 means no limit.
    let sql = "select w.lsn::text, coalesce(w.lsn - s.restart_lsn, 0)::bigint, s.safe_wal_size, s.wal_status, \
               (select setting::bigint * 1024 * 1024 from pg_settings where name = 'max_slot_wal_keep_size'), \
               s.active, s.confirmed_flush_lsn::text, s.restart_lsn::text \
               from pg_replication_slots as s, \
               lateral (select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() \
               else pg_current_wal_lsn() end as lsn) as w where s.slot_name = $1";
    let Some(row) = client.query_opt(sql, &[&name]).await? else { return Ok(None) };
    let size = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let position = |index: usize| {
        let text: Option<String> = row.try_get(index)?;
        Ok::<_, Error>(text.and_then(|text| text.parse().ok()))
    };
    Ok(Some(SlotWal {
        active: row.try_get(5)?,
        confirmed: position(6)?,
        restart: position(7)?,
        end: position(0)?.unwrap_or_default(),
        retained: size(row.try_get(1)?).unwrap_or(0),
        // Negative once the limit is passed.
        remaining: row.try_get::<_, Option<i64>>(2)?.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        status: row.try_get(3)?,
        limit: size(row.try_get(4)?),
    }))
}

/// Slot names, by the server's rule (Postgres documentation, "Querying And Manipulating Replication Slots").
///
/// # Errors
/// What is wrong with the name.
pub fn check_slot_name(name: &str) -> Result<(), Error> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if (1..=63).contains(&name.len()) && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::settings(format!(
        "`{name}` cannot name a replication slot: use 1 to 63 lower-case letters, digits and underscores"
    )))
}

/// The slot of exactly this name.
///
/// # Errors
/// What the server reports.
pub async fn find_slot(client: &Client, name: &str) -> Result<Option<SlotState>, Error> {
    // As JSON, since columns differ between versions.
    let sql = "select to_jsonb(s)::text from pg_replication_slots s where s.slot_name = $1";
    let Some(row) = client.query_opt(sql, &[&name]).await? else { return Ok(None) };
    let slot: serde_json::Value = serde_json::from_str(row.try_get(0)?)
        .map_err(|error| Error::protocol(format!("pg_replication_slots cannot be read: {error}")))?;
    let text = |key: &str| slot.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
    let reason = text("invalidation_reason");
    let lost = reason.or_else(|| match text("wal_status").as_deref() {
        Some("lost") => Some("the server has removed WAL that it needs".to_owned()),
        _ => None,
    });
    Ok(Some(SlotState {
        name: name.to_owned(),
        plugin: text("plugin"),
        database: text("database"),
        active_pid: slot
            .get("active_pid")
            .and_then(serde_json::Value::as_i64)
            .and_then(|pid| pid.try_into().ok()),
        confirmed: text("confirmed_flush_lsn").and_then(|text| text.parse().ok()),
        lost,
        failover: slot.get("failover").and_then(serde_json::Value::as_bool),
    }))
}

/// Drops the slot of exactly this name, if there is one for pgoutput in this database: slots are the whole cluster's,
/// and others of the name are somebody else's. Says whether there was.
///
/// # Errors
/// [`ErrorKind::SlotInUse`] while it is streamed.
pub async fn drop_slot(client: &Client, name: &str) -> Result<bool, Error> {
    let sql = "select pg_drop_replication_slot(slot_name) from pg_replication_slots \
               where slot_name = $1 and plugin = 'pgoutput' and database = current_database()";
    Ok(client.execute(sql, &[&name]).await? > 0)
}

/// Who streams from the slot now, whoever it is.
///
/// # Errors
/// What the server reports.
pub async fn slot_user(client: &Client, name: &str) -> Result<Option<Holder>, Error> {
    let sql = "select s.active_pid, nullif(a.application_name, ''), host(a.client_addr),
          greatest(extract(epoch from clock_timestamp() - a.backend_start)::bigint, 0)
        from pg_replication_slots s left join pg_stat_activity a on a.pid = s.active_pid
        where s.slot_name = $1 and s.active_pid is not null";
    let Some(row) = client.query_opt(sql, &[&name]).await? else { return Ok(None) };
    let age: Option<i64> = row.try_get(3)?;
    Ok(Some(Holder {
        pid: row.try_get(0)?,
        application_name: row.try_get(1)?,
        client_address: row.try_get(2)?,
        age: age.and_then(|age| u64::try_from(age).ok()).map(Duration::from_secs),
    }))
}

/// Who a slot's creation waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The server process; 0 for a prepared transaction.
    pub pid: i32,
    /// What there is to know of it: role, program, state, age of its transaction.
    pub description: String,
}

/// The sessions that a server process waits for.
///
/// # Errors
/// What the server reports.
pub async fn blockers(client: &Client, pid: i32) -> Result<Vec<Blocker>, Error> {
    let sql = "select b.pid, case
          when b.pid = 0 then 'a prepared transaction (see pg_prepared_xacts)'
          else format('%s, %s, %s, transaction open for %s s', coalesce(a.usename, '?'),
            coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.state, 'state hidden'),
            coalesce(extract(epoch from clock_timestamp() - a.xact_start)::bigint::text, '?')) end
        from (select distinct unnest(pg_blocking_pids($1)) as pid) b left join pg_stat_activity a on a.pid = b.pid
        order by 1";
    let rows = client.query(sql, &[&pid]).await?;
    rows.iter().map(|row| Ok(Blocker { pid: row.try_get(0)?, description: row.try_get(1)? })).collect()
}

/// Creates the slot. The server first waits until every transaction that now writes has ended; while it
/// does, `watch` names those in the log, and `cancel` ends the wait without leaving a slot.
///
/// Dropping the future instead leaves the server waiting, until it notices.
///
/// # Errors
/// [`ErrorKind::Cancelled`] after `cancel`; what the server reports, with all slots taken among it.
pub async fn create_slot(
    settings: &ConnectSettings,
    watch: &Client,
    name: &str,
    failover: bool,
    cancel: &CancellationToken,
) -> Result<CreatedSlot, Error> {
    check_slot_name(name)?;
    let mut replication = settings.connect_replication().await?;
    let pid = replication.process_id();
    let (via, host, key) = replication.canceller();
    let created = {
        let creating = replication.create_slot(name, failover);
        tokio::pin!(creating);
        let first = tokio::time::Instant::now() + Duration::from_secs(1);
        let mut timer = tokio::time::interval_at(first, Duration::from_secs(10));
        loop {
            tokio::select! {
                biased;
                created = &mut creating => break created,
                () = cancel.cancelled() => {
                    via.cancel(&host, key).await?;
                    let ended = tokio::time::timeout(Duration::from_secs(5), &mut creating).await;
                    break ended.unwrap_or_else(|_| Err(Error::closed("the server did not give the creation up")));
                }
                _ = timer.tick() => tell_blockers(watch, name, pid).await,
            }
        }
    };
    if !cancel.is_cancelled() {
        replication.close().await;
        return created;
    }
    match created {
        Ok(_) => replication.drop_slot(name).await?,
        // Nobody waits on the walsender any more: it must not finish a slot for nobody.
        Err(error) if error.kind() == ErrorKind::Closed => {
            watch.execute("select pg_terminate_backend($1)", &[&pid]).await?;
        }
        Err(_) => {}
    }
    replication.close().await;
    Err(Error::new(
        ErrorKind::Cancelled,
        format!("the creation of slot `{name}` was given up; no slot was left"),
    ))
}

async fn tell_blockers(watch: &Client, name: &str, pid: i32) {
    match blockers(watch, pid).await {
        Ok(list) if list.is_empty() => {
            tracing::info!(slot = name, "waiting for the server to create the slot")
        }
        Ok(list) => {
            for blocker in list {
                tracing::warn!(
                    slot = name,
                    pid = blocker.pid,
                    "the slot's creation waits for a transaction to end: pid {} ({}); end it, or \
                     `select pg_terminate_backend({})`",
                    blocker.pid,
                    blocker.description,
                    blocker.pid,
                );
            }
        }
        Err(error) => tracing::warn!(slot = name, %error, "cannot tell what the slot's creation waits for"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c019_slot_names_follow_the_servers_rule() {
        for good in ["a", "1abc", "a_b", &"x".repeat(63)] {
            assert_eq!(check_slot_name(good), Ok(()));
        }
        for bad in ["", "Abc", "a-b", "é", "a b", &"x".repeat(64)] {
            assert!(check_slot_name(bad).is_err(), "{bad}");
        }
    }
}
