//! Leadership: one process streams an installation, told by an advisory lock on a session of its own.
//!
//! Guarantees that two sessions of one database never lead the same installation, that installations are
//! told apart by their exact names, and that the end of the session, or its silence, ends the leadership at
//! once. A wait is a series of tries, never a call that blocks: it leaves nothing behind when it is dropped,
//! and says whom it waits for. Must never be held over a session that is not a server process's own: where
//! a pooler hands statements to changing server processes, the lock is refused.
//!
//! A leader that was asleep or cut off does not know that it leads no more. Three things keep it from acting: the
//! slot, which one session has; [`fence`], which ends the sessions that it streams and writes its state with; and
//! the [`Lease`], by which it asks the server before it delivers anything.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    connect::{Client, Purpose},
    error::{Error, ErrorKind},
    settings::ConnectSettings,
};
use crate::pipeline::RetryPolicy;

/// Between two tries for the lock.
const PAUSE: RetryPolicy = RetryPolicy::doubling(Duration::from_millis(500), Duration::from_secs(5));
/// Between two words about a wait that goes on.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// Between two looks at a lock that is held.
const CHECK_EVERY: Duration = Duration::from_secs(3);
/// How long a leader may act without the server's word that it leads. More than two looks, so that one slow answer
/// stops nothing.
const LEASE: Duration = Duration::from_secs(8);
/// How soon is looked whether a session that was ended has gone.
const FENCE_AGAIN: Duration = Duration::from_millis(100);
/// How long the session may take for an answer of one row.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The lock of an installation: the first 64 bits, big-endian, of the SHA-256 of `anabranch/leader/` and the
/// name. Must never change, or two versions of the program would lead side by side.
#[must_use]
pub fn lock_key(installation: &str) -> i64 {
    let digest = Sha256::digest(format!("anabranch/leader/{installation}"));
    digest.iter().take(8).fold(0, |key: i64, byte| key << 8 | i64::from(*byte))
}

/// Who has an installation's lock, as far as the server tells our role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its server process.
    pub pid: i32,
    /// What it calls itself.
    pub application_name: Option<String>,
    /// Where it came from; none for a unix socket, and where we may not know.
    pub client_address: Option<String>,
    /// How long its session has been open; none where we may not know.
    pub age: Option<Duration>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "server process {}", self.pid)?;
        if let Some(name) = &self.application_name {
            write!(f, " of {name}")?;
        }
        if let Some(address) = &self.client_address {
            write!(f, " from {address}")?;
        }
        match self.age {
            Some(age) => write!(f, ", connected for {} s", age.as_secs()),
            None => Ok(()),
        }
    }
}

/// The held lock. Dropping it ends the session, and with it the lock.
#[derive(Debug)]
pub struct Leadership {
    client: Client,
    installation: String,
    pid: i32,
    /// When the server was last asked and said that it leads.
    confirmed: watch::Sender<Instant>,
}

/// The right to act as the leader, for a while at a time.
#[derive(Clone, Debug)]
pub struct Lease {
    confirmed: watch::Receiver<Instant>,
    /// Until then a former leader may still act.
    not_before: Instant,
}

