//! The source is another one than before, or its slot: noticed, told in one line, and repaired once.

use testkit::{Cluster, ClusterOptions, load::LoadOptions, postgres::Binaries, shop::Size, wait_until};

use super::world::{Background, SOON, TWO_MAPPINGS, World, keeps_for_slots, seed};

const ROWS: Size = Size { products: 1_000, orders: 1_000, customers: 0 };
pub const GAP: &str = "THE STREAM HAS A GAP";

/// Destinations are emptied first, so that what was deleted in the gap is gone from them.
pub const PURGED: &str = "purge_on_repair = true\nsilence_limit = \"5s\"\nheartbeat_interval = \"1s\"\n";

/// A world on this address whose backfills are done.
async fn built(url: &str) -> World {
    let mut world = World::new(url, ROWS, &format!("{PURGED}{TWO_MAPPINGS}")).await;
    world.build().await;
    world
}

fn load_options() -> LoadOptions {
    LoadOptions { copy_every: 0, ..LoadOptions::new(seed(), ROWS.products) }
}

/// Both tables are built anew, exactly once, after one loud line with the range that was lost.
pub async fn repaired(world: &mut World, from: usize, reason: &str, generation: i64) {
    let line = world.logged(from, GAP).await;
    assert!(line.contains(reason), "{line}");
    assert!(line.contains("lost_from=") && line.contains("lost_to="), "{line}");
    world.built("products", generation).await;
    world.built("orders", generation).await;
    world.check().await;
    let log = world.host.log();
    assert_eq!(log[from..].matches(GAP).count(), 1, "told once: {}", world.host.log_tail());
    for mapping in ["products", "orders"] {
        assert_eq!(world.mapping(mapping).await.unwrap().0, generation, "repaired once");
    }
}

/// Ends the walsender and does something to the slot before the host is back.
async fn instead_of_the_slot(world: &World, statement: &str) {
    let slot = world.slot();
    let end = format!(
        "select pg_terminate_backend(active_pid)::text from pg_replication_slots where slot_name = '{slot}'"
    );
    let statement = statement.replace("SLOT", slot);
    wait_until("the slot to be had", SOON, async || {
        world.client.query(&end, &[]).await?;
        Ok(world.client.batch_execute(&statement).await.is_ok())
    })
    .await
    .unwrap();
}

const DROP: &str = "select pg_drop_replication_slot('SLOT')";
const CREATE: &str = "select pg_create_logical_replication_slot('SLOT', 'pgoutput')";
const ADVANCE: &str = "select pg_replication_slot_advance('SLOT', pg_current_wal_lsn())";
const DELETE: &str = "delete from public.products where id % 10 = 3; \
                      update public.orders set customer = 'unseen' where id % 7 = 1";

#[tokio::test(flavor = "multi_thread")]
async fn c058_a_slot_that_is_dropped_made_anew_or_moved_is_repaired_once_stopped_or_running() {
    let database = testkit::shared().unwrap().create_database().await.unwrap();
    let mut world = built(&database.url).await;
    world.check().await;

    // While it runs, under load.
    let load = Background::start(&world.url, load_options()).await;
    let from = world.host.log_length();
    instead_of_the_slot(&world, DROP).await;
    world.execute(DELETE).await;
    world.logged(from, GAP).await;
    load.stop().await;
    repaired(&mut world, from, "is gone", 2).await;
    let from = world.host.log_length();
    instead_of_the_slot(&world, DROP).await;
    world.execute(&DELETE.replace("10 = 3", "10 = 4")).await;
    // In a statement of its own: it must not be in a transaction that writes.
    world.client.query(&CREATE.replace("SLOT", &database.name), &[]).await.ok();
    let line = world.logged(from, GAP).await;
    assert!(
        line.contains("is gone") || line.contains("made it anew") || line.contains("not finished"),
        "{line}"
    );
    world.built("products", 3).await;
    world.built("orders", 3).await;
    world.check().await;

    // While it is stopped.
    world.terminate();
    for (number, (statement, reason)) in
        [(CREATE, "made it anew"), (ADVANCE, "somebody moved it")].into_iter().enumerate()
    {
        if statement == CREATE {
            world.client.query(&DROP.replace("SLOT", &database.name), &[]).await.unwrap();
        }
        world.execute(&DELETE.replace("10 = 3", &format!("10 = {}", 5 + number))).await;
        world.client.query(&statement.replace("SLOT", &database.name), &[]).await.unwrap();
        let from = world.host.log_length();
        world.host.start().unwrap();
        repaired(&mut world, from, reason, 4 + i64::try_from(number).unwrap()).await;
        world.terminate();
    }
}

/// Writes so much that the server gives up what it keeps for slots.
async fn write_wal(world: &World) {
    for _ in 0..6 {
        world.execute("update public.orders set customer = customer where id <= 10").await;
        world.client.query("select pg_switch_wal()", &[]).await.unwrap();
        world.execute("checkpoint").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c058_a_slot_that_the_server_gives_up_for_its_size_is_repaired_once_stopped_or_running() {
    let cluster = Cluster::start(keeps_for_slots("1MB")).unwrap();
    let database = cluster.create_database().await.unwrap();
    let mut world = built(&database.url).await;
    world.terminate();
    world.execute(DELETE).await;
    wait_until("the slot to be lost", SOON, async || {
        write_wal(&world).await;
        Ok(world.slot_is_lost().await)
    })
    .await
    .unwrap();
    let from = world.host.log_length();
    world.host.start().unwrap();
    repaired(&mut world, from, "has given the slot", 2).await;

    // While it runs, and confirms nothing because it is stopped in the middle of everything.
    let from = world.host.log_length();
    world.host.signal("STOP").unwrap();
    world.execute(&DELETE.replace("10 = 3", "10 = 4")).await;
    wait_until("the slot to be lost", SOON, async || {
        write_wal(&world).await;
        Ok(world.slot_is_lost().await)
    })
    .await
    .unwrap();
    world.host.signal("CONT").unwrap();
    repaired(&mut world, from, "has given the slot", 3).await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c058_a_slot_that_the_server_gives_up_for_its_idleness_is_repaired_once() {
    let options = ClusterOptions::new()
        .binaries(Binaries::of_major(18).unwrap())
        .setting("idle_replication_slot_timeout", "1s");
    let cluster = Cluster::start(options).unwrap();
    let database = cluster.create_database().await.unwrap();
    let mut world = built(&database.url).await;
    world.terminate();
    world.execute(DELETE).await;
    wait_until("the slot to be given up", SOON, async || {
        // It acts at a checkpoint, of which there must be something to do.
        world.execute("update public.orders set customer = customer where id = 1; checkpoint").await;
        Ok(world.slot_is_lost().await)
    })
    .await
    .unwrap();
    let from = world.host.log_length();
    world.host.start().unwrap();
    repaired(&mut world, from, "given the slot", 2).await;
    assert!(world.host.log()[from..].contains("idle_timeout"), "{}", world.host.log_tail());
    world.terminate();
}
