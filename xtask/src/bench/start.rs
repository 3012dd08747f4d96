//! From the start of the process until it streams, with ten plugins in Rust and what is compiled of them in the cache.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit::Host;

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source};

const SLOT: &str = "bench";
const PLUGINS: usize = 10;
/// The plugin's own name, and one of as many letters.
const NAME: &str = "product-search";

fn name(number: usize) -> String {
    format!("product-sear{number:02}")
}

pub(super) async fn measure(bench: &Bench, figures: &mut Figures) -> Result<()> {
    figures.say(&format!("== start: until it streams, with {PLUGINS} plugins"));
    let source = Source::open().await?;
    let mut host = Host::new(&bench.binary)?;
    install(bench, &host)?;
    configure(&source, &host)?;
    let cold = start(&mut host).await?;
    figures.one("start_cold_s", cold.as_secs_f64());
    let mut warm = Vec::new();
    for _ in 0..bench.rounds.max(3) {
        warm.push(start(&mut host).await?.as_secs_f64());
    }
    figures.rounds("start_warm_s", warm);
    Ok(())
}

/// One component under ten names: each is compiled by itself.
fn install(bench: &Bench, host: &Host) -> Result<()> {
    let component = fs::read(&bench.plugin)?;
    for number in 0..PLUGINS {
        let name = name(number);
        let mut bytes = component.clone();
        let places: Vec<usize> = bytes
            .windows(NAME.len())
            .enumerate()
            .filter(|(_, at)| *at == NAME.as_bytes())
            .map(|(at, _)| at)
            .collect();
        if places.is_empty() {
            bail!("{} has not its name in it", bench.plugin.display());
        }
        for at in places {
            bytes[at..at + NAME.len()].copy_from_slice(name.as_bytes());
        }
        fs::write(host.path("plugins").join(format!("{name}.wasm")), bytes)?;
    }
    Ok(())
}

fn configure(source: &Source, host: &Host) -> Result<()> {
    let mut config = format!(
        "[source]\nurl = \"{}\"\nslot = \"{SLOT}\"\npublication = \"bench\"\n[plugins]\ncache_dir = \"cache\"\n\
         [sink.out]\nkind = \"null\"\n",
        source.url()
    );
    for number in 0..PLUGINS {
        let name = name(number);
        config.push_str(&format!(
            "[[map]]\ntable = \"public.products\"\ntransform = \"{name}\"\ndestination = \"{name}\"\nauto_backfill = false\n"
        ));
    }
    host.config(&config)
}

/// How long a start takes; the host ends in good order then.
async fn start(host: &mut Host) -> Result<Duration> {
    let from = host.log_length();
    let began = Instant::now();
    host.start()?;
    while !host.log().get(from..).is_some_and(|log| log.contains(": streaming ")) {
        if !host.is_running()? || began.elapsed() > DEADLINE {
            bail!("the host does not stream\n{}", host.log_tail());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let took = began.elapsed();
    let status = host.terminate(DEADLINE).context("the host did not end")?;
    if !status.success() {
        bail!("the host did not end well: {status}\n{}", host.log_tail());
    }
    Ok(took)
}
