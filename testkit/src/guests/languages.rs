//! Tools for guests in JavaScript, Python, C and Go: found where the machine has Node or Python, installed once in the
//! versions that the repository pins.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::command::{FileLock, run, run_within, user_cache_dir};
use crate::paths::{repository, target_dir};

/// Registries are slow at times, but not for ever.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// A language of guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    /// Rust: see [`ensure_toolchain`](super::ensure_toolchain).
    Rust,
    /// JavaScript, with Node and npm.
    JavaScript,
    /// Python, with its virtual environments.
    Python,
    /// C, with zig, which comes in a virtual environment too.
    C,
    /// Go, which does so as well.
    Go,
}

impl Language {
    /// The language of a project, by its manifest.
    pub fn of(project: &Path) -> Option<Self> {
        let manifests = [
            ("Cargo.toml", Self::Rust),
            ("package.json", Self::JavaScript),
            ("pyproject.toml", Self::Python),
            ("go.mod", Self::Go),
            ("plugin.toml", Self::C),
        ];
        let found = manifests.into_iter().find(|(manifest, _)| project.join(manifest).is_file());
        found.map(|(_, language)| language)
    }
}

/// What a build in a language needs from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// One line for people.
    pub description: String,
    /// Settings for `plugin build`.
    pub environment: Vec<(String, OsString)>,
}

impl Tools {
    /// Makes a program that builds guests use them.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }
}

/// The tools of a language; none where the machine lacks Node or Python, which is told on standard error, and is an
/// error in continuous integration (where `CI` or `ANABRANCH_ALL_LANGUAGES` is set): tests in that language are
/// left out then.
#[allow(clippy::print_stderr)] // whoever runs the tests has to see that some did not run
pub fn language_tools(language: Language) -> Result<Option<Tools>> {
    match require(language) {
        Ok(tools) => Ok(Some(tools)),
        Err(error) if ["CI", "ANABRANCH_ALL_LANGUAGES"].iter().any(|name| env::var_os(name).is_some()) => {
            Err(error)
        }
        Err(error) => {
            eprintln!("testkit: LEFT OUT, what needs guests in {language:?}: {error:#}");
            Ok(None)
        }
    }
}

/// The tools of a language, installed if need be.
pub(super) fn require(language: Language) -> Result<Tools> {
    static FOUND: Mutex<Vec<(Language, Tools)>> = Mutex::new(Vec::new());
    let mut found = FOUND.lock().map_err(|_| anyhow!("looking for tools of guests panicked before"))?;
    if let Some((_, tools)) = found.iter().find(|(known, _)| *known == language) {
        return Ok(tools.clone());
    }
    let tools = match language {
        Language::Rust => bail!("Rust has a toolchain"),
        Language::JavaScript => javascript()?,
        Language::Python => python(language, REQUIREMENTS)?,
        Language::C => python(language, C_REQUIREMENTS)?,
        Language::Go => python(language, GO_REQUIREMENTS)?,
    };
    found.push((language, tools.clone()));
    Ok(tools)
}

/// The repository's files that every guest in a language is made of.
pub(super) fn sources(language: Language) -> &'static [&'static str] {
    match language {
        Language::Rust => &[],
        Language::JavaScript => {
            &["plugins/sdk-js/src", "plugins/sdk-js/package.json", "plugins/package-lock.json"]
        }
        Language::Python => &["plugins/sdk-python/anabranch_sdk", REQUIREMENTS],
        Language::C => &["plugins/sdk-c", C_REQUIREMENTS],
        Language::Go => &["plugins/sdk-go", GO_REQUIREMENTS],
    }
}

/// What Python's tools are pinned by.
const REQUIREMENTS: &str = "plugins/product-search-python/requirements.txt";
/// What the compiler for C is pinned by.
const C_REQUIREMENTS: &str = "plugins/product-search-c/requirements.txt";
/// What Go is pinned by.
const GO_REQUIREMENTS: &str = "plugins/product-search-go/requirements.txt";

