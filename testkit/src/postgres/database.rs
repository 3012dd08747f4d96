//! A database of its own for each test, and plain SQL on it.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use tokio_postgres::{Client, NoTls};

use super::Cluster;
use crate::wait::Pace;

static NUMBER: AtomicU32 = AtomicU32::new(1);

/// A database in a [`Cluster`]. It stays until the cluster goes.
#[derive(Debug)]
pub struct Database {
    /// Its name, also good as a prefix for slots and publications: `t_<number>`.
    pub name: String,
    /// Connection URL of the superuser.
    pub url: String,
}

impl Database {
    pub(super) async fn create(cluster: &Cluster) -> Result<Self> {
        let name = format!("t_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let client = connect(&cluster.url("postgres")).await?;
        client.batch_execute(&format!("create database {name} template template0")).await?;
        Ok(Self { url: cluster.url(&name), name })
    }

    /// A new session.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.url).await
    }

    /// Runs statements in a session of their own; several are one implicit transaction.
    pub async fn execute(&self, statements: &str) -> Result<()> {
        let client = self.connect().await?;
        client.batch_execute(statements).await.with_context(|| format!("in: {statements}"))
    }

    /// The first column of the first row as text; cast other types (`select count(*)::text …`).
    pub async fn query_text(&self, query: &str) -> Result<String> {
        let client = self.connect().await?;
        let row = client.query_one(query, &[]).await.with_context(|| format!("in: {query}"))?;
        Ok(row.try_get(0)?)
    }

    /// Drops the replication slots of this database, ending the walsenders that hold them.
    pub async fn drop_slots(&self) -> Result<()> {
        let held = "select pg_terminate_backend(active_pid) from pg_replication_slots
                    where database = current_database() and active_pid is not null";
        let free = "select pg_drop_replication_slot(slot_name) from pg_replication_slots
                    where database = current_database() and active_pid is null";
        let left = "select count(*)::text from pg_replication_slots where database = current_database()";
        let client = self.connect().await?;
        let drop_free = async || -> Result<bool> {
            client.query(held, &[]).await?;
            client.query(free, &[]).await?;
            Ok(client.query_one(left, &[]).await?.get::<_, String>(0) == "0")
        };
        let mut pace = Pace::new("the slots to be dropped", std::time::Duration::from_secs(20));
        while pace.again(drop_free().await).await? {}
        Ok(())
    }
}

/// A session of `url` without TLS, driven by a task of the caller's runtime until the client is dropped.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.with_context(|| format!("cannot connect to {url}"))?;
    tokio::spawn(async move {
        // The client's next call reports it; there is nobody else to tell.
        let _ = connection.await;
    });
    Ok(client)
}
