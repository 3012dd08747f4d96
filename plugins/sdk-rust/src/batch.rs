//! A whole batch: from the host's bytes to the reply's.

use std::marker::PhantomData;

use serde::Deserialize;

use crate::{
    Failure, Transform,
    answer::{IntoAnswer, Outcomes},
    describe,
    msgpack::{Malformed, Reader, Token},
    row::{Absent, Tuple},
};

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new row.
    Insert,
    /// A new version of a row.
    Update,
    /// The end of a row. Only where the transform wants deletes.
    Delete,
    /// A row that a backfill read.
    Read,
}

impl Operation {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "insert" => Self::Insert,
            "update" => Self::Update,
            "delete" => Self::Delete,
            "read" => Self::Read,
            _ => return None,
        })
    }
}

/// Which way a change came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A committed transaction, live.
    Stream,
    /// A backfill.
    Backfill,
}

/// One change of a row.
#[derive(Debug)]
pub struct Change<'a, R> {
    /// What happened.
    pub operation: Operation,
    /// Which way it came.
    pub origin: Origin,
    /// The document id: the key's text. None where the table has no key.
    pub id: Option<&'a str>,
    /// The row as it is now; for a delete, the old row as far as the server sent it.
    pub row: R,
    /// Position of the commit.
    pub lsn: u64,
    /// When it was committed: microseconds since 1970-01-01 UTC.
    pub commit_time_us: i64,
    /// Position in its transaction.
    pub sequence: u64,
    pub(crate) old: Option<Tuple<'a>>,
}

impl<'a, R: Deserialize<'a>> Change<'a, R> {
    /// The row before the change, where the server sent it (`replica identity full`, or the key's columns
    /// when the key changed).
    ///
    /// # Errors
    /// The old row does not fit `R`: columns that were not sent need to be [`Field`](crate::Field)s.
    pub fn old(&self) -> Result<Option<R>, Failure> {
        self.old.map(Tuple::read).transpose().map_err(|error| Failure::poison("old-row", error.to_string()))
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        let Malformed { at, expected } = malformed;
        Self::fatal("batch", format!("the batch is malformed at byte {at}: expected {expected}"))
    }
}

struct Header<'de> {
    columns: Vec<&'de str>,
    origin: Origin,
    /// At the array of changes.
    changes: Reader<'de>,
}

fn relation_columns<'de>(reader: &mut Reader<'de>) -> Result<Vec<&'de str>, Malformed> {
    let mut columns = Vec::new();
    for _ in 0..reader.map()? {
        if reader.text()? == "columns" {
            let count = reader.array()?;
            columns = (0..count).map(|_| reader.text()).collect::<Result<_, _>>()?;
        } else {
            reader.skip()?;
        }
    }
    Ok(columns)
}

fn header(batch: &[u8]) -> Result<Header<'_>, Failure> {
    let mut reader = Reader::new(batch);
    let mut columns = Vec::new();
    let mut origin = Origin::Stream;
    let mut changes = None;
    let entries = reader.map()?;
    for entry in 1..=entries {
        match reader.text()? {
            "v" => {
                let version = reader.unsigned()?;
                if version != 1 {
                    let message = format!("this plugin reads payload version 1, the host sent {version}");
                    return Err(Failure::fatal("payload-version", message));
                }
            }
            "relation" => columns = relation_columns(&mut reader)?,
            "origin" if reader.text()? == "backfill" => origin = Origin::Backfill,
            "origin" => {}
            "changes" => {
                changes = Some(reader);
                // The last key as a rule: nothing comes after it that were worth the way.
                if entry < entries {
                    reader.skip()?;
                }
            }
            _ => reader.skip()?,
        }
    }
    let changes = changes.ok_or(Malformed { at: reader.at(), expected: "`changes`" })?;
    Ok(Header { columns, origin, changes })
}

/// Runs a transform over a batch and writes the reply.
///
/// # Errors
/// The batch is malformed, or has other columns than the transform's row.
pub fn run<T: Transform>(batch: &[u8]) -> Result<Vec<u8>, Failure> {
    let Header { columns, origin, changes: mut reader } = header(batch)?;
    if let Some(fields) = describe::columns::<T::Row<'_>>()
        && fields != columns
    {
        let message = format!("the host sent columns {columns:?}, the row has {fields:?}");
        return Err(Failure::fatal("columns", message));
    }
    let count = reader.array()?;
    T::prepare(Changes { reader, columns: &columns, origin, left: count, of: PhantomData })?;
    let mut out = Outcomes::new(count, batch.len());
    for _ in 0..count {
        match change::<T>(&mut reader, &columns, origin)?.and_then(T::transform) {
            Ok(answer) => answer.write(&mut out),
            Err(failure) => out.failed(&failure),
        }
    }
    Ok(out.finish())
}

/// The changes of a batch, read one by one. One whose row cannot be read is left out: it fails when its turn comes.
pub struct Changes<'a, T: Transform> {
    reader: Reader<'a>,
    columns: &'a [&'a str],
    origin: Origin,
    left: usize,
    of: PhantomData<T>,
}

