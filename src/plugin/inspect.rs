//! `plugin inspect`: what a file is, in words, whether or not it can be loaded.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    PluginError, PluginHost,
    artifact::{judge, sha256},
    grants::Capability,
    load::{Examined, read},
};
use crate::model::{Description, Encoding, PluginKind};

/// What a file is.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: usize,
    /// Of its bytes, lower-case hex.
    pub sha256: String,
    /// Whether this host can run it.
    pub loadable: bool,
    /// `ok`, or why it cannot be loaded.
    pub verdict: String,
    /// `transform` or `sink`.
    pub kind: Option<&'static str>,
    /// The interface it was built against.
    pub interface: Option<String>,
    /// The interfaces that it imports: what it asks for.
    pub imports: Vec<String>,
    /// What it asks to be granted.
    pub capabilities: Vec<Asked>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
    /// What it says of itself.
    pub description: Option<Described>,
}

/// A capability that a plugin asks for.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    /// `http`, `query`, `state` or `metrics`.
    pub name: &'static str,
    /// Whether the config grants it; null where the plugin's name is not known.
    pub granted: Option<bool>,
}

/// What a plugin says of itself, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How batches cross.
    pub encoding: Encoding,
    /// The tables that it is meant for.
    pub tables: Vec<String>,
    /// The columns that it reads; none means all.
    pub columns: Option<Vec<String>>,
    /// The columns that come as JSON text within a string.
    pub raw: Vec<String>,
    /// Where its documents land.
    pub destination: Option<String>,
    /// Whether deletes come to it.
    pub wants_deletes: bool,
    /// Whether it names its own document ids.
    pub names_ids: bool,
    /// Other tables that its documents depend on.
    pub depends_on: Vec<String>,
    /// What built it.
    pub sdk: Option<String>,
    /// Keys of its description that this host does not know.
    pub unknown: Vec<String>,
}

impl PluginHost {
    /// Looks at a file. Compiles it where its names fit, and calls `describe`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn inspect(&self, path: &Path) -> Result<Inspection, PluginError> {
        let bytes = read(path)?;
        let mut inspection = Inspection {
            path: path.to_owned(),
            size: bytes.len(),
            sha256: sha256(&bytes),
            loadable: false,
            verdict: String::new(),
            kind: None,
            interface: None,
            imports: Vec::new(),
            capabilities: Vec::new(),
            exports: Vec::new(),
            description: None,
        };
        match judge(&bytes) {
            Err(refusal) => inspection.verdict = refusal.to_string(),
            Ok(shape) => {
                inspection.kind = Some(match shape.kind {
                    PluginKind::Transform => "transform",
                    PluginKind::Sink => "sink",
                });
                inspection.interface = Some(shape.interface);
                inspection.imports = shape.imports;
                let asked = |name: &Capability| Asked { name: name.as_str(), granted: None };
                inspection.capabilities = shape.capabilities.iter().map(asked).collect();
                inspection.exports = shape.exports;
                self.look_inside(path, &bytes, &mut inspection);
            }
        }
        Ok(inspection)
    }

    fn look_inside(&self, path: &Path, bytes: &[u8], inspection: &mut Inspection) {
        let Examined { component, shape, described } = match self.examine(path, bytes) {
            Ok(examined) => examined,
            Err(error) => {
                inspection.verdict = error.to_string();
                return;
            }
        };
        drop(component);
        let Description { name, version, encoding, tables, columns, raw, .. } = described.description.clone();
        let Description { destination, wants_deletes, names_ids, depends_on, .. } = described.description;
        let grants = self.inner.settings.grants_of(&name);
        for (asked, capability) in inspection.capabilities.iter_mut().zip(&shape.capabilities) {
            asked.granted = Some(grants.has(*capability));
        }
        inspection.loadable = true;
        "ok".clone_into(&mut inspection.verdict);
        inspection.description = Some(Described {
            name,
            version: version.to_string(),
            encoding,
            tables,
            columns,
            raw,
            destination,
            wants_deletes,
            names_ids,
            depends_on,
            sdk: described.sdk,
            unknown: described.unknown,
        });
    }
}
