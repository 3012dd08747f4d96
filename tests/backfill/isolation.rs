//! What fails fails alone: a sink, a transform, a table that cannot be read. It is recorded against its own table,
//! the others are read and streamed meanwhile, and it goes on from its cursor once it is mended.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use testkit::{
    checker::{Destination, Expectation, settle},
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS},
    wait_until,
};

use crate::{
    receiver::{Receiver, Reply},
    scene::{MENDED_DOCUMENTS, SOON, Scene, hostile, mended, orders},
    shop::{PRODUCTS, Shop, TWO},
    tables::make_again,
};

async fn sql(shop: &Shop, statements: &str) {
    shop.scene.client.batch_execute(statements).await.unwrap();
}

/// A short limit for statements, so that tests end.
fn impatient(config: &str) -> String {
    config.replace("[backfill]\n", "[backfill]\nstatement_timeout = \"1s\"\n")
}

/// Orders are read, and their live changes arrive, while the products' run fails.
async fn orders_go_on(shop: &Shop) {
    let generation = shop.scene.mapping("orders")["generation"].as_i64().unwrap();
    sql(shop, "update public.orders set total = total + 1 where id % 10 = 0").await;
    shop.asked(&["request", "orders"]);
    shop.reached("orders", generation + 1).await;
    shop.scene.settled(ORDER_DOCUMENTS, "orders").await;
}

/// Waits until the products' run has failed so often; gives the pause before its next attempt, in seconds, and
/// what it says.
async fn failed(shop: &Shop, attempts: u32) -> (f64, String) {
    shop.until_run(&format!("entity = 'public.products' and status = 'failing' and attempts >= {attempts}"))
        .await;
    let pause = "select extract(epoch from not_before - updated_at)::text from anabranch.run
                 where entity = 'public.products'";
    let pause = shop.text(pause).await.parse().unwrap();
    (pause, shop.text("select last_error from anabranch.run where entity = 'public.products'").await)
}

