//! A component of a core module that a compiler for WASI linked (C, Go): the interface is described in it, and what it
//! imports of WASI is answered within, by [`wasi_stub`], because a host grants none.
//!
//! The module itself says what is described: its exports are those of the world, and of the imports only those stay that
//! the linker has left, so that a plugin asks for the capabilities that its source uses and for no other.

use std::collections::BTreeSet;

use wasmparser::{Parser, Payload};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use super::{wasi_stub, wit};

/// Everything that a module may import beside WASI. What it does not import is not in the component.
const IMPORTS: [&str; 7] = [
    "log",
    "config",
    "query",
    "state",
    "metrics",
    "wasi:http/types@0.2.0",
    "wasi:http/outgoing-handler@0.2.0",
];
/// The stub's own world: what it prints goes to the host's log.
const STUB: &str = "world wasi-stub { import log; }\n";
/// The module's world.
const WORLD: &str = "linked-module";

/// The component of a plugin's module.
pub(super) fn component(mut module: Vec<u8>) -> Result<Vec<u8>, String> {
    let world = world(&exports(&module)?);
    let (resolve, package) = wit::parse(&[STUB, &world].concat())?;
    let described = |module: &mut Vec<u8>, name| {
        resolve
            .select_world(&[package], Some(name))
            .and_then(|world| embed_component_metadata(module, &resolve, world, StringEncoding::UTF8))
            .map_err(|problem| format!("{problem:#}"))
    };
    described(&mut module, WORLD)?;
    let mut stub = wasi_stub::module();
    described(&mut stub, "wasi-stub")?;
    let encoded = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.adapter(wasi_stub::NAME, &stub))
        .and_then(|mut encoder| encoder.encode());
    encoded.map_err(|problem| format!("{problem:#}"))
}

/// The interfaces that a module is to export. Where a linker keeps every export of a library (Go's does), the module
/// has more functions than it means: it imports a mark of [`wasi_stub`] for each interface that it does.
fn exports(module: &[u8]) -> Result<BTreeSet<String>, String> {
    let (mut there, mut meant) = (BTreeSet::new(), BTreeSet::new());
    for payload in Parser::new(0).parse_all(module) {
        match payload.map_err(|problem| problem.to_string())? {
            Payload::ExportSection(section) => {
                for export in section {
                    let name = export.map_err(|problem| problem.to_string())?.name;
                    there.extend(interface(name).map(str::to_owned));
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(|problem| problem.to_string())?;
                    let mark = import.name.strip_prefix(wasi_stub::MARK);
                    meant.extend(mark.filter(|_| import.module == wasi_stub::NAME).map(str::to_owned));
                }
            }
            _ => {}
        }
    }
    let mut exports = if meant.is_empty() { there } else { meant };
    // Whoever has none is told so.
    exports.insert("describe".to_owned());
    Ok(exports)
}

/// `sink` of `anabranch:plugin/sink@1.0.0#open`.
fn interface(export: &str) -> Option<&str> {
    let (interface, version) =
        export.split_once('#')?.0.strip_prefix("anabranch:plugin/")?.split_once('@')?;
    (version == "1.0.0").then_some(interface)
}

