//! The instances of one revision: a bounded number, reused, recycled by calls, age and memory.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Semaphore, SemaphorePermit};
use wasmtime::Engine;

use super::{
    abi::v1::Exports,
    engine::HostSettings,
    fault::FaultKind,
    grants::Ungranted,
    guest::{Guest, GuestState},
    host::{call::Granted, config::Settings, http::HttpClient, log::LogGate},
    limits::{Budget, Idle, Limits},
};
use crate::model::Revision;

/// How the instances of a revision are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// Those that there are now, idle or at work.
    pub live: usize,
    /// Those that were thrown away after a fault, with a call that was given up, or since they left requests
    /// unfinished; counted since the revision was loaded.
    pub discarded: u64,
}

/// Instances that wait for their next call. They go when another plugin needs the memory.
#[derive(Default)]
struct IdleGuests(Mutex<Vec<Guest>>);

impl IdleGuests {
    fn guests(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle for IdleGuests {
    fn release(&self) {
        let guests = std::mem::take(&mut *self.guests());
        drop(guests);
    }
}

/// Instances of one revision. At most as many live as may run at once.
pub(super) struct Pool {
    engine: Engine,
    exports: Exports,
    revision: Arc<Revision>,
    log: Arc<LogGate>,
    granted: Arc<Granted>,
    http: Option<Arc<HttpClient>>,
    ungranted: Option<Ungranted>,
    running: Semaphore,
    idle: Arc<IdleGuests>,
    instances: usize,
    memory_limit: usize,
    budget: Arc<Budget>,
    deadline: Duration,
    recycle: (u32, Duration),
    discarded: AtomicU64,
    peak_memory: AtomicUsize,
}

impl Pool {
    pub(super) fn new(
        engine: Engine,
        exports: Exports,
        revision: Arc<Revision>,
        settings: &HostSettings,
        budget: &Arc<Budget>,
    ) -> Self {
        let idle = Arc::new(IdleGuests::default());
        budget.may_release(Arc::downgrade(&idle) as Weak<dyn Idle>);
        Self {
            engine,
            exports,
            revision,
            log: Arc::new(LogGate::new(settings.log_lines)),
            granted: Granted::nothing(),
            http: None,
            ungranted: None,
            running: Semaphore::new(settings.instances.max(1)),
            idle,
            instances: settings.instances.max(1),
            memory_limit: settings.memory,
            budget: Arc::clone(budget),
            deadline: settings.call_deadline,
            recycle: (settings.recycle_after_calls, settings.recycle_after),
            discarded: AtomicU64::new(0),
            peak_memory: AtomicUsize::new(0),
        }
    }

    /// Lets instances do what is granted.
    pub(super) fn granting(mut self, granted: Arc<Granted>, http: Option<Arc<HttpClient>>) -> Self {
        (self.granted, self.http) = (granted, http);
        self
    }

    /// What instances are granted.
    pub(super) fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Makes no instance, where something is not granted.
    pub(super) fn refusing(mut self, ungranted: Option<Ungranted>) -> Self {
        self.ungranted = ungranted;
        self
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.idle.guests()
    }

    /// Waits for a place and takes an instance that served these settings, or makes one.
    pub(super) async fn lease(&self, settings: &Settings) -> Result<Lease<'_>, FaultKind> {
        if let Some(ungranted) = &self.ungranted {
            return Err(FaultKind::Ungranted(ungranted.clone()));
        }
        // The semaphore is never closed.
        let permit =
            self.running.acquire().await.map_err(|error| FaultKind::Instantiate(error.to_string()))?;
        let found = self.take_idle(settings);
        let guest = match found {
            Some(guest) => guest,
            None => {
                let limits = Limits::new(self.memory_limit, &self.budget);
                let state = GuestState::new(limits, Arc::clone(settings), Arc::clone(&self.log))
                    .with_revision(Arc::clone(&self.revision), Arc::clone(&self.granted), self.http.clone());
                Guest::new(&self.engine, &self.exports, state, self.deadline).await?
            }
        };
        Ok(Lease { pool: self, guest, fate: Fate { discarded: Some(&self.discarded) }, _permit: permit })
    }

    pub(super) fn instances(&self) -> Instances {
        let at_work = self.instances - self.running.available_permits().min(self.instances);
        Instances { live: self.idle().len() + at_work, discarded: self.discarded.load(Ordering::Relaxed) }
    }

    /// The most memory that one instance had after a call that went well, in bytes.
    pub(super) fn peak_memory(&self) -> usize {
        self.peak_memory.load(Ordering::Relaxed)
    }

    fn take_idle(&self, settings: &Settings) -> Option<Guest> {
        let mut idle = self.idle();
        idle.retain(|guest| guest.is_fresh(self.recycle.0, self.recycle.1));
        let same = |guest: &Guest| Arc::ptr_eq(guest.settings(), settings) || guest.settings() == settings;
        if let Some(at) = idle.iter().rposition(same) {
            return Some(idle.swap_remove(at));
        }
        // Of other mappings' instances, so many go that there is room for one more.
        let running = self.instances - self.running.available_permits();
        idle.truncate(self.instances - running.min(self.instances));
        None
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.log.close(&self.revision);
    }
}

/// An instance, for one call. Dropped without [`Lease::give_back`] (after a fault, or because the call was
/// cancelled) it takes the instance with it.
pub(super) struct Lease<'a> {
    pool: &'a Pool,
    pub(super) guest: Guest,
    fate: Fate<'a>,
    _permit: SemaphorePermit<'a>,
}

impl Lease<'_> {
    /// The call went well: the instance may serve again, unless it left requests unfinished, which end with it.
    pub(super) fn give_back(mut self) {
        if self.guest.has_unfinished() {
            return;
        }
        self.fate.discarded = None;
        self.pool.peak_memory.fetch_max(self.guest.memory(), Ordering::Relaxed);
        if self.guest.is_fresh(self.pool.recycle.0, self.pool.recycle.1) {
            self.pool.idle().push(self.guest);
        }
    }
}

/// Counts an instance that is thrown away: dropped with the count still in it.
struct Fate<'a> {
    discarded: Option<&'a AtomicU64>,
}

impl Drop for Fate<'_> {
    fn drop(&mut self) {
        if let Some(discarded) = self.discarded {
            discarded.fetch_add(1, Ordering::Relaxed);
        }
    }
}
