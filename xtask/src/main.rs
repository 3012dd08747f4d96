//! Development commands of Anabranch: `cargo xtask demo`, `cargo xtask test`, `cargo xtask bench`,
//! `cargo xtask fuzz`, `cargo xtask freeze`, `cargo xtask lint`.
//!
//! Each does its own set-up and says in one line what it does and what came of it. Exit code 0: all went well;
//! 1: something did not; 2: wrong arguments; 130: interrupted.

// This program talks to a person at a terminal; it is no part of the product.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod demo;
mod freeze;
mod fuzz;
mod languages;
mod lint;
mod setup;
mod steps;
mod test;
mod versions;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development commands of Anabranch", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch a small shop flow through two real plugins into an SQLite file, live and backfilled at once
    Demo(demo::Arguments),
    /// Everything that continuous integration runs: set-up, lint, all tests, documentation
    Test(test::Arguments),
    /// What Anabranch costs: ratios against Postgres's own programs, latency and memory
    Bench(bench::Arguments),
    /// libFuzzer on frames, pgoutput messages, values and config files
    Fuzz(fuzz::Arguments),
    /// The plugin interface and guests built against it, kept in tests/abi for every later version to run
    Freeze(freeze::Arguments),
    /// Formatting, clippy and documentation, all warnings denied
    Lint,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Freeze(arguments) => freeze::run_command(&arguments),
        Command::Lint => lint::run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
