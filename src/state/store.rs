//! The statements.

use tokio_postgres::{Client, Row};

use crate::model::{EntityName, Lsn};

use super::{Installation, MappingStatus, RunStatus, StateError, StoredMapping, StoredRun, upgrade};

/// The rows of one installation, through one connection.
#[derive(Clone, Debug)]
pub struct Store {
    installation: String,
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
        let query = "select to_regclass('anabranch.version') is not null";
        let row = client.query_one(query, &[]).await.map_err(StateError::query("look for it"))?;
        Ok(row.get(0))
    }

    /// The checkpoint, where there is one.
    pub async fn installation(&self, client: &Client) -> Result<Option<Installation>, StateError> {
        let query = "select name, publication, system_identifier, timeline, confirmed::text, term, baseline \
                     from anabranch.installation where name = $1";
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
            })
        })
        .transpose()
    }

    /// Writes the checkpoint as a whole, as a term begins.
    pub async fn save_installation(&self, client: &Client, wanted: &Installation) -> Result<(), StateError> {
        let query = "insert into anabranch.installation as old \
                     (name, publication, system_identifier, timeline, confirmed, term, baseline) \
                     values ($1, $2, $3, $4, $5::text::pg_lsn, $6, $7) \
                     on conflict (name) do update set publication = excluded.publication, \
                     system_identifier = excluded.system_identifier, timeline = excluded.timeline, \
                     confirmed = excluded.confirmed, term = excluded.term, baseline = excluded.baseline, \
                     updated_at = now()";
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
                ],
            )
            .await
            .map_err(StateError::query("save the checkpoint"))?;
        Ok(())
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

    /// All mappings, by name.
    pub async fn mappings(&self, client: &Client) -> Result<Vec<StoredMapping>, StateError> {
        let query = "select name, entity, table_oid, identity::text, generation, built, accepted::text, status, last_error, \
                     attempts from anabranch.mapping where installation = $1 order by name";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the mappings"))?;
        rows.iter().map(mapping).collect()
    }

    /// Writes a mapping as a whole: a new one, or a new generation or revision of it. With a new generation an
    /// unfinished run of it is forgotten, in the same statement: what that has read was made by the old one.
    pub async fn save_mapping(&self, client: &Client, wanted: &StoredMapping) -> Result<(), StateError> {
        let query = "with outdated as (delete from anabranch.run as r using anabranch.mapping as m \
                     where m.installation = $1 and m.name = $2 and m.generation <> $6 \
                     and r.installation = $1 and $2 = any (r.mappings) and r.status <> 'complete') \
                     insert into anabranch.mapping (installation, name, entity, table_oid, identity, generation, \
                     built, accepted, status, last_error, attempts) \
                     values ($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8::text::pg_lsn, $9, $10, $11) \
                     on conflict (installation, name) do update set entity = excluded.entity, \
                     table_oid = excluded.table_oid, identity = excluded.identity, \
                     generation = excluded.generation, built = excluded.built, \
                     accepted = excluded.accepted, status = excluded.status, last_error = excluded.last_error, \
                     attempts = excluded.attempts, updated_at = now()";
        client
            .execute(
                query,
                &[
                    &self.installation,
                    &wanted.name,
                    &wanted.entity.to_string(),
                    &wanted.table_oid,
                    &wanted.identity,
                    &wanted.generation,
                    &wanted.built,
                    &wanted.accepted.to_string(),
                    &wanted.status.as_str(),
                    &wanted.last_error,
                    &wanted.attempts,
                ],
            )
            .await
            .map_err(StateError::query("save a mapping"))?;
        Ok(())
    }

    /// Notes how a mapping is.
    pub async fn save_mapping_status(
        &self,
        client: &Client,
        name: &str,
        status: MappingStatus,
        last_error: Option<&str>,
        attempts: i32,
    ) -> Result<(), StateError> {
        let query = "update anabranch.mapping set status = $3, last_error = $4, attempts = $5, \
                     updated_at = now() where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &name, &status.as_str(), &last_error, &attempts])
            .await
            .map_err(StateError::query("save a mapping's status"))?;
        Ok(())
    }

    /// Forgets a mapping that is no longer in the config.
    pub async fn forget_mapping(&self, client: &Client, name: &str) -> Result<(), StateError> {
        let query = "delete from anabranch.mapping where installation = $1 and name = $2";
        client
            .execute(query, &[&self.installation, &name])
            .await
            .map_err(StateError::query("forget a mapping"))?;
        Ok(())
    }

    /// All runs, by table.
    pub async fn runs(&self, client: &Client) -> Result<Vec<StoredRun>, StateError> {
        let query = "select entity, run, mappings, status, cursor, rows, chunks, estimate, attempts, last_error, \
                     (extract(epoch from not_before) * 1000000)::bigint \
                     from anabranch.run where installation = $1 order by entity";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the backfills"))?;
        rows.iter().map(run).collect()
    }

    /// Writes a run as a whole, in place of the one its table had.
    pub async fn save_run(&self, client: &Client, wanted: &StoredRun) -> Result<(), StateError> {
        let query = "insert into anabranch.run (installation, entity, run, mappings, status, cursor, rows, chunks, \
                     estimate, attempts, last_error, not_before) \
                     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                     'epoch'::timestamptz + make_interval(secs => $12::bigint / 1000000.0)) \
                     on conflict (installation, entity) do update set run = excluded.run, \
                     mappings = excluded.mappings, status = excluded.status, cursor = excluded.cursor, \
                     rows = excluded.rows, chunks = excluded.chunks, estimate = excluded.estimate, \
                     attempts = excluded.attempts, last_error = excluded.last_error, \
                     not_before = excluded.not_before, started_at = now(), finished_at = null";
        client
            .execute(
                query,
                &[
                    &self.installation,
                    &wanted.entity.to_string(),
                    &wanted.run,
                    &wanted.mappings,
                    &wanted.status.as_str(),
                    &wanted.cursor,
                    &wanted.rows,
                    &wanted.chunks,
                    &wanted.estimate,
                    &wanted.attempts,
                    &wanted.last_error,
                    &wanted.not_before,
                ],
            )
            .await
            .map_err(StateError::query("save a backfill"))?;
        Ok(())
    }

    /// Saves a run's progress. A run that is not its table's any more is left alone.
    pub async fn save_cursor(
        &self,
        client: &Client,
        run: &str,
        cursor: &str,
        rows: i64,
        chunks: i64,
    ) -> Result<(), StateError> {
        let query = "update anabranch.run set cursor = $3, rows = $4, chunks = $5, status = 'running', \
                     attempts = 0, last_error = null, not_before = 'epoch' \
                     where installation = $1 and run = $2 and status <> 'complete'";
        client
            .execute(query, &[&self.installation, &run, &cursor, &rows, &chunks])
            .await
            .map_err(StateError::query("save a cursor"))?;
        Ok(())
    }

    /// Notes that a run begins again from the first row.
    pub async fn restart_run(&self, client: &Client, run: &str) -> Result<(), StateError> {
        let query = "update anabranch.run set cursor = null, rows = 0, chunks = 0 \
                     where installation = $1 and run = $2 and status <> 'complete'";
        client
            .execute(query, &[&self.installation, &run])
            .await
            .map_err(StateError::query("restart a backfill"))?;
        Ok(())
    }

    /// Notes that a run's rows and cursor are not for this mapping any more.
    pub async fn leave_run(&self, client: &Client, run: &str, mapping: &str) -> Result<(), StateError> {
        let query = "update anabranch.run set mappings = array_remove(mappings, $3) \
                     where installation = $1 and run = $2 and status <> 'complete'";
        client
            .execute(query, &[&self.installation, &run, &mapping])
            .await
            .map_err(StateError::query("take a mapping out of a backfill"))?;
        Ok(())
    }

    /// Notes that a run failed and waits until `not_before` (microseconds since 1970-01-01 UTC).
    pub async fn fail_run(
        &self,
        client: &Client,
        run: &str,
        attempts: i32,
        not_before: i64,
        error: &str,
    ) -> Result<(), StateError> {
        let query = "update anabranch.run set status = 'failing', attempts = $3, last_error = $5, \
                     not_before = 'epoch'::timestamptz + make_interval(secs => $4::bigint / 1000000.0) \
                     where installation = $1 and run = $2 and status <> 'complete'";
        client
            .execute(query, &[&self.installation, &run, &attempts, &not_before, &error])
            .await
            .map_err(StateError::query("save a backfill's failure"))?;
        Ok(())
    }

    /// Notes that a run is complete, and which generation of each mapping it built, in one transaction.
    pub async fn complete_run(
        &self,
        client: &Client,
        run: &str,
        rows: i64,
        chunks: i64,
        built: &[(String, i64)],
    ) -> Result<(), StateError> {
        let query = "with done as (update anabranch.run set status = 'complete', rows = $3, chunks = $4, \
                     attempts = 0, last_error = null, finished_at = now() \
                     where installation = $1 and run = $2 returning run) \
                     update anabranch.mapping as m set built = n.built, updated_at = now() \
                     from unnest($5::text[], $6::bigint[]) as n (name, built), done \
                     where m.installation = $1 and m.name = n.name and m.built < n.built";
        let names: Vec<&str> = built.iter().map(|(name, _)| name.as_str()).collect();
        let generations: Vec<i64> = built.iter().map(|(_, generation)| *generation).collect();
        client
            .execute(query, &[&self.installation, &run, &rows, &chunks, &names, &generations])
            .await
            .map_err(StateError::query("complete a backfill"))?;
        Ok(())
    }

    /// Ends the backfill of a table that no mapping needs any more.
    pub async fn forget_run(&self, client: &Client, entity: &EntityName) -> Result<(), StateError> {
        let query = "delete from anabranch.run where installation = $1 and entity = $2";
        client
            .execute(query, &[&self.installation, &entity.to_string()])
            .await
            .map_err(StateError::query("forget a backfill"))?;
        Ok(())
    }
}

