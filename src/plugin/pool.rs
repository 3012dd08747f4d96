//! The instances of one revision: a bounded number, reused, recycled by calls, age and memory.
//!
//! Guarantees: who waits for a place waits for calls of its own kind alone. Transforms compute, and share the places of
//! their revision. A sink waits for its server, for as long as that takes: each `[sink.<name>]` has places of its own, so
//! that one whose server hangs takes none from another of the same plugin. Memory is shared by all.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
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
    limits::{Budget, Idle, LimitError, Limits, Reserved},
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

/// How many calls run at once, and the instances that wait for their next one. These go when another plugin needs the
/// memory.
pub(super) struct Places {
    running: Semaphore,
    most: usize,
    idle: Mutex<Vec<Guest>>,
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Places {
    fn new(most: usize, budget: &Arc<Budget>) -> Arc<Self> {
        let places = Arc::new(Self { running: Semaphore::new(most), most, idle: Mutex::default() });
        budget.may_release(Arc::downgrade(&places) as Weak<dyn Idle>);
        places
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_work(&self) -> usize {
        self.most - self.running.available_permits().min(self.most)
    }
}

impl Idle for Places {
    fn release(&self) {
        let guests = std::mem::take(&mut *self.idle());
        drop(guests);
    }
}

/// Instances of one revision. At most as many live as may run at once, and so many more for each sink.
pub(super) struct Pool {
    engine: Engine,
    exports: Exports,
    revision: Arc<Revision>,
    log: Arc<LogGate>,
    granted: Arc<Granted>,
    http: Option<Arc<HttpClient>>,
    ungranted: Option<Ungranted>,
    places: Arc<Places>,
    /// Those of sinks, which go with them.
    of_sinks: Mutex<Vec<Weak<Places>>>,
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
        Self {
            engine,
            exports,
            revision,
            log: Arc::new(LogGate::new(settings.log_lines)),
            granted: Granted::nothing(),
            http: None,
            ungranted: None,
            places: Places::new(settings.instances.max(1), budget),
            of_sinks: Mutex::default(),
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

    fn of_sinks(&self) -> MutexGuard<'_, Vec<Weak<Places>>> {
        self.of_sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places for one sink, as many as transforms have together.
    pub(super) fn places_of_a_sink(&self) -> Arc<Places> {
        let places = Places::new(self.places.most, &self.budget);
        let mut all = self.of_sinks();
        all.retain(|places| places.strong_count() > 0);
        all.push(Arc::downgrade(&places));
        places
    }

    /// Waits for a place and takes an instance that served these settings, or makes one. Where the memory of all is used
    /// up, waits for that, too, no longer than a call may take. An earlier attempt may have come to `need` more than was left:
    /// then so many bytes are waited for, and kept for the instance.
    pub(super) async fn lease(&self, settings: &Settings, need: usize) -> Result<Lease<'_>, FaultKind> {
        self.lease_of(&self.places, settings, need).await
    }

    /// The same with other places than those of transforms.
    pub(super) async fn lease_of<'a>(
        &'a self,
        places: &'a Places,
        settings: &Settings,
        need: usize,
    ) -> Result<Lease<'a>, FaultKind> {
        if let Some(ungranted) = &self.ungranted {
            return Err(FaultKind::Ungranted(ungranted.clone()));
        }
        // The semaphore is never closed.
        let permit =
            places.running.acquire().await.map_err(|error| FaultKind::Instantiate(error.to_string()))?;
        // One that is idle has memory, with which it must not wait for more.
        let idle = if need == 0 { self.take_idle(places, settings) } else { None };
        let guest = match idle {
            Some(guest) => guest,
            None => self.make_in_turn(settings, need).await?,
        };
        Ok(Lease {
            pool: self,
            places,
            guest,
            fate: Fate { discarded: Some(&self.discarded) },
            _permit: permit,
        })
    }

    /// Makes an instance once there is memory for it.
    async fn make_in_turn(&self, settings: &Settings, need: usize) -> Result<Guest, FaultKind> {
        let until = Instant::now() + self.deadline;
        let mut need = if need == 0 && self.budget.is_awaited() { 1 } else { need };
        loop {
            let reserved = match need {
                0 => None,
                need => Some(self.budget.reserve(need.max(self.peak_memory()), until).await?),
            };
            match self.make(settings, reserved).await {
                // It holds nothing any more.
                Err(FaultKind::Memory(LimitError::Total { own, .. }))
                    if need < own && Instant::now() < until =>
                {
                    need = own;
                }
                made => return made,
            }
        }
    }

    async fn make(&self, settings: &Settings, reserved: Option<Reserved>) -> Result<Guest, FaultKind> {
        let limits = Limits::new(self.memory_limit, &self.budget).with(reserved);
        let state = GuestState::new(limits, Arc::clone(settings), Arc::clone(&self.log)).with_revision(
            Arc::clone(&self.revision),
            Arc::clone(&self.granted),
            self.http.clone(),
        );
        Guest::new(&self.engine, &self.exports, state, self.deadline).await
    }

    pub(super) fn instances(&self) -> Instances {
        let live = |places: &Places| places.idle().len() + places.at_work();
        let of_sinks: usize =
            self.of_sinks().iter().filter_map(Weak::upgrade).map(|places| live(&places)).sum();
        Instances { live: live(&self.places) + of_sinks, discarded: self.discarded.load(Ordering::Relaxed) }
    }

    /// The most memory that one instance had after a call that went well, in bytes.
    pub(super) fn peak_memory(&self) -> usize {
        self.peak_memory.load(Ordering::Relaxed)
    }

    fn take_idle(&self, places: &Places, settings: &Settings) -> Option<Guest> {
        let mut idle = places.idle();
        idle.retain(|guest| guest.is_fresh(self.recycle.0, self.recycle.1));
        let same = |guest: &Guest| Arc::ptr_eq(guest.settings(), settings) || guest.settings() == settings;
        if let Some(at) = idle.iter().rposition(same) {
            return Some(idle.swap_remove(at));
        }
        // Of other mappings' instances, so many go that there is room for one more.
        idle.truncate(places.most - places.at_work());
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
    places: &'a Places,
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
        if !self.guest.is_fresh(self.pool.recycle.0, self.pool.recycle.1) {
            return;
        }
        self.guest.settle();
        self.places.idle().push(self.guest);
        // Behind the push: who begins to wait now takes it, and who waited before is told.
        if self.pool.budget.is_awaited() {
            self.places.release();
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
