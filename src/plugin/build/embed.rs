//! A component of a core module that a compiler for WASI linked (C, Go): the interface is described in it, and what it
//! imports of WASI is answered within, by [`wasi_stub`], because a host grants none.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use super::{wasi_stub, wit};

/// The stub's own world: what it prints goes to the host's log.
const STUB: &str = "world wasi-stub { import log; }\n";

/// The component of a transform's module.
pub(super) fn component(mut module: Vec<u8>) -> Result<Vec<u8>, String> {
    let (resolve, package) = wit::parse(STUB)?;
    let world =
        |name| resolve.select_world(&[package], Some(name)).map_err(|problem| format!("{name}: {problem:#}"));
    let described = |module: &mut Vec<u8>, world| {
        embed_component_metadata(module, &resolve, world, StringEncoding::UTF8)
            .map_err(|problem| format!("{problem:#}"))
    };
    described(&mut module, world("transform-plugin")?)?;
    let mut stub = wasi_stub::module();
    described(&mut stub, world("wasi-stub")?)?;
    let encoded = ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.adapter(wasi_stub::NAME, &stub))
        .and_then(|mut encoder| encoder.encode());
    encoded.map_err(|problem| format!("{problem:#}"))
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
        MemorySection, MemoryType, Module, TypeSection, ValType,
    };

    use super::*;
    use crate::plugin::artifact::judge;

    /// A module as a compiler links it, which calls a function of WASI.
    fn linked(import: Option<&str>) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], [ValType::I32]);
        types.ty().function([ValType::I32; 2], [ValType::I32]);
        types.ty().function([ValType::I32; 4], [ValType::I32]);
        let mut imports = ImportSection::new();
        if let Some(name) = import {
            imports.import(wasi_stub::NAME, name, EntityType::Function(2));
        }
        let first = u32::from(import.is_some());
        let mut functions = FunctionSection::new();
        let mut exports = ExportSection::new();
        let mut code = CodeSection::new();
        let names = [
            ("anabranch:plugin/describe@1.0.0#describe", 0),
            ("anabranch:plugin/transform@1.0.0#transform", 1),
            ("cabi_realloc", 2),
        ];
        for (at, (name, signature)) in (0..).zip(names) {
            functions.function(signature);
            exports.export(name, ExportKind::Func, first + at);
            let mut function = Function::new([]);
            if import.is_some() {
                function.instructions().i32_const(1).i32_const(0).i32_const(0).i32_const(8).call(0).drop();
            }
            function.instructions().i32_const(0).end();
            code.function(&function);
        }
        let mut memories = MemorySection::new();
        let memory =
            MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None };
        memories.memory(memory);
        exports.export("memory", ExportKind::Memory, 0);
        let mut module = Module::new();
        module.section(&types);
        if import.is_some() {
            module.section(&imports);
        }
        module.section(&functions).section(&memories).section(&exports).section(&code);
        module.finish()
    }

    #[test]
    fn wasi_is_answered_within() {
        let types = "anabranch:plugin/types@1.0.0";
        for (import, imports) in [
            (None, &[types][..]),
            (Some("fd_read"), &[types]),
            (Some("fd_write"), &["anabranch:plugin/log@1.0.0", types]),
        ] {
            let shape = judge(&component(linked(import)).unwrap()).unwrap();
            assert_eq!(shape.imports, imports, "{import:?}");
        }
    }

    #[test]
    fn what_wasi_has_not_is_named() {
        let problem = component(linked(Some("fd_teleport"))).unwrap_err();
        assert!(problem.contains("fd_teleport"), "{problem}");
    }

    #[test]
    fn a_module_without_a_transform_is_none() {
        let problem = component(b"\0asm\x01\0\0\0".to_vec()).unwrap_err();
        assert!(problem.contains("describe"), "{problem}");
    }
}
