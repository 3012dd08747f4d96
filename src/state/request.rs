//! The rows of `anabranch.request`: backfills that somebody asked for and no leader has begun.
//!
//! A request is *taken* by the leader, which then turns it into a run in one transaction
//! ([`Store::start_requested`]); the leader after a crash finds it taken and releases it. Whoever writes
//! requests and whoever turns them into runs do so one after another, by a lock on the table.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use crate::model::{EntityName, Scope};

use super::{
    RunStatus, StateError, Store, StoredMapping, StoredRun,
    store::{atomically, json, malformed, scope},
};

/// The channel that every request and every control is told on, with the installation as the payload.
pub const CHANNEL: &str = "anabranch";

/// Keys of one request at the most; more become several.
pub const KEYS_OF_A_REQUEST: usize = 1000;

/// What is to be backfilled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// One mapping.
    Mapping(String),
    /// All mappings of a table.
    Table(EntityName),
}

impl Target {
    fn columns(&self) -> (&'static str, String) {
        match self {
            Self::Mapping(name) => ("mapping", name.clone()),
            Self::Table(entity) => ("table", entity.to_string()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mapping(name) => f.write_str(name),
            Self::Table(entity) => entity.fmt(f),
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRequest {
    /// Its number; later requests have larger ones.
    pub id: i64,
    /// What is meant.
    pub target: Target,
    /// The rows that are meant; none: all.
    pub scope: Option<Scope>,
    /// Whether destinations are emptied first.
    pub purge: bool,
}

/// A request, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRequest {
    /// The request.
    pub request: StoredRequest,
    /// Whether the leader is turning it into a run.
    pub taken: bool,
    /// How long ago it was asked for.
    pub age: Duration,
}

/// What became of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The request's number.
    pub id: i64,
    /// It was not there yet.
    pub new: bool,
}

/// What was withdrawn, and what stands in the way of more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Withdrawn {
    /// Requests that were withdrawn.
    pub requests: u64,
    /// Runs of parts of the table that had not begun.
    pub scoped: u64,
    /// The run of the whole table had not begun, and does not.
    pub run: bool,
    /// The table is left marked: it is not read until somebody asks.
    pub marked: bool,
    /// A run of the whole table that is under way and goes on, or that is for other mappings, too.
    pub remains: Option<StoredRunState>,
    /// Requests that the leader is turning into runs at this moment.
    pub taken: u64,
}

/// How far a run is that cannot be withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRunState {
    /// Its table.
    pub entity: String,
    /// Its status' word.
    pub status: String,
    /// The mappings that it is for.
    pub mappings: Vec<String>,
}

impl Store {
    /// Tells the leader and whoever waits that there is something to look at; heard when the transaction
    /// commits.
    pub(super) async fn notify(&self, client: &Client) -> Result<(), StateError> {
        client
            .execute("select pg_notify($1, $2)", &[&CHANNEL, &self.installation])
            .await
            .map_err(StateError::query("wake the leader"))?;
        Ok(())
    }

    /// Asks for backfills, all or none. What was asked for already and not taken stays one request; a purge
    /// that either wants is wanted.
    pub async fn ask(
        &self,
        client: &Client,
        target: &Target,
        scopes: &[Option<Scope>],
        purge: bool,
    ) -> Result<Vec<Asked>, StateError> {
        let query = "insert into anabranch.request as old (installation, kind, target, scope, purge) \
                     values ($1, $2, $3, $4::text::jsonb, $5) \
                     on conflict (installation, kind, target, hashtextextended(coalesce(scope::text, ''), 0), \
                     hashtextextended(coalesce(scope::text, ''), 1)) where not taken \
                     do update set purge = old.purge or excluded.purge returning id, xmax = 0";
        let (kind, name) = target.columns();
        atomically(client, async {
            let mut asked = Vec::new();
            for scope in scopes {
                let scope = scope.as_ref().map(|scope| json("write a scope", scope)).transpose()?;
                let row = client
                    .query_one(query, &[&self.installation, &kind, &name, &scope, &purge])
                    .await
                    .map_err(StateError::query("save a request"))?;
                asked.push(Asked { id: row.get(0), new: row.get(1) });
            }
            self.notify(client).await?;
            Ok(asked)
        })
        .await
    }

    /// The requests that nobody has taken, by number.
    pub async fn requests(&self, client: &Client) -> Result<Vec<StoredRequest>, StateError> {
        let pending = self.pending_requests(client).await?;
        Ok(pending.into_iter().filter(|pending| !pending.taken).map(|pending| pending.request).collect())
    }

