//! `cargo xtask bench`: what Anabranch costs, as ratios measured in one run on one machine.
//!
//! Absolute numbers are worth little on a machine that does other things: each figure is set against what
//! Postgres's own programs do with the same data, the two sides in turn, and the median of several rounds is
//! told. See `docs/performance.md`. Nothing here decides whether a test passes.

mod backfill;
mod border;
mod figures;
mod latency;
mod load;
mod memory;
mod source;
mod start;
mod stream;

use std::process::ExitCode;

use anyhow::Result;
use testkit::guests::{self, Guest};

use self::figures::Figures;
use self::source::Bench;
use crate::setup;

/// Arguments of `cargo xtask bench`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// What to measure; everything when left out
    #[arg(value_enum)]
    what: Vec<What>,
    /// One JSON object on standard output, nothing else there
    #[arg(long)]
    json: bool,
    /// Rows of a backlog or a table (the default depends on what is measured)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1000..=50_000_000))]
    rows: Option<u64>,
    /// Rows of the one transaction of `memory`
    #[arg(long, default_value_t = 500_000)]
    transaction_rows: u64,
    /// Transactions of one row of `memory`; 0 leaves them out
    #[arg(long, default_value_t = 100_000)]
    small_transactions: u64,
    /// How often each side is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Seconds that `latency` measures
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Measure this binary instead of building one in release mode
    #[arg(long)]
    binary: Option<std::path::PathBuf>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Changes a second, against pg_recvlogical
    Stream,
    /// Rows a second of a backfill, against copy to stdout
    Backfill,
    /// A transform through WebAssembly, against the same natively
    Border,
    /// From commit to sink
    Latency,
    /// The most memory that a host ever held
    Memory,
    /// Until ten plugins stream, with a cold and a warm cache
    Start,
    /// A backfill while 1000 transactions a second are committed; only when named
    Load,
}

const ALL: [What; 6] = [What::Stream, What::Backfill, What::Border, What::Latency, What::Memory, What::Start];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(measure(arguments))
}

async fn measure(arguments: &Arguments) -> Result<ExitCode> {
    let binary = match &arguments.binary {
        Some(binary) => std::fs::canonicalize(binary)?,
        None => setup::host(true)?,
    };
    let plugin = guests::build(&binary, &Guest::new("plugins/product-search"))?;
    let bench = Bench { binary, plugin, rounds: arguments.rounds };
    let what: &[What] = if arguments.what.is_empty() { &ALL } else { &arguments.what };
    let mut figures = Figures::new(arguments.json);
    for what in what {
        match what {
            What::Stream => stream::measure(&bench, arguments.rows.unwrap_or(200_000), &mut figures).await?,
            What::Backfill => {
                backfill::measure(&bench, arguments.rows.unwrap_or(500_000), &mut figures).await?;
            }
            What::Border => border::measure(&mut figures)?,
            What::Latency => latency::measure(&bench, arguments.seconds, &mut figures).await?,
            What::Start => start::measure(&bench, &mut figures).await?,
            What::Load => {
                load::measure(&bench, arguments.rows.unwrap_or(1_000_000), arguments.seconds, &mut figures)
                    .await?;
            }
            What::Memory => {
                let rows = arguments.rows.unwrap_or(1_000_000);
                let Arguments { transaction_rows, small_transactions, .. } = *arguments;
                let amount = memory::Amount { rows, transaction_rows, small_transactions };
                memory::measure(&bench, amount, &mut figures).await?;
            }
        }
    }
    figures.finish()?;
    Ok(ExitCode::SUCCESS)
}
