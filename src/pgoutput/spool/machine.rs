//! The spool of one connection.

use std::collections::HashMap;

use super::{
    Replay, SpoolError,
    described::Descriptions,
    pages::{Kept, Memory},
};
use crate::{
    model::{TransactionInfo, Xid},
    pgoutput::{message::Message, transaction::MARKER_PREFIX},
};

/// A page is closed once it has so many bytes; the unit of writing, reading and checking.
const PAGE: usize = 256 << 10;
/// Several pages are in memory, however little that may be.
const PAGES: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct Spool {
    limit: usize,
    page: usize,
    open: HashMap<Xid, Kept>,
    /// The transaction whose block is being sent.
    block: Option<Xid>,
    /// What writing away would free; only this is compared with the limit.
    spillable: usize,
    /// What else it takes.
    index: usize,
    /// Of all that has arrived, whatever became of it.
    newest: Descriptions,
}

/// What became of a message.
#[derive(Debug)]
pub enum Taken {
    /// It belongs to no streamed transaction: it is the assembler's.
    Plain,
    /// It was kept, or means nothing to anybody.
    Kept,
    /// A savepoint was rolled back: nothing of it is here any more.
    RolledBack,
    /// A transaction was rolled back: nothing of it is here any more, and its file may go.
    Aborted(Xid),
    /// A transaction was committed. Before any further message is taken, its replay is to be given to the assembler, and
    /// [`Spool::newer_descriptions`] after it; its file may go afterwards.
    Committed(Box<Replay>),
}

/// A page to write to the file of a transaction, over whatever is there.
#[derive(Debug, PartialEq, Eq)]
pub struct Write {
    /// The transaction.
    pub xid: Xid,
    /// Where in its file.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// How much is in the spool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolUsage {
    /// Transactions that are open.
    pub transactions: usize,
    /// Bytes in memory, with those of places of savepoints and pages.
    pub memory: usize,
}

