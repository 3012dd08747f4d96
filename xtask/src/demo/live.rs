//! Changes that arrive all the while: the load of the tests, at a walking pace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use testkit::load::{Load, LoadCounts, LoadOptions};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::shop::Shop;

/// One transaction every so often.
const PACE: Duration = Duration::from_millis(10);

/// A session that changes the shop until it is stopped or dropped.
#[derive(Debug)]
pub(super) struct LiveChanges {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<LoadCounts>>,
}

impl LiveChanges {
    pub(super) async fn start(shop: &Shop) -> Result<Self> {
        let known_ids = shop.size.products.min(shop.size.orders);
        let options = LoadOptions { copy_every: 0, ..LoadOptions::new(1, known_ids) };
        let mut load = Load::new(&shop.url(), options).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut ticks = interval(PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                load.step().await?;
            }
            Ok(load.counts())
        });
        Ok(Self { stop, task })
    }

    /// Waits for the last transaction; says what was done.
    pub(super) async fn stop(mut self) -> Result<LoadCounts> {
        self.stop.store(true, Ordering::Relaxed);
        (&mut self.task).await?
    }
}

impl Drop for LiveChanges {
    fn drop(&mut self) {
        self.task.abort();
    }
}
