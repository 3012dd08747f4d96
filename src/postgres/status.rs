//! Status replies: what tells the server how far we are, and that we live.
//!
//! Guarantees that replies go out on a timer of their own, whether or not anybody reads the stream, and that
//! positions only grow. Must never wait for a transform or a sink.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::{BufMut as _, BytesMut};
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncWriteExt as _, WriteHalf},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use super::{error::Error, transport::Transport};
use crate::model::Lsn;

#[derive(Debug)]
struct Shared {
    written: AtomicU64,
    flushed: AtomicU64,
    applied: AtomicU64,
    wake: Notify,
    started: Instant,
    /// Milliseconds from `started` to the last received byte.
    received: AtomicU64,
    ended: AtomicBool,
}

/// Sets the positions that replies report. Cheap to clone, usable from any task.
#[derive(Clone, Debug)]
pub struct StatusHandle(Arc<Shared>);

impl StatusHandle {
    pub(super) fn new(start: Lsn) -> Self {
        Self(Arc::new(Shared {
            written: AtomicU64::new(start.0),
            flushed: AtomicU64::new(start.0),
            applied: AtomicU64::new(start.0),
            wake: Notify::new(),
            started: Instant::now(),
            received: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }))
    }

    /// What has arrived. Only shown by the server, in `pg_stat_replication`.
    pub fn set_written(&self, lsn: Lsn) {
        self.0.written.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// What is durable everywhere: the server may forget WAL before it. A smaller value than before is ignored.
    pub fn set_flushed(&self, lsn: Lsn) {
        self.0.flushed.fetch_max(lsn.0, Ordering::AcqRel);
        self.set_written(lsn);
    }

    /// What is visible in every destination. Only shown by the server.
    pub fn set_applied(&self, lsn: Lsn) {
        self.0.applied.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// All three at once.
    pub fn confirm(&self, lsn: Lsn) {
        self.set_flushed(lsn);
        self.set_applied(lsn);
    }

    /// The position that the server may forget up to.
    #[must_use]
    pub fn flushed(&self) -> Lsn {
        Lsn(self.0.flushed.load(Ordering::Acquire))
    }

    /// Sends a reply now instead of with the timer.
    pub fn flush_now(&self) {
        self.0.wake.notify_one();
    }

    /// Whether replies have stopped, because the connection is gone or was closed.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    /// How long nothing has been read. Grows too while nobody reads.
    #[must_use]
    pub fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.0.received.load(Ordering::Acquire));
        self.0.started.elapsed().saturating_sub(last)
    }

    pub(super) fn note_received(&self) {
        let now = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.received.store(now, Ordering::Release);
    }

    fn encode(&self, ask: bool, out: &mut BytesMut) {
        let load = |position: &AtomicU64| position.load(Ordering::Acquire);
        out.put_u8(b'd');
        out.put_i32(4 + 34);
        out.put_u8(b'r');
        out.put_u64(load(&self.0.written));
        out.put_u64(load(&self.0.flushed));
        out.put_u64(load(&self.0.applied));
        out.put_i64(now_postgres());
        out.put_u8(u8::from(ask));
    }
}

/// Microseconds since 2000-01-01, the protocol's clock.
fn now_postgres() -> i64 {
    const EPOCH: i64 = 946_684_800_000_000;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX) - EPOCH
}

/// The task that writes replies. Aborted when dropped.
pub(super) struct Replies {
    task: Option<JoinHandle<Result<(), Error>>>,
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Replies {
    /// Replies every `interval`; asks the server for a sign of life when nothing was read for `quiet`.
    pub(super) fn start(
        mut write: WriteHalf<Transport>,
        status: StatusHandle,
        interval: Duration,
        quiet: Duration,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let ended = SetOnDrop(status.clone());
            let mut timer = tokio::time::interval(interval);
            timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut asked = Instant::now();
            let mut out = BytesMut::new();
            loop {
                let stop = tokio::select! {
                    biased;
                    _ = &mut stopped => true,
                    () = status.0.wake.notified() => false,
                    _ = timer.tick() => false,
                };
                let ask = !stop && status.silence() >= quiet && asked.elapsed() >= quiet;
                if ask {
                    asked = Instant::now();
                }
                out.clear();
                status.encode(ask, &mut out);
                if stop {
                    frontend::copy_done(&mut out);
                }
                write.write_all(&out).await?;
                write.flush().await?;
                if stop {
                    drop(ended);
                    return Ok(());
                }
            }
        });
        Self { task: Some(task), stop: Some(stop) }
    }

    /// Sends the last status and the end of our side.
    pub(super) async fn finish(mut self) -> Result<(), Error> {
        if let Some(stop) = self.stop.take() {
            // The task may have ended by an error, which its handle gives below.
            let _ = stop.send(());
        }
        match self.task.take() {
            Some(task) => task.await.map_err(Error::closed)?,
            None => Ok(()),
        }
    }
}

struct SetOnDrop(StatusHandle);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.0.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_only_grow() {
        let status = StatusHandle::new(Lsn(10));
        status.confirm(Lsn(20));
        status.confirm(Lsn(15));
        status.set_flushed(Lsn::ZERO);
        assert_eq!(status.flushed(), Lsn(20));
        let mut out = BytesMut::new();
        status.encode(true, &mut out);
        assert_eq!(out.len(), 39);
        assert_eq!(&out[..6], b"d\0\0\0\x26r");
        assert_eq!(out[13], 20);
        assert_eq!(out[38], 1);
    }
}
