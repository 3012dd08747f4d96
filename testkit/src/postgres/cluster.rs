//! One private server: a directory of its own, a free port, a supervising shell.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Result, bail};

use super::Binaries;
use super::database::{Database, connect};
use crate::command::{is_root, run};
use crate::wait::Pace;
use crate::wait_for;

/// Ends when the server ends. A word on standard input says how to stop it; the end of the input (the writer
/// is gone, in whatever way) stops it at once and removes the directory. Interrupts of the terminal do not
/// reach it: it has a process group of its own.
const SUPERVISOR: &str = r#"
postgres=$1 directory=$2
exec 3<&0
"$postgres" -D "$directory/data" >>"$directory/log" 2>&1 </dev/null 3<&- &
server=$!
(
    if read -r mode <&3; then
        case $mode in fast) kill -INT $server ;; *) kill -QUIT $server ;; esac
    else
        : >"$directory/abandoned"
        kill -QUIT $server
    fi
) &
reader=$!
wait $server
kill $reader 2>/dev/null
if [ -e "$directory/abandoned" ]; then cd / && rm -rf "$directory"; fi
"#;
const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const START_ATTEMPTS: usize = 5;

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Sessions are cut, a shutdown checkpoint is written; walsenders send what is left.
    Fast,
    /// As after a crash: no checkpoint, recovery at the next start.
    Immediate,
}

/// What a cluster is like. The default: newest binaries found, `wal_level = logical`, not durable, trusted
/// local connections of the superuser `postgres`.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    durable: bool,
    binaries: Option<Binaries>,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
}

impl ClusterOptions {
    /// As [`Default`].
    pub fn new() -> Self {
        Self::default()
    }

    /// `fsync` and `full_page_writes` on: for measurements. A stop or kill of the server loses nothing
    /// without it either; only a crash of the machine would.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// A line of `postgresql.conf`; the last one for a name counts, also over the built-in ones.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A line of `pg_hba.conf`, before the line that trusts everybody, such as
    /// `host all locked 127.0.0.1/32 scram-sha-256`.
    pub fn hba(mut self, line: &str) -> Self {
        self.hba.push(line.to_owned());
        self
    }

    /// These programs instead of the newest that are found.
    pub fn binaries(mut self, binaries: Binaries) -> Self {
        self.binaries = Some(binaries);
        self
    }
}

/// A private Postgres server. Dropped, or with the end of this process, it stops and its directory goes.
#[derive(Debug)]
pub struct Cluster {
    pub(super) binaries: Binaries,
    pub(super) directory: PathBuf,
    pub(super) port: u16,
    pub(super) server: Mutex<Option<Child>>,
}

