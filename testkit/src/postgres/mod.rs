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
mod fetched;

pub use binaries::Binaries;
pub use cluster::{Cluster, ClusterOptions, Stop};
pub use copies::Backup;
pub use database::{Database, connect};
pub use fetched::MAJORS;

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::{Result, anyhow};

/// By the major version that was asked for; none is the default.
static SHARED: Mutex<BTreeMap<Option<u32>, &'static Cluster>> = Mutex::new(BTreeMap::new());

/// The cluster that all tests of this process share, started by the first that asks (default options). Give
/// each test a database of its own with [`Cluster::create_database`]; never stop or restart it.
pub fn shared() -> Result<&'static Cluster> {
    shared_with(None)
}

/// As [`shared`], with a server of one major version, for what only that version does. It is fetched where it is not
/// installed.
pub fn shared_of(major: u32) -> Result<&'static Cluster> {
    shared_with(Some(major))
}

fn shared_with(major: Option<u32>) -> Result<&'static Cluster> {
    let mut shared =
        SHARED.lock().map_err(|_| anyhow!("starting the shared cluster panicked in another test"))?;
    if let Some(cluster) = shared.get(&major) {
        return Ok(cluster);
    }
    let options = match major {
        Some(major) => ClusterOptions::new().binaries(Binaries::of_major(major)?),
        None => ClusterOptions::default(),
    };
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(options)?));
    shared.insert(major, cluster);
    Ok(cluster)
}
