//! What can be set for each kind of sink, as meant: parsed, with defaults, secrets hidden.

use std::{path::PathBuf, time::Duration};

use super::PluginSinkSettings;
use crate::model::Secret;

/// The settings of one `[sink.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkSettings {
    /// An SQLite file.
    Sqlite(SqliteSettings),
    /// A file of JSON lines, or standard output.
    Jsonl(JsonlSettings),
    /// An HTTP receiver.
    Http(HttpSettings),
    /// A component of the directory of plugins.
    Plugin(PluginSinkSettings),
    /// Counts and forgets.
    Null,
}

impl SinkSettings {
    /// The kind's word, as in the config.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Jsonl(_) => "jsonl",
            Self::Http(_) => "http",
            Self::Plugin(_) => "plugin",
            Self::Null => "null",
        }
    }
}

/// `kind = "sqlite"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteSettings {
    /// The database file; made where it is missing, in a directory that exists.
    pub path: PathBuf,
    /// How long to wait for another program's lock on the file before the batch is tried again later.
    pub busy_timeout: Duration,
}

impl SqliteSettings {
    /// The defaults for a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), busy_timeout: Duration::from_secs(5) }
    }
}

/// `kind = "jsonl"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonlSettings {
    /// The file, or `-` for standard output.
    pub path: PathBuf,
}

impl JsonlSettings {
    /// Lines into a file, or into standard output for `-`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

/// `kind = "http"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where to POST. `{destination}` in the path or query stands for the destination, percent-encoded.
    /// Secret as a whole: URLs of webhooks often are a password by themselves.
    pub url: Secret,
    /// Headers of every request, as name and value.
    pub headers: Vec<(String, Secret)>,
    /// Keys to sign with, each giving one signature: one normally, two during a rotation. Either
    /// `whsec_` and base64, or any text.
    pub secrets: Vec<Secret>,
    /// Whether bodies are sent compressed (`content-encoding: gzip`).
    pub gzip: bool,
    /// From the first byte of a request to the last byte of its answer.
    pub timeout: Duration,
    /// How long a connection may take to be made, TLS included.
    pub connect_timeout: Duration,
    /// The most documents in a request.
    pub max_documents: usize,
    /// The most bytes of JSON in a request, before compression; a single larger document goes alone.
    pub max_bytes: usize,
    /// A PEM file of certificate authorities to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
}

impl HttpSettings {
    /// The defaults for a receiver.
    #[must_use]
    pub fn new(url: Secret) -> Self {
        Self {
            url,
            headers: Vec::new(),
            secrets: Vec::new(),
            gzip: false,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_documents: 500,
            max_bytes: 1024 * 1024,
            ca_file: None,
        }
    }
}
