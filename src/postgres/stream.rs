//! The replication client: commands of a walsender, and the stream of one slot.
//!
//! Guarantees that reads are cancel-safe and give whole messages of one buffer without copying them; that
//! status replies go on while nobody reads (see [`StatusHandle`]); that a silent server is an error. Never
//! acknowledges anything by itself: positions come from whoever holds the [`StatusHandle`].

use std::time::Duration;

use super::{
    connect::{Purpose, major_version},
    error::{Error, ErrorKind},
    frames::Frames,
    quote,
    settings::{ConnectSettings, Host},
    status::{Replies, StatusHandle},
    wire::{TextRow, Wire, unexpected},
};
use crate::model::Lsn;

/// Who the server is (`IDENTIFY_SYSTEM`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// Identifies the cluster and everything restored from it.
    pub system_identifier: String,
    /// Rises with every promotion.
    pub timeline: i32,
    /// Where the WAL is flushed to.
    pub flushed: Lsn,
}

/// A slot that was just made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// Every transaction that commits from here on will be streamed, whole.
    pub consistent_point: Lsn,
}

/// How to stream; [`StreamOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// The slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Where to begin: the end of the last confirmed commit, or 0 for the slot's own position.
    pub start: Lsn,
    /// pgoutput's protocol version.
    pub protocol: u32,
    /// Whether the server sends large transactions before they commit.
    pub streaming: bool,
    /// Time between two status replies; a third of the server's `wal_sender_timeout` where that is less.
    pub status_interval: Duration,
    /// Nothing received for longer than this is a dead link.
    pub silence_limit: Duration,
}

impl StreamOptions {
    /// Protocol 2, committed transactions only, a reply each second, silence of a minute is an error.
    pub fn new(slot: impl Into<String>, publication: impl Into<String>, start: Lsn) -> Self {
        Self {
            slot: slot.into(),
            publication: publication.into(),
            start,
            protocol: 2,
            streaming: false,
            status_interval: Duration::from_secs(1),
            silence_limit: Duration::from_secs(60),
        }
    }

    /// Also transactions that are still open, once they are large (`logical_decoding_work_mem`): with the newest
    /// protocol that a server of this major version has.
    #[must_use]
    pub fn streaming(self, server_version: u32) -> Self {
        Self { streaming: true, protocol: if server_version >= 16 { 4 } else { 2 }, ..self }
    }
}

/// A walsender that waits for commands.
pub struct ReplicationClient {
    wire: Wire,
    settings: ConnectSettings,
    host: Host,
}

impl std::fmt::Debug for ReplicationClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicationClient").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ConnectSettings {
    /// Opens a walsender of the database.
    ///
    /// # Errors
    /// As [`ConnectSettings::connect`]; also when the role may not replicate.
    pub async fn connect_replication(&self) -> Result<ReplicationClient, Error> {
        let (wire, host) = self.connect_wire(Purpose::Stream, true).await?;
        Ok(ReplicationClient { wire, settings: self.clone(), host })
    }
}

impl ReplicationClient {
    /// The server's major version.
    #[must_use]
    pub fn server_version(&self) -> u32 {
        self.wire.parameters.get("server_version").map_or(0, |text| major_version(text))
    }

    /// The server process that serves this connection.
    #[must_use]
    pub fn process_id(&self) -> i32 {
        self.wire.process_id
    }

