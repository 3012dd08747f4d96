//! How much memory guests may take: each instance, and all of them together.
//!
//! Guarantees: the sum is never exceeded; who waits for memory holds none, so that nobody waits for each other; it is had in
//! the order in which it was waited for.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::Notify;
use wasmtime::ResourceLimiter;

/// Core instances, tables and memories that one component may have (a Python guest has 38 instances).
const INSTANCES: usize = 128;
/// Elements of one table; each takes a pointer.
const TABLE_ELEMENTS: usize = 1 << 20;
/// What an element of a table takes.
const ELEMENT: usize = size_of::<usize>();

/// A guest wanted more than it may have. The word in the message is the setting that raises it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The memories and tables of one instance.
    #[error(
        "it wants {} of memory, the limit for one instance is {} (`[plugins] memory_limit`): use less, or raise it",
        size(*.wanted), size(*.limit)
    )]
    Memory {
        /// What all its memories would hold, in bytes.
        wanted: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The memories and tables of all instances of all plugins.
    #[error(
        "all instances together would want {} of memory, the limit is {} (`[plugins] total_memory`), and the others gave \
         none back in time: it is tried again; raise the limit, or lower `instances`",
        size(*.wanted), size(*.limit)
    )]
    Total {
        /// What the one instance would hold, in bytes.
        own: usize,
        /// What all instances would hold, in bytes.
        wanted: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// What one call of a host function is given.
    #[error(
        "it passes more than {} to the host in one call, the limit of an instance (`[plugins] memory_limit`): pass less, \
         or raise it",
        size(*.limit)
    )]
    Passed {
        /// The limit, in bytes.
        limit: usize,
    },
    /// What it is made of.
    #[error(
        "it has more than {INSTANCES} core instances, tables or memories, the limit of each (fixed): {problem}"
    )]
    Count {
        /// In the engine's words.
        problem: String,
    },
    /// One table.
    #[error("it wants a table of {wanted} elements, the limit is {TABLE_ELEMENTS} (fixed)")]
    Table {
        /// How many elements.
        wanted: usize,
    },
}

/// A size for people.
pub(super) fn size(bytes: usize) -> String {
    const MIB: usize = 1 << 20;
    if bytes >= MIB { format!("{:.1} MiB", bytes as f64 / MIB as f64) } else { format!("{bytes} bytes") }
}

/// Who has instances that nobody uses at the moment.
pub(super) trait Idle: Send + Sync {
    /// Throws them away.
    fn release(&self);
}

/// The memory of all instances together.
pub(super) struct Budget {
    limit: usize,
    used: AtomicUsize,
    idle: Mutex<Vec<Weak<dyn Idle>>>,
    /// How many wait for memory.
    waiting: AtomicUsize,
    /// Whose turn it is, of those.
    turn: tokio::sync::Mutex<()>,
    freed: Notify,
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit).field("used", &self.used).finish_non_exhaustive()
    }
}

impl Budget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            idle: Mutex::default(),
            waiting: AtomicUsize::new(0),
            turn: tokio::sync::Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Whether somebody waits for memory: then instances are not kept for a next call, and nobody goes first.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Waits for so much memory, or for all that there is, until others have given theirs back; the first who waits has it
    /// first.
    pub(super) async fn reserve(
        self: &Arc<Self>,
        bytes: usize,
        until: Instant,
    ) -> Result<Reserved, LimitError> {
        let wanted = bytes.min(self.limit);
        let _waiting = Waiting::new(&self.waiting);
        let waits = async {
            let _turn = self.turn.lock().await;
            loop {
                let freed = self.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if self.take(wanted).is_ok() {
                    return Reserved { budget: Arc::clone(self), bytes: wanted };
                }
                freed.await;
            }
        };
        let late = |_| LimitError::Total {
            own: bytes,
            wanted: self.used().saturating_add(bytes),
            limit: self.limit,
        };
        tokio::time::timeout_at(until.into(), waits).await.map_err(late)
    }

    /// What all instances hold now, in bytes.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// From now on these instances go when the memory is needed.
    pub(super) fn may_release(&self, idle: Weak<dyn Idle>) {
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|idle| idle.strong_count() > 0);
        all.push(idle);
    }

    /// Takes memory, if need be of instances that are idle; gives how much is used where there is not enough.
    fn take(&self, more: usize) -> Result<(), usize> {
        if self.try_take(more).is_ok() {
            return Ok(());
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        idle.iter().filter_map(Weak::upgrade).for_each(|idle| idle.release());
        self.try_take(more)
    }

    fn try_take(&self, more: usize) -> Result<(), usize> {
        let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).map(drop)
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        if bytes > 0 && self.is_awaited() {
            self.freed.notify_waiters();
        }
    }
}

