//! The server goes away, as a whole or session by session; the host comes back by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::{Cluster, ClusterOptions, Stop, load::LoadOptions, shop::Size, wait_until};

use super::{
    lag::arrived,
    receiver::{Receiver, Reply},
    web::Web,
    world::{Background, PRODUCTS, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed},
};

const ROWS: Size = Size { products: 15_000, orders: 15_000, customers: 0 };
const CHUNKS: &str = "\n[backfill]\nchunk_size = 150\n";

/// The sessions to lose, by what `pg_stat_activity` shows of them.
const SESSIONS: [(&str, &str); 3] = [
    ("the walsender", "backend_type = 'walsender'"),
    ("the state's session", "application_name like '%/state'"),
    ("the leader's session", "application_name like '%/leader'"),
];

#[tokio::test(flavor = "multi_thread")]
async fn lost_sessions_and_restarts_under_load_lose_nothing() {
    let seed = seed();
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let mut world = World::new(&database.url, ROWS, &format!("{TWO_MAPPINGS}{CHUNKS}")).await;
    world.prepare(&[product_search("1.1.0")]);
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.logged(0, "streaming").await;
    let options = LoadOptions { copy_every: 1_000, ..LoadOptions::new(seed, ROWS.products) };
    let mut load = Background::start(&world.url, options).await;
    for (what, filter) in SESSIONS {
        load.advance(30).await;
        let reading = world.reading(PRODUCTS).await;
        let from = world.host.log_length();
        let terminate = format!(
            "select coalesce(sum(pg_terminate_backend(pid)::int), 0)::text from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() and {filter}"
        );
        let ended = world.text(&terminate).await.unwrap();
        eprintln!("{what}: ended {ended} sessions, backfill at {reading:?}");
        assert_eq!(ended, "1", "{what}: {:?}", sessions(&world).await);
        world.logged(from, "the term ended").await;
        world.logged(from, "streaming").await;
    }
    // A backfill for the restarts to hit.
    world.built("products", 1).await;
    let from = world.host.log_length();
    world.install("product-search", &product_search("1.1.0"));
    world.logged(from, "swapped its transform").await;
    for how in [Stop::Immediate, Stop::Fast] {
        load.advance(10).await;
        eprintln!("a restart ({how:?}), backfill at {:?}", world.reading(PRODUCTS).await);
        let from = world.host.log_length();
        cluster.restart(how).unwrap();
        world.client = database.connect().await.unwrap();
        world.logged(from, "the term ended").await;
        world.logged(from, "streaming").await;
    }
    let counts = load.stop().await;
    eprintln!("{counts:?}");
    assert!(counts.interrupted > 0, "{counts:?}");
    world.built("products", 2).await;
    world.built("orders", 1).await;
    world.check().await;
    assert!(!world.host.log().contains("THE STREAM HAS A GAP"), "{}", world.host.log_tail());
    world.terminate();
}

async fn sessions(world: &World) -> Vec<String> {
    let query = "select format('%s %s %s', pid, backend_type, application_name) from pg_stat_activity
                 where datname = current_database()";
    world.client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// A walsender that is told to stop waits until its client has confirmed everything, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_stopped_in_good_order_is_not_held_up_by_a_silent_sink() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let is_silent = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_silent);
    let receiver =
        Receiver::start(
            move |_, _| {
                if told.load(Ordering::Relaxed) { Reply::Hang } else { Reply::status(200) }
            },
        )
        .await;
    let config = format!(
        "[sink.remote]\nkind = \"http\"\ntimeout = \"2s\"\nurl = \"{}\"\n\n[[map]]\nname = \"products\"\n\
         table = \"public.products\"\ntransform = \"product-search\"\nsink = \"remote\"\ndestination = \"products\"\n\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
        receiver.url("/documents")
    );
    let rows = Size { products: 200, orders: 1, customers: 0 };
    let mut world = World::new(&database.url, rows, &config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    arrived(&world, &receiver, 0..0).await;
    let web = Web::of(&mut world.host, 0).await;
    is_silent.store(true, Ordering::Relaxed);
    let first = receiver.received().len();
    world.execute("update public.products set name = 'unanswered ' || id").await;
    wait_until("the request", SOON, async || Ok(receiver.received().len() > first)).await.unwrap();
    let from = world.host.log_length();
    let stopping = Instant::now();
    cluster.stop(Stop::Fast).unwrap();
    assert!(stopping.elapsed() < Duration::from_secs(20), "the stop took {:?}", stopping.elapsed());
    web.wait("/healthz", 503, "\"down\"").await;
    assert_eq!(web.get("/livez").await.status, 200);
    cluster.start_again().unwrap();
    world.client = database.connect().await.unwrap();
    world.logged(from, ": streaming ").await;
    let refused = first..receiver.received().len();
    is_silent.store(false, Ordering::Relaxed);
    arrived(&world, &receiver, refused).await;
    web.wait("/healthz", 200, "\"ok\"").await;
    world.terminate();
}
