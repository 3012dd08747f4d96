//! Two hosts of one installation, and a leader that is lost again and again under load, in every way.

use testkit::{
    Host,
    load::{LoadOptions, Random},
    postgres::shared,
    shop::Size,
    wait_until,
};

use super::world::{
    BINARY, Background, LATE, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed,
};

/// `FAULTS_FAILOVERS` says another number.
const FAILOVERS: u64 = 12;

/// How a leader is lost. In every case it comes back and waits for the lead.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// SIGKILL.
    Killed,
    /// SIGTERM.
    Terminated,
    /// Its lock session is ended by the server.
    Unlocked,
    /// It sleeps, and its lock session is ended meanwhile; it wakes up while the other one leads.
    Asleep,
}

const LOSSES: [Loss; 4] = [Loss::Killed, Loss::Terminated, Loss::Unlocked, Loss::Asleep];

/// Small chunks, so that a rebuild is under way at most failovers.
const SMALL: &str = "\n[backfill]\nchunk_size = 150\n\n[pipeline]\nbatch_rows = 200\n";

/// The server process that holds the lead.
async fn leader(world: &World) -> i32 {
    let query = "select pid::text from pg_locks where locktype = 'advisory' and granted
                 and database = (select oid from pg_database where datname = current_database())
                 and pid in (select pid from pg_stat_activity where application_name like '%/leader')";
    world.text(query).await.expect("somebody leads").parse().unwrap()
}

/// Loses the leader, which is `world.host`, to `standby`, which then is the leader.
async fn lose(world: &mut World, standby: &mut Host, loss: Loss) {
    let (from, there) = (standby.log_length(), world.host.log_length());
    match loss {
        Loss::Killed => world.host.kill().unwrap(),
        Loss::Terminated => world.terminate(),
        Loss::Asleep | Loss::Unlocked => {
            if matches!(loss, Loss::Asleep) {
                world.host.signal("STOP").unwrap();
            }
            let pid = leader(world).await;
            world.execute(&format!("select pg_terminate_backend({pid})")).await;
        }
    }
    // With its lock session alone ended, the leader itself may be the next one.
    wait_until("somebody to stream", LATE, async || {
        let again = matches!(loss, Loss::Unlocked) && world.host.log()[there..].contains(": streaming ");
        Ok(again || standby.log()[from..].contains(": streaming "))
    })
    .await
    .unwrap_or_else(|error| panic!("{loss:?}: {error:#}\n{}\n{}", world.host.log_tail(), standby.log_tail()));
    match loss {
        Loss::Killed | Loss::Terminated => world.host.start().unwrap(),
        Loss::Asleep => world.host.signal("CONT").unwrap(),
        Loss::Unlocked => {}
    }
    if standby.log()[from..].contains(": streaming ") {
        std::mem::swap(&mut world.host, standby);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c063_random_failovers_under_load_lose_nothing_and_never_make_a_second_leader() {
    let count = std::env::var("FAULTS_FAILOVERS").map_or(FAILOVERS, |count| count.parse().unwrap());
    let seed = seed();
    let mut random = Random::new(seed);
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 5_000, orders: 5_000, customers: 0 };
    let mut world = World::new(&database.url, rows, "").await;
    let file = world.host.path("search.db");
    let config = TWO_MAPPINGS.replace("\"search.db\"", &format!("\"{}\"", file.display()));
    let mut standby = Host::new(BINARY).unwrap();
    world.prepare(&[product_search("1.0.0"), order_summary("1.0.0")]);
    for host in [&world.host, &standby] {
        world.configure(host, &format!("{config}{SMALL}"));
        host.plugin("product-search", &product_search("1.0.0")).unwrap();
        host.plugin("order-summary", &order_summary("1.0.0")).unwrap();
    }
    world.host.start().unwrap();
    world.logged(0, ": streaming ").await;
    standby.start().unwrap();
    standby.wait_log(0, "waiting for the lead", SOON).await.unwrap();
    let dir = world.host.dir().to_owned();
    let mut load = Background::start(&world.url, LoadOptions::new(seed, rows.products)).await;

    for failover in 0..count {
        load.advance(1 + random.below(40)).await;
        if failover % 3 == 0 {
            let asked = world.host.run(&["backfill", "request", "products"]).unwrap();
            assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        }
        let loss = LOSSES[usize::try_from(random.below(4)).unwrap()];
        eprintln!("failover {failover}: {loss:?}");
        lose(&mut world, &mut standby, loss).await;
        let streams = "select count(*)::text from pg_stat_activity
                       where datname = current_database() and application_name like '%/stream'
                       and backend_type = 'walsender'";
        assert_eq!(world.text(streams).await.as_deref(), Some("1"), "one leader streams");
    }
    let counts = load.stop().await;
    eprintln!("{counts:?}");
    if world.host.dir() != dir {
        std::mem::swap(&mut world.host, &mut standby);
    }
    world.check().await;
    world.terminate();
    assert!(standby.terminate(SOON).unwrap().success());
}
