//! Files that may be plugins: read whole, recognised, and judged by their import and export names before
//! anything of them is compiled or run.

use std::{collections::BTreeSet, fmt, fs, io, path::Path, time::SystemTime};

use sha2::{Digest, Sha256};

use super::{
    abi::v1::{OFFERED, PACKAGE, VERSION},
    grants::Capability,
};
use crate::model::PluginKind;

/// SHA-256 in lower-case hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file could not be read as it is.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It changed while it was read.
    #[error("the file is still being written; it is loaded once it is complete")]
    Unstable,
}

fn stamp(path: &Path) -> io::Result<(u64, Option<SystemTime>)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.len(), metadata.modified().ok()))
}

/// Reads a file whose size and time of change are the same before and after.
///
/// # Errors
/// It cannot be read, or it changes meanwhile.
pub fn read_stable(path: &Path) -> Result<Vec<u8>, ReadError> {
    let before = stamp(path)?;
    let bytes = fs::read(path)?;
    if stamp(path)? != before || bytes.len() as u64 != before.0 {
        return Err(ReadError::Unstable);
    }
    Ok(bytes)
}

/// A component that this host can load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What its exports make it.
    pub kind: PluginKind,
    /// The interface that it was built against: `anabranch:plugin@1.0.0`.
    pub interface: String,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// What it asks to be granted.
    pub capabilities: BTreeSet<Capability>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
}

impl Shape {
    /// Whether it exports an interface of ours that it need not have.
    #[must_use]
    pub fn exports_optional(&self, interface: &str) -> bool {
        self.exports.iter().filter_map(|name| ours(name)).any(|(name, _)| name == interface)
    }
}

/// Why a file is no plugin that this host can load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No bytes.
    Empty,
    /// Text, or anything else that is not WebAssembly.
    NotWasm,
    /// The text format.
    Wat,
    /// A module that was not made a component.
    CoreModule,
    /// Begins like a component, but is cut or damaged.
    Damaged(String),
    /// A WIT package, encoded.
    WitPackage,
    /// A component of something else.
    OtherInterface {
        /// What it exports.
        exports: Vec<String>,
    },
    /// Of this package, but not all that a world asks for.
    MissingExport(&'static str),
    /// An interface of this package that this host does not have, or has in an older version.
    NeedsNewer {
        /// `anabranch:plugin/state@1.2.0`.
        needs: String,
        /// What this host has of it.
        has: Option<semver::Version>,
    },
    /// Interfaces that no plugin gets, such as most of WASI.
    NotOffered(Vec<String>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const COMPONENT: &str = "build it with `anabranch plugin build`";
        match self {
            Self::Empty => f.write_str("the file is empty"),
            Self::NotWasm => {
                write!(f, "it is not WebAssembly (its first bytes are not `\\0asm`): {COMPONENT}")
            }
            Self::Wat => write!(f, "it is WebAssembly text, not a component in binary form: {COMPONENT}"),
            Self::CoreModule => {
                write!(f, "it is a core module, not a component: {COMPONENT}, which makes one of it")
            }
            Self::Damaged(problem) => {
                write!(f, "it is a component that is cut or damaged ({problem}): copy it again")
            }
            Self::WitPackage => f.write_str("it is an interface description (WIT), not a component"),
            Self::OtherInterface { exports } if exports.is_empty() => {
                write!(
                    f,
                    "it is a component that exports nothing; a plugin exports {PACKAGE}/describe@{VERSION}"
                )
            }
            Self::OtherInterface { exports } => write!(
                f,
                "it is a component of another interface: it exports {}, a plugin {PACKAGE}/describe@{VERSION}",
                exports.join(", ")
            ),
            Self::MissingExport(name) => write!(
                f,
                "it exports {PACKAGE}/{name}@{VERSION} not; a plugin exports `describe`, and `transform` or `sink`"
            ),
            Self::NeedsNewer { needs, has: Some(has) } => {
                write!(
                    f,
                    "needs {needs}, this host has {has}: upgrade the host, or rebuild with an SDK for {}.{}",
                    has.major, has.minor
                )
            }
            Self::NeedsNewer { needs, has: None } => {
                write!(
                    f,
                    "needs {needs}, which this host does not have: upgrade the host, or rebuild without it"
                )
            }
            Self::NotOffered(names) => write!(
                f,
                "asks for {}, which no plugin gets: there is {PACKAGE}, and wasi:http of WASI, without files, sockets or \
                 environment. Rust builds for wasm32-unknown-unknown, not for a WASI target",
                names.join(", ")
            ),
        }
    }
}

