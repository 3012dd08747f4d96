//! Progress that a sink keeps with its documents: a kill repeats nothing, and a lost destination is noticed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    unreachable_pub
)]

#[path = "faults/world.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod world;

use std::{path::Path, time::Duration};

use rusqlite::Connection;
use testkit::{
    checker::{Destination, Expectation, settle},
    load::Random,
    postgres::{connect, shared},
    shop::{self, PRODUCT_DOCUMENTS, Size},
    wait_until,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use world::{LATE, PRODUCTS, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed};

const GONE: &str = "THE DESTINATION IS GONE";

/// One mapping into one SQLite file, in small chunks.
const ONE_MAPPING: &str = r#"
[sink.search]
kind = "sqlite"
path = "search.db"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "search"
destination = "products"

[backfill]
chunk_size = 50
"#;

/// The destination as the sink makes it, with a log of every upsert in the transaction that it came with.
const LOGGED: &str = "
    create table products (id text not null primary key, document text not null, updated_lsn text not null,
        updated_at text not null);
    create table upserts (id text not null, lsn text not null);
    create trigger log_insert after insert on products
        begin insert into upserts values (new.id, new.updated_lsn); end;
    create trigger log_update after update on products
        begin insert into upserts values (new.id, new.updated_lsn); end;";

fn log_upserts(file: &Path) {
    let connection = Connection::open(file).unwrap();
    connection.execute_batch("pragma journal_mode = wal").unwrap();
    connection.execute_batch(LOGGED).unwrap();
}

fn count(file: &Path, query: &str) -> i64 {
    let connection = Connection::open(file).unwrap();
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    connection.query_row(query, [], |row| row.get(0)).unwrap()
}

/// Rows that a backfill has delivered: they have no commit of their own.
fn backfilled(file: &Path) -> i64 {
    count(file, "select count(*) from upserts where lsn = '0/0'")
}

/// Transactions that touch a row once each, so that a document and a commit name one delivery.
async fn touch(url: String, seed: u64, rows: u64, stop: CancellationToken) -> u64 {
    let client = connect(&url).await.unwrap();
    let mut random = Random::new(seed);
    let (mut next, mut steps) = (10_000_000, 0);
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let id = 1 + random.below(rows);
        let statement = match random.below(10) {
            0..5 => format!(
                "update public.products set price = price + 0.01 where id between {id} and {}",
                id + random.below(5)
            ),
            5..8 => shop::insert_products(next, next + 2, id),
            8 => format!("update public.products set id = {next} where id = {id}"),
            _ => format!("delete from public.products where id = {id}"),
        };
        next += 3;
        client.batch_execute(&statement).await.unwrap();
        steps += 1;
    }
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn c066_twenty_kills_during_a_backfill_under_load_deliver_nothing_twice() {
    const KILLS: usize = 20;
    let seed = seed();
    let mut random = Random::new(seed);
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 80_000, orders: 0, customers: 0 };
    let mut world = World::new(&database.url, rows, ONE_MAPPING).await;
    world.install("product-search", &product_search("1.0.0"));
    let file = world.host.path("search.db");
    log_upserts(&file);
    let stop = CancellationToken::new();
    let load = touch(world.url.clone(), seed, rows.products, stop.clone());
    let load = AbortOnDropHandle::new(tokio::spawn(load));

    let mut killed_while_reading = 0;
    for kill in 0..KILLS {
        let from = world.host.log_length();
        world.host.start().unwrap();
        world.logged(from, "streaming").await;
        let before = backfilled(&file);
        let some = i64::try_from(random.below(2_000)).unwrap();
        wait_until("the backfill to get further", LATE, async || {
            Ok(backfilled(&file) > before + some || world.reading(PRODUCTS).await.is_none())
        })
        .await
        .unwrap();
        let reading = world.reading(PRODUCTS).await;
        world.host.kill().unwrap();
        killed_while_reading += usize::from(reading.is_some());
        eprintln!("kill {kill}: {reading:?} rows saved, {} delivered", backfilled(&file));
    }
    assert!(killed_while_reading >= KILLS * 3 / 4, "only {killed_while_reading} kills hit the backfill");
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    world.built("products", 1).await;
    stop.cancel();
    eprintln!("{} transactions beside it", load.await.unwrap());
    world.check_one("products", PRODUCT_DOCUMENTS).await;

    let twice = |which: &str| {
        let query = format!(
            "select count(*) from (select id from upserts where {which} group by id, lsn having count(*) > 1)"
        );
        count(&file, &query)
    };
    let live = count(&file, "select count(*) from upserts where lsn <> '0/0'");
    eprintln!("{} documents backfilled, {live} live", backfilled(&file));
    assert!(live > 500, "{live} live changes are too few to tell");
    assert_eq!((twice("lsn = '0/0'"), twice("lsn <> '0/0'")), (0, 0), "backfilled rows, live changes");
    assert!(!world.host.log().contains(GONE), "{}", world.host.log_tail());
    world.terminate();
}