    /// Asks who the server is.
    ///
    /// # Errors
    /// A lost connection, or an answer that makes no sense.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, Error> {
        let row = self.wire.query_row("IDENTIFY_SYSTEM").await?;
        let text = |at: usize| column(&row, at, "IDENTIFY_SYSTEM");
        Ok(SystemIdentity {
            system_identifier: text(0)?.to_owned(),
            timeline: text(1)?.parse().map_err(|_| Error::protocol("the timeline is not a number"))?,
            flushed: parse_lsn(text(2)?)?,
        })
    }

    /// Where timelines before this one ended, the latest last (`TIMELINE_HISTORY`); none for the first.
    ///
    /// # Errors
    /// A lost connection, an answer that makes no sense, or a file that is not there any more.
    pub async fn timeline_ends(&mut self, timeline: i32) -> Result<Vec<(i32, Lsn)>, Error> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let row = self.wire.query_row(&format!("TIMELINE_HISTORY {timeline}")).await?;
        parse_history(column(&row, 1, "TIMELINE_HISTORY")?)
    }

    /// Whether a standby is to keep a copy of the slot, which nobody may have now; from Postgres 17 on.
    ///
    /// # Errors
    /// As [`drop_slot`](Self::drop_slot).
    pub async fn set_failover(&mut self, name: &str, failover: bool) -> Result<(), Error> {
        let sql = format!("ALTER_REPLICATION_SLOT {} (FAILOVER {failover})", quote::identifier(name));
        self.wire.query(&sql).await.map(drop).map_err(|error| slot_error(error, name))
    }

    /// Where the slot stands, by this very session; none where there is no such slot, or it is not finished.
    ///
    /// # Errors
    /// A lost connection, or an answer that makes no sense.
    pub async fn slot_position(&mut self, name: &str) -> Result<Option<Lsn>, Error> {
        let sql = format!(
            "select confirmed_flush_lsn::text from pg_catalog.pg_replication_slots where slot_name = {}",
            quote::literal(name)
        );
        let rows = self.wire.query(&sql).await?;
        let position = rows.into_iter().flatten().next().and_then(|row| row.into_iter().next().flatten());
        position.map(|text| parse_lsn(&text)).transpose()
    }

    /// Creates a logical slot for pgoutput; waits until every transaction that now writes has ended.
    /// `slot::create` does this with a watch over what it waits for.
    pub(super) async fn create_slot(&mut self, name: &str, failover: bool) -> Result<CreatedSlot, Error> {
        let options = if failover && self.server_version() >= 17 {
            "(SNAPSHOT 'nothing', FAILOVER true)"
        } else {
            "NOEXPORT_SNAPSHOT"
        };
        let sql = format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput {options}", quote::identifier(name));
        let row = self.wire.query_row(&sql).await.map_err(|error| slot_error(error, name))?;
        let consistent_point = parse_lsn(column(&row, 1, "CREATE_REPLICATION_SLOT")?)?;
        Ok(CreatedSlot { name: name.to_owned(), consistent_point })
    }

    /// Cancels the command that this walsender is at, from another connection.
    pub(super) fn canceller(&self) -> (ConnectSettings, Host, (i32, i32)) {
        (self.settings.clone(), self.host.clone(), self.wire.cancel_key())
    }

    /// Removes a slot.
    ///
    /// # Errors
    /// [`ErrorKind::SlotInUse`] while another session has it, [`ErrorKind::SlotMissing`] when there is none.
    pub async fn drop_slot(&mut self, name: &str) -> Result<(), Error> {
        let sql = format!("DROP_REPLICATION_SLOT {}", quote::identifier(name));
        self.wire.query(&sql).await.map(drop).map_err(|error| slot_error(error, name))
    }

    /// Begins to stream a slot.
    ///
    /// # Errors
    /// [`ErrorKind::SlotInUse`] (retryable), [`ErrorKind::SlotLost`], [`ErrorKind::SlotMissing`].
    pub async fn start(mut self, options: &StreamOptions) -> Result<ReplicationStream, Error> {
        let timeout = wal_sender_timeout(&mut self.wire).await?;
        let interval =
            timeout.map_or(options.status_interval, |limit| options.status_interval.min(limit / 3));
        let mut sql = format!(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '{}', publication_names {}, messages 'true'",
            quote::identifier(&options.slot),
            quote::lsn(options.start),
            options.protocol,
            quote::literal(&quote::identifier(&options.publication)),
        );
        if options.streaming {
            sql.push_str(", streaming 'on'");
        }
        sql.push(')');
        self.wire.send_query(&sql).await?;
        loop {
            match self.wire.receive().await? {
                (b'W', _) => break,
                (b'E', body) => return Err(slot_error(Error::from_fields(body), &options.slot)),
                (b'N' | b'S', _) => {}
                (tag, _) => return Err(unexpected(tag, "start of replication")),
            }
        }
        let status = StatusHandle::new(options.start);
        let Wire { read, write, frames, .. } = self.wire;
        let replies = Replies::start(write, status.clone(), interval, options.silence_limit / 3);
        Ok(ReplicationStream {
            read,
            frames,
            status,
            replies,
            slot: options.slot.clone(),
            silence_limit: options.silence_limit,
            server_done: false,
        })
    }

    /// Ends the session.
    pub async fn close(self) {
        self.wire.terminate().await;
    }
}

