//! A backfill under live load: what it costs the live changes, and what they cost it.
//!
//! Eight sessions commit 1000 transactions a second without a pause, each of one row of `public.orders` and one of
//! `public.products`. The orders go to the host's standard output, where their latency is taken; the products go
//! to a sink that forgets. First nothing else happens; then all of `public.products` is backfilled on request; then
//! `copy … to stdout` reads the same table, under the same load; then nothing else happens again. Idle is what comes
//! before and what comes after, together: a system that has just begun writes back none of its pages yet, and flushes
//! faster than one that has run for a minute.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use testkit::guests::{self, Guest};
use testkit::postgres::connect;
use testkit::{Host, shop};

use super::backfill::{copy, took};
use super::figures::Figures;
use super::latency::{Line, PER_SECOND, ROWS, SESSIONS, percentile, read, write};
use super::memory::mib;
use super::source::{Bench, DEADLINE, Source};

/// One row of each table.
const BOTH: &str = "with one as (update public.products set stock = stock + 1 where id = $1) \
                    update public.orders set total = total + 1, status = 'paid' where id = $1";
/// Before the first figure.
const WARM_UP: Duration = Duration::from_secs(3);

pub(super) async fn measure(bench: &Bench, rows: u64, seconds: u64, figures: &mut Figures) -> Result<()> {
    figures.say(&format!("== load: {rows} rows, while {PER_SECOND} transactions a second are committed"));
    let mut source = Source::open().await?;
    source.insert(rows, rows).await?;
    source.client.batch_execute(&shop::insert_orders(1, ROWS, 0)).await?;
    source.client.batch_execute("vacuum public.products").await?;
    source.settle().await?;
    let mut host = host(bench, &source)?;
    let output = host.start_piped()?;
    host.wait_log(0, ": streaming ", DEADLINE).await?;
    let (lines, arrived) = mpsc::channel();
    let reader = std::thread::spawn(move || read(output, &lines));
    let (stop, begin) = (Arc::new(AtomicBool::new(false)), tokio::time::Instant::now());
    let mut writers = tokio::task::JoinSet::new();
    for session in 0..SESSIONS {
        let client = connect(&source.url()).await?;
        let stop = Arc::clone(&stop);
        writers.spawn(write(client, BOTH, session, begin, move |_| !stop.load(Ordering::Relaxed)));
    }

    tokio::time::sleep(WARM_UP).await;
    let idle = SystemTime::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let asked = SystemTime::now();
    let answer = host.run(&["backfill", "request", "products"])?;
    if !answer.status.success() {
        bail!("the request was refused: {}", String::from_utf8_lossy(&answer.stderr));
    }
    let line = host.wait_log(0, ": backfill complete ", DEADLINE).await?;
    let built = SystemTime::now();
    let copied = copy(&source)?;
    let read = SystemTime::now();
    tokio::time::sleep(WARM_UP).await;
    let idle_again = SystemTime::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let ended = SystemTime::now();
    stop.store(true, Ordering::Relaxed);
    let mut transactions = 0;
    while let Some(written) = writers.join_next().await {
        transactions += written??;
    }
    let wrote = begin.elapsed();

    let latencies = latencies(&arrived, transactions)?;
    let of = |times: &[Range<SystemTime>]| -> Vec<f64> {
        let within = |at: &SystemTime| times.iter().any(|time| time.contains(at));
        let mut chosen: Vec<f64> =
            latencies.iter().filter(|(at, _)| within(at)).map(|(_, latency)| *latency).collect();
        chosen.sort_by(f64::total_cmp);
        chosen
    };
    let (before, after) = (of(&[idle..asked]), of(&[idle_again..ended]));
    let (quiet, during, beside_copy) =
        (of(&[idle..asked, idle_again..ended]), of(&[asked..built]), of(&[built..read]));
    figures.say(&format!("   {}", line.split_once(": ").map_or(line.as_str(), |(_, said)| said)));
    figures.one("load_transactions_per_s", transactions as f64 / wrote.as_secs_f64());
    for percent in [50, 99] {
        figures.one(&format!("load_idle_before_p{percent}_ms"), percentile(&before, percent));
        figures.one(&format!("load_idle_after_p{percent}_ms"), percentile(&after, percent));
        figures.one(&format!("load_idle_p{percent}_ms"), percentile(&quiet, percent));
        figures.one(&format!("load_backfill_p{percent}_ms"), percentile(&during, percent));
        figures.one(&format!("load_copy_p{percent}_ms"), percentile(&beside_copy, percent));
    }
    figures.one("load_p99_ratio", percentile(&during, 99) / percentile(&quiet, 99));
    let took = took(&line)?;
    figures.one("load_backfill_rows_per_s", rows as f64 / took.as_secs_f64());
    figures.one("load_copy_rows_per_s", rows as f64 / copied.as_secs_f64());
    figures.one("load_backfill_ratio", copied.as_secs_f64() / took.as_secs_f64());
    figures.one("load_peak_rss_mib", mib(host.peak_memory_kib()?));
    host.terminate(DEADLINE)?;
    reader.join().map_err(|_| anyhow::anyhow!("the reader of the host's output panicked"))??;
    Ok(())
}

fn host(bench: &Bench, source: &Source) -> Result<Host> {
    let host = Host::new(&bench.binary)?;
    guests::install(&bench.plugin, &host.path("plugins"), "product-search")?;
    host.plugin("order-summary", &Guest::new("plugins/order-summary"))?;
    host.config(&format!(
        r#"[source]
url = "{}"
slot = "load"
publication = "load"

[plugins]
cache_dir = "cache"

[sink.lines]
kind = "stdout"

[sink.nothing]
kind = "null"

[[map]]
name = "products"
table = "public.products"
transform = "product-search"
sink = "nothing"
auto_backfill = false

[[map]]
name = "orders"
table = "public.orders"
transform = "order-summary"
sink = "lines"
auto_backfill = false
"#,
        source.url()
    ))?;
    Ok(host)
}

/// When each line arrived, and its latency in milliseconds.
fn latencies(arrived: &mpsc::Receiver<Line>, count: u64) -> Result<Vec<(SystemTime, f64)>> {
    (0..count)
        .map(|_| {
            let line = arrived.recv_timeout(DEADLINE).context("not every change arrived")?;
            Ok((line.arrived, line.latency()?))
        })
        .collect()
}
