//! The embedded default: one SQLite file, one table a destination, queryable at once.
//!
//! What it guarantees: a batch is one transaction, committed with `synchronous = full` in WAL mode, which
//! syncs the log before `commit` returns (SQLite documentation, "PRAGMA synchronous"; `normal` would not, so
//! a power cut could take back what the slot has already been told). Readers never block it nor wait for it.
//! Bodies are stored byte for byte. A progress token is stored in the transaction of its documents. What it
//! must never do: write into a table that it did not make, or go on
//! in a new file after its own was taken away.

mod progress;
mod table;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::Mutex;

use self::table::Tables;
use super::{Capabilities, Progress, Rejected, Sink, SqliteSettings};
use crate::model::{Documents, Failure, FailureClass};

/// Pages of 4 KiB in the log before it is copied into the file: few copies under load, a log of 32 MiB.
const CHECKPOINT_PAGES: i64 = 8192;
/// The page cache, in KiB.
const CACHE_KIB: i64 = 16 * 1024;
/// Two statements a destination; more destinations than half of this prepare theirs again for each batch.
const STATEMENTS: usize = 128;

/// Upserts and deletes rows of an SQLite file.
#[derive(Debug)]
pub struct SqliteSink {
    place: Arc<Place>,
    /// Locked before a blocking thread is taken and released by that thread, so that calls run in the order
    /// in which they were made, even when a caller gives up on one of them.
    state: Arc<Mutex<State>>,
}

/// Which sink, which file: what every failure must name.
#[derive(Debug)]
struct Place {
    name: String,
    path: PathBuf,
    busy_timeout: Duration,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// The file that documents were first written to; another one in its place is not it.
    file: Option<FileIdentity>,
}

impl SqliteSink {
    /// The sink `name`. Does not touch the file.
    ///
    /// # Errors
    /// The path is empty.
    pub fn new(name: &str, settings: &SqliteSettings) -> Result<Self, Failure> {
        // Absolute, so that no name is special to SQLite (`:memory:`), and a later change of directory is
        // without effect.
        let path = std::path::absolute(&settings.path).map_err(|error| {
            let message = format!("sink `{name}`: path `{}`: {error}", settings.path.display());
            Failure::new(FailureClass::Fatal, "sqlite-path", message)
        })?;
        let place = Place { name: name.to_owned(), path, busy_timeout: settings.busy_timeout };
        Ok(Self { place: Arc::new(place), state: Arc::default() })
    }

    /// Runs `work` with the open connection on a blocking thread, after all earlier calls.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Place, &mut Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = Arc::clone(&self.place);
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let call = move || {
            let done = state.connection(&place).and_then(|connection| work(&place, connection));
            state.after(&place, done)
        };
        tokio::task::spawn_blocking(call).await.unwrap_or_else(|error| Err(self.place.stopped(&error)))
    }
}

#[async_trait::async_trait]
impl Sink for SqliteSink {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { purge: true, progress: true, ..Capabilities::default() }
    }

    async fn open(&self) -> Result<(), Failure> {
        self.run(|place, connection| {
            // A write lock, taken and let go: a file that cannot be written is noticed before any row is.
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            transaction.and_then(rusqlite::Transaction::rollback).map_err(|error| place.failure(&error))
        })
        .await
    }

    async fn deliver(
        &self,
        documents: &Documents,
        progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        if documents.is_empty() && progress.is_none() {
            return Ok(Vec::new());
        }
        let (documents, progress) = (documents.clone(), progress.cloned());
        self.run(move |place, connection| deliver(place, connection, &documents, progress.as_ref())).await
    }

    async fn purge(&self, destination: &str, progress: Option<&Progress>) -> Result<(), Failure> {
        let (destination, progress) = (destination.to_owned(), progress.cloned());
        self.run(move |place, connection| purge(place, connection, &destination, progress.as_ref())).await
    }

    async fn progress(&self, key: &str) -> Result<Option<String>, Failure> {
        let key = key.to_owned();
        self.run(move |place, connection| progress::load(place, connection, &key)).await
    }

    async fn has_destination(&self, destination: &str) -> Result<bool, Failure> {
        let destination = destination.to_owned();
        self.run(move |place, connection| table::exists(place, connection, &destination)).await
    }

    async fn close(&self) -> Result<(), Failure> {
        let place = Arc::clone(&self.place);
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let close = move || match state.connection.take().map(Connection::close) {
            None | Some(Ok(())) => Ok(()),
            Some(Err((_, error))) => Err(place.failure(&error)),
        };
        tokio::task::spawn_blocking(close).await.unwrap_or_else(|error| Err(self.place.stopped(&error)))
    }
}

