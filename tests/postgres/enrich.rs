//! Questions that guests have for the source, which trust nobody who wrote them.

use std::time::Duration;

use anabranch::{
    model::QueryStatement,
    postgres::{Allowance, ErrorKind, QueryError, QuerySession},
};
use testkit::{Database, wait_until};

use super::{DEADLINE, settings, shared_database};

const PLENTY: Allowance = Allowance { rows: 1000, bytes: 1 << 20 };

fn plain(sql: &str) -> QueryStatement {
    QueryStatement { sql: sql.to_owned(), parameters: vec![Vec::new()] }
}

async fn open(database: &Database) -> QuerySession {
    QuerySession::open(&settings(&database.url)).await.unwrap()
}

/// How many sessions for questions the server has.
async fn sessions(client: &tokio_postgres::Client) -> i64 {
    let query = "select count(*) from pg_stat_activity where datname = current_database() \
                 and application_name like '%/query'";
    client.query_one(query, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn no_statement_frees_the_next_of_its_time_limit() {
    let (_, database) = shared_database().await;
    let mut session = open(&database).await;
    let unlimited = "select set_config('statement_timeout', '0', true) || $1::text, \
                     case $1 when 'b' then (select 'late' from pg_sleep(20)) end";
    let sets = |texts: &[&str]| texts.iter().map(|text| vec![Some((*text).to_owned())]).collect();
    // Behind it in another statement, and as the same with other parameters.
    for (first, second) in [
        (plain("select set_config('statement_timeout', '0', true)"), plain("select 'x' from pg_sleep(20)")),
        (
            QueryStatement { sql: unlimited.to_owned(), parameters: sets(&["a"]) },
            QueryStatement { sql: unlimited.to_owned(), parameters: sets(&["a", "b"]) },
        ),
    ] {
        session.begin(Duration::from_millis(300)).await.unwrap();
        let mut allowance = PLENTY;
        let answers = session.query(&first, &mut allowance).await.unwrap();
        assert_eq!(answers.len(), 1);
        let error = session.query(&second, &mut allowance).await.unwrap_err();
        assert!(
            matches!(&error, QueryError::Server(error) if error.kind() == ErrorKind::Cancelled),
            "{error:?}"
        );
        session.end().await.unwrap();
        assert!(session.is_idle());
    }
}

/// What a statement names is locked before it runs, while the server reads it, whatever the one before it set.
#[tokio::test]
async fn a_statement_that_waits_for_a_lock_has_its_time_limit_before_it_runs() {
    let (_, database) = shared_database().await;
    let holder = database.connect().await.unwrap();
    holder.batch_execute("create table public.locked (id int)").await.unwrap();
    holder.batch_execute("begin; lock table public.locked").await.unwrap();
    let mut session = open(&database).await;
    let locked = plain("select * from public.locked");
    let unlimited =
        "select set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)";
    for first in ["select 1", unlimited] {
        session.begin(Duration::from_millis(300)).await.unwrap();
        let mut allowance = PLENTY;
        session.query(&plain(first), &mut allowance).await.unwrap();
        let asked = tokio::time::timeout(DEADLINE, session.query(&locked, &mut allowance)).await;
        let error = asked.unwrap_or_else(|_| panic!("it waits for the lock, after {first}")).unwrap_err();
        assert!(
            matches!(&error, QueryError::Server(error) if error.kind() == ErrorKind::Cancelled),
            "{error:?}"
        );
        session.end().await.unwrap();
    }
}

/// Who gives a question up, or has had enough of its answer, has the rest of that answer still to come.
#[tokio::test]
async fn a_session_that_was_left_in_the_middle_answers_nobody_else() {
    let (_, database) = shared_database().await;
    let numbers = plain("select n::text from generate_series(1, 1000) as n");
    for given_up in [false, true] {
        let mut session = open(&database).await;
        session.begin(Duration::from_secs(30)).await.unwrap();
        let mut allowance = Allowance { rows: 10, ..PLENTY };
        if given_up {
            let asked = std::pin::pin!(session.query(&numbers, &mut allowance));
            assert!(futures_util::poll!(asked).is_pending(), "the server has not answered yet");
        } else {
            let answer = session.query(&numbers, &mut allowance).await;
            assert!(matches!(answer, Err(QueryError::Rows)), "{:?}", answer.map(|rows| rows.len()));
        }
        assert!(!session.is_open() && !session.is_idle());
        let left = |error: &dyn std::fmt::Display| error.to_string().contains("given up before its end");
        let error = session.query(&plain("select 1"), &mut PLENTY.clone()).await.unwrap_err();
        assert!(left(&error), "{error}");
        assert!(left(&session.end().await.unwrap_err()));
        assert!(left(&session.begin(Duration::from_secs(30)).await.unwrap_err()));
        tokio::time::timeout(DEADLINE, session.abandon()).await.unwrap();
    }
}

/// Empty answers take memory as well: each has its columns.
#[tokio::test]
async fn columns_of_empty_answers_are_counted() {
    let (_, database) = shared_database().await;
    let mut session = open(&database).await;
    session.begin(Duration::from_secs(30)).await.unwrap();
    let name = "c".repeat(60);
    let sql = format!("select 1 as {name} where false");
    let statement = QueryStatement { sql, parameters: vec![Vec::new(); 1000] };
    let mut allowance = Allowance { rows: 10, bytes: 64 << 10 };
    let answer = session.query(&statement, &mut allowance).await;
    assert!(matches!(answer, Err(QueryError::Bytes)), "{:?}", answer.map(|rows| rows.len()));
    session.abandon().await;
}

/// What one use leaves in a session is not there for the next, which may be another plugin's call.
#[tokio::test]
async fn nothing_of_one_use_is_left_for_the_next() {
    let (_, database) = shared_database().await;
    let mut session = open(&database).await;
    for _ in 0..2 {
        session.begin(Duration::from_secs(30)).await.unwrap();
        let mut allowance = PLENTY;
        let leave = "select set_config('search_path', 'nowhere', false), pg_advisory_lock(4711)::text";
        session.query(&plain(leave), &mut allowance).await.unwrap();
        session.end().await.unwrap();
    }
    session.begin(Duration::from_secs(30)).await.unwrap();
    let mut allowance = PLENTY;
    let left = "select current_setting('search_path'), count(*)::text from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
    let rows = session.query(&plain(left), &mut allowance).await.unwrap();
    let cells: Vec<_> = rows[0].cells.iter().map(|cell| cell.as_deref()).collect();
    assert_eq!(cells[1..], [Some("0")], "{cells:?}");
    assert_ne!(cells[0], Some("nowhere"));
    session.end().await.unwrap();
}

#[tokio::test]
async fn a_question_that_is_given_up_leaves_no_server_process() {
    let (_, database) = shared_database().await;
    let client = database.connect().await.unwrap();
    let mut session = open(&database).await;
    session.begin(Duration::from_secs(100_000)).await.unwrap();
    let (endless, mut allowance) = (plain("select 'x' from pg_sleep(100000)"), PLENTY);
    tokio::select! {
        answer = session.query(&endless, &mut allowance) => panic!("{answer:?}"),
        at_work = wait_until("the server to be at work", DEADLINE, async || {
            let query = "select count(*) = 1 from pg_stat_activity where datname = current_database() \
                         and application_name like '%/query' and wait_event = 'PgSleep'";
            Ok(client.query_one(query, &[]).await?.get(0))
        }) => at_work.unwrap(),
    }
    assert!(!session.is_idle() && !session.is_open());
    assert_eq!(sessions(&client).await, 1);
    tokio::time::timeout(DEADLINE, session.abandon()).await.unwrap();
    wait_until("the server process to go", DEADLINE, async || Ok(sessions(&client).await == 0))
        .await
        .unwrap();
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_held() {
    let (_, database) = shared_database().await;
    let most = |statement: &str| (plain(statement), Allowance { rows: 100_000, bytes: 1 << 20 });
    let before = peak();
    for (statement, mut allowance) in [
        most("select repeat('x', 300000000)"),
        // What is in the way of nothing but its number.
        most("select null::text from generate_series(1, 60000)"),
        most("select lpad('', 1000000) from generate_series(1, 2)"),
    ] {
        let mut session = open(&database).await;
        session.begin(Duration::from_secs(30)).await.unwrap();
        let answer = session.query(&statement, &mut allowance).await;
        assert!(matches!(answer, Err(QueryError::Bytes)), "{:?}", answer.map(|rows| rows.len()));
        session.abandon().await;
    }
    let held = peak() - before;
    assert!(held < 150_000, "{held} KiB");
    let mut session = open(&database).await;
    session.begin(Duration::from_secs(30)).await.unwrap();
    let (fits, mut allowance) = most("select lpad('', 1000000)");
    assert_eq!(session.query(&fits, &mut allowance).await.unwrap().len(), 1);
}

/// The most memory that this process had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
