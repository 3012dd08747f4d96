//! Commits that the stream shows and no snapshot sees yet, because a synchronous standby is missing.
//!
//! Every one of them must win over what a chunk reads meanwhile, across restarts too.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use testkit::{Cluster, ClusterOptions, checker::Destination, postgres::connect, shop::Size, wait_until};
use tokio::task::JoinHandle;

use super::world::{LATE, ORDERS, SOON, TWO_MAPPINGS, World, order_summary, product_search};

const SETTING: &str = "synchronous_standby_names";
const FRESH: &str = "fresh";

/// Sessions that update orders and hang in their commit.
struct Stuck {
    ids: Vec<u64>,
    sessions: Vec<JoinHandle<()>>,
}

impl Stuck {
    /// Each session updates some of the rows; returns when all of them wait for the standby.
    async fn start(world: &World, ids: Vec<u64>) -> Self {
        let sessions = ids.chunks(10).map(|some| {
            let list = some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let url = world.url.clone();
            tokio::spawn(async move {
                let client = connect(&url).await.unwrap();
                let update = format!(
                    "update public.orders set customer = '{FRESH}', status = 'paid' where id in ({list})"
                );
                client.batch_execute(&update).await.unwrap();
            })
        });
        let sessions: Vec<_> = sessions.collect();
        let count = i64::try_from(sessions.len()).unwrap();
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event = 'SyncRep'";
        wait_until("the commits to hang", SOON, async || {
            Ok(world.client.query_one(waiting, &[]).await?.get::<_, i64>(0) == count)
        })
        .await
        .unwrap();
        let seen = world.text("select count(*)::text from public.orders where customer = 'fresh'").await;
        assert_eq!(seen.as_deref(), Some("0"), "a commit without its standby is not visible");
        Self { ids, sessions }
    }

    async fn join(self) {
        for session in self.sessions {
            session.await.unwrap();
        }
    }
}

/// Looks at documents again and again: what was fresh once must stay so.
struct Watch {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<BTreeSet<u64>>>,
    task: JoinHandle<Vec<u64>>,
}

impl Watch {
    fn start(destination: Destination, ids: Vec<u64>) -> Self {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeSet::new())));
        let (stopped, fresh) = (Arc::clone(&stop), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(2));
            let mut regressions = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                for &id in &ids {
                    let known = fresh.lock().unwrap().contains(&id);
                    match is_fresh(&destination, id) {
                        true if !known => drop(fresh.lock().unwrap().insert(id)),
                        false if known => regressions.push(id),
                        _ => {}
                    }
                }
            }
            regressions
        });
        Self { stop, seen, task }
    }

    fn seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Fails if a document went back.
    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let regressions: BTreeSet<u64> = self.task.await.unwrap().into_iter().collect();
        assert!(regressions.is_empty(), "went back to the stale row: {regressions:?}");
    }
}

fn is_fresh(destination: &Destination, id: u64) -> bool {
    let document = destination.get(&id.to_string()).unwrap_or_default();
    document.is_some_and(|document| document["title"].as_str().unwrap().ends_with(FRESH))
}

async fn hold(cluster: &Cluster) {
    cluster.configure(&[(SETTING, "nobody")]).unwrap();
    cluster.reload(SETTING, "nobody").await.unwrap();
}

async fn release(cluster: &Cluster) {
    cluster.configure(&[(SETTING, "")]).unwrap();
    cluster.reload(SETTING, "").await.unwrap();
}

async fn delivered(world: &World, watch: &Watch, count: usize) {
    let waited = wait_until("the stuck commits to be delivered", SOON, async || Ok(watch.seen() == count));
    if let Err(error) = waited.await {
        panic!("{error:#}: {} of {count}\n{}", watch.seen(), world.host.log_tail());
    }
}

/// A change of another row that is visible at once; waits until it is delivered.
async fn pass(world: &World, id: u64, note: u64) {
    world
        .execute(&format!(
            "begin; set local synchronous_commit = local;
             update public.orders set customer = 'local {note}', status = 'paid' where id = {id}; commit"
        ))
        .await;
    let destination = world.destination("orders");
    let title = format!("Order {id} of local {note}");
    let waited = wait_until("a local commit to be delivered", SOON, async || {
        Ok(destination.get(&id.to_string())?.is_some_and(|document| document["title"] == title.as_str()))
    });
    if let Err(error) = waited.await {
        panic!("{error:#}\n{}", world.host.log_tail());
    }
}

