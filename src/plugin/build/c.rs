//! C: a compiler for WASI links the project's sources and the SDK's into a module, which becomes a component.
//!
//! The compiler is clang of a wasi-sdk where `WASI_SDK_PATH` says so, else zig: of the virtual environment that is
//! active, of `.venv` in the project (PyPI has it as `ziglang`), or from `PATH`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

use super::{BuildError, BuildOptions, Made, demanded_version, embed, variable};

/// Where a project has its SDK and sources if it does not say.
const SDK: &str = "anabranch-sdk";
const SOURCES: &str = "src";
/// A stack that overflows runs into the end of memory, and is told.
const STACK: &str = "-Wl,-z,stack-size=262144";
const INSTALL: &str = "set WASI_SDK_PATH to the folder of a wasi-sdk (https://github.com/WebAssembly/wasi-sdk), or run \
                       `python3 -m venv .venv` and `.venv/bin/pip install ziglang==0.17.1` in the project";

/// `plugin.toml`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    name: String,
    version: String,
    /// The folder of the SDK, relative to the project.
    #[serde(default = "sdk")]
    sdk: PathBuf,
    /// Files to compile, if not all of `src`.
    sources: Option<Vec<PathBuf>>,
    /// For the compiler.
    #[serde(default)]
    flags: Vec<String>,
}

fn sdk() -> PathBuf {
    PathBuf::from(SDK)
}

/// Builds the project whose plugin.toml this is.
pub(super) fn build(options: &BuildOptions, manifest: &Path) -> Result<Made, BuildError> {
    let folder = manifest.parent().unwrap_or(manifest);
    let problem = |problem: String| BuildError::Manifest { path: manifest.to_owned(), problem };
    let text = fs::read_to_string(manifest).map_err(BuildError::io(manifest))?;
    let project: Manifest = toml::from_str(&text).map_err(|error| problem(error.to_string()))?;
    let sdk = folder.join(&project.sdk);
    if !sdk.join("anabranch.h").is_file() {
        let missing = project.sdk.join("anabranch.h");
        return Err(problem(format!("there is no {}; `sdk` names the SDK's folder", missing.display())));
    }
    let mut sources = match &project.sources {
        Some(named) => named.iter().map(|path| folder.join(path)).collect(),
        None => c_files(&folder.join(SOURCES)).unwrap_or_default(),
    };
    if sources.is_empty() {
        return Err(problem(format!("there is no {SOURCES}/*.c; `sources` names the files to compile")));
    }
    sources.extend(c_files(&sdk).map_err(BuildError::io(&sdk))?);
    let work = tempfile::Builder::new()
        .prefix("anabranch-build-")
        .tempdir()
        .map_err(BuildError::io(&std::env::temp_dir()))?;
    let output = work.path().join("module.wasm");
    let version = demanded_version(options).unwrap_or(project.version);
    let mut command = compiler(options, folder);
    command
        .args(["-mexec-model=reactor", "-std=gnu11", "-O2", "-s", "-Wall", "-Wextra", STACK])
        .arg(format!("-DAB_PLUGIN_NAME=\"{}\"", escaped(&project.name)))
        .arg(format!("-DAB_PLUGIN_VERSION=\"{}\"", escaped(&version)))
        .arg(format!("-ffile-prefix-map={}=.", folder.display()))
        .arg("-I")
        .arg(&sdk)
        .args(&project.flags)
        .args(&sources)
        .arg("-o")
        .arg(&output)
        // Flags may name folders of the project.
        .current_dir(folder);
    run(options, &mut command)?;
    let module = fs::read(&output).map_err(BuildError::io(&output))?;
    let component = embed::component(module)
        .map_err(|problem| BuildError::NoComponent { project: options.project.clone(), problem })?;
    Ok(Made { name: project.name, component })
}

/// As within a string of C.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn c_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    Ok(files)
}

fn compiler(options: &BuildOptions, folder: &Path) -> Command {
    let given = |name| variable(options, name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(wasi) = given("WASI_SDK_PATH") {
        let mut clang = Command::new(wasi.join("bin/clang"));
        // The older name of the target, where that is what it has (also Debian's, with `/usr`).
        let older = ["share/wasi-sysroot/lib/wasm32-wasi", "lib/wasm32-wasi"];
        let current = wasi.join("share/wasi-sysroot/lib/wasm32-wasip1").is_dir()
            || !older.iter().any(|path| wasi.join(path).is_dir());
        clang.arg(if current { "--target=wasm32-wasip1" } else { "--target=wasm32-wasi" });
        clang.arg("-Wl,--stack-first");
        return clang;
    }
    let environments = given("VIRTUAL_ENV").into_iter().chain([folder.join(".venv")]);
    let mut programs = environments.map(|environment| environment.join("bin/python-zig"));
    let program = programs.find(|program| program.is_file()).unwrap_or_else(|| PathBuf::from("zig"));
    let mut zig = Command::new(program);
    // Its stack comes first by itself.
    zig.args(["cc", "-target", "wasm32-wasi"]);
    zig
}

fn run(options: &BuildOptions, command: &mut Command) -> Result<(), BuildError> {
    command.envs(options.environment.iter().map(|(key, value)| (key, value)));
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|problem| BuildError::Program { program, problem, install: INSTALL })?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Failed { tool: "the C compiler", project: options.project.clone() })
}
