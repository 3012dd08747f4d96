//! Guests built from source: what compiles them (a Rust for WebAssembly: [`ensure_toolchain`]; tools for
//! JavaScript, Python, C and Go: [`language_tools`]), and components built once for all tests ([`build`]).

mod debian;
mod languages;
mod toolchain;

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

pub use languages::{Language, Tools, language_tools};
pub use toolchain::{Toolchain, ensure_toolchain};

use crate::command::{FileLock, run};
use crate::paths::{repository, target_dir};

/// What to build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guest {
    dir: PathBuf,
    version: Option<String>,
    features: Vec<String>,
}

impl Guest {
    /// The project in `dir`, relative to the repository (`plugins/product-search`) or absolute.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: repository().join(dir.into()), ..Self::default() }
    }

    /// The version that its `describe` shall say, instead of the crate's (`ANABRANCH_PLUGIN_VERSION` at
    /// compile time).
    pub fn version(mut self, version: &str) -> Self {
        self.version = Some(version.to_owned());
        self
    }

    /// A cargo feature to build it with.
    pub fn feature(mut self, feature: &str) -> Self {
        self.features.push(feature.to_owned());
        self
    }

    fn language(&self) -> Result<Language> {
        Language::of(&self.dir).with_context(|| format!("{} is no project of a guest", self.dir.display()))
    }

    fn name(&self) -> Result<&str> {
        let name = self.dir.file_name().and_then(|name| name.to_str());
        name.with_context(|| format!("{} has no name", self.dir.display()))
    }
}

/// Builds a guest into a component with `<anabranch> plugin build` and returns the path of its `.wasm` file,
/// which must not be changed (copy it: [`install`]). A test passes `env!("CARGO_BIN_EXE_anabranch")`. The same
/// guest from the same sources and builder is built once, whoever asks, also from several processes at once.
pub fn build(anabranch: impl AsRef<Path>, guest: &Guest) -> Result<PathBuf> {
    let anabranch = anabranch.as_ref();
    let name = guest.name()?;
    let language = guest.language()?;
    let key = cache_key(anabranch, guest, language)?;
    let version = guest.version.as_deref().unwrap_or("own");
    let built = target_dir().join("guests/built").join(format!("{name}-{version}-{key:016x}.wasm"));
    if built.is_file() {
        return Ok(built);
    }
    // One at a time in Rust: versions of one guest share cargo's output file. In the others: for the memory.
    let lock = match language {
        Language::Rust => "guests/build.lock",
        Language::JavaScript => "guests/build-javascript.lock",
        Language::Python => "guests/build-python.lock",
        Language::C => "guests/build-c.lock",
        Language::Go => "guests/build-go.lock",
    };
    let _lock = FileLock::hold(&target_dir().join(lock))?;
    if built.is_file() {
        return Ok(built);
    }
    let unfinished = built.with_extension("unfinished.wasm");
    let mut command = Command::new(anabranch);
    command.args(["plugin", "build"]).arg(&guest.dir).arg("--output").arg(&unfinished);
    if !guest.features.is_empty() {
        command.arg("--features").arg(guest.features.join(","));
    }
    command.env("CARGO_TARGET_DIR", target_dir().join("guests/cargo"));
    match &guest.version {
        Some(version) => command.env("ANABRANCH_PLUGIN_VERSION", version),
        None => command.env_remove("ANABRANCH_PLUGIN_VERSION"),
    };
    match language {
        Language::Rust => ensure_toolchain()?.apply(&mut command),
        _ => languages::require(language)?.apply(&mut command),
    }
    run(&mut command).with_context(|| format!("cannot build the guest {name}"))?;
    fs::rename(&unfinished, &built)
        .with_context(|| format!("`plugin build` left no {}", unfinished.display()))?;
    Ok(built)
}

/// Puts a built component into a plugins directory as `<name>.wasm`, at once or not at all (written beside,
/// then renamed), as a careful deploy would; returns its path there.
pub fn install(built: &Path, plugins: &Path, name: &str) -> Result<PathBuf> {
    fs::create_dir_all(plugins)?;
    let place = plugins.join(format!("{name}.wasm"));
    // Not named .wasm: a host that watches the directory must not take it for a plugin.
    let beside = plugins.join(format!(".{name}.new"));
    fs::copy(built, &beside).with_context(|| format!("cannot copy {}", built.display()))?;
    fs::rename(&beside, &place)?;
    Ok(place)
}

/// Folders of what is made, not written.
const MADE: [&str; 6] = ["target", "node_modules", "build", "dist", "__pycache__", ".venv"];

/// Everything that the component depends on: the request, the sources of the guests and the interface, the
/// builder, the toolchain's version. Of the slow languages nothing else, so that a new host does not build them again.
fn cache_key(anabranch: &Path, guest: &Guest, language: Language) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    guest.hash(&mut hasher);
    if language != Language::Rust {
        for part in ["wit/v1", "src/plugin/build"].iter().chain(languages::sources(language)) {
            hash_sources(&repository().join(part), &mut hasher)?;
        }
        hash_sources(&guest.dir, &mut hasher)?;
        return Ok(hasher.finish());
    }
    let builder =
        fs::metadata(anabranch).with_context(|| format!("no builder at {}", anabranch.display()))?;
    (builder.len(), builder.modified()?).hash(&mut hasher);
    ensure_toolchain()?.version()?.hash(&mut hasher);
    hash_sources(&repository().join("plugins"), &mut hasher)?;
    hash_sources(&repository().join("wit"), &mut hasher)?;
    if !guest.dir.starts_with(repository().join("plugins")) {
        hash_sources(&guest.dir, &mut hasher)?;
    }
    Ok(hasher.finish())
}

fn hash_sources(dir: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    if dir.is_file() {
        return hash_file(dir, hasher);
    }
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if !MADE.iter().any(|made| path.ends_with(made)) {
                hash_sources(&path, hasher)?;
            }
            continue;
        }
        hash_file(&path, hasher)?;
    }
    Ok(())
}

fn hash_file(path: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    path.hash(hasher);
    fs::read(path)?.hash(hasher);
    Ok(())
}
