//! Tuples on the wire, walked without an allocation.

/// One column of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// `n`: NULL (in a key's old tuple: not sent).
    Null,
    /// `u`: a TOASTed value that did not change and was not sent.
    Unchanged,
    /// `t`: Postgres's text.
    Text(&'a [u8]),
    /// `b`: Postgres's binary form; never asked for.
    Binary(&'a [u8]),
}

/// A row of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    /// The columns on the wire; the decoder walked them, so all kinds and lengths are right.
    body: &'a [u8],
}

/// Where a column lies in [`Tuple::body`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TupleSpan {
    /// `n`, `u`, `t` or `b`.
    pub kind: u8,
    /// Where its value begins.
    pub start: usize,
    /// The value's length; 0 for `n` and `u`.
    pub len: usize,
}

/// What is wrong with a tuple, and where in the bytes.
pub(super) struct TupleFault {
    pub(super) at: usize,
    pub(super) problem: &'static str,
}

/// Reads the column at `at`.
#[inline]
fn span(bytes: &[u8], at: usize) -> Result<TupleSpan, TupleFault> {
    let fault = |problem| TupleFault { at, problem };
    match bytes.get(at) {
        Some(kind @ (b't' | b'b')) => {
            let length = bytes.get(at + 1..).and_then(<[u8]>::first_chunk);
            let len =
                u32::from_be_bytes(*length.ok_or_else(|| fault("a column's length is cut off"))?) as usize;
            let start = at + 5;
            if len > bytes.len() - start {
                return Err(fault("a column is longer than the message"));
            }
            Ok(TupleSpan { kind: *kind, start, len })
        }
        Some(kind @ (b'n' | b'u')) => Ok(TupleSpan { kind: *kind, start: at + 1, len: 0 }),
        Some(_) => Err(fault("a column is of an unknown kind")),
        None => Err(fault("a column is missing")),
    }
}

impl<'a> Tuple<'a> {
    /// Walks a tuple that begins at `at`, and says where it ends.
    pub(super) fn walk(bytes: &'a [u8], at: usize) -> Result<(Self, usize), TupleFault> {
        let count = bytes.get(at..).and_then(<[u8]>::first_chunk);
        let count = count.ok_or(TupleFault { at, problem: "the number of columns is cut off" })?;
        let count = u16::from_be_bytes(*count);
        let first = at + 2;
        let mut end = first;
        for _ in 0..count {
            let column = span(bytes, end)?;
            end = column.start + column.len;
        }
        Ok((Self { count, body: &bytes[first..end] }, end))
    }

    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether it has no columns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes that [`Tuple::spans`] point into: to be copied at once.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Where each column lies in the body.
    pub fn spans(&self) -> impl Iterator<Item = TupleSpan> + use<'a> {
        let body = self.body;
        let mut at = 0;
        (0..self.count).map_while(move |_| {
            let column = span(body, at).ok()?;
            at = column.start + column.len;
            Some(column)
        })
    }

    /// Each column's value.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let body = self.body;
        self.spans().map(move |span| {
            let bytes = &body[span.start..span.start + span.len];
            match span.kind {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => Value::Text(bytes),
                _ => Value::Binary(bytes),
            }
        })
    }
}
