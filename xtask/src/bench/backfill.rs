//! Rows a second of a whole backfill, against `copy … to stdout` into nothing.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source};

pub(super) async fn measure(bench: &Bench, rows: u64, figures: &mut Figures) -> Result<()> {
    figures.say(&format!("== backfill: {rows} rows, read in turn by both"));
    let mut source = Source::open().await?;
    source.insert(rows, rows).await?;
    source.client.batch_execute("vacuum public.products").await?;
    copy(&source)?;
    let (mut ratios, mut ours, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        let slot = format!("bench_{round}");
        let (host_took, copy_took) = if round % 2 == 0 {
            let copied = copy(&source)?;
            (backfill(bench, &source, &slot, figures).await?, copied)
        } else {
            let filled = backfill(bench, &source, &slot, figures).await?;
            (filled, copy(&source)?)
        };
        ratios.push(copy_took.as_secs_f64() / host_took.as_secs_f64());
        ours.push(rows as f64 / host_took.as_secs_f64());
        copies.push(rows as f64 / copy_took.as_secs_f64());
    }
    figures.rounds("backfill_rows_per_s", ours);
    figures.rounds("copy_rows_per_s", copies);
    figures.rounds("backfill_ratio", ratios);
    Ok(())
}

/// As the host itself tells it: from the first page asked for until the last row is durable.
async fn backfill(bench: &Bench, source: &Source, slot: &str, figures: &Figures) -> Result<Duration> {
    let mut host = source.host(bench, slot, "kind = \"null\"", true)?;
    host.start()?;
    let line = host.wait_log(0, ": backfill complete ", DEADLINE).await?;
    host.terminate(DEADLINE)?;
    source.client.batch_execute(&format!("select pg_drop_replication_slot('{slot}')")).await?;
    // Where the time went: in readers, in the transform, in the sink; these overlap.
    figures.say(&format!("   {}", line.split_once(": ").map_or(line.as_str(), |(_, said)| said)));
    took(&line)
}

/// How long a run took, by the line that says it is complete.
pub(super) fn took(line: &str) -> Result<Duration> {
    let seconds = line.split_whitespace().find_map(|word| word.strip_prefix("seconds="));
    let seconds = seconds.with_context(|| format!("no seconds in {line:?}"))?.parse()?;
    Ok(Duration::from_secs_f64(seconds))
}

/// `copy … to stdout` by psql, into nothing.
pub(super) fn copy(source: &Source) -> Result<Duration> {
    let mut psql = source.program("psql")?;
    psql.args(["--no-psqlrc", "--command", "copy public.products to stdout", &source.url()]);
    let started = Instant::now();
    let mut child = psql.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let status = tokio::task::block_in_place(|| child.wait())?;
    if !status.success() {
        bail!("psql: {status}");
    }
    Ok(started.elapsed())
}