/// Saved, so that another host waits as well: 5 s, then 10 s; a little less by the time it is looked at.
async fn pauses_grow(shop: &Shop) -> String {
    let (first, _) = failed(shop, 1).await;
    let (second, error) = failed(shop, 2).await;
    assert!((1.0..=5.0).contains(&first) && (5.5..=10.0).contains(&second), "{first} s, then {second} s");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_table_that_is_locked_fails_alone_and_goes_on_from_its_cursor() {
    let mut shop = Shop::new(6000, 500).await;
    shop.scene.config(&impatient(TWO));
    shop.scene.host.start().unwrap();
    shop.midway().await;
    let locker = shop.scene.database.connect().await.unwrap();
    locker.batch_execute("begin; lock table public.products in access exclusive mode").await.unwrap();
    let table = shop.scene.table("products");
    // In this order: a chunk that was in flight may arrive in between.
    let before = table.count().unwrap();
    table.note_writes().unwrap();
    shop.resume();
    let error = pauses_grow(&shop).await;
    assert!(error.contains("lock timeout") && error.contains("public.products"), "{error}");
    orders_go_on(&shop).await;
    let status = shop.scene.host.status().unwrap();
    let runs = status["backfills"].as_array().unwrap();
    let run = runs.iter().find(|run| run["entity"] == PRODUCTS).unwrap();
    assert!(run["attempts"].as_i64() >= Some(2) && run["last_error"] == error.as_str(), "{run}");
    assert_eq!(shop.scene.mapping("products")["status"], "running", "its live changes go on");
    let (code, shape) = shop.ask(&["wait", PRODUCTS, "--timeout", "60s"]);
    assert_eq!(code, 1, "{shape}");
    assert!(shape["error"].as_str().unwrap().contains("lock timeout"), "{shape}");
    locker.batch_execute("rollback").await.unwrap();
    shop.reached("products", 1).await;
    let shape = shop.asked(&["wait", PRODUCTS, "--timeout", "60s"]);
    assert!(shape["items"][0]["retries"].as_u64() >= Some(2), "{shape}");
    shop.check().await;
    assert_eq!(
        table.written().unwrap().0,
        table.count().unwrap() - before,
        "nothing before the cursor again"
    );
}

/// 100 kB that do not compress well.
const LARGE: &str = "(select string_agg(md5(i::text), ' ') from generate_series(1, 3100) as i)";

#[tokio::test(flavor = "multi_thread")]
async fn c014_a_locked_table_whose_rows_are_to_be_read_again_holds_its_own_mapping_alone() {
    let mut shop = Shop::new(500, 500).await;
    sql(&shop, &format!("update public.products set active = true, description = {LARGE} where id <= 5"))
        .await;
    sql(&shop, &format!("update public.orders set status = 'open', customer = {LARGE} where id <= 5")).await;
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    shop.reached("orders", 1).await;
    // The change is committed at the very moment at which somebody else has the lock.
    let locker = shop.scene.database.connect().await.unwrap();
    sql(&shop, "begin; update public.products set price = 77 where id = 1").await;
    let lock = tokio::spawn(async move {
        locker.batch_execute("begin; lock table public.products in access exclusive mode").await.unwrap();
        locker
    });
    let watch = shop.scene.database.connect().await.unwrap();
    wait_until("the lock to be waited for", SOON, async || {
        let waits = "select exists (select from pg_locks where mode = 'AccessExclusiveLock' and not granted
                     and relation = 'public.products'::regclass)";
        Ok(watch.query_one(waits, &[]).await?.get::<_, bool>(0))
    })
    .await
    .unwrap();
    sql(&shop, "commit").await;
    let locker = lock.await.unwrap();
    // Others are read again meanwhile, and not only once the lock was waited for in vain: for ten seconds.
    sql(&shop, "update public.orders set total = 5 where id <= 5").await;
    let orders = shop.scene.table("orders");
    wait_until("the order that is read again", SOON, async || {
        Ok(orders.get("5")?.is_some_and(|document| document["total"] == 5.0))
    })
    .await
    .unwrap();
    let attempts = shop.text("select attempts::text from anabranch.mapping where name = 'products'").await;
    assert_eq!(attempts, "0", "the orders have waited for the products");
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("lock timeout") && error.contains("public.products"), "{error}");
    assert!(error.contains("could not be read again") && error.contains("retry"), "{error}");
    orders_go_on(&shop).await;
    shop.until("the second failure", || {
        "select attempts >= 2 and status = 'failing' from anabranch.mapping where name = 'products'"
            .to_owned()
    })
    .await;
    locker.batch_execute("rollback").await.unwrap();
    shop.check().await;
    assert_eq!(shop.scene.table("products").get("1").unwrap().unwrap()["price"], 77.0);
    assert_eq!(shop.scene.mapping("products")["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn c045_a_table_that_is_dropped_fails_alone_until_there_is_one_again() {
    let mut shop = Shop::built(3000, 500).await;
    shop.midway().await;
    sql(&shop, "drop table public.products").await;
    shop.resume();
    let (_, error) = failed(&shop, 1).await;
    assert!(error.contains("public.products") && error.contains("does not exist"), "{error}");
    orders_go_on(&shop).await;
    // The same across a start.
    shop.scene.host.kill().unwrap();
    shop.scene.host.start().unwrap();
    orders_go_on(&shop).await;
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("public.products"), "{error}");
    make_again(&shop).await;
    shop.reached("products", 3).await;
    shop.check().await;
    assert_eq!(shop.scene.table("products").count().unwrap(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_takes_too_long_is_read_in_smaller_ones() {
    let mut shop = Shop::new(100, 2000).await;
    // A first page of 1250 rows, which would take five seconds.
    shop.scene.config(&impatient(&TWO.replace("chunk_size = 500", "chunk_size = 5000")));
    shop.scene.host.start().unwrap();
    shop.reached("orders", 1).await;
    let from = shop.scene.host.log_length();
    shop.asked(&["request", "orders", "--where", "pg_sleep(0.004)::text = ''"]);
    shop.until("the part to be read", || {
        "select not exists (select from anabranch.run where scope is not null)
         and not exists (select from anabranch.request)"
            .to_owned()
    })
    .await;
    let line = shop.scene.host.wait_log(from, "backfill complete", SOON).await.unwrap();
    assert!(line.contains("rows=2000") && !line.contains("retries=0"), "{line}");
    let log = shop.scene.host.log()[from..].to_owned();
    assert!(!log.contains("the backfill failed"), "smaller pages are no failure: {log}");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_may_not_be_read_fails_alone_until_it_may() {
    let mut shop = Shop::new(6000, 500).await;
    let database = shop.scene.database.name.clone();
    sql(
        &shop,
        &format!(
            "create role reader_{database} login replication;
             grant create on database {database} to reader_{database};
             alter table public.products owner to reader_{database};
             alter table public.orders owner to reader_{database}"
        ),
    )
    .await;
    let file = shop.scene.host.path("anabranch.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let url = shop.scene.database.url.clone();
    std::fs::write(&file, config.replace(&url, &as_role(&url, &format!("reader_{database}")))).unwrap();
    shop.scene.host.start().unwrap();
    shop.midway().await;
    sql(&shop, &format!("revoke select on public.products from reader_{database}")).await;
    let table = shop.scene.table("products");
    // In this order: a chunk that was in flight may arrive in between.
    let before = table.count().unwrap();
    table.note_writes().unwrap();
    shop.resume();
    let error = pauses_grow(&shop).await;
    assert!(error.contains("permission denied"), "{error}");
    orders_go_on(&shop).await;
    sql(&shop, "update public.products set name = 'live', active = true where id = 1").await;
    wait_until("the live change", SOON, async || {
        Ok(table.get("1")?.is_some_and(|document| document["title"] == "live"))
    })
    .await
    .unwrap();
    sql(&shop, &format!("grant select on public.products to reader_{database}")).await;
    shop.reached("products", 2).await;
    shop.check().await;
    let (written, more) = (table.written().unwrap().0, table.count().unwrap() - before);
    assert!(written <= more + 1, "nothing before the cursor again, but the live change: {written} of {more}");
    sql(&shop, &format!("reassign owned by reader_{database} to postgres")).await;
}

/// The same connection string for another role.
fn as_role(url: &str, role: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, place) = rest.split_once('@').unwrap_or(("", rest));
    format!("{scheme}://{role}@{place}")
}

/// The products to a sink of their own, whose settings these are; the orders as in [`TWO`].
fn apart(sink: &str) -> String {
    format!("[sink.remote]\n{sink}{}", TWO.replacen("sink = \"out\"", "sink = \"remote\"", 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_sink_that_answers_500_holds_its_table_alone() {
    let broken = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&broken);
    let receiver =
        Receiver::start(move |_, _| Reply::status(if told.load(Ordering::Relaxed) { 500 } else { 200 }))
            .await;
    let mut shop = Shop::new(6000, 500).await;
    let url = receiver.url("/documents");
    shop.scene.config(&apart(&format!("kind = \"http\"\ntimeout = \"5s\"\nurl = \"{url}\"\n")));
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    let first = receiver.received().len();
    shop.midway().await;
    let taken = receiver.received().len();
    broken.store(true, Ordering::Relaxed);
    shop.resume();
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("500"), "{error}");
    let (_, error) = failed(&shop, 2).await;
    assert!(error.contains("500"), "{error}");
    orders_go_on(&shop).await;
    broken.store(false, Ordering::Relaxed);
    shop.reached("products", 2).await;
    let ids = receiver.ids();
    let before: BTreeSet<&String> = ids[first..taken].iter().flatten().collect();
    assert!(!before.is_empty() && !ids[taken..].iter().flatten().any(|id| before.contains(id)));
    let all: BTreeSet<&String> = ids[first..].iter().flatten().collect();
    // Rows without a document are deletes.
    assert_eq!(all.len(), 6000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_cannot_be_opened_holds_its_table_alone() {
    let mut shop = Shop::new(3000, 500).await;
    shop.scene.config(&apart("kind = \"sqlite\"\npath = \"taken.db\"\n"));
    std::fs::create_dir(shop.scene.host.path("taken.db")).unwrap();
    shop.scene.host.start().unwrap();
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("taken.db"), "{error}");
    shop.reached("orders", 1).await;
    orders_go_on(&shop).await;
    std::fs::remove_dir(shop.scene.host.path("taken.db")).unwrap();
    shop.reached("products", 1).await;
    let table = Destination::new(shop.scene.host.path("taken.db"), "products");
    let settled = settle(&shop.scene.client, &Expectation::new(PRODUCT_DOCUMENTS), &table, SOON).await;
    settled.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_hostile_transform_holds_its_table_alone() {
    let scene = Scene::new(3000, 500).await;
    let config = TWO.replace("product-search", "hostile");
    scene.config(&format!("[plugins.hostile]\nconfig = {{ behave = \"trap\" }}\n{config}"));
    scene.plugin("hostile", &hostile());
    scene.plugin("order-summary", &orders());
    let mut shop = Shop { scene };
    shop.scene.host.start().unwrap();
    let (_, error) = failed(&shop, 2).await;
    assert!(error.contains("hostile") && error.contains("public.products"), "{error}");
    shop.reached("orders", 1).await;
    orders_go_on(&shop).await;
    assert_eq!(shop.scene.mapping("products")["status"], "failing");
    shop.scene.plugin("hostile", &mended());
    shop.reached("products", 2).await;
    shop.scene.settled(MENDED_DOCUMENTS, "products").await;
}
