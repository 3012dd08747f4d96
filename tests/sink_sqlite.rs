//! The SQLite sink, against real files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{path::Path, sync::Arc, time::Duration};

use anabranch::{
    model::{DocumentOperation, FailureClass},
    sink::{Fence, Progress, Sink, SinkSettings, SqliteSettings, build},
};
use rusqlite::{Connection, OpenFlags};
use support::Batch;

fn sink(path: &Path) -> Box<dyn Sink> {
    let mut settings = SqliteSettings::new(path);
    settings.busy_timeout = Duration::from_millis(50);
    build("search", &SinkSettings::Sqlite(settings)).unwrap()
}

fn rows(path: &Path, table: &str) -> Vec<(String, String)> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut rows = connection.prepare(&format!("select id, document from \"{table}\" order by id")).unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

fn row(id: &str, body: &str) -> (String, String) {
    (id.to_owned(), body.to_owned())
}

#[tokio::test]
async fn documents_can_be_queried_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("search.db");
    let sink = sink(&path);
    sink.open().await.unwrap();
    let batch = Batch::new().upsert("1", r#"{"name":"tea"}"#).upsert("2", r#"{"name":"milk"}"#).build();
    assert_eq!(sink.deliver(&batch, None).await.unwrap(), []);
    // Not closed: another program reads while the sink writes.
    let reader = Connection::open(&path).unwrap();
    let query =
        "select json_extract(document, '$.name'), updated_lsn, updated_at from products where id = '1'";
    let found: (String, String, String) =
        reader.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert_eq!(found, ("tea".into(), "1/10".into(), "2024-01-31T12:00:00.500000Z".into()));
    drop(reader);
    sink.close().await.unwrap();
    assert!(!dir.path().join("search.db-wal").exists(), "one file is left");
}

#[tokio::test]
async fn c012_a_body_is_kept_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    let bodies = [
        r#"{"b": 1,  "a":12345678901234567890123456789.10, "e":1E400}"#,
        r#"{"nul":"\u0000","lone":"\ud800","é":"\u00e9 é 😀"}"#,
        "[\n  1,\r\n  2\n]",
        r#"{"a":1,"a":2}"#,
        "null",
    ];
    let mut batch = Batch::new();
    for (at, body) in bodies.iter().enumerate() {
        batch = batch.upsert(&format!("{at} é\u{0}'\""), body);
    }
    assert_eq!(sink.deliver(&batch.build(), None).await.unwrap(), []);
    let found: Vec<String> = rows(&path, "products").into_iter().map(|(_, body)| body).collect();
    assert_eq!(found, bodies);
}

#[tokio::test]
async fn c080_several_changes_of_a_key_in_one_batch_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    let batch = Batch::new()
        .upsert("swapped", "1")
        .delete("swapped")
        .upsert("swapped", "2")
        .upsert("gone", "1")
        .upsert("gone", "2")
        .delete("gone")
        .delete("never")
        .upsert("thrice", "1")
        .upsert("thrice", "2")
        .upsert("thrice", "3");
    sink.deliver(&batch.build(), None).await.unwrap();
    assert_eq!(rows(&path, "products"), [row("swapped", "2"), row("thrice", "3")]);
}

#[tokio::test]
async fn c035_purge_empties_one_destination() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    assert!(sink.capabilities().purge);
    sink.purge("products", None).await.unwrap();
    sink.deliver(&Batch::new().upsert("1", "1").to("pro_ucts").upsert("1", "1").build(), None).await.unwrap();
    sink.purge("products", None).await.unwrap();
    assert_eq!(rows(&path, "products"), []);
    assert_eq!(rows(&path, "pro_ucts"), [row("1", "1")]);
    sink.deliver(&Batch::new().upsert("2", "2").build(), None).await.unwrap();
    assert_eq!(rows(&path, "products"), [row("2", "2")]);
}

