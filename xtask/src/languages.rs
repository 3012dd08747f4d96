//! The tests that SDKs and samples in JavaScript, Python, C and Go have in their own languages: natively, without
//! WebAssembly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use testkit::command::run;
use testkit::guests::{Language, Tools, language_tools};
use testkit::paths::{repository, target_dir};

/// Runs the tests of all projects in a language; its text adds them up.
pub(crate) fn test(language: Language) -> Result<String> {
    let Some(tools) = language_tools(language)? else { return Ok("LEFT OUT".to_owned()) };
    let mut sums = Vec::new();
    for project in projects(language)? {
        let (mut command, counted) = match language {
            Language::JavaScript => (node(&project)?, "# pass "),
            Language::Python => (python(&project), "Ran "),
            Language::C => (make(&project)?, ""),
            Language::Go => (go(&project, &tools), "passed "),
            Language::Rust => bail!("Rust has cargo"),
        };
        let printed = run(command.current_dir(&project))?;
        // In C each test is a program, which counts its own.
        let counts = printed
            .lines()
            .filter_map(|line| line.strip_prefix(counted)?.split(' ').next()?.parse::<u32>().ok());
        let count: u32 = counts.sum();
        // A folder whose tests are not found would pass for ever.
        if count == 0 {
            bail!("{} has no tests", project.display());
        }
        let name = project.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        sums.push(format!("{name} {count} passed"));
    }
    Ok(sums.join(", "))
}

/// Folders of `plugins/` with tests in a language.
fn projects(language: Language) -> Result<Vec<PathBuf>> {
    let has_tests = |path: &Path| match language {
        // An SDK in C has no manifest.
        Language::C => path.join("Makefile").is_file(),
        Language::Go => path.join("go.mod").is_file(),
        Language::JavaScript => path.join("test").is_dir() && Language::of(path) == Some(language),
        _ => path.join("tests").is_dir() && Language::of(path) == Some(language),
    };
    let entries = fs::read_dir(repository().join("plugins"))?;
    let mut projects = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    projects.retain(|path| has_tests(path));
    projects.sort();
    Ok(projects)
}

fn node(project: &Path) -> Result<Command> {
    let mut files: Vec<_> =
        fs::read_dir(project.join("test"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut command = Command::new("node");
    command.args(["--test", "--test-reporter", "tap"]).args(files);
    Ok(command)
}

/// It lists each test; their number comes last.
fn go(project: &Path, tools: &Tools) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", GO_TEST]).current_dir(project);
    tools.apply(&mut command);
    command
}

/// Tests that end it are told by its exit code, which a pipe would hide.
const GO_TEST: &str = "said=$(\"$VIRTUAL_ENV/bin/go\" test -v ./... 2>&1) || { echo \"$said\"; exit 1; }; \
                       echo \"passed $(echo \"$said\" | grep -c '^--- PASS')\"";

/// Built anew each time, elsewhere than in the sources.
fn make(project: &Path) -> Result<Command> {
    let name = project.file_name().context("a project has a name")?;
    let place = target_dir().join("guests/native-c").join(name);
    std::fs::create_dir_all(&place)?;
    let mut command = Command::new("make");
    command.args(["--always-make", "test"]).arg(format!("BUILD={}", place.display()));
    Ok(command)
}

fn python(project: &Path) -> Command {
    let paths = [project.to_owned(), repository().join("plugins/sdk-python")];
    let paths = paths.map(|path| path.to_string_lossy().into_owned()).join(":");
    let mut command = Command::new("/bin/sh");
    // unittest tells its count on standard error.
    command.args(["-c", "exec python3 -m unittest discover tests 2>&1"]).env("PYTHONPATH", paths);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
