//! The interface's description: in a folder, for tools that read it there, and parsed; and the world of one guest.
//!
//! The worlds of `wit/v1` have what every plugin has. What a guest asks for beside that is imported by a world of its
//! own, so that a component imports nothing that its source does not use.

use std::{collections::BTreeSet, fmt::Write as _, fs, io, path::Path};

use wit_parser::{PackageId, Resolve, SourceMap};

use crate::plugin::grants::Capability;

/// The name of a guest's own world.
pub(super) const WORLD: &str = "guest";

const FILES: [(&str, &str); 4] = [
    ("types.wit", include_str!("../../../wit/v1/types.wit")),
    ("host.wit", include_str!("../../../wit/v1/host.wit")),
    ("plugin.wit", include_str!("../../../wit/v1/plugin.wit")),
    ("worlds.wit", include_str!("../../../wit/v1/worlds.wit")),
];

/// What SDKs use of WASI, each package after those that it uses.
const WASI: [(&str, &str); 3] = [
    ("io", include_str!("../../../plugins/sdk-rust/wit/io/io.wit")),
    ("clocks", include_str!("../../../plugins/sdk-rust/wit/clocks/clocks.wit")),
    ("http", include_str!("../../../plugins/sdk-rust/wit/http/http.wit")),
];

/// What one guest asks for and offers beside what every plugin does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    /// The interfaces that it exports beside `describe`: `transform`, or `sink` and what sinks may add.
    pub(super) exports: Vec<String>,
    /// What it uses.
    pub(super) capabilities: BTreeSet<Capability>,
}

impl World {
    /// As WIT, in the package of the interface; with the interfaces of `wasi:http` under another namespace than `wasi` if that
    /// is wanted.
    fn text(&self, wasi: &str) -> String {
        let mut text = format!("package anabranch:plugin@1.0.0;\n\nworld {WORLD} {{\n");
        let mut line = |words: &str, name: &str| {
            let _ = writeln!(text, "    {words} {name};");
        };
        line("import", "log");
        line("import", "config");
        for capability in &self.capabilities {
            match capability {
                Capability::Http => {
                    line("import", &format!("{wasi}:http/types@0.2.0"));
                    line("import", &format!("{wasi}:http/outgoing-handler@0.2.0"));
                }
                Capability::Query | Capability::State | Capability::Metrics => {
                    line("import", capability.as_str());
                }
            }
        }
        line("export", "describe");
        self.exports.iter().for_each(|name| line("export", name));
        text + "}\n"
    }

    /// Writes the interface with this world into a folder, which is made. What is of WASI is named `wasi`, or something else for
    /// a tool that keeps that name for itself.
    pub(super) fn write(&self, folder: &Path, wasi: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))?;
        fs::write(folder.join("guest.wit"), self.text(wasi))?;
        if !self.capabilities.contains(&Capability::Http) {
            return Ok(());
        }
        WASI.iter().try_for_each(|(name, text)| {
            let package = folder.join("deps").join(name);
            fs::create_dir_all(&package)?;
            fs::write(package.join("package.wit"), text.replace("wasi:", &format!("{wasi}:")))
        })
    }
}

/// Parses it and what SDKs use of WASI, with further worlds of the same package.
pub(super) fn parse(worlds: &str) -> Result<(Resolve, PackageId), String> {
    let mut resolve = Resolve::default();
    for (name, text) in WASI {
        push(&mut resolve, &[(name, text)])?;
    }
    let files: Vec<_> = FILES.into_iter().chain([("further.wit", worlds)]).collect();
    let package = push(&mut resolve, &files)?;
    Ok((resolve, package))
}

fn push(resolve: &mut Resolve, files: &[(&str, &str)]) -> Result<PackageId, String> {
    let mut sources = SourceMap::new();
    files.iter().for_each(|(name, text)| sources.push_str(name, *text));
    let group = sources.parse().map_err(|(_, problem)| problem.to_string())?;
    resolve.push_group(group).map_err(|problem| problem.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was forgotten here would be missing for everybody but Rust.
    #[test]
    fn every_file_of_the_interface_is_there() {
        let mut parts: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("wit/v1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".wit"))
            .collect();
        parts.sort();
        let mut here = FILES.map(|(name, _)| name);
        here.sort_unstable();
        assert_eq!(parts, here);
    }

    /// The names that a world in a folder imports and exports, as a tool reads them.
    fn names(world: &World, wasi: &str) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        world.write(folder.path(), wasi).unwrap();
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_path(folder.path()).unwrap();
        let id = resolve.select_world(&[package], Some(WORLD)).unwrap();
        let keys = |keys: &mut dyn Iterator<Item = &wit_parser::WorldKey>| {
            keys.map(|key| resolve.name_world_key(key)).collect::<Vec<_>>()
        };
        let world = &resolve.worlds[id];
        (keys(&mut world.imports.keys()), keys(&mut world.exports.keys()))
    }

    #[test]
    fn a_world_has_what_is_asked_for_and_no_more() {
        let ours = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("anabranch:plugin/{name}@1.0.0")).collect()
        };
        let plain = World { exports: vec!["transform".to_owned()], ..World::default() };
        let (imports, exports) = names(&plain, "wasi");
        assert_eq!(imports, ours(&["log", "config", "types"]));
        assert_eq!(exports, ours(&["describe", "transform"]));
        let capabilities = [Capability::Http, Capability::State].into();
        let sink = World { exports: vec!["sink".to_owned(), "purge".to_owned()], capabilities };
        for wasi in ["wasi", "pass"] {
            let (imports, exports) = names(&sink, wasi);
            for name in ours(&["log", "config", "types", "state"]).into_iter().chain(
                [
                    "io/error",
                    "io/poll",
                    "io/streams",
                    "http/types",
                    "http/outgoing-handler",
                    "clocks/monotonic-clock",
                ]
                .map(|name| format!("{wasi}:{name}@0.2.0")),
            ) {
                assert!(imports.contains(&name), "{name}: {imports:?}");
            }
            assert_eq!(imports.len(), 10, "{imports:?}");
            assert_eq!(exports, ours(&["describe", "sink", "purge"]));
        }
    }

    #[test]
    fn a_world_may_import_what_is_of_wasi() {
        let (resolve, package) = parse("world w { import wasi:http/outgoing-handler@0.2.0; }").unwrap();
        assert!(resolve.select_world(&[package], Some("w")).is_ok());
    }
}