/// Counts who waits, however that ends.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Memory that was taken for an instance that is about to be made.
#[derive(Debug)]
pub(super) struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The limits of one instance: on the *sum* of its memories and tables, however many it has.
#[derive(Debug)]
pub(super) struct Limits {
    limit: usize,
    used: usize,
    budget: Arc<Budget>,
    /// What it may take before it asks for more.
    reserved: Option<Reserved>,
}

impl Limits {
    pub(super) fn new(limit: usize, budget: &Arc<Budget>) -> Self {
        Self { limit, used: 0, budget: Arc::clone(budget), reserved: None }
    }

    /// The same, with memory that was waited for.
    pub(super) fn with(mut self, reserved: Option<Reserved>) -> Self {
        self.reserved = reserved;
        self
    }

    /// Gives back what it did not take of that.
    pub(super) fn settle(&mut self) {
        self.reserved = None;
    }

    /// The limit, in bytes: also of what one call passes to the host, which a guest could make more than it has by
    /// naming the same bytes many times.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// What its memories and tables hold, in bytes. They never shrink, so it is also the most that they held.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether more than half of the limit is taken. Memories never shrink: engines with a garbage collector, and
    /// guests that leak, grow from call to call until an innocent one would meet the limit.
    pub(super) fn is_half_used(&self) -> bool {
        self.used > self.limit / 2
    }

