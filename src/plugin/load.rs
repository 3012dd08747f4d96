//! From a file to a plugin that can be called.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tracing::warn;
use wasmtime::component::{Component, Linker};

use super::{
    PluginHost, Transform,
    abi::v1,
    artifact::{ReadError, Refusal, Shape, judge, read_stable, sha256},
    cache::CacheGuard,
    describe::{self, DescribeError, Described},
    engine::HostSettings,
    grants::{Capability, Ungranted},
    guest::{GuestState, bounded, classify},
    host::{call::Granted, http::HttpClient, log::LogGate},
    limits::Limits,
    pool::{Instances, Pool},
    sink::{SinkConfig, SinkGuest},
};
use crate::model::{Description, EntityName, PluginKind, Revision};

/// How long `describe` may take.
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(1);

/// A plugin could not be loaded. Nothing else is harmed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The engine does not work on this machine.
    #[error("guests cannot run on this machine: {0}")]
    Engine(String),
    /// The cache directory is of no use.
    #[error("the compile cache {} cannot be used: {problem}; set `[plugins] cache_dir` to a directory that can be written", directory.display())]
    Cache {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The directory of plugins cannot be listed.
    #[error("the directory of plugins {} cannot be read: {problem}; make it, or set `[plugins] dir`", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The file cannot be read.
    #[error("plugin {}: {problem}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: ReadError,
    },
    /// The file is no plugin that this host can load.
    #[error("plugin {}: {refusal}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        refusal: Refusal,
    },
    /// It has the right names, but does not fit or cannot be compiled.
    #[error("plugin {}: it does not fit this host's {interface}: {problem}; rebuild it with the SDK of that version", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The interface.
        interface: String,
        /// What is wrong.
        problem: String,
    },
    /// `describe` crashed, looped or took too much memory.
    #[error("plugin {}: `describe` failed: {problem}", path.display())]
    DescribeCall {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// `describe` said what it must not.
    #[error("plugin {}: {problem}", path.display())]
    Describe {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: DescribeError,
    },
    /// It says that it is another kind than its exports make it.
    #[error("plugin {}: it describes itself as a {said}, but exports a {exports}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// The kind that it says.
        said: &'static str,
        /// The kind that it is.
        exports: &'static str,
    },
    /// What it is granted cannot be used.
    #[error("plugin {}: {problem}; see `[plugins.{name}.grants]`", path.display())]
    Grant {
        /// The file.
        path: PathBuf,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Two files with one name.
    #[error("plugin {}: its name {name} is also that of {}; remove one of them", path.display(), other.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// The other file.
        other: PathBuf,
    },
}

/// The files of a directory, and what became of each.
pub type Scanned = Vec<(PathBuf, Result<Plugin, PluginError>)>;

/// A loaded plugin. Cheap to clone; its instances go with the last clone.
#[derive(Clone)]
pub struct Plugin {
    revision: Arc<Revision>,
    description: Arc<Description>,
    path: Arc<Path>,
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    asks: BTreeSet<Capability>,
    ungranted: Option<Ungranted>,
    settings: HostSettings,
    /// What it can do beyond what every sink can.
    optional: v1::Optional,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("revision", &self.revision)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// Name, version, bytes and interface.
    #[must_use]
    pub fn revision(&self) -> &Arc<Revision> {
        &self.revision
    }

    /// What it says of itself.
    #[must_use]
    pub fn description(&self) -> &Arc<Description> {
        &self.description
    }

    /// Where it was loaded from. The file is not needed any more.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it asks for beside the log and its settings.
    #[must_use]
    pub fn asks(&self) -> &BTreeSet<Capability> {
        &self.shared.asks
    }

    /// What it asks for and is not granted: then no instance of it is ever made.
    #[must_use]
    pub fn ungranted(&self) -> Option<&Ungranted> {
        self.shared.ungranted.as_ref()
    }

    /// This plugin at work on an entity, with a mapping's settings.
    #[must_use]
    pub fn transform(&self, entity: &EntityName, settings: BTreeMap<String, String>) -> Transform {
        Transform::new(self.clone(), entity, settings)
    }

    /// This plugin at work as the sink of a name, with that sink's settings.
    #[must_use]
    pub fn sink(&self, name: &str, settings: SinkConfig) -> SinkGuest {
        SinkGuest::new(self.clone(), name, settings)
    }

    /// Whether it is a sink that can empty a destination.
    #[must_use]
    pub fn purges(&self) -> bool {
        self.shared.optional.purge
    }

    /// Whether it is a sink that can build a destination beside what readers see.
    #[must_use]
    pub fn has_generations(&self) -> bool {
        self.shared.optional.generations
    }

