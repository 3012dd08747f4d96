//! `cargo xtask lint`: formatting, clippy and documentation, all warnings denied.

use std::process::ExitCode;

use anyhow::Result;
use testkit::command::on_path;

use crate::fuzz;
use crate::steps::{GUESTS, Steps, cargo, pass_through};

/// Items without `pub` are documented for those who read the sources, and may link to each other.
const RUSTDOC: &str = "--deny warnings --allow rustdoc::private_intra_doc_links";

pub(crate) fn run() -> Result<ExitCode> {
    let mut steps = Steps::new();
    formatting(&mut steps);
    clippy(&mut steps);
    documentation(&mut steps);
    dependencies(&mut steps);
    Ok(steps.finish("lint"))
}

/// The host's workspace and the guests'.
pub(crate) fn formatting(steps: &mut Steps) {
    steps.step("formatting", || {
        pass_through(&mut cargo(&["fmt", "--all", "--check"]))?;
        pass_through(&mut cargo(&["fmt", "--all", "--check", "--manifest-path", GUESTS]))
    });
}

/// Both workspaces, tests and benchmarks included.
pub(crate) fn clippy(steps: &mut Steps) {
    steps.step("clippy", || {
        let all = ["--all-targets", "--", "--deny", "warnings"];
        pass_through(cargo(&["clippy", "--quiet", "--workspace"]).args(left_out()).args(all))?;
        pass_through(cargo(&["clippy", "--quiet", "--workspace", "--manifest-path", GUESTS]).args(all))
    });
}

/// The fuzz targets, where libFuzzer cannot be compiled.
fn left_out() -> &'static [&'static str] {
    if fuzz::is_possible() { &[] } else { &["--exclude", "anabranch-fuzz"] }
}

/// After clippy, whose metadata of the dependencies it uses.
pub(crate) fn documentation(steps: &mut Steps) {
    steps.step("documentation", || {
        let arguments = ["doc", "--quiet", "--no-deps", "--workspace", "--document-private-items"];
        pass_through(cargo(&arguments).args(left_out()).env("RUSTDOCFLAGS", RUSTDOC))?;
        let sdk = ["doc", "--quiet", "--no-deps", "--package", "anabranch-sdk", "--manifest-path", GUESTS];
        pass_through(cargo(&sdk).env("RUSTDOCFLAGS", RUSTDOC))
    });
}

/// Licences, sources and banned crates, by the rules of `deny.toml`. Advisories are left to those who ask for
/// them: their database changes without the repository.
pub(crate) fn dependencies(steps: &mut Steps) {
    steps.step("dependencies", || {
        if on_path("cargo-deny").is_none() {
            return Ok("NOT CHECKED: cargo-deny is not installed".to_owned());
        }
        pass_through(&mut cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]))
    });
}