#[tokio::test]
async fn unusable_documents_are_rejected_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    let batch = Batch::new()
        .upsert("1", "1")
        .to("sqlite_x")
        .upsert("1", "1")
        .to("products")
        .upsert("2", "")
        .push(DocumentOperation::Upsert, "3", b"\xff")
        .upsert("4", "4")
        .to("we\"ird; drop table products")
        .upsert("5", "5");
    let rejected = sink.deliver(&batch.build(), None).await.unwrap();
    assert_eq!(rejected.iter().map(|rejected| rejected.index).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(rejected.iter().all(|rejected| rejected.failure.class == FailureClass::Poison));
    assert!(rejected[0].failure.message.contains("sqlite_x"));
    assert_eq!(rows(&path, "products"), [row("1", "1"), row("4", "4")]);
    assert_eq!(rows(&path, "we\"\"ird; drop table products"), [row("5", "5")]);
}

#[tokio::test]
async fn a_users_constraint_rejects_its_document_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", r#"{"mail":"x"}"#).build(), None).await.unwrap();
    let user = Connection::open(&path).unwrap();
    user.execute_batch("create unique index mail on products (json_extract(document, '$.mail'))").unwrap();
    let batch = Batch::new().upsert("2", r#"{"mail":"x"}"#).upsert("3", r#"{"mail":"y"}"#).build();
    let rejected = sink.deliver(&batch, None).await.unwrap();
    assert_eq!(rejected.len(), 1);
    assert_eq!((rejected[0].index, rejected[0].failure.code.as_str()), (0, "sqlite-constraint"));
    let freed = Batch::new().delete("1").upsert("2", r#"{"mail":"x"}"#).build();
    assert_eq!(
        sink.deliver(&freed, None).await.unwrap(),
        [],
        "C080: a value freed and used again in one batch"
    );
}

#[tokio::test]
async fn tables_of_others_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let user = Connection::open(&path).unwrap();
    let foreign =
        "create table products (id integer primary key, name text); insert into products values (1, 'mine');
                   create view shown as select 1 as id; create table \"Orders\" (x)";
    user.execute_batch(foreign).unwrap();
    let sink = sink(&path);
    for (destination, code) in
        [("products", "sqlite-foreign-table"), ("shown", "sqlite-foreign-table"), ("orders", "sqlite-case")]
    {
        let failure =
            sink.deliver(&Batch::new().to(destination).upsert("1", "1").build(), None).await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, code));
        assert!(failure.message.contains("a.db") && failure.message.contains(destination), "{failure}");
        assert_eq!(sink.purge(destination, None).await.unwrap_err().code, code);
    }
    assert_eq!(
        user.query_row("select name from products", [], |row| row.get::<_, String>(0)).unwrap(),
        "mine"
    );
}

#[tokio::test]
async fn a_batch_is_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap();
    let blocker = Connection::open(&path).unwrap();
    blocker.execute_batch("begin immediate").unwrap();
    let batch = Batch::new().numbers(0, 10).build();
    let failure = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Retry, "sqlite-busy"));
    assert!(failure.message.contains("a.db"), "{failure}");
    assert_eq!(rows(&path, "products"), [row("1", "1")]);
    blocker.execute_batch("commit").unwrap();
    sink.deliver(&batch, None).await.unwrap();
    assert_eq!(rows(&path, "products").len(), 10);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "not a database, but longer than the header of one. ".repeat(40)).unwrap();
    for (path, code) in [
        (text.clone(), "sqlite-not-a-database"),
        (dir.path().join("missing/a.db"), "sqlite-open"),
        (dir.path().to_owned(), "sqlite-not-a-file"),
        ("/dev/null".into(), "sqlite-not-a-file"),
    ] {
        let failure = sink(&path).open().await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, code), "{failure}");
        assert!(
            failure.message.contains(path.to_str().unwrap()) && failure.message.contains("search"),
            "{failure}"
        );
    }
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));
    assert!(!dir.path().join("missing").exists());
}

#[tokio::test]
async fn a_file_taken_away_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap();
    let away = dir.path().join("away.db");
    std::fs::rename(&path, &away).unwrap();
    let batch = Batch::new().upsert("2", "2").build();
    for _ in 0..2 {
        let failure = sink.deliver(&batch, None).await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "sqlite-moved"));
        assert_eq!(sink.open().await.unwrap_err().code, "sqlite-moved");
    }
    assert!(!path.exists(), "no empty file in its place");
    std::fs::rename(&away, &path).unwrap();
    sink.deliver(&batch, None).await.unwrap();
    assert!(rows(&path, "products").contains(&row("2", "2")));
}

