//! The shape of the interface: what was released once is never touched.
//!
//! `tests/abi/<version>/wit` is the interface of a release as it was. Each of its records, enums, signatures and worlds
//! must be in `wit/v1` as it is there; added interfaces pass, and so do functions that were added to interfaces which
//! hosts offer. Under a version that was released nothing is added either: it gets the next minor version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use testkit::paths::repository;
use wit_parser::{
    Function, FunctionKind, Handle, InterfaceId, Resolve, Type, TypeDefKind, TypeId, TypeOwner, WorldItem,
    WorldKey,
};

use crate::frozen::releases;

/// An interface package, each part of it by name.
#[derive(Debug)]
struct Interface {
    version: semver::Version,
    /// Its text by what it is: `log: func log`, `transform-plugin: import log`.
    parts: BTreeMap<(String, String), String>,
    /// What worlds import, and hosts offer.
    imported: BTreeSet<String>,
    /// What worlds export, and guests offer.
    exported: BTreeSet<String>,
    worlds: BTreeSet<String>,
}

impl Interface {
    fn read(folder: &Path) -> Result<Self, String> {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(folder).map_err(|error| format!("{error:#}"))?;
        let package = &resolve.packages[package];
        let version = package.name.version.clone().ok_or("the package has no version")?;
        let mut interface = Self {
            version,
            parts: BTreeMap::new(),
            imported: BTreeSet::new(),
            exported: BTreeSet::new(),
            worlds: BTreeSet::new(),
        };
        for (name, &id) in &package.interfaces {
            interface.parts.insert((name.clone(), "interface".to_owned()), String::new());
            for (part, &id) in &resolve.interfaces[id].types {
                interface.parts.insert((name.clone(), format!("type {part}")), definition(&resolve, id));
            }
            for (part, function) in &resolve.interfaces[id].functions {
                let text = signature(&resolve, function);
                interface.parts.insert((name.clone(), format!("func {part}")), text);
            }
        }
        for (name, &id) in &package.worlds {
            interface.worlds.insert(name.clone());
            let world = &resolve.worlds[id];
            interface.parts.insert((name.clone(), "world".to_owned()), String::new());
            for (way, items) in [("import", &world.imports), ("export", &world.exports)] {
                for (key, item) in items {
                    let key = key_name(&resolve, key);
                    if matches!(item, WorldItem::Interface { .. }) {
                        let side =
                            if way == "import" { &mut interface.imported } else { &mut interface.exported };
                        side.insert(key.clone());
                    }
                    let text = match item {
                        WorldItem::Interface { .. } => String::new(),
                        WorldItem::Function(function) => signature(&resolve, function),
                        WorldItem::Type { id, .. } => definition(&resolve, *id),
                    };
                    interface.parts.insert((name.clone(), format!("{way} {key}")), text);
                }
            }
        }
        Ok(interface)
    }

    /// What of this, which was released, is not kept by `now`, a sentence each.
    fn broken_by(&self, now: &Self) -> Vec<String> {
        let mut problems = Vec::new();
        if now.version.major != self.version.major || now.version < self.version {
            problems.push(format!("the version {} does not follow {}", now.version, self.version));
        }
        for ((owner, part), was) in &self.parts {
            match now.parts.get(&(owner.clone(), part.clone())) {
                None => problems.push(format!("{owner}: `{part}` is gone")),
                Some(is) if is != was => problems.push(format!("{owner}: `{part}` was `{was}`, is `{is}`")),
                Some(_) => {}
            }
        }
        let added: Vec<_> = now.parts.keys().filter(|key| !self.parts.contains_key(*key)).collect();
        for (owner, part) in &added {
            let known = self.parts.keys().any(|(known, _)| known == owner);
            let offered = self.imported.contains(owner) && !self.exported.contains(owner);
            let may = if !known {
                true
            } else if self.worlds.contains(owner) {
                part.starts_with("import ")
            } else {
                offered
            };
            if !may {
                problems.push(format!("{owner}: `{part}` was added, where guests that are out have none"));
            }
        }
        problems
    }

    /// The same, for a version that is out: it is not even added to.
    fn altered_by(&self, now: &Self) -> Vec<String> {
        let mut problems = self.broken_by(now);
        if now.version == self.version && now.parts != self.parts {
            problems.push(format!("{} is released: what is added gets the next minor version", self.version));
        }
        problems
    }
}

