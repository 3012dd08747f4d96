//! The host as a child process: its directory, config, logs and signals.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::run;
use crate::guests;
use crate::wait::Pace;
use crate::wait_for;

/// When its own input ends without a word, the process that started both is gone: kills the host and removes
/// its directory.
const WATCHDOG: &str = "read -r word || { kill -KILL \"$1\" 2>/dev/null; rm -rf \"$2\"; }";

/// `anabranch run` in a directory of its own. Dropped, the process is killed and the directory removed; the
/// process also goes when this one is killed.
#[derive(Debug)]
pub struct Host {
    binary: PathBuf,
    directory: TempDir,
    environment: Vec<(String, String)>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    watchdog: Child,
}

impl Host {
    /// A host that is not running yet; its directory has an empty `plugins/` in it. Tests pass
    /// `env!("CARGO_BIN_EXE_anabranch")`.
    pub fn new(binary: impl Into<PathBuf>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("anabranch-host-").tempdir()?;
        fs::create_dir(directory.path().join("plugins"))?;
        Ok(Self { binary: binary.into(), directory, environment: Vec::new(), running: None })
    }

    /// The directory: config, plugins, logs, and what relative paths in the config name.
    pub fn dir(&self) -> &Path {
        self.directory.path()
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Writes `anabranch.toml`.
    pub fn config(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.path("anabranch.toml"), text)?)
    }

    /// An environment variable for every later start and command.
    pub fn env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// Builds a guest with this host's binary and puts it into `plugins/<name>.wasm`, in one step.
    pub fn plugin(&self, name: &str, guest: &guests::Guest) -> Result<PathBuf> {
        let built = guests::build(&self.binary, guest)?;
        guests::install(&built, &self.path("plugins"), name)
    }

    /// Starts `anabranch run`. Returns at once: wait for what you need.
    pub fn start(&mut self) -> Result<()> {
        self.start_with(&[])
    }

    /// [`Host::start`] with more arguments.
    pub fn start_with(&mut self, arguments: &[&str]) -> Result<()> {
        let log = self.open_log()?;
        self.spawn(arguments, log.into())
    }

    /// [`Host::start`] with its standard output to read, which must be read for it to go on: for sinks that
    /// write there. The log has its standard error alone.
    pub fn start_piped(&mut self) -> Result<ChildStdout> {
        self.spawn(&[], Stdio::piped())?;
        let output = self.running.as_mut().and_then(|running| running.child.stdout.take());
        output.context("the host has no standard output")
    }

    fn open_log(&self) -> Result<File> {
        Ok(OpenOptions::new().create(true).append(true).open(self.log_path())?)
    }

    fn spawn(&mut self, arguments: &[&str], output: Stdio) -> Result<()> {
        if self.is_running()? {
            bail!("the host is already running");
        }
        let child = self
            .command(&["run"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(self.open_log()?)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog", &child.id().to_string()])
            .arg(self.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal must not end it before it has done its work.
            .process_group(0)
            .spawn()?;
        self.running = Some(Running { child, watchdog });
        Ok(())
    }

    /// Another command of the same binary, on the same config: `status --json`.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {arguments:?}"))
    }

    /// `anabranch status --json`, parsed.
    pub fn status(&self) -> Result<Value> {
        let output = self.run(&["status", "--json"])?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&stdout).with_context(|| {
            format!("status: {}: {stdout}{}", output.status, String::from_utf8_lossy(&output.stderr))
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--config").arg(self.path("anabranch.toml"));
        command.current_dir(self.dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Whether the process runs. A process that has ended by itself is noticed here.
    pub fn is_running(&mut self) -> Result<bool> {
        match &mut self.running {
            None => Ok(false),
            Some(running) => Ok(running.child.try_wait()?.is_none()),
        }
    }

    /// The process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut running) = self.running.take() else { bail!("the host is not running") };
        running.child.kill()?;
        running.child.wait()?;
        running.dismiss()
    }

    /// Sends a signal by its name without SIG: `TERM`, `STOP`, `CONT`, `INT`.
    pub fn signal(&self, name: &str) -> Result<()> {
        let Some(id) = self.id() else { bail!("the host is not running") };
        run(Command::new("kill").args([format!("-{name}"), id.to_string()])).map(|_| ())
    }

    /// SIGTERM, and waits until it has ended.
    pub fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait_exit(deadline)
    }

    /// Waits until the process has ended.
    pub fn wait_exit(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let Some(mut running) = self.running.take() else { bail!("the host is not running") };
        let mut status = None;
        let waited = wait_for("the host to end", deadline, || {
            status = running.child.try_wait()?;
            Ok(status.is_some())
        });
        match (waited, status) {
            (Ok(()), Some(status)) => {
                running.dismiss()?;
                Ok(status)
            }
            (waited, _) => {
                self.running = Some(running);
                waited?;
                bail!("the host has no exit status");
            }
        }
    }

    /// Everything logged so far, over all starts.
    pub fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// How much is logged so far, in bytes: for [`Host::wait_log`].
    pub fn log_length(&self) -> usize {
        File::open(self.log_path())
            .and_then(|file| file.metadata())
            .map(|metadata| usize::try_from(metadata.len()).unwrap_or(usize::MAX))
            .unwrap_or_default()
    }

    /// Waits until a line logged after `from` bytes contains `text`; returns that line. Fails at once when
    /// the process ends before.
    pub async fn wait_log(&mut self, from: usize, text: &str, deadline: Duration) -> Result<String> {
        let description = format!("a log line with {text:?}");
        let mut pace = Pace::new(&description, deadline);
        loop {
            // Asked before the log is read: what it logged before its end is in there.
            let running = self.is_running()?;
            let log = self.log();
            let new = log.get(from..).unwrap_or_default();
            if let Some(line) = new.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            if !running {
                bail!("the host ended without logging {text:?}\n{}", self.log_tail());
            }
            pace.again(Ok(false)).await.with_context(|| self.log_tail())?;
        }
    }

    /// The last lines of the log, for error messages.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let from = log.lines().count().saturating_sub(40);
        let tail: Vec<_> = log.lines().skip(from).collect();
        format!("the end of the host's log:\n{}", tail.join("\n"))
    }

    /// The most memory that the running process ever held, in KiB (Linux only: `VmHWM`).
    pub fn peak_memory_kib(&self) -> Result<u64> {
        let Some(id) = self.id() else { bail!("the host is not running") };
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?;
        Ok(kib.parse()?)
    }

    fn log_path(&self) -> PathBuf {
        self.path("host.log")
    }
}

impl Running {
    /// Ends the watchdog; the child has been waited for.
    fn dismiss(mut self) -> Result<()> {
        self.watchdog.kill()?;
        self.watchdog.wait()?;
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            // It may have ended already; then there is nothing to kill.
            let _ = running.child.kill();
            let _ = running.child.wait();
            let _ = running.dismiss();
        }
    }
}
