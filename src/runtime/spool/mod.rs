//! The spool of one connection: the machine of `pgoutput::spool`, the files that it writes to, and the committed
//! transaction that is being read back.
//!
//! Guarantees that nothing here outlives its connection, since the server streams every open transaction again on the
//! next one; that a failure ends the term, with nothing of the transaction confirmed. After one the server is asked for
//! committed transactions only, for a while ([`Trust`]), so that a full disk stops nobody for long.
//! Must never confirm anything, or hold more in memory than `[pipeline] spool_memory`.

mod disk;
mod replay;

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::warn;

pub(super) use disk::Directory;
pub use disk::DiskError;

use self::{disk::Disk, replay::Replaying};
use crate::{
    config::PipelineSettings,
    model::Xid,
    pgoutput::{
        Spool, SpoolError,
        spool::{Replay, Write},
    },
};

/// For how long after a failure large transactions are not asked for before they commit.
const DISTRUST: Duration = Duration::from_secs(3600);

/// A streamed transaction could not be kept, or not be read back. The server streams it again.
#[derive(Debug, thiserror::Error)]
pub enum SpoolFault {
    /// What the server sent makes no sense, or what was read back is damaged.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// What was read back makes no transaction.
    #[error("what was spooled of transaction {xid} makes no transaction: {problem}")]
    Replayed {
        /// The transaction.
        xid: Xid,
        /// Why not.
        problem: String,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Spooling {
    pub(super) spool: Spool,
    disk: Disk,
    replaying: Option<Box<Replaying>>,
}

/// How much there is, for those who ask.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpoolView {
    /// Transactions that are open, or being read back.
    pub(super) transactions: usize,
    pub(super) memory: usize,
    pub(super) disk: u64,
}

impl Spooling {
    pub(super) fn new(settings: &PipelineSettings, directory: Directory) -> Self {
        let disk = Disk::new(directory, settings.spool_limit);
        Self { spool: Spool::new(settings.spool_memory), disk, replaying: None }
    }

    /// Whether a committed transaction is being read back: nothing further may be taken until it is done.
    pub(super) fn replays(&self) -> bool {
        self.replaying.is_some()
    }

    pub(super) fn view(&self) -> SpoolView {
        let usage = self.spool.usage();
        let transactions = usage.transactions + usize::from(self.replays());
        SpoolView { transactions, memory: usage.memory, disk: self.disk.used() }
    }

    /// Writes away what is too much for the memory; gives the bytes written, and whether a file was made for them.
    async fn write(&mut self, Write { xid, offset, bytes }: Write) -> Result<(usize, bool), SpoolFault> {
        let length = bytes.len();
        let made = self.disk.write(xid, offset, bytes).await?;
        Ok((length, made))
    }

    /// Gives everything back, and waits for it: what the next connection may keep is counted from nothing.
    pub(super) async fn end(self) {
        self.disk.end().await;
    }

    fn begin(&mut self, replay: Replay) {
        self.replaying = Some(Box::new(Replaying::new(replay)));
    }
}

/// Whether large transactions are asked for before they commit.
#[derive(Debug, Default)]
pub(super) struct Trust {
    failed: Mutex<Option<(Instant, bool)>>,
}

impl Trust {
    /// The spool has failed.
    pub(super) fn lose(&self) {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), false));
    }

    /// Whether it is to be tried; says once for how long it is not.
    fn holds(&self) -> bool {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((since, told)) = &mut *failed else { return true };
        if since.elapsed() > DISTRUST {
            *failed = None;
            return true;
        }
        if !std::mem::replace(told, true) {
            warn!(
                "the spool of large transactions has failed: for {} minutes the server is left to keep them until they \
                 commit, on its own disk",
                DISTRUST.as_secs() / 60,
            );
        }
        false
    }
}

/// A spool for the next connection; none where large transactions are not to be streamed before they commit.
pub(super) async fn for_connection(
    settings: &PipelineSettings,
    trust: &Trust,
    installation: &str,
    system: &str,
) -> Option<Spooling> {
    if !settings.streaming || !trust.holds() {
        return None;
    }
    match Directory::open(settings.spool_dir.clone(), installation, system).await {
        Ok(directory) => Some(Spooling::new(settings, directory)),
        Err(error) => {
            warn!("{error}");
            trust.lose();
            trust.holds();
            None
        }
    }
}
