//! What can go wrong with the state schema.

/// The state schema could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The server refused a statement, or the connection broke.
    #[error("the state schema `anabranch`: could not {action}: {detail}")]
    Query {
        /// What was being done.
        action: &'static str,
        /// The server's words, or the connection's.
        detail: String,
        /// The error itself.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The schema was written by a newer program.
    #[error(
        "the state schema `anabranch` has version {found}, this program knows up to {known}: \
         run the newer program, or one that is at least as new"
    )]
    Newer {
        /// The version that is stored.
        found: i32,
        /// The newest that this program knows.
        known: i32,
    },
    /// The schema was written by an older program, and only `run` brings it up to date: the hosts of that
    /// release could not go on.
    #[error(
        "the state schema `anabranch` has version {found}, this program needs {known}: start `anabranch run` of \
         this release first, or use the program of the release that runs"
    )]
    Older {
        /// The version that is stored.
        found: i32,
        /// The one that is needed.
        known: i32,
    },
    /// A value cannot be written.
    #[error("the state schema `anabranch`: could not {action}: {source}")]
    Unwritable {
        /// What was being done.
        action: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A stored value cannot be read.
    #[error(
        "the state schema `anabranch`: {what} is `{value}`, which this program cannot read; \
         was it changed by hand?"
    )]
    Malformed {
        /// Table and column.
        what: &'static str,
        /// The value.
        value: String,
    },
}

impl StateError {
    pub(super) fn query(action: &'static str) -> impl FnOnce(tokio_postgres::Error) -> Self {
        move |source| {
            let server =
                source.as_db_error().map(|error| format!("{} ({})", error.message(), error.code().code()));
            Self::Query { action, detail: server.unwrap_or_else(|| source.to_string()), source }
        }
    }
}
