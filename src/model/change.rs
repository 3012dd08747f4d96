//! Changes of rows, many to a buffer.

use std::sync::Arc;

use super::{Lsn, Relation, Xid};

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new row.
    Insert,
    /// A new version of a row.
    Update,
    /// The end of a row; there is only an old tuple.
    Delete,
    /// A row that a backfill read.
    Read,
    /// The whole table was emptied; there is no tuple.
    Truncate,
}

impl Operation {
    /// The word that plugins and sinks see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Read => "read",
            Self::Truncate => "truncate",
        }
    }
}

/// Which branch of the river a batch came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A committed transaction, live.
    Stream,
    /// A chunk of a backfill.
    Backfill,
}

impl Origin {
    /// The word that plugins and sinks see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Backfill => "backfill",
        }
    }
}

/// One column of one tuple. NULL, the empty text, "unchanged" and "unknown" are four different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// SQL NULL.
    Null,
    /// A TOASTed value that the update did not touch and the server did not send.
    Unchanged,
    /// Not part of an old tuple that carries only the replica identity.
    Unknown,
    /// Postgres's text, at `start .. start + len` of the batch's bytes.
    Text {
        /// Offset into [`ChangeBatch::bytes`].
        start: u32,
        /// Length in bytes.
        len: u32,
    },
}

/// Where a tuple's cells lie in [`ChangeBatch::cells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// The first cell.
    pub first: u32,
    /// How many: the number of columns of its relation.
    pub count: u32,
}

/// One row event of a [`ChangeBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub operation: Operation,
    /// Index into [`ChangeBatch::relations`].
    pub relation: u32,
    /// Index into [`ChangeBatch::transactions`].
    pub transaction: u32,
    /// Position in its transaction (or chunk), from 0.
    pub sequence: u32,
    /// The new tuple; none for delete and truncate.
    pub new: Option<RowSpan>,
    /// The old tuple, as far as the server sent one.
    pub old: Option<RowSpan>,
}

/// The committed transaction (or the chunk) that changes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its top-level id; 0 for a chunk.
    pub xid: Xid,
    /// Where its commit record begins; for a chunk, its high watermark's.
    pub commit_lsn: Lsn,
    /// Where its commit record ends: the position to confirm and to resume from.
    pub end_lsn: Lsn,
    /// When it was committed: microseconds since 1970-01-01 UTC.
    pub commit_time: i64,
}

/// Changes in commit order, with all their tuples in one buffer.
///
/// A batch has whole transactions only: it begins and ends at a commit boundary, so that its last
/// `end_lsn` may be confirmed once all of it is durable; pages of one huge transaction are the exception,
/// told by [`ChangeBatch::ends_at_commit`].
#[derive(Clone, Debug)]
pub struct ChangeBatch {
    /// The branch it came by.
    pub origin: Origin,
    /// The text of all cells.
    pub bytes: Vec<u8>,
    /// The cells of all tuples.
    pub cells: Vec<Cell>,
    /// Each version of a relation that occurs, as valid for the changes that name it.
    pub relations: Vec<Arc<Relation>>,
    /// The transactions, in commit order.
    pub transactions: Vec<TransactionInfo>,
    /// The changes, in commit order.
    pub changes: Vec<Change>,
    /// Whether the last transaction's last change is in this batch.
    pub ends_at_commit: bool,
}

impl ChangeBatch {
    /// An empty batch.
    #[must_use]
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            bytes: Vec::new(),
            cells: Vec::new(),
            relations: Vec::new(),
            transactions: Vec::new(),
            changes: Vec::new(),
            ends_at_commit: true,
        }
    }

    /// About how much memory it holds, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len() + self.cells.len() * size_of::<Cell>() + self.changes.len() * size_of::<Change>()
    }

    /// The index of `relation`, which is added when it is another version than the last of its table.
    pub fn intern(&mut self, relation: &Arc<Relation>) -> u32 {
        let found = self.relations.iter().rposition(|known| Arc::ptr_eq(known, relation));
        let index = found.unwrap_or_else(|| {
            self.relations.push(Arc::clone(relation));
            self.relations.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// The relation of a change.
    #[must_use]
    pub fn relation(&self, change: &Change) -> &Arc<Relation> {
        &self.relations[change.relation as usize]
    }

    /// The transaction of a change.
    #[must_use]
    pub fn transaction(&self, change: &Change) -> &TransactionInfo {
        &self.transactions[change.transaction as usize]
    }

    /// A tuple of this batch.
    #[must_use]
    pub fn row(&self, span: RowSpan) -> RowView<'_> {
        let first = span.first as usize;
        RowView { bytes: &self.bytes, cells: &self.cells[first..first + span.count as usize] }
    }
}

/// A borrowed tuple.
#[derive(Clone, Copy, Debug)]
pub struct RowView<'a> {
    /// The buffer that text cells point into.
    pub bytes: &'a [u8],
    /// One cell a column.
    pub cells: &'a [Cell],
}

impl<'a> RowView<'a> {
    /// The text of a column, when it has one.
    #[must_use]
    pub fn text(&self, column: usize) -> Option<&'a [u8]> {
        match self.cells.get(column)? {
            Cell::Text { start, len } => Some(self.slice(*start, *len)),
            Cell::Null | Cell::Unchanged | Cell::Unknown => None,
        }
    }

    /// The bytes of a cell.
    #[must_use]
    pub fn slice(&self, start: u32, len: u32) -> &'a [u8] {
        &self.bytes[start as usize..start as usize + len as usize]
    }

    /// Its texts, looked at once for all: none where one of them is not UTF-8, or where they lie so far apart
    /// that looking at what is between would cost more than looking at each.
    #[must_use]
    pub fn utf8(&self) -> Option<RowText<'a>> {
        let (mut from, mut to, mut bytes) = (usize::MAX, 0, 0);
        for cell in self.cells {
            if let Cell::Text { start, len } = cell {
                let (start, len) = (*start as usize, *len as usize);
                (from, to, bytes) = (from.min(start), to.max(start + len), bytes + len);
            }
        }
        let near = from < to && to - from <= 2 * bytes;
        let text = near.then(|| simdutf8::basic::from_utf8(&self.bytes[from..to]).ok()).flatten()?;
        Some(RowText { text, from })
    }
}

/// The texts of a row that are known to be UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct RowText<'a> {
    text: &'a str,
    from: usize,
}

impl<'a> RowText<'a> {
    /// The text of a cell of this row; none where it ends in the middle of a character.
    #[must_use]
    #[inline]
    pub fn cell(&self, start: u32, len: u32) -> Option<&'a str> {
        let start = (start as usize).checked_sub(self.from)?;
        self.text.get(start..start + len as usize)
    }
}
