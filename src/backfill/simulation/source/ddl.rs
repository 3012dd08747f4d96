//! TRUNCATE and DDL: what replaces a table's heap, or what it is.

use super::*;

impl Source {
    fn new_heap(&mut self, xid: u64, table: usize) {
        let old = std::mem::replace(&mut self.tables[table].heap, xid);
        self.undo_of(xid).push(Undo::Heap(table, old));
    }

    fn empty(&mut self, xid: u64, table: usize) {
        for at in 0..self.tables[table].versions.len() {
            let version = &self.tables[table].versions[at];
            if version.xmin.is_some() && version.xmax.is_none() {
                self.end_version(xid, table, at);
            }
        }
        self.new_heap(xid, table);
    }

    pub(super) fn truncate(&mut self, xid: u64, table: usize) {
        self.empty(xid, table);
        self.seq += 1;
        self.log(xid, table, Event::Truncate { table, seq: self.seq });
    }

    /// DDL that rewrites: nothing in the stream, but older snapshots find the table empty.
    pub(super) fn rewrite(&mut self, xid: u64, table: usize) {
        self.new_heap(xid, table);
    }

    /// DROP and CREATE: nothing in the stream, but what follows is of another table.
    pub(super) fn recreate(&mut self, xid: u64, table: usize) {
        self.empty(xid, table);
        let shape = Shape { oid: self.next_oid, ..Shape::default() };
        self.next_oid += 1;
        let old = std::mem::replace(&mut self.tables[table].shape, shape);
        self.undo_of(xid).push(Undo::Shape(table, old));
    }

    /// The oid that the catalogue shows to everybody.
    pub(in crate::backfill::simulation) fn visible_oid(&self, table: usize) -> u32 {
        let changing = self.exclusive[table].and_then(|xid| {
            let open = self.transactions.get(&xid).map(|transaction| &transaction.undo);
            let committed = self.wal.iter().rev().find(|record| record.xid == xid).map(|record| &record.undo);
            let steps = open.filter(|undo| !undo.is_empty()).or(committed)?;
            steps.iter().find_map(|step| match step {
                Undo::Shape(of, old) if *of == table => Some(old.oid),
                _ => None,
            })
        });
        changing.unwrap_or(self.tables[table].shape.oid)
    }

    /// DDL of the key, or of something else.
    pub(super) fn reshape(&mut self, xid: u64, table: usize, key: bool) {
        let shape = &mut self.tables[table].shape;
        let old = *shape;
        if key {
            shape.key += 1;
        } else {
            shape.layout += 1;
        }
        self.undo_of(xid).push(Undo::Shape(table, old));
        if key {
            self.new_heap(xid, table);
        }
    }
}
