//! Answers what transforms ask the source: on a few read-only sessions of a plugin, in a snapshot that sees the changes
//! that they ask about.
//!
//! Waits until those are visible, by the same exact test that the backfill and re-reads use: the stream tells a commit
//! before new snapshots see it, and an answer from before would make a document of two times.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    model::{Failure, FailureClass, QueryRows, QueryStatement, Xid},
    plugin::{grants::QueryGrant, services::Queries},
    postgres::{Allowance, ConnectSettings, Error, ErrorKind, QueryError, QuerySession},
};

/// How soon it is asked again whether the changes are visible.
const AGAIN: Duration = Duration::from_millis(20);
/// Sessions of one plugin.
const SESSIONS: usize = 4;

/// The sessions that one plugin's questions have.
#[derive(Debug)]
pub(super) struct Enricher {
    settings: ConnectSettings,
    sessions: Semaphore,
    idle: Mutex<Vec<QuerySession>>,
}

impl Enricher {
    pub(super) fn new(settings: ConnectSettings) -> Arc<Self> {
        Arc::new(Self { settings, sessions: Semaphore::new(SESSIONS), idle: Mutex::default() })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<QuerySession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(
        &self,
        statements: &[QueryStatement],
        sees: &[Xid],
        grant: &QueryGrant,
    ) -> Result<Vec<QueryRows>, Failure> {
        let until = Instant::now() + grant.timeout.saturating_sub(2 * AGAIN);
        // Nobody closes it.
        let _turn = self.sessions.acquire().await;
        let idle = self.idle().pop();
        let (mut session, fresh) = match idle {
            Some(session) => (session, false),
            None => (self.open().await?, true),
        };
        loop {
            let snapshot = match session.begin(grant.timeout).await {
                Ok(snapshot) => snapshot,
                // It may have ended while it was idle.
                Err(error) if !fresh && error.sqlstate().is_none_or(|state| state.starts_with("57")) => {
                    session = self.open().await?;
                    session.begin(grant.timeout).await.map_err(|error| unreached(&error))?
                }
                Err(error) => return Err(unreached(&error)),
            };
            if sees.iter().all(|xid| snapshot.sees(*xid)) {
                break;
            }
            session.end().await.map_err(|error| unreached(&error))?;
            if Instant::now() >= until {
                self.idle().push(session);
                return Err(invisible(grant));
            }
            tokio::time::sleep(AGAIN).await;
        }
        let mut allowance = Allowance { rows: grant.max_rows, bytes: grant.max_bytes };
        let mut answers = Vec::new();
        for statement in statements {
            match session.query(statement, &mut allowance).await {
                Ok(rows) => answers.extend(rows),
                Err(error) => {
                    if session.is_open() && session.end().await.is_ok() {
                        self.idle().push(session);
                    }
                    return Err(failure(&error, statement, grant));
                }
            }
        }
        if session.end().await.is_ok() {
            self.idle().push(session);
        }
        Ok(answers)
    }

    async fn open(&self) -> Result<QuerySession, Failure> {
        QuerySession::open(&self.settings).await.map_err(|error| unreached(&error))
    }
}

#[async_trait]
impl Queries for Enricher {
    async fn query(
        &self,
        statements: &[QueryStatement],
        sees: &[Xid],
        grant: &QueryGrant,
    ) -> Result<Vec<QueryRows>, Failure> {
        self.ask(statements, sees, grant).await
    }
}

fn invisible(grant: &QueryGrant) -> Failure {
    let message = format!(
        "the change was not visible to new snapshots within {:?} (does its commit wait for a synchronous standby?)",
        grant.timeout
    );
    Failure::new(FailureClass::Retry, "query-invisible", message)
}

fn unreached(error: &Error) -> Failure {
    Failure::new(FailureClass::Retry, "query-connection", format!("the source cannot be asked: {error}"))
}

/// What a statement's failure means, and which one it was.
fn failure(error: &QueryError, statement: &QueryStatement, grant: &QueryGrant) -> Failure {
    let (class, code) = match error {
        QueryError::Server(error) => match (error.kind(), error.sqlstate()) {
            (ErrorKind::Cancelled, _) => (FailureClass::Retry, "query-timeout"),
            // Of transactions that met each other; none was refused.
            (_, Some("40001" | "40P01")) => (FailureClass::Retry, "query-conflict"),
            (_, Some("25006")) => (FailureClass::Fatal, "query-writes"),
            (ErrorKind::Denied, _) => (FailureClass::Fatal, "query-rights"),
            // Data that the statement cannot work with, such as a text that is no number: of this change.
            (_, Some(state)) if state.starts_with("22") => (FailureClass::Poison, "query-data"),
            (ErrorKind::Server | ErrorKind::Table, Some(_)) => (FailureClass::Fatal, "query-statement"),
            _ => (FailureClass::Retry, "query-connection"),
        },
        QueryError::NoRows | QueryError::Parameters { .. } => (FailureClass::Fatal, "query-statement"),
        QueryError::Rows => (FailureClass::Fatal, "query-rows"),
        QueryError::Bytes => (FailureClass::Fatal, "query-bytes"),
    };
    let what = match error {
        QueryError::Rows => format!("there are more than {} rows", grant.max_rows),
        QueryError::Bytes => format!("there are more than {} bytes", grant.max_bytes),
        QueryError::Server(error) if code == "query-timeout" => {
            format!("the source did not answer within {:?} ({error})", grant.timeout)
        }
        QueryError::Server(_) if code == "query-writes" => {
            "it writes; queries of plugins only read (`default_transaction_read_only`)".to_owned()
        }
        other => other.to_string(),
    };
    Failure::new(class, code, format!("{what}, in: {}", excerpt(&statement.sql)))
}

/// The beginning of a statement, on one line.
fn excerpt(sql: &str) -> String {
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
