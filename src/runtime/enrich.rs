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
use tokio::{
    sync::{Semaphore, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{Failure, FailureClass, QueryRows, QueryStatement, Xid},
    plugin::{grants::QueryGrant, services::Queries},
    postgres::{Allowance, ConnectSettings, Error, ErrorKind, QueryError, QuerySession},
};

/// How soon it is asked again whether the changes are visible.
const AGAIN: Duration = Duration::from_millis(20);
/// Sessions of one plugin.
const SESSIONS: usize = 4;

/// The sessions that one plugin's questions have. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Enricher {
    settings: Arc<ConnectSettings>,
    sessions: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<QuerySession>>>,
}

/// What is asked.
struct Question {
    statements: Vec<QueryStatement>,
    sees: Vec<Xid>,
    grant: QueryGrant,
}

impl Enricher {
    pub(super) fn new(settings: ConnectSettings) -> Self {
        let sessions = Arc::new(Semaphore::new(SESSIONS));
        Self { settings: Arc::new(settings), sessions, idle: Arc::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<QuerySession>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, until it is answered or given up. Comes back once the session is idle again, or gone from the server.
    async fn attend(
        &self,
        question: &Question,
        given_up: &CancellationToken,
        answer: oneshot::Sender<Result<Vec<QueryRows>, Failure>>,
    ) {
        let idle = self.idle().pop();
        let (mut session, fresh) = match idle {
            Some(session) => (session, false),
            // A session that is given up before it is one does nothing.
            None => match given_up.run_until_cancelled(self.open()).await {
                Some(Ok(session)) => (session, true),
                Some(Err(failure)) => return drop(answer.send(Err(failure))),
                None => return,
            },
        };
        let answered = given_up.run_until_cancelled(self.ask(&mut session, fresh, question)).await;
        let reusable = session.is_idle();
        if reusable {
            self.idle().push(session);
            if let Some(answered) = answered {
                let _ = answer.send(answered);
            }
            return;
        }
        if let Some(answered) = answered {
            let _ = answer.send(answered);
        }
        session.abandon().await;
    }

    async fn ask(
        &self,
        session: &mut QuerySession,
        fresh: bool,
        question: &Question,
    ) -> Result<Vec<QueryRows>, Failure> {
        let Question { statements, sees, grant } = question;
        let until = Instant::now() + grant.timeout.saturating_sub(2 * AGAIN);
        loop {
            let snapshot = match session.begin(grant.timeout).await {
                Ok(snapshot) => snapshot,
                // It may have ended while it was idle.
                Err(error) if !fresh && error.sqlstate().is_none_or(|state| state.starts_with("57")) => {
                    *session = self.open().await?;
                    session.begin(grant.timeout).await.map_err(|error| unreached(&error))?
                }
                Err(error) => return Err(unreached(&error)),
            };
            if sees.iter().all(|xid| snapshot.sees(*xid)) {
                break;
            }
            session.end().await.map_err(|error| unreached(&error))?;
            if Instant::now() >= until {
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
                    if session.is_open() {
                        // Where that fails, it is abandoned.
                        let _ = session.end().await;
                    }
                    return Err(failure(&error, statement, grant));
                }
            }
        }
        let _ = session.end().await;
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
        let question =
            Question { statements: statements.to_vec(), sees: sees.to_vec(), grant: grant.clone() };
        // Nobody closes it.
        let turn = Arc::clone(&self.sessions).acquire_owned().await;
        let given_up = CancellationToken::new();
        let _until_dropped = given_up.clone().drop_guard();
        let (answer, answered) = oneshot::channel();
        let this = self.clone();
        // A task of its own, since it has to end what it began at the source when nobody waits for it any more. The
        // turn is not over before, or those who try again would have ever more sessions.
        tokio::spawn(async move {
            this.attend(&question, &given_up, answer).await;
            drop(turn);
        });
        answered.await.unwrap_or_else(|_| {
            Err(Failure::new(FailureClass::Retry, "query-connection", "the question was given up"))
        })
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
