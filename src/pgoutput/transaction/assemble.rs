//! The assembler.

use std::{mem, sync::Arc};

use super::{
    AssembleError, Committed, Handled, MARKER_LIMIT, MARKER_PREFIX,
    relations::Relations,
    tuples::{push_new, push_old},
};
use crate::{
    model::{Change, ChangeBatch, Lsn, Operation, Origin, Relation, TransactionInfo, Xid},
    pgoutput::message::{Message, Oids, OldTuple, Tuple},
};

/// The most room a fresh batch gets in advance, in bytes of text.
const ROOM: usize = 1 << 20;

/// Makes batches of the committed transactions of one connection. See the module.
#[derive(Debug)]
pub struct Assembler {
    batch: ChangeBatch,
    relations: Relations,
    open: Option<Open>,
    position: Lsn,
}

/// The transaction between Begin and Commit.
#[derive(Debug)]
struct Open {
    info: TransactionInfo,
    /// Row events so far, those of ignored tables too.
    sequence: u32,
    changes: u64,
    /// Its place in the batch that is being filled, once a change of it is in there.
    index: Option<u32>,
    /// Whether changes of it were in a batch that was taken.
    paged: bool,
    markers: Vec<Vec<u8>>,
    marker_bytes: usize,
}

/// Where a change goes.
struct Place<'a> {
    batch: &'a mut ChangeBatch,
    relation: &'a Relation,
    xid: Xid,
    /// Complete but for its tuples.
    change: Change,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new()
    }
}

impl Assembler {
    /// An assembler for a fresh connection: the server describes every relation again.
    #[must_use]
    pub fn new() -> Self {
        Self {
            batch: ChangeBatch::new(Origin::Stream),
            relations: Relations::default(),
            open: None,
            position: Lsn::ZERO,
        }
    }

    /// Takes the next message. After an error the assembler must be dropped.
    ///
    /// Messages of `pg_logical_emit_message` that are not ours, or not transactional, are passed over; so
    /// are Origin and Type (types are looked up in the catalogue).
    #[inline]
    pub fn handle(&mut self, message: Message<'_>) -> Result<Handled, AssembleError> {
        refuse_streamed(&message)?;
        match message {
            Message::Insert { relation, new, .. } => self.insert(relation, new)?,
            Message::Update { relation, old, new, .. } => self.update(relation, old, new)?,
            Message::Delete { relation, old, .. } => self.delete(relation, old)?,
            Message::Truncate { relations, .. } => self.truncate(relations)?,
            Message::Begin { final_lsn, commit_time, xid } => self.begin(final_lsn, commit_time, xid)?,
            Message::Commit { commit_lsn, end_lsn, .. } => {
                return self.commit(commit_lsn, end_lsn).map(Handled::Committed);
            }
            Message::Relation(relation) => return Ok(Handled::Relation(self.relations.describe(&relation))),
            Message::Logical { transactional: true, prefix: MARKER_PREFIX, content, .. } => {
                self.marker(content)?;
            }
            _ => {}
        }
        Ok(Handled::Nothing)
    }

    /// Completes the last Relation message of `relation.oid`: its rows are kept and follow this definition
    /// until the next such message. One equal to the definition before keeps that one's `Arc`.
    pub fn define(&mut self, relation: Arc<Relation>) -> Result<(), AssembleError> {
        self.relations.define(relation)
    }

    /// Skips the rows of a table until its next Relation message.
    pub fn define_ignored(&mut self, oid: u32) {
        self.relations.ignore(oid);
    }

    /// Gives what was assembled so far, in the middle of a transaction too: then
    /// [`ChangeBatch::ends_at_commit`] is false, that transaction's `end_lsn` is [`Lsn::ZERO`], and a later
    /// batch names it again, with its end in the last one (which may have no changes).
    pub fn take(&mut self) -> ChangeBatch {
        let mut fresh = ChangeBatch::new(Origin::Stream);
        if !self.batch.changes.is_empty() {
            let part = |length: usize, unit: usize| length.min(ROOM / unit);
            fresh.bytes.reserve(part(self.batch.bytes.len(), 1));
            fresh.cells.reserve(part(self.batch.cells.len(), 12));
            fresh.changes.reserve(part(self.batch.changes.len(), 40));
        }
        let mut batch = mem::replace(&mut self.batch, fresh);
        if let Some(open) = &mut self.open
            && open.index.take().is_some()
        {
            open.paged = true;
            batch.ends_at_commit = false;
        }
        self.relations.forget_indexes();
        batch
    }

