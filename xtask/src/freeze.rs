//! `cargo xtask freeze`: the interface as it is now, and guests that were built against it, into `tests/abi`.
//!
//! What a release had stays: a version that was released is never written over. See `tests/abi/README.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::command::run;
use testkit::guests::{self, Guest};
use testkit::paths::repository;

use crate::setup;

/// Arguments of `cargo xtask freeze`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Say that the version is out: from then on nothing of it is written over
    #[arg(long)]
    release: bool,
}

/// Guests of every world, and of both encodings for transforms and for sinks: file, world and project; after a `+` a
/// cargo feature.
const GUESTS: [(&str, &str, &str); 5] = [
    ("transform-json.wasm", "transform-plugin", "plugins/fixtures/frozen-json"),
    ("transform-msgpack.wasm", "transform-plugin", "plugins/fixtures/frozen-msgpack"),
    ("sink-json.wasm", "sink-plugin", "plugins/fixtures/odd-sink"),
    ("sink-msgpack.wasm", "purging-sink-plugin", "plugins/fixtures/memory-sink"),
    ("sink-places.wasm", "switching-sink-plugin", "plugins/fixtures/memory-sink + generations"),
];
/// What guests are made of.
const SOURCES: [&str; 3] = ["wit", "plugins/fixtures", "plugins/sdk-rust"];

pub(crate) fn run_command(arguments: &Arguments) -> Result<ExitCode> {
    let wit = repository().join("wit/v1");
    let version = version(&wit)?;
    let folder = repository().join("tests/abi").join(&version);
    refuse_released(&folder, &version)?;
    let commit = commit()?;
    let host = setup::host(false)?;
    fs::create_dir_all(&folder)?;
    for (file, _, project) in GUESTS {
        let guest = match project.split_once(" + ") {
            Some((project, feature)) => Guest::new(project).feature(feature),
            None => Guest::new(project),
        };
        let built = guests::build(&host, &guest)?;
        fs::copy(&built, folder.join(file)).with_context(|| format!("cannot keep {file}"))?;
    }
    let kept = folder.join("wit");
    if kept.is_dir() {
        fs::remove_dir_all(&kept)?;
    }
    copy(&wit, &kept)?;
    let guests: Vec<Value> = GUESTS
        .into_iter()
        .map(|(file, world, project)| {
            let sha256 = sha256(&folder.join(file))?;
            Ok(json!({"file": file, "world": world, "project": project, "sha256": sha256}))
        })
        .collect::<Result<_>>()?;
    let list = json!({"version": version, "released": arguments.release, "commit": commit, "guests": guests});
    fs::write(folder.join("frozen.json"), format!("{list:#}\n"))?;
    fs::write(folder.join("README.md"), readme(&list))?;
    println!("froze {} guests of {version} in {}", guests.len(), folder.display());
    Ok(ExitCode::SUCCESS)
}

/// The version of the package.
fn version(wit: &Path) -> Result<String> {
    let text = fs::read_to_string(wit.join("worlds.wit"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("package anabranch:plugin@"));
    Ok(line.and_then(|line| line.strip_suffix(';')).context("wit/v1/worlds.wit names no version")?.to_owned())
}

fn refuse_released(folder: &Path, version: &str) -> Result<()> {
    let list = folder.join("frozen.json");
    if !list.is_file() {
        return Ok(());
    }
    let list: Value = serde_json::from_str(&fs::read_to_string(&list)?)?;
    if list["released"] == true {
        bail!("{version} is released, and stays as it is: raise the version of the package in wit/v1 first");
    }
    Ok(())
}

/// The commit that guests and interface are of: all of it has to be in one.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| run(Command::new("git").current_dir(repository()).args(arguments));
    let changed = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    if !changed.trim().is_empty() {
        bail!("what is frozen has to be committed before, so that its source can be found again:\n{changed}");
    }
    Ok(git(&["rev-parse", "HEAD"])?.trim().to_owned())
}

fn sha256(path: &Path) -> Result<String> {
    Ok(Sha256::digest(fs::read(path)?).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy(&path, &place)?;
        } else if is_interface(&path) {
            fs::copy(&path, &place)?;
        }
    }
    Ok(())
}

fn is_interface(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wit")
}

fn readme(list: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let state = if list["released"] == true { "Released: never written over." } else { "Not released yet." };
    let mut page = format!(
        "# anabranch:plugin@{}\n\n{state} Written by `cargo xtask freeze` from commit `{}`.\n\n\
         | guest | world | source | sha256 |\n|---|---|---|---|\n",
        text(&list["version"]),
        text(&list["commit"])
    );
    for guest in list["guests"].as_array().into_iter().flatten() {
        let [file, world, project, sha256] =
            ["file", "world", "project", "sha256"].map(|key| text(&guest[key]));
        let _ = writeln!(page, "| `{file}` | `{world}` | `{project}` | `{sha256}` |");
    }
    page
}
