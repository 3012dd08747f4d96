//! Plugins that are exchanged, half written, removed and built again while the host runs.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use testkit::{
    guests::{self, Guest},
    postgres::{connect, shared},
    shop::{PRODUCT_DOCUMENTS, Size, insert_products},
    wait_until,
};

use super::world::{
    BINARY, ECHO, LATE, PRODUCTS, SOON, TWO_MAPPINGS, World, echo, lines, order_summary, product_search,
};

/// The component of a guest.
fn component(guest: &Guest) -> Vec<u8> {
    fs::read(guests::build(BINARY, guest).unwrap()).unwrap()
}

/// The same component with other bytes: a custom section that nothing reads.
fn other_bytes(guest: &Guest, mark: u8) -> Vec<u8> {
    let mut bytes = component(guest);
    bytes.extend_from_slice(&[0, 7, 5, b't', b'o', b'u', b'c', b'h', mark]);
    bytes
}

/// Puts a file there by a rename.
fn put(path: &Path, bytes: &[u8]) {
    let beside = path.with_file_name(".put");
    fs::write(&beside, bytes).unwrap();
    fs::rename(&beside, path).unwrap();
}

async fn shop(products: u64, config: &str) -> World {
    let database = shared().unwrap().create_database().await.unwrap();
    World::new(&database.url, Size { products, orders: 20, customers: 0 }, config).await
}

fn status(world: &World, mapping: &str) -> Value {
    let status = world.host.status().unwrap();
    let mut mappings = status["mappings"].as_array().unwrap().iter();
    mappings.find(|found| found["name"] == mapping).unwrap().clone()
}

/// Waits until `status` says something of a mapping.
async fn says(world: &World, mapping: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let waited = wait_until(what, SOON, async || {
        last = status(world, mapping);
        Ok(holds(&last))
    });
    if let Err(error) = waited.await {
        panic!("{error:#}\n{last:#}\n{}", world.host.log_tail());
    }
    last
}

/// Whether a live change of a product arrives.
async fn flows(world: &World, name: &str) {
    world.execute(&format!("update public.products set active = true, name = '{name}' where id = 1")).await;
    let destination = world.destination("products");
    let waited = wait_until("a live change to arrive", SOON, async || {
        Ok(destination.get("1")?.is_some_and(|document| document["title"] == name))
    });
    if let Err(error) = waited.await {
        panic!("{error:#}\n{}", world.host.log_tail());
    }
}

/// Transactions at a steady rate: each raises the stock of one product by one.
struct Rush {
    sessions: Vec<tokio::task::JoinHandle<u64>>,
    began: Instant,
}

const SESSIONS: u64 = 4;
const PER_SECOND: u64 = 1000;
/// Products that a session works on.
const EACH: u64 = 25;

impl Rush {
    fn start(url: &str, stop: &tokio_util::sync::CancellationToken) -> Self {
        let sessions = (0..SESSIONS).map(|session| {
            let (url, stop) = (url.to_owned(), stop.clone());
            tokio::spawn(async move {
                let client = connect(&url).await.unwrap();
                client.batch_execute("set synchronous_commit = off").await.unwrap();
                let update = client
                    .prepare("update public.products set stock = stock + 1 where id = $1::bigint")
                    .await
                    .unwrap();
                let mut pace =
                    tokio::time::interval(Duration::from_micros(1_000_000 * SESSIONS / PER_SECOND));
                let mut done = 0;
                while !stop.is_cancelled() {
                    pace.tick().await;
                    let id = i64::try_from(1 + session * EACH + done % EACH).unwrap();
                    client.execute(&update, &[&id]).await.unwrap();
                    done += 1;
                }
                done
            })
        });
        Self { sessions: sessions.collect(), began: Instant::now() }
    }

    /// How many transactions there were, and how many a second.
    async fn stop(self, stop: &tokio_util::sync::CancellationToken) -> (u64, f64) {
        stop.cancel();
        let mut sum = 0;
        for session in self.sessions {
            sum += session.await.unwrap();
        }
        (sum, sum as f64 / self.began.elapsed().as_secs_f64())
    }
}