    /// How its instances are.
    #[must_use]
    pub fn instances(&self) -> Instances {
        self.shared.pool.instances()
    }

    /// The most memory that one instance had after a call that went well, in bytes.
    #[must_use]
    pub fn peak_memory(&self) -> usize {
        self.shared.pool.peak_memory()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(super) fn settings(&self) -> &HostSettings {
        &self.shared.settings
    }
}

/// A component that was compiled and asked what it is, but not made ready to run.
pub(super) struct Examined {
    pub(super) component: Component,
    pub(super) shape: Shape,
    pub(super) described: Described,
}

fn optional(shape: &Shape) -> v1::Optional {
    let exports = |interface| shape.exports_optional(interface);
    v1::Optional { purge: exports("purge"), generations: exports("generations") }
}

fn kind_word(kind: PluginKind) -> &'static str {
    match kind {
        PluginKind::Transform => "transform",
        PluginKind::Sink => "sink",
    }
}

impl PluginHost {
    /// Loads a plugin: reads the file, judges its names, compiles it (or takes it from the cache) and calls
    /// `describe`. Takes up to seconds of CPU, on a thread for blocking work.
    ///
    /// # Errors
    /// The file is no plugin that this host can run; the error names it and says what to do.
    pub async fn load(&self, path: &Path) -> Result<Plugin, PluginError> {
        let (host, path) = (self.clone(), path.to_owned());
        blocking(move || host.load_blocking(&path)).await?
    }

    /// Loads every `*.wasm` of a directory, in the order of their names. One that fails stops no other; two of
    /// one name both fail. A directory that cannot be listed is one failure, under its own path.
    pub async fn scan(&self, directory: &Path) -> Scanned {
        let host = self.clone();
        let listed = directory.to_owned();
        let scanned = blocking(move || host.scan_blocking(&listed)).await.and_then(|scanned| scanned);
        scanned.unwrap_or_else(|error| vec![(directory.to_owned(), Err(error))])
    }

