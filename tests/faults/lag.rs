//! A sink that fails or says nothing holds the slot, and nothing else.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use serde_json::Value;
use testkit::{
    postgres::shared,
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, Size},
    wait_until,
};

use super::{
    receiver::{Receiver, Reply},
    world::{LATE, SOON, World, order_summary, product_search},
};

const FINE: u8 = 0;
const FAILING: u8 = 1;
const SILENT: u8 = 2;

const MAPPINGS: &str = r#"
[pipeline]
queue_bytes = "64KiB"
batch_rows = 100
batch_bytes = "32KiB"

[sink.search]
kind = "sqlite"
path = "search.db"

[[map]]
name = "orders"
table = "public.orders"
transform = "order-summary"
sink = "search"
destination = "orders"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "remote"
destination = "products"

[sink.remote]
kind = "http"
timeout = "2s"
"#;

/// A world whose products go to a receiver that does as it is told.
async fn world(rows: Size, mood: u8) -> (World, Receiver, Arc<AtomicU8>) {
    let mood = Arc::new(AtomicU8::new(mood));
    let told = Arc::clone(&mood);
    let receiver = Receiver::start(move |_, _| match told.load(Ordering::Relaxed) {
        FINE => Reply::status(200),
        FAILING => Reply::status(503),
        _ => Reply::Hang,
    })
    .await;
    let database = shared().unwrap().create_database().await.unwrap();
    let config = format!("{MAPPINGS}url = \"{}\"\n", receiver.url("/documents"));
    let world = World::new(&database.url, rows, &config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    (world, receiver, mood)
}

/// What a receiver holds that had taken what came from request `from` on, in order, onto `documents`.
fn apply(receiver: &Receiver, accepted: impl Fn(usize) -> bool, documents: &mut BTreeMap<String, Value>) {
    for (number, request) in receiver.received().iter().enumerate() {
        if !accepted(number) {
            continue;
        }
        for entry in request.json()["documents"].as_array().unwrap() {
            let id = entry["id"].as_str().unwrap().to_owned();
            match entry["op"].as_str().unwrap() {
                "delete" => documents.remove(&id),
                _ => documents.insert(id, entry["document"].clone()),
            };
        }
    }
}

/// The products' documents by their ids, as SQL makes them.
pub async fn expected(world: &World) -> BTreeMap<String, Value> {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as documents");
    let rows = world.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

/// How many documents of the products have not arrived yet.
pub async fn missing(world: &World, receiver: &Receiver) -> usize {
    let mut documents = BTreeMap::new();
    apply(receiver, |_| true, &mut documents);
    expected(world).await.iter().filter(|(id, document)| documents.get(*id) != Some(document)).count()
}

/// Everything of the products has arrived, in requests that were taken.
pub async fn arrived(world: &World, receiver: &Receiver, refused: std::ops::Range<usize>) {
    let expected = expected(world).await;
    let mut documents = BTreeMap::new();
    let waited = wait_until("the receiver to have everything", LATE, async || {
        documents.clear();
        apply(receiver, |number| !refused.contains(&number), &mut documents);
        Ok(documents == expected)
    });
    if let Err(error) = waited.await {
        let missing = expected.keys().filter(|id| !documents.contains_key(*id)).count();
        let extra = documents.keys().filter(|id| !expected.contains_key(*id)).count();
        panic!("{error:#}: {missing} missing, {extra} extra\n{}", world.host.log_tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c048_a_failing_sink_is_let_go_and_served_again_and_loses_nothing() {
    let rows = Size { products: 1_000, orders: 1_000, customers: 0 };
    let (mut world, receiver, mood) = world(rows, FINE).await;
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    arrived(&world, &receiver, 0..0).await;

    mood.store(FAILING, Ordering::Relaxed);
    let first = receiver.received().len();
    let from = world.host.log_length();
    world.execute("update public.products set name = 'held' where id = 1").await;
    let held = world.position().await;
    world.logged(from, "delivery failed").await;
    let peak = world.host.peak_memory_kib().unwrap();
    for round in 0..20 {
        let update = format!("update public.products set name = 'round {round} ' || id, stock = {round}");
        world.execute(&update).await;
        world.execute(&format!("update public.orders set customer = 'round {round}' where id <= 100")).await;
    }
    world.execute("delete from public.products where id between 10 and 20").await;
    world.logged(from, "fell behind while failing").await;
    world.check_one("orders", ORDER_DOCUMENTS).await;
    assert!(!world.passed(&held).await, "the slot passed what the sink has not accepted");
    let grown = world.host.peak_memory_kib().unwrap() - peak;
    eprintln!("20 000 rows of about half a kilobyte for the lane that was let go: {grown} KiB more");
    assert!(grown < 24 << 10, "{grown} KiB more");

    let refused = first..receiver.received().len();
    mood.store(FINE, Ordering::Relaxed);
    // A request that was refused between the two lines above comes again.
    world.logged(from, "works again").await;
    arrived(&world, &receiver, refused).await;
    wait_until("the slot to go on", SOON, async || Ok(world.passed(&held).await)).await.unwrap();
    world.check_one("orders", ORDER_DOCUMENTS).await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_fails_from_the_start_is_backfilled_when_it_comes_back() {
    let rows = Size { products: 3_000, orders: 3_000, customers: 0 };
    let (mut world, receiver, mood) = world(rows, FAILING).await;
    world.host.start().unwrap();
    world.logged(0, "delivery failed").await;
    // The other table is read beside it, and the stream goes on.
    world.built("orders", 1).await;
    for round in 0..5 {
        world.execute(&format!("update public.products set stock = {round}")).await;
        world.execute(&format!("update public.orders set customer = 'round {round}' where id <= 50")).await;
    }
    world.check_one("orders", ORDER_DOCUMENTS).await;
    let (generation, built, status) = world.mapping("products").await.unwrap();
    assert_eq!((generation, built, status.as_str()), (1, 0, "failing"));
    let refused = 0..receiver.received().len();
    mood.store(FINE, Ordering::Relaxed);
    world.built("products", 1).await;
    arrived(&world, &receiver, refused).await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c048_what_a_silent_sink_has_not_answered_holds_the_slot() {
    let rows = Size { products: 100, orders: 100, customers: 0 };
    let (mut world, receiver, mood) = world(rows, FINE).await;
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    arrived(&world, &receiver, 0..0).await;
    mood.store(SILENT, Ordering::Relaxed);
    let first = receiver.received().len();
    world.execute("update public.products set name = 'unanswered' where id = 1").await;
    let held = world.position().await;
    wait_until("the request", SOON, async || Ok(receiver.received().len() > first)).await.unwrap();
    for round in 0..30 {
        world.execute(&format!("update public.orders set customer = 'round {round}'")).await;
        world.check_one("orders", ORDER_DOCUMENTS).await;
        assert!(!world.passed(&held).await, "the slot passed what the sink has not accepted");
    }
    let refused = first..receiver.received().len();
    mood.store(FINE, Ordering::Relaxed);
    arrived(&world, &receiver, refused).await;
    wait_until("the slot to go on", SOON, async || Ok(world.passed(&held).await)).await.unwrap();
    world.terminate();
}
