//! The rows of `anabranch.run`: at most one whole-table run of a table, and any number of scoped ones.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use crate::{
    backfill::Report,
    model::{EntityName, Scope},
};

use super::{
    StateError, Store,
    store::{entity, json, malformed, scope},
};

/// A backfill, as it is stored: one for a table, and any number for parts of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRun {
    /// The table.
    pub entity: EntityName,
    /// Its id, a UUID's text.
    pub run: String,
    /// The mappings that its rows are for.
    pub mappings: Vec<String>,
    /// Where it is.
    pub status: RunStatus,
    /// The cursor, as JSON.
    pub cursor: Option<String>,
    /// Rows that are durable.
    pub rows: i64,
    /// Chunks that are durable.
    pub chunks: i64,
    /// About how many rows the table had when it began.
    pub estimate: Option<i64>,
    /// Failures in a row.
    pub attempts: i32,
    /// The last failure.
    pub last_error: Option<String>,
    /// Nothing is read before: microseconds since 1970-01-01 UTC.
    pub not_before: i64,
    /// The rows that are meant; none: all of the table.
    pub scope: Option<Scope>,
    /// What it has done, and where its time went.
    pub report: Report,
}

impl StoredRun {
    /// A run of a whole table that has not begun.
    #[must_use]
    pub fn new(entity: EntityName, run: impl Into<String>, mappings: Vec<String>) -> Self {
        Self {
            entity,
            run: run.into(),
            mappings,
            status: RunStatus::Queued,
            cursor: None,
            rows: 0,
            chunks: 0,
            estimate: None,
            attempts: 0,
            last_error: None,
            not_before: 0,
            scope: None,
            report: Report::default(),
        }
    }
}

/// How long ago things happened to a run, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAge {
    /// The run.
    pub run: String,
    /// Its first page was asked for, or it was queued.
    pub started: Duration,
    /// Its progress was saved.
    pub updated: Duration,
    /// It was complete.
    pub finished: Option<Duration>,
}

/// Where a run is. `Cancelled` is also the mark of a table that is not to be read until somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// Nothing is read yet; it may be withdrawn.
    Queued,
    /// It reads.
    Running,
    /// It failed and waits.
    Failing,
    /// All its rows are durable.
    Complete,
    /// It was withdrawn before it read anything.
    Cancelled,
}

impl RunStatus {
    /// The word in the schema and in `status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Store {
    /// All runs, by table; a whole table's before those of its parts.
    pub async fn runs(&self, client: &Client) -> Result<Vec<StoredRun>, StateError> {
        let query = "select entity, run, mappings, status, cursor, rows, chunks, estimate, attempts, last_error, \
                     (extract(epoch from not_before) * 1000000)::bigint, scope::text, report::text \
                     from anabranch.run where installation = $1 \
                     order by entity, scope is not null, started_at, run";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the backfills"))?;
        rows.iter().map(run).collect()
    }

    /// When things happened to each run.
    pub async fn run_ages(&self, client: &Client) -> Result<Vec<RunAge>, StateError> {
        let query = "select run, extract(epoch from now() - started_at)::float8, \
                     extract(epoch from now() - updated_at)::float8, \
                     extract(epoch from now() - finished_at)::float8 \
                     from anabranch.run where installation = $1 order by run";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the times of the backfills"))?;
        let ago = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let age = |row: &Row| RunAge {
            run: row.get(0),
            started: ago(row.get(1)),
            updated: ago(row.get(2)),
            finished: row.get::<_, Option<f64>>(3).map(ago),
        };
        Ok(rows.iter().map(age).collect())
    }

    /// Writes a run as a whole: a whole table's in place of the one that the table had.
    pub async fn save_run(&self, client: &Client, wanted: &StoredRun) -> Result<(), StateError> {
        self.write_run(client, wanted, false).await
    }

