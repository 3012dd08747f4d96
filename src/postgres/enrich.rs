//! Read-only queries that somebody else wrote, in a snapshot that is told before the first of them.
//!
//! Guarantees: no table is written (the transaction only reads, and the server sees to it), one statement is one
//! statement, and what it leaves in the session is gone before the next; every statement has its time limit, whatever
//! the one before it set; rows and bytes are bounded before they are held; text is the same as the stream's; and a
//! session that is [abandoned](QuerySession::abandon) leaves no server process at work.
//! Must never: hold a transaction longer than one use, or go on with a session whose state is not known.

use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::{IsNull, message::frontend};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    connect::Purpose,
    error::{Error, ErrorKind},
    marks::parse_snapshot,
    settings::{ConnectSettings, Host},
    types::Types,
    wire::{Wire, cells, encode, unexpected},
};
use crate::model::{QueryRows, QueryStatement, Snapshot, ValueType};

/// Whatever ends the transaction that queries run in.
const READ_ONLY: &str = "set default_transaction_read_only = on";
/// The prepared statement that sets the limits; it runs before whatever the server is asked to do, since what it did
/// before may have changed them.
const LIMITS: &str = "anabranch_limits";
/// How soon a server notices that nobody waits for what it does, in milliseconds; servers since 14.
const CHECK_INTERVAL: u32 = 5_000;
/// Bytes of a message beside its values.
const ENVELOPE: usize = 16 << 10;
/// Bytes that a value takes in memory beside its text.
const CELL: usize = size_of::<Option<String>>();
/// Between two requests to cancel what an abandoned session does.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);

/// How much may come back, over all statements of a use.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Rows.
    pub rows: usize,
    /// Bytes of values, 24 more for each, and of the columns of each answer.
    pub bytes: usize,
}

/// Why a statement gave no rows.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The server, or the way to it.
    #[error(transparent)]
    Server(#[from] Error),
    /// Not a statement that gives rows.
    #[error("it gives no rows; write a SELECT, VALUES or WITH … SELECT")]
    NoRows,
    /// Another number of parameters.
    #[error("it takes {wanted} parameters and was given {given}")]
    Parameters {
        /// How many it has.
        wanted: usize,
        /// How many came.
        given: usize,
    },
    /// More rows than are allowed.
    #[error("more rows than allowed")]
    Rows,
    /// More bytes than are allowed.
    #[error("more bytes than allowed")]
    Bytes,
}

/// A session for queries, one use at a time: [`begin`](Self::begin), [`query`](Self::query), [`end`](Self::end).
/// Dropped in the middle of any of them, it is closed.
pub struct QuerySession {
    wire: Wire,
    types: Types,
    spoiled: bool,
    /// Whether its transaction is open.
    begun: bool,
    settings: ConnectSettings,
    host: Host,
    /// Whether the server looks after its client while it works.
    checks: bool,
}

impl std::fmt::Debug for QuerySession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuerySession").finish_non_exhaustive()
    }
}

impl QuerySession {
    /// Opens one.
    ///
    /// # Errors
    /// As [`ConnectSettings::connect`].
    pub async fn open(settings: &ConnectSettings) -> Result<Self, Error> {
        let (mut wire, host) = settings.connect_wire(Purpose::Query, false).await?;
        wire.query(READ_ONLY).await?;
        // Not every server has it, and not on every system.
        let check = format!("set client_connection_check_interval = {CHECK_INTERVAL}");
        let checks = match wire.query(&check).await {
            Ok(_) => true,
            Err(error) if error.sqlstate().is_some() => false,
            Err(error) => return Err(error),
        };
        let settings = settings.clone();
        Ok(Self { wire, types: Types::default(), spoiled: false, begun: false, settings, host, checks })
    }

