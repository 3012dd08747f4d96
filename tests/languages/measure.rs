//! What guests in each language cost: the table of docs/performance.md. It measures, and promises nothing.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anabranch::{
    model::{ChangeBatch, EntityName},
    plugin::{HostSettings, PluginHost},
};
use testkit::guests::{self, Guest};

use crate::{
    documents::samples,
    rows::{all, batch, product, products},
};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
/// How long each batch size is measured.
const MEASURED: Duration = Duration::from_secs(2);
const INSTANCES: usize = 4;

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

/// Memory of this process that is its own: code of components, which is mapped from the cache, is not.
fn anonymous_kib() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn host(cache: &Path) -> PluginHost {
    let settings = HostSettings {
        cache_dir: Some(cache.to_owned()),
        instances: INSTANCES,
        call_deadline: Duration::from_secs(60),
        ..HostSettings::default()
    };
    PluginHost::new(settings).unwrap()
}

fn load(cache: &Path, file: &Path) -> (Duration, Duration) {
    let host = host(cache);
    let times = [0, 1].map(|_| {
        let started = Instant::now();
        host.load_blocking(file).unwrap();
        started.elapsed()
    });
    (times[0], times[1])
}

#[tokio::test]
#[ignore = "prints figures: cargo test --release --test languages measure -- --ignored --nocapture"]
#[allow(clippy::print_stdout)]
async fn what_each_language_costs() {
    println!(
        "| | component | first load | from the cache | first call | batch 1 | 100 | 1000 | an instance |"
    );
    for (name, place) in samples() {
        let file = guests::build(BINARY, &Guest::new(place)).unwrap();
        let size = fs::metadata(&file).unwrap().len();
        let cache = tempfile::tempdir().unwrap();
        let (cold, _) = load(cache.path(), &file);
        let (cached, _) = load(cache.path(), &file);
        let host = host(cache.path());
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
        let batch = filled(1000);
        let selection = all(&batch);
        drop(transform);
        let transform = plugin.transform(
            &EntityName::new("public", "products"),
            BTreeMap::from([("fresh".to_owned(), String::new())]),
        );
        transform.call(&batch, &selection).await.unwrap();
        let before = anonymous_kib();
        // As many at once as there may be: one of them has an instance already.
        let calls = (0..INSTANCES).map(|_| transform.call(&batch, &selection));
        futures_util::future::join_all(calls).await.into_iter().for_each(|outcomes| drop(outcomes.unwrap()));
        let each = (anonymous_kib() - before) as f64 / 1024.0 / (INSTANCES - 1) as f64;
        println!(
            "| {name} | {:.1} MiB | {:.1} s | {:.1} ms | {:.2} ms | {} | {each:.1} MiB |",
            size as f64 / (1 << 20) as f64,
            cold.as_secs_f64(),
            cached.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            costs.join(" | "),
        );
    }
}
