//! The database that is measured, and hosts on it.
//!
//! The table is the shop's `public.products` (twelve columns, about half a kilobyte); the transform is
//! `product-search`, which reads six of them and emits five fields.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use testkit::postgres::{Binaries, connect};
use testkit::wait::Pace;
use testkit::{Cluster, ClusterOptions, Host, guests, shop, wait_until};
use tokio_postgres::Client;

/// Nothing that is measured takes as long.
pub(super) const DEADLINE: Duration = Duration::from_secs(1200);

/// What everything that is measured shares.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) binary: PathBuf,
    pub(super) plugin: PathBuf,
    pub(super) rounds: u32,
}

/// A private server with the table, and rows to copy from.
#[derive(Debug)]
pub(super) struct Source {
    cluster: Cluster,
    pub(super) client: Client,
    next_id: u64,
}

impl Source {
    /// A server of the distribution's binaries (never those from npm, which are built for size), durable as a
    /// production one.
    pub(super) async fn open() -> Result<Self> {
        let binaries = Binaries::find()?.context(
            "measuring needs a distribution's Postgres server (14 or newer): install the package postgresql, or set \
             ANABRANCH_PG_BIN",
        )?;
        let options = ClusterOptions::new()
            .durable()
            .binaries(binaries)
            .setting("shared_buffers", "512MB")
            .setting("max_wal_size", "16GB")
            .setting("checkpoint_timeout", "1h")
            .setting("autovacuum", "off");
        let cluster = Cluster::start(options)?;
        connect(&cluster.url("postgres")).await?.batch_execute("create database bench").await?;
        let client = connect(&cluster.url("bench")).await?;
        client.batch_execute(shop::SCHEMA).await?;
        Ok(Self { cluster, client, next_id: 1 })
    }

    pub(super) fn url(&self) -> String {
        self.cluster.url("bench")
    }

    /// One of the server's own programs; an error that says so where the package is without it.
    pub(super) fn program(&self, name: &str) -> Result<Command> {
        let path = self.cluster.binaries().program(name);
        if !path.is_file() {
            bail!("{name} is not beside the server in {}: nothing to measure against", path.display());
        }
        Ok(Command::new(path))
    }

    /// Waits until the disk has everything: else the system writes out what was inserted while something is
    /// measured that waits for the same disk.
    pub(super) async fn settle(&self) -> Result<()> {
        self.client.batch_execute("checkpoint").await?;
        let status = Command::new("sync").status().context("sync")?;
        if !status.success() {
            bail!("sync: {status}");
        }
        Ok(())
    }

    /// New rows, so many a transaction. Not waiting for the disk, since only reading is measured. Says when the last
    /// transaction was committed.
    pub(super) async fn insert(&mut self, rows: u64, per_transaction: u64) -> Result<SystemTime> {
        let stage = "create unlogged table if not exists bench_stage (like public.products)";
        self.client.batch_execute(stage).await?;
        let staged: i64 = self.client.query_one("select count(*) from bench_stage", &[]).await?.get(0);
        if u64::try_from(staged)? < rows {
            let insert = shop::insert_products(u64::try_from(staged)? + 1, rows, 0)
                .replace("insert into public.products", "insert into bench_stage");
            self.client.batch_execute(&insert).await?;
            let index = "create index if not exists bench_stage_id on bench_stage (id); analyze bench_stage";
            self.client.batch_execute(index).await?;
        }
        let offset = self.next_id - 1;
        self.next_id += rows;
        self.client.batch_execute("set synchronous_commit = off").await?;
        self.client
            .batch_execute(&format!(
                "do $$
                declare at bigint := 1;
                begin
                    while at <= {rows} loop
                        insert into public.products
                        select {offset} + id, sku, name, description, category, price, stock, active, tags,
                            attributes, created_at, updated_at
                        from bench_stage where id between at and least(at + {per_transaction} - 1, {rows});
                        commit;
                        at := at + {per_transaction};
                    end loop;
                end $$"
            ))
            .await?;
        let committed = SystemTime::now();
        self.client.batch_execute("set synchronous_commit = on; checkpoint; analyze public.products").await?;
        Ok(committed)
    }