    /// All requests, by number.
    pub async fn pending_requests(&self, client: &Client) -> Result<Vec<PendingRequest>, StateError> {
        let query = "select id, kind, target, scope::text, purge, taken, \
                     extract(epoch from now() - requested_at)::float8 \
                     from anabranch.request where installation = $1 order by id";
        let rows = client
            .query(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the requests"))?;
        rows.iter().map(pending).collect()
    }

    /// Lets go of what a leader had taken and not turned into runs, as a term begins. Where the same was asked
    /// for again meanwhile, one of the two is left.
    pub async fn release_requests(&self, client: &Client) -> Result<(), StateError> {
        let keep = "update anabranch.request as kept set purge = true \
                    where installation = $1 and not purge and exists (select from anabranch.request as other \
                    where other.installation = $1 and other.kind = kept.kind and other.target = kept.target \
                    and other.scope is not distinct from kept.scope and other.purge)";
        let merge = "delete from anabranch.request as old using anabranch.request as later \
                     where old.installation = $1 and old.taken and later.installation = $1 \
                     and later.kind = old.kind and later.target = old.target \
                     and later.scope is not distinct from old.scope and later.id > old.id";
        let release = "update anabranch.request set taken = false where installation = $1 and taken";
        atomically(client, async {
            self.lock_requests(client).await?;
            for statement in [keep, merge, release] {
                client
                    .execute(statement, &[&self.installation])
                    .await
                    .map_err(StateError::query("release the requests"))?;
            }
            Ok(())
        })
        .await
    }

    /// Takes requests; gives those that were still there for the taking.
    pub async fn take_requests(&self, client: &Client, ids: &[i64]) -> Result<Vec<i64>, StateError> {
        let query = "update anabranch.request set taken = true \
                     where installation = $1 and id = any ($2) and not taken returning id";
        let rows = client
            .query(query, &[&self.installation, &ids])
            .await
            .map_err(StateError::query("take requests"))?;
        let mut taken: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        taken.sort_unstable();
        Ok(taken)
    }

    /// Turns requests into a run, in one transaction: mappings and run are saved as a whole, the requests are
    /// gone. A run of a whole table covers what was asked of the same target's parts before.
    pub async fn start_requested(
        &self,
        client: &Client,
        mappings: &[StoredMapping],
        run: Option<&StoredRun>,
        requests: &[i64],
    ) -> Result<(), StateError> {
        let covered = "delete from anabranch.request as part using anabranch.request as whole \
                       where whole.installation = $1 and whole.id = any ($2) and whole.scope is null \
                       and part.installation = $1 and part.scope is not null and not part.taken \
                       and part.id < whole.id \
                       and ((part.kind = whole.kind and part.target = whole.target) \
                       or (whole.kind = 'table' and part.kind = 'mapping' and part.target = any ($3)))";
        atomically(client, async {
            self.lock_requests(client).await?;
            for mapping in mappings {
                self.save_mapping(client, mapping).await?;
            }
            if let Some(run) = run {
                self.write_run(client, run, true).await?;
                if run.scope.is_none() {
                    client
                        .execute(covered, &[&self.installation, &requests, &run.mappings])
                        .await
                        .map_err(StateError::query("drop covered requests"))?;
                }
            }
            self.drop_requests(client, requests).await
        })
        .await
    }

    /// Asks for the same again, for what a mapping has missed of it.
    pub async fn request_again(&self, client: &Client, request: &StoredRequest) -> Result<(), StateError> {
        self.ask(client, &request.target, std::slice::from_ref(&request.scope), request.purge).await.map(drop)
    }

    /// Forgets requests.
    pub async fn drop_requests(&self, client: &Client, ids: &[i64]) -> Result<(), StateError> {
        let query = "delete from anabranch.request where installation = $1 and id = any ($2)";
        client
            .execute(query, &[&self.installation, &ids])
            .await
            .map_err(StateError::query("drop requests"))?;
        Ok(())
    }

    /// Withdraws what was asked of a target and has not begun, with the purges that were due for it. With
    /// nothing under way, a table that is meant as a whole is left marked. What has begun goes on.
    pub async fn withdraw(&self, client: &Client, target: &Target) -> Result<Withdrawn, StateError> {
        atomically(client, async {
            self.lock_requests(client).await?;
            let mut withdrawn = Withdrawn::default();
            self.withdraw_requests(client, target, &mut withdrawn).await?;
            self.withdraw_runs(client, target, &mut withdrawn).await?;
            self.notify(client).await?;
            Ok(withdrawn)
        })
        .await
    }

    async fn withdraw_requests(
        &self,
        client: &Client,
        target: &Target,
        withdrawn: &mut Withdrawn,
    ) -> Result<(), StateError> {
        let meant = "installation = $1 and ((kind = $2 and target = $3) or ($2 = 'table' and kind = 'mapping' \
                     and target in (select name from anabranch.mapping where installation = $1 and entity = $3)))";
        let (kind, name) = target.columns();
        let delete = format!("delete from anabranch.request where {meant} and not taken");
        withdrawn.requests = client
            .execute(&delete, &[&self.installation, &kind, &name])
            .await
            .map_err(StateError::query("withdraw requests"))?;
        let count = format!("select count(*) from anabranch.request where {meant} and taken");
        let row = client
            .query_one(&count, &[&self.installation, &kind, &name])
            .await
            .map_err(StateError::query("count the requests that are taken"))?;
        withdrawn.taken = u64::try_from(row.get::<_, i64>(0)).unwrap_or(0);
        Ok(())
    }

    async fn withdraw_runs(
        &self,
        client: &Client,
        target: &Target,
        withdrawn: &mut Withdrawn,
    ) -> Result<(), StateError> {
        let failed = StateError::query;
        // Mappings before runs, as everybody locks them.
        let (kind, name) = target.columns();
        let lock = "select from anabranch.mapping where installation = $1 \
                    and (($2 = 'mapping' and name = $3) or ($2 = 'table' and entity = $3)) for update";
        client.execute(lock, &[&self.installation, &kind, &name]).await.map_err(failed("lock mappings"))?;
        let scoped = "delete from anabranch.run where installation = $1 and scope is not null \
                      and status = 'queued' \
                      and (($2 = 'table' and entity = $3) or ($2 = 'mapping' and mappings = array[$3::text]))";
        withdrawn.scoped = client
            .execute(scoped, &[&self.installation, &kind, &name])
            .await
            .map_err(failed("withdraw scoped backfills"))?;
        if let Target::Table(_) = target {
            // So that there is a row to mark, and to be held against a leader that writes one meanwhile.
            let mark = "insert into anabranch.run (installation, entity, run, mappings, status) \
                        values ($1, $2, gen_random_uuid()::text, '{}', 'complete') \
                        on conflict (installation, entity) where scope is null do nothing";
            client.execute(mark, &[&self.installation, &name]).await.map_err(failed("mark a table"))?;
        }
        let whole = "select run, entity, status, mappings from anabranch.run \
                     where installation = $1 and scope is null \
                     and (($2 = 'table' and entity = $3) or ($2 = 'mapping' and $3 = any (mappings))) for update";
        let row = client
            .query_opt(whole, &[&self.installation, &kind, &name])
            .await
            .map_err(failed("look for the backfill"))?;
        let Some(row) = row else { return Ok(()) };
        let (run, entity): (&str, &str) = (row.get(0), row.get(1));
        let (status, mappings): (&str, Vec<String>) = (row.get(2), row.get(3));
        let queued = status == RunStatus::Queued.as_str();
        let is_for_it_alone = match target {
            Target::Table(_) => true,
            Target::Mapping(name) => mappings.iter().eq([name]),
        };
        if queued && is_for_it_alone {
            let unpurge =
                "update anabranch.mapping set purge = false where installation = $1 and name = any ($2)";
            client
                .execute(unpurge, &[&self.installation, &mappings])
                .await
                .map_err(failed("withdraw a purge"))?;
            withdrawn.run = true;
        }
        let under_way = status == RunStatus::Running.as_str() || status == RunStatus::Failing.as_str();
        if under_way || (queued && !is_for_it_alone) {
            let (entity, status) = (entity.to_owned(), status.to_owned());
            withdrawn.remains = Some(StoredRunState { entity, status, mappings });
        } else if withdrawn.run || matches!(target, Target::Table(_)) {
            let cancel = "update anabranch.run set status = 'cancelled', updated_at = now() \
                          where installation = $1 and run = $2";
            client.execute(cancel, &[&self.installation, &run]).await.map_err(failed("cancel a backfill"))?;
            withdrawn.marked = true;
        }
        Ok(())
    }

    async fn lock_requests(&self, client: &Client) -> Result<(), StateError> {
        client
            .batch_execute("lock table anabranch.request in share row exclusive mode")
            .await
            .map_err(StateError::query("lock the requests"))
    }
}

fn pending(row: &Row) -> Result<PendingRequest, StateError> {
    let (kind, name): (&str, &str) = (row.get(1), row.get(2));
    let target = match kind {
        "mapping" => Target::Mapping(name.to_owned()),
        "table" => Target::Table(name.parse().map_err(|_| malformed("request.target", name))?),
        _ => return Err(malformed("request.kind", kind)),
    };
    let request =
        StoredRequest { id: row.get(0), target, scope: scope("request.scope", row, 3)?, purge: row.get(4) };
    let age = Duration::try_from_secs_f64(row.get(6)).unwrap_or_default();
    Ok(PendingRequest { request, taken: row.get(5), age })
}
