//! A host on a shop of its own: what tests of the whole begin with.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{path::Path, time::Duration};

use anabranch::postgres::lock_key;
use serde_json::Value;
use testkit::{
    Database, Host,
    checker::{Destination, Expectation, settle},
    guests::Guest,
    shared,
    shop::{self, Size},
    wait_until,
};
use tokio_postgres::Client;

pub const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
/// Long, because several tests share two cores.
pub const SOON: Duration = Duration::from_secs(120);

pub struct Scene {
    pub host: Host,
    pub database: Database,
    pub client: Client,
}

impl Scene {
    /// A filled shop and a host beside it that is not configured yet. A server process of this database that is
    /// not answered for three seconds ends its connection.
    pub async fn new(products: u64, orders: u64) -> Self {
        let database = shared().unwrap().create_database().await.unwrap();
        let client = database.connect().await.unwrap();
        let name = &database.name;
        let short = format!("alter role postgres in database {name} set wal_sender_timeout = '3s'");
        client.batch_execute(&short).await.unwrap();
        shop::create(&client, Size { products, orders, customers: 1 }).await.unwrap();
        Self { host: Host::new(BINARY).unwrap(), database, client }
    }

    /// Writes the config: source and plugins, and `rest`.
    pub fn config(&self, rest: &str) {
        self.config_of(&self.host, rest);
    }

    /// The same for another host of this installation.
    pub fn config_of(&self, host: &Host, rest: &str) {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
        host.config(&format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\nstatus_interval = \"500ms\"\n\
             [plugins]\ncache_dir = \"{cache}\"\ncall_deadline = \"300ms\"\nmemory_limit = \"32MiB\"\n\
             max_output = \"8MiB\"\n{rest}",
            url = self.database.url,
            name = self.database.name,
            cache = cache.display(),
        ))
        .unwrap();
    }

    pub fn plugin(&self, name: &str, guest: &Guest) {
        tokio::task::block_in_place(|| self.host.plugin(name, guest)).unwrap();
    }

    /// A table of the sink `out.db`.
    pub fn table(&self, name: &str) -> Destination {
        Destination::new(self.host.path("out.db"), name)
    }

    /// Waits until a table of `out.db` is what `query` says.
    pub async fn settled(&self, query: &str, table: &str) {
        let settled = settle(&self.client, &Expectation::new(query), &self.table(table), SOON).await;
        settled.unwrap_or_else(|error| panic!("{error:#}\n{}", self.host.log_tail()));
    }

    /// What `status` says of a mapping.
    pub fn mapping(&self, name: &str) -> Value {
        let status = self.host.status().unwrap();
        let mappings = status["mappings"].as_array().unwrap().clone();
        mappings.into_iter().find(|mapping| mapping["name"] == name).unwrap()
    }

    /// Waits until `status` tells an error of a mapping; gives it.
    pub async fn error_of(&self, name: &str) -> String {
        let mut error = None;
        let told = wait_until("the mapping's error", SOON, async || {
            let status = self.host.status()?;
            let mut mappings = status["mappings"].as_array().into_iter().flatten();
            let mapping = mappings.find(|mapping| mapping["name"] == name);
            error = mapping.and_then(|mapping| mapping["last_error"].as_str().map(str::to_owned));
            Ok(error.is_some())
        });
        told.await.unwrap_or_else(|error| panic!("{error:#}\n{}", self.host.log_tail()));
        error.unwrap()
    }

    /// A value of the installation's row in `pg_replication_slots`, as text.
    pub async fn slot(&self, column: &str) -> Option<String> {
        let name = &self.database.name;
        let query = format!("select ({column})::text from pg_replication_slots where slot_name = '{name}'");
        self.client.query_opt(&query, &[]).await.unwrap().and_then(|row| row.get(0))
    }

    /// Waits until somebody streams.
    pub async fn streaming(&self) {
        wait_until("somebody to stream", SOON, async || {
            Ok(self.slot("active").await.as_deref() == Some("true"))
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.host.log_tail()));
    }

    pub async fn text(&self, query: &str) -> String {
        self.client.query_one(query, &[]).await.unwrap().get(0)
    }

    /// The server process that holds the leader's lock.
    pub async fn leader(&self) -> Option<i32> {
        let query = "select pid from pg_locks where locktype = 'advisory' and granted and objsubid = 1
            and classid::bigint << 32 | objid::bigint = $1 and database =
            (select oid from pg_database where datname = current_database())";
        let key = lock_key(&self.database.name);
        self.client.query_opt(query, &[&key]).await.unwrap().map(|row| row.get(0))
    }

    /// Waits until nobody holds anything of the installation: neither the slot nor the leader's lock.
    pub async fn released(&self) {
        let held = "select (select count(*) from pg_locks where locktype = 'advisory' and database =
                (select oid from pg_database where datname = current_database()))
            + (select count(*) from pg_replication_slots where database = current_database() and active)";
        wait_until("slot and lock to be free", Duration::from_secs(5), async || {
            Ok(self.client.query_one(held, &[]).await?.get::<_, i64>(0) == 0)
        })
        .await
        .unwrap();
    }
}

pub fn products() -> Guest {
    Guest::new("plugins/product-search")
}

pub fn orders() -> Guest {
    Guest::new("plugins/order-summary")
}

pub fn hostile() -> Guest {
    Guest::new("plugins/fixtures/hostile")
}

/// The hostile plugin, mended: a document for every row.
pub fn mended() -> Guest {
    hostile().version("1.0.1").feature("mended")
}

/// What the mended plugin makes of the products.
pub const MENDED_DOCUMENTS: &str = "select id, '{\"mended\": true}'::jsonb as document from public.products";
