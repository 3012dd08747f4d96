//! Transactions that are larger than the server keeps in memory, so that it streams them before they commit: what is
//! rolled back, what is interleaved, kills and signals while they are kept and while they are read back, full disks.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use testkit::{
    load::Random,
    postgres::{connect, shared},
    shop::{Size, insert_orders, insert_products},
    wait_until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    lag::expected,
    receiver::{Receiver, Reply},
    world::{LATE, SOON, TWO_MAPPINGS, World, order_summary, product_search, seed},
};

/// Little memory, so that files are needed; and small queues, so that reading back takes a while.
const SPOOL: &str = r#"
[http]
listen = "127.0.0.1:0"

[pipeline]
spool_dir = "spool"
spool_memory = "16KiB"
batch_rows = 200
queue_bytes = "128KiB"
"#;

/// How long an end may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A world whose server streams what is larger than 64 kB.
async fn world(rows: Size, config: &str) -> World {
    let database = shared().unwrap().create_database().await.unwrap();
    let name = &database.name;
    let settings = format!(
        "alter database {name} set logical_decoding_work_mem = '64kB';
         alter database {name} set wal_sender_timeout = '3s'"
    );
    for setting in settings.split(';') {
        database.execute(setting).await.unwrap();
    }
    let world = World::new(&database.url, rows, config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world
}

/// Starts the host, and waits until it streams.
async fn start(world: &mut World) -> usize {
    let from = world.host.log_length();
    world.host.start().unwrap();
    world.logged(from, "streaming").await;
    from
}

/// The values of a metric of a host that was started at `from`, added up; 0 where it is not there.
async fn metric(world: &mut World, from: usize, name: &str) -> anyhow::Result<f64> {
    let line = world.logged(from, "listening for HTTP").await;
    let address = line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let name = format!("anabranch_{name}");
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        (series.split('{').next() == Some(&name)).then(|| value.parse::<f64>().unwrap())
    };
    Ok(text.lines().filter_map(value).sum())
}

async fn wait_metric(world: &mut World, from: usize, name: &str, wanted: impl Fn(f64) -> bool) {
    let mut last = f64::NAN;
    let waited = wait_until(name, SOON, async || {
        last = metric(world, from, name).await?;
        Ok(wanted(last))
    });
    if let Err(error) = waited.await {
        panic!("{error:#}: {last}\n{}", world.host.log_tail());
    }
}

/// Waits until the slot has passed a position. A position is saved soon after a change, and seldom without one.
async fn wait_passed(world: &World, position: &str) {
    world.execute("update public.products set stock = stock where id = 1").await;
    wait_until("the slot to pass it", LATE, async || Ok(world.passed(position).await)).await.unwrap();
}