impl Spool {
    /// An empty spool, that keeps so many bytes in memory.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            page: PAGE.min(limit / PAGES),
            open: HashMap::new(),
            block: None,
            spillable: 0,
            index: 0,
            newest: Descriptions::default(),
        }
    }

    /// Takes the next message, decoded and as it came. After an error the spool must be dropped.
    ///
    /// # Errors
    /// The message makes no sense in its place.
    #[inline]
    pub fn take(&mut self, message: &Message<'_>, bytes: &[u8]) -> Result<Taken, SpoolError> {
        match *message {
            Message::StreamStart { xid, first_segment } => self.start(xid, first_segment),
            Message::StreamStop => match self.block.take() {
                Some(_) => Ok(Taken::Kept),
                None => Err(out_of_order("Stream Stop", 0, "comes without a Stream Start")),
            },
            Message::StreamCommit { xid, commit_lsn, end_lsn, commit_time } => {
                self.commit(TransactionInfo { xid, commit_lsn, end_lsn, commit_time })
            }
            Message::StreamAbort { xid, subxid, .. } => self.abort(xid, subxid),
            _ => match self.block {
                None => {
                    if let (Message::Relation(_), Some((_, body))) = (message, bytes.split_first()) {
                        self.newest.note(body);
                    }
                    Ok(Taken::Plain)
                }
                Some(top) => self.keep(top, message, bytes),
            },
        }
    }

    /// A page to be written away, while there is more in memory than may be. The caller writes it before it goes on.
    #[inline]
    pub fn spill(&mut self) -> Option<Write> {
        if self.spillable <= self.limit {
            return None;
        }
        let largest = |kept: &Kept| (kept.has_whole_page(), kept.spillable());
        let (&xid, kept) = self.open.iter_mut().max_by_key(|(_, kept)| largest(kept))?;
        let before = kept.memory();
        let spilled = kept.spill();
        let after = kept.memory();
        self.account(before, after);
        spilled.map(|(offset, bytes)| Write { xid, offset, bytes })
    }

    /// The descriptions that arrived after those of a replay, of the same tables: to be given to the assembler once the
    /// replay is through, since the server does not describe these tables again for the rows that follow.
    pub fn newer_descriptions<'a>(&'a self, replay: &'a Replay) -> impl Iterator<Item = &'a [u8]> {
        self.newest.differing(replay.described())
    }

    /// How much is in here.
    #[must_use]
    pub fn usage(&self) -> SpoolUsage {
        SpoolUsage { transactions: self.open.len(), memory: self.spillable + self.index }
    }

    #[inline]
    fn account(&mut self, before: Memory, after: Memory) {
        self.spillable = self.spillable + after.spillable - before.spillable;
        self.index = self.index + after.index - before.index;
    }

    fn start(&mut self, xid: Xid, first: bool) -> Result<Taken, SpoolError> {
        if self.block.is_some() {
            return Err(out_of_order("Stream Start", xid, "comes inside a block"));
        }
        match (first, self.open.contains_key(&xid)) {
            (true, true) => {
                return Err(out_of_order("Stream Start", xid, "says that it is the first, again"));
            }
            (false, false) => {
                return Err(out_of_order(
                    "Stream Start",
                    xid,
                    "says that there was one before, which did not come",
                ));
            }
            (true, false) => {
                self.open.insert(xid, Kept::default());
            }
            (false, true) => {}
        }
        self.block = Some(xid);
        Ok(Taken::Kept)
    }

    fn commit(&mut self, info: TransactionInfo) -> Result<Taken, SpoolError> {
        let xid = info.xid;
        if self.block.is_some() {
            return Err(out_of_order("Stream Commit", xid, "comes inside a block"));
        }
        let Some(kept) = self.open.remove(&xid) else {
            return Err(out_of_order("Stream Commit", xid, "comes without a Stream Start"));
        };
        self.account(kept.memory(), Memory::default());
        Ok(Taken::Committed(Box::new(Replay::new(info, kept))))
    }

    fn abort(&mut self, xid: Xid, subxid: Xid) -> Result<Taken, SpoolError> {
        if self.block.is_some() {
            return Err(out_of_order("Stream Abort", xid, "comes inside a block"));
        }
        if xid == subxid {
            // Of one that is not here there is nothing to forget.
            if let Some(kept) = self.open.remove(&xid) {
                self.account(kept.memory(), Memory::default());
            }
            return Ok(Taken::Aborted(xid));
        }
        if let Some(kept) = self.open.get_mut(&xid) {
            let before = kept.memory();
            kept.cut(subxid);
            let after = kept.memory();
            self.account(before, after);
        }
        Ok(Taken::RolledBack)
    }

    #[inline]
    fn keep(&mut self, top: Xid, message: &Message<'_>, bytes: &[u8]) -> Result<Taken, SpoolError> {
        let xid = match message {
            Message::Insert { xid, .. }
            | Message::Update { xid, .. }
            | Message::Delete { xid, .. }
            | Message::Truncate { xid, .. } => *xid,
            Message::Relation(relation) => relation.xid,
            Message::Logical { xid, transactional: true, prefix: MARKER_PREFIX, .. } => *xid,
            // The assembler passes over them, too.
            Message::Logical { .. } | Message::Type { .. } | Message::Origin { .. } => {
                return Ok(Taken::Kept);
            }
            Message::Begin { .. } => return Err(out_of_order("Begin", top, "comes inside a block")),
            _ => return Err(out_of_order("Commit", top, "comes inside a block")),
        };
        let (Some(xid), Some((&kind, rest))) = (xid, bytes.split_first()) else {
            return Err(out_of_order("a message", top, "comes inside a block and names no transaction"));
        };
        let body = rest.get(size_of::<Xid>()..).unwrap_or_default();
        if let Message::Relation(_) = message {
            self.newest.note(body);
        }
        if let Some(kept) = self.open.get_mut(&top) {
            let before = kept.memory();
            if xid != top {
                kept.note(xid);
            }
            kept.append(kind, body, self.page);
            let after = kept.memory();
            self.account(before, after);
        }
        Ok(Taken::Kept)
    }
}

#[cold]
fn out_of_order(message: &'static str, xid: Xid, place: &'static str) -> SpoolError {
    SpoolError::OutOfOrder { message, xid, place }
}
