//! The matrix of Postgres versions: which servers, and which tests run on all of them.
//!
//! The whole suite runs on one version; what depends on the server (the replication protocol, values, keys, DDL,
//! publications) runs on every other as well.

use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use testkit::guests::{Language, language_tools};
use testkit::postgres::{Binaries, MAJORS};

use crate::steps::{Steps, cargo, test_aside};

/// Makes tests use the programs of one directory.
pub(crate) const PG_BIN: &str = "ANABRANCH_PG_BIN";

/// What runs on every version: programs, and of which of their tests. The last two are parts: publications that come
/// and go, and tables that change under a backfill and a stream, with row filters, column lists, partitions, TRUNCATE
/// and the checker.
const RUNS: [(&[&str], Option<&str>); 3] = [
    (&["postgres", "postgres_preflight", "values", "keys", "ddl"], None),
    (&["publication"], Some("c041")),
    (&["backfill"], Some("tables::")),
];

/// How many versions are tried at once: most tests wait for servers and hosts most of the time.
const AT_ONCE: usize = 2;

/// A step for each version that the suite does not run on.
pub(crate) fn matrix(steps: &mut Steps, suite: u32, threads: &(&str, String)) {
    let others: Vec<u32> = MAJORS.into_iter().filter(|major| *major != suite).collect();
    for some in others.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|&major| (major, scope.spawn(move || tested(major, threads)))).collect();
            for (major, running) in running {
                steps.step(&format!("Postgres {major}: replication and values"), || {
                    running.join().map_err(|_| anyhow!("running the tests panicked"))?
                });
            }
        });
    }
}

/// Runs the tests on one version.
fn tested(major: u32, threads: &(&str, String)) -> Result<String> {
    let Some(binaries) = server(major)? else { return Ok("LEFT OUT".to_owned()) };
    let started = Instant::now();
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    for (programs, filter) in RUNS {
        let mut command = cargo(&["test", "--no-fail-fast"]);
        command.args(programs.iter().flat_map(|program| ["--test", program])).args(filter);
        match test_aside(command.env(PG_BIN, &binaries.dir).env(threads.0, &threads.1)) {
            Ok(sums) => passed.push(sums),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if !failed.is_empty() {
        bail!("with {}: {}", binaries.dir.display(), failed.join("\n"));
    }
    Ok(format!("{} in {} s", passed.join("; "), started.elapsed().as_secs()))
}

/// A server of this version. None where it would have to be fetched and the machine has no Node for that, which is
/// told, and is an error in continuous integration.
fn server(major: u32) -> Result<Option<Binaries>> {
    let found = Binaries::of_major(major);
    if found.is_err() && language_tools(Language::JavaScript)?.is_none() {
        return Ok(None);
    }
    found.map(Some)
}
