//! What the stream did to one table that a chunk's snapshot may not know of.
//!
//! [`Window`] belongs to one run. It is empty when the run begins, and everything that was streamed before
//! and is not known to be visible is *untracked*: a chunk whose snapshot misses one of these is read again,
//! since nobody knows which of its rows they touched, nor whether this run's targets ever received them.
//! From then on the touched keys are kept by transaction, as long as some undecided reading may miss it.
//!
//! The bound of memory is kept by forgetting: beyond it, transactions become untracked and lose their keys.
//! That may cost a re-reading, never a wrong row.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use crate::model::{Snapshot, Xid};

use super::{Keys, visibility::covers};

/// What a transaction did to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch<'a> {
    /// Touched the row of this document id; an update of the key touches the old and the new one.
    Key(&'a [u8]),
    /// Touched every row: TRUNCATE.
    All,
    /// Touched a row whose document id could not be made out.
    Unknown,
}

/// Why a chunk has to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RereadReason {
    /// Its snapshot misses a transaction whose keys are not known here.
    Untracked,
    /// The table's layout changed between its watermarks.
    RelationChanged,
}

/// What becomes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on without the rows of these indexes (ascending), which the stream has overtaken.
    Emit(Vec<u32>),
    /// Is discarded and read again.
    Reread(RereadReason),
}

#[derive(Debug)]
struct Touched {
    xid: Xid,
    all: bool,
    keys: Keys,
}

/// The live side of one run.
#[derive(Debug)]
pub struct Window {
    touched: VecDeque<Touched>,
    untracked: Vec<Xid>,
    baselines: Vec<Arc<Snapshot>>,
    /// No undecided or later reading has an older snapshot than this one.
    oldest: Option<Arc<Snapshot>>,
    bytes: usize,
    limit: usize,
}

impl Window {
    /// Begins a run: `unseen` was streamed before and is not known to be visible; what `baselines` see was
    /// never streamed; `limit` bounds the memory for keys, in bytes.
    #[must_use]
    pub fn new(unseen: impl Iterator<Item = Xid>, baselines: Vec<Arc<Snapshot>>, limit: usize) -> Self {
        Self {
            touched: VecDeque::new(),
            untracked: unseen.collect(),
            baselines,
            oldest: None,
            bytes: 0,
            limit,
        }
    }

    /// Whether every undecided and every later reading sees this transaction, so that its touches need not be
    /// recorded.
    #[must_use]
    pub fn is_past(&self, xid: Xid) -> bool {
        let recorded = self.touched.back().is_some_and(|last| last.xid == xid);
        !recorded && self.oldest.as_ref().is_some_and(|oldest| oldest.sees(xid))
    }

    /// A committed transaction of the stream touched the table. All touches of one transaction come
    /// together; those of a transaction that is streamed again are just recorded again.
    pub fn record(&mut self, xid: Xid, touch: Touch<'_>) {
        if self.is_past(xid) {
            return;
        }
        if touch == Touch::Unknown {
            return self.distrust(xid);
        }
        if self.untracked.last() == Some(&xid) {
            return;
        }
        if self.touched.back().is_none_or(|last| last.xid != xid) {
            self.bytes += size_of::<Touched>();
            self.touched.push_back(Touched { xid, all: false, keys: Keys::default() });
        }
        let Some(last) = self.touched.back_mut() else { return };
        match touch {
            Touch::Key(key) => {
                let before = last.keys.size();
                last.keys.push(key);
                self.bytes += last.keys.size() - before;
            }
            Touch::All | Touch::Unknown => last.all = true,
        }
        if self.bytes > self.limit {
            self.forget();
        }
    }

    /// A committed transaction touched the table, and nobody may rely on its keys: they are not known, or
    /// a target of the run does not receive it.
    pub fn distrust(&mut self, xid: Xid) {
        let visible = self.oldest.as_ref().is_some_and(|oldest| oldest.sees(xid));
        if !visible && self.untracked.last() != Some(&xid) {
            self.untracked.push(xid);
        }
    }

    /// Gives up all keys: what touched them becomes untracked.
    pub fn forget(&mut self) {
        for entry in std::mem::take(&mut self.touched) {
            self.distrust(entry.xid);
        }
        self.bytes = 0;
    }

    /// From now on no reading with an older snapshot than this one will be judged: what it sees is not
    /// worth keeping.
    pub fn advance(&mut self, oldest: &Arc<Snapshot>) {
        if self.oldest.as_ref().is_some_and(|known| Arc::ptr_eq(known, oldest)) {
            return;
        }
        self.untracked.retain(|xid| !oldest.sees(*xid));
        self.baselines.retain(|baseline| !covers(oldest, baseline));
        self.touched.retain(|entry| !oldest.sees(entry.xid));
        self.bytes = self.touched.iter().map(|entry| size_of::<Touched>() + entry.keys.size()).sum();
        self.oldest = Some(Arc::clone(oldest));
    }

    /// Whether a chunk of this snapshot can be judged here at all.
    #[must_use]
    pub fn can_judge(&self, snapshot: &Snapshot) -> bool {
        self.untracked.iter().all(|xid| snapshot.sees(*xid))
            && self.baselines.iter().all(|baseline| covers(snapshot, baseline))
    }

    /// Whether a reading that begins after `latest` was taken can be judged.
    #[must_use]
    pub fn may_read(&self, latest: Option<&Snapshot>) -> bool {
        match latest {
            Some(snapshot) => self.can_judge(snapshot),
            None => self.untracked.is_empty() && self.baselines.is_empty(),
        }
    }

