//! What is kept of one transaction: records in pages, and where each savepoint's records begin.
//!
//! Positions count the bytes of what is kept. A record is the length of a message and the message, without the
//! transaction id that it has while it is streamed.

use std::{collections::HashMap, mem};

use crate::model::Xid;

/// What a savepoint costs, about: its place in the list and in the map.
const SAVEPOINT: usize = 40;

/// How many bytes something holds in memory, about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Those that writing it away would free.
    pub(super) spillable: usize,
    /// Those of the places of savepoints and pages.
    pub(super) index: usize,
}

/// A page that was written away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where in the transaction's file.
    pub offset: u64,
    /// How many bytes.
    pub length: usize,
    checksum: u32,
    /// How many of them count: what comes after was cut off.
    pub(super) kept: usize,
}

impl Extent {
    pub(super) fn of(offset: u64, bytes: &[u8]) -> Self {
        Self { offset, length: bytes.len(), checksum: checksum(bytes), kept: bytes.len() }
    }

    /// What is wrong with bytes that were read back; none when they are those that were written.
    pub(super) fn problem(&self, bytes: &[u8]) -> Option<&'static str> {
        if bytes.len() != self.length {
            return Some("the length differs");
        }
        (checksum(bytes) != self.checksum).then_some("the checksum differs")
    }

    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Where the records of a page are.
#[derive(Debug)]
pub(super) enum Place {
    Memory(Vec<u8>),
    File(Extent),
}

#[derive(Debug)]
struct Closed {
    start: u64,
    place: Place,
}

/// One streamed transaction.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Those in the file come first.
    closed: Vec<Closed>,
    /// How many of them are in the file.
    filed: usize,
    /// The page that is being filled, and where it begins.
    tail: Vec<u8>,
    tail_start: u64,
    savepoints: Savepoints,
    /// Bytes that closed pages hold in memory.
    held: usize,
}

impl Kept {
    /// Notes that the next message is one of a savepoint.
    #[inline]
    pub(super) fn note(&mut self, subxid: Xid) {
        self.savepoints.note(subxid, self.tail_start + self.tail.len() as u64);
    }

    /// Appends a message: its first byte and what comes after its transaction id. A page that then has as many bytes
    /// as a page may have is closed.
    #[inline]
    pub(super) fn append(&mut self, kind: u8, rest: &[u8], page: usize) {
        // A message has at most 1 GiB.
        let length = u32::try_from(rest.len() + 1).unwrap_or(u32::MAX);
        self.tail.extend_from_slice(&length.to_le_bytes());
        self.tail.push(kind);
        self.tail.extend_from_slice(rest);
        if self.tail.len() >= page {
            self.close();
        }
    }

    fn close(&mut self) {
        let page = mem::take(&mut self.tail);
        let start = self.tail_start;
        self.tail_start += page.len() as u64;
        self.held += page.capacity();
        self.closed.push(Closed { start, place: Place::Memory(page) });
    }

    /// Cuts off everything from the first record of a savepoint on; false when nothing of it is here.
    pub(super) fn cut(&mut self, subxid: Xid) -> bool {
        let Some(from) = self.savepoints.cut(subxid) else { return false };
        if let Some(kept) = from.checked_sub(self.tail_start).filter(|kept| *kept > 0) {
            self.tail.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            // Else it counts as a large one while it is not.
            self.tail.shrink_to_fit();
            return true;
        }
        self.tail = Vec::new();
        self.tail_start = from;
        while self.closed.last().is_some_and(|page| page.start >= from) {
            if let Some(Closed { place: Place::Memory(page), .. }) = self.closed.pop() {
                self.held -= page.capacity();
            }
        }
        self.filed = self.filed.min(self.closed.len());
        if let Some(Closed { start, place }) = self.closed.last_mut() {
            let kept = usize::try_from(from - *start).unwrap_or(usize::MAX);
            match place {
                Place::Memory(page) => page.truncate(kept),
                Place::File(extent) => extent.kept = kept.min(extent.kept),
            }
        }
        true
    }

    /// Takes a page out of memory, the oldest first, to be written to this place of the file.
    pub(super) fn spill(&mut self) -> Option<(u64, Vec<u8>)> {
        if !self.has_whole_page() {
            if self.tail.is_empty() {
                return None;
            }
            self.close();
        }
        let offset = self.file_length();
        let Closed { place, .. } = self.closed.get_mut(self.filed)?;
        let Place::Memory(page) = place else { return None };
        let page = mem::take(page);
        self.held -= page.capacity();
        *place = Place::File(Extent::of(offset, &page));
        self.filed += 1;
        Some((offset, page))
    }

    /// Where the next page goes in the file.
    pub(super) fn file_length(&self) -> u64 {
        match self.filed.checked_sub(1).and_then(|last| self.closed.get(last)) {
            Some(Closed { place: Place::File(extent), .. }) => extent.end(),
            _ => 0,
        }
    }

    /// Bytes in memory that writing them away would free.
    pub(super) fn spillable(&self) -> usize {
        self.held + self.tail.capacity()
    }

    /// Whether there is a page in memory that is not being filled any more.
    pub(super) fn has_whole_page(&self) -> bool {
        self.filed < self.closed.len()
    }

    #[inline]
    pub(super) fn memory(&self) -> Memory {
        let index = self.savepoints.order.len() * SAVEPOINT + self.closed.len() * size_of::<Closed>();
        Memory { spillable: self.spillable(), index }
    }

    /// The pages in their order, without empty ones.
    pub(super) fn into_pages(mut self) -> impl ExactSizeIterator<Item = Place> {
        if !self.tail.is_empty() {
            self.close();
        }
        self.closed.into_iter().map(|page| page.place)
    }
}

/// The open savepoints: where the first record of each is.
#[derive(Debug, Default)]
struct Savepoints {
    /// In the order of their positions.
    order: Vec<(Xid, u64)>,
    by_xid: HashMap<Xid, u64>,
    /// The last one that was noted.
    last: Option<Xid>,
}

impl Savepoints {
    #[inline]
    fn note(&mut self, xid: Xid, position: u64) {
        if self.last == Some(xid) {
            return;
        }
        self.last = Some(xid);
        if let std::collections::hash_map::Entry::Vacant(entry) = self.by_xid.entry(xid) {
            entry.insert(position);
            self.order.push((xid, position));
        }
    }

    /// Forgets a savepoint and all that began after it; gives its position.
    fn cut(&mut self, xid: Xid) -> Option<u64> {
        let from = *self.by_xid.get(&xid)?;
        while let Some((later, _)) = self.order.pop_if(|(_, position)| *position >= from) {
            self.by_xid.remove(&later);
        }
        self.last = None;
        Some(from)
    }
}
