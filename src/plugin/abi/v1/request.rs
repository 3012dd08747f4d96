//! Batches for guests: from the borrowed text of a [`ChangeBatch`] straight into one buffer.

use crate::{
    model::{Cell, Change, ChangeBatch, Encoding, Lsn, Origin, Relation, RowSpan, RowView, push_document_id},
    pgoutput::text::{Encoder, JsonEncoder, MsgpackEncoder, ValueError, encode_str, encode_value},
};

/// The columns of one version of a relation that a guest reads.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::plugin) struct Projection {
    /// Positions in the relation, in the order in which they are sent.
    pub(in crate::plugin) columns: Vec<usize>,
    /// Indexes into `columns` of those that come as JSON text within a string; none in MessagePack.
    raw: Vec<usize>,
}

impl Projection {
    /// Finds the declared columns; all, where none are declared. The error is the name that is missing.
    pub(in crate::plugin) fn new(
        relation: &Relation,
        declared: Option<&[String]>,
        raw: &[String],
    ) -> Result<Self, String> {
        let position = |name: &String| relation.column(name).ok_or_else(|| name.clone());
        let columns: Vec<_> = match declared {
            None => (0..relation.columns.len()).collect(),
            Some(names) => names.iter().map(position).collect::<Result<_, _>>()?,
        };
        let raw: Vec<_> = raw.iter().map(position).collect::<Result<_, _>>()?;
        let raw = (0..columns.len()).filter(|&index| raw.contains(&columns[index])).collect();
        Ok(Self { columns, raw })
    }
}

/// The envelope around values, in either encoding. Lengths are given before, for MessagePack.
trait Envelope: Encoder {
    fn list(&mut self, len: usize);
    fn next(&mut self, index: usize);
    fn end_list(&mut self);
    fn object(&mut self, len: usize);
    fn end_object(&mut self);
    fn lsn(&mut self, lsn: Lsn);
    /// Opens a list whose length is told at its end; gives the mark.
    fn open(&mut self) -> usize;
    fn close(&mut self, mark: usize, count: u32);

    /// Where the next value will begin.
    fn mark(&self) -> usize;
    /// Makes a string of the value that was written since a mark.
    fn make_string(&mut self, mark: usize);

    fn key(&mut self, index: usize, key: &str) {
        self.next(index);
        self.string(key);
        self.colon();
    }

    fn strings<'a>(&mut self, count: usize, texts: impl Iterator<Item = &'a str>) {
        self.list(count);
        for (index, text) in texts.enumerate() {
            self.next(index);
            self.string(text);
        }
        self.end_list();
    }
}

/// A number in hex digits, as Postgres writes the halves of an LSN; one stands in each change.
fn push_hex(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 16];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789ABCDEF"[(number & 15) as usize];
        number >>= 4;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

impl Envelope for JsonEncoder<'_> {
    fn list(&mut self, _len: usize) {
        self.out.push(b'[');
    }

    #[inline]
    fn next(&mut self, index: usize) {
        if index > 0 {
            self.out.push(b',');
        }
    }

    fn end_list(&mut self) {
        self.out.push(b']');
    }

    fn object(&mut self, _len: usize) {
        self.out.push(b'{');
    }

    fn end_object(&mut self) {
        self.out.push(b'}');
    }

    fn lsn(&mut self, lsn: Lsn) {
        self.out.push(b'"');
        push_hex(lsn.0 >> 32, self.out);
        self.out.push(b'/');
        push_hex(lsn.0 & 0xffff_ffff, self.out);
        self.out.push(b'"');
    }

    fn open(&mut self) -> usize {
        self.out.push(b'[');
        self.out.len()
    }

    fn close(&mut self, _mark: usize, _count: u32) {
        self.out.push(b']');
    }

    fn mark(&self) -> usize {
        self.out.len()
    }

    fn make_string(&mut self, mark: usize) {
        let value = self.out.split_off(mark);
        self.string(&String::from_utf8_lossy(&value));
    }
}

