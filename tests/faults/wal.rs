//! What the server keeps for the slot: as little as can be, and told before it is too much.

use testkit::{Cluster, postgres::shared, shop::Size, wait_until};

use super::{
    web::Web,
    world::{SOON, TWO_MAPPINGS, World, keeps_for_slots},
};

const ROWS: Size = Size { products: 200, orders: 200, customers: 0 };

async fn built(url: &str, source: &str, rest: &str) -> World {
    let mut world = World::new(url, ROWS, &format!("{source}{TWO_MAPPINGS}{rest}")).await;
    world.build().await;
    world
}

/// Nobody changes a mapped table; the rest of the server writes, and then does not.
#[tokio::test(flavor = "multi_thread")]
async fn c100_an_idle_source_keeps_no_wal() {
    let database = shared().unwrap().create_database().await.unwrap();
    let mut world = built(&database.url, "heartbeat_interval = \"1s\"\n", "").await;
    world.execute("create table public.other (text text)").await;
    for _ in 0..3 {
        world
            .execute("insert into public.other select repeat('x', 1000) from generate_series(1, 2000)")
            .await;
        let position = world.position().await;
        wait_until("the slot to pass what is nobody's", SOON, async || Ok(world.passed(&position).await))
            .await
            .unwrap();
    }
    // With nothing at all written but heartbeats.
    for _ in 0..2 {
        let position = world.position().await;
        wait_until("a heartbeat to move the slot", SOON, async || Ok(world.passed(&position).await))
            .await
            .unwrap();
    }
    world.terminate();
}

async fn run(world: &World, arguments: &[&str]) {
    let output = world.host.run(arguments).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn write(world: &World, megabytes: u32) {
    let write = format!(
        "select pg_logical_emit_message(false, 'other', repeat('x', 1000000)) from generate_series(1, {megabytes})"
    );
    world.execute(&write).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c100_a_kept_slot_of_a_suspended_installation_is_watched_and_its_loss_is_told_and_repaired() {
    let cluster = Cluster::start(keeps_for_slots("64MB")).unwrap();
    let database = cluster.create_database().await.unwrap();
    let listen = "\n[http]\nlisten = \"127.0.0.1:0\"\n";
    let mut world = built(&database.url, "purge_on_repair = true\n", listen).await;
    let web = Web::of(&mut world.host, 0).await;
    run(&world, &["suspend", "--keep-slot"]).await;
    world.logged(0, "the slot keeps all WAL").await;
    let from = world.host.log_length();
    world.execute("delete from public.products where id % 3 = 0").await;
    write(&world, 40).await;
    world.logged(from, "the slot keeps half of the WAL").await;
    let health = web.health().await;
    assert!(health["reasons"].to_string().contains("bytes of WAL for the slot"), "{health}");
    assert!(health["slot"]["remaining_bytes"].as_u64().is_some_and(|left| left < 40 << 20), "{health}");
    wait_until("the slot to be lost", SOON, async || {
        write(&world, 40).await;
        world.execute("checkpoint").await;
        Ok(world.slot_is_lost().await)
    })
    .await
    .unwrap();
    world.logged(from, "THE SLOT IS LOST").await;
    web.wait("/healthz", 200, "the slot is lost").await;
    run(&world, &["resume"]).await;
    world.logged(from, "THE STREAM HAS A GAP: the server has given the slot").await;
    world.built("products", 2).await;
    world.built("orders", 2).await;
    world.check().await;
    web.wait("/healthz", 200, "\"ok\"").await;
    world.terminate();
}
