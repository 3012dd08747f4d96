//! A plugin's version changes, or its bytes do, while changes go on arriving.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anabranch::{
    backfill::Report,
    model::Lsn,
    state::{RunStatus, Store, StoredMapping, StoredRun},
};
use serde_json::Value;
use testkit::{
    guests::{self, Guest},
    postgres::{connect, shared},
    shop::Size,
    wait_until,
};
use tokio::task::JoinHandle;

use super::world::{
    BINARY, ECHO, PRODUCTS, SOON, TWO_MAPPINGS, World, echo, lines, order_summary, product_search,
};

const ROWS: u64 = 2_000;

async fn three_mappings() -> World {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: ROWS, orders: ROWS, customers: 0 };
    let world =
        World::new(&database.url, rows, &format!("{TWO_MAPPINGS}{ECHO}\n[backfill]\nchunk_size = 200\n"))
            .await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.install("echo-json", &echo("1.0.0"));
    world
}

/// One transaction after the other, each touching a product and an order of the same number.
struct Live {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<u64>>,
}

impl Live {
    async fn start(world: &World) -> Self {
        let client = connect(&world.url).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut ids = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let id = 1 + ids.len() as u64 % 50;
                let update = format!(
                    "update public.products set stock = stock + 1, price = price + 1 where id = {id};
                     update public.orders set total = total + 1 where id = {id}"
                );
                client.batch_execute(&update).await.unwrap();
                ids.push(id);
            }
            ids
        });
        Self { stop, task }
    }

    /// The ids that were touched, one a transaction.
    async fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// What a bump has made of the destinations.
#[derive(Debug, PartialEq)]
struct Written {
    products: u64,
    orders: u64,
    echo_backfill: usize,
    echo_live: usize,
}

/// How many documents were written since the last `note_writes`.
fn noted(world: &World, table: &str) -> u64 {
    world.destination(table).written().unwrap().0
}

fn written(world: &World, lines_before: usize) -> Written {
    let lines = lines(&world.host.path("echo.jsonl"));
    let new = &lines[lines_before..];
    let of = |origin: &str| new.iter().filter(|line| line["origin"] == origin).count();
    Written {
        products: noted(world, "products"),
        orders: noted(world, "orders"),
        echo_backfill: of("backfill"),
        echo_live: of("stream"),
    }
}

/// Replaces one plugin while changes arrive, waits until its mapping is rebuilt, and says what was written.
async fn bump(
    world: &mut World,
    plugin: &str,
    guest: &Guest,
    mapping: &str,
    generation: i64,
) -> (Written, Vec<u64>) {
    world.prepare(std::slice::from_ref(guest));
    world.check().await;
    let before = lines(&world.host.path("echo.jsonl")).len();
    for table in ["products", "orders"] {
        world.destination(table).note_writes().unwrap();
    }
    let live = Live::start(world).await;
    let from = world.host.log_length();
    world.install(plugin, guest);
    world.logged(from, "swapped its transform").await;
    world.built(mapping, generation).await;
    let touched = live.stop().await;
    world.check().await;
    let lines_expected = touched.len();
    let path = world.host.path("echo.jsonl");
    wait_until("the live changes to be echoed", SOON, async || {
        let live = lines(&path)[before..].iter().filter(|line| line["origin"] == "stream").count();
        Ok(live >= lines_expected)
    })
    .await
    .unwrap();
    (written(world, before), touched)
}

