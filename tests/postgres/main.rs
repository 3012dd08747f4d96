//! The source, against real servers: connections, streams, pages, slots, publications.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod connect;
mod enrich;
mod publication;
mod slot;
mod snapshot;
mod stream;
mod tls;

use std::time::Duration;

use anabranch::postgres::ConnectSettings;
use testkit::{Cluster, Database};

/// Long enough for a busy machine; conditions are met long before.
const DEADLINE: Duration = Duration::from_secs(30);

fn settings(text: &str) -> ConnectSettings {
    ConnectSettings::parse(text, |_| None).unwrap()
}

async fn shared_database() -> (&'static Cluster, Database) {
    let cluster = tokio::task::spawn_blocking(|| testkit::shared().unwrap()).await.unwrap();
    let database = cluster.create_database().await.unwrap();
    (cluster, database)
}

async fn start(options: testkit::ClusterOptions) -> Cluster {
    tokio::task::spawn_blocking(|| Cluster::start(options).unwrap()).await.unwrap()
}
