//! Transaction ids and what a snapshot can see of them.

use std::str::FromStr;

/// A top-level transaction id as the stream carries it: 32 bits that wrap.
pub type Xid = u32;

/// A snapshot as `pg_current_snapshot()` writes it: `xmin:xmax:xip,xip…` with 64-bit ids of top-level
/// transactions (Postgres documentation, "Transaction ID and Snapshot Information Functions").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction before this one had ended.
    pub xmin: u64,
    /// No transaction from this one on had ended.
    pub xmax: u64,
    /// Those between that were still in progress, ascending.
    pub in_progress: Vec<u64>,
}

impl Snapshot {
    /// Whether this snapshot sees the effects of `xid`, given that `xid` committed.
    ///
    /// The stream's 32 bits are completed with the epoch that puts them nearest to `xmax`: two live
    /// transaction ids are never 2^31 apart (Postgres documentation, "Preventing Transaction ID
    /// Wraparound Failures").
    #[must_use]
    pub fn sees(&self, xid: Xid) -> bool {
        let full = self.widen(xid);
        full < self.xmax && self.in_progress.binary_search(&full).is_err()
    }

    /// The 64-bit id that the stream's 32 bits stand for.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the low 32 bits are meant")]
    pub fn widen(&self, xid: Xid) -> u64 {
        let ahead = xid.wrapping_sub(self.xmax as u32) as i32;
        self.xmax.saturating_add_signed(i64::from(ahead))
    }
}

/// The text is not a snapshot of the form `xmin:xmax:xip,…`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a snapshot; `pg_current_snapshot()` writes `10:20:10,14,15`")]
pub struct ParseSnapshotError(String);

impl FromStr for Snapshot {
    type Err = ParseSnapshotError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split(':');
            let xmin = parts.next()?.parse().ok()?;
            let xmax = parts.next()?.parse().ok()?;
            let list = parts.next()?;
            let ids = list.split(',').filter(|id| !id.is_empty());
            let mut in_progress = ids.map(|id| id.parse().ok()).collect::<Option<Vec<u64>>>()?;
            in_progress.sort_unstable();
            (parts.next().is_none() && xmin <= xmax).then_some(Self { xmin, xmax, in_progress })
        };
        parse().ok_or_else(|| ParseSnapshotError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_that_was_measured() {
        // Commit of 846 was streamed while the snapshot still had it in progress.
        let snapshot: Snapshot = "846:848:846".parse().unwrap();
        assert!(!snapshot.sees(846));
        assert!(snapshot.sees(845));
        assert!(snapshot.sees(847));
        assert!(!snapshot.sees(848));
    }

    #[test]
    fn ids_wrap() {
        let snapshot: Snapshot = "4294967290:4294967300:4294967295".parse().unwrap();
        assert!(snapshot.sees(4_294_967_294), "the epoch before");
        assert!(!snapshot.sees(u32::MAX));
        assert!(snapshot.sees(3), "wrapped, still before xmax");
        assert!(!snapshot.sees(4), "xmax itself");
        assert!(!snapshot.sees(50));
    }

    #[test]
    fn malformed_snapshots_are_refused() {
        for text in ["", "1", "1:2", "2:1:", "1:2:x", "1:2::", "-1:2:"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
        assert_eq!("5:5:".parse::<Snapshot>().unwrap().in_progress, Vec::<u64>::new());
    }
}
