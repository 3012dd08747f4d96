//! A streamed transaction that was committed, page by page.

use std::{collections::VecDeque, mem};

use super::{
    Extent, SpoolError,
    described::Descriptions,
    pages::{Kept, Place},
};
use crate::{
    model::{TransactionInfo, Xid},
    pgoutput::message::Message,
};

/// What to give to the assembler: [`Replay::begin`], the records of every page as messages outside of a streamed
/// block, and [`Replay::commit`].
#[derive(Debug)]
pub struct Replay {
    info: TransactionInfo,
    pages: VecDeque<Place>,
    /// The last description of each table that was given out.
    described: Descriptions,
}

/// Where the next page is.
#[derive(Debug)]
pub enum Source {
    /// Here.
    Memory(Page),
    /// In the transaction's file: read it and give it to [`Page::read`].
    File(Extent),
}

impl Replay {
    pub(super) fn new(info: TransactionInfo, kept: Kept) -> Self {
        Self { info, pages: kept.into_pages().collect(), described: Descriptions::default() }
    }

    /// The transaction's top-level id.
    #[must_use]
    pub fn xid(&self) -> Xid {
        self.info.xid
    }

    /// How long its file must be at the least; 0 when it needs none.
    #[must_use]
    pub fn file_length(&self) -> u64 {
        let end = |place: &Place| match place {
            Place::File(extent) => extent.offset + extent.length as u64,
            Place::Memory(_) => 0,
        };
        self.pages.iter().map(end).max().unwrap_or(0)
    }

    /// What a plain transaction begins with.
    #[must_use]
    pub fn begin(&self) -> Message<'static> {
        let TransactionInfo { xid, commit_lsn, commit_time, .. } = self.info;
        Message::Begin { final_lsn: commit_lsn, commit_time, xid }
    }

    /// What it ends with.
    #[must_use]
    pub fn commit(&self) -> Message<'static> {
        let TransactionInfo { commit_lsn, end_lsn, commit_time, .. } = self.info;
        Message::Commit { commit_lsn, end_lsn, commit_time }
    }

    /// The next page; none after the last.
    pub fn next_page(&mut self) -> Option<Source> {
        self.pages.pop_front().map(|place| match place {
            Place::Memory(bytes) => Source::Memory(Page { xid: self.info.xid, base: 0, bytes, at: 0 }),
            Place::File(extent) => Source::File(extent),
        })
    }

    /// Whether a record describes a table as the last description of it did. The server describes every table again
    /// after each savepoint that was rolled back; looking each up in the catalogue would take long.
    pub fn repeats(&mut self, record: &[u8]) -> bool {
        let [b'R', body @ ..] = record else { return false };
        self.described.note(body)
    }

    pub(super) fn described(&self) -> &Descriptions {
        &self.described
    }
}

/// Records of a transaction, in order.
#[derive(Debug)]
pub struct Page {
    xid: Xid,
    /// Where in the file it is.
    base: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl Page {
    /// What was read back of a page.
    ///
    /// # Errors
    /// It is not what was written.
    pub fn read(xid: Xid, extent: &Extent, mut bytes: Vec<u8>) -> Result<Self, SpoolError> {
        if let Some(problem) = extent.problem(&bytes) {
            return Err(SpoolError::Damaged { xid, offset: extent.offset, problem });
        }
        bytes.truncate(extent.kept);
        Ok(Self { xid, base: extent.offset, bytes, at: 0 })
    }

    /// The next record: a message as it comes outside of a streamed block. None after the last.
    ///
    /// # Errors
    /// There is no whole record.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, SpoolError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let record =
            self.bytes.get(self.at..).and_then(<[u8]>::split_first_chunk).and_then(|(length, rest)| {
                let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                rest.get(..length)
            });
        let Some(record) = record else {
            let offset = self.base + self.at as u64;
            return Err(SpoolError::Damaged { xid: self.xid, offset, problem: "there is half a record" });
        };
        self.at += mem::size_of::<u32>() + record.len();
        Ok(Some(record))
    }
}
