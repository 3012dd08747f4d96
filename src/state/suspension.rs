//! The row of `anabranch.suspension`: that nobody is to stream, until somebody says so.
//!
//! It is there from a suspension until the first term after the resumption has taken it up, so that neither is
//! forgotten by a crash.

use tokio_postgres::{Client, Row};

use super::{
    StateError, Store,
    store::atomically,
    upgrade::{self, SUSPENSIONS_SINCE},
};

/// An installation is suspended, or was and is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// Whether the slot and the publication stay; else they are dropped, and all tables are built again after.
    pub keep_slot: bool,
    /// Why, in somebody's words.
    pub reason: Option<String>,
    /// Since when, as the server writes it in UTC: `2026-05-01T12:00:00Z`.
    pub since: String,
    /// Whether nobody streams any more, and what is not kept is gone.
    pub settled: bool,
    /// Whether it is over, and only the next term has to take that up.
    pub resumed: bool,
    /// Whether destinations are emptied before they are built again.
    pub purge: bool,
}

impl Suspension {
    /// Whether nobody is to stream now.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.resumed
    }
}

impl Store {
    /// The same before [`Store::upgrade`]: a database of an older release has none.
    pub async fn suspension_before_upgrade(&self, client: &Client) -> Result<Option<Suspension>, StateError> {
        if !upgrade::exists(client).await? || upgrade::version(client).await? < SUSPENSIONS_SINCE {
            return Ok(None);
        }
        self.suspension(client).await
    }

    /// The suspension, where there is one.
    pub async fn suspension(&self, client: &Client) -> Result<Option<Suspension>, StateError> {
        let query = "select keep_slot, reason, \
                     to_char(suspended_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), settled, \
                     resumed_at is not null, purge from anabranch.suspension where installation = $1";
        let row = client
            .query_opt(query, &[&self.installation])
            .await
            .map_err(StateError::query("read the suspension"))?;
        Ok(row.as_ref().map(suspension))
    }

    /// Suspends; says whether it was not before. One that keeps the slot becomes one that does not, where that
    /// is asked for, and never the other way round: what is dropped is gone.
    pub async fn suspend(
        &self,
        client: &Client,
        keep_slot: bool,
        reason: Option<&str>,
    ) -> Result<bool, StateError> {
        let begin = "insert into anabranch.suspension as old (installation, keep_slot, reason) \
                     values ($1, $2, $3) on conflict (installation) do update \
                     set keep_slot = excluded.keep_slot, reason = excluded.reason, suspended_at = now(), \
                     settled = false, resumed_at = null where old.resumed_at is not null";
        let go_further = "update anabranch.suspension set keep_slot = false, settled = false \
                          where installation = $1 and keep_slot and not $2";
        let failed = StateError::query;
        atomically(client, async {
            let begun = client
                .execute(begin, &[&self.installation, &keep_slot, &reason])
                .await
                .map_err(failed("suspend"))?;
            client
                .execute(go_further, &[&self.installation, &keep_slot])
                .await
                .map_err(failed("suspend without the slot"))?;
            self.notify(client).await?;
            Ok(begun > 0)
        })
        .await
    }

    /// Notes that nobody streams, and that what is not kept is gone.
    pub async fn settle_suspension(&self, client: &Client, keep_slot: bool) -> Result<(), StateError> {
        let query = "update anabranch.suspension set settled = true \
                     where installation = $1 and keep_slot = $2 and resumed_at is null";
        atomically(client, async {
            client
                .execute(query, &[&self.installation, &keep_slot])
                .await
                .map_err(StateError::query("note that it is suspended"))?;
            self.notify(client).await
        })
        .await
    }

    /// Ends a suspension; says whether there was one. One that was never settled has changed nothing, and leaves
    /// nothing to take up. A purge that was asked for stays asked for until a term has taken it up, also where it is
    /// asked for after the resumption.
    pub async fn resume(&self, client: &Client, purge: bool) -> Result<bool, StateError> {
        let query = "update anabranch.suspension set resumed_at = coalesce(resumed_at, now()), \
                     purge = purge or $2 where installation = $1";
        let withdraw = "delete from anabranch.suspension \
                        where installation = $1 and resumed_at is null and not settled";
        atomically(client, async {
            let withdrawn = client
                .execute(withdraw, &[&self.installation])
                .await
                .map_err(StateError::query("withdraw a suspension"))?;
            let resumed = client
                .execute(query, &[&self.installation, &purge])
                .await
                .map_err(StateError::query("resume"))?;
            self.notify(client).await?;
            Ok(withdrawn + resumed > 0)
        })
        .await
    }

    /// Forgets a suspension that is over: a term has taken up what follows from it.
    pub async fn forget_suspension(&self, client: &Client) -> Result<(), StateError> {
        let query = "delete from anabranch.suspension where installation = $1 and resumed_at is not null";
        client
            .execute(query, &[&self.installation])
            .await
            .map_err(StateError::query("forget the suspension"))?;
        Ok(())
    }
}

fn suspension(row: &Row) -> Suspension {
    Suspension {
        keep_slot: row.get(0),
        reason: row.get(1),
        since: row.get(2),
        settled: row.get(3),
        resumed: row.get(4),
        purge: row.get(5),
    }
}
