//! How to reach the source: parsed once, used by every connection of both kinds.
//!
//! Reads `postgres://` URLs, the `key=value` form and, for what they leave out, libpq's environment
//! (Postgres documentation, "Database Connection Control Functions"). A parameter that is not known is
//! refused by name rather than ignored. Never prints the password.

use std::{fmt, path::PathBuf, time::Duration};

use super::{
    error::Error,
    parse::{self, Parameters},
};

/// Text that must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One place where the server may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address to connect to, and the name that a certificate must have.
    pub address: Address,
    /// TCP port; also part of a socket's file name.
    pub port: u16,
}

/// Where a [`Host`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP: the name that certificates are checked against, and the address to dial when it differs.
    Tcp {
        /// Host name or address as given by `host`.
        name: String,
        /// `hostaddr`, which spares the look-up.
        hostaddr: Option<std::net::IpAddr>,
    },
    /// The directory of a unix socket.
    Socket(PathBuf),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Address::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
            Address::Socket(directory) => write!(f, "{}", self.socket(directory).display()),
        }
    }
}

impl Host {
    pub(crate) fn socket(&self, directory: &std::path::Path) -> PathBuf {
        directory.join(format!(".s.PGSQL.{}", self.port))
    }
}

/// How far TLS is asked for, as libpq's `sslmode`; `allow` is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// Plain text.
    Disable,
    /// TLS where the server has it.
    Prefer,
    /// TLS or nothing; the certificate is checked only when a root certificate is given.
    Require,
    /// TLS and a certificate that a trusted authority signed.
    VerifyCa,
    /// As verify-ca, and made out to the host that we dialled.
    VerifyFull,
}

/// Which authorities are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// None was named: the system's for the verifying modes.
    Unset,
    /// `sslrootcert=system`.
    System,
    /// A PEM file.
    File(PathBuf),
}

/// Whether SCRAM is bound to the TLS session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where both sides can.
    Prefer,
    /// Or no connection.
    Require,
}

/// TCP keepalives. What is not set is tighter than the operating system's two hours: a dead peer is
/// noticed within a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalives {
    /// Whether they are sent at all.
    pub enabled: bool,
    /// Idle time before the first.
    pub idle: Duration,
    /// Time between two.
    pub interval: Duration,
    /// How many may go unanswered.
    pub count: u32,
}

/// Which servers of a list will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSession {
    /// The first that answers.
    Any,
    /// One that takes writes (also `primary`).
    ReadWrite,
}

/// Everything a connection needs to know. Made by [`ConnectSettings::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectSettings {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
    pub(crate) dbname: String,
    pub(crate) options: Option<String>,
    pub(crate) application_name: String,
    pub(crate) tls: TlsMode,
    pub(crate) direct_tls: bool,
    pub(crate) roots: Roots,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) keepalives: Keepalives,
    pub(crate) target: TargetSession,
}

impl ConnectSettings {
    /// Reads a URL or `key=value` text; `environment` answers for `PG*` names that it leaves out, and for
    /// `USER` and `HOME`. The empty text takes everything from the environment.
    ///
    /// # Errors
    /// [`ErrorKind::Settings`](super::ErrorKind::Settings), naming the parameter; the text itself, which
    /// may have a password, is never quoted.
    pub fn parse(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let mut parameters = parse::read(text)?;
        parse::add_environment(&mut parameters, &environment);
        Self::from_parameters(&parameters, &environment)
    }