    /// About how much memory the batch holds, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.batch.size()
    }

    /// Whether [`Assembler::take`] would give neither a change nor the end of a transaction that was taken
    /// in pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.transactions.is_empty()
    }

    /// The number of changes in the batch.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.batch.changes.len()
    }

    /// Whether a transaction is open: Begin came, Commit did not.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// The transaction that is open.
    #[must_use]
    pub fn open_xid(&self) -> Option<Xid> {
        self.open.as_ref().map(|open| open.info.xid)
    }

    /// The end of the last transaction that was assembled whole, with or without changes.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.position
    }

    fn begin(&mut self, commit_lsn: Lsn, commit_time: i64, xid: Xid) -> Result<(), AssembleError> {
        if self.open.is_some() {
            let (message, place) = ("Begin", "inside a transaction");
            return Err(AssembleError::OutOfOrder { message, place, position: self.position });
        }
        self.open = Some(Open {
            info: TransactionInfo { xid, commit_lsn, end_lsn: Lsn::ZERO, commit_time },
            sequence: 0,
            changes: 0,
            index: None,
            paged: false,
            markers: Vec::new(),
            marker_bytes: 0,
        });
        Ok(())
    }

    fn commit(&mut self, commit: Lsn, end_lsn: Lsn) -> Result<Committed, AssembleError> {
        let Some(open) = self.open.take() else { return Err(self.outside("Commit")) };
        let TransactionInfo { xid, commit_lsn: begin, .. } = open.info;
        if begin != commit {
            return Err(AssembleError::CommitMismatch { xid, begin, commit });
        }
        let info = TransactionInfo { end_lsn, ..open.info };
        match open.index {
            Some(index) => self.batch.transactions[index as usize] = info,
            None if open.paged => self.batch.transactions.push(info),
            None => {}
        }
        self.position = end_lsn;
        let ignored = u64::from(open.sequence).saturating_sub(open.changes);
        Ok(Committed { info, changes: open.changes, ignored, markers: open.markers })
    }

    #[cold]
    fn outside(&self, message: &'static str) -> AssembleError {
        AssembleError::OutOfOrder { message, place: "outside of a transaction", position: self.position }
    }

    fn marker(&mut self, content: &[u8]) -> Result<(), AssembleError> {
        let Some(open) = &mut self.open else { return Err(self.outside("Message")) };
        if content.len() <= MARKER_LIMIT - open.marker_bytes {
            open.marker_bytes += content.len();
            open.markers.push(content.to_vec());
        }
        Ok(())
    }

    /// Counts a row event and finds its place; none when its table is ignored.
    #[inline]
    fn place(
        &mut self,
        operation: Operation,
        message: &'static str,
        oid: u32,
    ) -> Result<Option<Place<'_>>, AssembleError> {
        let Some(open) = &mut self.open else { return Err(self.outside(message)) };
        let sequence = open.sequence;
        open.sequence = sequence.saturating_add(1);
        let xid = open.info.xid;
        let Some((relation, place)) = self.relations.find(oid, message, xid)? else { return Ok(None) };
        let batch = &mut self.batch;
        let index = *place.get_or_insert_with(|| batch.intern(relation));
        let transaction = match open.index {
            Some(transaction) => transaction,
            None => {
                let transaction = u32::try_from(batch.transactions.len());
                let too_large = |_| AssembleError::TooLarge { table: relation.name.to_string(), xid };
                batch.transactions.push(open.info);
                *open.index.insert(transaction.map_err(too_large)?)
            }
        };
        open.changes += 1;
        let change = Change { operation, relation: index, transaction, sequence, new: None, old: None };
        Ok(Some(Place { batch, relation, xid, change }))
    }

    #[inline]
    fn insert(&mut self, oid: u32, new: Tuple<'_>) -> Result<(), AssembleError> {
        if let Some(mut place) = self.place(Operation::Insert, "Insert", oid)? {
            place.change.new = Some(push_new(place.batch, place.relation, place.xid, new, None)?);
            place.batch.changes.push(place.change);
        }
        Ok(())
    }

    #[inline]
    fn update(&mut self, oid: u32, old: Option<OldTuple<'_>>, new: Tuple<'_>) -> Result<(), AssembleError> {
        if let Some(mut place) = self.place(Operation::Update, "Update", oid)? {
            if let Some(old) = old {
                place.change.old = Some(push_old(place.batch, place.relation, place.xid, old)?);
            }
            let old = place.change.old;
            place.change.new = Some(push_new(place.batch, place.relation, place.xid, new, old)?);
            place.batch.changes.push(place.change);
        }
        Ok(())
    }

    #[inline]
    fn delete(&mut self, oid: u32, old: OldTuple<'_>) -> Result<(), AssembleError> {
        if let Some(mut place) = self.place(Operation::Delete, "Delete", oid)? {
            place.change.old = Some(push_old(place.batch, place.relation, place.xid, old)?);
            place.batch.changes.push(place.change);
        }
        Ok(())
    }

    fn truncate(&mut self, oids: Oids<'_>) -> Result<(), AssembleError> {
        for oid in oids.iter() {
            if let Some(place) = self.place(Operation::Truncate, "Truncate", oid)? {
                place.batch.changes.push(place.change);
            }
        }
        Ok(())
    }
}

/// Messages of transactions in progress are an error: where streaming is asked for, the spool takes them.
#[inline]
fn refuse_streamed(message: &Message<'_>) -> Result<(), AssembleError> {
    let (message, xid) = match message {
        Message::Insert { xid: Some(xid), .. } => ("Insert", *xid),
        Message::Update { xid: Some(xid), .. } => ("Update", *xid),
        Message::Delete { xid: Some(xid), .. } => ("Delete", *xid),
        Message::Truncate { xid: Some(xid), .. } => ("Truncate", *xid),
        Message::Logical { xid: Some(xid), .. } => ("Message", *xid),
        Message::Type { xid: Some(xid), .. } => ("Type", *xid),
        Message::Relation(relation) => match relation.xid {
            Some(xid) => ("Relation", xid),
            None => return Ok(()),
        },
        Message::StreamStart { xid, .. } => ("Stream Start", *xid),
        Message::StreamStop => ("Stream Stop", 0),
        Message::StreamCommit { xid, .. } => ("Stream Commit", *xid),
        Message::StreamAbort { xid, .. } => ("Stream Abort", *xid),
        _ => return Ok(()),
    };
    Err(AssembleError::Streamed { message, xid })
}
