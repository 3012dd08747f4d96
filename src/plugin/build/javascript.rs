//! JavaScript and TypeScript: esbuild makes one module of the project and the SDK, componentize-js a component of it.
//!
//! Both tools are the project's own (its package.json pins them), and `javascript.mjs` calls them within Node. The
//! engine's optional features are switched off, so that the component imports no WASI by itself; what the bundle still
//! imports once esbuild has dropped what is not used becomes its world, and so what it asks for.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

use super::{BuildError, BuildOptions, Made, demanded_version, wit};

/// Runs within Node.
const DRIVER: &str = include_str!("javascript.mjs");
/// Where the plugin is if package.json does not say.
const ENTRIES: [&str; 2] = ["src/index.js", "src/index.ts"];

#[derive(Deserialize)]
struct Package {
    name: Option<String>,
    version: Option<String>,
    main: Option<String>,
    #[serde(default)]
    anabranch: Settings,
}

/// What package.json says to `plugin build`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The functions of the bundle are compiled to WebAssembly (by weval), not interpreted.
    #[serde(default)]
    aot: bool,
}

/// What the driver is told.
#[derive(Clone, Serialize)]
struct Task<'a> {
    step: Step,
    /// The module that exports `plugin`, relative to the project.
    entry: &'a str,
    name: &'a str,
    version: Option<&'a str>,
    demanded: Option<String>,
    wit: PathBuf,
    world: &'a str,
    /// The name of WASI in the meantime.
    stand_in: &'a str,
    aot: bool,
    /// A folder for what comes between.
    work: &'a Path,
    output: PathBuf,
}

/// The world is made between them.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Prepare,
    Componentize,
}

/// What it answers, if it gets so far.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Prepared(Prepared),
    Built,
    /// Tools that are not there or too old, or what is wrong with the project: what to do.
    Problem(String),
}

/// The bundle.
#[derive(Deserialize)]
struct Prepared {
    /// Interfaces beside `describe`.
    exports: Vec<String>,
    imports: Vec<Import>,
}

#[derive(Deserialize)]
struct Import {
    /// `anabranch:plugin/query@1.0.0`
    path: String,
    /// The first file that has it.
    from: Option<String>,
}

/// Builds the project whose package.json this is.
pub(super) fn build(options: &BuildOptions, manifest: &Path) -> Result<Made, BuildError> {
    let project = manifest.parent().unwrap_or(manifest);
    let (name, package) = read(manifest)?;
    let entry = entry(manifest, project, &package)?;
    let work = tempfile::Builder::new()
        .prefix("anabranch-build-")
        .tempdir()
        .map_err(BuildError::io(&std::env::temp_dir()))?;
    let interface = work.path().join("wit");
    let output = work.path().join("component.wasm");
    let task = Task {
        step: Step::Prepare,
        entry: &entry,
        name: &name,
        version: package.version.as_deref(),
        demanded: demanded_version(options),
        wit: interface.clone(),
        world: wit::WORLD,
        stand_in: wit::STAND_IN,
        aot: package.anabranch.aot,
        work: work.path(),
        output: output.clone(),
    };
    let failed = |tool| BuildError::Failed { tool, project: options.project.clone() };
    let Some(Answer::Prepared(prepared)) = run_node(options, project, &task)? else {
        return Err(failed("esbuild"));
    };
    let world = world(options, prepared)?;
    world.write(&interface).map_err(BuildError::io(&interface))?;
    let Some(Answer::Built) = run_node(options, project, &Task { step: Step::Componentize, ..task })? else {
        return Err(failed("componentize-js"));
    };
    let component = fs::read(&output).map_err(BuildError::io(&output))?;
    let component = wit::renamed(component)
        .map_err(|problem| BuildError::NoComponent { project: options.project.clone(), problem })?;
    // The scope of `@acme/name` is no part of a file's name.
    let file = name.rsplit('/').next().unwrap_or(&name).to_owned();
    Ok(Made { name: file, component })
}

fn read(manifest: &Path) -> Result<(String, Package), BuildError> {
    let problem = |problem: String| BuildError::Manifest { path: manifest.to_owned(), problem };
    let text = fs::read_to_string(manifest).map_err(BuildError::io(manifest))?;
    let mut package: Package = serde_json::from_str(&text).map_err(|error| problem(error.to_string()))?;
    let name = package.name.take().ok_or_else(|| problem("it has no `name`, the plugin's".to_owned()))?;
    Ok((name, package))
}

fn entry(manifest: &Path, project: &Path, package: &Package) -> Result<String, BuildError> {
    let known = |entry: &&str| project.join(entry).is_file();
    let found = match &package.main {
        Some(main) => known(&main.as_str()).then(|| main.clone()),
        None => ENTRIES.iter().copied().find(known).map(str::to_owned),
    };
    found.ok_or_else(|| {
        let wanted = package.main.clone().unwrap_or_else(|| ENTRIES.join(" or "));
        let problem = format!("there is no {wanted}, the module that exports `plugin`; `main` names it");
        BuildError::Manifest { path: manifest.to_owned(), problem }
    })
}

/// The world of a bundle: what it exports, and what it imports.
fn world(options: &BuildOptions, prepared: Prepared) -> Result<wit::World, BuildError> {
    let mut world = wit::World { exports: prepared.exports, ..wit::World::default() };
    for Import { path, from } in prepared.imports {
        let path = wit::real_name(&path);
        match wit::capability(&path) {
            Ok(capability) => world.capabilities.extend(capability),
            Err(()) => {
                let from = from.unwrap_or_else(|| "the bundle".to_owned());
                let problem = format!(
                    "{from} imports {path}, which no plugin gets: use `http`, `metrics`, `query` and `state` of the SDK"
                );
                return Err(BuildError::Tools { project: options.project.clone(), problem });
            }
        }
    }
    Ok(world)
}

/// Runs the driver; none if it failed and said why, on standard error.
fn run_node(options: &BuildOptions, project: &Path, task: &Task<'_>) -> Result<Option<Answer>, BuildError> {
    let Ok(task) = serde_json::to_string(task) else { return Ok(None) };
    let output = Command::new("node")
        // A module without a file finds the project's own packages.
        .args(["--input-type=module", "--eval", DRIVER, "--", &task])
        .current_dir(project)
        .envs(options.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|problem| BuildError::Program {
            program: "node".to_owned(),
            problem,
            install: "install Node 20 or newer from https://nodejs.org",
        })?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    match stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()) {
        Some(Answer::Problem(problem)) => {
            Err(BuildError::Tools { project: options.project.clone(), problem })
        }
        answer => Ok(answer.filter(|_| output.status.success())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_nobody_knows_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("package.json");
        let read = |text: &str| {
            fs::write(&manifest, text).unwrap();
            read(&manifest).map(|(_, package)| package.anabranch.aot)
        };
        assert!(!read(r#"{"name": "a"}"#).unwrap());
        assert!(read(r#"{"name": "a", "anabranch": {"aot": true}}"#).unwrap());
        let refused = read(r#"{"name": "a", "anabranch": {"aott": true}}"#).unwrap_err().to_string();
        assert!(refused.contains("package.json") && refused.contains("`aott`"), "{refused}");
    }
}
