//! Some rows of a table, taken at random: whole pages by `tablesample`, and of their rows as many as are wanted.
//!
//! The publication's row filter holds, its column list does not: a plugin that is not deployed yet may read other columns.
//! Guarantees otherwise as its parent's, and that a large table is not read as a whole unless its pages are nearly empty.

use std::{sync::Arc, time::Duration};

use super::{Opened, Rows, SnapshotReader, select_from};
use crate::{
    model::{ChangeBatch, EntityName, Relation},
    postgres::Error,
};

/// So many times the rows that are wanted should be in the pages: rows of one page are often alike.
const SPREAD: f64 = 8.0;
/// How much more is read of a table whose pages had too few rows.
const STEP: f64 = 10.0;
/// Where nobody knows how many rows there are, this much is read first, in percent.
const FIRST: f64 = 1.0;

/// Which rows to take.
#[derive(Clone, Copy, Debug)]
pub struct SampleRequest<'a> {
    /// The table.
    pub entity: &'a EntityName,
    /// Only these columns and the key's; none for all.
    pub columns: Option<&'a [String]>,
    /// So many rows, or all where there are fewer.
    pub rows: u32,
    /// No further rows once so many bytes of text were read.
    pub max_bytes: usize,
    /// The server gives up a statement after this.
    pub timeout: Duration,
}

/// Rows of a table.
#[derive(Debug)]
pub struct Sample {
    /// The table as it is.
    pub relation: Arc<Relation>,
    /// The rows, as reads of a backfill, in no order; positions are 0.
    pub batch: ChangeBatch,
    /// The planner's guess at the number of all rows.
    pub estimated_rows: Option<i64>,
}

impl SnapshotReader {
    /// Reads some rows at random. Not cancel-safe, as [`read_chunk`](Self::read_chunk).
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn sample(&mut self, request: &SampleRequest<'_>) -> Result<Sample, Error> {
        self.guard()?;
        let result = self.sampled(request).await;
        self.unguard(result, request.entity).await
    }

    async fn sampled(&mut self, request: &SampleRequest<'_>) -> Result<Sample, Error> {
        self.unlisted = true;
        let opened = self.begin(request.entity, request.columns, Some(request.timeout)).await;
        self.unlisted = false;
        let opened = opened?;
        let estimated_rows = opened.table.estimated_rows;
        let mut share = first_share(request.rows, estimated_rows);
        let rows = loop {
            let rows = self.share(&opened, request, share).await?;
            match next_share(share, rows.count(), request.rows, rows.bytes() >= request.max_bytes) {
                Some(next) => share = next,
                None => break rows,
            }
        };
        self.wire.query("commit").await?;
        Ok(Sample { relation: opened.relation, batch: rows.batch, estimated_rows })
    }

    async fn share(
        &mut self,
        opened: &Opened,
        request: &SampleRequest<'_>,
        share: f64,
    ) -> Result<Rows, Error> {
        let part = if share < 100.0 { format!(" tablesample system ({share})") } else { String::new() };
        let select = select_from(opened, &part, Vec::new());
        let mut rows = Rows::new(&opened.relation);
        let declare = "declare anabranch_sample no scroll cursor for";
        let mut opening = format!("{declare} {select} order by random() limit {}; ", request.rows);
        while rows.bytes() < request.max_bytes {
            let before = rows.count();
            self.fetch(&format!("{opening}fetch forward 100 from anabranch_sample"), &mut rows).await?;
            opening.clear();
            if rows.count() - before < 100 {
                break;
            }
        }
        self.wire.query("close anabranch_sample").await?;
        Ok(rows)
    }
}

/// How much of a table to read first, in percent.
fn first_share(rows: u32, estimate: Option<i64>) -> f64 {
    let share = |all: i64| f64::from(rows) * SPREAD * 100.0 / all as f64;
    match estimate {
        Some(all) if all > 0 => share(all).clamp(0.0001, 100.0),
        _ => FIRST,
    }
}

/// How much to read next, where there were too few rows.
fn next_share(share: f64, found: u32, wanted: u32, is_full: bool) -> Option<f64> {
    (share < 100.0 && found < wanted && !is_full).then_some((share * STEP).min(100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_tables_are_read_whole_and_large_ones_in_part() {
        assert!((first_share(100, Some(500)) - 100.0).abs() < 1e-9);
        assert!((first_share(100, Some(80_000_000)) - 0.001).abs() < 1e-9);
        assert!((first_share(1, Some(i64::MAX)) - 0.0001).abs() < 1e-9);
        assert!((first_share(100, None) - FIRST).abs() < 1e-9, "never analysed");
        assert!((first_share(100, Some(0)) - FIRST).abs() < 1e-9);
    }

    #[test]
    fn more_is_read_until_there_are_enough_rows() {
        assert_eq!(next_share(1.0, 5, 5, false), None);
        assert_eq!(next_share(1.0, 4, 5, false), Some(10.0));
        assert_eq!(next_share(20.0, 4, 5, false), Some(100.0));
        assert_eq!(next_share(100.0, 4, 5, false), None, "there are no more");
        assert_eq!(next_share(1.0, 4, 5, true), None, "there is no more room");
    }
}