    /// The same; a request also takes the place of a cancelled run.
    pub(super) async fn write_run(
        &self,
        client: &Client,
        wanted: &StoredRun,
        requested: bool,
    ) -> Result<(), StateError> {
        let key = match &wanted.scope {
            None => "(installation, entity) where scope is null",
            Some(_) => "(installation, run)",
        };
        let query = format!(
            "insert into anabranch.run as old (installation, entity, run, mappings, status, cursor, rows, chunks, estimate, \
             attempts, last_error, not_before, scope, report) \
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
             'epoch'::timestamptz + make_interval(secs => $12::bigint / 1000000.0), \
             $13::text::jsonb, $14::text::jsonb) \
             on conflict {key} do update set run = excluded.run, entity = excluded.entity, \
             mappings = excluded.mappings, status = excluded.status, cursor = excluded.cursor, \
             rows = excluded.rows, chunks = excluded.chunks, estimate = excluded.estimate, \
             attempts = excluded.attempts, last_error = excluded.last_error, not_before = excluded.not_before, \
             scope = excluded.scope, report = excluded.report, started_at = now(), updated_at = now(), \
             finished_at = null where old.status <> 'cancelled' or $15"
        );
        let scope = wanted.scope.as_ref().map(|scope| json("write a scope", scope)).transpose()?;
        client
            .execute(
                query.as_str(),
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
                    &scope,
                    &json("write a report", &wanted.report)?,
                    &requested,
                ],
            )
            .await
            .map_err(StateError::query("save a backfill"))?;
        Ok(())
    }

    /// Notes that the first page of a run is about to be read, and says whether it may be: not when somebody
    /// has cancelled it, or another run has taken its place.
    pub async fn begin_run(&self, client: &Client, run: &str) -> Result<bool, StateError> {
        let query = "update anabranch.run set updated_at = now(), \
                     status = case status when 'queued' then 'running' else status end, \
                     started_at = case status when 'queued' then now() else started_at end \
                     where installation = $1 and run = $2 and status in ('queued', 'running', 'failing')";
        let begun = client
            .execute(query, &[&self.installation, &run])
            .await
            .map_err(StateError::query("begin a backfill"))?;
        Ok(begun > 0)
    }

    /// Saves a run's progress. A run that is not its table's any more is left alone.
    pub async fn save_cursor(
        &self,
        client: &Client,
        run: &str,
        cursor: &str,
        rows: i64,
        chunks: i64,
        report: &Report,
    ) -> Result<(), StateError> {
        let query = "update anabranch.run set cursor = $3, rows = $4, chunks = $5, status = 'running', \
                     attempts = 0, last_error = null, not_before = 'epoch', report = $6::text::jsonb, \
                     updated_at = now() \
                     where installation = $1 and run = $2 and status not in ('complete', 'cancelled')";
        let report = json("write a report", report)?;
        client
            .execute(query, &[&self.installation, &run, &cursor, &rows, &chunks, &report])
            .await
            .map_err(StateError::query("save a cursor"))?;
        Ok(())
    }

    /// Saves what a run has done, where its cursor has not moved.
    pub async fn save_report(&self, client: &Client, run: &str, report: &Report) -> Result<(), StateError> {
        let query = "update anabranch.run set report = $3::text::jsonb, updated_at = now() \
                     where installation = $1 and run = $2 and status not in ('complete', 'cancelled')";
        client
            .execute(query, &[&self.installation, &run, &json("write a report", report)?])
            .await
            .map_err(StateError::query("save a backfill's report"))?;
        Ok(())
    }

    /// Notes that a run begins again from the first row.
    pub async fn restart_run(&self, client: &Client, run: &str) -> Result<(), StateError> {
        let query = "update anabranch.run set cursor = null, rows = 0, chunks = 0, updated_at = now() \
                     where installation = $1 and run = $2 and status not in ('complete', 'cancelled')";
        client
            .execute(query, &[&self.installation, &run])
            .await
            .map_err(StateError::query("restart a backfill"))?;
        Ok(())
    }

    /// Notes that a run's rows and cursor are not for this mapping any more.
    pub async fn leave_run(&self, client: &Client, run: &str, mapping: &str) -> Result<(), StateError> {
        let query = "update anabranch.run set mappings = array_remove(mappings, $3) \
                     where installation = $1 and run = $2 and status not in ('complete', 'cancelled')";
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
                     updated_at = now(), not_before = 'epoch'::timestamptz + make_interval(secs => $4::bigint / 1000000.0) \
                     where installation = $1 and run = $2 and status not in ('complete', 'cancelled')";
        client
            .execute(query, &[&self.installation, &run, &attempts, &not_before, &error])
            .await
            .map_err(StateError::query("save a backfill's failure"))?;
        Ok(())
    }

    /// Notes that a run is complete, and which generation of each mapping it built, in one transaction. Of a
    /// run of a part of its table nothing is left. What is in quarantine of generations before that is over: every
    /// row that there is was read again.
    pub async fn complete_run(
        &self,
        client: &Client,
        run: &str,
        rows: i64,
        chunks: i64,
        built: &[(String, i64)],
        report: &Report,
    ) -> Result<(), StateError> {
        let query = "with part as (delete from anabranch.run \
                     where installation = $1 and run = $2 and scope is not null), \
                     done as (update anabranch.run set status = 'complete', rows = $3, chunks = $4, \
                     attempts = 0, last_error = null, report = $7::text::jsonb, updated_at = now(), \
                     finished_at = now() where installation = $1 and run = $2 and scope is null returning run), \
                     retired as (delete from anabranch.quarantine as q \
                     using unnest($5::text[], $6::bigint[]) as n (name, built), done \
                     where q.installation = $1 and q.mapping = n.name and q.generation < n.built) \
                     update anabranch.mapping as m set built = n.built, updated_at = now() \
                     from unnest($5::text[], $6::bigint[]) as n (name, built), done \
                     where m.installation = $1 and m.name = n.name and m.built < n.built";
        let names: Vec<&str> = built.iter().map(|(name, _)| name.as_str()).collect();
        let generations: Vec<i64> = built.iter().map(|(_, generation)| *generation).collect();
        let report = json("write a report", report)?;
        client
            .execute(query, &[&self.installation, &run, &rows, &chunks, &names, &generations, &report])
            .await
            .map_err(StateError::query("complete a backfill"))?;
        Ok(())
    }

    /// Forgets a run of a part of its table.
    pub async fn forget_scoped(&self, client: &Client, run: &str) -> Result<(), StateError> {
        let query = "delete from anabranch.run where installation = $1 and run = $2 and scope is not null";
        client
            .execute(query, &[&self.installation, &run])
            .await
            .map_err(StateError::query("forget a backfill"))?;
        Ok(())
    }

    /// Forgets how far a table is read as a whole, where that is not to its end: it is read from its first row again.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn forget_unfinished_run(
        &self,
        client: &Client,
        entity: &EntityName,
    ) -> Result<(), StateError> {
        let query = "delete from anabranch.run where installation = $1 and entity = $2 and scope is null \
                     and status not in ('complete', 'cancelled')";
        client
            .execute(query, &[&self.installation, &entity.to_string()])
            .await
            .map_err(StateError::query("forget a backfill that changes are missing of"))?;
        Ok(())
    }

    /// Ends the backfills of a table that no mapping needs any more. Its mark stays, where it was cancelled.
    pub async fn forget_run(&self, client: &Client, entity: &EntityName) -> Result<(), StateError> {
        let query = "delete from anabranch.run where installation = $1 and entity = $2 \
                     and status <> 'cancelled'";
        client
            .execute(query, &[&self.installation, &entity.to_string()])
            .await
            .map_err(StateError::query("forget a backfill"))?;
        Ok(())
    }
}

fn run(row: &Row) -> Result<StoredRun, StateError> {
    let all = [
        RunStatus::Queued,
        RunStatus::Running,
        RunStatus::Failing,
        RunStatus::Complete,
        RunStatus::Cancelled,
    ];
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
        scope: scope("run.scope", row, 11)?,
        report: row.get::<_, Option<&str>>(12).map_or_else(
            || Ok(Report::default()),
            |text| serde_json::from_str(text).map_err(|_| malformed("run.report", text)),
        )?,
    })
}