    fn grow(&mut self, more: usize) -> wasmtime::Result<bool> {
        let wanted = self.used.saturating_add(more);
        if wanted > self.limit {
            return Err(LimitError::Memory { wanted, limit: self.limit }.into());
        }
        let kept = self.reserved.as_ref().map_or(0, |reserved| reserved.bytes).min(more);
        self.budget.take(more - kept).map_err(|used| LimitError::Total {
            own: wanted,
            wanted: used.saturating_add(more - kept),
            limit: self.budget.limit,
        })?;
        if let Some(reserved) = &mut self.reserved {
            reserved.bytes -= kept;
        }
        self.used = wanted;
        Ok(true)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        self.budget.give_back(self.used);
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.grow(desired.saturating_sub(current))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            return Err(LimitError::Table { wanted: desired }.into());
        }
        self.grow(desired.saturating_sub(current).saturating_mul(ELEMENT))
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        INSTANCES
    }

    fn memories(&self) -> usize {
        INSTANCES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(limit: usize) -> Limits {
        Limits::new(limit, &Budget::new(usize::MAX))
    }

    #[test]
    fn c084_the_limit_is_on_the_sum_of_memories() {
        let mut limits = limits(600);
        assert!(limits.memory_growing(0, 300, None).unwrap());
        assert!(limits.memory_growing(0, 300, None).unwrap(), "a second memory");
        let error = limits.memory_growing(300, 301, None).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&LimitError::Memory { wanted: 601, limit: 600 }));
    }

    #[test]
    fn c084_tables_take_memory_as_well() {
        let mut limits = limits(8192 + 16 * ELEMENT);
        assert!(limits.memory_growing(0, 8192, None).unwrap() && limits.table_growing(0, 10, None).unwrap());
        assert!(limits.table_growing(0, 6, None).unwrap());
        let error = limits.table_growing(6, 7, None).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(LimitError::Memory { .. })), "{error}");
        assert!(limits.table_growing(0, usize::MAX, None).is_err());
    }

    #[test]
    fn half_of_the_limit_is_told() {
        let mut limits = limits(600);
        assert!(limits.memory_growing(0, 300, None).unwrap() && !limits.is_half_used());
        assert!(limits.memory_growing(300, 301, None).unwrap() && limits.is_half_used());
    }

    /// Instances that can be thrown away.
    struct Spare(Mutex<Vec<Limits>>);

    impl Idle for Spare {
        fn release(&self) {
            self.0.lock().unwrap().clear();
        }
    }

    #[test]
    fn the_sum_of_all_instances_is_limited_and_idle_ones_go_first() {
        let budget = Budget::new(1000);
        let of = |bytes: usize| {
            let mut limits = Limits::new(600, &budget);
            limits.memory_growing(0, bytes, None).map(|_| limits)
        };
        let (busy, spare) = (of(400).unwrap(), of(500).unwrap());
        let error = of(200).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&LimitError::Total { own: 200, wanted: 1100, limit: 1000 }));
        assert_eq!(budget.used(), 900, "what was refused is not taken");

        let spare = Arc::new(Spare(Mutex::new(vec![spare])));
        budget.may_release(Arc::downgrade(&spare) as Weak<dyn Idle>);
        let second = of(200).unwrap();
        assert_eq!((budget.used(), spare.0.lock().unwrap().len()), (600, 0));
        drop((busy, second));
        assert_eq!(budget.used(), 0);
    }

    fn soon() -> Instant {
        Instant::now() + std::time::Duration::from_secs(60)
    }

    #[tokio::test]
    async fn who_waits_for_memory_has_it_in_turn_and_holds_none_meanwhile() {
        let budget = Budget::new(1000);
        let mut busy = Limits::new(1000, &budget);
        assert!(busy.memory_growing(0, 800, None).unwrap() && !budget.is_awaited());
        let waits = |bytes: usize| {
            let budget = Arc::clone(&budget);
            tokio::spawn(async move { budget.reserve(bytes, soon()).await })
        };
        let large = waits(900);
        while !budget.is_awaited() {
            tokio::task::yield_now().await;
        }
        // There would be room for it, but another was first.
        let small = waits(100);
        while budget.waiting.load(Ordering::SeqCst) < 2 {
            assert!(!small.is_finished(), "it did not wait for its turn");
            tokio::task::yield_now().await;
        }
        assert!(!large.is_finished() && !small.is_finished());
        assert_eq!(budget.used(), 800, "who waits holds nothing");
        drop(busy);
        let large = large.await.unwrap().unwrap();
        let small = small.await.unwrap().unwrap();
        assert_eq!((budget.used(), budget.is_awaited()), (1000, false));

        // It grows by that, and beyond it as any other; what it did not take goes back.
        let mut limits = Limits::new(2000, &budget).with(Some(large));
        assert!(limits.memory_growing(0, 500, None).unwrap());
        assert_eq!(budget.used(), 1000);
        let error = limits.memory_growing(500, 950, None).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&LimitError::Total { own: 950, wanted: 1050, limit: 1000 }));
        drop(small);
        assert!(limits.memory_growing(500, 950, None).unwrap());
        assert_eq!(budget.used(), 950);
        drop(limits);
        assert_eq!(budget.used(), 0);
        let mut limits = Limits::new(2000, &budget).with(Some(budget.reserve(5000, soon()).await.unwrap()));
        assert!(limits.memory_growing(0, 1, None).unwrap());
        assert_eq!(budget.used(), 1000, "more than there is cannot be had, and is not waited for");
        limits.settle();
        assert_eq!(budget.used(), 1);
    }

    #[tokio::test]
    async fn memory_that_nobody_gives_back_is_told() {
        let budget = Budget::new(1000);
        let mut busy = Limits::new(1000, &budget);
        assert!(busy.memory_growing(0, 800, None).unwrap());
        let late =
            tokio::time::timeout(std::time::Duration::from_secs(10), budget.reserve(300, Instant::now()));
        let error = late.await.expect("an end").unwrap_err();
        assert_eq!(error, LimitError::Total { own: 300, wanted: 1100, limit: 1000 });
        assert!(!budget.is_awaited());
        // Instances that nobody uses go at once.
        let spare = Arc::new(Spare(Mutex::new(vec![busy])));
        budget.may_release(Arc::downgrade(&spare) as Weak<dyn Idle>);
        budget.reserve(300, soon()).await.unwrap();
    }

    /// However small they are: each takes something of the host.
    #[test]
    fn instances_tables_and_memories_are_counted() {
        let header = b"\0asm\x01\0\0\0";
        // 65 memories without a page, 65 tables without an element, and nothing at all.
        let memories = [&header[..], &[5, 0x83, 1, 65], &[0; 130]].concat();
        let tables = [&header[..], &[4, 0xc4, 1, 65], &[0x70, 0, 0].repeat(65)].concat();
        let engine = wasmtime::Engine::default();
        for (bytes, fit, words) in [
            (&memories[..], 1, "memory count too high at 130"),
            (&tables, 1, "table count too high at 130"),
            (header, INSTANCES, "instance count too high at 129"),
        ] {
            let module = wasmtime::Module::from_binary(&engine, bytes).unwrap();
            let mut store = wasmtime::Store::new(&engine, limits(usize::MAX));
            store.limiter(|limits| limits);
            for _ in 0..fit {
                wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
            }
            let error = wasmtime::Instance::new(&mut store, &module, &[]).unwrap_err();
            let told = super::super::guest::classify(&error, std::time::Duration::ZERO, 0).to_string();
            assert!(
                told.contains("more than 128 core instances, tables or memories") && told.contains(words),
                "{told}"
            );
        }
    }

    #[test]
    fn errors_name_limit_value_and_setting() {
        let error = LimitError::Memory { wanted: 70 << 20, limit: 64 << 20 }.to_string();
        assert!(
            error.contains("70.0 MiB") && error.contains("64.0 MiB") && error.contains("memory_limit"),
            "{error}"
        );
        let error = LimitError::Total { own: 0, wanted: 70 << 20, limit: 64 << 20 }.to_string();
        assert!(
            error.contains("70.0 MiB") && error.contains("64.0 MiB") && error.contains("total_memory"),
            "{error}"
        );
    }
}
