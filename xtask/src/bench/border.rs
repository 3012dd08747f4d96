//! What the WebAssembly border costs a row: `benches/border.rs`, run by cargo.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::figures::Figures;
use crate::steps::cargo;

pub(super) fn measure(figures: &mut Figures) -> Result<()> {
    figures.say("== border: one transform as a component and natively, in turn");
    let mut bench =
        cargo(&["bench", "--quiet", "--package", "anabranch", "--bench", "border", "--", "--json"]);
    let output = bench.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo bench --bench border: {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().rev().find(|line| line.starts_with('{')).context("the benchmark printed nothing")?;
    let measured: Value = serde_json::from_str(line)?;
    for (name, value) in measured.as_object().context("the benchmark printed no object")? {
        figures.one(name, value.as_f64().with_context(|| format!("{name} is no number"))?);
    }
    Ok(())
}
