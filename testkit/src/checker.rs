//! The checker: a destination holds exactly what the transform makes of the source, key by key, both ways.
//!
//! What the transform makes is said by a query on the source (and, where SQL is awkward, a closure over its
//! rows), never by the plugin under test. Both sides are read in the order of their ids' bytes and merged, so a
//! comparison of millions of rows needs no memory for them.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tokio_postgres::{Client, Row};

use crate::wait::Pace;

const PAGE: usize = 5_000;
const EXAMPLES: usize = 10;

type Rewrite = Box<dyn Fn(&str, Value) -> Option<Value> + Send + Sync>;

/// What a destination should hold.
pub struct Expectation {
    query: String,
    rewrite: Option<Rewrite>,
}

impl fmt::Debug for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expectation").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Expectation {
    /// `query` answers one row a document with the columns `id` (text) and `document` (text: JSON), in any
    /// order.
    pub fn new(query: impl Into<String>) -> Self {
        Self { query: query.into(), rewrite: None }
    }

    /// Applies `rewrite` to each row of the query: id and JSON to the document, or none if there should be
    /// none.
    pub fn rewritten(
        mut self,
        rewrite: impl Fn(&str, Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        self.rewrite = Some(Box::new(rewrite));
        self
    }
}

/// One document that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// The destination lacks it.
    Missing {
        /// Document id.
        id: String,
        /// What should be there.
        expected: Value,
    },
    /// The source gives no such document.
    Extra {
        /// Document id.
        id: String,
        /// What is there.
        found: Value,
    },
    /// The destination holds another version.
    Different {
        /// Document id.
        id: String,
        /// What should be there.
        expected: Value,
        /// What is there.
        found: Value,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { id, expected } => write!(f, "missing {id}: expected {expected}"),
            Self::Extra { id, found } => write!(f, "extra {id}: {found}"),
            Self::Different { id, expected, found } => {
                write!(f, "different {id}:\n      expected {expected}\n      found    {found}")
            }
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Documents that should be there.
    pub expected: usize,
    /// Documents that are there.
    pub found: usize,
    /// How many are missing.
    pub missing: usize,
    /// How many should not be there.
    pub extra: usize,
    /// How many have another content.
    pub different: usize,
    /// The first ten differences, in the order of ids.
    pub examples: Vec<Difference>,
}

impl Comparison {
    /// Whether both sides are the same.
    pub fn is_equal(&self) -> bool {
        self.missing + self.extra + self.different == 0
    }

    fn note(&mut self, difference: Difference) {
        match &difference {
            Difference::Missing { .. } => self.missing += 1,
            Difference::Extra { .. } => self.extra += 1,
            Difference::Different { .. } => self.different += 1,
        }
        if self.examples.len() < EXAMPLES {
            self.examples.push(difference);
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} documents expected, {} found", self.expected, self.found)?;
        if self.is_equal() {
            return write!(f, ", all equal");
        }
        write!(f, ": {} missing, {} extra, {} different", self.missing, self.extra, self.different)?;
        self.examples.iter().try_for_each(|example| write!(f, "\n  {example}"))
    }
}

/// A table of an SQLite sink.
#[derive(Clone, Debug)]
pub struct Destination {
    file: PathBuf,
    table: String,
}

impl Destination {
    /// `table` is the destination's name in the config.
    pub fn new(file: impl Into<PathBuf>, table: impl Into<String>) -> Self {
        Self { file: file.into(), table: table.into() }
    }

    /// How many documents there are; none where the file or the table is not there yet.
    pub fn count(&self) -> Result<u64> {
        let Some(connection) = self.open()? else { return Ok(0) };
        let count: i64 =
            connection.query_row(&format!("select count(*) from {}", self.quoted()), [], |row| row.get(0))?;
        Ok(u64::try_from(count)?)
    }

