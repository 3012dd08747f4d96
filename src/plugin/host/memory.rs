//! Services without a runtime, for the author's loop: a store that is forgotten, numbers that nobody shows.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use super::services::{KeyValues, Labels, Meter, Services, Writes};
use crate::{
    model::Failure,
    plugin::grants::{Capability, MetricsGrant, StateGrant},
};

impl Services {
    /// A store in memory and numbers that go nowhere; the source is not asked.
    #[must_use]
    pub fn in_memory() -> Self {
        let memory = Arc::new(Memory::default());
        Self { queries: None, state: Some(Arc::clone(&memory) as _), meter: Some(memory) }
    }
}

#[derive(Debug, Default)]
struct Memory(Mutex<BTreeMap<String, Vec<u8>>>);

impl Memory {
    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KeyValues for Memory {
    fn mapping(&self) -> &str {
        "(none)"
    }

    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let held = self.held();
        Ok(keys.iter().map(|key| held.get(key).cloned()).collect())
    }

    async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Failure> {
        let wanted =
            |key: &&String| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after);
        Ok(self.held().keys().filter(wanted).take(limit).cloned().collect())
    }

    async fn write(&self, writes: Writes, _grant: &StateGrant) -> Result<(), Failure> {
        let mut held = self.held();
        for (key, value) in writes {
            match value {
                Some(value) => held.insert(key, value),
                None => held.remove(&key),
            };
        }
        Ok(())
    }
}

impl Meter for Memory {
    fn count(&self, _: &str, _: Labels, _: u64, _: &MetricsGrant) -> Result<(), Failure> {
        Ok(())
    }

    fn gauge(&self, _: &str, _: Labels, _: f64, _: &MetricsGrant) -> Result<(), Failure> {
        Ok(())
    }

    fn refused(&self, _: Capability) {}
}
