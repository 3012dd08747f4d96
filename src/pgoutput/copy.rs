//! Rows of `COPY (…) TO STDOUT` in text format (Postgres documentation, "COPY", "Text Format").
//!
//! Guarantees: a row is appended whole or not at all; `\N` is NULL and an empty field is the empty string.
//! Must never: accept a row whose number of columns is not the relation's.

use std::sync::Arc;

use crate::model::{Cell, Change, ChangeBatch, Operation, Relation, RowSpan};

/// A line that is not a row of the relation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The columns that were asked for are not the relation's.
    #[error(
        "a row read from {table} has {found} columns where {expected} were asked for; the table changed, read it again"
    )]
    Columns {
        /// The table.
        table: String,
        /// The relation's columns.
        expected: usize,
        /// The row's.
        found: usize,
    },
    /// A backslash that escapes nothing.
    #[error("a row read from {table} has a broken escape in column {column}; the connection is corrupt")]
    Escape {
        /// The table.
        table: String,
        /// The column's name.
        column: String,
    },
    /// The batch is full: its spans have 32 bits.
    #[error("a batch of rows of {table} is larger than 4 GiB; lower the chunk size")]
    TooLarge {
        /// The table.
        table: String,
    },
}

/// What went wrong, before it is named.
enum Fault {
    Columns(usize),
    Escape(usize),
    TooLarge,
}

/// Appends one row, a line with or without its line feed, as [`Operation::Read`] of the transaction (the
/// chunk) at index `transaction`. On an error the batch is as it was.
pub fn push_copy_row(
    batch: &mut ChangeBatch,
    relation: &Arc<Relation>,
    transaction: u32,
    line: &[u8],
) -> Result<(), CopyError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (first_byte, first_cell) = (batch.bytes.len(), batch.cells.len());
    let new = match push_cells(batch, relation.columns.len(), line) {
        Ok(new) => new,
        Err(fault) => {
            batch.bytes.truncate(first_byte);
            batch.cells.truncate(first_cell);
            return Err(name_fault(&fault, relation));
        }
    };
    let last = batch.changes.last().filter(|last| last.transaction == transaction);
    let sequence = last.map_or(0, |last| last.sequence.saturating_add(1));
    let relation = batch.intern(relation);
    let operation = Operation::Read;
    batch.changes.push(Change { operation, relation, transaction, sequence, new: Some(new), old: None });
    Ok(())
}

#[cold]
fn name_fault(fault: &Fault, relation: &Relation) -> CopyError {
    let table = relation.name.to_string();
    match *fault {
        Fault::Columns(found) => CopyError::Columns { table, expected: relation.columns.len(), found },
        Fault::Escape(column) => {
            let column = relation.columns.get(column).map(|column| column.name.clone());
            CopyError::Escape { table, column: column.unwrap_or_default() }
        }
        Fault::TooLarge => CopyError::TooLarge { table },
    }
}

/// Copies the line at once and cuts it into cells. Fields with escapes shrink where they are.
fn push_cells(batch: &mut ChangeBatch, expected: usize, line: &[u8]) -> Result<RowSpan, Fault> {
    let base = batch.bytes.len();
    if u32::try_from(base + line.len()).is_err() {
        return Err(Fault::TooLarge);
    }
    let span = |value: usize| u32::try_from(value).map_err(|_| Fault::TooLarge);
    let first = span(batch.cells.len())?;
    batch.bytes.extend_from_slice(line);
    batch.cells.reserve(expected);
    let mut found = 0;
    if expected > 0 || !line.is_empty() {
        let mut field = Field { start: 0, escaped: false };
        for at in memchr::memchr2_iter(b'\t', b'\\', line).chain([line.len()]) {
            if line.get(at) == Some(&b'\\') {
                field.escaped = true;
                continue;
            }
            let cell = push_cell(&mut batch.bytes[base + field.start..base + at], &field);
            let cell = match cell.map_err(|()| Fault::Escape(found))? {
                None => Cell::Null,
                Some(len) => Cell::Text { start: span(base + field.start)?, len: span(len)? },
            };
            batch.cells.push(cell);
            found += 1;
            field = Field { start: at + 1, escaped: false };
        }
    }
    if found != expected {
        return Err(Fault::Columns(found));
    }
    Ok(RowSpan { first, count: span(found)? })
}