/// Without the version, which may rise.
fn interface_name(resolve: &Resolve, id: InterfaceId) -> String {
    let interface = &resolve.interfaces[id];
    let name = interface.name.clone().unwrap_or_default();
    match interface.package.map(|package| &resolve.packages[package].name) {
        Some(package) if package.namespace != "anabranch" => {
            format!("{}:{}/{name}", package.namespace, package.name)
        }
        _ => name,
    }
}

fn key_name(resolve: &Resolve, key: &WorldKey) -> String {
    match key {
        WorldKey::Name(name) => name.clone(),
        WorldKey::Interface(id) => interface_name(resolve, *id),
    }
}

fn signature(resolve: &Resolve, function: &Function) -> String {
    let mut text = match &function.kind {
        FunctionKind::Freestanding => "func(".to_owned(),
        FunctionKind::AsyncFreestanding => "async func(".to_owned(),
        FunctionKind::Method(id) => format!("method of {} (", named(resolve, *id)),
        FunctionKind::Static(id) => format!("static of {} (", named(resolve, *id)),
        FunctionKind::Constructor(id) => format!("constructor of {} (", named(resolve, *id)),
        other => panic!("teach the test of the shape {other:?}"),
    };
    let parameters =
        function.params.iter().map(|param| format!("{}: {}", param.name, reference(resolve, &param.ty)));
    text.push_str(&parameters.collect::<Vec<_>>().join(", "));
    text.push(')');
    if let Some(result) = &function.result {
        let _ = write!(text, " -> {}", reference(resolve, result));
    }
    text
}

fn named(resolve: &Resolve, id: TypeId) -> String {
    let definition = &resolve.types[id];
    let name = definition.name.clone().unwrap_or_default();
    match definition.owner {
        TypeOwner::Interface(owner) => format!("{}.{name}", interface_name(resolve, owner)),
        _ => name,
    }
}

/// A type where it is used.
fn reference(resolve: &Resolve, of: &Type) -> String {
    match of {
        Type::Id(id) if resolve.types[*id].name.is_some() => named(resolve, *id),
        Type::Id(id) => definition(resolve, *id),
        plain => format!("{plain:?}").to_lowercase(),
    }
}

fn optional(resolve: &Resolve, of: Option<&Type>) -> String {
    of.map_or("_".to_owned(), |of| reference(resolve, of))
}

/// A type where it is defined.
fn definition(resolve: &Resolve, id: TypeId) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    let of = |of: &Type| reference(resolve, of);
    match &resolve.types[id].kind {
        TypeDefKind::Record(record) => {
            let fields = record.fields.iter().map(|field| format!("{}: {}", field.name, of(&field.ty)));
            format!("record {{ {} }}", list(fields.collect()))
        }
        TypeDefKind::Variant(variant) => {
            let cases = variant
                .cases
                .iter()
                .map(|case| format!("{}({})", case.name, optional(resolve, case.ty.as_ref())));
            format!("variant {{ {} }}", list(cases.collect()))
        }
        TypeDefKind::Enum(cases) => {
            format!("enum {{ {} }}", list(cases.cases.iter().map(|case| case.name.clone()).collect()))
        }
        TypeDefKind::Flags(flags) => {
            format!("flags {{ {} }}", list(flags.flags.iter().map(|flag| flag.name.clone()).collect()))
        }
        TypeDefKind::Tuple(tuple) => format!("tuple<{}>", list(tuple.types.iter().map(of).collect())),
        TypeDefKind::Option(some) => format!("option<{}>", of(some)),
        TypeDefKind::Result(result) => {
            format!(
                "result<{}, {}>",
                optional(resolve, result.ok.as_ref()),
                optional(resolve, result.err.as_ref())
            )
        }
        TypeDefKind::List(element) => format!("list<{}>", of(element)),
        TypeDefKind::Type(same) => format!("= {}", of(same)),
        TypeDefKind::Resource => "resource".to_owned(),
        TypeDefKind::Handle(Handle::Own(id)) => format!("own<{}>", named(resolve, *id)),
        TypeDefKind::Handle(Handle::Borrow(id)) => format!("borrow<{}>", named(resolve, *id)),
        other => panic!("teach the test of the shape {other:?}"),
    }
}

fn now() -> Interface {
    Interface::read(&repository().join("wit/v1")).unwrap()
}

