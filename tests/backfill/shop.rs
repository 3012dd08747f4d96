//! The shop with two mappings into one SQLite file, and what the tests ask of `backfill`.

#![allow(unreachable_pub, reason = "shared between the files of one test")]

use std::process::Output;

use anabranch::state::Store;
use serde_json::Value;
use testkit::{
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS},
    wait_until,
};

use crate::scene::{SOON, Scene, orders, products};

pub const PRODUCTS: &str = "public.products";

/// Products and orders into `out.db`, in chunks of at most 500 rows.
pub const TWO: &str = r#"
[sink.out]
kind = "sqlite"
path = "out.db"

[backfill]
chunk_size = 500

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "out"
destination = "products"

[[map]]
name = "orders"
table = "public.orders"
transform = "order-summary"
sink = "out"
destination = "orders"
"#;

pub struct Shop {
    pub scene: Scene,
}

impl Shop {
    /// A shop with a host that is configured and not started.
    pub async fn new(products_rows: u64, orders_rows: u64) -> Self {
        let scene = Scene::new(products_rows, orders_rows).await;
        scene.config(TWO);
        scene.plugin("product-search", &products());
        scene.plugin("order-summary", &orders());
        Self { scene }
    }

    /// The same, once everything is built.
    pub async fn built(products_rows: u64, orders_rows: u64) -> Self {
        let mut shop = Self::new(products_rows, orders_rows).await;
        shop.scene.host.start().unwrap();
        shop.reached("products", 1).await;
        shop.reached("orders", 1).await;
        shop
    }

    /// Starts the host, which reads no more than so many rows a second from its first page on.
    pub async fn start_slowly(&mut self, rows_per_second: u32) {
        let (store, client) = (Store::new(self.scene.database.name.as_str()), &self.scene.client);
        store.upgrade(client).await.unwrap();
        store.save_rate(client, None, Some(rows_per_second)).await.unwrap();
        self.scene.host.start().unwrap();
    }

    /// `anabranch backfill …`, with its output as JSON.
    pub fn ask(&self, arguments: &[&str]) -> (i32, Value) {
        let mut all = vec!["backfill"];
        all.extend_from_slice(arguments);
        all.push("--json");
        let Output { status, stdout, stderr } =
            tokio::task::block_in_place(|| self.scene.host.run(&all)).unwrap();
        let text = String::from_utf8(stdout).unwrap();
        let shape = serde_json::Deserializer::from_str(&text).into_iter().last().and_then(Result::ok);
        let shape: Value =
            shape.unwrap_or_else(|| panic!("{all:?}: {text}\n{}", String::from_utf8_lossy(&stderr)));
        (status.code().unwrap(), shape)
    }

    /// The same, which must end with 0.
    pub fn asked(&self, arguments: &[&str]) -> Value {
        let (code, shape) = self.ask(arguments);
        assert_eq!(code, 0, "{arguments:?}: {shape}\n{}", self.scene.host.log_tail());
        shape
    }

    /// Has the products read for their next generation, into an emptied destination where the sink can: some chunks
    /// are delivered, and more are to come once it may [`go_on`](Self::go_on). Gives the run.
    pub async fn midway(&self) -> String {
        self.reached("products", 1).await;
        let before = self.text("select run from anabranch.run where entity = 'public.products'").await;
        self.asked(&["rate", "500", PRODUCTS]);
        self.asked(&["request", PRODUCTS, "--purge"]);
        let reads =
            format!("entity = 'public.products' and status = 'running' and rows > 0 and run <> '{before}'");
        self.until_run(&reads).await;
        self.asked(&["pause", PRODUCTS]);
        self.text("select run from anabranch.run where entity = 'public.products' and status = 'running'")
            .await
    }

    /// Lets it read again.
    pub fn resume(&self) {
        self.asked(&["rate", "none", PRODUCTS]);
        self.asked(&["resume", PRODUCTS]);
    }

    /// The same, and waits until a generation is built.
    pub async fn go_on(&self, generation: i64) {
        self.resume();
        self.reached("products", generation).await;
    }

    /// Waits until a mapping's generation is at least this one and built.
    pub async fn reached(&self, mapping: &str, generation: i64) {
        self.until(&format!("{mapping} to have built generation {generation}"), || {
            format!(
                "select exists (select from anabranch.mapping where name = '{mapping}'
                 and generation >= {generation} and built = generation)"
            )
        })
        .await;
    }

    /// Waits until a query says true. The schema may not be there yet.
    pub async fn until(&self, what: &str, query: impl Fn() -> String) {
        let waited = wait_until(what, SOON, async || {
            Ok(self.scene.client.query_one(&query(), &[]).await?.get::<_, bool>(0))
        });
        waited.await.unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    /// Waits until a condition over the runs holds of one of them.
    pub async fn until_run(&self, condition: &str) {
        let query = format!("select exists (select from anabranch.run where {condition})");
        self.until(condition, || query.clone()).await;
    }

    /// A text of the one row of a query.
    pub async fn text(&self, query: &str) -> String {
        self.scene.text(query).await
    }

    pub async fn check(&self) {
        self.scene.settled(PRODUCT_DOCUMENTS, "products").await;
        self.scene.settled(ORDER_DOCUMENTS, "orders").await;
    }
}
