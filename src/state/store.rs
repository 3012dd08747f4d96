//! The store itself, the checkpoint, and what the statements of all tables share.

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::model::{EntityName, Lsn, Scope};

use super::{Installation, StateError, upgrade};

/// The rows of one installation, through one connection.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) installation: String,
}

impl Store {
    /// The store of an installation.
    pub fn new(installation: impl Into<String>) -> Self {
        Self { installation: installation.into() }
    }

    /// Makes the schema, or brings it up to date.
    pub async fn upgrade(&self, client: &Client) -> Result<(), StateError> {
        upgrade::upgrade(client).await
    }

    /// Whether the schema is there at all; reading before [`Store::upgrade`] fails where it is not.
    pub async fn exists(&self, client: &Client) -> Result<bool, StateError> {
        upgrade::exists(client).await
    }

    /// Whether the schema is there in the form that this program reads and writes.
    ///
    /// # Errors
    /// It is of another release.
    pub async fn ready(&self, client: &Client) -> Result<bool, StateError> {
        if !self.exists(client).await? {
            return Ok(false);
        }
        upgrade::check(client).await.map(|()| true)
    }

    /// Makes the schema where there is none; one of another release is left as it is.
    ///
    /// # Errors
    /// It is of another release.
    pub async fn ensure(&self, client: &Client) -> Result<(), StateError> {
        if self.ready(client).await? { Ok(()) } else { self.upgrade(client).await }
    }

    /// The checkpoint, where there is one.
    pub async fn installation(&self, client: &Client) -> Result<Option<Installation>, StateError> {
        let query = "select name, publication, system_identifier, timeline, confirmed::text, term, baseline, \
                     publication_oid from anabranch.installation where name = $1";
        let row = client
            .query_opt(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the checkpoint"))?;
        row.map(|row| {
            Ok(Installation {
                name: row.get(0),
                publication: row.get(1),
                system_identifier: row.get(2),
                timeline: row.get(3),
                confirmed: lsn("installation.confirmed", &row, 4)?,
                term: row.get(5),
                baseline: row.get::<_, Option<i64>>(6).map(i64::cast_unsigned),
                publication_oid: row.get(7),
            })
        })
        .transpose()
    }

    /// Writes the checkpoint as a whole, as a term begins.
    pub async fn save_installation(&self, client: &Client, wanted: &Installation) -> Result<(), StateError> {
        let query = "insert into anabranch.installation as old \
                     (name, publication, system_identifier, timeline, confirmed, term, baseline, publication_oid) \
                     values ($1, $2, $3, $4, $5::text::pg_lsn, $6, $7, $8) \
                     on conflict (name) do update set publication = excluded.publication, \
                     system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
                     confirmed = excluded.confirmed, term = excluded.term, baseline = excluded.baseline, \
                     publication_oid = excluded.publication_oid, updated_at = now()";
        let confirmed = wanted.confirmed.to_string();
        let baseline = wanted.baseline.map(u64::cast_signed);
        client
            .execute(
                query,
                &[
                    &self.installation,
                    &wanted.publication,
                    &wanted.system_identifier,
                    &wanted.timeline,
                    &confirmed,
                    &wanted.term,
                    &baseline,
                    &wanted.publication_oid,
                ],
            )
            .await
            .map_err(StateError::query("save the checkpoint"))?;
        Ok(())
    }

    /// Whether this term still leads. In a transaction that sees it lead, the next leader's term waits for its end.
    pub(super) async fn leads(&self, client: &Client, term: i64) -> Result<bool, StateError> {
        let query = "select from anabranch.installation where name = $1 and term = $2 for share";
        let row = client.query_opt(query, &[&self.installation, &term]).await;
        Ok(row.map_err(StateError::query("ask who leads"))?.is_some())
    }

    /// Notes that backfills must wait for all transactions before `xid` (none: no longer).
    pub async fn save_baseline(&self, client: &Client, xid: Option<u64>) -> Result<(), StateError> {
        let query = "update anabranch.installation set baseline = $2 where name = $1";
        client
            .execute(query, &[&self.installation, &xid.map(u64::cast_signed)])
            .await
            .map_err(StateError::query("save the baseline"))?;
        Ok(())
    }

    /// Saves how far the slot is confirmed and what each mapping has accepted, in one statement.
    pub async fn save_positions(
        &self,
        client: &Client,
        confirmed: Lsn,
        accepted: &[(String, Lsn)],
    ) -> Result<(), StateError> {
        let query = "with checkpoint as (update anabranch.installation \
                     set confirmed = $2::text::pg_lsn, updated_at = now() where name = $1) \
                     update anabranch.mapping as m set accepted = n.accepted::pg_lsn, updated_at = now() \
                     from unnest($3::text[], $4::text[]) as n (name, accepted) \
                     where m.installation = $1 and m.name = n.name and m.accepted < n.accepted::pg_lsn";
        let names: Vec<&str> = accepted.iter().map(|(name, _)| name.as_str()).collect();
        let positions: Vec<String> = accepted.iter().map(|(_, lsn)| lsn.to_string()).collect();
        client
            .execute(query, &[&self.installation, &confirmed.to_string(), &names, &positions])
            .await
            .map_err(StateError::query("save positions"))?;
        Ok(())
    }
}

/// Runs statements in one transaction.
pub(super) async fn atomically<T>(
    client: &Client,
    statements: impl Future<Output = Result<T, StateError>>,
) -> Result<T, StateError> {
    client.batch_execute("begin").await.map_err(StateError::query("begin a transaction"))?;
    let done = statements.await;
    let end = if done.is_ok() { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(StateError::query("end a transaction"));
    // What went wrong first says more.
    let done = done?;
    ended.map(|()| done)
}

pub(super) fn json(action: &'static str, value: &impl Serialize) -> Result<String, StateError> {
    serde_json::to_string(value).map_err(|source| StateError::Unwritable { action, source })
}

pub(super) fn malformed(what: &'static str, value: &str) -> StateError {
    StateError::Malformed { what, value: value.to_owned() }
}

pub(super) fn lsn(what: &'static str, row: &Row, column: usize) -> Result<Lsn, StateError> {
    let text: &str = row.get(column);
    text.parse().map_err(|_| malformed(what, text))
}

pub(super) fn entity(what: &'static str, row: &Row, column: usize) -> Result<EntityName, StateError> {
    let text: &str = row.get(column);
    text.parse().map_err(|_| malformed(what, text))
}

pub(super) fn scope(what: &'static str, row: &Row, column: usize) -> Result<Option<Scope>, StateError> {
    let text: Option<&str> = row.get(column);
    text.map(|text| serde_json::from_str(text).map_err(|_| malformed(what, text))).transpose()
}
