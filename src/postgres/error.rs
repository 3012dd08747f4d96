//! What went wrong with the source, in one sentence, with the server's SQLSTATE kept.
//!
//! Guarantees that no message has a password or a row's values: of a server's error only message and hint
//! are taken, never detail, context or the statement.

use std::fmt;

/// Which kind of trouble, for code that decides what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A connection string or an option that cannot work as written.
    Settings,
    /// Nobody answers: unknown host, refused, timed out.
    Unreachable,
    /// TLS could not be agreed on, or the certificate is not to be trusted.
    Tls,
    /// The server knows us not: wrong password, no such role, no `pg_hba.conf` line.
    Authentication,
    /// The database does not exist.
    NoDatabase,
    /// The server has no connection left for us.
    TooManyConnections,
    /// The server starts, stops or recovers.
    Unavailable,
    /// The session ended.
    Closed,
    /// The server said nothing for longer than the limit.
    Silent,
    /// The server sent what the protocol does not allow here.
    Protocol,
    /// Another session uses the slot.
    SlotInUse,
    /// The server has removed WAL that the slot needs, or invalidated it.
    SlotLost,
    /// There is no such slot.
    SlotMissing,
    /// A right is missing.
    Denied,
    /// A statement was cancelled or ran into a timeout.
    Cancelled,
    /// The table, or what Anabranch needs of it, is not there.
    Table,
    /// The key of the table is not the one that a cursor was taken with.
    KeyChanged,
    /// Any other error that the server reported.
    Server,
}

/// An error of the source: one sentence for people, a kind for programs, the SQLSTATE where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    sqlstate: Option<String>,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, sqlstate: None, message: message.into() }
    }

    pub(crate) fn settings(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Settings, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    pub(crate) fn closed(why: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Closed, format!("the connection to Postgres was lost: {why}"))
    }

    pub(crate) fn authentication(why: impl fmt::Display) -> Self {
        Self::new(
            ErrorKind::Authentication,
            format!(
                "the log-in failed: {why}; check user and password of the connection string, or PGPASSWORD"
            ),
        )
    }

    /// An error that the server reported.
    pub(crate) fn server(sqlstate: &str, message: &str, hint: Option<&str>) -> Self {
        let pooler = message.contains("unsupported startup parameter").then_some(
            "a connection pooler is in between; Anabranch needs Postgres itself, so use the server's own host and port",
        );
        let text = match hint.or(pooler) {
            Some(hint) => format!("Postgres says: {message} (SQLSTATE {sqlstate}; hint: {hint})"),
            None => format!("Postgres says: {message} (SQLSTATE {sqlstate})"),
        };
        Self { kind: kind_of(sqlstate), sqlstate: Some(sqlstate.to_owned()), message: text }
    }

    /// The body of an ErrorResponse message.
    pub(crate) fn from_fields(mut body: &[u8]) -> Self {
        let (mut code, mut message, mut hint) = (String::new(), String::new(), None);
        while let Some((&field, rest)) = body.split_first().filter(|(field, _)| **field != 0) {
            let end = memchr::memchr(0, rest).unwrap_or(rest.len());
            let text = String::from_utf8_lossy(&rest[..end]).into_owned();
            match field {
                b'C' => code = text,
                b'M' => message = text,
                b'H' => hint = Some(text),
                _ => {}
            }
            body = rest.get(end + 1..).unwrap_or_default();
        }
        Self::server(&code, &message, hint.as_deref())
    }

    /// The same error with what was being done put before it.
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// The same error with another kind.
    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The server's SQLSTATE.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.sqlstate.as_deref()
    }

    /// Whether a lock was waited for in vain: a smaller statement would do no better.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        self.sqlstate() == Some("55P03")
    }

    /// Whether the same attempt may succeed later without anybody changing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            ErrorKind::Unreachable
            | ErrorKind::TooManyConnections
            | ErrorKind::Unavailable
            | ErrorKind::Closed
            | ErrorKind::Silent
            | ErrorKind::SlotInUse
            | ErrorKind::Cancelled => true,
            ErrorKind::Server => self.sqlstate().is_some_and(|code| {
                ["40", "53", "57", "58", "55P"].iter().any(|class| code.starts_with(class))
            }),
            ErrorKind::Settings
            | ErrorKind::Tls
            | ErrorKind::Authentication
            | ErrorKind::NoDatabase
            | ErrorKind::Protocol
            | ErrorKind::SlotLost
            | ErrorKind::SlotMissing
            | ErrorKind::Denied
            | ErrorKind::Table
            | ErrorKind::KeyChanged => false,
        }
    }
}

/// Source: Postgres documentation, "PostgreSQL Error Codes".
fn kind_of(sqlstate: &str) -> ErrorKind {
    match sqlstate {
        "28P01" | "28000" => ErrorKind::Authentication,
        "3D000" => ErrorKind::NoDatabase,
        "53300" => ErrorKind::TooManyConnections,
        "57P01" | "57P02" | "57P03" | "57P05" => ErrorKind::Unavailable,
        "57014" | "55P03" => ErrorKind::Cancelled,
        "55006" => ErrorKind::SlotInUse,
        "42501" => ErrorKind::Denied,
        "42P01" | "42703" => ErrorKind::Table,
        code if code.starts_with("08") => ErrorKind::Closed,
        _ => ErrorKind::Server,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            return Self::server(db.code().code(), db.message(), db.hint());
        }
        if error.is_closed() {
            return Self::closed("the server or the network ended it");
        }
        let cause = std::error::Error::source(&error);
        if error.to_string() == "authentication error"
            || cause.is_some_and(|c| c.to_string() == "password missing")
        {
            return Self::authentication(cause.map(ToString::to_string).unwrap_or_default());
        }
        let io = cause.is_some_and(|cause| cause.is::<std::io::Error>());
        let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        if io { Self::closed(text) } else { Self::protocol(text) }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::closed(error)
    }
}
