//! Notices when the plugins of a directory change: by events of the file system, and by looking now and then.
//!
//! Events are hints only; the content decides. So a rename, an edit in place, a swapped symbolic link (as
//! Kubernetes mounts do) and a file system without events all come out the same, and touching a file is nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tracing::warn;

use super::{
    PluginError,
    artifact::{read_stable, sha256},
    load::list,
};

/// How long a directory must be quiet after an event before it is looked at.
const SETTLE: Duration = Duration::from_millis(100);
/// How long a directory that is never quiet goes unlooked at.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is in a directory: SHA-256 by path; none for a file that could not be read, or is still being written.
pub type Fingerprint = BTreeMap<PathBuf, Option<String>>;

/// Takes a directory's fingerprint. Reads every file.
///
/// # Errors
/// The directory cannot be listed.
pub fn fingerprint(directory: &Path) -> Result<Fingerprint, PluginError> {
    let sums = list(directory)?.into_iter().map(|path| {
        let sum = read_stable(&path).ok().map(|bytes| sha256(&bytes));
        (path, sum)
    });
    Ok(sums.collect())
}

/// Watches one directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    directory: PathBuf,
    poll: Duration,
    last: Fingerprint,
    events: Arc<Notify>,
    /// Kept alive; none where the file system has no events.
    _watcher: Option<RecommendedWatcher>,
}

impl DirectoryWatch {
    /// Begins to watch. What is there now counts as known. `poll` is the time between two looks without events.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn start(directory: &Path, poll: Duration) -> Result<Self, PluginError> {
        let events = Arc::new(Notify::new());
        let watcher = watch(directory, &events)
            .inspect_err(|error| {
                let directory = directory.display();
                warn!(%directory, %error, ?poll, "no events for the directory of plugins; it is looked at now and then");
            })
            .ok();
        let last = fingerprint(directory)?;
        Ok(Self { directory: directory.to_owned(), poll, last, events, _watcher: watcher })
    }

    /// What was there at the last look.
    #[must_use]
    pub fn last(&self) -> &Fingerprint {
        &self.last
    }

    /// Waits until the content is another than at the last look, and says true. May be cancelled.
    ///
    /// A file that is being copied shows up as it is at a look, and again when it is complete.
    pub async fn changed(&mut self) -> bool {
        loop {
            let event = tokio::time::timeout(self.poll, self.events.notified()).await;
            if event.is_ok() {
                self.settle().await;
            }
            let directory = self.directory.clone();
            // Reads and hashes what may be large.
            let looked = tokio::task::spawn_blocking(move || fingerprint(&directory)).await;
            match looked.unwrap_or_else(|_| Ok(self.last.clone())) {
                Ok(now) if now != self.last => {
                    self.last = now;
                    return true;
                }
                Ok(_) => {}
                // A mount that is being swapped; what is loaded stays.
                Err(error) => warn!(%error, "looking again later"),
            }
        }
    }

    /// Waits for a quiet moment, but not for ever.
    async fn settle(&self) {
        let quiet = async { while tokio::time::timeout(SETTLE, self.events.notified()).await.is_ok() {} };
        let _ = tokio::time::timeout(PATIENCE, quiet).await;
    }
}

fn watch(directory: &Path, events: &Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let events = Arc::clone(events);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading raises events too, and every look reads.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            events.notify_one();
        }
    })?;
    watcher.watch(directory, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    async fn changed(watcher: &mut DirectoryWatch) -> Fingerprint {
        assert!(tokio::time::timeout(Duration::from_secs(20), watcher.changed()).await.unwrap());
        watcher.last().clone()
    }

    fn sums(fingerprint: &Fingerprint) -> Vec<String> {
        fingerprint.values().flatten().cloned().collect()
    }

    #[tokio::test]
    async fn c089_only_content_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let mut watcher = DirectoryWatch::start(directory.path(), Duration::from_millis(50)).unwrap();
        // None of these is a change.
        fs::write(&path, "one").unwrap();
        fs::write(directory.path().join("notes.txt"), "x").unwrap();
        fs::write(directory.path().join(".hidden.wasm"), "x").unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(400), watcher.changed()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        // In place, by rename, and gone.
        fs::write(&path, "two").unwrap();
        assert_eq!(sums(&changed(&mut watcher).await), [sha256(b"two")]);
        fs::write(directory.path().join(".new"), "three").unwrap();
        fs::rename(directory.path().join(".new"), &path).unwrap();
        assert_eq!(sums(&changed(&mut watcher).await), [sha256(b"three")]);
        fs::remove_file(&path).unwrap();
        assert!(changed(&mut watcher).await.is_empty());
    }

    #[tokio::test]
    async fn c090_a_swapped_link_is_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (version, content) in [("..v1", "one"), ("..v2", "two")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("plugin.wasm"), content).unwrap();
        }
        symlink("..v1", at("..data")).unwrap();
        symlink("..data/plugin.wasm", at("plugin.wasm")).unwrap();
        let mut watcher = DirectoryWatch::start(directory.path(), Duration::from_millis(50)).unwrap();
        assert_eq!(sums(watcher.last()), [sha256(b"one")]);
        symlink("..v2", at("..new")).unwrap();
        fs::rename(at("..new"), at("..data")).unwrap();
        assert_eq!(sums(&changed(&mut watcher).await), [sha256(b"two")]);
    }

    /// As on a file system without events: by looking alone.
    #[tokio::test]
    async fn c090_changes_are_seen_without_events() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let watcher = DirectoryWatch::start(directory.path(), Duration::from_millis(20)).unwrap();
        let mut watcher = DirectoryWatch { _watcher: None, events: Arc::default(), ..watcher };
        fs::write(&path, "two").unwrap();
        assert_eq!(sums(&changed(&mut watcher).await), [sha256(b"two")]);
        fs::remove_file(&path).unwrap();
        assert!(changed(&mut watcher).await.is_empty());
    }

    /// Long before it is looked at by itself; and what the look itself raises is none.
    #[tokio::test]
    async fn events_are_heard_and_looks_raise_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.wasm");
        fs::write(&path, "one").unwrap();
        let mut watcher = DirectoryWatch::start(directory.path(), Duration::from_secs(3600)).unwrap();
        fs::write(&path, "two").unwrap();
        assert_eq!(sums(&changed(&mut watcher).await), [sha256(b"two")]);
        watcher.settle().await;
        fingerprint(directory.path()).unwrap();
        let heard = tokio::time::timeout(3 * SETTLE, watcher.events.notified()).await;
        assert!(heard.is_err(), "a look that raises an event is followed by another, for ever");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        let error = DirectoryWatch::start(Path::new("/nowhere/plugins"), Duration::from_secs(1))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/plugins") && error.contains("[plugins] dir"), "{error}");
    }
}
