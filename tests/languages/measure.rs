//! What guests in each language cost: the table of docs/performance.md. It measures, and promises nothing.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anabranch::{
    model::{ChangeBatch, EntityName},
    plugin::{HostSettings, PluginHost},
};
use testkit::guests::{self, Guest};

use crate::{
    ahead,
    documents::samples,
    rows::{all, batch, product, products},
};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
/// How long each batch size is measured.
const MEASURED: Duration = Duration::from_secs(2);
/// The default of `[plugins] memory_limit`.
const MEMORY: usize = 128 << 20;

fn filled(rows: usize) -> ChangeBatch {
    let mut batch = batch(&products());
    (0..rows).for_each(|id| product(&mut batch, id, true));
    batch
}

/// Time of a processor that this thread has had.
fn busy() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn host(cache: &Path, memory: usize) -> PluginHost {
    let settings = HostSettings {
        cache_dir: Some(cache.to_owned()),
        memory,
        call_deadline: Duration::from_secs(60),
        ..HostSettings::default()
    };
    PluginHost::new(settings).unwrap()
}

fn load(cache: &Path, file: &Path) -> (Duration, Duration) {
    let host = host(cache, MEMORY);
    let times = [0, 1].map(|_| {
        let started = Instant::now();
        host.load_blocking(file).unwrap();
        started.elapsed()
    });
    (times[0], times[1])
}

/// The least memory limit, in MiB, under which a fresh instance answers a batch of a thousand rows.
async fn least_memory(cache: &Path, file: &Path) -> usize {
    let batch = filled(1000);
    let (mut too_little, mut enough) = (0, MEMORY >> 20);
    while enough - too_little > 1 {
        let middle = (too_little + enough) / 2;
        let plugin = host(cache, middle << 20).load_blocking(file);
        let answered = match plugin {
            Err(_) => false,
            Ok(plugin) => {
                let transform = plugin.transform(&EntityName::new("public", "products"), BTreeMap::new());
                transform.call(&batch, &all(&batch)).await.is_ok()
            }
        };
        if answered { enough = middle } else { too_little = middle }
    }
    enough
}

#[tokio::test]
#[ignore = "prints figures: cargo test --release --test languages measure -- --ignored --nocapture"]
#[allow(clippy::print_stdout)]
async fn what_each_language_costs() {
    println!(
        "| | component | first load | from the cache | first call | batch 1 | 100 | 1000 | least memory |"
    );
    let built =
        samples().into_iter().map(|(name, place)| (name, guests::build(BINARY, &Guest::new(place)).unwrap()));
    let weval = Command::new("weval").arg("--version").output().is_ok();
    let ahead = weval.then(|| ("product-search-js, ahead of time", ahead::build()));
    for (name, file) in built.chain(ahead) {
        let size = fs::metadata(&file).unwrap().len();
        let cache = tempfile::tempdir().unwrap();
        let (cold, _) = load(cache.path(), &file);
        let (cached, _) = load(cache.path(), &file);
        let host = host(cache.path(), MEMORY);
        let plugin = host.load_blocking(&file).unwrap();
        let transform = plugin.transform(&EntityName::new("public", "products"), BTreeMap::new());
        let one = filled(1);
        let started = Instant::now();
        transform.call(&one, &all(&one)).await.unwrap();
        let first = started.elapsed();
        let mut costs = Vec::new();
        for rows in [1, 100, 1000] {
            let batch = filled(rows);
            let selection = all(&batch);
            let (mut calls, from, started) = (0, busy(), Instant::now());
            // The system tells a thread's time in steps of milliseconds.
            while started.elapsed() < MEASURED {
                transform.call(&batch, &selection).await.unwrap();
                calls += 1;
            }
            let cost = (busy() - from).as_secs_f64() * 1e6 / (calls * rows) as f64;
            costs.push(format!("{cost:.1} µs"));
        }
        let least = least_memory(cache.path(), &file).await;
        println!(
            "| {name} | {:.1} MiB | {:.1} s | {:.1} ms | {:.2} ms | {} | {least} MiB |",
            size as f64 / (1 << 20) as f64,
            cold.as_secs_f64(),
            cached.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            costs.join(" | "),
        );
    }
}
