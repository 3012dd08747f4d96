//! A shop, a host with real plugins, and what the tests ask of both.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use testkit::{
    ClusterOptions, Host,
    checker::{Destination, Expectation, settle},
    guests::{self, Guest},
    load::{Load, LoadCounts, LoadOptions},
    postgres::connect,
    shop::{self, ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, Size},
    wait::Pace,
    wait_until,
};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

pub const SOON: Duration = Duration::from_secs(60);
pub const LATE: Duration = Duration::from_secs(240);
pub const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");

pub const PRODUCTS: &str = "public.products";
pub const ORDERS: &str = "public.orders";

/// A mapping of the products whose deliveries can be counted line by line.
pub const ECHO: &str = r#"
[sink.log]
kind = "jsonl"
path = "echo.jsonl"

[[map]]
name = "echo"
table = "public.products"
transform = "echo-json"
sink = "log"
destination = "echo"
"#;

/// Its transform.
pub fn echo(version: &str) -> Guest {
    Guest::new("plugins/fixtures/echo-json").version(version)
}

/// Two mappings into one SQLite file, as a user would write them.
pub const TWO_MAPPINGS: &str = r#"
[sink.search]
kind = "sqlite"
path = "search.db"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "search"
destination = "products"

[[map]]
name = "orders"
table = "public.orders"
transform = "order-summary"
sink = "search"
destination = "orders"
"#;

pub fn product_search(version: &str) -> Guest {
    Guest::new("plugins/product-search").version(version)
}

pub fn order_summary(version: &str) -> Guest {
    Guest::new("plugins/order-summary").version(version)
}

/// A server that gives a slot up which keeps more WAL than this.
pub fn keeps_for_slots(limit: &str) -> ClusterOptions {
    ClusterOptions::new()
        .setting("max_slot_wal_keep_size", limit)
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "64MB")
}

/// One test's source and host.
pub struct World {
    /// The database as the test reaches it.
    pub url: String,
    /// As the host does.
    host_url: String,
    pub client: Client,
    pub host: Host,
}

impl World {
    /// A shop in the database of `url`, and a host that is configured and not started.
    pub async fn new(url: &str, rows: Size, config: &str) -> Self {
        Self::through(url, url, rows, config).await
    }

    /// The same with a host that reaches the database by another way.
    pub async fn through(url: &str, host_url: &str, rows: Size, config: &str) -> Self {
        let client = connect(url).await.unwrap();
        shop::create(&client, rows).await.unwrap();
        let (url, host_url) = (url.to_owned(), host_url.to_owned());
        let world = Self { url, host_url, client, host: Host::new(BINARY).unwrap() };
        world.configure(&world.host, config);
        world
    }

    /// Starts the host of `TWO_MAPPINGS`, and waits until both backfills are done.
    pub async fn build(&mut self) {
        self.install("product-search", &product_search("1.0.0"));
        self.install("order-summary", &order_summary("1.0.0"));
        self.host.start().unwrap();
        self.built("products", 1).await;
        self.built("orders", 1).await;
    }

    /// Writes the config of a host of this installation.
    pub fn configure(&self, host: &Host, config: &str) {
        let (url, slot) = (&self.host_url, self.slot());
        let source = format!("[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublication = \"{slot}\"\n");
        host.config(&format!("{source}{config}")).unwrap();
    }

    /// The slot's name, which is the database's.
    pub fn slot(&self) -> &str {
        self.url.rsplit('/').next().unwrap()
    }

    /// Builds a guest and puts it into the plugin directory by a rename.
    pub fn install(&self, name: &str, guest: &Guest) {
        self.host.plugin(name, guest).unwrap();
    }

    /// Builds guests, so that installing them later is quick.
    pub fn prepare(&self, guests: &[Guest]) {
        for guest in guests {
            guests::build(BINARY, guest).unwrap();
        }
    }

    pub fn destination(&self, table: &str) -> Destination {
        Destination::new(self.host.path("search.db"), table)
    }

    /// A text that a query on the source answers; none where there is no row.
    pub async fn text(&self, query: &str) -> Option<String> {
        let row = self.client.query_opt(query, &[]).await.unwrap();
        row.and_then(|row| row.get(0))
    }

    pub async fn execute(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap();
    }

    /// What is stored of a mapping: generation, generation built, status.
    pub async fn mapping(&self, name: &str) -> anyhow::Result<(i64, i64, String)> {
        let query = "select generation, built, status from anabranch.mapping where name = $1";
        let row = self.client.query_opt(query, &[&name]).await?;
        let Some(row) = row else { anyhow::bail!("no mapping {name} is stored yet") };
        Ok((row.get(0), row.get(1), row.get(2)))
    }

    /// The version that the documents of a mapping are made by, as stored.
    pub async fn version(&self, mapping: &str) -> Option<String> {
        let query = "select identity -> 'transform' ->> 'version' from anabranch.mapping where name = $1";
        self.client.query_opt(query, &[&mapping]).await.unwrap().and_then(|row| row.get(0))
    }

