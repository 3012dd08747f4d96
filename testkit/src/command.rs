//! Running other programs: output on failure, never a shell unless it is said so.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Runs to the end and returns standard output; on failure the error carries what the program printed.
pub fn run(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{}{}", output.status, stdout, stderr);
    }
    Ok(stdout)
}

/// As [`run`], killed after `limit`.
pub fn run_within(command: &mut Command, limit: Duration) -> Result<String> {
    let shown = shown(command);
    // A file, not a pipe: nobody reads while the program runs.
    let mut output = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    let mut status = None;
    let waited = crate::wait_for(&shown, limit, || {
        status = child.try_wait()?;
        Ok(status.is_some())
    });
    if waited.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let mut printed = String::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_string(&mut printed)?;
    match (waited, status) {
        (Ok(()), Some(status)) if status.success() => Ok(printed),
        (Ok(()), Some(status)) => bail!("{shown}: {status}\n{printed}"),
        (waited, _) => bail!("{shown}: {:?}\n{printed}", waited.err()),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// The path of a program that `PATH` finds.
pub fn on_path(program: impl AsRef<OsStr>) -> Option<PathBuf> {
    let program = program.as_ref();
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Whether this process may act as other users.
pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| run(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0"))
}

/// Where downloads and builds are kept between runs: `ANABRANCH_CACHE_DIR`, a directory that other users can
/// read when root (a server does not run as root), else the user's own cache directory.
pub fn user_cache_dir() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = if let Some(dir) = set("ANABRANCH_CACHE_DIR") {
        dir
    } else if is_root() {
        PathBuf::from("/var/cache/anabranch")
    } else if let Some(dir) = set("XDG_CACHE_HOME") {
        dir.join("anabranch")
    } else if cfg!(target_os = "macos") {
        set("HOME").context("HOME is not set")?.join("Library/Caches/anabranch")
    } else {
        set("HOME").context("HOME is not set")?.join(".cache/anabranch")
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// A lock among processes, held until dropped (also when the process dies).
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits until nobody else holds `path`; creates it with its directory.
    pub fn hold(path: &Path) -> Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { _file: file })
    }
}