    fn from_parameters(p: &Parameters, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Error> {
        refuse_unknown(p)?;
        let user = match p.get("user") {
            Some(user) => user.to_owned(),
            None => environment("USER").or_else(|| environment("LOGNAME")).ok_or_else(|| {
                Error::settings("the connection string names no user, and neither PGUSER nor USER is set")
            })?,
        };
        let (tls, roots) = tls_mode(p, environment)?;
        Ok(Self {
            hosts: hosts(p)?,
            dbname: p.get("dbname").unwrap_or(&user).to_owned(),
            user,
            password: p.get("password").map(|text| Secret(text.to_owned())),
            options: p.get("options").map(str::to_owned),
            application_name: p
                .get("application_name")
                .or_else(|| p.get("fallback_application_name"))
                .unwrap_or("anabranch")
                .to_owned(),
            tls,
            direct_tls: direct_tls(p, tls)?,
            roots,
            client_cert: p.get("sslcert").map(PathBuf::from),
            client_key: p.get("sslkey").map(PathBuf::from),
            channel_binding: choice(
                p,
                "channel_binding",
                ChannelBinding::Prefer,
                &[
                    ("disable", ChannelBinding::Disable),
                    ("prefer", ChannelBinding::Prefer),
                    ("require", ChannelBinding::Require),
                ],
            )?,
            connect_timeout: connect_timeout(p)?,
            keepalives: Keepalives {
                enabled: number::<u32>(p, "keepalives")?.is_none_or(|on| on != 0),
                idle: seconds(p, "keepalives_idle")?.unwrap_or(Duration::from_secs(30)),
                interval: seconds(p, "keepalives_interval")?.unwrap_or(Duration::from_secs(10)),
                count: number(p, "keepalives_count")?.filter(|count| *count > 0).unwrap_or(3),
            },
            target: choice(
                p,
                "target_session_attrs",
                TargetSession::Any,
                &[
                    ("any", TargetSession::Any),
                    ("read-write", TargetSession::ReadWrite),
                    ("primary", TargetSession::ReadWrite),
                ],
            )?,
        })
    }

    /// Host, port and database for people; never the password.
    #[must_use]
    pub fn describe(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        format!("database `{}` at {} as `{}`", self.dbname, hosts.join(", "), self.user)
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.dbname
    }

    /// The role's name.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }
}

const KNOWN: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "fallback_application_name",
    "client_encoding",
    "connect_timeout",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "gssencmode",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "target_session_attrs",
];

fn refuse_unknown(p: &Parameters) -> Result<(), Error> {
    for name in p.names() {
        if KNOWN.contains(&name) {
            continue;
        }
        let near = KNOWN
            .iter()
            .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
        let hint = near
            .filter(|near| strsim::jaro_winkler(near, name) > 0.85)
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        return Err(Error::settings(format!("connection parameter `{name}` is not supported{hint}")));
    }
    choice(p, "client_encoding", (), &[("utf8", ()), ("UTF8", ()), ("UTF-8", ()), ("auto", ())])?;
    choice(p, "gssencmode", (), &[("disable", ()), ("prefer", ())])?;
    Ok(())
}

fn choice<T: Copy>(p: &Parameters, name: &str, default: T, words: &[(&str, T)]) -> Result<T, Error> {
    let Some(value) = p.get(name) else { return Ok(default) };
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let list: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Error::settings(format!("`{name}={value}` is not supported; use one of: {}", list.join(", ")))
    })
}

fn number<T: std::str::FromStr>(p: &Parameters, name: &str) -> Result<Option<T>, Error> {
    let read = |text: &str| {
        text.trim().parse().map_err(|_| Error::settings(format!("`{name}={text}` is not a number")))
    };
    p.get(name).map(read).transpose()
}

fn seconds(p: &Parameters, name: &str) -> Result<Option<Duration>, Error> {
    Ok(number::<i64>(p, name)?
        .and_then(|s| u64::try_from(s).ok())
        .filter(|s| *s > 0)
        .map(Duration::from_secs))
}

/// libpq waits for ever by default; a host that swallows packets would then hide the next one. 0 or less
/// means for ever, as in libpq.
fn connect_timeout(p: &Parameters) -> Result<Option<Duration>, Error> {
    if p.get("connect_timeout").is_none() {
        Ok(Some(Duration::from_secs(10)))
    } else {
        seconds(p, "connect_timeout")
    }
}

fn direct_tls(p: &Parameters, tls: TlsMode) -> Result<bool, Error> {
    let direct = choice(p, "sslnegotiation", false, &[("postgres", false), ("direct", true)])?;
    if direct && tls < TlsMode::Require {
        return Err(Error::settings("`sslnegotiation=direct` needs `sslmode=require` or stronger"));
    }
    Ok(direct)
}

