//! Limits that a role has for its applications' statements are none for the host's own.

use testkit::{Host, load::LoadOptions, shared_of, shop::Size, wait_until};

use super::world::{
    BINARY, Background, PRODUCTS, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed,
};

const ROWS: Size = Size { products: 12_000, orders: 4_000, customers: 0 };
const CHUNKS: &str = "\n[backfill]\nchunk_size = 5000\n";

/// Shorter than a wait for the lead, a page under load, or a pause between two statements.
const LIMITS: &[(&str, &str)] = &[
    ("statement_timeout", "40ms"),
    ("lock_timeout", "20ms"),
    ("idle_in_transaction_session_timeout", "40ms"),
    ("idle_session_timeout", "500ms"),
    ("transaction_timeout", "30ms"),
];

#[tokio::test(flavor = "multi_thread")]
async fn c063_limits_of_the_role_end_no_wait_no_page_and_no_session() {
    // All that there are, of a server that knows them all.
    let cluster = shared_of(17).unwrap();
    let database = cluster.create_database().await.unwrap();
    let role = format!("hurried_{}", database.name);
    database.execute(&format!("create role {role} superuser login replication")).await.unwrap();
    for (name, limit) in LIMITS {
        database.execute(&format!("alter role {role} set {name} = '{limit}'")).await.unwrap();
    }
    let hurried = database.url.replace("postgres@", &format!("{role}@"));
    let mut world = World::through(&database.url, &hurried, ROWS, "").await;
    let file = world.host.path("search.db");
    let config = TWO_MAPPINGS.replace("\"search.db\"", &format!("\"{}\"", file.display()));
    let mut standby = Host::new(BINARY).unwrap();
    for host in [&world.host, &standby] {
        world.configure(host, &format!("{config}{CHUNKS}"));
        host.plugin("product-search", &product_search("1.0.0")).unwrap();
        host.plugin("order-summary", &order_summary("1.0.0")).unwrap();
    }
    // So that a statement waits.
    let holder = database.connect().await.unwrap();
    holder.batch_execute("begin; lock table public.products in access exclusive mode").await.unwrap();
    world.host.start().unwrap();
    let waits = "select exists (select from pg_stat_activity where application_name like 'anabranch/%'
                 and datname = current_database() and wait_event_type = 'Lock' and now() - query_start > '300 ms')::text";
    let waited = wait_until("a statement to wait longer than the limits", SOON, async || {
        Ok(world.text(waits).await.as_deref() == Some("true"))
    });
    waited.await.unwrap_or_else(|error| panic!("{error:#}\n{}", world.host.log_tail()));
    holder.batch_execute("commit").await.unwrap();
    world.logged(0, ": streaming ").await;
    standby.start().unwrap();
    standby.wait_log(0, "waiting for the lead", SOON).await.unwrap();
    let options = LoadOptions { copy_every: 0, ..LoadOptions::new(seed(), ROWS.products) };
    let mut load = Background::start(&world.url, options).await;
    load.advance(20).await;
    eprintln!("reading: {:?}", world.reading(PRODUCTS).await);
    world.built("products", 1).await;
    world.built("orders", 1).await;
    load.advance(20).await;
    assert!(!world.host.log().contains("the term ended"), "{}", world.host.log_tail());
    assert!(!standby.log().contains("the term ended"), "{}", standby.log_tail());
    world.host.kill().unwrap();
    standby.wait_log(0, ": streaming ", SOON).await.unwrap();
    load.advance(10).await;
    load.stop().await;
    world.check().await;
    for log in [world.host.log(), standby.log()] {
        assert!(!log.contains("timeout"), "{log}");
    }
    assert!(standby.terminate(SOON).unwrap().success());
}
