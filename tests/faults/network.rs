//! Faults of the network between the host and the server, under load: nothing is lost, and the health says what is.

use std::time::Duration;

use testkit::{
    Proxy,
    load::{LoadOptions, Random},
    postgres::shared,
    shop::Size,
    wait_until,
};

use super::{
    lag::{arrived, missing},
    receiver::{Receiver, Reply},
    web::Web,
    world::{Background, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed},
};

const ROWS: Size = Size { products: 3_000, orders: 3_000, customers: 0 };

/// Quick to notice, and as told by `[source]`.
const QUICK: &str = "silence_limit = \"5s\"\nheartbeat_interval = \"1s\"\nstatus_interval = \"500ms\"\n";
const LISTEN: &str = "\n[http]\nlisten = \"127.0.0.1:0\"\n";
const CHUNKS: &str = "\n[backfill]\nchunk_size = 100\n";

/// A world whose host goes through a proxy, and runs.
async fn world() -> (World, Proxy) {
    let cluster = shared().unwrap();
    let database = cluster.create_database().await.unwrap();
    // A server process that nobody answers to holds the slot no longer than this.
    let short = format!("alter role postgres in database {} set wal_sender_timeout = '5s'", database.name);
    database.execute(&short).await.unwrap();
    let proxy = Proxy::start(cluster.port()).await.unwrap();
    let through = format!("{}&connect_timeout=2", proxy.url(&database.name));
    let config = format!("{QUICK}{TWO_MAPPINGS}{LISTEN}{CHUNKS}");
    let mut world = World::through(&database.url, &through, ROWS, &config).await;
    world.prepare(&[product_search("1.1.0")]);
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.logged(0, ": streaming ").await;
    (world, proxy)
}

fn load_options(seed: u64) -> LoadOptions {
    LoadOptions { copy_every: 0, ..LoadOptions::new(seed, ROWS.products) }
}

#[tokio::test(flavor = "multi_thread")]
async fn c057_half_open_links_are_told_given_up_and_lose_nothing() {
    let (mut world, proxy) = world().await;
    let web = Web::of(&mut world.host, 0).await;
    let mut load = Background::start(&world.url, load_options(seed())).await;
    load.advance(20).await;
    web.wait("/healthz", 200, "\"ok\"").await;

    // The stream alone: everything else answers.
    let from = world.host.log_length();
    proxy.stall("/stream");
    load.advance(20).await;
    web.wait("/healthz", 200, "Postgres has sent nothing for").await;
    web.ask_until("/healthz", "the link is dead", "/livez").await.unwrap();
    proxy.resume();
    world.logged(from, ": streaming ").await;
    web.wait("/healthz", 200, "\"ok\"").await;

    // The session that positions are saved by; the lock and the stream are well.
    let from = world.host.log_length();
    proxy.stall("/state");
    world.logged(from, "did not answer within 20 s when it was asked for the state schema").await;
    proxy.resume();
    world.logged(from, ": streaming ").await;
    web.wait("/healthz", 200, "\"ok\"").await;

    // The whole network.
    let (from, links) = (world.host.log_length(), proxy.accepted());
    proxy.stall("");
    load.advance(20).await;
    web.ask_until("/readyz", "the term ended", "/livez").await.unwrap();
    web.ask_until("/readyz", "did not answer within 2 s", "/livez").await.unwrap();
    let tried = proxy.accepted() - links;
    assert!(tried < 60, "{tried} links were tried: a busy loop");
    proxy.resume();
    world.logged(from, ": streaming ").await;
    web.wait("/healthz", 200, "\"ok\"").await;
    load.advance(20).await;
    load.stop().await;
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.check().await;
    assert!(!world.host.log().contains("THE STREAM HAS A GAP"), "{}", world.host.log_tail());
    world.terminate();
}

