//! What went wrong with the source, in one sentence, with the server's SQLSTATE kept.
//!
//! Guarantees that no message has a password or a row's values: of a server's error only message and hint
//! are taken, never detail, context or the statement.

use std::fmt;

use crate::model::Lsn;

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
    /// The server cannot put a row into one message: its text is larger than the server's memory manager allows.
    TooLarge,
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
    /// The function of the server that reported it.
    routine: Option<String>,
    /// The change that the server was at, where it says so.
    at: Option<Lsn>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, sqlstate: None, message: message.into(), routine: None, at: None }
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
        let kind = match pooler {
            // Otherwise a broken protocol, which may be better the next time.
            Some(_) => ErrorKind::Settings,
            None if is_too_large(sqlstate, message) => ErrorKind::TooLarge,
            None => kind_of(sqlstate),
        };
        Self { kind, sqlstate: Some(sqlstate.to_owned()), message: text, routine: None, at: None }
    }

    /// The same error with the function of the server that reported it, which tells in every language what it is.
    pub(crate) fn by_routine(mut self, routine: Option<&str>) -> Self {
        if self.sqlstate() == Some("54000") && routine.is_some_and(|name| LARGE.contains(&name)) {
            self.kind = ErrorKind::TooLarge;
        }
        self.routine = routine.map(str::to_owned);
        self
    }

    /// The body of an ErrorResponse message.
    pub(crate) fn from_fields(mut body: &[u8]) -> Self {
        let (mut code, mut message) = (String::new(), String::new());
        let (mut hint, mut routine, mut at) = (None, None, None);
        while let Some((&field, rest)) = body.split_first().filter(|(field, _)| **field != 0) {
            let end = memchr::memchr(0, rest).unwrap_or(rest.len());
            let text = String::from_utf8_lossy(&rest[..end]).into_owned();
            match field {
                b'C' => code = text,
                b'M' => message = text,
                b'H' => hint = Some(text),
                b'R' => routine = Some(text),
                // Nothing else is taken of it: it may quote values.
                b'W' => at = associated_lsn(&text),
                _ => {}
            }
            body = rest.get(end + 1..).unwrap_or_default();
        }
        let error = Self::server(&code, &message, hint.as_deref()).by_routine(routine.as_deref());
        Self { at, ..error }
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

    /// The function of the server that reported it: never translated, unlike the message (Postgres documentation,
    /// "Error and Notice Message Fields"). A server may be told to leave it out.
    #[must_use]
    pub fn routine(&self) -> Option<&str> {
        self.routine.as_deref()
    }

    /// The change that the server was at, where it says so.
    #[must_use]
    pub fn at(&self) -> Option<Lsn> {
        self.at
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
            | ErrorKind::TooLarge
            | ErrorKind::Denied
            | ErrorKind::Table
            | ErrorKind::KeyChanged => false,
        }
    }
}

/// Who reports, by SQLSTATE 54000, that a text would be larger than the limit.
const LARGE: [&str; 4] =
    ["enlargeStringInfo", "pg_do_encoding_conversion", "perform_default_encoding_conversion", "byteaout"];

/// Postgres's own limit of 1 GiB for one piece of memory, in the words of `palloc`, which are in no other language, and
/// of string buffers (they say `out of memory` up to 16).
fn is_too_large(sqlstate: &str, message: &str) -> bool {
    match sqlstate {
        "XX000" => message.starts_with("invalid memory alloc request size"),
        "54000" => message.starts_with("out of memory") || message.contains("string buffer"),
        _ => false,
    }
}

/// The context of logical decoding ends with `associated LSN 0/1A2B3C4`, in all of the server's languages but
/// the words around the number.
fn associated_lsn(context: &str) -> Option<Lsn> {
    let words = context.split(|c: char| c.is_whitespace() || c == ',');
    words.filter(|word| word.contains('/')).filter_map(|word| word.parse().ok()).next_back()
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
            return Self::server(db.code().code(), db.message(), db.hint()).by_routine(db.routine());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(code: &str, message: &str, context: &str) -> Vec<u8> {
        format!("SERROR\0C{code}\0M{message}\0W{context}\0\0").into_bytes()
    }

    /// In the words of PgBouncer 1.18.
    #[test]
    fn c065_a_pooler_that_refuses_the_sessions_settings_is_no_passing_trouble() {
        let error = Error::from_fields(&fields("08P01", "unsupported startup parameter: options", ""));
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Settings, false), "{error}");
        assert!(error.to_string().contains("use the server's own host and port"), "{error}");
    }

    #[test]
    fn c017_a_row_that_the_server_cannot_send_is_told_with_its_place() {
        let context =
            "slot \"shop\", output plugin \"pgoutput\", in the change callback, associated LSN 16/B374D848";
        for (code, message) in [
            ("XX000", "invalid memory alloc request size 1258291203"),
            ("54000", "out of memory"),
            ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)"),
        ] {
            let error = Error::from_fields(&fields(code, message, context));
            assert_eq!(
                (error.kind(), error.at()),
                (ErrorKind::TooLarge, Some(Lsn(0x16_B374_D848))),
                "{error}"
            );
            assert!(!error.is_retryable() && !error.to_string().contains("callback"), "{error}");
        }
        for (code, message) in
            [("53200", "out of memory"), ("XX000", "unexpected table_oid"), ("54000", "too many")]
        {
            let error = Error::from_fields(&fields(code, message, "while scanning block 3"));
            assert_eq!((error.kind() == ErrorKind::TooLarge, error.at()), (false, None), "{error}");
        }
    }

    /// In the words of Postgres 15 with `lc_messages` at `de_DE`.
    #[test]
    fn c017_what_is_too_large_is_known_in_every_language() {
        let error = |code: &str, routine: &str| {
            let fields = format!("SFEHLER\0VERROR\0C{code}\0MSpeicher aufgebraucht\0R{routine}\0\0");
            Error::from_fields(fields.as_bytes())
        };
        let large = error("54000", "enlargeStringInfo");
        assert_eq!((large.kind(), large.routine()), (ErrorKind::TooLarge, Some("enlargeStringInfo")));
        assert_eq!(error("53200", "AllocSetAlloc").kind(), ErrorKind::Server);
        assert_eq!(error("54000", "check_stack_depth").kind(), ErrorKind::Server);
    }
}
