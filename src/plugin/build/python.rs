//! Python: componentize-py makes a component of the project's module, the SDK and an interpreter.
//!
//! The tool is the project's own (its requirements.txt pins it), from the virtual environment that is active, from
//! `.venv` in the project, or from `PATH`. Before, `python.py` loads the module natively: which of the SDK's modules that
//! loads is what the plugin asks for, and what its `plugin` is, it exports; the world is made of that. WASI is stubbed, so
//! that the component imports none of it by itself.

use std::{
    borrow::Cow,
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::Deserialize;

use crate::plugin::grants::Capability;

use super::{BuildError, BuildOptions, Made, demanded_version, variable, wit};

/// The module that componentize-py is given: it exports the SDK's classes for the project's plugin.
const MODULE: &str = "anabranch_component";
const TOOL: &str = "componentize-py";
const INSTALL: &str = "run `python3 -m venv .venv` and `.venv/bin/pip install -r requirements.txt` in the project, \
                       whose requirements.txt names componentize-py (`anabranch plugin new` writes one)";

/// Looks at the module.
const LOOK: &str = include_str!("python.py");
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Looked(Looked),
    Problem(String),
}

/// What the module is.
#[derive(Deserialize)]
struct Looked {
    /// Interfaces beside `describe`.
    exports: Vec<String>,
    /// The capabilities whose modules it loads.
    uses: Vec<String>,
}

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
    let tool = tool(options, folder);
    let looked = look(options, &tool, folder, &module, &sources)?;
    let capabilities = looked.uses.iter().filter_map(|name| Capability::named(name)).collect();
    let world = wit::World { exports: looked.exports, capabilities };
    let interface = work.path().join("wit");
    world.write(&interface).map_err(BuildError::io(&interface))?;
    let main = work.path().join(format!("{MODULE}.py"));
    let demanded = demanded_version(options);
    fs::write(&main, text(&project, &module, demanded, &looked.uses)).map_err(BuildError::io(&main))?;
    let output = work.path().join("component.wasm");
    let mut command = Command::new(&tool);
    command.arg("-d").arg(&interface).args(["-w", wit::WORLD]);
    // Its stub takes what is called WASI for itself; and two interfaces are called `types`.
    command.args(["--import-interface-name", "anabranch:plugin/types@1.0.0=plugin_types"]);
    if world.capabilities.contains(&Capability::Http) {
        command.args(["--import-interface-name", &format!("{}:http/types@0.2.0=wasi_http", wit::STAND_IN)]);
    }
    command
        .args(["componentize", "--stub-wasi"])
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
    let component = wit::renamed(component)
        .map_err(|problem| BuildError::NoComponent { project: options.project.clone(), problem })?;
    Ok(Made { name: project.name, component })
}

/// Loads the project's module natively, and says what it is.
fn look(
    options: &BuildOptions,
    tool: &Path,
    folder: &Path,
    module: &str,
    sources: &[PathBuf],
) -> Result<Looked, BuildError> {
    let python = interpreter(options, tool);
    let output = Command::new(&python)
        // Nothing is written beside the project's sources.
        .args(["-B", "-c", LOOK, module])
        .args(sources)
        .current_dir(folder)
        .envs(options.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|problem| BuildError::Program {
            program: python.display().to_string(),
            problem,
            install: INSTALL,
        })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    match stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        Some(Answer::Looked(looked)) if output.status.success() => Ok(looked),
        Some(Answer::Problem(problem)) => {
            Err(BuildError::Tools { project: options.project.clone(), problem })
        }
        _ => Err(BuildError::Failed { tool: "python3", project: options.project.clone() }),
    }
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

fn text(project: &Project, module: &str, demanded: Option<String>, uses: &[String]) -> String {
    // Strings of JSON are strings of Python.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let version = demanded.as_deref().map_or_else(|| "None".to_owned(), quoted);
    format!(
        "import {module} as project\nfrom anabranch_sdk.component import component\n\n\
         globals().update(component(project, name={name}, version={own}, demanded={version}, uses={uses}))\n",
        name = quoted(&project.name),
        own = quoted(project.version.as_deref().unwrap_or_default()),
        uses = serde_json::Value::from(uses),
    )
}

/// The program: of the environment that is active, of the project's own, or what `PATH` finds.
fn tool(options: &BuildOptions, folder: &Path) -> PathBuf {
    let active = variable(options, "VIRTUAL_ENV").filter(|value| !value.is_empty());
    let environments = active.map(PathBuf::from).into_iter().chain([folder.join(".venv")]);
    let mut programs = environments.map(|environment| environment.join("bin").join(TOOL));
    programs.find(|program| program.is_file()).unwrap_or_else(|| PathBuf::from(TOOL))
}

/// The interpreter beside the tool, which has what the project has installed; else what `PATH` finds.
fn interpreter(options: &BuildOptions, tool: &Path) -> PathBuf {
    let found = if tool.is_absolute() {
        Some(Cow::Borrowed(tool))
    } else {
        let path = variable(options, "PATH").unwrap_or_default();
        let mut places = env::split_paths(&path).map(|place| place.join(tool));
        places.find(|place| place.is_file()).map(Cow::Owned)
    };
    let beside = found.and_then(|tool| {
        let real = tool.canonicalize().ok()?;
        // Where the environment links to it, and where it is.
        [tool.parent()?, real.parent()?]
            .map(|place| place.join("python3"))
            .into_iter()
            .find(|python| python.is_file())
    });
    beside.unwrap_or_else(|| PathBuf::from("python3"))
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
