//! Guards wasmtime's compile cache: a changed, cut or swapped entry is a miss, never code that is run.
//!
//! wasmtime writes entries atomically and keys them by the component's bytes, its settings and its version, but
//! does not notice when an entry's bytes change (version 48: `get_data` decompresses what it finds). So the
//! SHA-256 of each entry is kept beside, and an entry that differs is removed before wasmtime looks.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tracing::warn;
use wasmtime::Cache;

use super::artifact::sha256;

const SUMS: &str = "sums";

/// A cache directory, and what is known of its entries.
pub(super) struct CacheGuard {
    directory: PathBuf,
    cache: Cache,
    /// Entries whose bytes were checked, as they were then.
    checked: Mutex<BTreeMap<PathBuf, Stamp>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { len: metadata.len(), modified: metadata.modified().ok() })
    }
}

impl CacheGuard {
    /// Where wasmtime keeps its entries: a directory of its own, because it removes files that it does not know.
    pub(super) fn code(directory: &Path) -> PathBuf {
        directory.join("code")
    }

    pub(super) fn new(directory: PathBuf, cache: Cache) -> Self {
        Self { directory, cache, checked: Mutex::default() }
    }

    pub(super) fn usage(&self) -> (usize, usize) {
        (self.cache.cache_hits(), self.cache.cache_misses())
    }

    /// Compiles with only good entries in reach, and remembers the entry that this may write.
    pub(super) fn around<T>(&self, compile: impl FnOnce() -> T) -> T {
        // One at a time, so that no entry is written that nobody remembers.
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.drop_bad(&mut checked) {
            warn!(directory = %self.directory.display(), %error, "the compile cache could not be checked");
        }
        let compiled = compile();
        if let Err(error) = self.remember(&mut checked) {
            warn!(directory = %self.directory.display(), %error, "the compile cache could not be completed");
        }
        compiled
    }

    fn entries(&self) -> io::Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        let mut left = vec![Self::code(&self.directory).join("modules")];
        while let Some(directory) = left.pop() {
            let listing = match fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                listing => listing?,
            };
            for entry in listing {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    left.push(entry.path());
                } else if entry.path().extension().is_none() {
                    // Entries have no extension; statistics and unfinished writes do.
                    entries.push(entry.path());
                }
            }
        }
        Ok(entries)
    }

    fn sums(&self) -> io::Result<BTreeMap<PathBuf, String>> {
        let text = match fs::read_to_string(self.directory.join(SUMS)) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                return Ok(BTreeMap::new());
            }
            text => text?,
        };
        let lines = text.lines().filter_map(|line| line.split_once("  "));
        Ok(lines.map(|(sum, path)| (self.directory.join(path), sum.to_owned())).collect())
    }

    fn drop_bad(&self, checked: &mut BTreeMap<PathBuf, Stamp>) -> io::Result<()> {
        let sums = self.sums()?;
        for path in self.entries()? {
            let stamp = Stamp::of(&path)?;
            if checked.get(&path) == Some(&stamp) {
                continue;
            }
            if sums.get(&path) == Some(&sha256(&fs::read(&path)?)) {
                checked.insert(path, stamp);
            } else {
                warn!(entry = %path.display(), "an entry of the compile cache is not what was written: compiling anew");
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn remember(&self, checked: &mut BTreeMap<PathBuf, Stamp>) -> io::Result<()> {
        let entries = self.entries()?;
        let mut sums = self.sums()?;
        sums.retain(|path, _| entries.contains(path));
        let mut new = false;
        for path in entries {
            let stamp = Stamp::of(&path)?;
            if checked.get(&path) != Some(&stamp) {
                sums.insert(path.clone(), sha256(&fs::read(&path)?));
                checked.insert(path, stamp);
                new = true;
            }
        }
        if !new {
            return Ok(());
        }
        let mut text = String::new();
        for (path, sum) in &sums {
            let relative = path.strip_prefix(&self.directory).unwrap_or(path);
            text.push_str(&format!("{sum}  {}\n", relative.display()));
        }
        let file = tempfile::NamedTempFile::new_in(&self.directory)?;
        fs::write(file.path(), text)?;
        file.persist(self.directory.join(SUMS)).map_err(|error| error.error)?;
        Ok(())
    }
}
