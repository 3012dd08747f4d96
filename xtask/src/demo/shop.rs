//! The demo's source: a throwaway Postgres with the shop in it.

use anyhow::Result;
use testkit::postgres::connect;
use testkit::shop::{self, Size};
use testkit::{Cluster, ClusterOptions};
use tokio_postgres::Client;

/// A Postgres of its own; dropped, it stops and its directory goes.
#[derive(Debug)]
pub(super) struct Shop {
    cluster: Cluster,
    client: Client,
    pub(super) size: Size,
}

impl Shop {
    /// Starts the server, makes the tables and fills them.
    pub(super) async fn open(rows: u64) -> Result<Self> {
        let cluster = Cluster::start(ClusterOptions::default())?;
        connect(&cluster.url("postgres")).await?.batch_execute("create database shop").await?;
        let client = connect(&cluster.url("shop")).await?;
        let size = Size::of(rows);
        shop::create(&client, size).await?;
        Ok(Self { cluster, client, size })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn url(&self) -> String {
        self.cluster.url("shop")
    }

    /// How many documents the two tables should have by now, and rows of `public.customers` that nobody maps.
    pub(super) async fn expected(&self) -> Result<[u64; 2]> {
        let query = "select (select count(*) from public.products where active),
                            (select count(*) from public.orders where status <> 'draft')";
        let row = self.client.query_one(query, &[]).await?;
        Ok([u64::try_from(row.get::<_, i64>(0))?, u64::try_from(row.get::<_, i64>(1))?])
    }

    /// The id of a product that has a document by now; the live changes spare none, not even the first.
    pub(super) async fn a_product(&self) -> Result<Option<String>> {
        let query = "select id::text as product from public.products where active order by id limit 1";
        Ok(self.client.query_opt(query, &[]).await?.map(|row| row.get(0)))
    }

    /// The config that a user would write.
    pub(super) fn config(&self) -> String {
        format!(
            r#"[source]
url = "{}"
slot = "anabranch_demo"

[plugins]
dir = "plugins"

[sink.search]
kind = "sqlite"
path = "search.db"

[[map]]
table = "public.products"
transform = "product-search"
sink = "search"
destination = "products"

[[map]]
table = "public.orders"
transform = "order-summary"
sink = "search"
destination = "orders"
"#,
            self.url()
        )
    }
}
