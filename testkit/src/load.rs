//! A seeded mixed load on the [shop](mod@crate::shop): inserts, updates, key updates, deletes, large `COPY`s,
//! savepoints that are rolled back, transactions of many rows over two tables. The same seed on the same data
//! does the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::Client;

use crate::postgres::connect;
use crate::shop;
use crate::wait::Pace;

/// Ids of rows that a load inserts start here; each seed has a range of its own.
const OWN_IDS: u64 = 1_000_000_000;
/// How many ids are touched again and again.
const HOT_IDS: u64 = 40;

/// A small generator of random numbers (splitmix64): the same sequence for a seed, everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }
}

/// What a load does.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Decides everything that is random.
    pub seed: u64,
    /// The ids 1 to this of both tables are touched, whether they are still there or not.
    pub known_ids: u64,
    /// Every so many steps, a `COPY` of [`LoadOptions::copy_rows`] products; 0: never.
    pub copy_every: u64,
    /// Rows of such a `COPY`.
    pub copy_rows: u64,
    /// Every so many steps, `truncate public.orders`; 0: never.
    pub truncate_every: u64,
}

impl LoadOptions {
    /// A `COPY` of 50 000 rows every 500 steps, no `TRUNCATE`.
    pub fn new(seed: u64, known_ids: u64) -> Self {
        Self { seed, known_ids, copy_every: 500, copy_rows: 50_000, truncate_every: 0 }
    }
}

/// What a load has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Steps, each a transaction at least.
    pub steps: u64,
    /// Steps whose connection was lost: done or not, nobody knows.
    pub interrupted: u64,
    /// Steps that were undone by the server because of another session (deadlock, serialization).
    pub conflicts: u64,
    /// Large `COPY`s.
    pub copies: u64,
    /// Truncations.
    pub truncations: u64,
}

/// A running load: one session that does one step after the other.
#[derive(Debug)]
pub struct Load {
    url: String,
    client: Client,
    options: LoadOptions,
    random: Random,
    next_id: u64,
    counts: LoadCounts,
}

impl Load {
    /// Connects; the [shop's](crate::shop) tables must be there.
    pub async fn new(url: &str, options: LoadOptions) -> Result<Self> {
        let client = connect(url).await?;
        let random = Random::new(options.seed);
        let next_id = OWN_IDS * (1 + options.seed % 1_000_000);
        Ok(Self { url: url.to_owned(), client, options, random, next_id, counts: LoadCounts::default() })
    }

    /// What it has done.
    pub fn counts(&self) -> LoadCounts {
        self.counts
    }

