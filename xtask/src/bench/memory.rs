//! The most memory that a host ever held (`VmHWM`): after a backfill, after one large transaction, and whether it grows
//! with the number of small ones.

use anyhow::Result;

use super::figures::Figures;
use super::source::{Bench, DEADLINE, Source, wait_counted};

const SLOT: &str = "bench";
const NULL: &str = "kind = \"null\"";

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    /// Rows of the backfill.
    pub(super) rows: u64,
    /// Rows of the one transaction.
    pub(super) transaction_rows: u64,
    /// Transactions of one row.
    pub(super) small_transactions: u64,
}

pub(super) async fn measure(bench: &Bench, amount: Amount, figures: &mut Figures) -> Result<()> {
    let Amount { rows, transaction_rows, small_transactions } = amount;
    figures.say(&format!(
        "== memory: a backfill of {rows} rows, a transaction of {transaction_rows}, {small_transactions} of one row"
    ));
    let mut source = Source::open().await?;
    source.insert(rows, rows).await?;
    let mut host = source.host(bench, SLOT, NULL, true)?;
    host.start()?;
    host.wait_log(0, ": backfill complete ", DEADLINE).await?;
    let backfill = mib(host.peak_memory_kib()?);
    figures.one("peak_rss_mib_backfill", backfill);
    host.terminate(DEADLINE)?;

    let mut peak = backfill;
    for (kept_by, streaming) in [("host", true), ("server", false)] {
        // A process of its own, so that the peak is this one's.
        let more =
            format!("[pipeline]\nstreaming = {streaming}\nspool_dir = \"spool\"\n[log]\nlevel = \"debug\"\n");
        source.configure(bench, &host, SLOT, NULL, true, &more)?;
        let from = host.log_length();
        host.start()?;
        host.wait_log(from, ": streaming ", DEADLINE).await?;
        let committed = source.insert(transaction_rows, transaction_rows).await?;
        let (first, last) = wait_counted(&mut host, from, transaction_rows).await?.after(committed)?;
        let transaction = mib(host.peak_memory_kib()?);
        source.passed(SLOT).await?;
        figures.one(&format!("peak_rss_mib_transaction_kept_by_{kept_by}"), transaction);
        figures.one(&format!("transaction_first_s_kept_by_{kept_by}"), first);
        figures.one(&format!("transaction_last_s_kept_by_{kept_by}"), last);
        host.terminate(DEADLINE)?;
        peak = peak.max(transaction);
    }
    if small_transactions > 0 {
        // Without what benchmarks read in the log, which would have a line for each.
        source.configure(bench, &host, SLOT, NULL, true, "")?;
        let from = host.log_length();
        host.start()?;
        host.wait_log(from, ": streaming ", DEADLINE).await?;
        let small = small(&mut source, &host, small_transactions, figures).await?;
        host.terminate(DEADLINE)?;
        peak = peak.max(small);
    }
    figures.one("peak_rss_mib", peak);
    Ok(())
}

/// The peak after each tenth of the transactions.
async fn small(source: &mut Source, host: &testkit::Host, count: u64, figures: &mut Figures) -> Result<f64> {
    const PARTS: u64 = 10;
    let mut peaks = Vec::new();
    for _ in 0..PARTS {
        source.insert(count / PARTS, 1).await?;
        source.passed(SLOT).await?;
        peaks.push(mib(host.peak_memory_kib()?));
    }
    let last = peaks.last().copied().unwrap_or(f64::NAN);
    let first = peaks.first().copied().unwrap_or(f64::NAN);
    figures.say(&format!("   after each tenth: {peaks:.1?}"));
    figures.one("peak_rss_mib_small_transactions", last);
    figures.one("peak_rss_mib_small_transactions_growth", last - first);
    Ok(last)
}

pub(super) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