impl Lease {
    /// Resolves at once where the server has said within the last 8 s that this process leads, else as soon as it
    /// says so again; never, once it leads no more.
    ///
    /// Time counts while the process is stopped (the monotonic clock); not while the whole machine sleeps.
    pub async fn hold(&self) {
        if Instant::now() < self.not_before {
            sleep_until(self.not_before).await;
        }
        let mut confirmed = self.confirmed.clone();
        while confirmed.borrow_and_update().elapsed() >= LEASE {
            if confirmed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Leadership {
    /// [`acquire_telling`](Self::acquire_telling) the log alone, until `cancel` gives the wait up.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] after `cancel`, and those of `acquire_telling`.
    pub async fn acquire(
        settings: &ConnectSettings,
        installation: &str,
        cancel: &CancellationToken,
    ) -> Result<Self, Error> {
        let taken = cancel.run_until_cancelled(Self::acquire_telling(settings, installation, |_| {})).await;
        taken.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Cancelled,
                format!("the wait for the lead of `{installation}` was given up"),
            ))
        })
    }

    /// Takes the lock of an installation, waiting for whoever has it: tries again after 0.5 s, growing to 5 s,
    /// with jitter. Says whom it waits for, in the log and to `on_wait`, at the first try and then once a
    /// minute; the holder is none when it has gone in between.
    ///
    /// Cancel-safe: dropping the future closes the session.
    ///
    /// # Errors
    /// As [`ConnectSettings::connect`]; the session's end while waiting; [`ErrorKind::Silent`] when it does
    /// not answer; [`ErrorKind::Settings`] when a pooler is in between that does not keep sessions.
    pub async fn acquire_telling(
        settings: &ConnectSettings,
        installation: &str,
        mut on_wait: impl FnMut(Option<&Holder>),
    ) -> Result<Self, Error> {
        let client = settings.connect(Purpose::Leader).await?;
        let what = || format!("taking the leader's lock of `{installation}`");
        answer(own_process(&client)).await.map_err(|error| error.context(what()))?;
        let mut tries = 0;
        let mut told: Option<Instant> = None;
        loop {
            if let Some(pid) = answer(try_lock(&client, installation)).await.map_err(|e| e.context(what()))? {
                return Self::confirm(client, installation, pid).await.map_err(|error| error.context(what()));
            }
            if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                told = Some(Instant::now());
                let holder = answer(holder(&client, installation)).await.map_err(|e| e.context(what()))?;
                tell(installation, holder.as_ref());
                on_wait(holder.as_ref());
            }
            // Half of it for certain, so that two candidates never try at full speed.
            let random = 0.5 + rand::random::<f64>() / 2.0;
            tries += 1;
            tokio::select! {
                error = client.ended() => return Err(error.context(what())),
                () = sleep(PAUSE.delay(tries, random, None)) => {}
            }
        }
    }

    /// Looks, in a statement of its own, whether the session still has the lock that it took.
    async fn confirm(client: Client, installation: &str, pid: i32) -> Result<Self, Error> {
        let (confirmed, _) = watch::channel(Instant::now());
        let leader = Self { client, installation: installation.to_owned(), pid, confirmed };
        match answer(leader.check()).await {
            Ok(()) => Ok(leader),
            Err(error) => {
                // What a pooler's server process holds now, nobody else gives up; it may or may not be reached.
                leader.release().await;
                Err(error)
            }
        }
    }

    /// The server process that holds the lock.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Resolves when the leadership is over: the session has ended, does not answer within 10 s (asked every
    /// 3 s, so that a link of which only one half is left is noticed), or does not have the lock any more.
    ///
    /// Cancel-safe. To be held as one future for as long as the lead matters: made anew, it notices silence
    /// later.
    pub async fn lost(&self) -> Error {
        let error = tokio::select! {
            error = self.client.ended() => error,
            error = self.watch() => error,
        };
        error.context(format!("the leadership of `{}` is lost", self.installation))
    }

    async fn watch(&self) -> Error {
        loop {
            sleep(CHECK_EVERY).await;
            let asked = Instant::now();
            if let Err(error) = answer(self.check()).await {
                return error;
            }
            self.confirmed.send_replace(asked);
        }
    }

    /// What the leader's deliveries are to ask. Where [`fence`] had something to end, a former leader may deliver
    /// until its own lease has run out, and this one begins then: so the newer document stays.
    #[must_use]
    pub fn lease(&self, fenced: bool) -> Lease {
        let wait = if fenced { LEASE } else { Duration::ZERO };
        Lease { confirmed: self.confirmed.subscribe(), not_before: Instant::now() + wait }
    }

    async fn check(&self) -> Result<(), Error> {
        let sql = format!(
            "select pg_backend_pid(), exists (select from pg_locks l where {} and l.pid = pg_backend_pid())",
            held(&self.installation)
        );
        let row = one_row(&self.client, &sql).await?;
        if number::<i32>(&row, 0)? != self.pid {
            return Err(pooled());
        }
        if row.get(1).and_then(Option::as_deref) == Some("t") {
            return Ok(());
        }
        Err(Error::closed("its session does not hold the lock any more, although it goes on"))
    }

    /// Gives the lock up and closes the session, so that the next in line need not wait for the server to
    /// notice. Where the server cannot be told any more, the end of the session gives the lock up.
    pub async fn release(self) {
        let sql = format!("select pg_advisory_unlock({})", lock_key(&self.installation));
        if let Err(error) = answer(one_row(&self.client, &sql)).await {
            tracing::debug!(installation = self.installation, %error, "could not unlock; closing the session does");
        }
        self.client.close().await;
    }
}