impl Envelope for MsgpackEncoder<'_> {
    #[inline]
    fn list(&mut self, len: usize) {
        self.array_header(len);
    }

    fn next(&mut self, _index: usize) {}

    fn end_list(&mut self) {}

    fn object(&mut self, len: usize) {
        self.map_header(len);
    }

    fn end_object(&mut self) {}

    #[inline]
    fn lsn(&mut self, lsn: Lsn) {
        match i64::try_from(lsn.0) {
            Ok(small) => self.integer(small),
            Err(_) => {
                self.out.push(0xcf);
                self.out.extend_from_slice(&lsn.0.to_be_bytes());
            }
        }
    }

    /// Always array 32, so that nothing moves when the length is known.
    fn open(&mut self) -> usize {
        self.out.extend_from_slice(&[0xdd, 0, 0, 0, 0]);
        self.out.len()
    }

    fn close(&mut self, mark: usize, count: u32) {
        self.out[mark - 4..mark].copy_from_slice(&count.to_be_bytes());
    }

    fn mark(&self) -> usize {
        self.out.len()
    }

    /// Values are exact as they are; a description with `raw` columns and this encoding is refused.
    fn make_string(&mut self, _mark: usize) {}
}

/// A change that could not be written: which column, and why.
#[derive(Debug)]
pub(in crate::plugin) struct Unsendable {
    pub(in crate::plugin) column: String,
    pub(in crate::plugin) error: ValueError,
}

/// One request in the making. Changes of one version of one relation.
#[derive(Debug)]
pub(in crate::plugin) struct Request<'a> {
    encoding: Encoding,
    out: &'a mut Vec<u8>,
    id: &'a mut Vec<u8>,
    mark: usize,
    count: u32,
}

impl<'a> Request<'a> {
    /// Begins a request in `out`, which is emptied. `id` is scratch.
    pub(in crate::plugin) fn begin(
        encoding: Encoding,
        relation: &Relation,
        projection: &Projection,
        origin: Origin,
        out: &'a mut Vec<u8>,
        id: &'a mut Vec<u8>,
    ) -> Self {
        out.clear();
        let mark = match encoding {
            Encoding::Msgpack => head(&mut MsgpackEncoder::new(out), relation, projection, origin),
            Encoding::Json => head(&mut JsonEncoder::new(out), relation, projection, origin),
        };
        Self { encoding, out, id, mark, count: 0 }
    }

    /// Adds a change. After an error the request is as it was.
    pub(in crate::plugin) fn push(
        &mut self,
        batch: &ChangeBatch,
        change: &Change,
        projection: &Projection,
    ) -> Result<(), Unsendable> {
        let start = self.out.len();
        let index = self.count as usize;
        let id = &mut *self.id;
        let written = match self.encoding {
            Encoding::Msgpack => {
                push_change(&mut MsgpackEncoder::new(self.out), index, batch, change, projection, id)
            }
            Encoding::Json => {
                push_change(&mut JsonEncoder::new(self.out), index, batch, change, projection, id)
            }
        };
        match written {
            Ok(()) => self.count += 1,
            Err(_) => self.out.truncate(start),
        }
        written
    }

    /// How many changes are in it.
    pub(in crate::plugin) fn count(&self) -> u32 {
        self.count
    }

    /// How large it is so far, in bytes.
    pub(in crate::plugin) fn len(&self) -> usize {
        self.out.len()
    }

    /// Completes it.
    pub(in crate::plugin) fn finish(self) {
        match self.encoding {
            Encoding::Msgpack => tail(&mut MsgpackEncoder::new(self.out), self.mark, self.count),
            Encoding::Json => tail(&mut JsonEncoder::new(self.out), self.mark, self.count),
        }
    }
}

fn head<E: Envelope>(out: &mut E, relation: &Relation, projection: &Projection, origin: Origin) -> usize {
    let columns = || projection.columns.iter().map(|&at| &relation.columns[at]);
    let count = projection.columns.len();
    out.object(4);
    out.key(0, "v");
    out.integer(1);
    out.key(1, "relation");
    out.object(5);
    out.key(0, "schema");
    out.string(&relation.name.schema);
    out.key(1, "table");
    out.string(&relation.name.table);
    out.key(2, "columns");
    out.strings(count, columns().map(|column| column.name.as_str()));
    out.key(3, "types");
    out.strings(count, columns().map(|column| column.value_type.name()));
    out.key(4, "key");
    out.strings(relation.key.len(), relation.key_names());
    out.end_object();
    out.key(2, "origin");
    out.string(origin.as_str());
    out.key(3, "changes");
    out.open()
}

