//! Python: componentize-py makes a component of the project's module, the SDK and an interpreter.
//!
//! The tool is the project's own (its requirements.txt pins it), from the virtual environment that is active, from
//! `.venv` in the project, or from `PATH`. WASI is stubbed, so that the component imports none.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

use super::{BuildError, BuildOptions, Made, demanded_version, variable, wit};

/// The module that componentize-py is given: it exports the SDK's classes for the project's plugin.
const MODULE: &str = "anabranch_component";
const TOOL: &str = "componentize-py";
const INSTALL: &str = "run `python3 -m venv .venv` and `.venv/bin/pip install -r requirements.txt` in the project, \
                       whose requirements.txt names componentize-py (`anabranch plugin new` writes one)";

#[derive(Deserialize)]
struct Manifest {
    project: Option<Project>,
    #[serde(default)]
    tool: Tools,
}

#[derive(Deserialize)]
struct Project {
    name: String,
    version: Option<String>,
}

#[derive(Default, Deserialize)]
struct Tools {
    anabranch: Option<Settings>,
}

/// `[tool.anabranch]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The module that has `plugin`, if it is not named as the project.
    module: Option<String>,
    /// Folders that modules are looked for in, too, relative to the project.
    #[serde(default)]
    path: Vec<PathBuf>,
}

/// Builds the project whose pyproject.toml this is.
pub(super) fn build(options: &BuildOptions, manifest: &Path) -> Result<Made, BuildError> {
    let folder = manifest.parent().unwrap_or(manifest);
    let (project, module, further) = read(manifest)?;
    let sources = sources(manifest, folder, &module, &further)?;
    let work = tempfile::Builder::new()
        .prefix("anabranch-build-")
        .tempdir()
        .map_err(BuildError::io(&env::temp_dir()))?;
    let interface = work.path().join("wit");
    let world = wit::World { exports: vec!["transform".to_owned()], ..wit::World::default() };
    world.write(&interface, "wasi").map_err(BuildError::io(&interface))?;
    let main = work.path().join(format!("{MODULE}.py"));
    fs::write(&main, text(&project, &module, demanded_version(options))).map_err(BuildError::io(&main))?;
    let output = work.path().join("component.wasm");
    let mut command = Command::new(tool(options, folder));
    command
        .arg("-d")
        .arg(&interface)
        .args(["-w", wit::WORLD, "componentize", "--stub-wasi"])
        .args(sources.iter().flat_map(|path| [OsStr::new("-p"), path.as_os_str()]))
        .arg("-p")
        .arg(work.path())
        .arg(MODULE)
        .arg("-o")
        .arg(&output)
        .current_dir(work.path())
        .envs(options.environment.iter().map(|(key, value)| (key, value)));
    run(options, &mut command)?;
    let component = fs::read(&output).map_err(BuildError::io(&output))?;
    Ok(Made { name: project.name, component })
}

fn read(manifest: &Path) -> Result<(Project, String, Vec<PathBuf>), BuildError> {
    let problem = |problem: String| BuildError::Manifest { path: manifest.to_owned(), problem };
    let text = fs::read_to_string(manifest).map_err(BuildError::io(manifest))?;
    let read: Manifest = toml::from_str(&text).map_err(|error| problem(error.to_string()))?;
    let project =
        read.project.ok_or_else(|| problem("it has no `[project]` with `name` and `version`".to_owned()))?;
    if project.version.is_none() {
        return Err(problem("its `[project]` has no `version`, the plugin's".to_owned()));
    }
    let (named, path) = read.tool.anabranch.map_or((None, Vec::new()), |own| (own.module, own.path));
    let module = named.unwrap_or_else(|| project.name.replace('-', "_"));
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    if !module.split('.').all(part) {
        return Err(problem(format!("`{module}` is no name of a Python module")));
    }
    Ok((project, module, path))
}

/// The folders that modules are looked for in: `src`, the project, and what its settings name.
fn sources(
    manifest: &Path,
    folder: &Path,
    module: &str,
    further: &[PathBuf],
) -> Result<Vec<PathBuf>, BuildError> {
    let path = module.replace('.', "/");
    let has = |root: &PathBuf| {
        root.join(format!("{path}.py")).is_file() || root.join(&path).join("__init__.py").is_file()
    };
    let mut roots = vec![folder.join("src"), folder.to_owned()];
    if !roots.iter().any(has) {
        let problem = format!(
            "there is no {path}.py, the module that has `plugin`; `module` in `[tool.anabranch]` names another"
        );
        return Err(BuildError::Manifest { path: manifest.to_owned(), problem });
    }
    roots.extend(further.iter().map(|path| folder.join(path)));
    if let Some(missing) = roots[2..].iter().find(|root| !root.is_dir()) {
        let problem = format!("`path` in `[tool.anabranch]`: there is no folder {}", missing.display());
        return Err(BuildError::Manifest { path: manifest.to_owned(), problem });
    }
    roots.retain(|root| root.is_dir());
    Ok(roots)
}

fn text(project: &Project, module: &str, demanded: Option<String>) -> String {
    // Strings of JSON are strings of Python.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let version = demanded.as_deref().map_or_else(|| "None".to_owned(), quoted);
    format!(
        "import {module} as project\nfrom anabranch_sdk.component import component\n\n\
         Describe, Transform = component(project, name={name}, version={own}, demanded={version})\n",
        name = quoted(&project.name),
        own = quoted(project.version.as_deref().unwrap_or_default()),
    )
}

/// The program: of the environment that is active, of the project's own, or what `PATH` finds.
fn tool(options: &BuildOptions, folder: &Path) -> PathBuf {
    let active = variable(options, "VIRTUAL_ENV").filter(|value| !value.is_empty());
    let environments = active.map(PathBuf::from).into_iter().chain([folder.join(".venv")]);
    let mut programs = environments.map(|environment| environment.join("bin").join(TOOL));
    programs.find(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(TOOL))
}

fn run(options: &BuildOptions, command: &mut Command) -> Result<(), BuildError> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|problem| BuildError::Program { program: TOOL.to_owned(), problem, install: INSTALL })?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildError::Failed { tool: TOOL, project: options.project.clone() })
}
