//! Threads for what may wait: the pages of backfills, and the transforms of their rows.
//!
//! Live changes are handled by other threads, which mostly sleep and therefore get a core as soon as they have
//! something to do. On the same threads a change would wait for whatever page is being parsed there.

use std::num::NonZero;

#[cfg(target_os = "linux")]
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};
use tokio::runtime::{Builder, Handle, Runtime};

use super::error::RunError;

/// What has the cores only while nobody else wants them.
#[cfg(target_os = "linux")]
const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

/// The fewest threads.
const FEWEST: usize = 2;

/// Owns the threads. What runs on them is owned, and ended, by whoever spawned it there.
#[derive(Debug)]
pub(super) struct Background {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Background {
    /// Starts as many threads as there are cores, and never one alone: where that gets no core in the middle of an
    /// allocation, live changes were seen to wait for the allocator's lock that it holds.
    ///
    /// # Errors
    /// [`RunError::Threads`]: the system gives no more.
    pub(super) fn start() -> Result<Self, RunError> {
        let mut builder = Builder::new_multi_thread();
        let cores = std::thread::available_parallelism().map_or(FEWEST, NonZero::get);
        builder.worker_threads(cores.max(FEWEST));
        builder.thread_name("backfill").enable_all().on_thread_start(step_back);
        let runtime = builder.build().map_err(RunError::Threads)?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Where to spawn.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // In a task no runtime may wait for its threads; nothing is left that they could work at.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The thread leaves the cores to others that want them: whoever wakes up takes its core at once (sched(7),
/// "SCHED_IDLE"). A nice value does not do: up to the end of its time slice, a thread that has one keeps its core.
fn step_back() {
    #[cfg(target_os = "linux")]
    {
        // Where it is not allowed, everything works as before.
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn its_threads_have_stepped_back_and_no_others() {
        let policy = || thread_priority::thread_schedule_policy().unwrap();
        let background = Background::start().unwrap();
        assert_eq!(background.handle().spawn(async move { policy() }).await.unwrap(), IDLE);
        assert_ne!(policy(), IDLE);
        // In a task, where a runtime that waits for its threads would panic.
        drop(background);
    }
}