fn tail<E: Envelope>(out: &mut E, mark: usize, count: u32) {
    out.close(mark, count);
    out.end_object();
}

#[inline]
fn push_change<E: Envelope>(
    out: &mut E,
    index: usize,
    batch: &ChangeBatch,
    change: &Change,
    projection: &Projection,
    scratch: &mut Vec<u8>,
) -> Result<(), Unsendable> {
    let relation = batch.relation(change);
    let transaction = batch.transaction(change);
    out.next(index);
    out.list(9);
    out.string(change.operation.as_str());
    out.next(1);
    push_id(out, batch, change, scratch);
    let mut absent = false;
    for (element, span) in [(2, change.new), (3, change.old)] {
        out.next(element);
        absent |= push_row(out, relation, projection, span.map(|span| batch.row(span)))?;
    }
    out.next(4);
    out.lsn(transaction.commit_lsn);
    out.next(5);
    out.integer(transaction.commit_time);
    out.next(6);
    out.integer(i64::from(change.sequence));
    out.next(7);
    if absent {
        push_absent(out, batch, [change.new, change.old], projection);
    } else {
        out.null();
    }
    out.next(8);
    out.object(0);
    out.end_object();
    out.end_list();
    Ok(())
}

/// The id of the new row; of the old, where there is no new.
fn push_id<E: Envelope>(out: &mut E, batch: &ChangeBatch, change: &Change, scratch: &mut Vec<u8>) {
    scratch.clear();
    let named = change
        .new
        .or(change.old)
        .is_some_and(|span| push_document_id(batch.relation(change), batch.row(span), scratch));
    match std::str::from_utf8(scratch) {
        Ok(id) if named => out.string(id),
        _ => out.null(),
    }
}

/// Writes the columns of a row, and says whether one of them was not sent.
#[inline]
fn push_row<E: Envelope>(
    out: &mut E,
    relation: &Relation,
    projection: &Projection,
    row: Option<RowView<'_>>,
) -> Result<bool, Unsendable> {
    let Some(row) = row else {
        out.null();
        return Ok(false);
    };
    let mut absent = false;
    let whole = row.utf8();
    out.list(projection.columns.len());
    for (index, &at) in projection.columns.iter().enumerate() {
        out.next(index);
        match row.cells.get(at) {
            Some(&Cell::Text { start, len }) => {
                let column = &relation.columns[at];
                let mark = out.mark();
                let encoded = match whole.and_then(|whole| whole.cell(start, len)) {
                    Some(text) => encode_str(&column.value_type, text, out),
                    None => encode_value(&column.value_type, row.slice(start, len), out),
                };
                encoded.map_err(|error| Unsendable { column: column.name.clone(), error })?;
                if projection.raw.contains(&index) {
                    out.make_string(mark);
                }
            }
            Some(Cell::Null) => out.null(),
            Some(Cell::Unchanged | Cell::Unknown) | None => {
                absent = true;
                out.null();
            }
        }
    }
    out.end_list();
    Ok(absent)
}

/// Two lists of positions: those of the new row and those of the old that were not sent.
fn push_absent<E: Envelope>(
    out: &mut E,
    batch: &ChangeBatch,
    spans: [Option<RowSpan>; 2],
    projection: &Projection,
) {
    out.list(2);
    for (which, span) in spans.into_iter().enumerate() {
        out.next(which);
        let mark = out.open();
        let mut count = 0u32;
        let cells = span.map(|span| batch.row(span).cells);
        for (position, &at) in cells.iter().flat_map(|_| projection.columns.iter().enumerate()) {
            let cell = cells.and_then(|cells| cells.get(at));
            if matches!(cell, Some(Cell::Null | Cell::Text { .. })) {
                continue;
            }
            out.next(count as usize);
            out.integer(i64::try_from(position).unwrap_or(i64::MAX));
            count += 1;
        }
        out.close(mark, count);
    }
    out.end_list();
}
