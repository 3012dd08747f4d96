//! Messages into the WAL, and what a fresh snapshot sees: the two ends of a backfill window.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{connect::Client, error::Error, quote};
use crate::model::{Lsn, Snapshot, Xid};

/// How long a commit is in limbo where no standby is waited for is less than the first; then it is asked less often.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// The prefix of our logical messages. Their content says whose they are.
pub const MESSAGE_PREFIX: &str = "anabranch";

/// When messages reach the disk, and with that the stream. Never waits for a standby, which may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Before the call returns (`synchronous_commit = local`).
    Now,
    /// With what is flushed next, by the WAL writer at the latest (`off`): for what says nothing before
    /// something later is there, too.
    WithTheNext,
}

/// What is seen of a transaction that has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All of it.
    Seen,
    /// Nothing yet, and it has changed no more of the table than rows.
    Unaltered,
    /// Nothing yet, and it may have altered the table.
    Unseen,
}

impl Client {
    /// Commits logical messages in one transaction, in order, and gives the position of each.
    ///
    /// # Errors
    /// What the server reports; nothing was written then.
    pub async fn emit_messages<T: AsRef<[u8]>>(
        &self,
        contents: &[T],
        flush: Flush,
    ) -> Result<Vec<Lsn>, Error> {
        if contents.is_empty() {
            return Ok(Vec::new());
        }
        // Several statements in one text are one transaction, which an error rolls back.
        let commit = match flush {
            Flush::Now => "local",
            Flush::WithTheNext => "off",
        };
        let mut sql = format!("set local synchronous_commit = {commit}");
        for content in contents {
            sql.push_str("; select pg_logical_emit_message(true, '");
            sql.push_str(MESSAGE_PREFIX);
            sql.push_str("', ");
            sql.push_str(&quote::bytea(content.as_ref()));
            sql.push(')');
        }
        let rows = self.text_results(&sql).await?.into_iter().flatten();
        rows.map(|row| {
            let text = row.into_iter().flatten().next();
            text.and_then(|text| text.parse().ok())
                .ok_or_else(|| Error::protocol("the answer to pg_logical_emit_message is not a WAL position"))
        })
        .collect()
    }

    /// What a transaction that begins now would see.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn current_snapshot(&self) -> Result<Snapshot, Error> {
        let results = self.text_results("select pg_current_snapshot()").await?;
        parse_snapshot(results.into_iter().flatten().flatten().flatten().next().as_deref())
    }

    /// What a transaction that begins now would see of `xid`, whose commit the stream has shown: where it has, as far as its
    /// locks tell, altered the table of this oid, waits for up to `limit` until it is seen; without a table in any case.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn sight_of(&self, xid: Xid, table: Option<u32>, limit: Duration) -> Result<Sight, Error> {
        let until = Instant::now() + limit;
        let mut pause = FIRST_LOOK;
        // Locks are let go after a transaction became visible (`CommitTransaction` in access/transam/xact.c): one that is
        // not seen after it had none has none. Each statement has a snapshot of its own.
        let alters = table.map_or_else(
            || "true".to_owned(),
            |table| {
                format!(
                    "exists (
                       select from pg_locks l join pg_locks t on t.virtualtransaction = l.virtualtransaction
                         and t.pid is not distinct from l.pid
                       where t.locktype = 'transactionid' and t.transactionid = '{xid}'::xid and t.granted
                         and l.locktype = 'relation' and l.relation = {table} and l.granted
                         and l.database = (select oid from pg_database where datname = current_database())
                         and l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock'))"
                )
            },
        );
        let sql = format!("select {alters}; select pg_current_snapshot()");
        loop {
            let mut answers = self.text_results(&sql).await?.into_iter();
            let mut value = || answers.next()?.into_iter().flatten().flatten().next();
            let alters = value().as_deref() == Some("t");
            if parse_snapshot(value().as_deref())?.sees(xid) {
                return Ok(Sight::Seen);
            }
            if !alters {
                return Ok(Sight::Unaltered);
            }
            if Instant::now() >= until {
                return Ok(Sight::Unseen);
            }
            sleep(pause).await;
            pause = LAST_LOOK.min(2 * pause);
        }
    }
}

pub(super) fn parse_snapshot(text: Option<&str>) -> Result<Snapshot, Error> {
    let text = text.ok_or_else(|| Error::protocol("pg_current_snapshot() gave no row"))?;
    text.parse().map_err(|error| Error::protocol(format!("{error}")))
}
