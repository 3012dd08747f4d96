//! Which plugin, in which version, from which bytes.

use std::fmt;

/// What a plugin does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PluginKind {
    /// Rows of one table to documents.
    Transform,
    /// Delivers documents.
    Sink,
}

/// How batches cross the border to a guest (see `wit/v1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// One JSON text a batch: readable, fastest for JavaScript and Python.
    Json,
    /// One MessagePack value a batch: half the cost for compiled guests.
    Msgpack,
}

/// What a plugin says of itself (`describe`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name, as mappings refer to it.
    pub name: String,
    /// Its version; any difference from the stored one rebuilds the mappings that use it.
    pub version: semver::Version,
    /// Transform or sink.
    pub kind: PluginKind,
    /// The encoding of its batches.
    pub encoding: Encoding,
    /// Tables it is meant for, so that a dropped file can work without a `[[map]]`.
    pub tables: Vec<String>,
    /// The columns it reads; none means all.
    pub columns: Option<Vec<String>>,
    /// Columns whose values come as JSON text within a string; only with batches in JSON.
    pub raw: Vec<String>,
    /// Where its documents land unless the mapping says otherwise.
    pub destination: Option<String>,
    /// Whether deletes come to it; otherwise the host deletes by document id.
    pub wants_deletes: bool,
    /// Whether it names its own document ids.
    pub names_ids: bool,
    /// Other tables whose rows its documents depend on.
    pub depends_on: Vec<String>,
}

/// A plugin's exact identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The plugin's name.
    pub name: String,
    /// Its version.
    pub version: semver::Version,
    /// SHA-256 of the component's bytes, in lower-case hex.
    pub sha256: String,
    /// The interface it was built against, as `anabranch:plugin@1.0.0`.
    pub interface: String,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}
