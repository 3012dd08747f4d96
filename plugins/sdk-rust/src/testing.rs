//! Runs a transform natively, without WebAssembly: for unit tests of plugins.
//!
//! [`change`] calls it with a row that the test builds; [`Table`] goes the whole way through the bytes of a
//! batch, as the host does.

use std::{cell::RefCell, collections::BTreeMap};

use crate::{
    Change, Failure, FailureClass, Operation, Origin, Transform, Value, batch, describe,
    host::Level,
    msgpack::{Reader, Token, write},
};

#[cfg(feature = "http")]
type Answers = Box<dyn Fn(&crate::http::Request) -> Result<crate::http::Response, crate::http::Error>>;

type QueryAnswers = Box<dyn Fn(&str, &[Option<String>]) -> (Vec<&'static str>, Vec<Vec<Value<'static>>>)>;

thread_local! {
    static QUERY: RefCell<Option<QueryAnswers>> = const { RefCell::new(None) };
    static STATE: RefCell<BTreeMap<String, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
    static METRICS: RefCell<BTreeMap<String, f64>> = const { RefCell::new(BTreeMap::new()) };
    #[cfg(feature = "http")]
    static HTTP: RefCell<Option<Answers>> = const { RefCell::new(None) };
    static CONFIG: RefCell<BTreeMap<String, String>> = const { RefCell::new(BTreeMap::new()) };
    static LOG: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

/// Sets what [`host::config`](crate::host::config) gives on this thread.
pub fn set_config(key: &str, value: &str) {
    CONFIG.with_borrow_mut(|config| config.insert(key.to_owned(), value.to_owned()));
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn config(key: &str) -> Option<String> {
    CONFIG.with_borrow(|config| config.get(key).cloned())
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn record_log(level: Level, message: &str) {
    LOG.with_borrow_mut(|log| log.push((level, message.to_owned())));
}

/// The log lines of this thread since the last call.
#[must_use]
pub fn take_log() -> Vec<(Level, String)> {
    LOG.take()
}

/// Sets what requests of this thread are answered with.
#[cfg(feature = "http")]
pub fn set_http(
    answers: impl Fn(&crate::http::Request) -> Result<crate::http::Response, crate::http::Error> + 'static,
) {
    HTTP.set(Some(Box::new(answers)));
}

#[cfg(all(feature = "http", not(target_family = "wasm")))]
pub(crate) fn answer(request: &crate::http::Request) -> Result<crate::http::Response, crate::http::Error> {
    HTTP.with_borrow(|answers| match answers {
        Some(answers) => answers(request),
        None => Err(crate::http::Error::Denied(
            "no request is answered here: say how with `testing::set_http`".to_owned(),
        )),
    })
}

/// Sets what questions of this thread are answered with: the columns and rows of a statement for one set of parameters.
pub fn set_query(
    answers: impl Fn(&str, &[Option<String>]) -> (Vec<&'static str>, Vec<Vec<Value<'static>>>) + 'static,
) {
    QUERY.set(Some(Box::new(answers)));
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn answer_query(query: &crate::query::Query) -> Result<Vec<u8>, Failure> {
    QUERY.with_borrow(|answers| {
        let Some(answers) = answers else {
            let message = "no question is answered here: say how with `testing::set_query`";
            return Err(Failure::fatal("query-denied", message));
        };
        let sets = query.statements.iter().flat_map(|statement| {
            statement.parameters.iter().map(|parameters| answers(&statement.sql, parameters))
        });
        let sets: Vec<_> = sets.collect();
        let mut out = Vec::new();
        write::array(&mut out, 2);
        write::unsigned(&mut out, 1);
        write::array(&mut out, sets.len());
        for (columns, rows) in &sets {
            write::array(&mut out, 2);
            write::array(&mut out, columns.len());
            columns.iter().for_each(|name| write::str(&mut out, name));
            write::array(&mut out, rows.len());
            for row in rows {
                write::array(&mut out, row.len());
                row.iter().for_each(|value| push_value(&mut out, value));
            }
        }
        Ok(out)
    })
}

/// Forgets the state of this thread.
pub fn clear_state() {
    STATE.with_borrow_mut(BTreeMap::clear);
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn with_state<T>(run: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> T {
    STATE.with_borrow_mut(run)
}

/// What a number of this thread came to: `name`, or `name{label="value"}`.
#[must_use]
pub fn metric(series: &str) -> Option<f64> {
    METRICS.with_borrow(|metrics| metrics.get(series).copied())
}

#[cfg(not(target_family = "wasm"))]
pub(crate) fn record_metric(name: &str, labels: &[(&str, &str)], change: impl FnOnce(f64) -> f64) {
    let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    let series = if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) };
    METRICS.with_borrow_mut(|metrics| {
        let value = metrics.entry(series).or_default();
        *value = change(*value);
    });
}

/// An insert of a row, with id `1`, to be given to [`Transform::transform`].
#[must_use]
pub fn change<R>(row: R) -> Change<'static, R> {
    Change {
        operation: Operation::Insert,
        origin: Origin::Stream,
        id: Some("1"),
        row,
        lsn: 1,
        commit_time_us: 0,
        sequence: 0,
        old: None,
    }
}

/// What `describe` gives for a transform.
#[must_use]
pub fn describe<T: Transform>() -> String {
    describe::describe::<T>("test", "0.0.0")
}

/// An outcome as the host would read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Id, destination and JSON text of each document.
    Emit(Vec<(Option<String>, Option<String>, String)>),
    /// The row has no document.
    Delete,
    /// The destination stays as it is.
    Skip,
    /// The change failed.
    Failed(Failure),
}

impl Outcome {
    /// The text of the one document, where it is one.
    #[must_use]
    pub fn document(&self) -> Option<&str> {
        match self {
            Self::Emit(documents) if documents.len() == 1 => {
                documents.first().map(|(_, _, text)| text.as_str())
            }
            _ => None,
        }
    }
}

/// One column of a row: its name and its value.
pub type Named<'a> = (&'a str, Value<'a>);

/// Changes of a table, as a batch.
#[derive(Debug)]
pub struct Table {
    columns: Vec<String>,
    changes: Vec<u8>,
    count: usize,
}

impl Table {
    /// A table with these columns, in this order; a transform whose row is a struct needs just its own.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|&name| name.to_owned()).collect(), changes: Vec::new(), count: 0 }
    }

    /// The table that a transform's row asks for.
    #[must_use]
    pub fn of<T: Transform>() -> Self {
        Self::new(describe::columns::<T::Row<'static>>().unwrap_or_default())
    }

    /// A new row; columns that are not named were not sent.
    #[must_use]
    pub fn insert(self, id: &str, row: &[Named<'_>]) -> Self {
        self.push("insert", id, Some(row), None)
    }

    /// A new version of a row.
    #[must_use]
    pub fn update(self, id: &str, row: &[Named<'_>], old: Option<&[Named<'_>]>) -> Self {
        self.push("update", id, Some(row), old)
    }

    /// The end of a row.
    #[must_use]
    pub fn delete(self, id: &str, old: &[Named<'_>]) -> Self {
        self.push("delete", id, None, Some(old))
    }

    fn push(
        mut self,
        operation: &str,
        id: &str,
        new: Option<&[Named<'_>]>,
        old: Option<&[Named<'_>]>,
    ) -> Self {
        let out = &mut self.changes;
        write::array(out, 9);
        write::str(out, operation);
        write::str(out, id);
        let mut absent = Vec::new();
        for tuple in [new, old] {
            absent.push(push_tuple(out, &self.columns, tuple));
        }
        write::unsigned(out, 1);
        write::signed(out, 0);
        write::unsigned(out, self.count as u64);
        write::array(out, 2);
        for positions in absent {
            write::array(out, positions.len());
            for position in positions {
                write::unsigned(out, position as u64);
            }
        }
        write::map(out, 0);
        self.count += 1;
        self
    }

    fn batch(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write::map(&mut out, 4);
        write::str(&mut out, "v");
        write::unsigned(&mut out, 1);
        write::str(&mut out, "relation");
        write::map(&mut out, 1);
        write::str(&mut out, "columns");
        write::array(&mut out, self.columns.len());
        for column in &self.columns {
            write::str(&mut out, column);
        }
        write::str(&mut out, "origin");
        write::str(&mut out, "stream");
        write::str(&mut out, "changes");
        write::array(&mut out, self.count);
        out.extend_from_slice(&self.changes);
        out
    }

    /// Runs a transform over the changes.
    ///
    /// # Errors
    /// The whole batch failed.
    pub fn run<T: Transform>(&self) -> Result<Vec<Outcome>, Failure> {
        let reply = batch::run::<T>(&self.batch())?;
        let mut reader = Reader::new(&reply);
        let count = reader.array()?;
        (0..count).map(|_| outcome(&mut reader)).collect()
    }
}

fn push_tuple(out: &mut Vec<u8>, columns: &[String], tuple: Option<&[Named<'_>]>) -> Vec<usize> {
    let mut absent = Vec::new();
    let Some(tuple) = tuple else {
        out.push(0xc0);
        return absent;
    };
    write::array(out, columns.len());
    for (position, column) in columns.iter().enumerate() {
        match tuple.iter().find(|(name, _)| name == column) {
            Some((_, value)) if *value != Value::Absent => push_value(out, value),
            _ => {
                absent.push(position);
                out.push(0xc0);
            }
        }
    }
    absent
}

fn push_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Absent | Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        Value::Integer(value) => write::signed(out, *value),
        Value::Float(value) => write::float(out, *value),
        Value::Text(text) => write::str(out, text),
        Value::Bytes(bytes) => write::bin(out, |out| out.extend_from_slice(bytes)),
        Value::Json(json) => write::ext(out, 1, json.get().as_bytes()),
        Value::Array(items) => {
            write::array(out, items.len());
            items.iter().for_each(|item| push_value(out, item));
        }
        Value::Map(entries) => {
            write::map(out, entries.len());
            for (key, value) in entries {
                write::str(out, key);
                push_value(out, value);
            }
        }
    }
}

fn outcome(reader: &mut Reader<'_>) -> Result<Outcome, Failure> {
    reader.array()?;
    Ok(match reader.unsigned()? {
        0 => {
            let mut documents = Vec::new();
            for _ in 0..reader.array()? {
                reader.array()?;
                let id = reader.optional_text()?.map(str::to_owned);
                let destination = reader.optional_text()?.map(str::to_owned);
                let body = match reader.next()? {
                    Token::Bin(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    other => return Err(Failure::fatal("reply", format!("{other:?} is no document"))),
                };
                documents.push((id, destination, body));
            }
            Outcome::Emit(documents)
        }
        1 => Outcome::Delete,
        2 => Outcome::Skip,
        _ => {
            let class = match reader.text()? {
                "retry" => FailureClass::Retry,
                "fatal" => FailureClass::Fatal,
                _ => FailureClass::Poison,
            };
            let code = reader.text()?.to_owned();
            Outcome::Failed(Failure { class, code, message: reader.text()?.to_owned(), retry_after: None })
        }
    })
}