/// Ends what a leader before this one may still have, though it leads no more: its walsender, and the session that
/// it writes its state with, which are told by a lock of their own that `state` takes. Afterwards nothing that the
/// former leader was about to write can be written, and the slot is free. Says whether there was anything to end: a
/// former leader then may still be about to deliver, for as long as its [`Lease`] lasts.
///
/// # Errors
/// [`ErrorKind::Closed`] where `leadership` is over; the server refuses to end a session (they are of another role,
/// say), or does not answer.
pub async fn fence(state: &Client, leadership: &Leadership) -> Result<bool, Error> {
    let mut ended = false;
    while answer(end_former(state, leadership)).await.map_err(|error| {
        error.context(format!("ending what a former leader of `{}` has", leadership.installation))
    })? {
        ended = true;
        sleep(FENCE_AGAIN).await;
    }
    Ok(ended)
}

/// Ends what there is; nothing is left once the slot is free and the lock of the state is taken. Says whether there
/// was anything.
async fn end_former(state: &Client, leadership: &Leadership) -> Result<bool, Error> {
    let installation = leadership.installation.as_str();
    let writing = format!("{installation}/state");
    leads(state, leadership).await?;
    if !end_walsender(state, installation).await? && try_lock(state, &writing).await?.is_some() {
        return Ok(false);
    }
    if let Some(former) = holder(state, &writing).await? {
        tracing::warn!(installation, pid = former.pid, "ends the session of a former leader");
        state.execute("select pg_terminate_backend($1)", &[&former.pid]).await?;
    }
    Ok(true)
}

/// Whether it does still: who was asleep must not end what another leader has.
async fn leads(client: &Client, leadership: &Leadership) -> Result<(), Error> {
    match holder(client, &leadership.installation).await? {
        Some(holder) if holder.pid == leadership.pid => Ok(()),
        _ => Err(Error::closed("the leadership is over")),
    }
}

/// Ends a walsender of ours on the slot, whatever the host calls itself before the purpose; says whether there is
/// one. Another client is left alone.
async fn end_walsender(client: &Client, installation: &str) -> Result<bool, Error> {
    let sql = "select s.active_pid, pg_terminate_backend(s.active_pid) from pg_replication_slots as s \
               join pg_stat_activity as a on a.pid = s.active_pid \
               where s.slot_name = $1 and s.database = current_database() \
               and a.application_name like '%' || $2";
    let suffix = format!("/{}", Purpose::Stream.as_str());
    let rows = client.query(sql, &[&installation, &suffix]).await?;
    for row in &rows {
        tracing::warn!(installation, pid = row.get::<_, i32>(0), "ends the walsender of a former leader");
    }
    Ok(!rows.is_empty())
}