impl Cluster {
    /// Makes a cluster and starts it; returns when it accepts connections. Blocks for a second or two.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        let binaries = match &options.binaries {
            Some(binaries) => binaries.clone(),
            None => Binaries::find_or_install()?,
        };
        let mut cluster = Self::placed(binaries)?;
        cluster.initialize(&options).and_then(|()| cluster.start_on_a_free_port(&options))?;
        Ok(cluster)
    }

    /// A directory for a server that has no data yet.
    pub(super) fn placed(binaries: Binaries) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("anabranch-pg-").tempdir()?.keep();
        let cluster = Self { binaries, directory, port: 0, server: Mutex::new(None) };
        if let Some((uid, gid)) = server_account()? {
            chown(&cluster.directory, Some(uid), Some(gid))?;
        }
        fs::set_permissions(&cluster.directory, fs::Permissions::from_mode(0o755))?;
        Ok(cluster)
    }

    fn initialize(&self, options: &ClusterOptions) -> Result<()> {
        let data = self.data_dir();
        let mut initdb = Command::new(self.binaries.program("initdb"));
        initdb.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "-D",
        ]);
        run(as_server(initdb.arg(&data))?.current_dir(&self.directory))?;
        let hba = data.join("pg_hba.conf");
        let rest = fs::read_to_string(&hba)?;
        fs::write(&hba, format!("{}\n{rest}", options.hba.join("\n")))?;
        Ok(())
    }

    fn start_on_a_free_port(&mut self, options: &ClusterOptions) -> Result<()> {
        let base = fs::read_to_string(self.data_dir().join("postgresql.conf"))?;
        let mut attempt = 1;
        loop {
            // Somebody else may take the port between here and the server's bind: then another one.
            self.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            fs::write(self.data_dir().join("postgresql.conf"), base.clone() + &self.configuration(options))?;
            match self.run_server() {
                Err(_) if attempt < START_ATTEMPTS && self.log().contains("could not bind") => attempt += 1,
                other => return other,
            }
        }
    }

    fn configuration(&self, options: &ClusterOptions) -> String {
        let on = if options.durable { "on" } else { "off" };
        let built_in = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &self.port.to_string()),
            ("unix_socket_directories", &self.directory.to_string_lossy()),
            ("wal_level", "logical"),
            ("max_wal_senders", "100"),
            ("max_replication_slots", "100"),
            ("max_connections", "300"),
            ("max_prepared_transactions", "20"),
            ("fsync", on),
            ("full_page_writes", on),
            ("max_wal_size", "4GB"),
            ("log_min_messages", "log"),
            ("log_line_prefix", "%m [%p] %q%a@%d "),
            ("log_statement", "none"),
        ];
        let built_in = built_in.iter().map(|(name, value)| (*name, *value));
        let extra = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let lines = built_in.chain(extra).map(|(name, value)| line_of(name, value));
        std::iter::once("\n".to_owned()).chain(lines).collect()
    }

    pub(super) fn run_server(&self) -> Result<()> {
        let mut server = self.locked()?;
        if server.is_some() {
            bail!("the server is already running");
        }
        // Left behind by a crash; nobody runs here now.
        let postmaster = self.data_dir().join("postmaster.pid");
        if postmaster.exists() {
            fs::remove_file(&postmaster)?;
        }
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SUPERVISOR, "postgres-supervisor"]);
        command.arg(self.binaries.program("postgres")).arg(&self.directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = as_server(&mut command)?.current_dir(&self.directory).spawn()?;
        let mut gone = false;
        let started = wait_for("Postgres to accept connections", START_DEADLINE, || {
            gone = child.try_wait()?.is_some();
            // Line 8 of the file is the postmaster's state.
            let text = fs::read_to_string(&postmaster).unwrap_or_default();
            Ok(gone || text.lines().nth(7).is_some_and(|state| state.trim() == "ready"))
        });
        if gone || started.is_err() {
            stop_server(&mut child, Stop::Immediate)?;
            let log = self.log();
            let from = log.lines().count().saturating_sub(20);
            let tail: Vec<_> = log.lines().skip(from).collect();
            bail!("Postgres did not start; the end of its log:\n{}", tail.join("\n"));
        }
        *server = Some(child);
        Ok(())
    }

    /// Stops the server and waits until it is gone; the data stay.
    pub fn stop(&self, how: Stop) -> Result<()> {
        let mut server = self.locked()?;
        let Some(child) = server.as_mut() else { bail!("the server is not running") };
        stop_server(child, how)?;
        *server = None;
        Ok(())
    }

    /// Starts a stopped server on its old port; returns when it accepts connections.
    pub fn start_again(&self) -> Result<()> {
        self.run_server()
    }

    /// [`Cluster::stop`], then [`Cluster::start_again`].
    pub fn restart(&self, how: Stop) -> Result<()> {
        self.stop(how)?;
        self.start_again()
    }

    /// Changes server settings in `postgresql.conf`; they take effect with [`Cluster::reload`], or with a
    /// restart where Postgres needs one. An empty `value` is the empty setting.
    pub fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let path = self.data_dir().join("postgresql.conf");
        let mut text = fs::read_to_string(&path)?;
        for (name, value) in settings {
            text.push_str(&line_of(name, value));
        }
        Ok(fs::write(&path, text)?)
    }

    /// Makes the server read its configuration again; returns when `setting` shows `value`.
    pub async fn reload(&self, setting: &str, value: &str) -> Result<()> {
        let client = connect(&self.url("postgres")).await?;
        client.execute("select pg_reload_conf()", &[]).await?;
        let description = format!("the setting {setting} to be {value:?}");
        let mut pace = Pace::new(&description, STOP_DEADLINE);
        loop {
            // A new session each time: what a session shows may lag behind.
            let client = connect(&self.url("postgres")).await?;
            let row = client.query_one("select current_setting($1)", &[&setting]).await?;
            if !pace.again(Ok(row.get::<_, String>(0) == value)).await? {
                return Ok(());
            }
        }
    }

    /// A new database of its own for a test, from an empty template.
    pub async fn create_database(&self) -> Result<Database> {
        Database::create(self).await
    }

    /// Connection URL of the superuser `postgres` over TCP.
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Connection string of the superuser over the Unix socket, in key=value form.
    pub fn socket_conninfo(&self, database: &str) -> String {
        format!("host={} port={} user=postgres dbname={database}", self.directory.display(), self.port)
    }

    /// The TCP port on 127.0.0.1, also part of the socket's name. The same for the cluster's whole life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.binaries.major
    }

    /// The programs that this cluster runs (`pg_recvlogical` may lie beside them).
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The directory with the Unix socket; readable for everybody.
    pub fn socket_dir(&self) -> &Path {
        &self.directory
    }

    /// `PGDATA`. Files put there (certificates) must be readable for the server's account: see
    /// [`Cluster::put_file`].
    pub fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Writes a file into `PGDATA`, owned by the server's account and readable for it alone (as Postgres
    /// wants its key files).
    pub fn put_file(&self, name: &str, content: &[u8]) -> Result<PathBuf> {
        let path = self.data_dir().join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        if let Some((uid, gid)) = server_account()? {
            chown(&path, Some(uid), Some(gid))?;
        }
        Ok(path)
    }

    /// Everything that the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    pub(super) fn locked(&self) -> Result<MutexGuard<'_, Option<Child>>> {
        self.server.lock().map_err(|_| anyhow::anyhow!("starting or stopping this cluster panicked before"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let server = self.server.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        match server.take() {
            Some(mut child) => {
                // The end of the pipe makes the supervisor stop the server and remove the directory.
                drop(child.stdin.take());
                let _ = child.wait();
            }
            None => {
                let _ = fs::remove_dir_all(&self.directory);
            }
        }
    }
}

