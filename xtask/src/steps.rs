//! Steps of a command: a line when one begins, a line when it ends, a summary at the end.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit::paths::repository;

/// The guests' workspace.
pub(crate) const GUESTS: &str = "plugins/Cargo.toml";

/// What came of the steps so far.
#[derive(Debug)]
pub(crate) struct Steps {
    started: Instant,
    done: Vec<Done>,
}

#[derive(Debug)]
struct Done {
    name: String,
    took: Duration,
    result: Result<String>,
}

impl Steps {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), done: Vec::new() }
    }

    /// Does a step; its text says what came of it. A failure is kept for the summary, and the command goes on.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<String>) -> bool {
        println!("== {name}");
        let started = Instant::now();
        let result = work();
        let took = started.elapsed();
        match &result {
            Ok(text) => println!("   ok, {} ({})", text, seconds(took)),
            Err(error) => println!("   FAILED ({}): {error:#}", seconds(took)),
        }
        let ok = result.is_ok();
        self.done.push(Done { name: name.to_owned(), took, result });
        ok
    }

    /// The closing summary and the exit code.
    pub(crate) fn finish(self, command: &str) -> ExitCode {
        println!("\n== cargo xtask {command}: summary");
        for Done { name, took, result } in &self.done {
            match result {
                Ok(text) => println!("   ok      {name:<34} {:>9}  {text}", seconds(*took)),
                Err(_) => println!("   FAILED  {name:<34} {:>9}", seconds(*took)),
            }
        }
        let failed = self.done.iter().filter(|step| step.result.is_err()).count();
        let took = seconds(self.started.elapsed());
        if failed > 0 {
            println!("{failed} of {} steps failed after {took}", self.done.len());
            return ExitCode::FAILURE;
        }
        println!("all {} steps passed in {took}", self.done.len());
        ExitCode::SUCCESS
    }
}

fn seconds(took: Duration) -> String {
    match took.as_secs() {
        0..60 => format!("{:.1} s", took.as_secs_f64()),
        whole => format!("{} min {:02} s", whole / 60, whole % 60),
    }
}

/// The cargo that runs this program, in the repository. Without what `cargo run` says of the package of this
/// program: build scripts that ask for it would run, and all that depends on them be compiled, once for this
/// program's calls of cargo and once for those of its user, in turn.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command =
        Command::new(std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from));
    command.args(arguments).current_dir(repository());
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

fn is_of_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Runs a command whose output goes to the terminal.
pub(crate) fn pass_through(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("`{shown}`: {status}");
    }
    Ok("no complaints".to_owned())
}

/// Runs `cargo test`, shows all of its output and adds up its closing lines.
pub(crate) fn test(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {shown}"))?;
    let mut sums = TestSums::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            sums.add(&line);
            println!("{line}");
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{shown}`: {status}; {sums}");
    }
    Ok(sums.to_string())
}

/// As [`test()`], beside other commands: the output is shown if it fails, as part of the error.
pub(crate) fn test_aside(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", shown(command)))?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut sums = TestSums::default();
    said.lines().for_each(|line| sums.add(line));
    if !output.status.success() {
        bail!("`{}`: {}; {sums}\n{said}", shown(command), output.status);
    }
    Ok(sums.to_string())
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    words.fold("cargo".to_owned(), |shown, word| shown + " " + &word)
}

/// The sums of `test result:` lines.
#[derive(Debug, Default, PartialEq, Eq)]
struct TestSums {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl TestSums {
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(word)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match word {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for TestSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_test_results() {
        let mut sums = TestSums::default();
        sums.add(
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.03s",
        );
        sums.add("test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.38s");
        sums.add("test a::b ... ok");
        assert_eq!(sums, TestSums { passed: 9, failed: 1, ignored: 1 });
    }
}