    /// So many steps.
    pub async fn run(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            self.step().await?;
        }
        Ok(())
    }

    /// Steps until somebody sets `stop`.
    pub async fn run_until(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.step().await?;
        }
        Ok(())
    }

    /// One step. A lost connection (the server was restarted) is made anew; that, or a deadlock, is no error.
    pub async fn step(&mut self) -> Result<()> {
        self.counts.steps += 1;
        let due = |every: u64| every > 0 && self.counts.steps.is_multiple_of(every);
        let done = if due(self.options.copy_every) {
            self.copy().await
        } else if due(self.options.truncate_every) {
            self.counts.truncations += 1;
            self.execute("truncate public.orders").await
        } else {
            let statements = self.next_statements();
            self.execute(&statements).await
        };
        let Err(error) = done else { return Ok(()) };
        let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
        let class = code.map_or("", |code| &code.code()[..2]);
        if class == "40" {
            self.counts.conflicts += 1;
            return self.execute("rollback").await;
        }
        // Class 57: the server shuts down, or somebody terminated the session.
        if class != "57" && !self.client.is_closed() {
            return Err(error);
        }
        self.counts.interrupted += 1;
        self.reconnect().await
    }

    async fn execute(&self, statements: &str) -> Result<()> {
        self.client.batch_execute(statements).await.with_context(|| format!("load: {statements}"))
    }

    async fn reconnect(&mut self) -> Result<()> {
        let mut pace = Pace::new("the load's database to be back", Duration::from_secs(60));
        loop {
            let connected = connect(&self.url).await.map(|client| self.client = client);
            if !pace.again(connected.map(|()| true)).await? {
                return Ok(());
            }
        }
    }

    fn known_id(&mut self) -> u64 {
        let own = self.next_id.saturating_sub(OWN_IDS * (1 + self.options.seed % 1_000_000));
        match self.random.below(10) {
            0..=2 => 1 + self.random.below(HOT_IDS),
            3..=4 if own > 0 => self.next_id - 1 - self.random.below(own.min(1_000)),
            _ => 1 + self.random.below(self.options.known_ids),
        }
    }

    fn new_ids(&mut self, count: u64) -> (u64, u64) {
        let first = self.next_id;
        self.next_id += count;
        (first, self.next_id - 1)
    }

    /// Several statements in one message are one transaction.
    fn next_statements(&mut self) -> String {
        let id = self.known_id();
        let salt = self.random.below(1_000_000);
        match self.random.below(100) {
            0..30 => format!(
                "update public.products set stock = {}, price = price + 0.01, updated_at = now() where id = {id}",
                salt % 500
            ),
            30..45 => {
                let count = 1 + self.random.below(10);
                let (first, last) = self.new_ids(count);
                shop::insert_products(first, last, salt)
            }
            45..60 => {
                let (first, last) = self.new_ids(3);
                let other = self.known_id();
                shop::insert_orders(first, last, salt)
                    + &format!(
                        "update public.products set stock = stock - 1 where id in ({id}, {other});
                         update public.orders set status = 'paid', note = null where id = {other}"
                    )
            }
            60..70 => format!(
                "update public.products set active = not active where id between {id} and {};
                 update public.orders set total = total + 1 where id between {id} and {}",
                id + 50,
                id + 20
            ),
            70..80 => {
                let (first, last) = self.new_ids(2);
                format!(
                    "update public.products set id = {first} where id = {id};
                     update public.orders set id = {last}, status = 'shipped' where id = {id}"
                )
            }
            80..86 => format!(
                "delete from public.products where id between {id} and {};
                 delete from public.orders where id = {id}",
                id + salt % 3
            ),
            86..93 => self.savepoints(id, salt),
            // A value that Postgres stores out of line, then an update that leaves it unchanged.
            93..97 => format!(
                "update public.products set description =
                     (select string_agg(md5((i + {salt})::text), ' ') from generate_series(1, 400) as i)
                 where id = {id};
                 update public.products set stock = {salt} where id = {id}"
            ),
            _ => format!(
                "delete from public.products where id = {id}; {}",
                shop::insert_products(id, id, salt)
            ),
        }
    }

    fn savepoints(&mut self, id: u64, salt: u64) -> String {
        let (first, last) = self.new_ids(20);
        let (kept_first, kept_last) = self.new_ids(2);
        format!(
            "begin;
             update public.orders set status = 'draft' where id = {id};
             savepoint one;
             {}
             update public.orders set status = 'cancelled' where id = {id};
             savepoint two;
             delete from public.products where id = {id};
             rollback to savepoint two;
             rollback to savepoint one;
             {}
             savepoint three;
             update public.orders set note = 'kept {salt}' where id = {id};
             release savepoint three;
             commit",
            shop::insert_products(first, last, salt),
            shop::insert_products(kept_first, kept_last, salt),
        )
    }

    async fn copy(&mut self) -> Result<()> {
        self.counts.copies += 1;
        let (first, last) = self.new_ids(self.options.copy_rows);
        let sink = self.client.copy_in("copy public.products from stdin").await?;
        let mut sink = std::pin::pin!(sink);
        let mut page = String::new();
        for id in first..=last {
            let h = self.random.below(1_000_000);
            page.push_str(&format!(
                "{id}\tSKU-{h}\tCopied {id}\tOne of many rows.\tgarden\t{}.{:02}\t{}\t{}\t{{a,\"b c\"}}\t\
                 {{\"batch\": {h}}}\t2026-02-03 04:05:06+00\t2026-02-03 04:05:06.{h:06}+00\n",
                h / 100,
                h % 100,
                h % 500,
                if h.is_multiple_of(2) { 't' } else { 'f' },
            ));
            if page.len() >= 1 << 16 || id == last {
                sink.send(Bytes::from(std::mem::take(&mut page))).await?;
            }
        }
        sink.finish().await?;
        Ok(())
    }
}