/// A backfill reads the table while the commits hang, and comes to its end.
#[tokio::test(flavor = "multi_thread")]
async fn c035_a_chunk_that_misses_a_streamed_commit_never_overwrites_it() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let rows = Size { products: 10, orders: 8_000, customers: 0 };
    let small = "\n[backfill]\nchunk_size = 50\nprefetch_bytes = \"64KiB\"\n";
    let mut world = World::new(&database.url, rows, &format!("{TWO_MAPPINGS}{small}")).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    wait_until("the backfill to be under way", SOON, async || {
        Ok(world.reading(ORDERS).await.is_some_and(|rows| rows > 0))
    })
    .await
    .unwrap();
    hold(&cluster).await;
    let ids: Vec<u64> = (0..40).map(|n| 7_000 + n * 25).collect();
    let stuck = Stuck::start(&world, ids).await;
    let at = world.reading(ORDERS).await;
    assert!(at.is_some_and(|rows| rows < 6_500), "the backfill was already at {at:?}");
    let watch = Watch::start(world.destination("orders"), stuck.ids.clone());
    delivered(&world, &watch, stuck.ids.len()).await;
    // The whole table is read, and none of the chunks sees what hangs.
    world.built("orders", 1).await;
    let hidden = world.text("select count(*)::text from public.orders where customer = 'fresh'").await;
    assert_eq!(hidden.as_deref(), Some("0"));
    for &id in &stuck.ids {
        assert!(is_fresh(&world.destination("orders"), id), "{id} is stale");
    }
    release(&cluster).await;
    stuck.join().await;
    world.check().await;
    watch.finish().await;
    world.terminate();
}

/// The host is killed while the commits hang, and the table is read by the next process.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_while_commits_hang_forgets_none_of_them() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let rows = Size { products: 10, orders: 1_500, customers: 0 };
    let config = format!("{TWO_MAPPINGS}\n[backfill]\nchunk_size = 200\n");
    let mut world = World::new(&database.url, rows, &config).await;
    // The key is in the catalogue only: a commit that hangs has not altered it.
    world.execute("alter table public.orders replica identity full").await;
    world.prepare(&[order_summary("1.1.0")]);
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("orders", 1).await;
    hold(&cluster).await;
    let stuck = Stuck::start(&world, (0..40).map(|n| 500 + n * 20).collect()).await;
    let hung = world.position().await;
    let watch = Watch::start(world.destination("orders"), stuck.ids.clone());
    delivered(&world, &watch, stuck.ids.len()).await;
    // Time for a checkpoint, if it wrongly passed them.
    for note in 0..60 {
        pass(&world, 1, note).await;
    }
    let saved = world.text("select confirmed::text from anabranch.installation").await.unwrap();
    for position in [world.confirmed().await, saved] {
        let before_them = format!("select (pg_lsn '{position}' < '{hung}')::text");
        assert_eq!(world.text(&before_them).await.as_deref(), Some("true"), "{position} passed {hung}");
    }
    world.host.kill().unwrap();
    world.install("order-summary", &order_summary("1.1.0"));
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    for note in 100..160 {
        pass(&world, 1, note).await;
    }
    for &id in &stuck.ids {
        assert!(is_fresh(&world.destination("orders"), id), "{id} is stale");
    }
    release(&cluster).await;
    stuck.join().await;
    world.built("orders", 2).await;
    world.check().await;
    watch.finish().await;
    wait_until("the slot to go on", LATE, async || Ok(world.passed(&hung).await)).await.unwrap();
    world.terminate();
}

/// A table is in somebody's publication, and mapped while its commits hang.
#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_of_a_table_that_nobody_follows_yet_is_streamed_again() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let rows = Size { products: 10, orders: 300, customers: 0 };
    let both = format!("manage_publication = false\n{TWO_MAPPINGS}");
    let at = both.find("[[map]]\nname = \"orders\"").unwrap();
    let mut world = World::new(&database.url, rows, &both[..at]).await;
    let publish = format!("create publication {} for table public.products, public.orders", world.slot());
    world.execute(&publish).await;
    world.install("product-search", &product_search("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    hold(&cluster).await;
    let stuck = Stuck::start(&world, (0..40).map(|n| 1 + n * 7).collect()).await;
    let hung = world.position().await;
    let products = world.destination("products");
    for note in 0..60 {
        let name = format!("local {note}");
        let update = format!(
            "begin; set local synchronous_commit = local;
             update public.products set name = '{name}', active = true where id = 1; commit"
        );
        world.execute(&update).await;
        wait_until("a local commit to be delivered", SOON, async || {
            Ok(products.get("1")?.is_some_and(|document| document["title"] == name.as_str()))
        })
        .await
        .unwrap();
    }
    world.terminate();
    let before_them = format!("select (pg_lsn '{}' < '{hung}')::text", world.confirmed().await);
    assert_eq!(world.text(&before_them).await.as_deref(), Some("true"), "the slot passed what hangs");
    world.configure(&world.host, &both);
    world.install("order-summary", &order_summary("1.0.0"));
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    release(&cluster).await;
    stuck.join().await;
    world.built("orders", 1).await;
    world.check().await;
    world.terminate();
}