    /// The document of an id.
    pub fn get(&self, id: &str) -> Result<Option<Value>> {
        let Some(connection) = self.open()? else { return Ok(None) };
        let query = format!("select document from {} where id = ?1", self.quoted());
        let mut statement = connection.prepare(&query)?;
        let mut rows = statement.query([id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(parsed(id, &row.get::<_, String>(0)?)?))
    }

    /// Notes from now on which documents are written, by triggers in the destination's own file: whoever
    /// writes, and whether or not a document changes.
    pub fn note_writes(&self) -> Result<()> {
        let (table, noted) = (self.quoted(), self.noted());
        // No `or ignore`: the conflict policy of the statement that fires a trigger rules inside it.
        let note = format!(
            "begin insert into {noted} select new.id where not exists (select 1 from {noted} where id = new.id); end"
        );
        let batch = format!(
            "begin immediate;
             create table if not exists {noted} (id text primary key) without rowid;
             delete from {noted};
             create trigger if not exists \"noted {0} insert\" after insert on {table} {note};
             create trigger if not exists \"noted {0} update\" after update on {table} {note};
             commit;",
            self.table.replace('"', "\"\"")
        );
        let noting = || -> rusqlite::Result<()> {
            let connection = Connection::open(&self.file)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.execute_batch(&batch)
        };
        noting().with_context(|| format!("cannot note writes in {}", self.file.display()))
    }

    /// Of how many documents that there are now a write was noted since [`note_writes`](Self::note_writes), and
    /// how many there are: after a rebuild the same, without one only what changed in the source meanwhile.
    pub fn written(&self) -> Result<(u64, u64)> {
        let Some(connection) = self.open()? else { return Ok((0, 0)) };
        let (table, noted) = (self.quoted(), self.noted());
        let query = format!(
            "select (select count(*) from {noted} where id in (select id from {table})),
                    (select count(*) from {table})"
        );
        let (written, of): (i64, i64) =
            connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok((u64::try_from(written)?, u64::try_from(of)?))
    }

    fn noted(&self) -> String {
        format!("\"noted {}\"", self.table.replace('"', "\"\""))
    }

    fn quoted(&self) -> String {
        format!("\"{}\"", self.table.replace('"', "\"\""))
    }

    /// A session that only reads; none where the file or the table does not exist yet.
    fn open(&self) -> Result<Option<Connection>> {
        if !self.file.exists() {
            return Ok(None);
        }
        let open = || -> rusqlite::Result<Option<Connection>> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&self.file, flags)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            let known = "select count(*) from sqlite_master where type = 'table' and name = ?1";
            let known: i64 = connection.query_row(known, [&self.table], |row| row.get(0))?;
            Ok((known > 0).then_some(connection))
        };
        open().with_context(|| format!("cannot read {}", self.file.display()))
    }
}

/// Compares once. The source should be quiet and everything delivered; see [`settle`].
pub async fn compare(
    source: &Client,
    expectation: &Expectation,
    destination: &Destination,
) -> Result<Comparison> {
    let mut documents = Documents::open(destination)?;
    let mut result = Comparison::default();
    let mut found = documents.next()?;
    let mut pages = Pages::open(source, expectation).await?;
    while let Some((id, expected)) = pages.next().await? {
        result.expected += 1;
        loop {
            let order = found.as_ref().map(|(found_id, _)| found_id.as_bytes().cmp(id.as_bytes()));
            match (order, found.take()) {
                (Some(Ordering::Less), Some((found_id, text))) => {
                    result.found += 1;
                    let value = parsed(&found_id, &text)?;
                    result.note(Difference::Extra { id: found_id, found: value });
                    found = documents.next()?;
                }
                (Some(Ordering::Equal), Some((_, text))) => {
                    result.found += 1;
                    let value = parsed(&id, &text)?;
                    if value != expected {
                        result.note(Difference::Different { id, expected, found: value });
                    }
                    found = documents.next()?;
                    break;
                }
                (_, later) => {
                    found = later;
                    result.note(Difference::Missing { id, expected });
                    break;
                }
            }
        }
    }
    while let Some((id, text)) = found {
        result.found += 1;
        let value = parsed(&id, &text)?;
        result.note(Difference::Extra { id, found: value });
        found = documents.next()?;
    }
    pages.close().await?;
    Ok(result)
}