#[test]
fn what_was_released_keeps_its_shape() {
    let now = now();
    let releases = releases();
    assert!(!releases.is_empty());
    for release in releases {
        let frozen = Interface::read(&release.folder.join("wit")).unwrap();
        assert_eq!(frozen.version.to_string(), release.version);
        let problems = if release.released { frozen.altered_by(&now) } else { frozen.broken_by(&now) };
        assert!(
            problems.is_empty(),
            "wit/v1 breaks what runs with {}: wit/README.md says what may change\n{}",
            release.version,
            problems.join("\n")
        );
    }
}

/// The interface with a text replaced in one of its files.
fn mutated(file: &str, from: &str, to: &str) -> Result<Interface, String> {
    let folder = tempfile::tempdir().unwrap();
    copy(&repository().join("wit/v1"), folder.path());
    let path = folder.path().join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no `{from}` any more: renew the mutation");
    fs::write(&path, text.replacen(from, to, 1)).unwrap();
    Interface::read(folder.path())
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir(&place).unwrap();
            copy(&path, &place);
        } else {
            fs::copy(&path, &place).unwrap();
        }
    }
}

/// A mutation, and a part of what is said of it.
type Mutation = (&'static str, &'static str, &'static str, &'static str);

const BREAKING: [Mutation; 15] = [
    (
        "types.wit",
        "        code: string,\n",
        "        code: string,\n        more: string,\n",
        "types: `type failure`",
    ),
    ("types.wit", "        code: string,\n", "", "types: `type failure`"),
    ("types.wit", "code: string", "code: option<string>", "types: `type failure`"),
    ("types.wit", "class: failure-class,\n", "", "types: `type failure`"),
    ("types.wit", "        retry,\n", "        retry,\n        later,\n", "types: `type failure-class`"),
    ("types.wit", "        poison,\n", "", "types: `type failure-class`"),
    ("host.wit", "        trace,\n", "        trace,\n        finest,\n", "log: `type level`"),
    ("host.wit", "message: string", "message: list<u8>", "log: `func log`"),
    ("host.wit", "message: string", "text: string", "log: `func log`"),
    ("host.wit", "-> option<string>", "-> result<string>", "config: `func get`"),
    ("host.wit", "get: func", "read: func", "config: `func get` is gone"),
    ("host.wit", "interface config", "interface settings", "config: `interface` is gone"),
    (
        "plugin.wit",
        "describe: func() -> string;",
        "describe: func() -> string;\n    also: func();",
        "`func also` was added",
    ),
    (
        "plugin.wit",
        "transform: func(batch: list<u8>)",
        "transform: func(batch: string)",
        "transform: `func transform`",
    ),
    (
        "worlds.wit",
        "    export transform;\n",
        "    export transform;\n    export extra: func();\n",
        "`export extra` was added",
    ),
];

const PASSING: [Mutation; 4] = [
    ("host.wit", "interface config", "interface clock {\n    now: func() -> u64;\n}\n\ninterface config", ""),
    ("host.wit", "get: func", "all: func() -> list<string>;\n    get: func", ""),
    ("host.wit", "log: func", "enum colour { red }\n    paint: func(colour: colour);\n    log: func", ""),
    ("worlds.wit", "    import log;\n", "    import log;\n    import extra: func();\n", ""),
];

#[test]
fn every_change_of_shape_is_refused_and_every_addition_passes() {
    let before = now();
    for (file, from, to, words) in BREAKING {
        // A name that is used elsewhere no longer resolves: refused before it is compared.
        let problems = match mutated(file, from, to) {
            Ok(after) => before.broken_by(&after),
            Err(error) => vec![format!("{words} {error}")],
        };
        assert!(problems.iter().any(|problem| problem.contains(words)), "{from} → {to}: {problems:?}");
    }
    for (file, from, to, _) in PASSING {
        let after = mutated(file, from, to).unwrap();
        assert_eq!(before.broken_by(&after), Vec::<String>::new(), "{from} → {to}");
        let released = before.altered_by(&after);
        assert!(released.iter().any(|problem| problem.contains("next minor version")), "{released:?}");
    }
    let comment = mutated("host.wit", "/// The value under a key", "/// What stands under a key").unwrap();
    assert_eq!(before.altered_by(&comment), Vec::<String>::new(), "words are no shape");
}

#[test]
fn a_version_follows_the_one_before() {
    let at = |version: &str| Interface { version: version.parse().unwrap(), ..now() };
    let (old, minor, major) = (at("1.1.0"), at("1.2.0"), at("2.0.0"));
    assert!(
        old.broken_by(&minor).is_empty()
            && !minor.broken_by(&old).is_empty()
            && !old.broken_by(&major).is_empty()
    );
}
