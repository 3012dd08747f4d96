//! Rust: cargo links for wasm32-unknown-unknown, and what comes out becomes a component.
//!
//! That is a core module with the interface in a custom section, or a component where the linker is
//! `wasm-component-ld`. Honours `RUSTC` and all of cargo's own settings.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

use super::{BuildError, BuildOptions, Made, variable};
use crate::plugin::artifact::{Refusal, judge};

const TARGET: &str = "wasm32-unknown-unknown";
/// What to do where cargo or rustc is missing.
const INSTALL: &str = "install Rust from https://rustup.rs";

/// Builds the crate whose manifest this is.
pub(super) fn build(options: &BuildOptions, manifest: &Path) -> Result<Made, BuildError> {
    let toolchain = Toolchain::find(options)?;
    let linked = run_cargo(options, manifest, &toolchain)?;
    let module =
        fs::read(&linked.path).map_err(|problem| BuildError::Io { path: linked.path.clone(), problem })?;
    let component = componentize(&module)
        .map_err(|problem| BuildError::NoComponent { project: options.project.clone(), problem })?;
    Ok(Made { name: linked.package, component })
}

/// A component of a linked module; a component as it is.
fn componentize(module: &[u8]) -> Result<Vec<u8>, String> {
    if judge(module) != Err(Refusal::CoreModule) {
        return Ok(module.to_vec());
    }
    let encoder = wit_component::ComponentEncoder::default().validate(true).module(module);
    encoder.and_then(|mut encoder| encoder.encode()).map_err(|error| format!("{error:#}"))
}

fn missing(program: &str, problem: std::io::Error) -> BuildError {
    BuildError::Program { program: program.to_owned(), problem, install: INSTALL }
}

/// The compiler that cargo will use, and a linker for it.
struct Toolchain {
    linker: Option<PathBuf>,
}

fn output(program: &str, arguments: &[&str]) -> Result<String, BuildError> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::null())
        .output()
        .map_err(|problem| missing(program, problem))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A compiler's own linker for WebAssembly, where it came with one.
fn own_linker(rustc: &str) -> Result<Option<PathBuf>, BuildError> {
    let version = output(rustc, &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default().to_owned();
    let sysroot = PathBuf::from(output(rustc, &["--print", "sysroot"])?);
    let linker = sysroot.join("lib/rustlib").join(host).join("bin/rust-lld");
    Ok(linker.is_file().then_some(linker))
}

impl Toolchain {
    fn find(options: &BuildOptions) -> Result<Self, BuildError> {
        let rustc = variable(options, "RUSTC").unwrap_or_else(|| "rustc".into());
        let rustc = rustc.to_string_lossy().into_owned();
        let libraries = PathBuf::from(output(&rustc, &["--print", "target-libdir", "--target", TARGET])?);
        let installed = fs::read_dir(&libraries).is_ok_and(|mut files| files.next().is_some());
        if !installed {
            return Err(BuildError::NoTarget(TARGET));
        }
        // A distribution's compiler may come without the linker; the one of the ordinary toolchain does as well.
        let named = env::var_os("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER").is_some();
        let linker = match own_linker(&rustc)? {
            None if !named => own_linker("rustc")?,
            _ => None,
        };
        Ok(Self { linker })
    }
}

/// What cargo linked.
struct Linked {
    package: String,
    path: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    target: Target,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Default, Deserialize)]
struct Target {
    name: String,
    crate_types: Vec<String>,
}

fn run_cargo(options: &BuildOptions, manifest: &Path, toolchain: &Toolchain) -> Result<Linked, BuildError> {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(&cargo);
    command
        .args(["build", "--release", "--target", TARGET, "--message-format", "json-render-diagnostics"])
        .arg("--manifest-path")
        .arg(manifest)
        .args(options.features.iter().flat_map(|feature| ["--features", feature]))
        .envs(options.environment.iter().map(|(key, value)| (key, value)))
        .stderr(Stdio::inherit());
    if let Some(linker) = &toolchain.linker {
        command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    let output = command.output().map_err(|problem| missing(&cargo, problem))?;
    if !output.status.success() {
        return Err(BuildError::Failed { tool: "cargo", project: options.project.clone() });
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let messages = stdout.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages
        .filter(|message| message.reason == "compiler-artifact" && message.manifest_path == manifest)
        .filter(|message| message.target.crate_types.iter().any(|kind| kind == "cdylib"))
        .find_map(|message| {
            let path = message.filenames.iter().find(|path| path.extension().is_some_and(|e| e == "wasm"))?;
            Some(Linked { package: package_name(&message), path: path.clone() })
        })
        .ok_or_else(|| BuildError::NoLibrary(options.project.clone()))
}

/// The package's name, of a package id such as `path+file:///a/b#name@1.0.0` or `path+file:///a/name#1.0.0`.
fn package_name(message: &Message) -> String {
    let (path, fragment) = message.package_id.rsplit_once('#').unwrap_or((&message.package_id, ""));
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or_default(),
    };
    if name.is_empty() { message.target.name.replace('_', "-") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_ids_name_packages() {
        for (id, name) in [
            ("path+file:///a/product-search#1.0.0", "product-search"),
            ("path+file:///a/b#product-search@1.0.0", "product-search"),
            ("", "my-plugin"),
        ] {
            let message = Message {
                reason: String::new(),
                manifest_path: PathBuf::new(),
                package_id: id.to_owned(),
                target: Target { name: "my_plugin".to_owned(), crate_types: vec![] },
                filenames: vec![],
            };
            assert_eq!(package_name(&message), name, "{id}");
        }
    }

    #[test]
    fn a_module_without_an_interface_becomes_no_plugin() {
        let component = componentize(b"\0asm\x01\0\0\0").unwrap();
        assert_eq!(judge(&component), Err(Refusal::OtherInterface { exports: vec![] }));
    }
}
