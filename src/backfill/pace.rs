//! How fast tables may be read: who is paused, and a schedule over the rows that were read.

use std::{collections::BTreeMap, time::Duration};

use super::schedule::{Timestamp, after};

/// The longest that one page holds back the next one.
const LONGEST: Duration = Duration::from_secs(1);

/// So much of what a late reading has lost the next ones make up: a rate is met also where each begins a little late.
/// In microseconds.
const MADE_UP: Timestamp = 100_000;

/// What somebody has set for one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableControl {
    /// No reading of it begins.
    pub paused: bool,
    /// The most rows of it that are read in a second.
    pub rows_per_second: Option<u32>,
}

/// What somebody has set for all tables together, and for some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// No reading begins.
    pub paused: bool,
    /// The most rows that are read in a second, over all tables.
    pub rows_per_second: Option<u32>,
    /// By table.
    pub tables: BTreeMap<u32, TableControl>,
}

impl Controls {
    fn table(&self, table: u32) -> TableControl {
        self.tables.get(&table).copied().unwrap_or_default()
    }
}

/// The controls, and until when the rows that were read use them up.
#[derive(Debug)]
pub(super) struct Pace {
    controls: Controls,
    all: Timestamp,
    tables: BTreeMap<u32, Timestamp>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { controls: Controls::default(), all: Timestamp::MIN, tables: BTreeMap::new() }
    }
}

impl Pace {
    /// Other controls hold from now on. What was read at another rate holds nothing back for longer than one
    /// page may.
    pub(super) fn set(&mut self, controls: Controls, now: Timestamp) {
        let bound = after(now, LONGEST);
        if controls.rows_per_second != self.controls.rows_per_second {
            self.all = self.all.min(bound);
        }
        self.tables.retain(|table, _| controls.table(*table).rows_per_second.is_some());
        for (table, at) in &mut self.tables {
            if controls.table(*table).rows_per_second != self.controls.table(*table).rows_per_second {
                *at = bound.min(*at);
            }
        }
        self.controls = controls;
    }

    /// Whether no reading of the table may begin, at any rate.
    pub(super) fn paused(&self, table: u32) -> bool {
        self.controls.paused || self.controls.table(table).paused
    }

    /// When the next reading of the table may begin, as far as rates go.
    pub(super) fn free_at(&self, table: u32) -> Timestamp {
        let all = self.controls.rows_per_second.map(|_| self.all);
        let own = self.controls.table(table).rows_per_second.and_then(|_| self.tables.get(&table).copied());
        all.max(own).unwrap_or(Timestamp::MIN)
    }

    /// The most rows that one reading of the table may ask for: a second's worth.
    pub(super) fn most(&self, table: u32) -> u32 {
        let rates = [self.controls.rows_per_second, self.controls.table(table).rows_per_second];
        rates.into_iter().flatten().min().unwrap_or(u32::MAX).max(1)
    }

    /// A reading that began then has read so many rows.
    pub(super) fn read(&mut self, table: u32, rows: u64, began: Timestamp) {
        if let Some(rate) = self.controls.rows_per_second {
            self.all = spend(self.all, rows, rate, began);
        }
        if let Some(rate) = self.controls.table(table).rows_per_second {
            let at = self.tables.entry(table).or_insert(Timestamp::MIN);
            *at = spend(*at, rows, rate, began);
        }
    }
}

fn spend(at: Timestamp, rows: u64, rate: u32, began: Timestamp) -> Timestamp {
    // A page that was asked for before the rate was set may be larger.
    let micros = rows.saturating_mul(1_000_000) / u64::from(rate.max(1));
    let from = match at {
        Timestamp::MIN => began,
        at => at.max(began.saturating_sub(MADE_UP)),
    };
    after(from, Duration::from_micros(micros).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn rates(all: Option<u32>, table: Option<u32>) -> Controls {
        let table = TableControl { paused: false, rows_per_second: table };
        Controls { paused: false, rows_per_second: all, tables: [(1, table)].into() }
    }

    #[test]
    fn rows_are_spread_over_time_and_the_slower_rate_holds() {
        let mut pace = Pace::default();
        assert_eq!((pace.free_at(1), pace.most(1)), (Timestamp::MIN, u32::MAX));
        pace.set(rates(Some(100), Some(10)), 0);
        assert_eq!((pace.most(1), pace.most(2)), (10, 100));
        pace.read(1, 5, 0);
        assert_eq!((pace.free_at(1), pace.free_at(2)), (SECOND / 2, SECOND / 20));
        pace.read(2, 100, SECOND);
        let next = 2 * SECOND - MADE_UP;
        assert_eq!((pace.free_at(1), pace.free_at(2)), (next, next), "all tables share a rate");
        pace.read(1, 0, 9 * SECOND);
        assert_eq!(pace.free_at(2), 9 * SECOND - MADE_UP, "an empty page costs nothing");
    }

    #[test]
    fn what_late_readings_lose_is_made_up_and_no_more() {
        let mut pace = Pace::default();
        pace.set(rates(Some(1000), None), 0);
        let mut began = 0;
        for _ in 0..100 {
            pace.read(1, 10, began);
            // Each begins 3 ms after it may.
            began = pace.free_at(1) + 3_000;
        }
        assert_eq!(pace.free_at(1), SECOND, "1000 rows a second, as it was set");
        pace.read(1, 10, 60 * SECOND);
        assert_eq!(
            pace.free_at(1),
            60 * SECOND - MADE_UP + 10_000,
            "an idle minute is no credit for a minute"
        );
    }

    #[test]
    fn a_page_from_before_the_rate_holds_back_for_a_second() {
        let mut pace = Pace::default();
        pace.set(rates(None, Some(1)), 0);
        pace.read(1, 1_000_000, 0);
        assert_eq!(pace.free_at(1), SECOND);
        pace.read(1, 1, 0);
        pace.read(1, 1, 0);
        assert_eq!(pace.free_at(1), 3 * SECOND);
        pace.set(rates(None, Some(2)), SECOND);
        assert_eq!(pace.free_at(1), 2 * SECOND);
        pace.set(Controls::default(), SECOND);
        assert_eq!(pace.free_at(1), Timestamp::MIN);
        pace.set(rates(Some(0), None), 0);
        assert_eq!(pace.most(1), 1, "never none");
    }

    #[test]
    fn pauses_are_for_one_table_or_for_all() {
        let mut pace = Pace::default();
        let paused = TableControl { paused: true, rows_per_second: None };
        pace.set(Controls { tables: [(1, paused)].into(), ..Controls::default() }, 0);
        assert!(pace.paused(1) && !pace.paused(2));
        pace.set(Controls { paused: true, ..Controls::default() }, 0);
        assert!(pace.paused(1) && pace.paused(2));
    }
}
