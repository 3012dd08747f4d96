//! From commit to sink, at 1000 transactions of one row a second.
//!
//! Eight sessions insert at a steady pace, with `synchronous_commit = on`. The host's sink is its standard output,
//! read here; each line carries the commit's timestamp, which the server takes before it waits for the disk.
//! A latency is the time between that and the arrival of the line, so the disk's part is in it. Both clocks are
//! this machine's.

use std::io::{BufRead as _, BufReader};
use std::process::ChildStdout;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde_json::Value;
use testkit::postgres::connect;
use testkit::shop;
use tokio_postgres::Client;

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source};

pub(super) const SESSIONS: u64 = 8;
pub(super) const PER_SECOND: u64 = 1000;
/// Rows that change, in turn.
pub(super) const ROWS: u64 = 1000;
const UPDATE: &str = "update public.products set stock = stock + 1, active = true where id = $1";
/// Seconds at the beginning that do not count.
const WARM_UP: u64 = 2;

pub(super) async fn measure(bench: &Bench, seconds: u64, figures: &mut Figures) -> Result<()> {
    figures.say(&format!("== latency: {PER_SECOND} transactions a second for {seconds} s"));
    let source = Source::open().await?;
    source.client.batch_execute(&shop::insert_products(1, ROWS, 0)).await?;
    let mut host = source.host(bench, "bench", "kind = \"stdout\"", false)?;
    let output = host.start_piped()?;
    host.wait_log(0, ": streaming ", DEADLINE).await?;
    let (lines, arrived) = mpsc::channel();
    let reader = std::thread::spawn(move || read(output, &lines));

    let total = (seconds + WARM_UP) * PER_SECOND;
    let begin = tokio::time::Instant::now();
    let mut writers = tokio::task::JoinSet::new();
    for session in 0..SESSIONS {
        let client = connect(&source.url()).await?;
        writers.spawn(write(client, UPDATE, session, begin, move |number| number < total / SESSIONS));
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    let wrote = begin.elapsed();
    let mut latencies = Vec::new();
    for count in 0..total / SESSIONS * SESSIONS {
        let line: Line = arrived.recv_timeout(DEADLINE).context("not every change arrived")?;
        if count >= WARM_UP * PER_SECOND {
            latencies.push(line.latency()?);
        }
    }
    host.terminate(DEADLINE)?;
    reader.join().map_err(|_| anyhow::anyhow!("the reader of the host's output panicked"))??;
    latencies.sort_by(f64::total_cmp);
    let at = |percent| percentile(&latencies, percent);
    figures.one("latency_transactions_per_s", total as f64 / wrote.as_secs_f64());
    figures.one("latency_p50_ms", at(50));
    figures.one("latency_p99_ms", at(99));
    figures.one("latency_max_ms", at(100));
    Ok(())
}

/// Of sorted values.
pub(super) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = sorted.len() * percent / 100;
    sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// A session's transactions: `update` with the ids of its rows, each at its appointed time, late ones at once, as
/// long as `more` says of their number. Says how many.
pub(super) async fn write(
    client: Client,
    update: &str,
    session: u64,
    begin: tokio::time::Instant,
    more: impl Fn(u64) -> bool,
) -> Result<u64> {
    client.batch_execute("set synchronous_commit = on").await?;
    let update = client.prepare(update).await?;
    let pause = Duration::from_micros(1_000_000 * SESSIONS / PER_SECOND);
    let shift = pause.mul_f64(session as f64 / SESSIONS as f64);
    let mut number = 0;
    while more(number) {
        tokio::time::sleep_until(begin + shift + pause * u32::try_from(number)?).await;
        let id = i64::try_from(1 + (number * SESSIONS + session) % ROWS)?;
        client.execute(&update, &[&id]).await?;
        number += 1;
    }
    Ok(number)
}

pub(super) struct Line {
    text: String,
    pub(super) arrived: SystemTime,
}

pub(super) fn read(output: ChildStdout, lines: &mpsc::Sender<Line>) -> Result<()> {
    for text in BufReader::new(output).lines() {
        // Nobody waits for what comes after the last one.
        let _ = lines.send(Line { text: text?, arrived: SystemTime::now() });
    }
    Ok(())
}

impl Line {
    /// In milliseconds.
    pub(super) fn latency(&self) -> Result<f64> {
        let line: Value = serde_json::from_str(&self.text)?;
        let time = line.get("commit_time").and_then(Value::as_str).context("no commit_time")?;
        let clock = time.split_once('T').and_then(|(_, clock)| clock.strip_suffix('Z'));
        let mut parts = clock.context("no time")?.split(':').map(str::parse::<f64>);
        let mut part = || anyhow::Ok(parts.next().context("no time")??);
        let committed = part()? * 3600.0 + part()? * 60.0 + part()?;
        let arrived = self.arrived.duration_since(SystemTime::UNIX_EPOCH)?.as_micros() % 86_400_000_000;
        let passed = arrived as f64 / 1e6 - committed;
        Ok(passed.rem_euclid(86_400.0) * 1e3)
    }
}