async fn documents(world: &World, table: &str, ids: Option<&[u64]>) -> u64 {
    let which = match table {
        "products" => "public.products where active",
        _ => "public.orders where status <> 'draft'",
    };
    let ids = ids.map_or(String::new(), |ids| {
        let ids: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
        format!(" and id in ({})", ids.into_iter().collect::<Vec<_>>().join(", "))
    });
    world.text(&format!("select count(*)::text from {which}{ids}")).await.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn bumping_one_of_three_rebuilds_exactly_its_documents() {
    let mut world = three_mappings().await;
    world.host.start().unwrap();
    for mapping in ["products", "orders", "echo"] {
        world.built(mapping, 1).await;
    }
    let products = documents(&world, "products", None).await;
    let rows = usize::try_from(ROWS).unwrap();

    // Up, then down.
    for (version, generation) in [("1.1.0", 2), ("1.0.0", 3)] {
        let guest = product_search(version);
        let (written, touched) = bump(&mut world, "product-search", &guest, "products", generation).await;
        let live_orders = documents(&world, "orders", Some(&touched)).await;
        eprintln!("product-search {version}: {written:?}, {} live transactions", touched.len());
        let expected = Written { products, orders: live_orders, echo_backfill: 0, echo_live: touched.len() };
        assert_eq!(written, expected);
        assert_eq!(world.version("products").await.as_deref(), Some(version));
        for (mapping, generation) in [("orders", 1), ("echo", 1)] {
            assert_eq!(world.mapping(mapping).await.unwrap().0, generation, "{mapping}");
        }
    }

    // Another mapping of the same table.
    let (written, touched) = bump(&mut world, "echo-json", &echo("2.0.0"), "echo", 2).await;
    eprintln!("echo-json 2.0.0: {written:?}, {} live transactions", touched.len());
    let expected = Written {
        products: documents(&world, "products", Some(&touched)).await,
        orders: documents(&world, "orders", Some(&touched)).await,
        // Less what the stream has overtaken.
        echo_backfill: written.echo_backfill,
        echo_live: touched.len(),
    };
    assert_eq!(written, expected);
    assert!(written.echo_backfill <= rows && written.echo_backfill >= rows - 50, "{written:?}");
    assert_eq!(world.mapping("products").await.unwrap().0, 3);
    world.terminate();
}

/// The same component with other bytes: a custom section that nothing reads.
fn touch(world: &World) {
    let path = world.host.path("plugins/product-search.wasm");
    let mut bytes = fs::read(guests::build(BINARY, &product_search("1.0.0")).unwrap()).unwrap();
    bytes.extend_from_slice(b"\x00\x07\x05touch!");
    let beside = world.host.path("plugins/.touched");
    fs::write(&beside, bytes).unwrap();
    fs::rename(beside, path).unwrap();
}

async fn title(world: &World, table: &str, id: u64, title: &str) {
    let destination = world.destination(table);
    let description = format!("{table} {id} to be {title:?}");
    let waited = wait_until(&description, SOON, async || {
        let document = destination.get(&id.to_string())?.unwrap_or_default();
        Ok(document.get("title").and_then(Value::as_str).is_some_and(|found| found.contains(title)))
    });
    if let Err(error) = waited.await {
        panic!("{error:#}\n{}", world.host.log_tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_of_the_same_version_are_refused_and_lose_nothing() {
    let mut world = three_mappings().await;
    world.prepare(&[product_search("1.1.0")]);
    world
        .execute("update public.products set active = true where id < 20; update public.orders set status = 'open' where id < 20")
        .await;
    world.host.start().unwrap();
    for mapping in ["products", "orders", "echo"] {
        world.built(mapping, 1).await;
    }
    world.check().await;

    // While it runs: the old revision stays, and works.
    world.destination("products").note_writes().unwrap();
    let from = world.host.log_length();
    touch(&world);
    let line = world.logged(from, "the revision that runs stays").await;
    assert!(line.contains("product-search 1.0.0") && line.contains("bump its version"), "{line}");
    world.execute("update public.products set name = 'through the old one' where id = 1").await;
    title(&world, "products", 1, "through the old one").await;
    assert_eq!(noted(&world, "products"), 1);
    assert_eq!(world.mapping("products").await.unwrap().0, 1);

    // At start: that mapping alone does not run, and the slot keeps what it misses.
    world.terminate();
    let from = world.host.log_length();
    world.host.start().unwrap();
    let line = world.logged(from, "does not run, and the slot keeps what it misses").await;
    assert!(line.contains("product-search 1.0.0") && line.contains("bump its version"), "{line}");
    world.execute("update public.products set name = 'missed' where id = 2; delete from public.products where id = 3").await;
    let missed = world.position().await;
    world.execute("update public.orders set customer = 'on time' where id = 2").await;
    title(&world, "orders", 2, "on time").await;
    assert!(world.destination("products").get("3").unwrap().is_some());
    assert_eq!(world.mapping("products").await.unwrap().2, "refused");
    assert!(!world.passed(&missed).await);

    // The old file comes back: nothing is rebuilt, nothing was lost.
    world.destination("products").note_writes().unwrap();
    world.install("product-search", &product_search("1.0.0"));
    title(&world, "products", 2, "missed").await;
    world.check().await;
    assert_eq!(world.mapping("products").await.unwrap().0, 1);
    assert_eq!(noted(&world, "products"), 1);

    // Refused again, across a kill; now the version is bumped.
    touch(&world);
    world.host.kill().unwrap();
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "does not run, and the slot keeps what it misses").await;
    world.execute("update public.products set name = 'missed too' where id = 4; delete from public.products where id = 5").await;
    world.execute("update public.orders set customer = 'on time' where id = 4").await;
    title(&world, "orders", 4, "on time").await;
    world.install("product-search", &product_search("1.1.0"));
    world.built("products", 2).await;
    world.check().await;
    assert_eq!(world.version("products").await.as_deref(), Some("1.1.0"));
    assert_eq!(world.mapping("orders").await.unwrap().0, 1);
    wait_until("the slot to go on", SOON, async || Ok(world.passed(&missed).await)).await.unwrap();
    world.terminate();
}

fn stored(generation: i64, built: i64) -> StoredMapping {
    let first = StoredMapping::new("products", PRODUCTS.parse().unwrap(), 1, "{}");
    StoredMapping { generation, built, accepted: Lsn(1), ..first }
}

/// A crash between the note of a new generation and the note of its run must not make it go on with the run of
/// the one before: the rows behind that cursor were made by the old version.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_generation_does_not_go_on_with_the_run_of_the_old_one() {
    let database = shared().unwrap().create_database().await.unwrap();
    let client = database.connect().await.unwrap();
    let store = Store::new("faults");
    store.upgrade(&client).await.unwrap();
    store.save_mapping(&client, &stored(1, 0)).await.unwrap();
    let mappings = vec!["echo".to_owned(), "products".to_owned()];
    let queued = StoredRun::new(PRODUCTS.parse().unwrap(), "first", mappings);
    let run = StoredRun { status: RunStatus::Running, ..queued };
    store.save_run(&client, &run).await.unwrap();
    store.save_cursor(&client, "first", "{}", 10, 1, &Report::default()).await.unwrap();
    store.save_mapping(&client, &stored(1, 0)).await.unwrap();
    assert_eq!(store.runs(&client).await.unwrap()[0].rows, 10, "the same generation goes on");
    store.save_mapping(&client, &stored(2, 0)).await.unwrap();
    let left = store.runs(&client).await.unwrap();
    assert_eq!((left[0].rows, &left[0].mappings), (10, &vec!["echo".to_owned()]), "it is the other's alone");
    // What is for nobody else is forgotten.
    let alone = StoredRun { mappings: vec!["products".to_owned()], ..run.clone() };
    store.save_run(&client, &alone).await.unwrap();
    store.save_mapping(&client, &stored(3, 0)).await.unwrap();
    assert_eq!(store.runs(&client).await.unwrap(), []);
    // What is complete stays, to be looked at.
    store.save_run(&client, &StoredRun { status: RunStatus::Complete, ..run }).await.unwrap();
    store.save_mapping(&client, &stored(4, 3)).await.unwrap();
    assert_eq!(store.runs(&client).await.unwrap().len(), 1);
}

/// With `auto_backfill_on_version_change = false` a bump reads nothing again; but what was never read to its end
/// still has to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_bump_that_rebuilds_nothing_does_not_end_an_unfinished_backfill() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 6_000, orders: 10, customers: 0 };
    let never = "destination = \"products\"\nauto_backfill_on_version_change = false\n";
    let mappings = TWO_MAPPINGS.replace("destination = \"products\"\n", never);
    let config = format!("{mappings}\n[backfill]\nchunk_size = 50\n");
    let mut world = World::new(&database.url, rows, &config).await;
    world.prepare(&[product_search("1.1.0"), product_search("1.2.0")]);
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    let under_way = async |world: &World| {
        wait_until("the backfill to be under way", SOON, async || {
            Ok(world.reading(PRODUCTS).await.is_some_and(|rows| rows > 0))
        })
        .await
        .unwrap();
    };
    under_way(&world).await;
    let from = world.host.log_length();
    world.install("product-search", &product_search("1.1.0"));
    world.logged(from, "swapped its transform").await;
    world.host.kill().unwrap();
    assert!(world.mapping("products").await.unwrap().1 == 0, "the backfill was complete too soon");
    world.install("product-search", &product_search("1.2.0"));
    world.host.start().unwrap();
    world.built("products", 2).await;
    world.check().await;
    let (generation, ..) = world.mapping("products").await.unwrap();

    // Now that it is whole, a bump reads nothing.
    world.destination("products").note_writes().unwrap();
    let from = world.host.log_length();
    world.install("product-search", &product_search("1.0.0"));
    world.logged(from, "swapped its transform").await;
    world.built("products", generation + 1).await;
    world.execute("update public.products set active = true, name = 'live' where id = 1").await;
    title(&world, "products", 1, "live").await;
    assert_eq!(noted(&world, "products"), 1);
    world.terminate();
}