    /// Waits until a mapping's generation is at least this one, and built.
    pub async fn built(&self, mapping: &str, generation: i64) {
        let description = format!("{mapping} to have built generation {generation}");
        let waited = wait_until(&description, LATE, async || {
            let (current, built, _) = self.mapping(mapping).await?;
            anyhow::ensure!(current >= generation && built == current, "{built} of {current} is built");
            Ok(true)
        });
        if let Err(error) = waited.await {
            panic!("{error:#}\n{}", self.host.log_tail());
        }
    }

    /// Whether a table is being read, and how many of its rows are durable.
    pub async fn reading(&self, entity: &str) -> Option<i64> {
        let query = "select rows from anabranch.run where entity = $1 and status <> 'complete'";
        self.client.query_opt(query, &[&entity]).await.ok()?.map(|row| row.get(0))
    }

    /// The rows of both tables' backfills that are durable, and how many backfills were begun.
    pub async fn progress(&self) -> (i64, i64) {
        let query = "select coalesce(sum(r.rows), 0)::bigint,
                         (select coalesce(sum(generation), 0)::bigint from anabranch.mapping) from anabranch.run as r";
        self.client.query_one(query, &[]).await.map_or((0, 0), |row| (row.get(0), row.get(1)))
    }

    /// The end of the WAL.
    pub async fn position(&self) -> String {
        self.text("select pg_current_wal_insert_lsn()::text").await.unwrap()
    }

    /// How far the slot is confirmed.
    pub async fn confirmed(&self) -> String {
        let query = "select confirmed_flush_lsn::text from pg_replication_slots
                     where database = current_database()";
        self.text(query).await.unwrap()
    }

    /// Whether the slot has passed a position.
    pub async fn passed(&self, position: &str) -> bool {
        let query = format!(
            "select (confirmed_flush_lsn > '{position}')::text from pg_replication_slots
             where database = current_database()"
        );
        self.text(&query).await.as_deref() == Some("true")
    }

    /// Whether the server has given the slot up.
    pub async fn slot_is_lost(&self) -> bool {
        let query = "select wal_status from pg_replication_slots where database = current_database()";
        self.text(query).await.as_deref() == Some("lost")
    }

    /// Both destinations are what SQL makes of the source.
    pub async fn check(&self) {
        self.check_one("products", PRODUCT_DOCUMENTS).await;
        self.check_one("orders", ORDER_DOCUMENTS).await;
    }

    pub async fn check_one(&self, table: &str, documents: &str) {
        // A session of its own: the checker's cursor ends what the session has open.
        let client = connect(&self.url).await.unwrap();
        let settled = settle(&client, &Expectation::new(documents), &self.destination(table), LATE).await;
        match settled {
            Ok(compared) => eprintln!("{table}: {compared}"),
            Err(error) => panic!("{table}: {error:#}\n{}", self.host.log_tail()),
        }
    }

    /// Waits for a log line after `from`.
    pub async fn logged(&mut self, from: usize, text: &str) -> String {
        self.host.wait_log(from, text, SOON).await.unwrap()
    }

    /// Ends the host as a service manager does; it must end well.
    pub fn terminate(&mut self) {
        let status = self.host.terminate(SOON).unwrap();
        assert!(status.success(), "{status}\n{}", self.host.log_tail());
    }
}

/// How soon a step of the load may follow another: a mixed load, not a race that the host has to win.
const PACE: Duration = Duration::from_millis(10);

/// A load beside the test.
pub struct Background {
    stop: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    task: JoinHandle<anyhow::Result<LoadCounts>>,
}

impl Background {
    pub async fn start(url: &str, options: LoadOptions) -> Self {
        let mut load = Load::new(url, options).await.unwrap();
        let (stop, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&steps));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PACE);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                load.step().await?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(load.counts())
        });
        Self { stop, steps, task }
    }

    /// Waits for so many more steps.
    pub async fn advance(&mut self, steps: u64) {
        let target = self.steps.load(Ordering::Relaxed) + steps;
        let mut pace = Pace::new("the load to go on", LATE);
        while pace.again(Ok(self.steps.load(Ordering::Relaxed) >= target)).await.unwrap() {
            if self.task.is_finished() {
                let ended = (&mut self.task).await.unwrap();
                panic!("the load ended: {ended:?}");
            }
        }
    }

    pub async fn stop(self) -> LoadCounts {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap().unwrap()
    }
}

/// The lines of a file that an sink of kind `jsonl` wrote; a line without its end is not counted.
pub fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `FAULTS_SEED`, or another number each time; printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let fresh = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into();
    let seed = std::env::var("FAULTS_SEED").ok().map_or_else(fresh, |seed| seed.parse().unwrap());
    eprintln!("FAULTS_SEED={seed}");
    seed
}
