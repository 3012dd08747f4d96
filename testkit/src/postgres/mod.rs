//! Private Postgres servers: found or fetched ([`Binaries`]), started in a directory of their own
//! ([`Cluster`]), and gone when the process that asked for them is gone, however it ended.
//!
//! A cluster runs under a shell of five lines that waits for a word on a pipe. The word says how to stop; the
//! end of the pipe, which the kernel brings about also when this process is killed with SIGKILL, means: stop
//! at once and remove the directory. Nothing has to run in this process for that.

mod binaries;
mod cluster;
mod copies;
mod database;

pub use binaries::Binaries;
pub use cluster::{Cluster, ClusterOptions, Stop};
pub use copies::Backup;
pub use database::{Database, connect};

use std::sync::Mutex;

use anyhow::{Result, anyhow};

static SHARED: Mutex<Option<&'static Cluster>> = Mutex::new(None);

/// The cluster that all tests of this process share, started by the first that asks (default options). Give
/// each test a database of its own with [`Cluster::create_database`]; never stop or restart it.
pub fn shared() -> Result<&'static Cluster> {
    let mut shared =
        SHARED.lock().map_err(|_| anyhow!("starting the shared cluster panicked in another test"))?;
    if let Some(cluster) = *shared {
        return Ok(cluster);
    }
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(ClusterOptions::default())?));
    *shared = Some(cluster);
    Ok(cluster)
}
