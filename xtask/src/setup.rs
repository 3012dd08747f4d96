//! What the commands need before they start: a Rust for guests, Postgres, the host, the guests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use testkit::guests::{self, Guest, Language, ensure_toolchain, language_tools};
use testkit::paths::{repository, target_dir};
use testkit::postgres::Binaries;

use crate::steps::{cargo, pass_through};

/// Finds or installs a Rust that compiles guests.
pub(crate) fn toolchain() -> Result<String> {
    let toolchain = ensure_toolchain()?;
    Ok(format!("{}: {}", toolchain.version()?, toolchain.describe()))
}

/// Finds the tools of a language of guests, and installs what the repository pins.
pub(crate) fn language(language: Language) -> Result<String> {
    let tools = language_tools(language)?;
    Ok(tools.map_or_else(|| "LEFT OUT, with every test that needs it".to_owned(), |tools| tools.description))
}

/// Finds or installs a Postgres server.
pub(crate) fn postgres() -> Result<String> {
    Ok(described(&Binaries::find_or_install()?))
}

/// One line for people.
pub(crate) fn described(binaries: &Binaries) -> String {
    format!("Postgres {} in {}", binaries.major, binaries.dir.display())
}

/// Builds the `anabranch` binary; returns its path.
pub(crate) fn host(release: bool) -> Result<PathBuf> {
    // No `--package`: dependencies keep the features that they have for the tests, and are compiled once.
    let mut arguments = vec!["build", "--bin", "anabranch"];
    if release {
        arguments.push("--release");
    }
    pass_through(&mut cargo(&arguments))?;
    let profile = if release { "release" } else { "debug" };
    let binary = target_dir().join(profile).join(format!("anabranch{}", env::consts::EXE_SUFFIX));
    fs::canonicalize(&binary).with_context(|| format!("cargo built no {}", binary.display()))
}

/// Builds the plugins that come with the repository, so that a broken one is told before the tests start.
pub(crate) fn guests(anabranch: &PathBuf) -> Result<String> {
    let mut built = Vec::new();
    let entries = fs::read_dir(repository().join("plugins"))?;
    let mut directories = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    directories.sort();
    for directory in directories {
        if is_guest(&directory)? {
            guests::build(anabranch, &Guest::new(&directory))?;
            built.extend(directory.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(built.join(", "))
}

/// Whether a folder has a guest that this machine can build. SDKs are none, and what is not published are fixtures,
/// built by the tests that use them.
fn is_guest(directory: &Path) -> Result<bool> {
    let Some(language) = Language::of(directory) else { return Ok(false) };
    let holds = |file: &str, mark: &str| {
        fs::read_to_string(directory.join(file)).is_ok_and(|manifest| manifest.contains(mark))
    };
    Ok(match language {
        Language::Rust => holds("Cargo.toml", "\"cdylib\"") && !holds("Cargo.toml", "publish = false"),
        Language::JavaScript => holds("package.json", "\"main\"") && language_tools(language)?.is_some(),
        Language::Python => {
            holds("pyproject.toml", "[tool.anabranch]") && language_tools(language)?.is_some()
        }
        Language::C => language_tools(language)?.is_some(),
        // An SDK has no program.
        Language::Go => directory.join("main.go").is_file() && language_tools(language)?.is_some(),
    })
}
