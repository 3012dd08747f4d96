//! The `anabranch` program: arguments to the command line, its result to an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    anabranch::cli::main(std::env::args_os())
}
