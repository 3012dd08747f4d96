//! The engine that all guests share, and its settings.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, thread, time::Duration};

use wasmtime::{Cache, CacheConfig, Config, Engine, OptLevel, component::Linker};

use super::{
    abi::v1, cache::CacheGuard, grants::Grants, guest::GuestState, limits::Budget, load::PluginError,
};

/// How often guests are interrupted to look at their deadline and to let others run.
const TICK: Duration = Duration::from_millis(10);
/// Stack of a guest, in bytes.
const STACK: usize = 512 << 10;

/// Limits of guests, and where compiled code is kept. Keys are those of `[plugins]`.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Where compiled code is kept between runs; none compiles anew each time. `cache_dir`.
    pub cache_dir: Option<PathBuf>,
    /// The memories of all instances of all plugins together, in bytes. `total_memory`.
    pub total_memory: usize,
    /// The memories of one instance, in bytes. `memory_limit`.
    pub memory: usize,
    /// How long one call may take. `call_deadline`.
    pub call_deadline: Duration,
    /// Bytes of one call's reply. `max_output`.
    pub max_output: usize,
    /// Instances of one plugin, which is how many calls run at once. `instances`.
    pub instances: usize,
    /// Documents that one change may have; one call may have a hundred times as many. `max_documents`.
    pub max_documents: usize,
    /// Lines that a plugin may log in one second, and in one call. `log_lines`.
    pub log_lines: u32,
    /// Changes that one call may have.
    pub batch_changes: usize,
    /// Bytes after which a request is not filled further; one larger change is sent alone.
    pub batch_bytes: usize,
    /// Calls after which an instance is replaced, so that leaks stay small.
    pub recycle_after_calls: u32,
    /// Age after which an instance is replaced.
    pub recycle_after: Duration,
    /// What plugins may use that have limits of their own, by name. `[plugins.<name>]`.
    pub named: BTreeMap<String, GuestLimits>,
    /// What plugins are granted, by name. `[plugins.<name>.grants]`.
    pub grants: BTreeMap<String, Grants>,
    /// Whether a plugin runs also where it asks for more than it is granted; then such calls are refused one by one.
    pub lenient: bool,
}

/// Limits that a plugin may have of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestLimits {
    /// As [`HostSettings::memory`].
    pub memory: usize,
    /// As [`HostSettings::call_deadline`].
    pub call_deadline: Duration,
    /// As [`HostSettings::max_output`].
    pub max_output: usize,
    /// As [`HostSettings::instances`].
    pub instances: usize,
    /// As [`HostSettings::max_documents`].
    pub max_documents: usize,
    /// As [`HostSettings::log_lines`].
    pub log_lines: u32,
}

impl HostSettings {
    /// The settings as they hold for one plugin.
    pub(super) fn of(&self, plugin: &str) -> Self {
        let grants =
            self.grants.get(plugin).map(|grants| (plugin.to_owned(), grants.clone())).into_iter().collect();
        let mut settings = Self { named: BTreeMap::new(), grants, ..self.clone() };
        if let Some(own) = self.named.get(plugin) {
            settings.memory = own.memory;
            settings.call_deadline = own.call_deadline;
            settings.max_output = own.max_output;
            settings.instances = own.instances;
            settings.max_documents = own.max_documents;
            settings.log_lines = own.log_lines;
        }
        settings
    }

    /// What a plugin is granted.
    pub(super) fn grants_of(&self, plugin: &str) -> Grants {
        let grants = self.grants.get(plugin).cloned().unwrap_or_default();
        if self.lenient { grants.lenient() } else { grants }
    }

    /// The memory of a plugin whose name is not known yet: what the one with the most may have.
    pub(super) fn most_memory(&self) -> usize {
        self.named.values().map(|own| own.memory).fold(self.memory, usize::max)
    }
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            cache_dir: None,
            total_memory: 1 << 30,
            memory: 64 << 20,
            call_deadline: Duration::from_secs(5),
            max_output: 16 << 20,
            instances: thread::available_parallelism().map_or(2, usize::from).clamp(2, 8),
            max_documents: 10_000,
            log_lines: 100,
            batch_changes: 1000,
            batch_bytes: 1 << 20,
            recycle_after_calls: 10_000,
            recycle_after: Duration::from_secs(15 * 60),
            named: BTreeMap::new(),
            grants: BTreeMap::new(),
            lenient: false,
        }
    }
}

