//! Config files.
//!
//! Invariants: an error has problems, each with a place inside of the file, and a remedy to read; neither an error nor
//! the config's debugging text shows what a reference stood for; memory follows the input.
#![no_main]

use std::ffi::OsString;

use anabranch::config::parse;
use anabranch_fuzz::bounded;
use libfuzzer_sys::{Corpus, fuzz_target};

const BASE: usize = 1 << 20;
/// What references to `SECRET_…` stand for: valid in a connection string, and in no config by itself.
const SECRET: &str = "zq9marker7xk";

fn environment(name: &str) -> Option<OsString> {
    match name {
        "USER" => Some("ada".into()),
        _ => name.starts_with("SECRET").then(|| SECRET.into()),
    }
}

fn run(text: &str) {
    match parse("anabranch.toml", text, &environment) {
        Ok(config) => assert!(!format!("{config:?}").contains(SECRET), "a secret is shown"),
        Err(error) => {
            let said = error.to_string();
            assert!(
                !said.contains(SECRET) && !format!("{error:?}").contains(SECRET),
                "a secret is told: {said}"
            );
            assert!(!error.problems.is_empty());
            let lines = text.split('\n').count();
            for problem in &error.problems {
                assert!(!problem.message.is_empty(), "{said}");
                if let Some((line, column)) = problem.position {
                    assert!((1..=lines).contains(&line), "line {line} of {lines}: {said}");
                    let length = text.split('\n').nth(line - 1).map_or(0, |line| line.chars().count());
                    assert!((1..=length + 2).contains(&column), "column {column} of {length}: {said}");
                }
            }
        }
    }
}

fuzz_target!(|input: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(input) else { return Corpus::Reject };
    // Files of this machine are no business of a fuzzer.
    if text.contains("file:") || text.contains(SECRET) {
        return Corpus::Reject;
    }
    bounded(text.len(), BASE, 4096, || run(text));
    Corpus::Keep
});
