//! Copies of a cluster's data: a backup to go back to, and a standby to promote.

use std::{fs, net::TcpListener, path::Path, process::Command};

use anyhow::{Result, bail};

use super::{Cluster, Stop, connect};
use crate::{command::run, wait_until};

/// The data of a server at a moment, taken while it was stopped. Removed when dropped.
#[derive(Debug)]
pub struct Backup(Cluster);

impl Cluster {
    /// Stops the server, copies its data, slots and all, and starts it again.
    pub fn back_up(&self) -> Result<Backup> {
        let copy = Self::placed(self.binaries.clone())?;
        self.stop(Stop::Fast)?;
        let copied = copy_data(&self.data_dir(), &copy.data_dir());
        self.start_again()?;
        copied.map(|()| Backup(copy))
    }

    /// Puts a backup in place of what the stopped server has now; it may be put back more than once.
    pub fn restore(&self, backup: &Backup) -> Result<()> {
        if self.locked()?.is_some() {
            bail!("the server runs");
        }
        fs::remove_dir_all(self.data_dir())?;
        copy_data(&backup.0.data_dir(), &self.data_dir())
    }

    /// A physical standby of this server, which is stopped for a moment for it. It has no replication slots. The
    /// settings are lines of its `postgresql.conf`.
    pub fn standby(&self, settings: &[(&str, &str)]) -> Result<Self> {
        let Backup(mut copy) = self.back_up()?;
        let slots = copy.data_dir().join("pg_replslot");
        for slot in fs::read_dir(slots)? {
            fs::remove_dir_all(slot?.path())?;
        }
        copy.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let primary = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port);
        let socket = copy.directory.to_string_lossy().into_owned();
        copy.configure(&[
            ("port", &copy.port.to_string()),
            ("unix_socket_directories", &socket),
            ("primary_conninfo", &primary),
            ("hot_standby", "on"),
        ])?;
        copy.configure(settings)?;
        copy.put_file("standby.signal", b"")?;
        copy.run_server()?;
        Ok(copy)
    }

    /// Makes a standby a primary with a timeline of its own.
    pub async fn promote(&self) -> Result<()> {
        let client = connect(&self.url("postgres")).await?;
        client.execute("select pg_promote(true)", &[]).await?;
        let deadline = std::time::Duration::from_secs(60);
        wait_until("the promoted server to accept writes", deadline, async || {
            Ok(!client.query_one("select pg_is_in_recovery()", &[]).await?.get::<_, bool>(0))
        })
        .await
    }

    /// Waits until a standby has replayed everything that `primary` has written.
    pub async fn caught_up(&self, primary: &Self) -> Result<()> {
        let client = connect(&primary.url("postgres")).await?;
        let end: String = client.query_one("select pg_current_wal_insert_lsn()::text", &[]).await?.get(0);
        let standby = connect(&self.url("postgres")).await?;
        let query = format!("select pg_last_wal_replay_lsn() >= '{end}'");
        let deadline = std::time::Duration::from_secs(60);
        wait_until("the standby to catch up", deadline, async || {
            Ok(standby.query_one(&query, &[]).await?.get::<_, Option<bool>>(0).unwrap_or(false))
        })
        .await
    }
}

/// With owners and modes, which the server insists on.
fn copy_data(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-a").args([from, to])).map(drop)
}
