//! What the demo tells, and how it watches the host.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use testkit::Host;
use testkit::command::on_path;

use super::shop::Shop;

const POLL: Duration = Duration::from_millis(300);
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Without any progress for so long, something is wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// What `anabranch status --json` says about the mapping of an entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) version: String,
    pub(super) generation: i64,
    built: i64,
}

impl Mapping {
    /// Asks the running installation.
    pub(super) fn read(host: &Host, entity: &str) -> Result<Self> {
        let status = host.status()?;
        let mappings = status["mappings"].as_array().context("status has no mappings")?;
        let mapping = mappings.iter().find(|mapping| mapping["entity"] == entity);
        let mapping = mapping.with_context(|| format!("status knows no mapping of {entity}"))?;
        let number = |name: &str| mapping[name].as_i64().with_context(|| format!("{entity} has no {name}"));
        let version = mapping["version"]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("{entity} has no version"))?;
        Ok(Self { version, generation: number("generation")?, built: number("built")? })
    }

    /// Whether every row has come through in this generation.
    pub(super) fn is_built(&self) -> bool {
        self.built >= self.generation
    }
}

/// Waits until `done`, with a line of progress every two seconds; `counted` says how many documents there are of
/// how many that there should be.
pub(super) async fn watch(
    host: &mut Host,
    shop: &Shop,
    counted: impl Fn() -> Result<[u64; 2]>,
    done: impl Fn(&Host) -> Result<bool>,
) -> Result<()> {
    let (mut progress, mut progressed) = ([0; 2], Instant::now());
    let mut line = Instant::now();
    loop {
        let answer = done(host);
        if matches!(answer, Ok(true)) {
            return Ok(());
        }
        if !host.is_running()? {
            bail!("the host ended\n{}", host.log_tail());
        }
        let counts = counted()?;
        if counts != progress {
            (progress, progressed) = (counts, Instant::now());
        }
        if line.elapsed() >= LINE_EVERY {
            line = Instant::now();
            let [products, orders] = shop.expected().await?;
            println!("   {}, {}", share("products", counts[0], products), share("orders", counts[1], orders));
        }
        if progressed.elapsed() >= PATIENCE {
            let last = answer.err().map(|error| format!("; {error:#}")).unwrap_or_default();
            bail!("no progress for {} s{last}\n{}", PATIENCE.as_secs(), host.log_tail());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn share(name: &str, counted: u64, expected: u64) -> String {
    let percent = (counted * 100).checked_div(expected).unwrap_or(100);
    format!("{name} {percent:>3} % ({} of {})", grouped(counted), grouped(expected))
}

/// A heading.
pub(super) fn say(text: &str) {
    println!("== {text}");
}

/// What a person can do while everything stays up.
pub(super) async fn what_next(shop: &Shop, host: &Host, binary: &Path) -> Result<()> {
    let url = shop.url();
    let (file, plugins) = (host.path("search.db"), host.path("plugins/product-search.wasm"));
    let (binary, config) = (binary.display(), host.path("anabranch.toml"));
    let config = config.display();
    say("everything stays up until Ctrl-C (the live changes have ended); try");
    let psql = if on_path("psql").is_some() { "psql" } else { "psql (any Postgres client)" };
    // One that the live changes have left.
    if let Some(id) = shop.a_product().await? {
        println!("   {psql} '{url}' -c \"update products set name = 'Hello' where id = {id}\"");
        println!("   sqlite3 {} \"select document from products where id = '{id}'\"", file.display());
    }
    println!("   {binary} status --config {config}");
    println!("   {binary} plan --config {config}");
    println!(
        "   ANABRANCH_PLUGIN_VERSION=2.0.0 {binary} plugin build plugins/product-search --output {}",
        plugins.display()
    );
    println!("   tail -f {}", host.path("host.log").display());
    Ok(())
}

/// 1234567 → `1 234 567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Seconds with one digit.
pub(super) fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

/// For messages: a JSON value on one line, shortened.
pub(super) fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 160 { text } else { text.chars().take(160).collect::<String>() + "…" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            ["0", "999", "1 000", "1 234 567"],
            [0, 999, 1_000, 1_234_567].map(grouped).each_ref().map(String::as_str)
        );
        assert_eq!(share("orders", 5, 20), "orders  25 % (5 of 20)");
        assert_eq!(share("orders", 0, 0), "orders 100 % (0 of 0)");
    }
}