    fn guard(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.spoiled, true) {
            return Err(Error::closed("a query was given up before its end"));
        }
        Ok(())
    }

    /// Begins to read, in the snapshot that is given back. Each statement may take as long as `timeout`.
    ///
    /// # Errors
    /// What the server reports; the session is of no more use.
    pub async fn begin(&mut self, timeout: Duration) -> Result<Snapshot, Error> {
        self.guard()?;
        self.begun = true;
        let limit = timeout.as_millis().clamp(1, 2_147_483_647);
        let check = match self.checks {
            true => format!(
                ", pg_catalog.set_config('client_connection_check_interval', '{CHECK_INTERVAL}', true)"
            ),
            false => String::new(),
        };
        let sql = format!(
            "begin isolation level repeatable read read only; select pg_current_snapshot(); \
             prepare {LIMITS} as select pg_catalog.set_config('statement_timeout', '{limit}', true){check}"
        );
        let row = self.wire.query(&sql).await?.into_iter().flatten().flatten().flatten().next();
        let snapshot = parse_snapshot(row.as_deref())?;
        self.spoiled = false;
        Ok(snapshot)
    }

    /// Ends the reading; what statements left in the session goes with it.
    ///
    /// # Errors
    /// What the server reports; the session is of no more use.
    pub async fn end(&mut self) -> Result<(), Error> {
        self.guard()?;
        self.wire.query("rollback").await?;
        self.wire.query("discard all").await?;
        // That of the check comes with the limits.
        self.wire.query(READ_ONLY).await?;
        (self.spoiled, self.begun) = (false, false);
        Ok(())
    }

    /// Runs a statement for each of its sets of parameters.
    ///
    /// # Errors
    /// It is none that can be run, has too much to say, or what the server reports: then the transaction is failed, and
    /// only [`end`](Self::end) is left; where [`is_open`](Self::is_open) says no, not even that.
    pub async fn query(
        &mut self,
        statement: &QueryStatement,
        allowance: &mut Allowance,
    ) -> Result<Vec<QueryRows>, QueryError> {
        self.guard()?;
        let result = self.run(statement, allowance).await;
        // After these the session has answered all that it was asked.
        self.spoiled = match &result {
            Ok(_) | Err(QueryError::NoRows | QueryError::Parameters { .. }) => false,
            Err(QueryError::Server(error)) => error.sqlstate().is_none(),
            Err(QueryError::Rows | QueryError::Bytes) => true,
        };
        result
    }

    /// Ends it in the middle of whatever it does, and comes back when the server's process is gone: a server does not
    /// notice by itself that nobody waits any more. Asks to cancel, again and again, and for as long as it takes.
    pub async fn abandon(self) {
        let Self { wire, settings, host, .. } = self;
        let key = wire.cancel_key();
        let Wire { mut read, mut write, .. } = wire;
        let leave = async {
            let mut out = BytesMut::new();
            frontend::terminate(&mut out);
            // Behind a message that was cut this is none; then the end of what it can read ends the session.
            let _ = write.write_all(&out).await;
            let _ = write.shutdown().await;
            std::future::pending::<()>().await;
        };
        let gone = async {
            // One that waits for us to read would not hear that it is cancelled.
            let mut rest = vec![0; ENVELOPE];
            while read.read(&mut rest).await.is_ok_and(|count| count > 0) {}
        };
        let cancel = async {
            for attempt in 1_u32.. {
                let asked = settings.cancel(&host, key).await;
                if attempt.is_multiple_of(30) {
                    let (process_id, error) = (key.0, asked.err().map(|error| error.to_string()));
                    tracing::warn!(process_id, error, "a query that was given up does not end at the source");
                }
                tokio::time::sleep(CANCEL_AGAIN).await;
            }
        };
        tokio::select! { () = gone => {}, () = leave => {}, () = cancel => {} }
    }

    /// Whether the next use may begin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.spoiled && !self.begun
    }

    /// Whether it may be used again.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.spoiled
    }

    async fn run(
        &mut self,
        statement: &QueryStatement,
        allowance: &mut Allowance,
    ) -> Result<Vec<QueryRows>, QueryError> {
        let Described { parameters, columns } = self.describe(&statement.sql).await?;
        let Some(columns) = columns else { return Err(QueryError::NoRows) };
        for set in &statement.parameters {
            if set.len() != parameters {
                return Err(QueryError::Parameters { wanted: parameters, given: set.len() });
            }
        }
        if statement.parameters.is_empty() {
            return Ok(Vec::new());
        }
        let mut out = BytesMut::new();
        let (columns, asked) = self.named(columns).await?;
        if asked {
            // A simple query in between has put the statement away.
            frontend::parse("", &statement.sql, [], &mut out).map_err(encode)?;
        }
        for set in &statement.parameters {
            limits(&mut out)?;
            bind("", set, &mut out)?;
            // One more than allowed tells that there are too many.
            let most = i32::try_from(allowance.rows.saturating_add(1)).unwrap_or(i32::MAX);
            frontend::execute("", most, &mut out).map_err(encode)?;
        }
        frontend::sync(&mut out);
        self.wire.send(&out).await?;
        self.receive(&columns, statement.parameters.len(), allowance).await
    }

    async fn receive(
        &mut self,
        columns: &[(String, ValueType)],
        sets: usize,
        allowance: &mut Allowance,
    ) -> Result<Vec<QueryRows>, QueryError> {
        let (mut answers, mut failure) = (Vec::with_capacity(sets), None);
        let head = columns.iter().map(|(name, _)| name.len() + size_of::<(String, ValueType)>()).sum();
        let mut rows = QueryRows::new(columns.to_vec());
        // Those of the statement that sets the limits come before those of each set.
        let mut limits = true;
        loop {
            let most = allowance.bytes.saturating_add(ENVELOPE);
            match self.wire.receive_within(most).await?.ok_or(QueryError::Bytes)? {
                (b'D', _) if limits => {}
                (b'C', _) if limits => limits = false,
                (b'D', body) => {
                    allowance.rows = allowance.rows.checked_sub(1).ok_or(QueryError::Rows)?;
                    let bytes = body.len() + columns.len() * CELL;
                    allowance.bytes = allowance.bytes.checked_sub(bytes).ok_or(QueryError::Bytes)?;
                    for cell in cells(body) {
                        let text = cell?.map(|cell| std::str::from_utf8(cell).map(str::to_owned));
                        let text = text
                            .transpose()
                            .map_err(|_| Error::protocol("the server sent text that is not UTF-8"))?;
                        rows.cells.push(text);
                    }
                }
                (b'C' | b'I', _) => {
                    allowance.bytes = allowance.bytes.checked_sub(head).ok_or(QueryError::Bytes)?;
                    answers.push(std::mem::replace(&mut rows, QueryRows::new(columns.to_vec())));
                    limits = true;
                }
                (b's', _) => return Err(QueryError::Rows),
                (b'E', body) => failure = Some(Error::from_fields(body)),
                (b'Z', _) => return failure.map_or(Ok(answers), |error| Err(error.into())),
                (b'1' | b'2' | b'N' | b'S' | b'A', _) => {}
                (tag, _) => return Err(unexpected(tag, "query").into()),
            }
        }
    }

    /// Has the server read the statement, which may be one only.
    async fn describe(&mut self, sql: &str) -> Result<Described, Error> {
        let mut out = BytesMut::new();
        // To read it the server waits for the locks of all that it names.
        limits(&mut out)?;
        frontend::parse("", sql, [], &mut out).map_err(encode)?;
        frontend::describe(b'S', "", &mut out).map_err(encode)?;
        frontend::sync(&mut out);
        self.wire.send(&out).await?;
        let (mut described, mut failure) = (Described::default(), None);
        loop {
            match self.wire.receive().await? {
                (b't', body) => {
                    described.parameters = body.first_chunk().map_or(0, |n| u16::from_be_bytes(*n)).into()
                }
                (b'T', body) => described.columns = Some(columns(body)?),
                (b'E', body) => failure = Some(Error::from_fields(body)),
                (b'Z', _) => return failure.map_or(Ok(described), Err),
                // With what the limits answer: bound, a row, done.
                (b'1' | b'2' | b'C' | b'D' | b'n' | b'N' | b'S' | b'A', _) => {}
                (tag, _) => return Err(unexpected(tag, "parse")),
            }
        }
    }

    /// The columns with their types, and whether the server had to be asked for these.
    async fn named(
        &mut self,
        columns: Vec<(String, u32)>,
    ) -> Result<(Vec<(String, ValueType)>, bool), Error> {
        let unknown = self.types.query_for(columns.iter().map(|(_, oid)| *oid));
        let asked = unknown.is_some();
        if let Some(sql) = unknown {
            let rows = self.wire.query(&sql).await?.into_iter().flatten().collect();
            self.types.absorb(rows)?;
        }
        let typed = |(name, oid): (String, u32)| {
            let value_type = self.types.value_type(oid);
            (name, value_type)
        };
        Ok((columns.into_iter().map(typed).collect(), asked))
    }
}