    /// Waits until a slot has passed everything that was written so far.
    pub(super) async fn passed(&self, slot: &str) -> Result<()> {
        let end: String =
            self.client.query_one("select pg_current_wal_insert_lsn()::text", &[]).await?.get(0);
        // A position is saved soon after a change, and seldom without one.
        self.client.batch_execute("update public.products set stock = stock where id = 1").await?;
        let query = format!(
            "select confirmed_flush_lsn >= '{end}'::pg_lsn from pg_replication_slots where slot_name = '{slot}'"
        );
        let passed = async || Ok(self.client.query_one(&query, &[]).await?.get::<_, bool>(0));
        wait_until("the slot to pass everything", DEADLINE, passed).await
    }

    /// A host of this source, not running yet. `sink` is the body of its `[sink.out]`. Its log tells what benchmarks
    /// read.
    pub(super) fn host(&self, bench: &Bench, slot: &str, sink: &str, backfill: bool) -> Result<Host> {
        let host = Host::new(&bench.binary)?;
        self.configure(bench, &host, slot, sink, backfill, "[log]\nlevel = \"debug\"\n")?;
        Ok(host)
    }

    /// Writes the config of a host, with further sections.
    pub(super) fn configure(
        &self,
        bench: &Bench,
        host: &Host,
        slot: &str,
        sink: &str,
        backfill: bool,
        more: &str,
    ) -> Result<()> {
        guests::install(&bench.plugin, &host.path("plugins"), "product-search")?;
        host.config(&format!(
            r#"[source]
url = "{}"
slot = "{slot}"
publication = "bench"

[plugins]
cache_dir = "cache"

[sink.out]
{sink}

[[map]]
table = "public.products"
transform = "product-search"
auto_backfill = {backfill}

{more}"#,
            self.url()
        ))
    }
}

/// Waits until the null sink of a host has counted so many documents.
pub(super) async fn wait_counted(host: &mut Host, from: usize, documents: u64) -> Result<Counted> {
    let description = format!("{documents} documents at the sink");
    let mut pace = Pace::new(&description, DEADLINE);
    loop {
        let log = host.log();
        let counted = Counted::read(log.get(from..).unwrap_or_default());
        if let Some(counted) = counted.filter(|counted| counted.documents >= documents) {
            return Ok(counted);
        }
        if !host.is_running()? {
            bail!("the host ended\n{}", host.log_tail());
        }
        pace.again(Ok(false)).await.with_context(|| host.log_tail())?;
    }
}

/// What a host's log says of its null sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) documents: u64,
    /// When the first and the last delivery were, in seconds since midnight.
    pub(super) first: f64,
    pub(super) last: f64,
    /// From the line that says it is streaming to the last delivery.
    pub(super) took: Duration,
}

impl Counted {
    fn read(log: &str) -> Option<Self> {
        let began = log.lines().find(|line| line.contains(": streaming "))?;
        let first = log.lines().find(|line| line.contains(": counted "))?;
        let last = log.lines().rev().find(|line| line.contains(": counted "))?;
        let documents = last.rsplit_once("documents=")?.1.split_whitespace().next()?.parse().ok()?;
        let (first, last) = (time_of_day(first)?, time_of_day(last)?);
        let took = Duration::from_secs_f64((last - time_of_day(began)?).rem_euclid(86_400.0));
        Some(Self { documents, first, last, took })
    }

    /// How long after a moment of the same day the first and the last delivery were, in seconds.
    pub(super) fn after(&self, moment: SystemTime) -> Result<(f64, f64)> {
        let since = moment.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64() % 86_400.0;
        // Before it: less than nothing, and not almost a day.
        let passed = |at: f64| (at - since + 43_200.0).rem_euclid(86_400.0) - 43_200.0;
        Ok((passed(self.first), passed(self.last)))
    }
}

/// Seconds since midnight of a log line.
fn time_of_day(line: &str) -> Option<f64> {
    let time = line.split_whitespace().next()?.split_once('T')?.1.strip_suffix('Z')?;
    let mut parts = time.split(':').map(str::parse::<f64>);
    let (hours, minutes, seconds) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_log_over_midnight() {
        let log = "2026-11-29T23:59:59.500000Z  INFO anabranch::runtime::term: streaming slot=\"a\" from=0/1\n\
                   2026-11-30T00:00:01.250000Z DEBUG anabranch::sink::null: counted documents=7\n\
                   2026-11-30T00:00:02.000000Z DEBUG anabranch::sink::null: counted documents=9 bytes=1\n";
        let counted = Counted::read(log).unwrap();
        assert_eq!((counted.documents, counted.took), (9, Duration::from_millis(2500)));
    }
}