#[tokio::test]
async fn names_special_to_sqlite_are_files() {
    let dir = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:x?mode=memory"] {
        let path = dir.path().join(name);
        let sink = sink(&path);
        sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap();
        sink.close().await.unwrap();
        assert_eq!(rows(&path, "products"), [row("1", "1")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mappings_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let mut settings = SqliteSettings::new(&path);
    settings.busy_timeout = Duration::from_secs(60);
    let make = || -> Arc<dyn Sink> { build("x", &SinkSettings::Sqlite(settings.clone())).unwrap().into() };
    let shared = make();
    let mut deliveries = tokio::task::JoinSet::new();
    for lane in 0..6 {
        // Some share the sink, some have their own.
        let sink = if lane % 2 == 0 { Arc::clone(&shared) } else { make() };
        deliveries.spawn(async move {
            for round in 0..10 {
                let batch = Batch::new().to(&format!("lane{lane}")).numbers(round * 50, 50);
                sink.deliver(&batch.upsert("last", &round.to_string()).build(), None).await.unwrap();
            }
        });
    }
    while let Some(done) = deliveries.join_next().await {
        done.unwrap();
    }
    for lane in 0..6 {
        let rows = rows(&path, &format!("lane{lane}"));
        assert_eq!(rows.len(), 501);
        assert!(rows.contains(&row("last", "9")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c066_a_delivery_given_up_is_never_carried_out_after_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink: Arc<dyn Sink> = Arc::from(sink(&path));
    for round in 0..50 {
        let old = Batch::new().numbers(0, 200).upsert("k", "\"old\"").build();
        let slow = tokio::spawn({
            let sink = Arc::clone(&sink);
            async move { sink.deliver(&old, None).await }
        });
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        slow.abort();
        sink.deliver(&Batch::new().upsert("k", "\"new\"").build(), None).await.unwrap();
        assert!(rows(&path, "products").contains(&row("k", "\"new\"")));
    }
}

fn progress(token: &str) -> Progress {
    under(1, token)
}

fn under(term: i64, token: &str) -> Progress {
    let fence = Fence { owner: "cluster".to_owned(), term };
    Progress { key: "shop/products".to_owned(), token: token.to_owned(), fence }
}

async fn token(sink: &dyn Sink) -> Option<String> {
    sink.progress("shop/products").await.unwrap()
}

#[tokio::test]
async fn c066_progress_is_stored_with_its_documents_and_handed_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let first = sink(&path);
    assert!(first.capabilities().progress);
    assert_eq!(token(&*first).await, None);
    assert!(!first.has_destination("products").await.unwrap());
    first.deliver(&Batch::new().upsert("1", "1").build(), Some(&progress("one"))).await.unwrap();
    assert_eq!(token(&*first).await.as_deref(), Some("one"));
    first.deliver(&Batch::new().upsert("2", "2").build(), None).await.unwrap();
    assert_eq!(token(&*first).await.as_deref(), Some("one"), "nobody said anything else");
    first.close().await.unwrap();
    let second = sink(&path);
    assert_eq!(token(&*second).await.as_deref(), Some("one"));
    assert_eq!(second.progress("shop/orders").await.unwrap(), None);
    second.deliver(&Batch::new().build(), Some(&progress("two"))).await.unwrap();
    assert_eq!(token(&*second).await.as_deref(), Some("two"), "alone, where it is asked for");
    assert!(second.has_destination("products").await.unwrap());
}

#[tokio::test]
async fn c063_a_former_leader_writes_nothing_after_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    // As an earlier release has made it.
    let user = Connection::open(&path).unwrap();
    user.execute_batch(
        "create table _anabranch_progress (key text not null primary key, token text not null)",
    )
    .unwrap();
    let (former, later) = (sink(&path), sink(&path));
    former.deliver(&Batch::new().upsert("1", "1").build(), Some(&under(3, "three"))).await.unwrap();
    later.deliver(&Batch::new().upsert("1", "2").build(), Some(&under(4, "four"))).await.unwrap();
    let late = former.deliver(&Batch::new().upsert("1", "1").build(), Some(&under(3, "late"))).await;
    assert_eq!(late.unwrap_err().code, "superseded");
    former.purge("products", Some(&under(3, "late"))).await.unwrap_err();
    assert_eq!(
        (token(&*later).await.as_deref(), rows(&path, "products")),
        (Some("four"), vec![row("1", "2")])
    );
    // Another cluster counts for itself.
    let other = Progress { fence: Fence { owner: "another".to_owned(), term: 1 }, ..under(1, "other") };
    former.deliver(&Batch::new().upsert("1", "3").build(), Some(&other)).await.unwrap();
    assert_eq!(rows(&path, "products"), [row("1", "3")]);
}

#[tokio::test]
async fn c066_progress_is_not_stored_when_its_documents_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", "1").build(), Some(&progress("one"))).await.unwrap();
    let user = Connection::open(&path).unwrap();
    let refuse = "create trigger refuse before insert on products when new.id = '13'
                  begin select raise(abort, 'no'); end";
    user.execute_batch(refuse).unwrap();
    let rejecting = Batch::new().upsert("2", "2").upsert("13", "13").build();
    assert_eq!(sink.deliver(&rejecting, Some(&progress("two"))).await.unwrap().len(), 1);
    assert_eq!(token(&*sink).await.as_deref(), Some("one"), "one document of it is missing");
    let broken = "create table refused (x check (x <> '99'));
                  create trigger broken after insert on products begin insert or rollback into refused values (new.id); end";
    user.execute_batch(broken).unwrap();
    let failing = Batch::new().upsert("3", "3").upsert("99", "99").build();
    sink.deliver(&failing, Some(&progress("three"))).await.unwrap_err();
    assert_eq!(token(&*sink).await.as_deref(), Some("one"), "none of it is there");
    assert_eq!(rows(&path, "products"), [row("1", "1"), row("2", "2")]);
    user.execute_batch("drop trigger refuse; drop trigger broken; begin immediate").unwrap();
    sink.deliver(&failing, Some(&progress("three"))).await.unwrap_err();
    sink.purge("products", Some(&progress("four"))).await.unwrap_err();
    assert_eq!((token(&*sink).await.as_deref(), rows(&path, "products").len()), (Some("one"), 2), "locked");
    user.execute_batch("commit").unwrap();
    sink.deliver(&failing, Some(&progress("three"))).await.unwrap();
    assert_eq!((token(&*sink).await.as_deref(), rows(&path, "products").len()), (Some("three"), 4));
}

/// The documents and the token come from one transaction: no reader ever sees one without the other.
#[tokio::test(flavor = "multi_thread")]
async fn progress_and_documents_are_seen_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("n", "0").build(), Some(&progress("0"))).await.unwrap();
    let reader = Connection::open(&path).unwrap();
    let writing = tokio::spawn(async move {
        for n in 1..200 {
            let body = n.to_string();
            sink.deliver(&Batch::new().upsert("n", &body).build(), Some(&progress(&body))).await.unwrap();
        }
    });
    let query = "select document, (select token from _anabranch_progress) from products";
    while !writing.is_finished() {
        let (document, token): (String, String) =
            reader.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(document, token);
        tokio::task::yield_now().await;
    }
    writing.await.unwrap();
}

#[tokio::test]
async fn a_purge_stores_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.purge("products", Some(&progress("none yet"))).await.unwrap();
    assert_eq!(token(&*sink).await.as_deref(), Some("none yet"));
    sink.deliver(&Batch::new().upsert("1", "1").build(), Some(&progress("one"))).await.unwrap();
    sink.purge("products", Some(&progress("purged"))).await.unwrap();
    assert_eq!((token(&*sink).await.as_deref(), rows(&path, "products").len()), (Some("purged"), 0));
}

#[tokio::test]
async fn the_table_of_tokens_is_no_destination() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", "1").build(), Some(&progress("one"))).await.unwrap();
    for name in ["_anabranch_progress", "_Anabranch_Progress"] {
        let rejected = sink.deliver(&Batch::new().to(name).upsert("1", "1").build(), None).await.unwrap();
        assert_eq!(rejected[0].failure.code, "sqlite-destination");
        assert_eq!(sink.purge(name, None).await.unwrap_err().code, "sqlite-destination");
    }
    assert_eq!(token(&*sink).await.as_deref(), Some("one"));
}
