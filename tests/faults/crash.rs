//! SIGKILL at any moment, under load, with backfills running.

use testkit::{
    load::{LoadOptions, Random},
    postgres::shared,
    shop::Size,
    wait_until,
};

use super::world::{
    Background, LATE, ORDERS, PRODUCTS, TWO_MAPPINGS, World, order_summary, product_search, seed,
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