    /// Judges a chunk at this place of the stream: a row is overtaken when a transaction that was streamed
    /// before touched its key and is not visible in the chunk's snapshot.
    #[must_use]
    pub fn verdict(&self, snapshot: &Snapshot, rows: &Keys) -> Verdict {
        if !self.can_judge(snapshot) {
            return Verdict::Reread(RereadReason::Untracked);
        }
        let unseen: Vec<&Touched> = self.touched.iter().filter(|entry| !snapshot.sees(entry.xid)).collect();
        if unseen.iter().any(|entry| entry.all) {
            return Verdict::Emit(indexes(rows).collect());
        }
        let count: usize = unseen.iter().map(|entry| entry.keys.len()).sum();
        if count == 0 {
            return Verdict::Emit(Vec::new());
        }
        let touched = || unseen.iter().flat_map(|entry| entry.keys.iter());
        // The smaller side is hashed, the other one walked.
        let overtaken: HashSet<&[u8]> = if count <= rows.len() {
            touched().collect()
        } else {
            let chunk: HashSet<&[u8]> = rows.iter().collect();
            touched().filter(|key| chunk.contains(key)).collect()
        };
        let dropped = indexes(rows).zip(rows.iter()).filter(|(_, key)| overtaken.contains(key));
        Verdict::Emit(dropped.map(|(index, _)| index).collect())
    }

    /// How much memory the touched keys hold, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes + self.untracked.len() * size_of::<Xid>()
    }
}

fn indexes(rows: &Keys) -> std::ops::Range<u32> {
    0..u32::try_from(rows.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Arc<Snapshot> {
        Arc::new(text.parse().unwrap())
    }

    fn window(unseen: &[Xid], limit: usize) -> Window {
        Window::new(unseen.iter().copied(), Vec::new(), limit)
    }

    fn rows() -> Keys {
        ["1", "2", "3", "4"].into_iter().collect()
    }

    #[test]
    fn rows_that_an_invisible_commit_touched_are_overtaken() {
        let mut window = window(&[], 1000);
        window.record(846, Touch::Key(b"2"));
        window.record(847, Touch::Key(b"3"));
        window.record(848, Touch::Key(b"4"));
        window.record(848, Touch::Key(b"9"));
        assert_eq!(window.verdict(&snapshot("846:848:846"), &rows()), Verdict::Emit(vec![1, 3]));
        assert_eq!(window.verdict(&snapshot("849:849:"), &rows()), Verdict::Emit(vec![]));
    }

    #[test]
    fn c037_an_invisible_truncate_overtakes_every_row() {
        let mut window = window(&[], 1000);
        window.record(10, Touch::All);
        window.record(11, Touch::Key(b"1"));
        assert_eq!(window.verdict(&snapshot("10:10:"), &rows()), Verdict::Emit(vec![0, 1, 2, 3]));
        assert_eq!(window.verdict(&snapshot("11:11:"), &rows()), Verdict::Emit(vec![0]));
    }

    #[test]
    fn a_snapshot_that_misses_an_untracked_commit_is_read_again() {
        let mut window = window(&[7], 1000);
        let reread = Verdict::Reread(RereadReason::Untracked);
        assert_eq!(window.verdict(&snapshot("7:9:7"), &rows()), reread);
        assert!(!window.may_read(None));
        assert_eq!(window.verdict(&snapshot("8:9:8"), &rows()), Verdict::Emit(vec![]));
        window.record(8, Touch::Unknown);
        assert_eq!(window.verdict(&snapshot("8:9:8"), &rows()), reread);
        window.advance(&snapshot("9:9:"));
        assert!(window.may_read(Some(&snapshot("9:9:"))));
    }

    #[test]
    fn what_was_never_streamed_must_be_visible() {
        let mut window = Window::new([].into_iter(), vec![snapshot("10:14:12")], 1000);
        assert!(!window.may_read(None));
        assert!(!window.can_judge(&snapshot("11:14:11")));
        assert!(window.can_judge(&snapshot("12:14:12")));
        window.advance(&snapshot("12:14:12"));
        assert!(window.may_read(None));
    }

    #[test]
    fn only_what_the_oldest_reading_sees_is_forgotten() {
        let mut window = window(&[], 1000);
        window.record(10, Touch::Key(b"1"));
        window.record(11, Touch::Key(b"2"));
        window.advance(&snapshot("11:12:11"));
        assert_eq!(window.verdict(&snapshot("11:12:11"), &rows()), Verdict::Emit(vec![1]));
        let before = window.size();
        window.record(10, Touch::Key(b"1"));
        assert_eq!(window.size(), before, "what every reading sees is not recorded");
    }

    #[test]
    fn memory_is_bounded_by_forgetting_keys() {
        let mut window = window(&[], 500);
        for key in 0..100_000_u32 {
            window.record(10, Touch::Key(&key.to_le_bytes()));
            assert!(window.size() <= 600);
        }
        assert_eq!(window.verdict(&snapshot("10:10:"), &rows()), Verdict::Reread(RereadReason::Untracked));
        assert_eq!(window.verdict(&snapshot("11:11:"), &rows()), Verdict::Emit(vec![]));
    }

    #[test]
    fn both_ways_of_finding_overtaken_rows_agree() {
        let mut window = window(&[], 100_000);
        window.record(10, Touch::Key(b"2"));
        let few = window.verdict(&snapshot("10:10:"), &rows());
        for key in 100..200 {
            window.record(10, Touch::Key(key.to_string().as_bytes()));
        }
        assert_eq!(window.verdict(&snapshot("10:10:"), &rows()), few);
    }
}