/// Compares until both sides are equal; when they are not within `deadline`, an error with the first
/// differences. Nobody may write to the source meanwhile.
pub async fn settle(
    source: &Client,
    expectation: &Expectation,
    destination: &Destination,
    deadline: Duration,
) -> Result<Comparison> {
    let mut pace = Pace::new("destination and source to be equal", deadline);
    loop {
        let compared = compare(source, expectation, destination).await?;
        let again = pace.again(Ok(compared.is_equal())).await;
        match again {
            Ok(true) => {}
            Ok(false) => return Ok(compared),
            Err(error) => bail!("{error:#}\n{}: {compared}", destination.table),
        }
    }
}

/// The documents of a destination, ordered by the bytes of their ids, page by page.
struct Documents {
    connection: Option<Connection>,
    query: String,
    page: std::vec::IntoIter<(String, String)>,
    last: Option<String>,
}

impl Documents {
    fn open(destination: &Destination) -> Result<Self> {
        let table = destination.quoted();
        let query =
            format!("select id, document from {table} where ?1 is null or id > ?1 order by id limit {PAGE}");
        Ok(Self { connection: destination.open()?, query, page: Vec::new().into_iter(), last: None })
    }

    fn next(&mut self) -> Result<Option<(String, String)>> {
        let Some(connection) = &self.connection else { return Ok(None) };
        if self.page.len() == 0 {
            let mut statement = connection.prepare_cached(&self.query)?;
            let rows = statement.query_map([&self.last], |row| Ok((row.get(0)?, row.get(1)?)))?;
            self.page = rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter();
        }
        let next = self.page.next();
        if self.page.len() == 0 {
            self.last = next.as_ref().map(|(id, _)| id.clone());
        }
        Ok(next)
    }
}

/// The rows of an expectation's query, ordered by the bytes of their ids, page by page through a cursor.
struct Pages<'a> {
    source: &'a Client,
    rewrite: Option<&'a Rewrite>,
    page: std::vec::IntoIter<Row>,
    last_page: bool,
}

impl<'a> Pages<'a> {
    async fn open(source: &'a Client, expectation: &'a Expectation) -> Result<Self> {
        let begin = format!(
            "rollback; begin isolation level repeatable read read only; declare expected no scroll cursor for \
             select id::text, document::text from ({}) as expectation order by id::text collate \"C\"",
            expectation.query
        );
        source.batch_execute(&begin).await.with_context(|| format!("in: {}", expectation.query))?;
        let rewrite = expectation.rewrite.as_ref();
        Ok(Self { source, rewrite, page: Vec::new().into_iter(), last_page: false })
    }

    async fn next(&mut self) -> Result<Option<(String, Value)>> {
        loop {
            let Some(row) = self.page.next() else {
                if self.last_page {
                    return Ok(None);
                }
                let rows = self.source.query(&format!("fetch {PAGE} from expected"), &[]).await?;
                self.last_page = rows.len() < PAGE;
                self.page = rows.into_iter();
                continue;
            };
            let (id, text): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            let value = parsed(&id, &text)?;
            match self.rewrite {
                None => return Ok(Some((id, value))),
                Some(rewrite) => {
                    if let Some(value) = rewrite(&id, value) {
                        return Ok(Some((id, value)));
                    }
                }
            }
        }
    }

    async fn close(self) -> Result<()> {
        Ok(self.source.batch_execute("commit").await?)
    }
}

fn parsed(id: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("the document of {id} is no JSON: {text}"))
}

/// A destination in `file`, whose directory must exist, as an SQLite sink would fill it: for tests of the
/// checker itself.
#[doc(hidden)]
pub fn fill_for_test(file: &Path, table: &str, documents: &[(&str, &str)]) -> Result<()> {
    let connection = Connection::open(file)?;
    connection.execute_batch(&format!(
        "create table \"{table}\" (id text not null primary key, document text not null)"
    ))?;
    for document in documents {
        connection.execute(&format!("insert into \"{table}\" values (?1, ?2)"), *document)?;
    }
    Ok(())
}
