//! How much memory a guest may take.

use wasmtime::ResourceLimiter;

/// Core instances, tables and memories that one component may have (a Python guest has 38 instances).
const INSTANCES: usize = 128;
/// Elements of one table; each takes a pointer.
const TABLE_ELEMENTS: usize = 1 << 20;

/// A guest wanted more than it may have. The word in the message is the setting that raises it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The memories of one instance.
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

/// The limits of one instance: on the *sum* of its memories, however many it has.
#[derive(Debug)]
pub(super) struct Limits {
    limit: usize,
    used: usize,
}

impl Limits {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: 0 }
    }

    /// What its memories hold, in bytes. They never shrink, so it is also the most that they held.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Whether more than half of the limit is taken. Memories never shrink: engines with a garbage collector, and
    /// guests that leak, grow from call to call until an innocent one would meet the limit.
    pub(super) fn is_half_used(&self) -> bool {
        self.used > self.limit / 2
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let wanted = self.used.saturating_add(more);
        if wanted > self.limit {
            return Err(LimitError::Memory { wanted, limit: self.limit }.into());
        }
        self.used = wanted;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            return Err(LimitError::Table { wanted: desired }.into());
        }
        Ok(true)
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

    #[test]
    fn c084_the_limit_is_on_the_sum_of_memories() {
        let mut limits = Limits::new(600);
        assert!(limits.memory_growing(0, 300, None).unwrap());
        assert!(limits.memory_growing(0, 300, None).unwrap(), "a second memory");
        let error = limits.memory_growing(300, 301, None).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&LimitError::Memory { wanted: 601, limit: 600 }));
    }

    #[test]
    fn half_of_the_limit_is_told() {
        let mut limits = Limits::new(600);
        assert!(limits.memory_growing(0, 300, None).unwrap() && !limits.is_half_used());
        assert!(limits.memory_growing(300, 301, None).unwrap() && limits.is_half_used());
    }

    #[test]
    fn tables_are_limited() {
        let mut limits = Limits::new(1);
        assert!(limits.table_growing(0, 1024, None).unwrap());
        assert!(limits.table_growing(0, usize::MAX, None).is_err());
    }

    #[test]
    fn errors_name_limit_value_and_setting() {
        let error = LimitError::Memory { wanted: 70 << 20, limit: 64 << 20 }.to_string();
        assert!(
            error.contains("70.0 MiB") && error.contains("64.0 MiB") && error.contains("memory_limit"),
            "{error}"
        );
    }
}