fn stop_server(supervisor: &mut Child, how: Stop) -> Result<()> {
    let word: &[u8] = match how {
        Stop::Fast => b"fast\n",
        Stop::Immediate => b"immediate\n",
    };
    if supervisor.try_wait()?.is_none()
        && let Some(input) = supervisor.stdin.as_mut()
    {
        // A server that ends by itself right now has closed the pipe: as good.
        let _ = input.write_all(word);
    }
    wait_for("Postgres to stop", STOP_DEADLINE, || Ok(supervisor.try_wait()?.is_some()))
}

fn line_of(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}

/// Postgres refuses to run as root: then the account that a package made for it, else nobody.
fn server_account() -> Result<Option<(u32, u32)>> {
    if !is_root() {
        return Ok(None);
    }
    let id = |flag: &str, user: &str| -> Result<u32> {
        Ok(run(Command::new("id").args([flag, user]))?.trim().parse()?)
    };
    for user in ["postgres", "nobody"] {
        if let (Ok(uid), Ok(gid)) = (id("-u", user), id("-g", user)) {
            return Ok(Some((uid, gid)));
        }
    }
    bail!("Postgres does not run as root, and there is neither an account postgres nor nobody")
}

fn as_server(command: &mut Command) -> Result<&mut Command> {
    if let Some((uid, gid)) = server_account()? {
        command.uid(uid).gid(gid);
    }
    // Settings of the caller's own libpq must not leak into the private server.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    Ok(command.env("LC_ALL", "C").env("TZ", "UTC"))
}
