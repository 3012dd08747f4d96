//! `cargo xtask lint`: formatting, clippy and documentation, all warnings denied.

use std::process::ExitCode;

use anyhow::Result;

use crate::steps::{GUESTS, Steps, cargo, pass_through};

pub(crate) fn run() -> Result<ExitCode> {
    let mut steps = Steps::new();
    formatting_and_clippy(&mut steps);
    documentation(&mut steps);
    Ok(steps.finish("lint"))
}

/// The host's workspace and the guests'.
pub(crate) fn formatting_and_clippy(steps: &mut Steps) {
    steps.step("formatting", || {
        pass_through(&mut cargo(&["fmt", "--all", "--check"]))?;
        pass_through(&mut cargo(&["fmt", "--all", "--check", "--manifest-path", GUESTS]))
    });
    steps.step("clippy", || {
        let all = ["--all-targets", "--", "--deny", "warnings"];
        pass_through(cargo(&["clippy", "--quiet", "--workspace"]).args(all))?;
        pass_through(cargo(&["clippy", "--quiet", "--workspace", "--manifest-path", GUESTS]).args(all))
    });
}

pub(crate) fn documentation(steps: &mut Steps) {
    steps.step("documentation", || {
        let arguments = ["doc", "--quiet", "--no-deps", "--workspace", "--document-private-items"];
        pass_through(
            cargo(&arguments).env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links"),
        )
    });
}