fn deliver(
    place: &Place,
    connection: &mut Connection,
    documents: &Documents,
    progress: Option<&Progress>,
) -> Result<Vec<Rejected>, Failure> {
    let failure = |error: rusqlite::Error| place.failure(&error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failure)?;
    let rejected = Tables::new(place, &transaction, documents).write()?;
    if let Some(progress) = progress.filter(|_| rejected.is_empty()) {
        progress::store(place, &transaction, progress)?;
    }
    transaction.commit().map_err(failure)?;
    Ok(rejected)
}

fn purge(
    place: &Place,
    connection: &mut Connection,
    destination: &str,
    progress: Option<&Progress>,
) -> Result<(), Failure> {
    let failure = |error: rusqlite::Error| place.failure(&error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failure)?;
    table::purge(place, &transaction, destination)?;
    if let Some(progress) = progress {
        progress::store(place, &transaction, progress)?;
    }
    transaction.commit().map_err(failure)
}

impl State {
    /// The connection, made where there is none.
    fn connection(&mut self, place: &Place) -> Result<&mut Connection, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.same_file(place)?;
                place.check()?;
                place.connect().map_err(|error| place.failure(&error))?
            }
        };
        if self.file.is_none() {
            self.file = FileIdentity::of(&place.path);
        }
        Ok(self.connection.insert(connection))
    }

    /// Drops a connection that failed, and refuses a success that went into a file nobody can find.
    fn after<T>(&mut self, place: &Place, done: Result<T, Failure>) -> Result<T, Failure> {
        let done = done.and_then(|value| self.same_file(place).map(|()| value));
        if done.is_err() {
            self.connection = None;
        }
        done
    }

    fn same_file(&self, place: &Place) -> Result<(), Failure> {
        if self.file.is_none() || self.file == FileIdentity::of(&place.path) {
            return Ok(());
        }
        Err(place.fatal(
            "sqlite-moved",
            "the file was removed or replaced while in use, so documents written before are not in it: put it \
             back; or start again without it, and what was in it is built again",
        ))
    }
}

impl Place {
    /// SQLite opens devices without complaint and keeps nothing.
    fn check(&self) -> Result<(), Failure> {
        match std::fs::metadata(&self.path) {
            Ok(found) if !found.is_file() => {
                Err(self.fatal("sqlite-not-a-file", "this is a directory or a device; name a file"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.busy_timeout)?;
        // A file system without shared memory answers with another mode: slower, as durable.
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            tracing::warn!(sink = self.name, path = %self.path.display(), mode, "SQLite refuses WAL mode here; readers will block deliveries");
        }
        connection.pragma_update(None, "synchronous", "full")?;
        // Only macOS knows it: there a plain fsync does not reach the disk.
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", CHECKPOINT_PAGES * 4096)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(connection)
    }

    fn fatal(&self, code: &str, what: &str) -> Failure {
        self.classified(FailureClass::Fatal, code, what)
    }

    fn classified(&self, class: FailureClass, code: &str, what: &str) -> Failure {
        Failure::new(
            class,
            code,
            format!("sink `{}`: SQLite file `{}`: {what}", self.name, self.path.display()),
        )
    }

    fn stopped(&self, error: &tokio::task::JoinError) -> Failure {
        self.classified(FailureClass::Retry, "sqlite-stopped", &format!("the call was cut short: {error}"))
    }

    /// Classifies by SQLite's primary result code (SQLite documentation, "Result and Error Codes").
    fn failure(&self, error: &rusqlite::Error) -> Failure {
        use FailureClass::{Fatal, Retry};
        let (class, code, what) = match error.sqlite_error_code() {
            Some(
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed,
            ) => (Retry, "sqlite-busy", "another program holds its lock; end that program's transaction"),
            Some(ErrorCode::DiskFull) => (Retry, "sqlite-full", "the disk or a quota is full; make room"),
            Some(ErrorCode::SystemIoFailure) => {
                (Retry, "sqlite-io", "reading or writing failed; look at the disk")
            }
            Some(ErrorCode::OutOfMemory) => (Retry, "sqlite-memory", "no memory"),
            Some(ErrorCode::CannotOpen) => (Fatal, "sqlite-open", self.why_not_opened()),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
                Fatal,
                "sqlite-read-only",
                "it or its directory cannot be written; give this user the right to",
            ),
            Some(ErrorCode::NotADatabase) => {
                (Fatal, "sqlite-not-a-database", "this is something else than a database; name another path")
            }
            Some(ErrorCode::DatabaseCorrupt) => {
                (Fatal, "sqlite-corrupt", "the database is damaged; move it away and request a backfill")
            }
            _ => (Fatal, "sqlite-error", "SQLite refused"),
        };
        self.classified(class, code, &format!("{what} ({error})"))
    }

    fn why_not_opened(&self) -> &'static str {
        match self.path.parent() {
            Some(parent) if !parent.is_dir() => "its directory does not exist; create it",
            _ => "it cannot be opened; give this user the right to",
        }
    }
}