/// Loads and runs plugins. Cheap to clone.
#[derive(Clone)]
pub struct PluginHost {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) engine: Engine,
    /// What every guest gets.
    pub(super) linker: Linker<GuestState>,
    pub(super) settings: HostSettings,
    pub(super) cache: Option<CacheGuard>,
    pub(super) budget: Arc<Budget>,
}

impl std::fmt::Debug for PluginHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluginHost").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

impl PluginHost {
    /// Makes an engine, and the thread that drives its epochs until the host is dropped.
    ///
    /// # Errors
    /// The cache directory cannot be made, or the machine cannot run compiled guests.
    pub fn new(settings: HostSettings) -> Result<Self, PluginError> {
        let (engine, cache) = make_engine(&settings)?;
        let mut linker = Linker::new(&engine);
        v1::add_always(&mut linker).map_err(|error| PluginError::Engine(format!("{error:#}")))?;
        tick(&engine)?;
        let budget = Budget::new(settings.total_memory);
        Ok(Self { inner: Arc::new(Inner { engine, linker, settings, cache, budget }) })
    }

    /// Ticks that pass in a time, at least one.
    pub(super) fn ticks(time: Duration) -> u64 {
        u64::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// The memory that the instances of all plugins hold now, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.inner.budget.used()
    }

    /// How often compiled code was found in the cache, and how often not, since the start.
    #[must_use]
    pub fn cache_use(&self) -> (usize, usize) {
        self.inner.cache.as_ref().map_or((0, 0), CacheGuard::usage)
    }
}

fn make_engine(settings: &HostSettings) -> Result<(Engine, Option<CacheGuard>), PluginError> {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .concurrency_support(false)
        .epoch_interruption(true)
        .max_wasm_stack(STACK)
        .async_stack_size(STACK + (512 << 10))
        .cranelift_opt_level(OptLevel::Speed);
    let mut guard = None;
    if let Some(directory) = &settings.cache_dir {
        let problem = |problem: String| PluginError::Cache { directory: directory.clone(), problem };
        std::fs::create_dir_all(directory).map_err(|error| problem(error.to_string()))?;
        let absolute = directory.canonicalize().map_err(|error| problem(error.to_string()))?;
        let mut cache = CacheConfig::new();
        cache.with_directory(CacheGuard::code(&absolute));
        // Compressing hot entries again would change files behind the guard's back.
        cache.with_optimized_compression_usage_counter_threshold(u64::MAX);
        let cache = Cache::new(cache).map_err(|error| problem(format!("{error:#}")))?;
        config.cache(Some(cache.clone()));
        guard = Some(CacheGuard::new(absolute, cache));
    }
    let engine = Engine::new(&config).map_err(|error| PluginError::Engine(format!("{error:#}")))?;
    Ok((engine, guard))
}

/// A thread of its own, so that no looping guest can hold the epochs up.
fn tick(engine: &Engine) -> Result<(), PluginError> {
    let engine = engine.weak();
    let run = move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(TICK);
        }
    };
    let spawned = thread::Builder::new().name("guest-epochs".to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| PluginError::Engine(format!("no thread for epochs: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_for_the_plugin_that_they_name() {
        let state = Some(crate::plugin::grants::StateGrant { max_bytes: 1, max_keys: 1 });
        let own = Grants { state, ..Grants::default() };
        let settings = HostSettings {
            grants: BTreeMap::from([("keeps".to_owned(), own.clone())]),
            ..HostSettings::default()
        };
        assert_eq!(settings.grants_of("keeps"), own);
        assert_eq!(settings.grants_of("other"), Grants::default());
        assert_eq!(settings.of("other").grants, BTreeMap::new());
    }

    #[test]
    fn limits_of_its_own_are_for_that_plugin_alone() {
        let own = GuestLimits {
            memory: 1 << 30,
            call_deadline: Duration::from_secs(1),
            max_output: 7,
            instances: 1,
            max_documents: 3,
            log_lines: 2,
        };
        let settings = HostSettings {
            named: BTreeMap::from([("big".to_owned(), own.clone())]),
            memory: 1 << 20,
            ..HostSettings::default()
        };
        let big = settings.of("big");
        assert_eq!((big.memory, big.call_deadline), (own.memory, own.call_deadline));
        assert_eq!((big.max_output, big.instances), (own.max_output, own.instances));
        assert_eq!((big.max_documents, big.log_lines), (own.max_documents, own.log_lines));
        assert_eq!(settings.of("other").memory, 1 << 20);
        assert_eq!(settings.most_memory(), 1 << 30);
        assert_eq!(HostSettings { named: BTreeMap::new(), ..settings }.most_memory(), 1 << 20);
    }
}
