//! Tuples from the wire into a batch's arena.

use super::AssembleError;
use crate::{
    model::{Cell, ChangeBatch, Relation, RowSpan, Xid},
    pgoutput::message::{OldKind, OldTuple, Tuple},
};

/// Appends a new row. A value that was not sent because it did not change is the old row's, where that has
/// it: the same span.
#[inline]
pub(super) fn push_new(
    batch: &mut ChangeBatch,
    relation: &Relation,
    xid: Xid,
    tuple: Tuple<'_>,
    old: Option<RowSpan>,
) -> Result<RowSpan, AssembleError> {
    push(batch, relation, xid, tuple, |cells, column, kind| {
        if kind == b'n' {
            return Cell::Null;
        }
        let old = old.and_then(|old| cells.get(old.first as usize + column));
        match old {
            Some(text @ Cell::Text { .. }) => *text,
            _ => Cell::Unchanged,
        }
    })
}

/// Appends an old row. In one that has only the replica identity, the other columns are unknown, not NULL.
#[inline]
pub(super) fn push_old(
    batch: &mut ChangeBatch,
    relation: &Relation,
    xid: Xid,
    old: OldTuple<'_>,
) -> Result<RowSpan, AssembleError> {
    push(batch, relation, xid, old.tuple, |_, column, kind| {
        let sent = old.kind == OldKind::Full || relation.columns[column].identity;
        if kind == b'n' && sent { Cell::Null } else { Cell::Unknown }
    })
}

/// Copies the tuple's bytes at once and points cells into them; `without_text` makes the cells of `n` and `u`.
#[inline]
fn push(
    batch: &mut ChangeBatch,
    relation: &Relation,
    xid: Xid,
    tuple: Tuple<'_>,
    without_text: impl Fn(&[Cell], usize, u8) -> Cell,
) -> Result<RowSpan, AssembleError> {
    let expected = relation.columns.len();
    if tuple.len() != expected {
        let table = relation.name.to_string();
        return Err(AssembleError::Columns { table, xid, expected, found: tuple.len() });
    }
    let base = batch.bytes.len();
    let body = tuple.body();
    let spans = (
        u32::try_from(base),
        u32::try_from(base + body.len()),
        u32::try_from(batch.cells.len() + expected),
        u32::try_from(expected),
    );
    let (Ok(base), Ok(_), Ok(last), Ok(count)) = spans else {
        return Err(AssembleError::TooLarge { table: relation.name.to_string(), xid });
    };
    batch.bytes.extend_from_slice(body);
    batch.cells.reserve(expected);
    for (column, span) in tuple.spans().enumerate() {
        let cell = match span.kind {
            b't' => Cell::Text { start: base + narrow(span.start), len: narrow(span.len) },
            b'b' => return Err(binary(relation, column, xid)),
            kind => without_text(&batch.cells, column, kind),
        };
        batch.cells.push(cell);
    }
    Ok(RowSpan { first: last - count, count })
}

/// Offsets inside of a body whose length was seen to fit.
#[expect(clippy::cast_possible_truncation, reason = "the body's end fits")]
fn narrow(offset: usize) -> u32 {
    offset as u32
}

#[cold]
fn binary(relation: &Relation, column: usize, xid: Xid) -> AssembleError {
    let column = relation.columns.get(column).map(|column| column.name.clone()).unwrap_or_default();
    AssembleError::Binary { table: relation.name.to_string(), column, xid }
}