fn names(path: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A session that writes its own products in savepoints, most of which are rolled back, and then all of it or nothing.
async fn session(url: String, number: u64, mut random: Random) -> (u64, u64) {
    let client = connect(&url).await.unwrap();
    let first = 100_000 * (number + 1);
    let (mut commits, mut aborts) = (0, 0);
    for transaction in 0..4 {
        client.batch_execute("begin").await.unwrap();
        let mut depth = 0;
        for step in 0..12 {
            let at = first + transaction * 5_000 + step * 200;
            let rows = 20 + random.below(180);
            client.batch_execute(&insert_products(at, at + rows, number)).await.unwrap();
            let statement = match random.below(6) {
                0 | 1 => {
                    depth += 1;
                    format!("savepoint s{depth}")
                }
                2 | 3 if depth > 0 => {
                    let level = 1 + random.below(depth);
                    depth = level - 1;
                    format!("rollback to s{level}; release s{level}")
                }
                4 if depth > 0 => {
                    depth -= 1;
                    format!("release s{}", depth + 1)
                }
                _ => {
                    let from = first + random.below(20_000);
                    format!(
                        "update public.products set stock = stock + 1, active = id % 3 <> 0 where id between {from} and {}",
                        from + 400
                    )
                }
            };
            client.batch_execute(&statement).await.unwrap();
        }
        let abort = random.below(3) == 0;
        client.batch_execute(if abort { "rollback" } else { "commit" }).await.unwrap();
        if abort { aborts += 1 } else { commits += 1 }
    }
    (commits, aborts)
}

/// Two tables' worth of DDL in one transaction, of which one is rolled back.
const ALTERED: [&str; 7] = [
    "begin",
    "update public.orders set total = total + 1",
    "alter table public.orders add column origin text default 'shop'; update public.orders set origin = 'web'",
    "savepoint s; alter table public.orders drop column gift; update public.orders set total = total + 2",
    "rollback to s",
    "update public.orders set customer = customer || '!', gift = true where id % 3 = 0",
    "commit",
];

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_with_savepoints_come_to_what_was_committed() {
    let mut random = Random::new(seed());
    let rows = Size { products: 1_000, orders: 1_500, customers: 0 };
    let mut world = world(rows, &format!("{TWO_MAPPINGS}{SPOOL}\n[backfill]\nchunk_size = 50\n")).await;
    world.prepare(&[product_search("1.1.0")]);
    let from = start(&mut world).await;
    world.built("products", 1).await;
    world.built("orders", 1).await;
    let sessions: Vec<_> = (0..4)
        .map(|number| tokio::spawn(session(world.url.clone(), number, Random::new(random.below(u64::MAX)))))
        .collect();
    let orders = connect(&world.url).await.unwrap();
    for statement in ALTERED {
        orders.batch_execute(statement).await.unwrap();
    }
    // A backfill beside them: what is streamed late must overtake what is read early.
    world.install("product-search", &product_search("1.1.0"));
    // One that is rolled back whole, whatever the others do.
    orders.batch_execute("begin").await.unwrap();
    orders.batch_execute(&insert_orders(50_000, 51_000, 1)).await.unwrap();
    orders.batch_execute("rollback").await.unwrap();
    let (mut commits, mut aborts) = (0, 0);
    for session in sessions {
        let (committed, aborted) = session.await.unwrap();
        (commits, aborts) = (commits + committed, aborts + aborted);
    }
    world.built("products", 2).await;
    world.check().await;
    let mut count = async |name| metric(&mut world, from, name).await.unwrap();
    let streamed = count("streamed_transactions_total").await;
    let (rolled_back, files) =
        (count("streamed_savepoints_rolled_back_total").await, count("spool_files_total").await);
    eprintln!(
        "{commits} commits, {aborts} aborts: {streamed} streamed, {rolled_back} savepoints back, {files} files"
    );
    assert!(streamed >= 5.0 && rolled_back >= 1.0 && files >= 3.0);
    wait_metric(&mut world, from, "spool_disk_bytes", |bytes| bytes == 0.0).await;
    wait_metric(&mut world, from, "spool_memory_bytes", |bytes| bytes == 0.0).await;
    assert!(!world.host.log().contains("the term ended"), "{}", world.host.log_tail());
    world.terminate();
}

/// The publication's list of columns of the products, and its other table. Both lists have as many columns, so that a
/// row that is read by the other list is not refused but wrong.
fn listed(slot: &str, verb: &str, fifth: &str) -> String {
    let columns = format!("id, name, description, price, {fifth}, active, tags, attributes");
    format!("{verb} table public.products ({columns}), public.orders").replace("SLOT", &format!("\"{slot}\""))
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_after_a_large_transaction_follow_the_columns_that_were_published_meanwhile() {
    let rows = Size { products: 300, orders: 300, customers: 0 };
    let mut world = world(rows, &format!("manage_publication = false\n{TWO_MAPPINGS}{SPOOL}")).await;
    let version = world.text("select current_setting('server_version_num')").await.unwrap();
    if version.parse::<u32>().unwrap() < 150_000 {
        eprintln!("left out: column lists came with Postgres 15");
        return;
    }
    let slot = world.slot().to_owned();
    world.execute(&listed(&slot, "create publication SLOT for", "sku")).await;
    let from = start(&mut world).await;
    world.built("products", 1).await;
    world.built("orders", 1).await;
    let writer = connect(&world.url).await.unwrap();
    writer.batch_execute("begin").await.unwrap();
    writer.batch_execute(&insert_products(1_001, 2_000, 0)).await.unwrap();
    // Whatever is still to be streamed is of the other table. What follows is too small to be streamed.
    writer.batch_execute(&insert_orders(1_001, 3_000, 0)).await.unwrap();
    wait_metric(&mut world, from, "spool_disk_bytes", |bytes| bytes > 0.0).await;
    world.execute(&listed(&slot, "alter publication SLOT set", "category")).await;
    writer.batch_execute(&insert_orders(3_001, 5_000, 0)).await.unwrap();
    world.execute("update public.products set name = name || '!' where id < 40").await;
    world.check().await;
    writer.batch_execute("commit").await.unwrap();
    world.execute("update public.products set name = name || '?' where id < 60").await;
    world.check().await;
    // A small one too, where it is the largest when the server's memory for all is full.
    assert!(metric(&mut world, from, "streamed_transactions_total").await.unwrap() >= 1.0);
    assert!(!world.host.log().contains("the term ended"), "{}", world.host.log_tail());
    world.terminate();
}

/// Waits until there are more products than these, and tells how many there are.
async fn further(world: &World, before: u64) -> u64 {
    let table = world.destination("products");
    wait_until("another page", SOON, async || Ok(table.count()? > before)).await.unwrap();
    table.count().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_signals_while_it_is_kept_and_while_it_is_read_back_lose_nothing() {
    const ROWS: u64 = 40_000;
    let rows = Size { products: 300, orders: 100, customers: 0 };
    let spool = SPOOL.replace("batch_rows = 200", "batch_rows = 20");
    let mut world = world(rows, &format!("{TWO_MAPPINGS}{spool}")).await;
    let mut from = start(&mut world).await;
    world.built("products", 1).await;
    let before = world.destination("products").count().unwrap();
    let writer = connect(&world.url).await.unwrap();
    writer.batch_execute("begin").await.unwrap();
    writer.batch_execute(&insert_products(1_001, 1_000 + ROWS, 0)).await.unwrap();
    writer
        .batch_execute("savepoint s; update public.products set name = 'gone'; rollback to s")
        .await
        .unwrap();

    // Killed while the transaction is open and in a file; nothing is left of it, and it comes again.
    wait_metric(&mut world, from, "spool_disk_bytes", |bytes| bytes > 1e6).await;
    world.host.kill().unwrap();
    assert_eq!(names(&world.host.path("spool")), BTreeSet::new());
    from = start(&mut world).await;
    wait_metric(&mut world, from, "spool_disk_bytes", |bytes| bytes > 1e6).await;
    // What others commit meanwhile arrives, and is confirmed.
    world.execute("update public.products set name = 'Meanwhile' where id = 7").await;
    let position = world.position().await;
    wait_passed(&world, &position).await;
    assert_eq!(world.destination("products").count().unwrap(), before);

    // Told to end while it is read back: in time, in good order, with nothing of it confirmed.
    writer.batch_execute("commit").await.unwrap();
    let committed = world.position().await;
    let mut count = further(&world, before).await;
    let began = std::time::Instant::now();
    let status = world.host.terminate(LIMIT).unwrap();
    assert_eq!(status.code(), Some(0), "{}", world.host.log_tail());
    eprintln!("ended in {:?}", began.elapsed());
    assert!(!world.passed(&committed).await, "a part was confirmed");

    // Killed while it is read back, twice.
    for _ in 0..2 {
        start(&mut world).await;
        count = further(&world, world.destination("products").count().unwrap()).await;
        world.host.kill().unwrap();
        assert!(!world.passed(&committed).await, "a part was confirmed");
        eprintln!("killed with {count} documents there");
    }
    from = start(&mut world).await;
    world.check().await;
    assert!(count < world.destination("products").count().unwrap(), "the last kill came too late");
    wait_passed(&world, &committed).await;
    wait_metric(&mut world, from, "spool_disk_bytes", |bytes| bytes == 0.0).await;
    world.terminate();
}

/// A sink that answers or does not.
const TO_RECEIVER: &str = r#"
[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "remote"

[sink.remote]
kind = "http"
timeout = "10m"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_hangs_while_it_is_read_back_costs_neither_the_connection_nor_the_end() {
    let hangs = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&hangs);
    let receiver =
        Receiver::start(
            move |_, _| {
                if told.load(Ordering::Relaxed) { Reply::Hang } else { Reply::status(200) }
            },
        )
        .await;
    let spool = SPOOL.replace("queue_bytes", "drain_limit = \"1s\"\nqueue_bytes");
    let config = format!("{TO_RECEIVER}url = \"{}\"\n{spool}", receiver.url("/documents"));
    let rows = Size { products: 50, orders: 0, customers: 0 };
    let mut world = world(rows, &config).await;
    let from = start(&mut world).await;
    world.built("products", 1).await;
    hangs.store(true, Ordering::Relaxed);
    world.execute(&insert_products(1_001, 8_000, 0)).await;
    // All of it is here, and no page goes any further.
    wait_metric(&mut world, from, "mapping_queued_bytes", |bytes| bytes > 64e3).await;
    // Longer than the server waits for replies.
    let walsender = "select pid::text from pg_stat_activity
                     where datname = current_database() and backend_type = 'walsender'";
    let process = world.text(walsender).await;
    assert!(process.is_some());
    let since = world.text("select clock_timestamp()::text").await.unwrap();
    let replied = format!(
        "select (r.reply_time > '{since}'::timestamptz + interval '5 s')::text
         from pg_stat_replication as r join pg_stat_activity as a using (pid)
         where a.datname = current_database()"
    );
    wait_until("replies all the while", SOON, async || {
        Ok(world.text(&replied).await.as_deref() == Some("true"))
    })
    .await
    .unwrap();
    assert_eq!(world.text(walsender).await, process, "{}", world.host.log_tail());
    wait_metric(&mut world, from, "spool_transactions", |open| open == 1.0).await;
    let status = world.host.terminate(LIMIT).unwrap();
    assert_eq!(status.code(), Some(0), "{}", world.host.log_tail());

    hangs.store(false, Ordering::Relaxed);
    let accepted = receiver.received().len();
    start(&mut world).await;
    let wanted: BTreeSet<String> = expected(&world).await.into_keys().collect();
    wait_until("everything to arrive", LATE, async || {
        let received = receiver.received();
        let ids: BTreeSet<String> = received[accepted..].iter().flat_map(|request| request.ids()).collect();
        Ok(wanted.iter().filter(|id| id.parse::<u64>().unwrap() > 1_000).all(|id| ids.contains(id)))
    })
    .await
    .unwrap();
    world.terminate();
}

/// The spool fails amid a transaction: the term ends, the next one leaves large transactions to the server.
async fn goes_on_without_a_spool(config: &str, says: &str) {
    let rows = Size { products: 300, orders: 100, customers: 0 };
    let mut world = world(rows, config).await;
    start(&mut world).await;
    world.built("products", 1).await;
    let from = world.host.log_length();
    let writer = connect(&world.url).await.unwrap();
    writer.batch_execute("begin").await.unwrap();
    writer.batch_execute(&insert_products(1_001, 9_000, 0)).await.unwrap();
    let line = world.logged(from, "the term ended").await;
    assert!(line.contains(says) && line.contains("spool_dir") | line.contains("spool_limit"), "{line}");
    world.logged(from, "the spool of large transactions has failed").await;
    world.logged(from, ": streaming ").await;
    writer.batch_execute("commit").await.unwrap();
    world.check().await;
    wait_metric(&mut world, 0, "spool_errors_total", |errors| errors == 1.0).await;
    wait_metric(&mut world, 0, "spool_active", |active| active == 0.0).await;
    let log = world.host.log();
    assert_eq!(log.matches("the term ended").count(), 1, "{}", world.host.log_tail());
    assert_eq!(log.matches("the spool of large transactions has failed").count(), 1);
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c055_more_than_the_spool_may_take_is_left_to_the_server_and_nothing_is_lost() {
    let config = format!("{TWO_MAPPINGS}{SPOOL}spool_limit = \"1MiB\"\n");
    goes_on_without_a_spool(&config, "would take more than the 1048576 bytes").await;
}

/// A file system of one megabyte; gone when dropped.
struct Small(tempfile::TempDir);

impl Small {
    /// None where it cannot be mounted: that takes root.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(directory.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c055_a_full_disk_is_told_and_nothing_is_lost() {
    let Some(small) = Small::mount() else {
        eprintln!("left out: a small file system cannot be mounted here (it takes root)");
        return;
    };
    let place = small.0.path().display().to_string();
    let config = format!("{TWO_MAPPINGS}{SPOOL}").replace("\"spool\"", &format!("\"{place}\""));
    goes_on_without_a_spool(&config, "No space left on device").await;
    assert_eq!(names(small.0.path()), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_left_is_removed_and_nothing_else_and_a_bad_directory_stops_nobody() {
    let rows = Size { products: 300, orders: 100, customers: 0 };
    let mut world = world(rows, &format!("{TWO_MAPPINGS}{SPOOL}")).await;
    let system = world.text("select system_identifier::text from pg_control_system()").await.unwrap();
    let slot = world.text("select current_database()::text").await.unwrap();
    let spool: PathBuf = world.host.path("spool");
    std::fs::create_dir(&spool).unwrap();
    let other =
        [format!("anabranch-{slot}x-{system}-7.spool"), format!("anabranch-{slot}-{system}-7.spool.old")];
    for name in other.iter().chain([&format!("anabranch-{slot}-{system}-7.spool")]) {
        std::fs::write(spool.join(name), "left").unwrap();
    }
    let from = start(&mut world).await;
    world.logged(from, "removed what a former process left").await;
    assert_eq!(names(&spool), BTreeSet::from(other));
    world.built("products", 1).await;
    world.terminate();

    let config = format!("{TWO_MAPPINGS}{SPOOL}").replace("\"spool\"", "\"anabranch.toml/spool\"");
    world.configure(&world.host, &config);
    let from = start(&mut world).await;
    let line = world.logged(from, "where large transactions are kept").await;
    assert!(line.contains("anabranch.toml/spool") && line.contains("spool_dir"), "{line}");
    world.execute(&insert_products(1_001, 6_000, 0)).await;
    world.check().await;
    assert!(!world.host.log().contains("the term ended"), "{}", world.host.log_tail());
    world.terminate();

    // And where it is switched off, nothing is said and nothing is made.
    std::fs::remove_dir_all(&spool).unwrap();
    world.configure(&world.host, &format!("{TWO_MAPPINGS}{SPOOL}streaming = false\n"));
    let from = start(&mut world).await;
    world.execute("update public.products set name = 'Again'").await;
    world.check().await;
    wait_metric(&mut world, from, "spool_active", |active| active == 0.0).await;
    assert_eq!(metric(&mut world, from, "streamed_transactions_total").await.unwrap(), 0.0);
    let said = world.host.log()[from..].contains("large transactions");
    assert!(!spool.exists() && !said, "{}", world.host.log_tail());
    world.terminate();
}

/// To a sink that forgets, so that only the host's own memory counts.
const FORGOTTEN: &str = r#"
[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "nothing"
auto_backfill = false

[sink.nothing]
kind = "null"

[http]
listen = "127.0.0.1:0"

[pipeline]
spool_dir = "spool"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn c055_a_huge_transaction_takes_bounded_memory() {
    const ROWS: u64 = 250_000;
    const MOST: u64 = 150 << 10;
    let rows = Size { products: 10, orders: 0, customers: 0 };
    let mut world = world(rows, FORGOTTEN).await;
    let from = start(&mut world).await;
    let idle = world.host.peak_memory_kib().unwrap();
    world.execute(&insert_products(1_001, 1_000 + ROWS, 0)).await;
    let position = world.position().await;
    wait_passed(&world, &position).await;
    let peak = world.host.peak_memory_kib().unwrap();
    let written = metric(&mut world, from, "spool_written_bytes_total").await.unwrap();
    eprintln!("{idle} KiB idle, {peak} KiB at most, {written} bytes in files");
    assert!(peak < MOST, "{peak} KiB");
    // Without a bound it would be in memory as a whole.
    assert!(written > f64::from(u32::try_from(MOST >> 1).unwrap()) * 1024.0, "{written}");
    world.terminate();
}