/// None when the server never gives up on a silent client.
async fn wal_sender_timeout(wire: &mut Wire) -> Result<Option<Duration>, Error> {
    // `show` gives `1min`; the catalogue has milliseconds. A walsender takes SQL too.
    let row = wire
        .query_row("select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'")
        .await?;
    let millis = column(&row, 0, "wal_sender_timeout")?.parse().unwrap_or(0);
    Ok(Some(Duration::from_millis(millis)).filter(|limit| !limit.is_zero()))
}

fn column<'a>(row: &'a TextRow, at: usize, what: &str) -> Result<&'a str, Error> {
    let text = row.get(at).and_then(Option::as_deref);
    text.ok_or_else(|| Error::protocol(format!("the answer to {what} has no column {}", at + 1)))
}

fn parse_lsn(text: &str) -> Result<Lsn, Error> {
    text.parse().map_err(|error| Error::protocol(format!("{error}")))
}

/// Lines of a timeline, where it ended, and why; comments and empty lines.
fn parse_history(text: &str) -> Result<Vec<(i32, Lsn)>, Error> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let timeline = words.next().and_then(|word| word.parse().ok());
            let end = words.next().and_then(|word| word.parse().ok());
            timeline.zip(end).ok_or_else(|| Error::protocol("the history of the timeline cannot be read"))
        })
        .collect()
}

/// The state of a slot is told by SQLSTATE 55000 and 42704, which other things share: only here they mean it, and by
/// the function that reports it, for the message is in the server's language.
fn slot_error(error: Error, name: &str) -> Error {
    let acquiring = error.routine() == Some("ReplicationSlotAcquire");
    // Who looks whether the slot can be read: up to 15; from 18 on. In between it is a function that reports more than
    // that, and where its message is in another language the next term learns of it from the catalogue.
    let reading = error.routine() == Some("StartLogicalReplication");
    let kind = match error.sqlstate() {
        Some("55006") => ErrorKind::SlotInUse,
        // Others of this state are about a server that is not set up, or a slot of somebody else.
        Some("55000") if acquiring || reading || says_lost(&error.to_string()) => ErrorKind::SlotLost,
        Some("42704") if acquiring || says_missing(&error.to_string()) => ErrorKind::SlotMissing,
        _ => error.kind(),
    };
    error.with_kind(kind).context(format!("replication slot `{name}`"))
}

fn says_missing(message: &str) -> bool {
    message.contains("replication slot \"")
}

/// In the words of Postgres 14 to 18.
fn says_lost(message: &str) -> bool {
    message.contains("can no longer") || message.contains("cannot read from logical replication slot")
}

/// The stream of a slot.
pub struct ReplicationStream {
    read: tokio::io::ReadHalf<super::transport::Transport>,
    frames: Frames,
    status: StatusHandle,
    replies: Replies,
    slot: String,
    silence_limit: Duration,
    server_done: bool,
}

