//! `cargo xtask demo`: a small shop flows through two real plugins into an SQLite file.
//!
//! It shells out to the `anabranch` binary as a user would, and believes nothing that the binary says about its
//! own work: documents are counted in the destination, and destination and source are compared by SQL.

mod live;
mod report;
mod shop;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testkit::Host;
use testkit::checker::{Destination, Expectation, settle};
use testkit::guests::{self, Guest};
use testkit::shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS};
use testkit::wait::Pace;
use tokio::signal::unix::{SignalKind, signal};

use self::live::LiveChanges;
use self::report::{Mapping, grouped, say, seconds, short, watch, what_next};
use self::shop::Shop;
use crate::setup;
use crate::steps::Steps;

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Arguments {
    /// Rows of the shop's three tables together
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..=50_000_000))]
    rows: u64,
    /// End after the comparison; exit code 1 if destination and source differ
    #[arg(long)]
    once: bool,
    /// Build the host with optimisations (compiles for longer, streams faster)
    #[arg(long)]
    release: bool,
}

/// What the bumped plugin says its version is.
const BUMPED: &str = "1.1.0";
/// What it says before.
const FIRST: &str = "1.0.0";
const PRODUCTS: &str = "public.products";
const ORDERS: &str = "public.orders";
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        // A task of its own, so that the signals are heard while it computes; aborted, it drops the server and
        // the host, which ends them and removes their directories.
        let mut demo = tokio::spawn(demo(arguments));
        tokio::select! {
            finished = &mut demo => finished?,
            _ = interrupted.recv() => abandon(demo).await,
            _ = terminated.recv() => abandon(demo).await,
        }
    })
}

async fn abandon(demo: tokio::task::JoinHandle<Result<ExitCode>>) -> Result<ExitCode> {
    say("interrupted: cleaning up");
    demo.abort();
    // Either way everything it held is dropped when this returns.
    let _ = demo.await;
    say("everything is cleaned up");
    Ok(ExitCode::from(130))
}

async fn demo(arguments: Arguments) -> Result<ExitCode> {
    let mut prepared = None;
    let mut steps = Steps::new();
    let ready = steps.step("a Rust for guests", setup::toolchain)
        && steps.step("a Postgres server", setup::postgres)
        && steps.step("the host", || {
            let binary = setup::host(arguments.release)?;
            let text = binary.display().to_string();
            prepared = Some(binary);
            Ok(text)
        });
    let Some(binary) = prepared.filter(|_| ready) else { return Ok(steps.finish("demo")) };

    let mut host = Host::new(&binary)?;
    let bumped = Guest::new("plugins/product-search").version(BUMPED);
    let built = steps.step("the plugins", || {
        host.plugin("product-search", &Guest::new("plugins/product-search").version(FIRST))?;
        host.plugin("order-summary", &Guest::new("plugins/order-summary").version(FIRST))?;
        guests::build(&binary, &bumped)?;
        Ok(format!("product-search {FIRST} and {BUMPED}, order-summary {FIRST}"))
    });
    if !built {
        return Ok(steps.finish("demo"));
    }

    say(&format!("a throwaway Postgres with a shop of {} rows", grouped(arguments.rows)));
    let started = Instant::now();
    let shop = Shop::open(arguments.rows).await?;
    println!("   filled in {}", seconds(started.elapsed()));
    host.config(&shop.config())?;
    let destinations = ["products", "orders"].map(|table| Destination::new(host.path("search.db"), table));

    say("`anabranch run`: rows that are there and rows that change, at once");
    let started = Instant::now();
    host.start()?;
    let live = LiveChanges::start(&shop).await?;
    let counted = || Ok([destinations[0].count()?, destinations[1].count()?]);
    watch(&mut host, &shop, counted, |host| {
        Ok(Mapping::read(host, PRODUCTS)?.is_built() && Mapping::read(host, ORDERS)?.is_built())
    })
    .await?;
    let [products, orders] = counted()?;
    let total = grouped(products + orders);
    println!(
        "   backfilled: {total} documents in {}, changes arriving all the while",
        seconds(started.elapsed())
    );
    if let Some(id) = shop.a_product().await?
        && let Some(document) = destinations[0].get(&id)?
    {
        println!("   products {id}: {}", short(&document));
    }

    say(&format!("product-search {FIRST} → {BUMPED}: its file is replaced while the host runs"));
    let before = (Mapping::read(&host, PRODUCTS)?, Mapping::read(&host, ORDERS)?);
    for destination in &destinations {
        destination.note_writes()?;
    }
    let started = Instant::now();
    guests::install(&guests::build(&binary, &bumped)?, &host.path("plugins"), "product-search")?;
    let written = || anyhow::Ok([destinations[0].written()?, destinations[1].written()?]);
    let counted = || Ok(written()?.map(|(written, _)| written));
    watch(&mut host, &shop, counted, |host| {
        let products = Mapping::read(host, PRODUCTS)?;
        Ok(products.generation > before.0.generation && products.is_built())
    })
    .await?;
    let after = (Mapping::read(&host, PRODUCTS)?, Mapping::read(&host, ORDERS)?);
    let [products, orders] = written()?;
    let line = |name: &str, before: &Mapping, after: &Mapping, (written, of): (u64, u64)| {
        println!(
            "   {name}: version {} → {}, generation {} → {}, {} of {} documents written",
            before.version,
            after.version,
            before.generation,
            after.generation,
            grouped(written),
            grouped(of)
        );
    };
    line("products", &before.0, &after.0, products);
    line("orders  ", &before.1, &after.1, orders);
    println!("   rebuilt in {}", seconds(started.elapsed()));
    let rebuilt = products.0 == products.1;
    if !rebuilt {
        println!("   FAILED: the bump of product-search left documents of {PRODUCTS} as they were");
    }
    let others_untouched = before.1 == after.1;
    if !others_untouched {
        println!("   FAILED: the bump of product-search touched the mapping of {ORDERS}");
    }

    say("destination = transform(source), both ways");
    let made = live.stop().await?;
    println!("   {} transactions were committed meanwhile", grouped(made.steps));
    let equal = compared(&shop, &destinations).await?;
    if !(equal && rebuilt && others_untouched) {
        println!("{}", host.log_tail());
    }
    let code = if equal && rebuilt && others_untouched { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if !arguments.once {
        what_next(&shop, &host, &binary).await?;
        // Ends by a signal (see `run`) or with the host.
        let mut pace = Pace::new("the host to end", Duration::MAX);
        while pace.again(host.is_running().map(|running| !running)).await? {}
        bail!("the host ended by itself\n{}", host.log_tail());
    }
    let status = host.terminate(STOP_DEADLINE)?;
    if !status.success() {
        bail!("the host did not end well after SIGTERM: {status}\n{}", host.log_tail());
    }
    say("the host drained and ended; everything is cleaned up");
    Ok(code)
}

/// Waits until both destinations are what SQL makes of the source, and prints what came of it.
async fn compared(shop: &Shop, destinations: &[Destination; 2]) -> Result<bool> {
    let mut equal = true;
    for (destination, documents) in destinations.iter().zip([PRODUCT_DOCUMENTS, ORDER_DOCUMENTS]) {
        match settle(shop.client(), &Expectation::new(documents), destination, SETTLE_DEADLINE).await {
            Ok(comparison) => println!("   {comparison}"),
            Err(error) => {
                equal = false;
                println!("   FAILED: {error:#}");
            }
        }
    }
    Ok(equal)
}