/// Two targets of one run have got differently far: it goes on where the one that has least stands.
#[tokio::test(flavor = "multi_thread")]
async fn c066_a_run_for_two_files_that_is_killed_leaves_no_gap_in_either() {
    const SECOND: &str = r#"
[sink.other]
kind = "sqlite"
path = "other.db"

[[map]]
name = "others"
table = "public.products"
transform = "product-search"
sink = "other"
destination = "products"
"#;
    let seed = seed();
    let mut random = Random::new(seed);
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 20_000, orders: 0, customers: 0 };
    let mut world = World::new(&database.url, rows, &format!("{SECOND}{ONE_MAPPING}")).await;
    world.install("product-search", &product_search("1.0.0"));
    let files = [world.host.path("search.db"), world.host.path("other.db")];
    files.iter().for_each(|file| log_upserts(file));
    for kill in 0..6 {
        let from = world.host.log_length();
        world.host.start().unwrap();
        world.logged(from, "streaming").await;
        // One of the two is held up now and then.
        let held = Connection::open(&files[kill % 2]).unwrap();
        held.busy_timeout(Duration::from_secs(10)).unwrap();
        let before = backfilled(&files[0]);
        let some = i64::try_from(random.below(1_000)).unwrap();
        wait_until("the backfill to get further", LATE, async || {
            Ok(backfilled(&files[0]) > before + some || world.reading(PRODUCTS).await.is_none())
        })
        .await
        .unwrap();
        held.execute_batch("begin immediate").unwrap();
        let ahead = &files[(kill + 1) % 2];
        let (now, mut asked) = (backfilled(ahead), 0);
        wait_until("the other one to go ahead, or to wait", SOON, async || {
            asked += 1;
            Ok(backfilled(ahead) > now || asked > 20)
        })
        .await
        .unwrap();
        world.host.kill().unwrap();
        eprintln!("kill {kill}: {} and {} delivered", backfilled(&files[0]), backfilled(&files[1]));
    }
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    world.built("products", 1).await;
    world.built("others", 1).await;
    let client = connect(&world.url).await.unwrap();
    for file in &files {
        let destination = Destination::new(file, "products");
        let settled = settle(&client, &Expectation::new(PRODUCT_DOCUMENTS), &destination, LATE).await;
        settled.unwrap_or_else(|error| panic!("{error:#}\n{}", world.host.log_tail()));
    }
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_destination_that_was_removed_while_stopped_is_built_again() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 500, orders: 500, customers: 0 };
    let config = format!(
        "{}\n[sink.other]\nkind = \"sqlite\"\npath = \"other.db\"\n",
        TWO_MAPPINGS.replace("sink = \"search\"\ndestination = \"orders\"", "sink = \"other\"")
    );
    let mut world = World::new(&database.url, rows, &config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.check_one("products", PRODUCT_DOCUMENTS).await;
    world.terminate();

    for name in ["search.db", "search.db-wal", "search.db-shm"] {
        let _ = std::fs::remove_file(world.host.path(name));
    }
    world.execute("update public.products set price = 1 where id < 10").await;
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.built("products", 2).await;
    world.check_one("products", PRODUCT_DOCUMENTS).await;
    assert_eq!(world.mapping("orders").await.unwrap().0, 1, "the other file is untouched");
    world.terminate();
    let line = world.logged(from, GONE).await;
    assert!(line.contains("mapping=\"products\""), "{line}");
    assert_eq!(world.host.log().matches(GONE).count(), 1, "one line");

    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    assert_eq!(world.mapping("products").await.unwrap().0, 2, "and not again");
    world.terminate();
}

/// Neither an installation from before there were tokens nor a mapping without a document has lost anything.
#[tokio::test(flavor = "multi_thread")]
async fn no_token_and_no_document_is_no_loss() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 500, orders: 0, customers: 0 };
    let mut world = World::new(&database.url, rows, TWO_MAPPINGS).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.check().await;
    world.terminate();

    let file = world.host.path("search.db");
    assert_eq!(count(&file, "select count(*) from _anabranch_progress"), 2);
    let forget = "delete from _anabranch_progress where key like '%/products'";
    Connection::open(&file).unwrap().execute_batch(forget).unwrap();
    world.execute("update public.products set price = 1 where id < 10").await;
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    world.check().await;
    world.terminate();
    assert!(!world.host.log().contains(GONE), "{}", world.host.log_tail());
    for mapping in ["products", "orders"] {
        assert_eq!(world.mapping(mapping).await.unwrap().0, 1, "{mapping} was rebuilt");
    }
    assert_eq!(count(&file, "select count(*) from _anabranch_progress"), 2, "adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncate_leaves_a_destination_that_others_write_to() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 200, orders: 0, customers: 0 };
    let config = TWO_MAPPINGS
        .replace("destination = \"products\"", "destination = \"all\"")
        .replace("sink = \"search\"\ndestination = \"orders\"", "sink = \"again\"\ndestination = \"all\"");
    let config = format!("{config}\n[sink.again]\nkind = \"sqlite\"\npath = \"search.db\"\n");
    let mut world = World::new(&database.url, rows, &config).await;
    world.execute(&shop::insert_orders(100_001, 100_050, 1)).await;
    world.execute("update public.orders set status = 'open'; update public.products set active = true").await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    let all = world.destination("all");
    wait_until("all documents", SOON, async || Ok(all.count()? == 250)).await.unwrap();
    let from = world.host.log_length();
    let insert = shop::insert_orders(200_001, 200_001, 1);
    world
        .execute(&format!("truncate public.orders; {insert} update public.orders set status = 'open'"))
        .await;
    wait_until("what came after the truncate", SOON, async || Ok(all.get("200001")?.is_some()))
        .await
        .unwrap();
    assert_eq!(all.count().unwrap(), 251, "nothing was emptied");
    let line = world.logged(from, "shared with").await;
    assert!(line.contains("mapping=\"orders\"") && line.contains("shared with products"), "{line}");
    world.terminate();
}
