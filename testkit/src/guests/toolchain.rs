//! Which Rust compiles guests: the ordinary one where it has the target, or can get it from rustup, else one
//! that is made of Debian's packages (see `debian`).

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::debian;
use crate::command::{on_path, run, run_within};

/// The compilation target of guests. It has no system interface: what a guest may do is what it imports.
pub(super) const TARGET: &str = "wasm32-unknown-unknown";
/// `rustup target add` on a machine that cannot reach its server may hang.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);

static FOUND: Mutex<Option<Toolchain>> = Mutex::new(None);

/// A Rust that compiles to WebAssembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    rustc: Option<PathBuf>,
}

impl Toolchain {
    /// Makes a cargo, or a program that calls cargo, use it.
    pub fn apply(&self, command: &mut Command) {
        if let Some(rustc) = &self.rustc {
            command.env("RUSTC", rustc);
        }
    }

    /// The compiler's own words, such as `rustc 1.96.0 (…)`.
    pub fn version(&self) -> Result<String> {
        let rustc = self.rustc.clone().unwrap_or_else(|| PathBuf::from("rustc"));
        Ok(run(Command::new(rustc).arg("--version"))?.trim().to_owned())
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        match &self.rustc {
            None => format!("the installed Rust with its target {TARGET}"),
            Some(rustc) => format!("{} (the installed Rust lacks the target {TARGET})", rustc.display()),
        }
    }
}

/// Finds a Rust for guests, or makes one (once per machine; prints a line before something that takes long).
/// In this order: `ANABRANCH_GUEST_RUSTC`; the installed target; a Debian toolchain made earlier; `rustup
/// target add`; a toolchain of Debian's packages. `ANABRANCH_GUEST_TOOLCHAIN=debian` asks for the last alone.
pub fn ensure_toolchain() -> Result<Toolchain> {
    let mut found = FOUND.lock().map_err(|_| anyhow!("looking for the guest toolchain panicked before"))?;
    if let Some(toolchain) = found.as_ref() {
        return Ok(toolchain.clone());
    }
    let toolchain = find_or_make()?;
    *found = Some(toolchain.clone());
    Ok(toolchain)
}

fn find_or_make() -> Result<Toolchain> {
    if let Some(rustc) = env::var_os("ANABRANCH_GUEST_RUSTC").filter(|rustc| !rustc.is_empty()) {
        return Ok(Toolchain { rustc: Some(rustc.into()) });
    }
    let only_debian = env::var("ANABRANCH_GUEST_TOOLCHAIN").is_ok_and(|wanted| wanted == "debian");
    if !only_debian && target_is_installed()? {
        return Ok(Toolchain { rustc: None });
    }
    if let Some(rustc) = debian::made_earlier()? {
        return Ok(Toolchain { rustc: Some(rustc) });
    }
    let mut refused = None;
    if !only_debian {
        match add_target() {
            Ok(()) => return Ok(Toolchain { rustc: None }),
            Err(error) => refused = Some(error),
        }
    }
    if !debian::is_possible() {
        let why = refused.map(|error| format!(" ({error:#})")).unwrap_or_default();
        bail!("the installed Rust has no target {TARGET}; run `rustup target add {TARGET}`{why}");
    }
    let rustc = debian::make().with_context(|| {
        let why = refused.map(|error| format!(" did not work: {error:#};")).unwrap_or_default();
        format!("`rustup target add {TARGET}`{why} nor could a toolchain be made of Debian's packages")
    })?;
    Ok(Toolchain { rustc: Some(rustc) })
}

/// The directory of the ordinary toolchain.
pub(super) fn sysroot() -> Result<PathBuf> {
    let printed = run(Command::new("rustc").args(["--print", "sysroot"]))
        .context("Rust is needed: https://rustup.rs")?;
    Ok(PathBuf::from(printed.trim()))
}

fn target_is_installed() -> Result<bool> {
    Ok(sysroot()?.join("lib/rustlib").join(TARGET).join("lib").is_dir())
}

fn add_target() -> Result<()> {
    if on_path("rustup").is_none() {
        bail!("rustup is not installed");
    }
    let _lock = crate::command::FileLock::hold(&crate::command::user_cache_dir()?.join("rustup.lock"))?;
    if !target_is_installed()? {
        run_within(Command::new("rustup").args(["target", "add", TARGET]), RUSTUP_LIMIT)?;
    }
    if !target_is_installed()? {
        bail!("rustup added {TARGET} to another toolchain than the one in use");
    }
    Ok(())
}
