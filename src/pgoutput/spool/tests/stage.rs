//! A spool with files in memory, in front of an assembler.

use std::sync::Arc;

use super::*;
use crate::model::{Cell, Column, Operation, Relation, ValueType};

/// A change, as far as these tests look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) commit_lsn: Lsn,
    pub(super) sequence: u32,
    pub(super) operation: Operation,
    pub(super) table: String,
    pub(super) columns: Vec<String>,
    pub(super) row: Option<Vec<String>>,
}

pub(super) struct Stage {
    decoder: Decoder,
    pub(super) spool: Spool,
    pub(super) files: HashMap<Xid, Vec<u8>>,
    assembler: Assembler,
    pub(super) committed: Vec<Committed>,
    /// How often a relation was to be looked up.
    pub(super) described: usize,
    /// How often something was written to a file.
    pub(super) writes: usize,
}

impl Stage {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            decoder: Decoder::new(),
            spool: Spool::new(limit),
            files: HashMap::new(),
            assembler: Assembler::new(),
            committed: Vec::new(),
            described: 0,
            writes: 0,
        }
    }

    pub(super) fn feed(&mut self, messages: &[Msg]) {
        for message in messages {
            self.try_feed(message).unwrap();
        }
    }

    pub(super) fn try_feed(&mut self, message: &Msg) -> anyhow::Result<()> {
        self.take(&encode(message))
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let message = self.decoder.decode(bytes)?;
        match self.spool.take(&message, bytes)? {
            Taken::Plain => {
                let handled = self.assembler.handle(message)?;
                self.handled(handled);
            }
            Taken::Kept | Taken::RolledBack => {}
            Taken::Aborted(xid) => drop(self.files.remove(&xid)),
            Taken::Committed(replay) => self.replay(*replay)?,
        }
        while let Some(Write { xid, offset, bytes }) = self.spool.spill() {
            self.writes += 1;
            let file = self.files.entry(xid).or_default();
            let at = usize::try_from(offset).unwrap();
            assert!(at <= file.len(), "no gap");
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn replay(&mut self, mut replay: Replay) -> anyhow::Result<()> {
        let xid = replay.xid();
        let file = self.files.remove(&xid).unwrap_or_default();
        let mut decoder = Decoder::new();
        self.assembler.handle(replay.begin())?;
        while let Some(source) = replay.next_page() {
            let mut page = match source {
                Source::Memory(page) => page,
                Source::File(extent) => {
                    let from = usize::try_from(extent.offset)?;
                    let bytes = &file[from..file.len().min(from + extent.length)];
                    Page::read(xid, &extent, bytes.to_vec())?
                }
            };
            while let Some(record) = page.next_record()? {
                if !replay.repeats(record) {
                    let handled = self.assembler.handle(decoder.decode(record)?)?;
                    self.handled(handled);
                }
            }
        }
        let handled = self.assembler.handle(replay.commit())?;
        self.handled(handled);
        let newer: Vec<_> = self.spool.newer_descriptions(&replay).map(<[u8]>::to_vec).collect();
        for record in newer {
            let handled = self.assembler.handle(decoder.decode(&record)?)?;
            self.handled(handled);
        }
        Ok(())
    }

    fn handled(&mut self, handled: Handled) {
        match handled {
            Handled::Nothing => {}
            Handled::Committed(committed) => self.committed.push(committed),
            Handled::Relation(raw) => {
                self.described += 1;
                let column = |name: &str| Column {
                    name: name.to_owned(),
                    type_oid: 25,
                    value_type: ValueType::Text,
                    identity: true,
                };
                let relation = Relation {
                    oid: raw.oid,
                    name: raw.name.clone(),
                    replica_identity: raw.replica_identity,
                    columns: raw.columns.iter().map(|raw| column(&raw.name)).collect(),
                    key: vec![0],
                };
                self.assembler.define(Arc::new(relation)).unwrap();
            }
        }
    }

    /// What was assembled since the last time.
    pub(super) fn events(&mut self) -> Vec<Event> {
        let batch = self.assembler.take();
        let event = |change: &crate::model::Change| {
            let text = |span| {
                let row = batch.row(span);
                let text = |at| String::from_utf8(row.text(at).unwrap_or_default().to_vec()).unwrap();
                let texts = |(at, cell): (usize, &Cell)| match cell {
                    Cell::Text { .. } => text(at),
                    other => format!("{other:?}"),
                };
                row.cells.iter().enumerate().map(texts).collect::<Vec<_>>()
            };
            let relation = batch.relation(change);
            Event {
                commit_lsn: batch.transaction(change).commit_lsn,
                sequence: change.sequence,
                operation: change.operation,
                table: relation.name.to_string(),
                columns: relation.columns.iter().map(|column| column.name.clone()).collect(),
                row: change.new.or(change.old).map(text),
            }
        };
        batch.changes.iter().map(event).collect()
    }
}