/// Judges bytes by what they are and by the names that they import and export.
///
/// # Errors
/// They are no plugin that this host can load; says why.
pub fn judge(bytes: &[u8]) -> Result<Shape, Refusal> {
    match bytes {
        [] => return Err(Refusal::Empty),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => return Err(Refusal::CoreModule),
        [0, b'a', b's', b'm', _, _, 1, 0, ..] => {}
        [0, b'a', b's', b'm', ..] => {
            return Err(Refusal::Damaged("its header is of no known version".to_owned()));
        }
        _ if bytes.trim_ascii_start().starts_with(b"(") => return Err(Refusal::Wat),
        _ => return Err(Refusal::NotWasm),
    }
    let decoded = wit_component::decode(bytes).map_err(|error| Refusal::Damaged(format!("{error:#}")))?;
    let wit_component::DecodedWasm::Component(resolve, world) = decoded else {
        return Err(Refusal::WitPackage);
    };
    let world = &resolve.worlds[world];
    let names = |keys: &mut dyn Iterator<Item = &wit_parser::WorldKey>| {
        keys.map(|key| resolve.name_world_key(key)).collect::<Vec<_>>()
    };
    let imports = names(&mut world.imports.keys());
    let exports = names(&mut world.exports.keys());
    judge_names(imports, exports)
}

/// `anabranch:plugin/log@1.0.0` → (`log`, 1.0.0), for our package only.
fn ours(name: &str) -> Option<(&str, semver::Version)> {
    let (interface, version) = name.strip_prefix(PACKAGE)?.strip_prefix('/')?.split_once('@')?;
    Some((interface, semver::Version::parse(version).ok()?))
}

/// Whether a guest built against `wanted` links to this host (WIT links inside a major; older hosts lack what a
/// newer minor added).
fn fits(wanted: &semver::Version) -> bool {
    wanted.major == VERSION.major && wanted.minor.cmp(&VERSION.minor).is_le() && wanted.pre.is_empty()
}