fn world(exports: &BTreeSet<String>) -> String {
    let imports = IMPORTS.iter().map(|name| format!("import {name}; "));
    let exports = exports.iter().map(|name| format!("export {name}; "));
    format!("world {WORLD} {{ {}}}\n", imports.chain(exports).collect::<String>())
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
        MemorySection, MemoryType, Module, TypeSection, ValType,
    };

    use super::*;
    use crate::{
        model::PluginKind,
        plugin::{
            artifact::{Shape, judge},
            grants::Capability,
        },
    };

    const TRANSFORM: &[&str] = &["describe@1.0.0#describe", "transform@1.0.0#transform"];
    const SINK: &[&str] = &["describe@1.0.0#describe", "sink@1.0.0#open", "sink@1.0.0#deliver"];
    const GENERATIONS: [&str; 3] =
        ["generations@1.0.0#begin", "generations@1.0.0#switch", "generations@1.0.0#abandon"];
    const WASI: &str = wasi_stub::NAME;

    /// A module as a compiler links it, with imports that it may call, and the functions of interfaces.
    fn linked(imported: &[(&str, &str)], exported: &[&str]) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], [ValType::I32]);
        types.ty().function([ValType::I32; 2], [ValType::I32]);
        types.ty().function([ValType::I32; 4], [ValType::I32]);
        types.ty().function([ValType::I32; 3], []);
        types.ty().function([], [ValType::I32]);
        let mut imports = ImportSection::new();
        for (module, name) in imported {
            let signature = match *module {
                WASI if name.starts_with("anabranch") => 4,
                WASI => 2,
                _ => 3,
            };
            imports.import(module, name, EntityType::Function(signature));
        }
        let first = u32::try_from(imported.len()).unwrap();
        let mut functions = FunctionSection::new();
        let mut exports = ExportSection::new();
        let mut code = CodeSection::new();
        let names = exported.iter().map(|name| {
            let signature = match name {
                _ if name.ends_with("describe") => 0,
                _ if GENERATIONS.contains(name) => 2,
                _ => 1,
            };
            (format!("anabranch:plugin/{name}"), signature)
        });
        let names = names.chain([("cabi_realloc".to_owned(), 2)]);
        for (at, (name, signature)) in (0..).zip(names) {
            functions.function(signature);
            exports.export(&name, ExportKind::Func, first + at);
            let mut function = Function::new([]);
            function.instructions().i32_const(0).end();
            code.function(&function);
        }
        let mut memories = MemorySection::new();
        let memory =
            MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None };
        memories.memory(memory);
        exports.export("memory", ExportKind::Memory, 0);
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&functions).section(&memories).section(&exports);
        module.section(&code);
        module.finish()
    }

    fn interface_function(export: &str) -> &str {
        export.split_once('#').unwrap().1
    }

    fn shape(imported: &[(&str, &str)], exported: &[&str]) -> Shape {
        judge(&component(linked(imported, exported)).unwrap()).unwrap()
    }

    #[test]
    fn wasi_is_answered_within() {
        let types = "anabranch:plugin/types@1.0.0";
        for (import, imports) in [
            (&[][..], &[types][..]),
            (&[(WASI, "fd_read")], &[types]),
            (&[(WASI, "fd_write")], &["anabranch:plugin/log@1.0.0", types]),
        ] {
            assert_eq!(shape(import, TRANSFORM).imports, imports, "{import:?}");
        }
    }

    #[test]
    fn what_a_module_imports_is_what_it_asks_for() {
        let query = ("anabranch:plugin/query@1.0.0", "query");
        assert_eq!(shape(&[query], TRANSFORM).capabilities, [Capability::Query].into());
        let delete = ("anabranch:plugin/state@1.0.0", "delete");
        let both = shape(&[query, delete], TRANSFORM).capabilities;
        assert_eq!(both, [Capability::Query, Capability::State].into());
        let count = ("anabranch:plugin/state@1.0.0", "set");
        // It has another signature than the interface says.
        let problem = component(linked(&[count], TRANSFORM)).unwrap_err();
        assert!(problem.contains("anabranch:plugin/state@1.0.0::set"), "{problem}");
        let problem = component(linked(&[("anabranch:plugin/mail@1.0.0", "send")], TRANSFORM)).unwrap_err();
        assert!(problem.contains("anabranch:plugin/mail@1.0.0"), "{problem}");
    }

    #[test]
    fn what_a_module_exports_is_what_it_is() {
        let sink = shape(&[], SINK);
        assert_eq!((sink.kind, sink.exports_optional("purge")), (PluginKind::Sink, false));
        let all = [SINK, &["purge@1.0.0#purge", "transform@1.0.0#transform"], &GENERATIONS].concat();
        let mark = |name| (WASI, name);
        for (marks, exports) in [
            (&[mark("anabranch_exports_transform")][..], &["transform"][..]),
            (&[mark("anabranch_exports_sink")], &["sink"]),
            (&[mark("anabranch_exports_sink"), mark("anabranch_exports_purge")], &["purge", "sink"]),
            (
                &[mark("anabranch_exports_sink"), mark("anabranch_exports_generations")],
                &["generations", "sink"],
            ),
        ] {
            let mut expected: Vec<_> =
                exports.iter().map(|name| format!("anabranch:plugin/{name}@1.0.0")).collect();
            expected.insert(0, "anabranch:plugin/describe@1.0.0".to_owned());
            assert_eq!(shape(marks, &all).exports, expected, "{marks:?}");
        }
        let problem = component(linked(&[mark("anabranch_exports_sink")], TRANSFORM)).unwrap_err();
        assert!(problem.contains("sink"), "{problem}");
        assert!(shape(&[], &[SINK, &GENERATIONS].concat()).exports_optional("generations"));
        for missing in GENERATIONS {
            let others = GENERATIONS.into_iter().filter(|name| *name != missing).collect::<Vec<_>>();
            let problem = component(linked(&[], &[SINK, &others].concat())).unwrap_err();
            let function = format!("function `{}`", interface_function(missing));
            assert!(problem.contains(&function), "{missing}: {problem}");
        }
    }

    #[test]
    fn what_wasi_has_not_is_named() {
        let problem = component(linked(&[(WASI, "fd_teleport")], TRANSFORM)).unwrap_err();
        assert!(problem.contains("fd_teleport"), "{problem}");
    }

    #[test]
    fn a_module_without_a_plugin_is_none() {
        let problem = component(b"\0asm\x01\0\0\0".to_vec()).unwrap_err();
        assert!(problem.contains("describe"), "{problem}");
    }
}