/// Who has the lock of an installation in this database, asked from any session.
///
/// # Errors
/// What the server reports.
pub async fn holder(client: &Client, installation: &str) -> Result<Option<Holder>, Error> {
    let sql = format!(
        "select l.pid, nullif(a.application_name, ''), host(a.client_addr),
           greatest(extract(epoch from clock_timestamp() - a.backend_start)::bigint, 0)
         from pg_locks l left join pg_stat_activity a on a.pid = l.pid where {} limit 1",
        held(installation)
    );
    let Some(row) = client.text_results(&sql).await?.into_iter().flatten().next() else { return Ok(None) };
    let text = |at: usize| row.get(at).cloned().flatten();
    Ok(Some(Holder {
        pid: number(&row, 0)?,
        application_name: text(1),
        client_address: text(2),
        age: text(3).and_then(|text| text.parse().ok()).map(Duration::from_secs),
    }))
}

/// The condition on `pg_locks l` for the granted lock (Postgres documentation, "pg_locks": a `bigint` key has
/// its high half in `classid`, its low half in `objid`, and `objsubid` 1).
fn held(installation: &str) -> String {
    format!(
        "l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.mode = 'ExclusiveLock'
           and l.database = (select oid from pg_database where datname = current_database())
           and (l.classid::bigint << 32 | l.objid::bigint) = {}",
        lock_key(installation)
    )
}

async fn try_lock(client: &Client, installation: &str) -> Result<Option<i32>, Error> {
    let sql = format!("select pg_try_advisory_lock({}), pg_backend_pid()", lock_key(installation));
    let row = one_row(client, &sql).await?;
    if row.first().and_then(Option::as_deref) == Some("t") { number(&row, 1).map(Some) } else { Ok(None) }
}

/// Refuses, before anything is locked, a session whose statements reach changing server processes, or whose
/// settings at the start were dropped on the way: both mean a pooler.
async fn own_process(client: &Client) -> Result<(), Error> {
    let sql =
        "select pg_backend_pid(), current_setting('IntervalStyle'), current_setting('statement_timeout')";
    let first = one_row(client, sql).await?;
    let text = |at: usize| first.get(at).and_then(Option::as_deref);
    let pinned = text(1) == Some("iso_8601") && text(2) == Some("0");
    if pinned && first == one_row(client, sql).await? { Ok(()) } else { Err(pooled()) }
}

fn pooled() -> Error {
    Error::settings(
        "the session does not keep its server process from one statement to the next: a connection pooler is in \
         between, which the lock and the replication slot cannot work through; give the connection string the \
         server's own host and port",
    )
}

fn tell(installation: &str, holder: Option<&Holder>) {
    match holder {
        Some(holder) => tracing::info!(
            installation,
            pid = holder.pid,
            application_name = holder.application_name.as_deref().unwrap_or_default(),
            age_seconds = holder.age.map(|age| age.as_secs()),
            "waiting for the lead, which {holder} has; should that be a session that nobody owns any more, end \
             it: select pg_terminate_backend({})",
            holder.pid,
        ),
        None => tracing::info!(installation, "waiting for the lead, which has just been given up"),
    }
}

/// An answer, or the news that there is none.
async fn answer<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(|_| {
        let text = format!("the session did not answer within {} s", ANSWER_WITHIN.as_secs());
        Err(Error::new(ErrorKind::Silent, text))
    })
}

async fn one_row(client: &Client, sql: &str) -> Result<Vec<Option<String>>, Error> {
    let row = client.text_results(sql).await?.into_iter().flatten().next();
    row.ok_or_else(|| Error::protocol("a query for one row gave none"))
}

fn number<T: std::str::FromStr>(row: &[Option<String>], at: usize) -> Result<T, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Error::protocol("a number was expected of the server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c020_installations_are_told_apart_exactly() {
        assert_ne!(lock_key("a_b"), lock_key("axb"));
        assert_ne!(lock_key("a"), lock_key("A"));
    }

    #[test]
    fn the_key_stays_what_it_is() {
        // printf anabranch/leader/shop | sha256sum | head -c 16
        assert_eq!(lock_key("shop").cast_unsigned(), 0xce93_6ca6_2b56_d5fc);
    }
}