/// What the server says of a statement.
#[derive(Default)]
struct Described {
    parameters: usize,
    /// None where it gives no rows.
    columns: Option<Vec<(String, u32)>>,
}

fn columns(body: &[u8]) -> Result<Vec<(String, u32)>, Error> {
    let cut = || Error::protocol("the description of rows is cut");
    let count = body.first_chunk().map_or(0, |count| u16::from_be_bytes(*count));
    let mut rest = body.get(2..).unwrap_or_default();
    let mut columns = Vec::with_capacity(count.into());
    for _ in 0..count {
        let end = rest.iter().position(|byte| *byte == 0).ok_or_else(cut)?;
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        // Table and column number, type, its size and modifier, format.
        let fixed = rest.get(end + 1..end + 19).ok_or_else(cut)?;
        let oid = fixed.get(6..10).and_then(|bytes| bytes.first_chunk()).ok_or_else(cut)?;
        columns.push((name, u32::from_be_bytes(*oid)));
        rest = &rest[end + 19..];
    }
    Ok(columns)
}

/// Has the limits set.
fn limits(out: &mut BytesMut) -> Result<(), Error> {
    bind(LIMITS, &[], out)?;
    frontend::execute("", 0, out).map_err(encode)
}

fn bind(statement: &str, set: &[Option<String>], out: &mut BytesMut) -> Result<(), Error> {
    let write = |value: &Option<String>, buffer: &mut BytesMut| match value {
        Some(text) => {
            buffer.extend_from_slice(text.as_bytes());
            Ok(IsNull::No)
        }
        None => Ok(IsNull::Yes),
    };
    // No format at all is text for everything.
    frontend::bind("", statement, [], set, write, [], out).map_err(|error| match error {
        frontend::BindError::Serialization(error) => encode(error),
        frontend::BindError::Conversion(error) => Error::new(ErrorKind::Protocol, error.to_string()),
    })
}