/// The field that is being read.
struct Field {
    start: usize,
    escaped: bool,
}

/// The length of the field's text, which is unescaped in place; none for NULL.
#[inline]
fn push_cell(bytes: &mut [u8], field: &Field) -> Result<Option<usize>, ()> {
    if !field.escaped {
        return Ok(Some(bytes.len()));
    }
    if bytes == b"\\N" {
        return Ok(None);
    }
    unescape(bytes).map(Some)
}

/// Unescapes to the front, and gives the new length.
fn unescape(bytes: &mut [u8]) -> Result<usize, ()> {
    let (mut read, mut write) = (0, 0);
    while read < bytes.len() {
        let plain = memchr::memchr(b'\\', &bytes[read..]).unwrap_or(bytes.len() - read);
        bytes.copy_within(read..read + plain, write);
        read += plain;
        write += plain;
        if read < bytes.len() {
            let (byte, length) = escape(&bytes[read + 1..])?;
            bytes[write] = byte;
            write += 1;
            read += 1 + length;
        }
    }
    Ok(write)
}

/// The byte that an escape means, and how many bytes behind the backslash it has.
fn escape(rest: &[u8]) -> Result<(u8, usize), ()> {
    let byte = *rest.first().ok_or(())?;
    Ok(match byte {
        b'b' => (0x08, 1),
        b'f' => (0x0c, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (0x0b, 1),
        // The end of data, and NULL, stand alone.
        b'.' | b'N' => return Err(()),
        b'0'..=b'7' => number(rest, 0, 3, 8),
        b'x' if rest.get(1).is_some_and(u8::is_ascii_hexdigit) => number(rest, 1, 2, 16),
        other => (other, 1),
    })
}

/// Up to `most` digits from `from` on; what does not fit a byte is cut off, as the server does.
fn number(rest: &[u8], from: usize, most: usize, radix: u32) -> (u8, usize) {
    let digits = rest[from..].iter().take(most).map_while(|byte| char::from(*byte).to_digit(radix));
    let (value, count) = digits.fold((0, 0), |(value, count), digit| (value * radix + digit, count + 1));
    (value.to_le_bytes()[0], from + count)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;
    use crate::model::{Column, EntityName, Origin, ReplicaIdentity, ValueType};

    fn relation(columns: usize) -> Arc<Relation> {
        let column = |at: usize| Column {
            name: format!("c{at}"),
            type_oid: 25,
            value_type: ValueType::Text,
            identity: at == 0,
        };
        Arc::new(Relation {
            oid: 1,
            name: EntityName::new("public", "t"),
            replica_identity: ReplicaIdentity::Default,
            columns: (0..columns).map(column).collect(),
            key: vec![0],
        })
    }

    type Row = Vec<Option<Vec<u8>>>;

    /// What the server does (`CopyAttributeOutText`).
    fn line(row: &Row) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, field) in row.iter().enumerate() {
            if at > 0 {
                out.push(b'\t');
            }
            let Some(field) = field else {
                out.extend(b"\\N");
                continue;
            };
            for &byte in field {
                match byte {
                    0x08 => out.extend(b"\\b"),
                    0x0c => out.extend(b"\\f"),
                    b'\n' => out.extend(b"\\n"),
                    b'\r' => out.extend(b"\\r"),
                    b'\t' => out.extend(b"\\t"),
                    0x0b => out.extend(b"\\v"),
                    b'\\' => out.extend(b"\\\\"),
                    _ => out.push(byte),
                }
            }
        }
        out.push(b'\n');
        out
    }

    fn rows(batch: &ChangeBatch) -> Vec<Row> {
        let row = |change: &Change| {
            let view = batch.row(change.new.unwrap());
            let field = |at: usize| match view.cells[at] {
                Cell::Null => None,
                _ => view.text(at).map(<[u8]>::to_vec),
            };
            (0..view.cells.len()).map(field).collect()
        };
        batch.changes.iter().map(row).collect()
    }

    fn field() -> impl Strategy<Value = Option<Vec<u8>>> {
        let byte = prop_oneof![any::<u8>(), 7_u8..15, Just(b'\\'), Just(b'N'), Just(b'x'), Just(b'1')];
        option::weighted(0.8, vec(byte, 0..10))
    }

    proptest! {
        #[test]
        fn what_the_server_escapes_is_read_back(
            (columns, data) in (1_usize..6).prop_flat_map(|n| (Just(n), vec(vec(field(), n), 1..5)))
        ) {
            let relation = relation(columns);
            let mut batch = ChangeBatch::new(Origin::Backfill);
            for row in &data {
                push_copy_row(&mut batch, &relation, 0, &line(row)).unwrap();
            }
            prop_assert_eq!(rows(&batch), data);
            let sequences: Vec<_> = batch.changes.iter().map(|change| change.sequence).collect();
            prop_assert!(sequences.iter().copied().eq(0..u32::try_from(sequences.len()).unwrap()));
        }

        #[test]
        fn any_line_is_a_row_or_an_error_that_leaves_no_trace(
            bytes in vec(prop_oneof![any::<u8>(), Just(b'\t'), Just(b'\\')], 0..30)
        ) {
            let relation = relation(2);
            let mut batch = ChangeBatch::new(Origin::Backfill);
            match push_copy_row(&mut batch, &relation, 0, &bytes) {
                Ok(()) => prop_assert_eq!(batch.changes.len(), 1),
                Err(_) => prop_assert_eq!((batch.bytes.len(), batch.cells.len(), batch.changes.len()), (0, 0, 0)),
            }
        }
    }

    fn read(columns: usize, line: &[u8]) -> Result<Row, CopyError> {
        let mut batch = ChangeBatch::new(Origin::Backfill);
        push_copy_row(&mut batch, &relation(columns), 0, line)?;
        Ok(rows(&batch).remove(0))
    }

    #[test]
    fn escapes_that_the_server_does_not_write_are_read_too() {
        let bytes = |text: &str| Some(text.as_bytes().to_vec());
        assert_eq!(read(1, b"\\101\\x42\\x4z\\q\\08"), Ok(vec![bytes("AB\u{4}zq\u{0}8")]));
        assert_eq!(read(1, b"\\xg"), Ok(vec![bytes("xg")]));
        assert_eq!(read(1, b"\\777"), Ok(vec![Some(vec![0xff])]));
    }

    #[test]
    fn c014_null_is_not_the_empty_string() {
        assert_eq!(read(3, b"\t\\N\t\\\\N\n"), Ok(vec![Some(vec![]), None, Some(b"\\N".to_vec())]));
        assert_eq!(read(1, b"\n"), Ok(vec![Some(vec![])]));
        assert_eq!(read(0, b"\n"), Ok(vec![]));
    }

    #[test]
    fn broken_rows_name_their_table() {
        let error = read(3, b"a\tb\n").unwrap_err();
        assert_eq!(error, CopyError::Columns { table: "public.t".into(), expected: 3, found: 2 });
        assert!(read(1, b"a\tb\n").is_err());
        assert!(read(0, b"a\n").is_err());
        let error = read(2, b"a\tb\\\n").unwrap_err();
        assert_eq!(error, CopyError::Escape { table: "public.t".into(), column: "c1".into() });
        assert!(read(1, b"\\.\n").is_err());
    }
}