    /// [`PluginHost::scan`] on this thread.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn scan_blocking(&self, directory: &Path) -> Result<Scanned, PluginError> {
        let load = |path: PathBuf| {
            let plugin = self.load_blocking(&path);
            (path, plugin)
        };
        let mut loaded: Vec<_> = list(directory)?.into_iter().map(load).collect();
        refuse_duplicates(&mut loaded);
        Ok(loaded)
    }

    /// [`PluginHost::load`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn load_blocking(&self, path: &Path) -> Result<Plugin, PluginError> {
        let bytes = read(path)?;
        let Examined { component, shape, described } = self.examine(path, &bytes)?;
        let description = described.description;
        if !described.unknown.is_empty() {
            let keys = described.unknown.join(", ");
            warn!(plugin = description.name, keys, "`describe` has keys that this host does not know");
        }
        let grants = self.inner.settings.grants_of(&description.name);
        let capabilities: BTreeSet<_> =
            shape.capabilities.iter().copied().filter(|asked| !grants.has(*asked)).collect();
        let ungranted =
            (!capabilities.is_empty()).then(|| Ungranted { plugin: description.name.clone(), capabilities });
        let optional = optional(&shape);
        let linker = match &ungranted {
            None => self.granted_linker(&shape),
            Some(_) => self.bare_linker(&component),
        };
        let ready = linker.and_then(|linker| linker.instantiate_pre(&component));
        let exports = ready
            .and_then(|ready| v1::prepare(ready, shape.kind, optional))
            .map_err(|error| shape_error(path, &shape, &error))?;
        let http = grants.http.clone().filter(|_| shape.capabilities.contains(&Capability::Http));
        let http =
            http.map(|grant| HttpClient::new(&description.name, grant)).transpose().map_err(|problem| {
                PluginError::Grant { path: path.to_owned(), name: description.name.clone(), problem }
            })?;
        let revision = Arc::new(Revision {
            name: description.name.clone(),
            version: description.version.clone(),
            sha256: sha256(&bytes),
            interface: shape.interface.clone(),
        });
        let settings = self.inner.settings.of(&description.name);
        let granted = Granted { plugin: description.name.clone(), grants, encoding: description.encoding };
        let engine = self.inner.engine.clone();
        let pool = Pool::new(engine, exports, Arc::clone(&revision), &settings, &self.inner.budget)
            .granting(Arc::new(granted), http.map(Arc::new))
            .refusing(ungranted.clone());
        let shared = Arc::new(Shared { pool, asks: shape.capabilities, ungranted, settings, optional });
        Ok(Plugin { revision, description: Arc::new(description), path: Arc::from(path), shared })
    }

    pub(super) fn examine(&self, path: &Path, bytes: &[u8]) -> Result<Examined, PluginError> {
        let shape =
            judge(bytes).map_err(|refusal| PluginError::Refused { path: path.to_owned(), refusal })?;
        let compile = || Component::from_binary(&self.inner.engine, bytes);
        let compiled = match &self.inner.cache {
            Some(cache) => CacheGuard::around(cache, compile),
            None => compile(),
        };
        let component = compiled.map_err(|error| shape_error(path, &shape, &error))?;
        let text = self.describe(path, &shape, &component)?;
        let described = describe::parse(&text)
            .map_err(|problem| PluginError::Describe { path: path.to_owned(), problem })?;
        let said = described.description.kind;
        if said != shape.kind {
            let (said, exports) = (kind_word(said), kind_word(shape.kind));
            return Err(PluginError::Kind { path: path.to_owned(), said, exports });
        }
        if shape.kind == PluginKind::Sink {
            let ready = self.bare_linker(&component).and_then(|linker| linker.instantiate_pre(&component));
            ready
                .and_then(|ready| v1::prepare(ready, shape.kind, optional(&shape)))
                .map_err(|error| shape_error(path, &shape, &error))?;
        }
        Ok(Examined { component, shape, described })
    }

    /// What a guest gets that is granted all that it asks for.
    pub(super) fn granted_linker(&self, shape: &Shape) -> wasmtime::Result<Linker<GuestState>> {
        let mut linker = self.inner.linker.clone();
        shape.capabilities.iter().try_for_each(|asked| v1::add_capability(&mut linker, *asked))?;
        Ok(linker)
    }

    /// What a guest gets that is granted nothing: the rest is there and traps.
    pub(super) fn bare_linker(&self, component: &Component) -> wasmtime::Result<Linker<GuestState>> {
        let mut linker = self.inner.linker.clone();
        linker.define_unknown_imports_as_traps(component)?;
        Ok(linker)
    }

    /// Calls `describe` in a store without settings, log or anything else, on this thread.
    fn describe(&self, path: &Path, shape: &Shape, component: &Component) -> Result<String, PluginError> {
        let inner = &self.inner;
        let wrong = |error| shape_error(path, shape, &error);
        let linker = self.bare_linker(component).map_err(wrong)?;
        linker.instantiate_pre(component).map_err(wrong)?;
        let limits = Limits::new(inner.settings.most_memory(), &inner.budget);
        let log = Arc::new(LogGate::new(inner.settings.log_lines));
        let state = GuestState::new(limits, Arc::default(), log);
        let (mut store, limit) = bounded(&inner.engine, state);
        store.epoch_deadline_trap();
        store.set_epoch_deadline(Self::ticks(DESCRIBE_DEADLINE));
        v1::describe(&mut store, component, &linker).map_err(|error| {
            let problem = match classify(&error, DESCRIBE_DEADLINE, limit) {
                super::FaultKind::Deadline(limit) => format!("it did not return within {limit:?} (fixed)"),
                other => other.to_string(),
            };
            PluginError::DescribeCall { path: path.to_owned(), problem }
        })
    }
}

/// Work that takes long, awaited by its caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, PluginError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| PluginError::Engine(error.to_string()))
}

fn shape_error(path: &Path, shape: &Shape, error: &wasmtime::Error) -> PluginError {
    PluginError::Shape {
        path: path.to_owned(),
        interface: shape.interface.clone(),
        problem: format!("{error:#}"),
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, PluginError> {
    read_stable(path).map_err(|problem| PluginError::Read { path: path.to_owned(), problem })
}

/// The `*.wasm` files of a directory (links are followed), in the order of their names. Hidden ones are not
/// looked at: tools copy to such names first.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, PluginError> {
    let problem = |error: std::io::Error| PluginError::Directory {
        directory: directory.to_owned(),
        problem: error.to_string(),
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(problem)? {
        let path = entry.map_err(problem)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !hidden && path.extension().is_some_and(|extension| extension == "wasm") && !path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn refuse_duplicates(loaded: &mut [(PathBuf, Result<Plugin, PluginError>)]) {
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, (_, plugin)) in loaded.iter().enumerate() {
        if let Ok(plugin) = plugin {
            by_name.entry(plugin.revision.name.clone()).or_default().push(at);
        }
    }
    for (name, places) in by_name.into_iter().filter(|(_, places)| places.len() > 1) {
        for (turn, &at) in places.iter().enumerate() {
            let other = loaded[places[usize::from(turn == 0)]].0.clone();
            let path = loaded[at].0.clone();
            loaded[at].1 = Err(PluginError::Duplicate { path, name: name.clone(), other });
        }
    }
}