fn tls_mode(p: &Parameters, environment: &dyn Fn(&str) -> Option<String>) -> Result<(TlsMode, Roots), Error> {
    if p.get("sslmode") == Some("allow") {
        return Err(Error::settings(
            "`sslmode=allow` is not supported, since it sends plain text first; use `prefer`, or `require` \
             to be sure of TLS",
        ));
    }
    let system = p.get("sslrootcert") == Some("system");
    let default = if system { TlsMode::VerifyFull } else { TlsMode::Prefer };
    let mode = choice(
        p,
        "sslmode",
        default,
        &[
            ("disable", TlsMode::Disable),
            ("prefer", TlsMode::Prefer),
            ("require", TlsMode::Require),
            ("verify-ca", TlsMode::VerifyCa),
            ("verify-full", TlsMode::VerifyFull),
        ],
    )?;
    if system && mode < TlsMode::VerifyFull {
        return Err(Error::settings("`sslrootcert=system` needs `sslmode=verify-full`"));
    }
    let roots = match p.get("sslrootcert") {
        Some("system") => Roots::System,
        Some(path) => Roots::File(PathBuf::from(path)),
        None => default_roots(environment),
    };
    // libpq: with a root certificate at hand, `require` checks the chain as well.
    let mode =
        if mode == TlsMode::Require && matches!(roots, Roots::File(_)) { TlsMode::VerifyCa } else { mode };
    if p.get("sslcert").is_some() != p.get("sslkey").is_some() {
        return Err(Error::settings("`sslcert` and `sslkey` belong together: give both or neither"));
    }
    Ok((mode, roots))
}

fn default_roots(environment: &dyn Fn(&str) -> Option<String>) -> Roots {
    let file = environment("HOME").map(|home| PathBuf::from(home).join(".postgresql/root.crt"));
    file.filter(|file| file.is_file()).map_or(Roots::Unset, Roots::File)
}

fn hosts(p: &Parameters) -> Result<Vec<Host>, Error> {
    let list = |name: &str| -> Vec<String> {
        p.get(name)
            .map(|text| text.split(',').map(|part| part.trim().to_owned()).collect())
            .unwrap_or_default()
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len()).max(1);
    if (!names.is_empty() && !addresses.is_empty() && names.len() != addresses.len())
        || (ports.len() > 1 && ports.len() != count)
    {
        return Err(Error::settings(format!(
            "{} hosts, {} host addresses and {} ports do not match; give one port, or one for each host",
            names.len(),
            addresses.len(),
            ports.len()
        )));
    }
    (0..count)
        .map(|at| {
            let port = ports.get(at).or(ports.first().filter(|_| ports.len() == 1));
            let port = match port.map(String::as_str) {
                None | Some("") => 5432,
                Some(text) => text.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                    // Not quoted: in a URL without `@` this may be a password.
                    Error::settings("a port of the connection string is not a number from 1 to 65535")
                })?,
            };
            let name = names.get(at).map_or("", String::as_str);
            let hostaddr = addresses.get(at).filter(|text| !text.is_empty()).map(|text| {
                text.parse().map_err(|_| Error::settings(format!("`hostaddr={text}` is not an IP address")))
            });
            Ok(Host { address: address(name, hostaddr.transpose()?, port), port })
        })
        .collect()
}

fn address(name: &str, hostaddr: Option<std::net::IpAddr>, port: u16) -> Address {
    match (name, hostaddr) {
        ("", Some(address)) => Address::Tcp { name: address.to_string(), hostaddr },
        ("", None) => default_address(port),
        (name, None) if name.starts_with('/') || name.starts_with('@') => {
            Address::Socket(PathBuf::from(name))
        }
        (name, hostaddr) => {
            let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
            Address::Tcp { name: bare.to_owned(), hostaddr }
        }
    }
}

/// libpq's default is a socket in a directory chosen when it was built: Debian's, then everybody else's.
fn default_address(port: u16) -> Address {
    let directory = ["/var/run/postgresql", "/tmp"].into_iter().map(PathBuf::from);
    let mut here = directory.filter(|directory| directory.join(format!(".s.PGSQL.{port}")).exists());
    match here.next() {
        Some(directory) => Address::Socket(directory),
        None => Address::Tcp { name: "localhost".to_owned(), hostaddr: None },
    }
}
