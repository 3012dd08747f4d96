//! Files for what is too much for the memory.
//!
//! A file has no name: it is unlinked as soon as it is made, so that whatever ends this process, kill -9 included, frees
//! its space, and nobody else can open it. Only a process that is killed between the two leaves a name behind, of an
//! empty file; the next one of the same installation removes it. Reads and writes are awaited, on threads that may
//! block.
//!
//! A file that is not needed any more is closed on such a thread too, and nobody waits for it but the end of the
//! connection: the space of a large one takes seconds to be given back.
//!
//! Must never touch a file of another installation, or of somebody else: names are matched as a whole.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::task::JoinSet;
use tracing::info;

use crate::{model::Xid, pgoutput::spool::Extent};

const SUFFIX: &str = ".spool";

/// A large transaction could not be kept on disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The system.
    #[error(
        "cannot {doing} in {directory}, where large transactions are kept until they commit ({used} bytes are there): \
         {source}. Make room there or name another directory, [pipeline] spool_dir; or let the server keep them, \
         streaming = false"
    )]
    Io {
        /// What was tried.
        doing: &'static str,
        /// `[pipeline] spool_dir`.
        directory: PathBuf,
        /// The bytes of all files.
        used: u64,
        /// What the system says.
        source: io::Error,
    },
    /// There would be more than is allowed.
    #[error(
        "large transactions that are not committed yet would take more than the {limit} bytes in {directory} that \
         [pipeline] spool_limit allows; raise it, or let the server keep them, streaming = false"
    )]
    Limit {
        /// `[pipeline] spool_limit`.
        limit: u64,
        /// `[pipeline] spool_dir`.
        directory: PathBuf,
    },
}

/// `[pipeline] spool_dir`, as far as it is one installation's.
#[derive(Debug)]
pub(in crate::runtime) struct Directory {
    path: Arc<Path>,
    /// What the names of this installation's files begin with. A slot's name has no hyphen.
    prefix: Arc<str>,
}

impl Directory {
    /// Makes it where it is missing, removes what a former process has left behind, and sees whether a file can be
    /// made.
    ///
    /// # Errors
    /// It is of no use.
    pub(in crate::runtime) async fn open(
        path: PathBuf,
        installation: &str,
        system: &str,
    ) -> Result<Self, DiskError> {
        let prefix = Arc::from(format!("anabranch-{installation}-{system}-"));
        let directory = Self { path: Arc::from(path), prefix };
        let (path, prefix) = (Arc::clone(&directory.path), Arc::clone(&directory.prefix));
        let opened = blocking(move || {
            DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
            let cleared = clear(&path, &prefix)?;
            create(&path, &prefix)?;
            Ok(cleared)
        });
        match opened.await {
            Ok(0) => Ok(directory),
            Ok(cleared) => {
                info!(files = cleared, directory = %directory.path.display(), "removed what a former process left");
                Ok(directory)
            }
            Err(source) => Err(directory.error("make files", 0, source)),
        }
    }

    #[cold]
    fn error(&self, doing: &'static str, used: u64, source: io::Error) -> DiskError {
        DiskError::Io { doing, directory: self.path.to_path_buf(), used, source }
    }
}

/// Removes files of this installation's names; gives their number.
fn clear(path: &Path, prefix: &str) -> io::Result<usize> {
    let mut cleared = 0;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| is_ours(name, prefix));
        if ours && entry.file_type()?.is_file() {
            remove(&entry.path())?;
            cleared += 1;
        }
    }
    Ok(cleared)
}

fn is_ours(name: &str, prefix: &str) -> bool {
    let process = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
    process.is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A file without a name.
fn create(directory: &Path, prefix: &str) -> io::Result<File> {
    let path = directory.join(format!("{prefix}{}{SUFFIX}", std::process::id()));
    let make = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = match make() {
        // Of a process before that had the same number.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(&path)?;
            make()?
        }
        made => made?,
    };
    remove(&path)?;
    Ok(file)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|ended| Err(io::Error::other(ended)))
}

/// The files of one connection's transactions.
#[derive(Debug)]
pub(super) struct Disk {
    directory: Directory,
    limit: u64,
    files: HashMap<Xid, Opened>,
    used: u64,
    /// Files that are being closed.
    closing: JoinSet<()>,
}

#[derive(Debug)]
struct Opened {
    file: Arc<File>,
    length: u64,
}

impl Disk {
    pub(super) fn new(directory: Directory, limit: u64) -> Self {
        Self { directory, limit, files: HashMap::new(), used: 0, closing: JoinSet::new() }
    }

    /// The bytes of all files.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Writes into the file of a transaction; tells whether it was made for that.
    pub(super) async fn write(&mut self, xid: Xid, offset: u64, bytes: Vec<u8>) -> Result<bool, DiskError> {
        let length = self.files.get(&xid).map_or(0, |opened| opened.length);
        let grown = (offset + bytes.len() as u64).max(length);
        if self.used + (grown - length) > self.limit {
            let directory = self.directory.path.to_path_buf();
            return Err(DiskError::Limit { limit: self.limit, directory });
        }
        let known = self.files.get(&xid).map(|opened| Arc::clone(&opened.file));
        let made = known.is_none();
        let (path, prefix) = (Arc::clone(&self.directory.path), Arc::clone(&self.directory.prefix));
        let wrote = blocking(move || {
            let file = match known {
                Some(file) => file,
                None => Arc::new(create(&path, &prefix)?),
            };
            file.write_all_at(&bytes, offset)?;
            Ok(file)
        });
        let file = wrote.await.map_err(|source| self.directory.error("write", self.used, source))?;
        self.used += grown - length;
        self.files.insert(xid, Opened { file, length: grown });
        Ok(made)
    }