fn judge_names(imports: Vec<String>, exports: Vec<String>) -> Result<Shape, Refusal> {
    let own: Vec<_> = exports.iter().filter_map(|name| Some((name, ours(name)?))).collect();
    if own.is_empty() {
        return Err(Refusal::OtherInterface { exports });
    }
    let newer = |name: &str| Refusal::NeedsNewer { needs: name.to_owned(), has: Some(VERSION) };
    if let Some((name, _)) = own.iter().find(|(_, (_, version))| !fits(version)) {
        return Err(newer(name));
    }
    let exported = |wanted: &str| own.iter().find(|(_, (interface, _))| *interface == wanted);
    let Some((_, (_, version))) = exported("describe") else {
        return Err(Refusal::MissingExport("describe"));
    };
    let kind = match (exported("transform"), exported("sink")) {
        (Some(_), _) => PluginKind::Transform,
        (None, Some(_)) => PluginKind::Sink,
        (None, None) => return Err(Refusal::MissingExport("transform")),
    };
    let (mut foreign, mut capabilities) = (Vec::new(), BTreeSet::new());
    for name in &imports {
        match ours(name) {
            Some((interface, version)) if OFFERED.contains(&interface) => {
                if !fits(&version) {
                    return Err(newer(name));
                }
                capabilities.extend(Capability::of_ours(interface));
            }
            Some(_) => return Err(Refusal::NeedsNewer { needs: name.clone(), has: None }),
            None => match Capability::of_wasi(name) {
                Some(capability) => {
                    capabilities.insert(capability);
                }
                None => foreign.push(name.clone()),
            },
        }
    }
    if !foreign.is_empty() {
        return Err(Refusal::NotOffered(foreign));
    }
    Ok(Shape { kind, interface: format!("{PACKAGE}@{version}"), imports, capabilities, exports })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever reads a pipe meets the one who writes it, and so reads while that one writes.
    #[test]
    fn c089_a_file_that_changes_while_it_is_read_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.wasm");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let read_while = |write: fn(&mut fs::File)| {
            let place = path.clone();
            let writer = std::thread::spawn(move || {
                let mut pipe = fs::File::options().write(true).open(place).unwrap();
                write(&mut pipe);
            });
            let read = read_stable(&path);
            writer.join().unwrap();
            read
        };
        // It has another length than it had, or was touched.
        let longer = read_while(|pipe| {
            let before = pipe.metadata().unwrap().modified().unwrap();
            io::Write::write_all(pipe, b"more").unwrap();
            pipe.set_modified(before).unwrap();
        });
        assert!(matches!(longer, Err(ReadError::Unstable)), "{longer:?}");
        let touched = read_while(|pipe| pipe.set_modified(SystemTime::UNIX_EPOCH).unwrap());
        assert!(matches!(touched, Err(ReadError::Unstable)), "{touched:?}");
        assert_eq!(read_while(|_| {}).unwrap(), b"");
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    const TRANSFORM: [&str; 2] = ["anabranch:plugin/describe@1.0.0", "anabranch:plugin/transform@1.0.0"];

    #[test]
    fn c088_what_is_no_component_is_named() {
        for (bytes, words) in [
            (&b""[..], "is empty"),
            (b"hello", "not WebAssembly"),
            (b"\x7fELF", "not WebAssembly"),
            (b"  (module)", "WebAssembly text"),
            (b"\0asm\x01\0\0\0", "core module"),
            (b"\0asm\x0d\0\x01\0\x07", "cut or damaged"),
            (b"\0asm", "cut or damaged"),
            (b"\0asm\x0d\0\x01\0", "exports nothing"),
        ] {
            let refusal = judge(bytes).unwrap_err().to_string();
            assert!(refusal.contains(words), "{bytes:?}: {refusal}");
        }
    }

    #[test]
    fn c088_other_interfaces_and_versions_are_named() {
        let judged = |imports: &[&str], exports: &[&str]| judge_names(names(imports), names(exports));
        let refusal = |imports: &[&str], exports: &[&str]| judged(imports, exports).unwrap_err().to_string();
        assert_eq!(
            judged(&["anabranch:plugin/log@1.0.0"], &TRANSFORM).unwrap().interface,
            "anabranch:plugin@1.0.0"
        );
        assert_eq!(judged(&["anabranch:plugin/log@1.0.7"], &TRANSFORM).unwrap().kind, PluginKind::Transform);
        assert!(refusal(&[], &["wasi:cli/run@0.2.0"]).contains("exports wasi:cli/run@0.2.0"));
        assert!(refusal(&[], &["anabranch:plugin/describe@1.0.0"]).contains("`transform` or `sink`"));
        assert!(
            refusal(&[], &["anabranch:plugin/transform@1.0.0"]).contains("anabranch:plugin/describe@1.0.0")
        );
        let newer = refusal(&["anabranch:plugin/log@1.2.0"], &TRANSFORM);
        assert_eq!(
            newer,
            "needs anabranch:plugin/log@1.2.0, this host has 1.0.0: upgrade the host, or rebuild with an SDK for 1.0"
        );
        assert!(refusal(&["anabranch:plugin/mail@1.0.0"], &TRANSFORM).contains("does not have"));
        assert!(
            refusal(&[], &["anabranch:plugin/describe@2.0.0"])
                .contains("needs anabranch:plugin/describe@2.0.0")
        );
        assert!(refusal(&[], &["anabranch:plugin/describe@1.0.0-rc.1"]).contains("rc.1"));
        assert!(refusal(&["wasi:cli/environment@0.2.6"], &TRANSFORM).contains("wasi:cli/environment@0.2.6"));
    }

    #[test]
    fn imports_are_the_request() {
        let imports = ["anabranch:plugin/log@1.0.0", "anabranch:plugin/query@1.0.0", "wasi:http/types@0.2.3"];
        let shape = judge_names(names(&imports), names(&TRANSFORM)).unwrap();
        assert_eq!(shape.capabilities, [Capability::Http, Capability::Query].into());
    }

    #[test]
    fn sinks_are_recognised() {
        let exports = names(&["anabranch:plugin/describe@1.0.0", "anabranch:plugin/sink@1.0.0"]);
        assert_eq!(judge_names(vec![], exports).unwrap().kind, PluginKind::Sink);
    }
}
