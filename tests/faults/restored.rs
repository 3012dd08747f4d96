//! The server behind the address is another one than before: a promoted standby, a restored backup, another cluster.

use testkit::{
    Backup, Cluster, ClusterOptions, Database, Proxy, Stop,
    load::LoadOptions,
    postgres::{Binaries, connect},
    shop::{self, Size},
    wait_until,
};

use super::{
    history::{GAP, PURGED, repaired},
    world::{Background, LATE, SOON, TWO_MAPPINGS, World, seed},
};

const ROWS: Size = Size { products: 1_000, orders: 1_000, customers: 0 };

/// A server, a way to it that may lead elsewhere, and a host whose backfills are done.
async fn behind_a_proxy(cluster: &Cluster) -> (World, Proxy) {
    let database = cluster.create_database().await.unwrap();
    let proxy = Proxy::start(cluster.port()).await.unwrap();
    let through = format!("{}&connect_timeout=5", proxy.url(&database.name));
    let mut world = World::through(&database.url, &through, ROWS, &format!("{PURGED}{TWO_MAPPINGS}")).await;
    world.build().await;
    (world, proxy)
}

fn load_options() -> LoadOptions {
    LoadOptions { copy_every: 0, ..LoadOptions::new(seed(), ROWS.products) }
}

/// The primary is gone at once, the standby takes its place and its address.
async fn fail_over(world: &mut World, proxy: &Proxy, primary: &Cluster, standby: &Cluster) {
    primary.stop(Stop::Immediate).unwrap();
    promote(world, proxy, standby).await;
}

async fn promote(world: &mut World, proxy: &Proxy, standby: &Cluster) {
    standby.promote().await.unwrap();
    world.url = standby.url(world.slot());
    world.client = connect(&world.url).await.unwrap();
    proxy.lead_to(standby.port());
    proxy.cut("");
}

const AHEAD: &str = "900001";