impl std::fmt::Debug for ReplicationStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicationStream").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl ReplicationStream {
    /// The next message that has already arrived: the content of one CopyData, which is XLogData or a
    /// keepalive (`pgoutput::frame` reads it). None when [`fill`](Self::fill) must be awaited first. A
    /// keepalive that asks for a reply is answered by itself.
    ///
    /// # Errors
    /// What the server reported, or the end of the stream.
    pub fn next_buffered(&mut self) -> Result<Option<&[u8]>, Error> {
        // Everything but data is rare: it is taken out first, so that the borrow below is the only one.
        while let Some(tag) = self.frames.peek()? {
            if tag == b'd' {
                break;
            }
            self.other_frame()?;
        }
        let Some((_, payload)) = self.frames.next()? else { return Ok(None) };
        // Keepalive: 'k', end of WAL (8), time (8), whether a reply is wanted (1).
        if payload.first() == Some(&b'k') && payload.get(17) == Some(&1) {
            self.status.flush_now();
        }
        Ok(Some(payload))
    }

    fn other_frame(&mut self) -> Result<(), Error> {
        match self.frames.next()? {
            Some((b'E', body)) => Err(slot_error(Error::from_fields(body), &self.slot)),
            Some((b'N' | b'S', _)) | None => Ok(()),
            Some((b'c' | b'C' | b'Z', _)) => {
                self.server_done = true;
                Err(Error::closed("the server ended the stream; it shuts down, or was told to"))
            }
            Some((tag, _)) => Err(unexpected(tag, "replication stream")),
        }
    }

    /// Whether [`next_buffered`](Self::next_buffered) has something to give, without taking it.
    #[must_use]
    pub fn has_buffered(&self) -> bool {
        // A malformed frame is something to give, too: the error.
        self.frames.ready().unwrap_or(true)
    }

    /// Waits until more has arrived. Cancel-safe.
    ///
    /// # Errors
    /// The end of the connection, or [`ErrorKind::Silent`] after the limit.
    pub async fn fill(&mut self) -> Result<(), Error> {
        let read = self.frames.fill(&mut self.read);
        let Ok(done) = tokio::time::timeout(self.silence_limit, read).await else {
            return Err(Error::new(
                ErrorKind::Silent,
                format!(
                    "Postgres has sent nothing for {} s, although it was asked for a sign of life: the link is dead",
                    self.silence_limit.as_secs()
                ),
            ));
        };
        self.status.note_received();
        done
    }

    /// The positions that replies report.
    #[must_use]
    pub fn status(&self) -> StatusHandle {
        self.status.clone()
    }

    /// Sends the final status, ends the stream and waits, up to `limit`, until the server has given the slot
    /// free. What still arrives is thrown away: it was not confirmed and comes again.
    ///
    /// # Errors
    /// The connection broke before; the slot is then free when the server notices.
    pub async fn close(self, limit: Duration) -> Result<(), Error> {
        let Self { mut read, mut frames, replies, mut server_done, .. } = self;
        let end = async {
            replies.finish().await?;
            loop {
                while let Some((tag, body)) = frames.next()? {
                    match tag {
                        b'E' => return Err(Error::from_fields(body)),
                        b'Z' => return Ok(()),
                        b'c' => server_done = true,
                        _ => {}
                    }
                }
                match frames.fill(&mut read).await {
                    Err(_) if server_done => return Ok(()),
                    filled => filled?,
                }
            }
        };
        tokio::time::timeout(limit, end).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Silent,
                "the server did not end the stream in time; the slot may stay in use for a while",
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_of_timelines_is_read() {
        let text = "1\t0/3000148\tno recovery target specified\n\n# by hand\n2\t1/A0\tbefore 2024-01-31\n";
        assert_eq!(parse_history(text), Ok(vec![(1, Lsn(0x300_0148)), (2, Lsn(0x1_0000_00A0))]));
        assert!(parse_history("1").is_err());
    }

    #[test]
    fn c058_a_slot_that_is_given_up_is_told_from_one_that_cannot_be_used() {
        let kind = |message: &str| slot_error(Error::server("55000", message, None), "shop").kind();
        assert_eq!(kind("can no longer get changes from replication slot \"shop\""), ErrorKind::SlotLost);
        assert_eq!(kind("cannot read from logical replication slot \"shop\""), ErrorKind::SlotLost);
        assert_eq!(kind("can no longer access replication slot \"shop\""), ErrorKind::SlotLost);
        assert_ne!(kind("logical decoding requires wal_level >= logical"), ErrorKind::SlotLost);
        assert_ne!(kind("replication slot \"shop\" was not created in this database"), ErrorKind::SlotLost);
    }

    /// In the words of Postgres 15 with `lc_messages` at `de_DE`, and as 18 would be.
    #[test]
    fn c058_the_state_of_a_slot_is_known_in_every_language() {
        let kind = |code: &str, message: &str, routine: &str| {
            slot_error(Error::server(code, message, None).by_routine(Some(routine)), "shop").kind()
        };
        let lost = "kann nicht aus logischem Replikations-Slot »shop« lesen";
        assert_eq!(kind("55000", lost, "StartLogicalReplication"), ErrorKind::SlotLost);
        assert_eq!(kind("55000", lost, "ReplicationSlotAcquire"), ErrorKind::SlotLost);
        let missing = "Replikations-Slot »shop« existiert nicht";
        assert_eq!(kind("42704", missing, "ReplicationSlotAcquire"), ErrorKind::SlotMissing);
        let publication = "Publikation »shop« existiert nicht";
        assert_eq!(kind("42704", publication, "get_publication_oid"), ErrorKind::Server);
        let elsewhere = "Replikations-Slot »shop« wurde nicht in dieser Datenbank erzeugt";
        assert_eq!(kind("55000", elsewhere, "CreateDecodingContext"), ErrorKind::Server);
    }
}
