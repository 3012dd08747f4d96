//! SIGKILL at any moment, under load, with backfills running.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use testkit::{
    load::{LoadOptions, Random},
    postgres::shared,
    shop::Size,
    wait_until,
};

use super::{
    lag::expected,
    world::{
        Background, LATE, ORDERS, PRODUCTS, TWO_MAPPINGS, World, lines, order_summary, product_search, seed,
    },
};

const KILLS: u64 = 20;
const VERSIONS: [&str; 3] = ["1.0.0", "1.1.0", "1.2.0"];

/// Small chunks and small queues, so that much is in flight in many places.
const SMALL: &str = r#"
[backfill]
chunk_size = 150

[pipeline]
batch_rows = 200
queue_bytes = "256KiB"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn c036_twenty_kills_under_load_with_backfills_lose_nothing() {
    let seed = seed();
    let mut random = Random::new(seed);
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 20_000, orders: 20_000, customers: 0 };
    let mut world = World::new(&database.url, rows, &format!("{TWO_MAPPINGS}{SMALL}")).await;
    let all: Vec<_> = VERSIONS.iter().flat_map(|v| [product_search(v), order_summary(v)]).collect();
    world.prepare(&all);
    world.install("product-search", &product_search(VERSIONS[0]));
    world.install("order-summary", &order_summary(VERSIONS[0]));
    let options = LoadOptions { copy_every: 600, ..LoadOptions::new(seed, rows.products) };
    let mut load = Background::start(&world.url, options).await;

    let (mut killed_while_reading, mut bumps) = (0, 0);
    for kill in 0..KILLS {
        let from = world.host.log_length();
        world.host.start().unwrap();
        // Some are killed while they start.
        let midway = kill == KILLS / 2;
        if random.below(5) > 0 || midway {
            world.logged(from, "streaming").await;
            let idle = world.reading(PRODUCTS).await.is_none() && world.reading(ORDERS).await.is_none();
            if idle || midway {
                bumps += 1;
                let version = VERSIONS[bumps % VERSIONS.len()];
                world.install("product-search", &product_search(version));
                if bumps.is_multiple_of(2) {
                    world.install("order-summary", &order_summary(version));
                }
            }
        }
        // Half of them come at any moment, half once the backfill has got a bit further.
        if random.below(2) == 0 {
            let (before, some) = (world.progress().await, i64::try_from(random.below(2_000)).unwrap());
            wait_until("the backfill to get further", LATE, async || {
                let now = world.progress().await;
                let reads = world.reading(PRODUCTS).await.is_some() || world.reading(ORDERS).await.is_some();
                Ok(!reads || now.1 != before.1 || now.0 > before.0 + some)
            })
            .await
            .unwrap();
        }
        load.advance(1 + random.below(40)).await;
        let reading = [world.reading(PRODUCTS).await, world.reading(ORDERS).await];
        world.host.kill().unwrap();
        killed_while_reading += u64::from(reading.iter().any(Option::is_some));
        eprintln!("kill {kill}: rows of the running backfills {reading:?}, {bumps} bumps");
    }
    let counts = load.stop().await;
    eprintln!("{counts:?}");
    assert!(counts.copies > 0, "{counts:?}");
    assert!(killed_while_reading >= KILLS / 2, "only {killed_while_reading} kills hit a backfill");
    let resumed = |line: &&str| {
        line.contains("goes on from its cursor") && !line.contains("rows=0 ") && !line.ends_with("rows=0")
    };
    let log = world.host.log();
    let resumptions = log.lines().filter(resumed).count();
    assert!(resumptions > 0, "no backfill went on from its cursor");

    // One more rebuild, without kills.
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.check().await;
    world.terminate();
}

const CHUNK: u64 = 50;
/// Chunks that are read and not yet durable come to so many bytes.
const IN_FLIGHT: u64 = 128 << 10;

/// One mapping into a file of lines, which keeps no progress with them.
fn into_lines() -> String {
    format!(
        r#"
[sink.log]
kind = "jsonl"
path = "products.jsonl"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "log"
destination = "products"

[backfill]
chunk_size = {CHUNK}
prefetch_bytes = "{}KiB"
"#,
        IN_FLIGHT >> 10
    )
}

/// What a kill repeats of a backfill where the sink cannot say what it has: the chunks in flight, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn c066_twenty_kills_repeat_no_more_of_a_backfill_than_what_was_in_flight() {
    let seed = seed();
    let mut random = Random::new(seed);
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 60_000, orders: 10, customers: 0 };
    let mut world = World::new(&database.url, rows, &into_lines()).await;
    world.install("product-search", &product_search("1.0.0"));
    let file = world.host.path("products.jsonl");
    let options = LoadOptions { copy_every: 0, ..LoadOptions::new(seed, rows.products) };
    let load = Background::start(&world.url, options).await;

    let (mut delivered, mut repeats, mut while_reading) = (BTreeSet::new(), Vec::new(), 0);
    for kill in 0..=KILLS {
        let from = world.host.log_length();
        let before = lines(&file).len();
        world.host.start().unwrap();
        world.logged(from, "streaming").await;
        if kill == KILLS {
            world.built("products", 1).await;
        } else {
            let (read, some) = (world.progress().await.0, 1 + i64::try_from(random.below(2_000)).unwrap());
            wait_until("the backfill to get further", LATE, async || {
                Ok(world.reading(PRODUCTS).await.is_none() || world.progress().await.0 >= read + some)
            })
            .await
            .unwrap();
            while_reading += u64::from(world.reading(PRODUCTS).await.is_some());
            world.host.kill().unwrap();
        }
        // A line that was torn is cut off at the next start, and no delivery.
        let ids = backfilled(&lines(&file)[before..]);
        repeats.push(ids.iter().filter(|id| delivered.contains(*id)).count() as u64);
        delivered.extend(ids);
    }
    let counts = load.stop().await;
    let row = "select ((report ->> 'bytes')::bigint / (report ->> 'rows')::bigint)::text from anabranch.run";
    let row: u64 = world.text(row).await.unwrap().parse().unwrap();
    let in_flight = IN_FLIGHT / row + CHUNK;
    eprintln!("{counts:?}; repeated {repeats:?}, {in_flight} rows of {row} bytes in flight at the most");
    assert!(while_reading >= KILLS * 3 / 4, "only {while_reading} kills hit the backfill");
    assert!(repeats.iter().all(|repeated| *repeated <= in_flight), "{repeats:?}, {in_flight} in flight");
    assert!(repeats.iter().sum::<u64>() > 0, "no kill hit a chunk in flight: too few to tell");

    let expected = expected(&world).await;
    let replayed = || lines(&file).into_iter().fold(BTreeMap::new(), replay);
    let equal = wait_until("the lines to come to the source", LATE, async || Ok(replayed() == expected));
    equal.await.unwrap_or_else(|error| panic!("{error:#}\n{}", world.host.log_tail()));
    world.terminate();
}

/// The ids of rows that a backfill has read.
fn backfilled(lines: &[Value]) -> BTreeSet<String> {
    let read = lines.iter().filter(|line| line["origin"] == "backfill" && line["op"] == "upsert");
    read.map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

/// The last word on each id.
fn replay(mut documents: BTreeMap<String, Value>, mut line: Value) -> BTreeMap<String, Value> {
    let id = line["id"].as_str().unwrap().to_owned();
    match line["op"].as_str().unwrap() {
        "delete" => documents.remove(&id),
        _ => documents.insert(id, line["document"].take()),
    };
    documents
}