/// Reads the lines of the echo: of each product every stock from `from` on came once, in order, and what was read of
/// it again was never older than what had come before.
fn in_order(path: &Path, from: &BTreeMap<String, i64>) -> u64 {
    let mut last = from.clone();
    let mut live = 0;
    for line in lines(path) {
        let id = line["id"].as_str().unwrap().to_owned();
        let Some(last) = last.get_mut(&id) else { continue };
        let stock = line["document"]["row"]["stock"].as_i64().unwrap();
        if line["origin"] == "stream" {
            assert_eq!(stock, *last + 1, "lost or out of order: {line}");
            *last = stock;
            live += 1;
        } else {
            assert_eq!(stock, *last, "older or newer than the stream: {line}");
        }
    }
    live
}

async fn stocks(world: &World) -> BTreeMap<String, i64> {
    let ids = i64::try_from(SESSIONS * EACH).unwrap();
    let query = "select id::text, stock::bigint from public.products where id <= $1";
    let rows = world.client.query(query, &[&ids]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_swapped_under_a_thousand_transactions_a_second_loses_and_reorders_nothing() {
    let mut world = shop(2_000, &format!("{TWO_MAPPINGS}{ECHO}")).await;
    world.prepare(&[
        product_search("1.1.0"),
        product_search("1.2.0"),
        echo("1.1.0"),
        echo("1.2.0").feature("traps"),
        echo("1.3.0"),
    ]);
    world.install("echo-json", &echo("1.0.0"));
    world.build().await;
    world.built("echo", 1).await;
    let before = stocks(&world).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let rush = Rush::start(&world.url, &stop);

    // A good one.
    let from = world.host.log_length();
    let position = world.position().await;
    world.install("echo-json", &echo("1.1.0"));
    world.install("product-search", &product_search("1.1.0"));
    world.logged(from, "swapped its transform").await;
    world.built("echo", 2).await;
    world.built("products", 2).await;
    let later = world.position().await;
    let since = status(&world, "echo")["since_lsn"].as_str().unwrap().to_owned();
    let between = format!("select ('{since}'::pg_lsn between '{position}' and '{later}')::text");
    assert_eq!(world.text(&between).await.as_deref(), Some("true"), "{position} {since} {later}");

    // One that crashes at its first batch: its mapping stands, the others go on.
    world.install("echo-json", &echo("1.2.0").feature("traps"));
    let told = says(&world, "echo", "the crash to be told", |mapping| mapping["status"] == "failing").await;
    let error = told["last_error"].as_str().unwrap();
    assert!(
        error.contains("plugin echo-json 1.2.0 on public.products at LSN") && error.contains("crashed"),
        "{error}"
    );
    let from = world.host.log_length();
    world.install("product-search", &product_search("1.2.0"));
    world.logged(from, "swapped its transform").await;
    world.built("products", 3).await;
    assert_eq!(status(&world, "products")["status"], "running");
    assert_eq!(status(&world, "echo")["status"], "failing");

    // Mended.
    world.install("echo-json", &echo("1.3.0"));
    world.built("echo", 4).await;
    let (done, rate) = rush.stop(&stop).await;
    eprintln!("{done} transactions, {rate:.0} a second");
    world.check_one("products", PRODUCT_DOCUMENTS).await;
    let path = world.host.path("echo.jsonl");
    let arrived = || lines(&path).iter().filter(|line| line["origin"] == "stream").count() as u64;
    let waited = wait_until("every change to arrive", LATE, async || Ok(arrived() >= done)).await;
    waited.unwrap_or_else(|error| panic!("{error:#}\n{}", world.host.log_tail()));
    assert_eq!(in_order(&path, &before), done);
    assert_eq!(status(&world, "echo")["version"], "1.3.0");
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn under_dev_other_bytes_of_the_same_version_are_a_bump() {
    let mut world = shop(200, TWO_MAPPINGS).await;
    let (guest, path) = (product_search("1.0.0"), world.host.path("plugins/product-search.wasm"));
    world.install("product-search", &guest);
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start_with(&["--dev"]).unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    world.destination("products").note_writes().unwrap();
    put(&path, &other_bytes(&guest, 1));
    world.built("products", 2).await;
    let (written, of) = world.destination("products").written().unwrap();
    assert!(of > 0 && written == of, "{written} of {of} documents were made again");
    assert_eq!(world.mapping("orders").await.unwrap().0, 1);
    // The same bytes again are nothing.
    put(&path, &other_bytes(&guest, 1));
    flows(&world, "the same bytes").await;
    assert_eq!(world.mapping("products").await.unwrap().0, 2);
    world.terminate();

    put(&path, &other_bytes(&guest, 2));
    let plan = |arguments: &[&str]| {
        let output = world.host.run(arguments).unwrap();
        let shape: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut steps = shape["mappings"].as_array().unwrap().iter();
        (output.status.code(), steps.find(|step| step["mapping"] == "products").unwrap().clone())
    };
    let (code, step) = plan(&["plan", "--json"]);
    assert_eq!((code, &step["action"]), (Some(1), &Value::from("refused")), "{step}");
    let (code, step) = plan(&["plan", "--dev", "--json"]);
    assert_eq!((code, &step["action"]), (Some(0), &Value::from("rebuild")), "{step}");
    assert_eq!(step["reasons"][0], "product-search: other bytes (--dev)");
    // Taken up at a start as well.
    world.host.start_with(&["--dev"]).unwrap();
    world.built("products", 3).await;
    world.check().await;
    world.terminate();
    // And not without the word.
    put(&path, &other_bytes(&guest, 3));
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "does not run, and the slot keeps what it misses").await;
    assert_eq!(world.mapping("products").await.unwrap().0, 3);
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c089_a_removed_file_stops_its_mapping_and_nothing_is_missed() {
    let mut world = shop(200, TWO_MAPPINGS).await;
    world.build().await;
    let path = world.host.path("plugins/product-search.wasm");
    let bytes = fs::read(&path).unwrap();
    let from = world.host.log_length();
    fs::remove_file(&path).unwrap();
    let told =
        says(&world, "products", "the mapping to be stopped", |mapping| mapping["status"] == "refused").await;
    let error = told["last_error"].as_str().unwrap();
    for words in
        ["product-search 1.0.0 was removed", "product-search.wasm is not there any more", "Put it back"]
    {
        assert!(error.contains(words), "{words}: {error}");
    }
    world.logged(from, "a plugin was removed: its mappings stop until it is back").await;
    // Others go on, also through a change of theirs; what the stopped one misses is kept.
    world.destination("products").note_writes().unwrap();
    world
        .execute(
            "update public.products set name = 'missed', active = true where id = 1; \
             delete from public.products where id = 2",
        )
        .await;
    world.execute(&insert_products(5000, 5000, 1)).await;
    let missed = world.position().await;
    world.install("order-summary", &order_summary("1.1.0"));
    world.built("orders", 2).await;
    assert!(!world.passed(&missed).await);
    assert_eq!(world.destination("products").written().unwrap().0, 0);

    put(&path, &bytes);
    world.check().await;
    assert_eq!(world.mapping("products").await.unwrap().0, 1, "nothing is built again");
    let (written, of) = world.destination("products").written().unwrap();
    assert!(written <= 2 && of > 2, "{written} of {of}");
    wait_until("the slot to go on", SOON, async || Ok(world.passed(&missed).await)).await.unwrap();

    // Both are removed: nothing is left to run, and one that comes back is taken up.
    let other = world.host.path("plugins/order-summary.wasm");
    let other_bytes = fs::read(&other).unwrap();
    fs::remove_file(&path).unwrap();
    fs::remove_file(&other).unwrap();
    says(&world, "orders", "the mapping to be stopped", |mapping| mapping["status"] == "refused").await;
    assert!(world.host.is_running().unwrap());
    put(&other, &other_bytes);
    says(&world, "orders", "the mapping to run", |mapping| mapping["status"] == "running").await;
    put(&path, &bytes);
    world.check().await;
    world.terminate();
}

/// Without a `[[map]]` the file makes the mapping; its removal must not forget what was built.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_file_of_a_mapping_by_default_stops_it_as_well() {
    let mut world = shop(100, "[sink.search]\nkind = \"sqlite\"\npath = \"search.db\"\n").await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    let name = "public.products:product-search:search";
    world.built(name, 1).await;
    let path = world.host.path("plugins/product-search.wasm");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    says(&world, name, "the mapping to be stopped", |mapping| mapping["status"] == "refused").await;
    world.execute("delete from public.products where id < 50").await;
    put(&path, &bytes);
    world.check_one("products", PRODUCT_DOCUMENTS).await;
    assert_eq!(world.mapping(name).await.unwrap().0, 1, "built again\n{}", world.host.log());
    world.terminate();
}

/// Writes a file in place, part by part, and looks at each part whether changes still flow through the old one.
async fn write_slowly(world: &mut World, path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    for (part, chunk) in bytes.chunks(bytes.len() / 4 + 1).enumerate() {
        let from = world.host.log_length();
        file.write_all(chunk).unwrap();
        file.sync_all().unwrap();
        if part < 3 {
            world
                .host
                .wait_log(from, "a plugin was not taken up, what ran before goes on", SOON)
                .await
                .unwrap();
            flows(world, &format!("part {part}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c089_files_are_taken_up_whole_or_not_at_all() {
    let mut world = shop(100, TWO_MAPPINGS).await;
    world.build().await;
    let path = world.host.path("plugins/product-search.wasm");
    let versions = ["1.1.0", "1.2.0"].map(|version| component(&product_search(version)));
    let generation = async |world: &World| world.mapping("products").await.unwrap().0;

    // As `dd` does, over what runs.
    write_slowly(&mut world, &path, &versions[0]).await;
    world.built("products", 2).await;
    assert_eq!(world.version("products").await.as_deref(), Some("1.1.0"));

    // Cut in place, and emptied: what runs goes on.
    for bytes in [&versions[0][..1000], &[]] {
        let from = world.host.log_length();
        fs::write(&path, bytes).unwrap();
        world.logged(from, "a plugin was not taken up, what ran before goes on").await;
        flows(&world, &format!("cut to {}", bytes.len())).await;
        assert_eq!(
            (generation(&world).await, status(&world, "products")["status"].clone()),
            (2, "running".into())
        );
    }
    // The same bytes again: nothing happened.
    put(&path, &versions[0]);
    flows(&world, "whole again").await;
    assert_eq!(generation(&world).await, 2);

    // Fifty replacements a second, half of them in place; each that is taken up is one of the two.
    let from = world.host.log_length();
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    for turn in 0..100 {
        pace.tick().await;
        let bytes = &versions[turn % 2];
        if turn % 4 < 2 { put(&path, bytes) } else { fs::write(&path, bytes).unwrap() }
    }
    put(&path, &versions[1]);
    let last = says(&world, "products", "the last one to run", |mapping| {
        mapping["version"] == "1.2.0" && mapping["built"] == mapping["generation"]
    });
    last.await;
    flows(&world, "after the storm").await;
    world.check().await;
    let log = world.host.log();
    for line in
        log.get(from..).unwrap_or_default().lines().filter(|line| line.contains("swapped its transform"))
    {
        assert!(line.contains("1.1.0") || line.contains("1.2.0"), "{line}");
    }
    world.terminate();
}

/// As Kubernetes mounts a ConfigMap: the file is a link to a link to a folder, and the middle one is swapped.
#[tokio::test(flavor = "multi_thread")]
async fn c090_a_swapped_link_is_a_new_version() {
    let mut world = shop(100, TWO_MAPPINGS).await;
    let plugins = world.host.path("plugins");
    for (folder, version) in [("..v1", "1.0.0"), ("..v2", "1.1.0")] {
        fs::create_dir(plugins.join(folder)).unwrap();
        fs::write(plugins.join(folder).join("product-search.wasm"), component(&product_search(version)))
            .unwrap();
        fs::write(plugins.join(folder).join("order-summary.wasm"), component(&order_summary("1.0.0")))
            .unwrap();
    }
    let link = |to: &str, name: &str| symlink(to, plugins.join(name)).unwrap();
    link("..v1", "..data");
    for file in ["product-search.wasm", "order-summary.wasm"] {
        link(&PathBuf::from("..data").join(file).to_string_lossy(), file);
    }
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    link("..v2", "..new");
    fs::rename(plugins.join("..new"), plugins.join("..data")).unwrap();
    fs::remove_dir_all(plugins.join("..v1")).unwrap();
    world.built("products", 2).await;
    assert_eq!(world.version("products").await.as_deref(), Some("1.1.0"));
    assert_eq!(world.mapping("orders").await.unwrap().0, 1, "{PRODUCTS} alone is built again");
    world.check().await;
    world.terminate();
}
