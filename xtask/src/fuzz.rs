//! `cargo xtask fuzz`: libFuzzer on what comes from outside, for a while each.
//!
//! The targets (`fuzz/`) are built with the dependencies that the tests have, in the same directory; only this
//! repository's own crates are compiled again, with coverage (`fuzz/rustc-coverage`). Any stable compiler does.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail};
use testkit::command::on_path;
use testkit::paths::{repository, target_dir};

use crate::steps::{Steps, cargo, pass_through};

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each target runs
    #[arg(long, default_value_t = MINUTE)]
    seconds: u64,

    /// Run only this one: frames, pgoutput, values or config
    #[arg(long)]
    target: Option<String>,
}

/// What continuous integration gives each target.
pub(crate) const MINUTE: u64 = 60;

/// A target, the longest input that is of use, and goldens of the repository that it begins with, beside its seeds.
struct Target {
    name: &'static str,
    max_length: usize,
    goldens: Option<&'static str>,
}

const TARGETS: [Target; 4] = [
    Target { name: "frames", max_length: 1 << 16, goldens: None },
    Target { name: "pgoutput", max_length: 1 << 14, goldens: None },
    Target { name: "values", max_length: 1 << 12, goldens: None },
    Target { name: "config", max_length: 1 << 13, goldens: Some("tests/golden/config") },
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut steps = Steps::new();
    if let Some(name) = &arguments.target
        && !TARGETS.iter().any(|target| target.name == name)
    {
        bail!("there is no target `{name}`: frames, pgoutput, values and config are");
    }
    let fuzzing = begin(&mut steps, arguments.seconds, arguments.target.as_deref());
    end(&mut steps, fuzzing);
    Ok(steps.finish("fuzz"))
}

/// Builds the targets and sets all of them, or the one that is named, to work, with the lowest priority. They share
/// the cores: each runs as much longer.
pub(crate) fn begin(steps: &mut Steps, seconds: u64, only: Option<&str>) -> Vec<Result<Running>> {
    let built = steps.step("fuzz targets", || {
        if is_possible() {
            return build();
        }
        if ["CI", "ANABRANCH_ALL_LANGUAGES"].iter().any(|name| std::env::var_os(name).is_some()) {
            bail!("libFuzzer needs a C++ compiler (Debian: g++)");
        }
        Ok("LEFT OUT: libFuzzer needs a C++ compiler (Debian: g++)".to_owned())
    });
    if !built || !is_possible() {
        return Vec::new();
    }
    let wanted: Vec<&Target> =
        TARGETS.iter().filter(|target| only.is_none_or(|only| only == target.name)).collect();
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let rounds = u64::try_from(wanted.len().div_ceil(cores)).unwrap_or(1);
    wanted.iter().map(|target| Running::start(target, seconds * rounds)).collect()
}

/// Waits for them: a step each.
pub(crate) fn end(steps: &mut Steps, fuzzing: Vec<Result<Running>>) {
    for running in fuzzing {
        let name = running.as_ref().map_or("a target", |running| running.name);
        steps.step(&format!("fuzz: {name}"), || running?.finish());
    }
}

/// Whether libFuzzer, which is C++, can be compiled here.
pub(crate) fn is_possible() -> bool {
    std::env::var_os("CXX").is_some() || on_path("c++").is_some()
}

fn build() -> Result<String> {
    // The whole workspace is selected, so that dependencies keep the features that they have for the tests.
    let mut command = cargo(&["build", "--workspace"]);
    command.args(TARGETS.iter().flat_map(|target| ["--bin", target.name]));
    pass_through(command.env("RUSTC_WORKSPACE_WRAPPER", repository().join("fuzz/rustc-coverage")))?;
    Ok(format!("{} targets, with coverage", TARGETS.len()))
}

/// A target at work.
pub(crate) struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
    artifacts: PathBuf,
}

impl Running {
    fn start(target: &Target, seconds: u64) -> Result<Self> {
        let home = target_dir().join("fuzz");
        let (corpus, artifacts) =
            (home.join("corpus").join(target.name), home.join("found").join(target.name));
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let log = home.join(format!("{}.log", target.name));
        let seeds = repository().join("fuzz/seeds").join(target.name);
        let goldens = target.goldens.map(|goldens| repository().join(goldens));
        let output = File::create(&log)?;
        let child = Command::new("nice")
            .args(["-n", "19"])
            .arg(target_dir().join("debug").join(target.name))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={}", target.max_length))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .args(["-rss_limit_mb=2048", "-timeout=30", "-print_final_stats=1"])
            .arg(corpus)
            .arg(seeds)
            .args(goldens)
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run the target {}", target.name))?;
        Ok(Self { name: target.name, child, log, artifacts })
    }

    fn finish(mut self) -> Result<String> {
        let status = self.child.wait()?;
        let said = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        if !status.success() {
            let tail: Vec<&str> = said.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            bail!(
                "{status}; the input is in {}; give it to the target as its argument to see it again, mend the fault, \
                 and make a unit test of it:\n{}",
                self.artifacts.display(),
                tail.join("\n")
            );
        }
        summary(&said, &self.log)
    }
}

/// What libFuzzer says of its course: `#79 INITED cov: 412 ft: 801 corp: 40/3Kb …`.
fn summary(said: &str, log: &Path) -> Result<String> {
    let number = |line: &str, name: &str| -> Option<u64> {
        let mut words = line.split_whitespace().skip_while(|word| *word != name);
        words.nth(1)?.split('/').next()?.parse().ok()
    };
    let coverage = |line: &&str| number(line, "cov:");
    let first = said.lines().find(|line| line.contains("INITED")).as_ref().and_then(coverage);
    let last = said.lines().rev().find_map(|line| coverage(&line));
    let corpus = said.lines().rev().find_map(|line| number(line, "corp:")).unwrap_or_default();
    let runs = said.lines().find_map(|line| number(line, "stat::number_of_executed_units:"));
    let (Some(first), Some(last)) = (first, last) else {
        bail!("it counted no coverage, so nothing guided it: see {}", log.display());
    };
    Ok(format!("{} runs, coverage {first} to {last}, {corpus} inputs", runs.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_is_summed_up() {
        let said = "INFO: seed corpus: files: 30\n#31\tINITED cov: 412 ft: 801 corp: 29/3Kb exec/s: 0 rss: 40Mb\n\
                    #99\tNEW    cov: 500 ft: 900 corp: 31/3Kb lim: 128 exec/s: 0 rss: 40Mb L: 3/9 MS: 1 EraseBytes-\n\
                    #200\tDONE   cov: 503 ft: 911 corp: 33/4Kb\nstat::number_of_executed_units: 200\n";
        let summed = summary(said, Path::new("x.log")).unwrap();
        assert_eq!(summed, "200 runs, coverage 412 to 503, 33 inputs");
        assert!(summary("#2\tINITED exec/s: 0 rss: 30Mb\n", Path::new("x.log")).is_err());
    }
}