    /// Reads a page back.
    pub(super) async fn read(&self, xid: Xid, extent: Extent) -> Result<Vec<u8>, DiskError> {
        let file = self.files.get(&xid).map(|opened| Arc::clone(&opened.file));
        let read = blocking(move || {
            let file = file.ok_or(io::ErrorKind::NotFound)?;
            let mut bytes = vec![0; extent.length];
            file.read_exact_at(&mut bytes, extent.offset)?;
            Ok(bytes)
        });
        read.await.map_err(|source| self.directory.error("read", self.used, source))
    }

    /// Fails unless the file of a transaction is as long as it has to be.
    pub(super) async fn expect(&self, xid: Xid, length: u64) -> Result<(), DiskError> {
        let Some(file) = self.files.get(&xid).map(|opened| Arc::clone(&opened.file)) else { return Ok(()) };
        let looked = blocking(move || match file.metadata()?.len() {
            found if found < length => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
        looked.await.map_err(|source| self.directory.error("read", self.used, source))
    }

    /// Removes the file of a transaction, where there is one. It counts no longer; its space is given back in a while.
    pub(super) fn forget(&mut self, xid: Xid) {
        let Some(Opened { file, length }) = self.files.remove(&xid) else { return };
        self.used -= length;
        // Those that are through.
        while self.closing.try_join_next().is_some() {}
        self.closing.spawn_blocking(move || drop(file));
    }

    /// Removes all files, and waits until their space is given back.
    pub(super) async fn end(mut self) {
        let files: Vec<Xid> = self.files.keys().copied().collect();
        for xid in files {
            self.forget(xid);
        }
        while self.closing.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const NAME: &str = "anabranch-shop_1-77-";

    async fn opened(path: &Path) -> Directory {
        Directory::open(path.to_path_buf(), "shop_1", "77").await.unwrap()
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn files_have_no_name_and_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/spool");
        let directory = opened(&path).await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let mut disk = Disk::new(directory, 100);
        assert!(disk.write(7, 0, b"abcdef".to_vec()).await.unwrap());
        assert!(!disk.write(7, 3, b"xyz!".to_vec()).await.unwrap());
        assert_eq!((disk.used(), names(&path)), (7, vec![]));
        let private = disk.files[&7].file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(private, 0o600);
        disk.expect(7, 7).await.unwrap();
        assert!(disk.expect(7, 8).await.is_err());
        disk.forget(7);
        assert_eq!(disk.used(), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_file_counts_no_longer_at_once_and_all_are_closed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().to_path_buf();
        let open = || {
            let entries = fs::read_dir("/proc/self/fd").unwrap();
            let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
            links.filter(|target| target.starts_with(&place)).count()
        };
        let mut disk = Disk::new(opened(folder.path()).await, 100);
        for xid in 7..10 {
            disk.write(xid, 0, b"abc".to_vec()).await.unwrap();
        }
        // One that is long in closing: the thread has it, and so has this.
        let held = Arc::clone(&disk.files[&8].file);
        disk.forget(8);
        disk.forget(9);
        assert_eq!((disk.used(), disk.files.len()), (3, 1));
        disk.end().await;
        assert_eq!(open(), 1);
        drop(held);
        assert_eq!(open(), 0);
    }

    #[tokio::test]
    async fn only_what_is_named_as_ours_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let others = [
            "anabranch-shop_1-7-5.spool",
            "anabranch-shop_1-771-5.spool",
            "anabranch-shop-77-5.spool",
            "anabranch-shop_1-77-.spool",
            "anabranch-shop_1-77-5.spool.bak",
            "anabranch-shop_1-77-five.spool",
            "xanabranch-shop_1-77-5.spool",
        ];
        let own = format!("{NAME}{}{SUFFIX}", std::process::id());
        for name in others.into_iter().chain([own.as_str(), "anabranch-shop_1-77-5.spool"]) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        fs::create_dir(folder.path().join("anabranch-shop_1-77-6.spool")).unwrap();
        opened(folder.path()).await;
        let mut left = others.map(str::to_owned).to_vec();
        left.push("anabranch-shop_1-77-6.spool".to_owned());
        left.sort();
        assert_eq!(names(folder.path()), left);
    }

    #[tokio::test]
    async fn more_than_is_allowed_is_an_error_that_names_the_setting() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(opened(folder.path()).await, 10);
        disk.write(7, 0, vec![0; 8]).await.unwrap();
        // Over what is there, and over what was cut off.
        disk.write(7, 4, vec![0; 4]).await.unwrap();
        let error = disk.write(8, 0, vec![0; 3]).await.unwrap_err().to_string();
        assert!(error.contains("10 bytes") && error.contains("spool_limit"), "{error}");
        disk.forget(7);
        disk.write(8, 0, vec![0; 3]).await.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_is_an_error_that_says_where_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(opened(folder.path()).await, 1 << 20);
        disk.write(6, 0, vec![0; 8]).await.unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        disk.files.insert(7, Opened { file: Arc::new(full), length: 0 });
        let error = disk.write(7, 0, vec![0; 3]).await.unwrap_err().to_string();
        let place = folder.path().display().to_string();
        for part in [place.as_str(), "8 bytes", "No space left", "spool_dir", "streaming = false"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Directory::open(file.join("spool"), "a", "1").await.unwrap_err().to_string();
        assert!(error.contains("file/spool") && error.contains("spool_dir"), "{error}");
    }
}