fn malformed(what: &'static str, value: &str) -> StateError {
    StateError::Malformed { what, value: value.to_owned() }
}

fn lsn(what: &'static str, row: &Row, column: usize) -> Result<Lsn, StateError> {
    let text: &str = row.get(column);
    text.parse().map_err(|_| malformed(what, text))
}

fn entity(what: &'static str, row: &Row, column: usize) -> Result<EntityName, StateError> {
    let text: &str = row.get(column);
    text.parse().map_err(|_| malformed(what, text))
}

fn mapping(row: &Row) -> Result<StoredMapping, StateError> {
    let all = [MappingStatus::Running, MappingStatus::Failing, MappingStatus::Refused];
    let word: &str = row.get(7);
    let status = all.into_iter().find(|status| status.as_str() == word);
    Ok(StoredMapping {
        name: row.get(0),
        entity: entity("mapping.entity", row, 1)?,
        table_oid: row.get(2),
        identity: row.get(3),
        generation: row.get(4),
        built: row.get(5),
        accepted: lsn("mapping.accepted", row, 6)?,
        status: status.ok_or_else(|| malformed("mapping.status", word))?,
        last_error: row.get(8),
        attempts: row.get(9),
    })
}

fn run(row: &Row) -> Result<StoredRun, StateError> {
    let all = [RunStatus::Running, RunStatus::Failing, RunStatus::Complete];
    let word: &str = row.get(3);
    let status = all.into_iter().find(|status| status.as_str() == word);
    Ok(StoredRun {
        entity: entity("run.entity", row, 0)?,
        run: row.get(1),
        mappings: row.get(2),
        status: status.ok_or_else(|| malformed("run.status", word))?,
        cursor: row.get(4),
        rows: row.get(5),
        chunks: row.get(6),
        estimate: row.get(7),
        attempts: row.get(8),
        last_error: row.get(9),
        not_before: row.get(10),
    })
}
