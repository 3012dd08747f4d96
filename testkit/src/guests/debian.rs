//! A Rust for guests out of Debian's packages, for machines whose rustup cannot add a target.
//!
//! Debian's `rustc-web` comes with the sources of its standard library, which are compiled for WebAssembly once
//! (about a minute and a half); after that guests are compiled as with any other Rust. Nothing is installed:
//! the packages are unpacked into a directory of the cache, about 490 MB. The linker is the ordinary
//! toolchain's. An ordinary Rust of another version cannot compile these sources, and Debian's own
//! WebAssembly library is too old.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::toolchain::{TARGET, sysroot};
use crate::command::{FileLock, is_root, on_path, run, user_cache_dir};

/// The oldest compiler that the guests' crates accept (`rust-version` in their manifest).
const OLDEST_MINOR: u32 = 95;

/// Finds its libraries beside itself, wherever the directory is.
const WRAPPER: &str = r#"#!/bin/sh
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
exec env LD_LIBRARY_PATH="$root/usr/lib/MULTIARCH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$root/usr/bin/rustc" "$@"
"#;

const STD_MANIFEST: &str = r#"[package]
name = "guest-std"
version = "0.0.0"
edition = "2021"

[lib]
path = "lib.rs"

[profile.release]
panic = "abort"

[workspace]
"#;

/// Whether this machine has Debian's package tools and an ordinary toolchain with a linker for WebAssembly.
pub(super) fn is_possible() -> bool {
    ["apt-get", "apt-cache", "dpkg-deb"].iter().all(|program| on_path(program).is_some())
        && linker_directory().is_ok_and(|directory| directory.join("rust-lld").exists())
}

/// The compiler that [`make`] made on this machine before.
pub(super) fn made_earlier() -> Result<Option<PathBuf>> {
    let root = directory()?;
    let rustc = root.join("bin/rustc");
    if !root.join("complete").is_file() {
        return Ok(None);
    }
    // The ordinary toolchain may have been updated since.
    let _lock = FileLock::hold(&root.with_extension("lock"))?;
    link_linker(&root)?;
    Ok(Some(rustc))
}

/// Makes the toolchain; returns its compiler.
#[allow(clippy::print_stderr)] // the first time takes long, so it says what it does
pub(super) fn make() -> Result<PathBuf> {
    let root = directory()?;
    let rustc = root.join("bin/rustc");
    let _lock = FileLock::hold(&root.with_extension("lock"))?;
    if root.join("complete").is_file() {
        return Ok(rustc);
    }
    eprintln!(
        "testkit: making a Rust for guests of Debian's packages in {} (two minutes, once)",
        root.display()
    );
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("bin"))?;
    unpack_packages(&root)?;
    let wrapper = WRAPPER.replace("MULTIARCH", &multiarch()?);
    fs::write(&rustc, wrapper)?;
    fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755))?;
    check_version(&rustc)?;
    link_linker(&root)?;
    compile_std(&root, &rustc)?;
    for sources in ["usr/lib/rustlib/src", "usr/src", "usr/share", "std"] {
        let sources = root.join(sources);
        if sources.exists() {
            fs::remove_dir_all(&sources)?;
        }
    }
    fs::write(root.join("complete"), b"")?;
    Ok(rustc)
}

fn directory() -> Result<PathBuf> {
    Ok(user_cache_dir()?.join("guest-toolchain"))
}

fn unpack_packages(root: &Path) -> Result<()> {
    if is_root() {
        run(Command::new("apt-get").args(["update", "-q"]))?;
    }
    let library = dependency("libstd-rust-web-dev", "libstd-rust-web-")?;
    let llvm = dependency(&library, "libllvm")?;
    let packages = ["rustc-web", "libstd-rust-web-dev", &library, "rust-web-src", &llvm];
    let downloads = root.join("packages");
    fs::create_dir_all(&downloads)?;
    // Packages of the system's own architecture; apt drops its rights for downloads where it can.
    run(Command::new("apt-get").arg("download").args(packages).current_dir(&downloads))?;
    for entry in fs::read_dir(&downloads)? {
        run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(root))?;
    }
    Ok(fs::remove_dir_all(&downloads)?)
}

/// The package that `package` depends on and whose name starts with `prefix`.
fn dependency(package: &str, prefix: &str) -> Result<String> {
    let printed = run(Command::new("apt-cache").args(["depends", package]))?;
    dependency_in(&printed, prefix).with_context(|| {
        format!("Debian's package {package} depends on no {prefix}…; its packages may be too old")
    })
}

fn dependency_in(printed: &str, prefix: &str) -> Option<String> {
    let names = printed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.into_iter().find(|name| name.starts_with(prefix)).map(str::to_owned)
}

fn multiarch() -> Result<String> {
    let architecture = std::env::consts::ARCH;
    if !["x86_64", "aarch64"].contains(&architecture) {
        bail!("Debian has these packages, but nobody has tried them on {architecture}");
    }
    Ok(format!("{architecture}-linux-gnu"))
}

fn check_version(rustc: &Path) -> Result<()> {
    let printed = run(Command::new(rustc).arg("--version"))?;
    let minor = printed.strip_prefix("rustc 1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= OLDEST_MINOR => Ok(()),
        _ => bail!(
            "Debian's rustc-web here is {}; 1.{OLDEST_MINOR} or newer is needed (suite `security`)",
            printed.trim()
        ),
    }
}

/// Where the ordinary toolchain keeps `rust-lld`.
fn linker_directory() -> Result<PathBuf> {
    Ok(sysroot()?.join("lib/rustlib").join(host()).join("bin"))
}

fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Lets the made compiler find the ordinary toolchain's linker where it looks for its own.
fn link_linker(root: &Path) -> Result<()> {
    let linkers = linker_directory()?;
    let link = root.join("usr/lib/rustlib").join(host()).join("bin");
    if fs::read_link(&link).is_ok_and(|target| target == linkers) {
        return Ok(());
    }
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    symlink(&linkers, &link).with_context(|| format!("cannot link {}", link.display()))
}

fn compile_std(root: &Path, rustc: &Path) -> Result<()> {
    let crate_dir = root.join("std");
    fs::create_dir_all(&crate_dir)?;
    fs::write(crate_dir.join("Cargo.toml"), STD_MANIFEST)?;
    fs::write(crate_dir.join("lib.rs"), "#![no_std]\n")?;
    run(Command::new("cargo")
        .args(["build", "--release", "--target", TARGET, "-Zbuild-std=std,panic_abort"])
        .current_dir(&crate_dir)
        .env("RUSTC", rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        // With bitcode, so that guests can be linked with lto.
        .env("RUSTFLAGS", "-Cembed-bitcode=yes")
        .env("CARGO_TARGET_DIR", crate_dir.join("target"))
        .env_remove("RUSTC_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS"))
    .context("compiling the standard library for WebAssembly")?;
    let libraries = root.join("usr/lib/rustlib").join(TARGET).join("lib");
    fs::create_dir_all(&libraries)?;
    let built = crate_dir.join("target").join(TARGET).join("release/deps");
    for entry in fs::read_dir(&built)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(".rlib") && !text.starts_with("libguest_std") {
            fs::copy(built.join(&name), libraries.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_versioned_package() {
        let printed = "libstd-rust-web-1.96\n  Depends: libc6\n  Depends: libllvm22\n  Conflicts: <rustup>\n";
        assert_eq!(dependency_in(printed, "libllvm").as_deref(), Some("libllvm22"));
        assert_eq!(dependency_in(printed, "libstd"), None);
    }
}
