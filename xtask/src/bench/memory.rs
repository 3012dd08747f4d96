//! The most memory that a host ever held (`VmHWM`): after a backfill, and after one large transaction.

use anyhow::Result;

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source, wait_counted};

pub(super) async fn measure(
    bench: &Bench,
    rows: u64,
    transaction_rows: u64,
    figures: &mut Figures,
) -> Result<()> {
    figures.say(&format!("== memory: a backfill of {rows} rows, then a transaction of {transaction_rows}"));
    let mut source = Source::open().await?;
    source.insert(rows, rows).await?;
    let mut host = source.host(bench, "bench", "kind = \"null\"", true)?;
    host.start()?;
    host.wait_log(0, ": backfill complete ", DEADLINE).await?;
    let backfill = mib(host.peak_memory_kib()?);
    figures.one("peak_rss_mib_backfill", backfill);
    host.terminate(DEADLINE)?;

    // A process of its own, so that the peak is this one's.
    let from = host.log_length();
    host.start()?;
    host.wait_log(from, ": streaming ", DEADLINE).await?;
    source.insert(transaction_rows, transaction_rows).await?;
    wait_counted(&mut host, from, transaction_rows).await?;
    let transaction = mib(host.peak_memory_kib()?);
    figures.one("peak_rss_mib_transaction", transaction);
    host.terminate(DEADLINE)?;
    figures.one("peak_rss_mib", backfill.max(transaction));
    Ok(())
}

pub(super) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
