//! Leadership: one node streams an installation, told by an advisory lock of a session of its own.
//!
//! Guarantees that two sessions never lead the same installation, and that the loss of the session ends the
//! leadership at once. Installations are told apart by their exact names.

use std::time::Duration;

use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    connect::{Client, Purpose},
    error::{Error, ErrorKind},
    settings::ConnectSettings,
};

/// The lock of an installation: the first 64 bits of a hash of its name.
#[must_use]
pub fn lock_key(installation: &str) -> i64 {
    let digest = Sha256::digest(format!("anabranch leader {installation}"));
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its server process.
    pub pid: i32,
    /// Program, address and age of its session.
    pub description: String,
}

/// A held lock. Dropping it gives the lock up with the session.
#[derive(Debug)]
pub struct Leadership {
    client: Client,
    pid: i32,
    key: i64,
}

/// Who holds the lock of an installation, asked from any session.
///
/// # Errors
/// What the server reports.
pub async fn holder(client: &Client, installation: &str) -> Result<Option<Holder>, Error> {
    let sql = "select l.pid, format('%s from %s, connected for %s s', coalesce(nullif(a.application_name, ''), '?'),
          coalesce(host(a.client_addr), 'a local socket'),
          coalesce(extract(epoch from clock_timestamp() - a.backend_start)::bigint::text, '?'))
        from pg_locks l left join pg_stat_activity a on a.pid = l.pid
        where l.locktype = 'advisory' and l.granted and l.objsubid = 1
          and l.database = (select oid from pg_database where datname = current_database())
          and (l.classid::bigint << 32 | l.objid::bigint) = $1";
    let row = client.query_opt(sql, &[&lock_key(installation)]).await?;
    row.map(|row| Ok(Holder { pid: row.try_get(0)?, description: row.try_get(1)? })).transpose()
}

impl Leadership {
    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// As [`ConnectSettings::connect`].
    pub async fn try_acquire(
        settings: &ConnectSettings,
        installation: &str,
    ) -> Result<Result<Self, Option<Holder>>, Error> {
        let client = settings.connect(Purpose::Leader).await?;
        match Self::try_lock(&client, installation).await? {
            Some(pid) => Ok(Ok(Self { client, pid, key: lock_key(installation) })),
            None => Ok(Err(holder(&client, installation).await?)),
        }
    }

    /// Takes the lock, waiting for whoever has it. Tries with a pause of 1 to 2 s, since a blocking call
    /// would hang on a dead link; names the holder in the log at the first try and every half minute.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] after `cancel`; as [`ConnectSettings::connect`].
    pub async fn acquire(
        settings: &ConnectSettings,
        installation: &str,
        cancel: &CancellationToken,
    ) -> Result<Self, Error> {
        let client = settings.connect(Purpose::Leader).await?;
        let mut told: Option<std::time::Instant> = None;
        loop {
            if let Some(pid) = Self::try_lock(&client, installation).await? {
                return Ok(Self { client, pid, key: lock_key(installation) });
            }
            if told.is_none_or(|told| told.elapsed() > Duration::from_secs(30)) {
                told = Some(std::time::Instant::now());
                let holder = holder(&client, installation).await?;
                let (pid, description) =
                    holder.map_or((0, "gone meanwhile".to_owned()), |h| (h.pid, h.description));
                tracing::info!(installation, pid, "another node leads ({description}); waiting as standby");
            }
            let pause = Duration::from_millis(rand::rng().random_range(1000..2000));
            tokio::select! {
                () = cancel.cancelled() => {
                    client.close().await;
                    return Err(Error::new(ErrorKind::Cancelled, "the wait for leadership was given up"));
                }
                error = client.ended() => return Err(error.context("waiting for leadership")),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn try_lock(client: &Client, installation: &str) -> Result<Option<i32>, Error> {
        let sql = "select pg_try_advisory_lock($1), pg_backend_pid()";
        let row = client.query_one(sql, &[&lock_key(installation)]).await?;
        Ok(row.try_get::<_, bool>(0)?.then_some(row.try_get(1)?))
    }

    /// The server process that holds the lock.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Resolves when leadership is lost: the session ended, does not answer for 10 s, or is another one
    /// (behind a transaction pooler). Cancel-safe.
    pub async fn lost(&self) -> Error {
        let lost = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let check = tokio::time::timeout(Duration::from_secs(10), self.check());
                match check.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => break error,
                    Err(_) => break Error::new(ErrorKind::Silent, "the session did not answer for 10 s"),
                }
            }
        };
        let error = tokio::select! {
            error = self.client.ended() => error,
            error = lost => error,
        };
        error.context("leadership is lost")
    }

    async fn check(&self) -> Result<(), Error> {
        let sql = "select pg_backend_pid(), exists (
              select from pg_locks where locktype = 'advisory' and granted and objsubid = 1 and pid = pg_backend_pid()
              and database = (select oid from pg_database where datname = current_database())
              and (classid::bigint << 32 | objid::bigint) = $1)";
        let row = self.client.query_one(sql, &[&self.key]).await?;
        if row.try_get::<_, i32>(0)? != self.pid {
            return Err(Error::settings(
                "another server process answers on the lock's session: a connection pooler in transaction mode is in \
                 between; use the server's own host and port",
            ));
        }
        if row.try_get::<_, bool>(1)? { Ok(()) } else { Err(Error::closed("the lock was taken away")) }
    }

    /// Gives the lock up in good order.
    pub async fn release(self) {
        self.client.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c020_installations_are_told_apart_exactly() {
        assert_ne!(lock_key("a_b"), lock_key("axb"));
        // Must never change: two versions of the host must not lead side by side.
        assert_eq!(lock_key("anabranch"), lock_key("anabranch"));
    }
}