impl<'a, T: Transform> Iterator for Changes<'a, T> {
    type Item = Change<'a, T::Row<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            self.left -= 1;
            match change::<T>(&mut self.reader, self.columns, self.origin) {
                Ok(Ok(change)) => return Some(change),
                Ok(Err(_)) => {}
                // What is malformed is told when it is answered.
                Err(_) => self.left = 0,
            }
        }
        None
    }
}

impl<T: Transform> std::fmt::Debug for Changes<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Changes").field("left", &self.left).finish_non_exhaustive()
    }
}

/// Reads one change. The outer error is one of the batch.
#[inline]
fn change<'a, T: Transform>(
    reader: &mut Reader<'a>,
    columns: &'a [&'a str],
    origin: Origin,
) -> Result<Result<Change<'a, T::Row<'a>>, Failure>, Failure> {
    let elements = reader.array()?;
    let operation = reader.text()?;
    let operation = Operation::parse(operation)
        .ok_or_else(|| Failure::fatal("operation", format!("operation `{operation}` is not known")))?;
    let id = reader.optional_text()?;
    let new = tuple(reader)?;
    let old = tuple(reader)?;
    let lsn = reader.unsigned()?;
    let commit_time_us = reader.signed()?;
    let sequence = reader.unsigned()?;
    let (absent_new, absent_old) = absent(reader)?;
    for _ in 8..elements {
        reader.skip()?;
    }
    let new = new.map(|reader| Tuple { reader, columns, absent: absent_new });
    let old = old.map(|reader| Tuple { reader, columns, absent: absent_old });
    let Some(tuple) = new.or(old) else {
        return Ok(Err(Failure::poison("no-row", "the change has neither a new nor an old row")));
    };
    Ok(match tuple.read() {
        Ok(row) => Ok(Change { operation, origin, id, row, lsn, commit_time_us, sequence, old }),
        Err(error) => Err(Failure::poison("row", error.to_string())),
    })
}

/// A reader at the tuple, which is stepped over.
#[inline]
fn tuple<'a>(reader: &mut Reader<'a>) -> Result<Option<Reader<'a>>, Malformed> {
    if reader.take_nil() {
        return Ok(None);
    }
    let start = *reader;
    reader.skip()?;
    Ok(Some(start))
}

fn absent<'a>(reader: &mut Reader<'a>) -> Result<(Absent<'a>, Absent<'a>), Malformed> {
    if reader.take_nil() {
        return Ok((Absent(None), Absent(None)));
    }
    let start = *reader;
    match reader.next()? {
        Token::Array(2) => {
            let new = *reader;
            reader.skip()?;
            let old = *reader;
            reader.skip()?;
            Ok((Absent(Some(new)), Absent(Some(old))))
        }
        _ => Err(Malformed { at: start.at(), expected: "nil or two lists of positions" }),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::*;
    use crate::{
        Value,
        query::Query,
        testing::{self, Outcome, Table},
    };

    #[derive(Deserialize)]
    struct Product<'a> {
        brand: &'a str,
    }

    thread_local! {
        static BRANDS: RefCell<BTreeMap<String, String>> = const { RefCell::new(BTreeMap::new()) };
    }

    struct Prepared;

    impl Transform for Prepared {
        type Row<'a> = Product<'a>;
        type Answer<'a> = Option<String>;

        fn prepare<'a>(changes: Changes<'a, Self>) -> Result<(), Failure> {
            let brands: Vec<&str> = changes.map(|change| change.row.brand).collect();
            if brands.contains(&"late") {
                return Err(Failure::retry("late", "later"));
            }
            let query = brands.iter().fold(Query::new("a"), |query, brand| query.with([Some(*brand)]));
            let answers = query.run()?;
            BRANDS.with_borrow_mut(|known| {
                for (set, brand) in brands.iter().enumerate() {
                    let rows: Vec<(String,)> = answers.rows(set)?;
                    known.insert((*brand).to_owned(), rows[0].0.clone());
                }
                Ok(())
            })
        }

        fn transform<'a>(change: Change<'a, Product<'a>>) -> Result<Option<String>, Failure> {
            Ok(BRANDS.with_borrow(|known| known.get(change.row.brand).cloned()))
        }
    }

    #[test]
    fn a_batch_is_prepared_once_before_its_first_change() {
        testing::set_query(|_, parameters| {
            let name = if parameters[0].as_deref() == Some("a") { "of a" } else { "of another" };
            (vec!["name"], vec![vec![Value::Text(name)]])
        });
        let table = Table::of::<Prepared>()
            .insert("1", &[("brand", Value::Text("a"))])
            .insert("2", &[("brand", Value::Integer(7))])
            .insert("3", &[("brand", Value::Text("b"))]);
        let outcomes = table.run::<Prepared>().unwrap();
        assert_eq!(outcomes[0].document(), Some("\"of a\""));
        assert!(matches!(&outcomes[1], Outcome::Failed(failure) if failure.code == "row"), "{outcomes:?}");
        assert_eq!(outcomes[2].document(), Some("\"of another\""));
        assert_eq!(BRANDS.with_borrow(BTreeMap::len), 2, "what cannot be read is not shown");
        let late = Table::of::<Prepared>().insert("1", &[("brand", Value::Text("late"))]);
        assert_eq!(late.run::<Prepared>().unwrap_err().code, "late");
    }
}
