//! What the commands need before they start: a Rust for guests, Postgres, the host, the guests.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use testkit::guests::{self, Guest, ensure_toolchain};
use testkit::paths::{repository, target_dir};
use testkit::postgres::Binaries;

use crate::steps::{cargo, pass_through};

/// Finds or installs a Rust that compiles guests.
pub(crate) fn toolchain() -> Result<String> {
    let toolchain = ensure_toolchain()?;
    Ok(format!("{}: {}", toolchain.version()?, toolchain.describe()))
}

/// Finds or installs a Postgres server.
pub(crate) fn postgres() -> Result<String> {
    let binaries = Binaries::find_or_install()?;
    Ok(format!("Postgres {} in {}", binaries.major, binaries.dir.display()))
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
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap_or_default();
        // The SDK is no guest, and what is not published are fixtures, built by the tests that use them.
        if manifest.contains("\"cdylib\"") && !manifest.contains("publish = false") {
            guests::build(anabranch, &Guest::new(&directory))?;
            built.extend(directory.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    Ok(built.join(", "))
}