/// Which file a path stands for. Where the system has no such thing, any file is as good as another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileIdentity {
    #[cfg(unix)]
    device_and_inode: (u64, u64),
}

impl FileIdentity {
    fn of(path: &Path) -> Option<Self> {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::metadata(path).ok()?;
        #[cfg(not(unix))]
        let _ = found;
        Some(Self {
            #[cfg(unix)]
            device_and_inode: (found.dev(), found.ino()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DocumentEntry, DocumentOperation, Lsn, Operation, Origin};

    fn documents(count: usize) -> Documents {
        let mut documents = Documents::new("public.t", Origin::Backfill, 1);
        let destination = documents.destination("t");
        for n in 0..count {
            let id = documents.push_bytes(n.to_string().as_bytes());
            let body = documents.push_bytes(format!("\"{}\"", "x".repeat(500)).as_bytes());
            documents.entries.push(DocumentEntry {
                operation: DocumentOperation::Upsert,
                destination,
                id,
                body,
                change: 0,
                source: Operation::Read,
                commit_lsn: Lsn(1),
                commit_time: 0,
            });
        }
        documents
    }

    fn place(dir: &tempfile::TempDir) -> Place {
        let path = dir.path().join("a.db");
        Place { name: "search".to_owned(), path, busy_timeout: Duration::from_secs(5) }
    }

    #[test]
    fn a_commit_is_on_the_disk_when_it_returns() {
        let dir = tempfile::tempdir().unwrap();
        let connection = place(&dir).connect().unwrap();
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0));
        assert_eq!(pragma("journal_mode"), Ok("wal".to_owned()));
        assert_eq!(connection.pragma_query_value(None, "synchronous", |row| row.get(0)), Ok(2), "full");
    }

    #[test]
    fn c075_a_full_disk_is_a_reason_to_wait_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir);
        let mut connection = place.connect().unwrap();
        deliver(&place, &mut connection, &documents(1), None).unwrap();
        connection.pragma_update(None, "max_page_count", 10).unwrap();
        let failure = deliver(&place, &mut connection, &documents(1000), None).unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Retry, "sqlite-full"));
        assert!(failure.message.contains("a.db") && failure.message.contains("make room"), "{failure}");
        let rows =
            |connection: &Connection| connection.query_row("select count(*) from t", [], |row| row.get(0));
        assert_eq!(rows(&connection), Ok(1));
        connection.pragma_update(None, "max_page_count", 100_000).unwrap();
        deliver(&place, &mut connection, &documents(1000), None).unwrap();
        assert_eq!(rows(&connection), Ok(1000));
    }

    /// Not run by itself: `cargo test --release --lib sink::sqlite -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn measure() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(&dir);
        let mut connection = place.connect().unwrap();
        let documents = documents(200_000);
        for what in ["insert", "replace"] {
            let started = std::time::Instant::now();
            let mut page = documents.clone();
            for entries in documents.entries.chunks(5000) {
                page.entries = entries.to_vec();
                deliver(&place, &mut connection, &page, None).unwrap();
            }
            let rate = 200_000.0 / started.elapsed().as_secs_f64();
            std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("{what}: {rate:.0} documents/s\n"),
            )
            .unwrap();
        }
    }
}