/// What the standby never gets, and the destination has.
async fn read_ahead(world: &World, standby: &Cluster) {
    let client = connect(&standby.url("postgres")).await.unwrap();
    client.execute("alter system set primary_conninfo = ''", &[]).await.unwrap();
    client.execute("select pg_reload_conf()", &[]).await.unwrap();
    wait_until("the standby to be cut off", SOON, async || {
        let row = client.query_one("select count(*) from pg_stat_wal_receiver", &[]).await?;
        Ok(row.get::<_, i64>(0) == 0)
    })
    .await
    .unwrap();
    world.execute(&shop::insert_products(900_001, 900_001, 3)).await;
    world.execute("update public.products set active = true where id = 900001").await;
    wait_until("the destination to have it", SOON, async || {
        Ok(world.destination("products").get(AHEAD)?.is_some())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_promoted_standby_without_the_slot_is_a_gap_and_repaired_once() {
    let primary = Cluster::start(ClusterOptions::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let (mut world, proxy) = behind_a_proxy(&primary).await;
    let mut load = Background::start(&world.url, load_options()).await;
    load.advance(30).await;
    load.stop().await;
    standby.caught_up(&primary).await.unwrap();
    world.check().await;
    read_ahead(&world, &standby).await;
    let from = world.host.log_length();
    fail_over(&mut world, &proxy, &primary, &standby).await;
    repaired(&mut world, from, "(timeline 1 before, 2 now), and the slot", 2).await;
    assert!(world.destination("products").get(AHEAD).unwrap().is_none());
    world.execute("update public.products set name = 'Promoted' where id % 7 = 0").await;
    world.check().await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_former_primary_that_answers_again_is_not_read_and_costs_no_rebuild() {
    let primary = Cluster::start(ClusterOptions::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let (mut world, proxy) = behind_a_proxy(&primary).await;
    standby.caught_up(&primary).await.unwrap();
    let former = connect(&primary.url(world.slot())).await.unwrap();
    let from = world.host.log_length();
    promote(&mut world, &proxy, &standby).await;
    repaired(&mut world, from, "(timeline 1 before, 2 now), and the slot", 2).await;

    let mut load = Background::start(&world.url, load_options()).await;
    former.batch_execute(&shop::insert_products(900_001, 900_001, 3)).await.unwrap();
    let again = world.host.log_length();
    proxy.lead_to(primary.port());
    proxy.cut("");
    world.logged(again, "a former primary still runs").await;
    load.advance(20).await;
    proxy.lead_to(standby.port());
    proxy.cut("");
    load.advance(20).await;
    load.stop().await;
    world.check().await;
    assert!(world.destination("products").get(AHEAD).unwrap().is_none());
    assert_eq!(world.host.log()[from..].matches(GAP).count(), 1, "{}", world.host.log_tail());
    for mapping in ["products", "orders"] {
        assert_eq!(world.mapping(mapping).await.unwrap().0, 2, "nothing was built again");
    }
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_backup_that_is_restored_slot_and_all_is_noticed_running_or_stopped() {
    let (cluster, database, mut world) = on_a_server_of_its_own().await;
    let backup = cluster.back_up().unwrap();
    world.client = database.connect().await.unwrap();
    world.logged(world.host.log_length() / 2, ": streaming ").await;
    change(&mut world).await;

    let from = world.host.log_length();
    put_back(&mut world, &cluster, &database, &backup).await;
    repaired(&mut world, from, "a backup was restored", 2).await;

    // While nobody remembers but the sink.
    change(&mut world).await;
    world.terminate();
    put_back(&mut world, &cluster, &database, &backup).await;
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "THE SOURCE WENT BACK").await;
    world.built("products", 2).await;
    world.built("orders", 2).await;
    world.check().await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_backup_from_one_term_ago_is_told_by_the_sinks_also_once_its_wal_has_come_further() {
    let (cluster, database, mut world) = on_a_server_of_its_own().await;
    world.terminate();
    let backup = cluster.back_up().unwrap();
    world.client = database.connect().await.unwrap();
    // The only term that the backup knows nothing of.
    world.host.start().unwrap();
    change(&mut world).await;
    world.terminate();
    put_back(&mut world, &cluster, &database, &backup).await;
    // What the sinks remember is passed: positions tell nothing any more.
    for _ in 0..3 {
        world.execute("update public.orders set total = total + 1").await;
        world.execute("select pg_switch_wal()").await;
    }
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "THE SOURCE WENT BACK").await;
    world.built("products", 2).await;
    world.built("orders", 2).await;
    world.check().await;
    world.terminate();
}

/// A server that may be stopped and put back, and a host whose backfills are done.
async fn on_a_server_of_its_own() -> (Cluster, Database, World) {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let mut world = World::new(&database.url, ROWS, &format!("{PURGED}{TWO_MAPPINGS}")).await;
    world.build().await;
    (cluster, database, world)
}

/// What the backup does not have, and the destinations get.
async fn change(world: &mut World) {
    let mut load = Background::start(&world.url, load_options()).await;
    load.advance(20).await;
    load.stop().await;
    let delete = "delete from public.products where id % 5 = 2; update public.orders set customer = 'later'";
    world.execute(delete).await;
    let position = world.position().await;
    world.check().await;
    wait_until("the slot to pass it", LATE, async || Ok(world.passed(&position).await)).await.unwrap();
}

async fn put_back(world: &mut World, cluster: &Cluster, database: &Database, backup: &Backup) {
    cluster.stop(Stop::Fast).unwrap();
    cluster.restore(backup).unwrap();
    cluster.start_again().unwrap();
    world.client = database.connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_another_cluster_at_the_same_address_is_not_taken_for_the_one_before() {
    let (before, after) = (
        Cluster::start(ClusterOptions::default()).unwrap(),
        Cluster::start(ClusterOptions::default()).unwrap(),
    );
    let (mut world, proxy) = behind_a_proxy(&before).await;
    world.check().await;
    let from = world.host.log_length();
    let name = world.slot().to_owned();
    let admin = connect(&after.url("postgres")).await.unwrap();
    admin.batch_execute(&format!("create database {name} template template0")).await.unwrap();
    world.url = after.url(&name);
    world.client = connect(&world.url).await.unwrap();
    shop::create(&world.client, Size { products: 400, orders: 400, customers: 0 }).await.unwrap();
    proxy.lead_to(after.port());
    proxy.cut("");
    world.logged(from, "the sink has documents of another database").await;
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.check().await;
    world.terminate();
}

/// A primary and a standby that keeps a copy of failover slots; of this installation's, at the end.
async fn with_the_slot() -> (Cluster, Cluster, World, Proxy) {
    let options = ClusterOptions::new().binaries(Binaries::of_major(17).unwrap());
    let primary = Cluster::start(options).unwrap();
    let admin = connect(&primary.url("postgres")).await.unwrap();
    admin.execute("select pg_create_physical_replication_slot('standby', true)", &[]).await.unwrap();
    let standby = primary
        .standby(&[
            ("primary_slot_name", "standby"),
            ("hot_standby_feedback", "on"),
            ("sync_replication_slots", "on"),
            ("wal_receiver_status_interval", "1"),
        ])
        .unwrap();
    let (world, proxy) = behind_a_proxy(&primary).await;
    let mut load = Background::start(&world.url, load_options()).await;
    load.advance(20).await;
    load.stop().await;
    let other = connect(&standby.url("postgres")).await.unwrap();
    let synced = format!(
        "select coalesce(bool_or(synced and not temporary and invalidation_reason is null), false)
         from pg_replication_slots where slot_name = '{}' and failover",
        world.slot()
    );
    wait_until("the standby to have the slot", LATE, async || {
        Ok(other.query_one(&synced, &[]).await?.get(0))
    })
    .await
    .unwrap();
    (primary, standby, world, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_that_has_the_slot_goes_on_without_a_rebuild() {
    let (primary, standby, mut world, proxy) = with_the_slot().await;
    // Nothing is streamed that the standby does not have.
    primary.configure(&[("synchronized_standby_slots", "standby")]).unwrap();
    primary.reload("synchronized_standby_slots", "standby").await.unwrap();
    let mut load = Background::start(&world.url, load_options()).await;
    load.advance(20).await;
    // Larger than a batch: parts of it are out before its end.
    world.execute(&shop::insert_products(700_001, 702_500, 5)).await;
    wait_until("the destination to have it", SOON, async || {
        Ok(world.destination("products").get("702500")?.is_some())
    })
    .await
    .unwrap();
    load.advance(20).await;
    let from = world.host.log_length();
    load.stop().await;
    fail_over(&mut world, &proxy, &primary, &standby).await;
    world.logged(from, "the stream goes on").await;
    world.execute("update public.products set name = 'Promoted' where id % 7 = 0").await;
    world.check().await;
    assert!(!world.host.log().contains(GAP), "{}", world.host.log_tail());
    for mapping in ["products", "orders"] {
        assert_eq!(world.mapping(mapping).await.unwrap().0, 1, "nothing was built again");
    }
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c060_a_promoted_standby_that_has_the_slot_and_not_all_that_was_read_is_a_gap() {
    let (primary, standby, mut world, proxy) = with_the_slot().await;
    read_ahead(&world, &standby).await;
    let from = world.host.log_length();
    fail_over(&mut world, &proxy, &primary, &standby).await;
    repaired(&mut world, from, "the former primary had them alone", 2).await;
    assert!(world.destination("products").get(AHEAD).unwrap().is_none());
    world.terminate();
}

/// A table is to be published again, and cannot be.
const REFUSED: &str = "create function refuse() returns event_trigger language plpgsql
                           as $$ begin raise exception 'not now'; end $$;
                       alter publication SLOT drop table public.orders;
                       create event trigger refuse on ddl_command_start when tag in ('ALTER PUBLICATION')
                           execute function refuse()";

#[tokio::test(flavor = "multi_thread")]
async fn attempts_at_a_term_that_fail_before_a_promotion_make_no_gap_of_it() {
    let (primary, standby, mut world, proxy) = with_the_slot().await;
    let from = world.host.log_length();
    world.execute(&REFUSED.replace("SLOT", world.slot())).await;
    world.logged(from, "not now").await;
    standby.caught_up(&primary).await.unwrap();
    let from = world.host.log_length();
    fail_over(&mut world, &proxy, &primary, &standby).await;
    world.logged(from, "the stream goes on").await;
    world.execute("drop event trigger refuse").await;
    world.built("orders", 2).await;
    world.check().await;
    assert!(!world.host.log().contains(GAP), "{}", world.host.log_tail());
    assert_eq!(world.mapping("products").await.unwrap().0, 1, "nothing else was built again");
    world.terminate();
}
