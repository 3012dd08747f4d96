//! `cargo xtask test`: everything that continuous integration runs.

use std::process::ExitCode;

use anyhow::{Context, Result};
use testkit::guests::Language;
use testkit::postgres::Binaries;

use crate::steps::{GUESTS, Steps, cargo, test};
use crate::{fuzz, languages, lint, setup, versions};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run only tests whose names contain this, and neither lint nor documentation
    #[arg(long)]
    filter: Option<String>,

    /// Run on this major version of Postgres, on it alone; fetched where it is not installed
    #[arg(long, value_name = "MAJOR")]
    postgres: Option<u32>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut steps = Steps::new();
    // A part of the tests only, or everything.
    let whole = arguments.filter.is_none();
    if whole {
        lint::formatting(&mut steps);
    }
    let mut host = None;
    for (name, language) in [
        ("Node for guests in JavaScript", Language::JavaScript),
        ("Python for guests in Python", Language::Python),
        ("zig for guests in C", Language::C),
        ("Go for guests in Go", Language::Go),
    ] {
        steps.step(name, || setup::language(language));
    }
    // Without these nothing else can succeed.
    let mut server = None;
    let ready = steps.step("a Rust for guests", setup::toolchain)
        && steps.step("a Postgres server", || {
            let found = match arguments.postgres {
                Some(major) => Binaries::of_major(major)?,
                None => Binaries::find_or_install()?,
            };
            let text = setup::described(&found);
            server = Some(found);
            Ok(text)
        })
        && steps.step("the host", || {
            let binary = setup::host(false)?;
            let text = binary.display().to_string();
            host = Some(binary);
            Ok(text)
        })
        && steps.step("the guests", || setup::guests(host.as_ref().context("there is no host")?));
    let Some(server) = server.filter(|_| ready) else { return Ok(steps.finish("test")) };
    let filter = arguments.filter.as_deref();
    let threads = (THREADS, threads());
    steps.step("tests", || {
        let mut suite = cargo(&["test", "--no-fail-fast"]);
        test(suite.args(filter).env(threads.0, &threads.1).env(versions::PG_BIN, &server.dir))
    });
    if whole && arguments.postgres.is_none() {
        // Beside each other: the tests wait for servers most of the time.
        let fuzzing = fuzz::begin(&mut steps, fuzz::MINUTE, None);
        versions::matrix(&mut steps, server.major, &threads);
        fuzz::end(&mut steps, fuzzing);
    }
    steps.step("tests of the guests and their SDK", || {
        // Natively: a transform is tested without WebAssembly.
        test(cargo(&["test", "--workspace", "--no-fail-fast", "--manifest-path", GUESTS]).args(filter))
    });
    if whole {
        for (name, language) in [
            ("JavaScript's own tests", Language::JavaScript),
            ("Python's own tests", Language::Python),
            ("C's own tests", Language::C),
            ("Go's own tests", Language::Go),
        ] {
            steps.step(name, || languages::test(language));
        }
        lint::clippy(&mut steps);
        lint::documentation(&mut steps);
        lint::dependencies(&mut steps);
    }
    Ok(steps.finish("test"))
}

/// How many tests of a program run at once (the book of `rustc`, "Tests").
const THREADS: &str = "RUST_TEST_THREADS";

/// One more than there are cores, unless the user says: most tests wait for servers and hosts most of the time.
fn threads() -> String {
    std::env::var(THREADS).unwrap_or_else(|_| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (cores + 1).to_string()
    })
}
