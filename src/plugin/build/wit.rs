//! The interface's description: in a folder, for tools that read it there, and parsed; and the world of one guest.
//!
//! The worlds of `wit/v1` have what every plugin has. What a guest asks for beside that is imported by a world of its
//! own, so that a component imports nothing that its source does not use.

use std::{collections::BTreeSet, fmt::Write as _, fs, io, path::Path};

use wasmparser::{Parser, Payload};
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

/// How WASI is called for the tools of JavaScript and Python, which make stubs of everything of that name; as long as its own,
/// which the component gets back ([`renamed`]).
pub(super) const STAND_IN: &str = "pass";

/// What one guest asks for and offers beside what every plugin does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct World {
    /// The interfaces that it exports beside `describe`: `transform`, or `sink` and what sinks may add.
    pub(super) exports: Vec<String>,
    /// What it uses.
    pub(super) capabilities: BTreeSet<Capability>,
}

impl World {
    /// As WIT, in the package of the interface.
    fn text(&self) -> String {
        let mut text = format!("package anabranch:plugin@1.0.0;\n\nworld {WORLD} {{\n");
        let mut line = |words: &str, name: &str| {
            let _ = writeln!(text, "    {words} {name};");
        };
        line("import", "log");
        line("import", "config");
        for capability in &self.capabilities {
            match capability {
                Capability::Http => {
                    line("import", &format!("{STAND_IN}:http/types@0.2.0"));
                    line("import", &format!("{STAND_IN}:http/outgoing-handler@0.2.0"));
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

    /// Writes the interface with this world into a folder, which is made; see [`STAND_IN`].
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        FILES.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))?;
        fs::write(folder.join("guest.wit"), self.text())?;
        if !self.capabilities.contains(&Capability::Http) {
            return Ok(());
        }
        WASI.iter().try_for_each(|(name, text)| {
            let package = folder.join("deps").join(name);
            fs::create_dir_all(&package)?;
            fs::write(package.join("package.wit"), text.replace("wasi:", &format!("{STAND_IN}:")))
        })
    }
}

/// The name of an interface, where [`STAND_IN`] stands for WASI's.
pub(super) fn real_name(interface: &str) -> String {
    match interface.strip_prefix(STAND_IN) {
        Some(rest) if rest.starts_with(':') => format!("wasi{rest}"),
        _ => interface.to_owned(),
    }
}

/// The capability that an interface belongs to, if it needs one; an error if no plugin gets it.
pub(super) fn capability(interface: &str) -> Result<Option<Capability>, ()> {
    let ours = interface.strip_prefix("anabranch:plugin/").and_then(|rest| rest.strip_suffix("@1.0.0"));
    match ours {
        Some("log" | "config" | "types") => Ok(None),
        Some(name) => Capability::of_ours(name).map(Some).ok_or(()),
        None => Capability::of_wasi(interface).map(Some).ok_or(()),
    }
}

/// A component whose imports of WASI have that name again, in place of [`STAND_IN`].
pub(super) fn renamed(mut component: Vec<u8>) -> Result<Vec<u8>, String> {
    let prefix = format!("{STAND_IN}:");
    let (mut places, mut depth) = (Vec::new(), 0);
    for payload in Parser::new(0).parse_all(&component) {
        match payload.map_err(|problem| problem.to_string())? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(imports) if depth == 0 => {
                for import in imports {
                    let name = import.map_err(|problem| problem.to_string())?.name.name;
                    if name.starts_with(&prefix) {
                        places.push(name.as_ptr().addr() - component.as_ptr().addr());
                    }
                }
            }
            _ => {}
        }
    }
    for at in places {
        let part = component.get_mut(at..at + prefix.len()).ok_or("an import is cut")?;
        part.copy_from_slice(b"wasi:");
    }
    Ok(component)
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
    use wasm_encoder::{
        Component, ComponentImportSection, ComponentTypeRef, ComponentTypeSection, InstanceType,
    };

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
    fn names(world: &World) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        world.write(folder.path()).unwrap();
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
        let (imports, exports) = names(&plain);
        assert_eq!(imports, ours(&["log", "config", "types"]));
        assert_eq!(exports, ours(&["describe", "transform"]));
        let capabilities = [Capability::Http, Capability::State].into();
        let sink = World { exports: vec!["sink".to_owned(), "purge".to_owned()], capabilities };
        let (imports, exports) = names(&sink);
        let parts = [
            "io/error",
            "io/poll",
            "io/streams",
            "http/types",
            "http/outgoing-handler",
            "clocks/monotonic-clock",
        ];
        let wasi = parts.map(|name| format!("{STAND_IN}:{name}@0.2.0"));
        for name in ours(&["log", "config", "types", "state"]).into_iter().chain(wasi) {
            assert!(imports.contains(&name), "{name}: {imports:?}");
        }
        assert_eq!(imports.len(), 10, "{imports:?}");
        assert_eq!(exports, ours(&["describe", "sink", "purge"]));
    }

    #[test]
    fn wasi_has_its_name_in_the_end() {
        let import = |name: &str| {
            let mut component = Component::new();
            let mut types = ComponentTypeSection::new();
            types.instance(&InstanceType::new());
            component.section(&types);
            let mut imports = ComponentImportSection::new();
            imports.import(name, ComponentTypeRef::Instance(0));
            imports.import("anabranch:plugin/log@1.0.0", ComponentTypeRef::Instance(0));
            component.section(&imports);
            component.finish()
        };
        let made = renamed(import("pass:http/types@0.2.0")).unwrap();
        assert_eq!(made, import("wasi:http/types@0.2.0"));
        assert_eq!(real_name("pass:http/types@0.2.0"), "wasi:http/types@0.2.0");
        assert_eq!(real_name("passage:http/types@0.2.0"), "passage:http/types@0.2.0");
        assert!(renamed(made[..made.len() - 3].to_vec()).is_err());
    }

    #[test]
    fn interfaces_belong_to_capabilities() {
        for (interface, expected) in [
            ("anabranch:plugin/log@1.0.0", Ok(None)),
            ("anabranch:plugin/query@1.0.0", Ok(Some(Capability::Query))),
            ("wasi:http/outgoing-handler@0.2.0", Ok(Some(Capability::Http))),
            ("anabranch:plugin/query@2.0.0", Err(())),
            ("anabranch:plugin/mail@1.0.0", Err(())),
            ("wasi:filesystem/types@0.2.0", Err(())),
        ] {
            assert_eq!(capability(interface), expected, "{interface}");
        }
    }

    #[test]
    fn a_world_may_import_what_is_of_wasi() {
        let (resolve, package) = parse("world w { import wasi:http/outgoing-handler@0.2.0; }").unwrap();
        assert!(resolve.select_world(&[package], Some("w")).is_ok());
    }
}
