//! How much memory guests may take: each instance, and all of them together.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

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
        "all instances together would want {} of memory, the limit is {} (`[plugins] total_memory`): it is tried again \
         when others have given theirs back; raise the limit, or lower `instances`",
        size(*.wanted), size(*.limit)
    )]
    Total {
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
}

impl std::fmt::Debug for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit).field("used", &self.used).finish_non_exhaustive()
    }
}

impl Budget {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), idle: Mutex::default() })
    }

    /// What all instances hold now, in bytes.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// From now on these instances go when the memory is needed.
    pub(super) fn may_release(&self, idle: Weak<dyn Idle>) {
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|idle| idle.strong_count() > 0);
        all.push(idle);
    }

    /// Takes memory, if need be of instances that are idle.
    fn take(&self, more: usize) -> Result<(), LimitError> {
        if self.try_take(more).is_ok() {
            return Ok(());
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        idle.iter().filter_map(Weak::upgrade).for_each(|idle| idle.release());
        self.try_take(more)
            .map_err(|used| LimitError::Total { wanted: used.saturating_add(more), limit: self.limit })
    }

    fn try_take(&self, more: usize) -> Result<(), usize> {
        let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(drop)
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The limits of one instance: on the *sum* of its memories and tables, however many it has.
#[derive(Debug)]
pub(super) struct Limits {
    limit: usize,
    used: usize,
    budget: Arc<Budget>,
}

impl Limits {
    pub(super) fn new(limit: usize, budget: &Arc<Budget>) -> Self {
        Self { limit, used: 0, budget: Arc::clone(budget) }
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
        self.budget.take(more)?;
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
        assert_eq!(error.downcast_ref(), Some(&LimitError::Total { wanted: 1100, limit: 1000 }));
        assert_eq!(budget.used(), 900, "what was refused is not taken");

        let spare = Arc::new(Spare(Mutex::new(vec![spare])));
        budget.may_release(Arc::downgrade(&spare) as Weak<dyn Idle>);
        let second = of(200).unwrap();
        assert_eq!((budget.used(), spare.0.lock().unwrap().len()), (600, 0));
        drop((busy, second));
        assert_eq!(budget.used(), 0);
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
        let error = LimitError::Total { wanted: 70 << 20, limit: 64 << 20 }.to_string();
        assert!(
            error.contains("70.0 MiB") && error.contains("64.0 MiB") && error.contains("total_memory"),
            "{error}"
        );
    }
}