const CUTS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn c057_links_that_are_cut_in_mid_message_lose_nothing() {
    let (mut world, proxy) = world().await;
    let seed = seed();
    let mut random = Random::new(seed);
    let mut load = Background::start(&world.url, load_options(seed)).await;
    for cut in 0..CUTS {
        load.advance(1 + random.below(20)).await;
        if cut == 2 {
            // Something to be cut in the middle of a page.
            let from = world.host.log_length();
            world.install("product-search", &product_search("1.1.0"));
            world.logged(from, "swapped its transform").await;
        }
        let from = world.host.log_length();
        let bytes = random.below(5_000);
        let cut = match cut % 3 {
            0 => proxy.cut_after("/stream", bytes),
            1 => proxy.cut_after("/state", bytes % 100) + proxy.cut_after("/snapshot", bytes),
            _ => proxy.cut_after("", bytes),
        };
        assert!(cut > 0, "no link to cut");
        load.advance(1).await;
        world.logged(from, "the term ended").await;
        world.logged(from, ": streaming ").await;
    }
    load.stop().await;
    world.built("products", 2).await;
    world.built("orders", 1).await;
    world.check().await;
    assert!(!world.host.log().contains("THE STREAM HAS A GAP"), "{}", world.host.log_tail());
    world.terminate();
}

/// One mapping into a receiver that takes its time, in small requests.
fn into(receiver: &Receiver) -> String {
    format!(
        r#"status_interval = "1h"

[pipeline]
queue_bytes = "64KiB"
batch_rows = 20

[sink.remote]
kind = "http"
timeout = "10m"
url = "{}"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "remote"
destination = "products"
"#,
        receiver.url("/documents")
    )
}

/// The server gives up who says nothing for 5 s, and nobody at all.
#[tokio::test(flavor = "multi_thread")]
async fn c057_a_slow_sink_costs_no_connection_whatever_the_servers_patience() {
    const LATE: Duration = Duration::from_millis(400);
    let mut worlds = Vec::new();
    for patience in ["5s", "0"] {
        let database = shared().unwrap().create_database().await.unwrap();
        let name = &database.name;
        let set = format!("alter role postgres in database {name} set wal_sender_timeout = '{patience}'");
        database.execute(&set).await.unwrap();
        let receiver = Receiver::start(|request, _| {
            let slow = String::from_utf8_lossy(&request.body).contains("\"slow ");
            if slow { Reply::Late(LATE) } else { Reply::status(200) }
        })
        .await;
        let rows = Size { products: 800, orders: 1, customers: 0 };
        let mut world = World::new(&database.url, rows, &into(&receiver)).await;
        world.install("product-search", &product_search("1.0.0"));
        world.host.start().unwrap();
        worlds.push((world, receiver));
    }
    for (world, receiver) in &worlds {
        world.built("products", 1).await;
        arrived(world, receiver, 0..0).await;
    }
    let streams = |world: &World| {
        format!(
            "select a.pid::text || ' ' || (now() - a.backend_start > '16 s')::text from pg_stat_activity as a
             join pg_replication_slots as s on s.active_pid = a.pid where s.slot_name = '{}'",
            world.slot()
        )
    };
    let mut before = Vec::new();
    for (world, _) in &worlds {
        before.push(world.text(&streams(world)).await.unwrap());
        // A transaction each, so that the stream has more to say all the while.
        for part in 0..8 {
            let update = format!("update public.products set name = 'slow ' || id where id % 8 = {part}");
            world.execute(&update).await;
        }
    }
    for (world, receiver) in &worlds {
        assert!(missing(world, receiver).await > 300, "it is slow");
    }
    for ((world, receiver), before) in worlds.iter().zip(&before) {
        arrived(world, receiver, 0..0).await;
        wait_until("the connection to be older than three times the server's patience", SOON, async || {
            Ok(world.text(&streams(world)).await.is_some_and(|now| now.ends_with("true")))
        })
        .await
        .unwrap();
        let now = world.text(&streams(world)).await.unwrap();
        assert_eq!(now.split(' ').next(), before.split(' ').next(), "the same connection");
        assert!(!world.host.log().contains("the term ended"), "{}", world.host.log_tail());
    }
    for (mut world, _) in worlds {
        world.terminate();
    }
}