/// A version like `v20.1.0` or `Python 3.11.7`, as numbers.
fn numbers(version: &str) -> Vec<u32> {
    let digits = version.trim().trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split('.').map_while(|part| part.parse().ok()).collect()
}

fn fingerprint(file: &Path) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))?.hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

/// Makes what is not there, while nobody else does.
fn once(lock: &Path, done: impl Fn() -> bool, make: impl FnOnce() -> Result<()>) -> Result<()> {
    if done() {
        return Ok(());
    }
    let _lock = FileLock::hold(lock)?;
    if done() { Ok(()) } else { make() }
}

/// `plugins/node_modules`, of `plugins/package-lock.json`.
fn javascript() -> Result<Tools> {
    const NEEDED: &str = "Node 20 or newer is needed, with npm: https://nodejs.org";
    let version = run(Command::new("node").arg("--version")).context(NEEDED)?;
    if numbers(&version).first().is_none_or(|&major| major < 20) {
        bail!("{NEEDED} (this is {})", version.trim());
    }
    let workspace = repository().join("plugins");
    let wanted = fingerprint(&workspace.join("package-lock.json"))?;
    let stamp = workspace.join("node_modules/.installed");
    let installed = || fs::read_to_string(&stamp).is_ok_and(|text| text == wanted);
    once(&target_dir().join("guests/javascript.lock"), installed, || {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&workspace);
        run_within(&mut npm, INSTALL_LIMIT).context("installing the tools for guests in JavaScript")?;
        Ok(fs::write(&stamp, &wanted)?)
    })?;
    Ok(Tools {
        description: format!("Node {}, plugins/node_modules", version.trim()),
        environment: Vec::new(),
    })
}

/// A virtual environment in the cache.
fn python(language: Language, requirements: &str) -> Result<Tools> {
    const NEEDED: &str = "Python 3.11 or newer is needed, with its module venv: https://www.python.org \
                          (Debian: python3-venv)";
    let version = run(Command::new("python3").arg("--version")).context(NEEDED)?;
    if numbers(&version).get(..2).is_none_or(|version| version < [3, 11].as_slice()) {
        bail!("{NEEDED} (this is {})", version.trim());
    }
    let requirements = repository().join(requirements);
    let name = format!("{language:?}-guests-{}", fingerprint(&requirements)?).to_lowercase();
    let place = user_cache_dir()?.join(name);
    let installed = || place.join("complete").is_file();
    once(&place.with_extension("lock"), installed, || install_python(&place, &requirements))?;
    let description = format!("{}, {}", version.trim(), place.display());
    // What zig and Go have compiled of their libraries stays there.
    let (zig, go) = (place.join("zig-cache"), place.join("go-cache"));
    let environment = vec![
        ("VIRTUAL_ENV".to_owned(), OsString::from(place)),
        ("WASI_SDK_PATH".to_owned(), OsString::new()),
        ("ZIG_GLOBAL_CACHE_DIR".to_owned(), OsString::from(zig)),
        ("GOCACHE".to_owned(), OsString::from(go)),
        // Nothing is to be asked of the network.
        ("GOPROXY".to_owned(), OsString::from("off")),
        ("GOTOOLCHAIN".to_owned(), OsString::from("local")),
    ];
    Ok(Tools { description, environment })
}

fn install_python(place: &Path, requirements: &Path) -> Result<()> {
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(place))
        .context("making a virtual environment (Debian: the package python3-venv)")?;
    let mut pip = Command::new(place.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(requirements);
    run_within(&mut pip, INSTALL_LIMIT).context("installing the tools for guests from PyPI")?;
    Ok(fs::write(place.join("complete"), b"")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(numbers("v20.20.2\n"), [20, 20, 2]);
        assert_eq!(numbers("Python 3.13.0rc1"), [3, 13]);
        assert!(numbers("none").is_empty());
    }
}
