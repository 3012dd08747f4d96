//! The checker finds every kind of difference; the load runs on the shop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;
use testkit::checker::{Destination, Difference, Expectation, compare, fill_for_test};
use testkit::load::{Load, LoadOptions};
use testkit::shared;
use testkit::shop::{self, Size};

#[tokio::test(flavor = "multi_thread")]
async fn differences_are_found_both_ways() {
    let database = shared().unwrap().create_database().await.unwrap();
    let values = r#"values ('a', '{"n": 1}'), ('b', '{"n": 2}'), ('d', '{"n": 4}'), ('Z', '{"n": 1.0}')"#;
    database
        .execute(&format!("create table t as select * from ({values}) as v (id, document)"))
        .await
        .unwrap();
    let source = database.connect().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.db");
    let same = [("a", r#"{"n":1}"#), ("b", r#"{"n":2}"#), ("d", r#"{"n":4}"#), ("Z", r#"{"n":1.0}"#)];
    fill_for_test(&file, "same", &same).unwrap();
    let other =
        [("a", r#"{"n":1}"#), ("b", r#"{"n":3}"#), ("c", r#"{"n":2}"#), ("Z", r#"{"n":1.0}"#), ("é", "1")];
    fill_for_test(&file, "other", &other).unwrap();

    let expectation = Expectation::new("select * from t");
    let equal = compare(&source, &expectation, &Destination::new(&file, "same")).await.unwrap();
    assert!(equal.is_equal() && equal.expected == 4 && equal.found == 4, "{equal}");

    let result = compare(&source, &expectation, &Destination::new(&file, "other")).await.unwrap();
    assert_eq!((result.missing, result.extra, result.different), (1, 2, 1), "{result}");
    assert_eq!((result.expected, result.found), (4, 5));
    let first = Difference::Different { id: "b".into(), expected: json!({"n": 2}), found: json!({"n": 3}) };
    assert_eq!(result.examples[0], first);

    let nothing = compare(&source, &expectation, &Destination::new(&file, "nowhere")).await.unwrap();
    assert_eq!((nothing.missing, nothing.found), (4, 0));

    let only_small = Expectation::new("select * from t")
        .rewritten(|id, document| (id != "d" && id != "Z").then(|| json!({ "twice": document["n"] })));
    let result = compare(&source, &only_small, &Destination::new(&file, "same")).await.unwrap();
    assert_eq!((result.expected, result.different, result.extra), (2, 2, 2), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_does_the_same() {
    let mut states = Vec::new();
    for _ in 0..2 {
        let database = shared().unwrap().create_database().await.unwrap();
        shop::create(&database.connect().await.unwrap(), Size::of(2_000)).await.unwrap();
        let options = LoadOptions {
            copy_every: 100,
            copy_rows: 2_000,
            truncate_every: 130,
            ..LoadOptions::new(7, 800)
        };
        let mut load = Load::new(&database.url, options).await.unwrap();
        load.run(300).await.unwrap();
        assert_eq!((load.counts().copies, load.counts().truncations), (3, 2));
        let digest = "select md5(string_agg(md5(row (id, sku, name, description, price, stock, active)::text), '' order by id))
                      || (select count(*) from public.orders) from public.products";
        states.push(database.query_text(digest).await.unwrap());
    }
    assert_eq!(states[0], states[1]);
}

#[test]
fn writes_are_noted_also_where_nothing_changes() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("noted.db");
    fill_for_test(&file, "products", &[("1", "{}"), ("2", "{}")])?;
    let destination = Destination::new(&file, "products");
    destination.note_writes()?;
    assert_eq!(destination.written()?, (0, 2));
    let connection = rusqlite::Connection::open(&file)?;
    // Twice: a note that fails would fail the write.
    for _ in 0..2 {
        connection.execute(
            "insert into products values ('2', '{}') on conflict (id) do update set document = excluded.document",
            [],
        )?;
    }
    connection.execute_batch(
        "insert into products values ('3', '{}');
         delete from products where id = '3'",
    )?;
    assert_eq!(destination.written()?, (1, 2));
    Ok(())
}
