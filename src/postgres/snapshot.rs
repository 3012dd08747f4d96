//! Reads rows that already exist: one keyset page of a table, or rows by key, each in a snapshot of its own
//! that is told along with them.
//!
//! Guarantees that text is the same as the stream's, that paging follows the server's own order of the key's
//! types, that rows and columns are those of the publication, and that what comes back is exactly what the
//! told snapshot sees: the table is locked (`access share`) before the snapshot is taken, since a table that
//! is rewritten under a snapshot looks empty to it. Must never hold a transaction longer than one read.

mod sample;

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    catalog::{TableInfo, Wanted, read_tables, tables_query},
    connect::{Purpose, major_version},
    error::{Error, ErrorKind},
    keyset::{absent, among, equal, greater},
    marks::parse_snapshot,
    quote,
    settings::ConnectSettings,
    types::{KeyType, Types},
    wire::{Wire, cells, unexpected},
};
use crate::{
    backfill::{Cursor, KeyColumn},
    model::{
        Cell, Change, ChangeBatch, EntityName, Lsn, Operation, Origin, Relation, RowSpan, Scope, Snapshot,
        TransactionInfo,
    },
};

/// Longer than this no lock is waited for: other tables may be read meanwhile.
const LONGEST_LOCK_WAIT: Duration = Duration::from_secs(10);

/// About so much text is asked for at once. The server's process sleeps in between, which leaves its core to
/// others that wait: a page in one piece keeps it for several milliseconds.
const FETCH_BYTES: usize = 64 << 10;

pub use sample::{Sample, SampleRequest};

/// Which page to read.
#[derive(Clone, Copy, Debug)]
pub struct ChunkRequest<'a> {
    /// The table.
    pub entity: &'a EntityName,
    /// Only these rows; none for all.
    pub scope: Option<&'a Scope>,
    /// Only these columns and the key's; none for all.
    pub columns: Option<&'a [String]>,
    /// The row to read after; none to begin.
    pub after: Option<&'a Cursor>,
    /// At most so many rows.
    pub max_rows: u32,
    /// No further rows once so many bytes of text were read.
    pub max_bytes: usize,
    /// The server gives up a statement after this, and the wait for the table's lock after this or ten seconds
    /// ([`ErrorKind::Cancelled`]).
    pub timeout: Option<Duration>,
}

/// A page.
#[derive(Debug)]
pub struct ChunkRead {
    /// The table as it was, with the columns that were asked for. The same `Arc` as long as nothing changed.
    pub relation: Arc<Relation>,
    /// What the rows were read in.
    pub snapshot: Snapshot,
    /// The rows as reads of a backfill, in key order, in one transaction whose positions are 0: they are the
    /// high mark's, which is not known yet. Where keys were asked for, the first page ends with a delete for each
    /// that there is no row of.
    pub batch: ChangeBatch,
    /// The key that the page is ordered by.
    pub key: Vec<KeyColumn>,
    /// The key of the last row, as the server writes it; none for an empty page.
    pub last: Option<Vec<String>>,
    /// Whether there were no more rows behind the page.
    pub exhausted: bool,
    /// Bytes of text.
    pub bytes: usize,
    /// How long it took.
    pub elapsed: Duration,
}

/// Rows that were read again.
#[derive(Debug)]
pub struct Reread {
    /// The table as it was.
    pub relation: Arc<Relation>,
    /// What the rows were read in.
    pub snapshot: Snapshot,
    /// The rows that are there, in any order; positions are 0.
    pub batch: ChangeBatch,
}

/// A session for reads, one at a time. What it asks the catalogue before each page is prepared: to plan it takes the
/// server longer than to answer it, and keeps a core from live changes.
pub struct SnapshotReader {
    wire: Wire,
    publication: String,
    types: Types,
    relations: HashMap<u32, Arc<Relation>>,
    /// Bytes per row by table, as last seen: how many rows to ask for at once.
    row_bytes: HashMap<u32, usize>,
    /// The condition of a scope that was last found to be one.
    checked: String,
    /// Columns that the publication's list leaves out are read too.
    unlisted: bool,
    /// A read was dropped before its end: the session's state is not known.
    spoiled: bool,
}

impl std::fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotReader").field("publication", &self.publication).finish_non_exhaustive()
    }
}

/// What an open read transaction knows.
struct Opened {
    snapshot: Snapshot,
    table: TableInfo,
    relation: Arc<Relation>,
    key: Vec<(String, KeyType)>,
}

impl SnapshotReader {
    /// Opens a session that reads tables as the publication has them.
    ///
    /// # Errors
    /// As [`ConnectSettings::connect`].
    pub async fn open(settings: &ConnectSettings, publication: impl Into<String>) -> Result<Self, Error> {
        let (mut wire, _) = settings.connect_wire(Purpose::Snapshot, false).await?;
        let version = wire.parameters.get("server_version").map_or(0, |text| major_version(text));
        let publication = publication.into();
        let [tables, columns] = tables_query(&Wanted::Parameters, &publication, version);
        let prepare = format!(
            "prepare anabranch_table (name, name) as {tables}; \
             prepare anabranch_columns (name, name) as {columns}"
        );
        wire.query(&prepare).await?;
        Ok(Self {
            wire,
            publication,
            types: Types::default(),
            relations: HashMap::new(),
            row_bytes: HashMap::new(),
            checked: String::new(),
            unlisted: false,
            spoiled: false,
        })
    }

    /// Ends the session.
    pub async fn close(self) {
        self.wire.terminate().await;
    }

    /// Reads the page after a key. Not cancel-safe: when the future is dropped, the next call fails with
    /// [`ErrorKind::Closed`] and the reader must be opened anew.
    ///
    /// # Errors
    /// [`ErrorKind::KeyChanged`] when the cursor is of another key, [`ErrorKind::Table`] when the table is gone
    /// or has no key, [`ErrorKind::Cancelled`] after the timeout, and what else the server reports.
    pub async fn read_chunk(&mut self, request: &ChunkRequest<'_>) -> Result<ChunkRead, Error> {
        self.guard()?;
        let result = self.chunk(request).await;
        self.unguard(result, request.entity).await
    }

    /// Reads rows by their keys, each the text of the key's columns in key order. Rows that are gone, or that
    /// the publication's filter leaves out, are missing from the answer. `timeout` is a page's. Not cancel-safe, as
    /// [`read_chunk`](Self::read_chunk).
    ///
    /// Where the key is not any more that of the description they are `of`, that is an error.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn reread(
        &mut self,
        entity: &EntityName,
        (keys, of): (&[Vec<String>], Option<&Relation>),
        timeout: Option<Duration>,
    ) -> Result<Reread, Error> {
        self.guard()?;
        let result = self.by_key(entity, (keys, of), timeout).await;
        self.unguard(result, entity).await
    }

    fn guard(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.spoiled, true) {
            return Err(Error::closed("a read was given up before its end"));
        }
        Ok(())
    }

    async fn unguard<T>(&mut self, result: Result<T, Error>, entity: &EntityName) -> Result<T, Error> {
        // After a protocol error or a lost connection nothing can be rolled back.
        let usable =
            result.as_ref().map_or_else(|error| error.sqlstate().is_some() || is_local(error), |_| true);
        let ended = usable && (result.is_ok() || self.wire.query("rollback").await.is_ok());
        self.spoiled = !ended;
        result.map_err(|error| error.context(format!("reading {entity}")))
    }

    async fn begin(
        &mut self,
        entity: &EntityName,
        columns: Option<&[String]>,
        timeout: Option<Duration>,
    ) -> Result<Opened, Error> {
        let name = quote::entity(entity);
        let millis = |limit: Duration| limit.as_millis().clamp(1, 2_147_483_647);
        let limit = timeout.map_or(0, millis);
        // The lock has a limit of its own, which says what is waited for.
        let lock_limit = timeout.map_or(0, |limit| millis(limit.min(LONGEST_LOCK_WAIT)));
        let names = format!("({}, {})", quote::literal(&entity.schema), quote::literal(&entity.table));
        let sql = format!(
            "begin isolation level repeatable read read only; \
             set local statement_timeout = 0; set local lock_timeout = {lock_limit}; \
             lock table {name} in access share mode; set local statement_timeout = {limit}; \
             select pg_current_snapshot(); execute anabranch_table {names}; execute anabranch_columns {names}"
        );
        let mut results = self.wire.query(&sql).await?.into_iter().skip(5);
        let row = results.next().unwrap_or_default().into_iter().flatten().flatten().next();
        let snapshot = parse_snapshot(row.as_deref())?;
        let table = read_tables(results.collect())?.pop();
        let mut table =
            table.ok_or_else(|| Error::new(ErrorKind::Table, "it is not a table that can be read"))?;
        if self.unlisted {
            table.columns.iter_mut().for_each(|column| column.published |= !column.generated);
        }
        if let Some(sql) = self.types.query_for(table.columns.iter().map(|column| column.type_oid)) {
            let rows = self.wire.query(&sql).await?.into_iter().flatten().collect();
            self.types.absorb(rows)?;
        }
        let wanted = |name: &str| columns.is_none_or(|columns| columns.iter().any(|column| column == name));
        let relation = self.intern(table.relation(&self.types).narrowed(wanted));
        let key_type = |&at: &usize| {
            let column = &relation.columns[at];
            Ok((quote::identifier(&column.name), self.types.key_type(column.type_oid)?))
        };
        let key: Vec<_> = relation.key.iter().map(key_type).collect::<Result<_, Error>>()?;
        if key.is_empty() {
            return Err(Error::new(
                ErrorKind::Table,
                format!("it has no usable key; add one: alter table {name} add primary key (…)"),
            ));
        }
        Ok(Opened { snapshot, table, relation, key })
    }

    fn intern(&mut self, relation: Relation) -> Arc<Relation> {
        match self.relations.get(&relation.oid) {
            Some(known) if **known == relation => Arc::clone(known),
            _ => {
                let relation = Arc::new(relation);
                self.relations.insert(relation.oid, Arc::clone(&relation));
                relation
            }
        }
    }

    async fn chunk(&mut self, request: &ChunkRequest<'_>) -> Result<ChunkRead, Error> {
        let started = Instant::now();
        let opened = self.begin(request.entity, request.columns, request.timeout).await?;
        let key = opened.table.key_columns();
        let cursor = request.after.map(|cursor| check_cursor(&opened.relation, &key, cursor)).transpose()?;
        let scope = match request.scope {
            Some(scope) => Some(self.scope(&opened, scope).await?),
            None => None,
        };
        let select = chunk_select(&opened, scope, cursor, request.max_rows);
        let mut rows = Rows::new(&opened.relation);
        if let Some(&average) = self.row_bytes.get(&opened.table.oid).filter(|_| request.scope.is_none()) {
            rows.reserve(
                request.max_rows.min(self.rows_to_ask(opened.table.oid, request.max_bytes)),
                average,
            );
        }
        let mut opening = format!("declare anabranch_chunk no scroll cursor for {select}; ");
        let mut exhausted = false;
        while !exhausted && rows.count() < request.max_rows && rows.bytes() < request.max_bytes {
            let left = request.max_rows - rows.count();
            let bytes = FETCH_BYTES.min(request.max_bytes - rows.bytes());
            let ask = self.rows_to_ask(opened.table.oid, bytes).min(left);
            let before = rows.count();
            self.fetch(&format!("{opening}fetch forward {ask} from anabranch_chunk"), &mut rows).await?;
            opening.clear();
            exhausted = rows.count() - before < ask;
            if let Some(average) = rows.bytes().checked_div(rows.count() as usize) {
                self.row_bytes.insert(opened.table.oid, average.max(1));
            }
        }
        let last = rows.last_key()?;
        if let (Some(Scope::Keys(keys)), None) = (request.scope, request.after) {
            // With the first page, whose snapshot judges them, too.
            self.fetch_absent(&opened, keys, &mut rows).await?;
        }
        self.wire.query("commit").await?;
        Ok(ChunkRead {
            bytes: rows.bytes(),
            batch: rows.batch,
            relation: opened.relation,
            snapshot: opened.snapshot,
            key,
            last,
            exhausted,
            elapsed: started.elapsed(),
        })
    }

    /// Adds the keys of which there is no row, as deletes of rows of which nothing but the key is known.
    async fn fetch_absent(
        &mut self,
        opened: &Opened,
        keys: &[Vec<String>],
        rows: &mut Rows,
    ) -> Result<(), Error> {
        for keys in keys.chunks(200) {
            let filter = opened.table.row_filter.as_ref();
            let filter = filter.map(|filter| format!(" and ({filter})")).unwrap_or_default();
            let only = if opened.table.partitioned { "" } else { "only " };
            let table = format!("{only}{}", quote::entity(&opened.relation.name));
            let found = self.wire.query(&absent(&opened.key, keys, &table, &filter)).await?;
            for key in found.into_iter().flatten() {
                rows.push_gone(&key)?;
            }
        }
        Ok(())
    }

    /// The condition of a scope, as one that ends where it should: whoever asks for rows says which, and
    /// nothing else.
    async fn scope(&mut self, opened: &Opened, scope: &Scope) -> Result<String, Error> {
        match scope {
            Scope::Keys(keys) => among(&opened.key, keys),
            Scope::Where(condition) => {
                if self.checked != *condition {
                    // Without parentheses of its own: what closes them does not pass, nor do two statements.
                    let name = quote::entity(&opened.relation.name);
                    self.wire.parse(&format!("select from only {name} where {condition}")).await?;
                    self.checked.clone_from(condition);
                }
                // On lines of its own: it may end with a comment.
                Ok(format!("(\n{condition}\n)"))
            }
        }
    }

    /// As many as should fit, going by the last page; few when nothing is known.
    fn rows_to_ask(&self, table: u32, bytes: usize) -> u32 {
        let Some(average) = self.row_bytes.get(&table) else { return 100 };
        u32::try_from(bytes / average + 1).unwrap_or(u32::MAX)
    }

    async fn fetch(&mut self, sql: &str, rows: &mut Rows) -> Result<(), Error> {
        self.wire.send_query(sql).await?;
        let mut failure = None;
        loop {
            match self.wire.receive().await? {
                (b'D', body) => rows.push(body)?,
                (b'E', body) => failure = Some(Error::from_fields(body)),
                (b'Z', _) => return failure.map_or(Ok(()), Err),
                (b'C' | b'T' | b'N' | b'S', _) => {}
                (tag, _) => return Err(unexpected(tag, "fetch")),
            }
        }
    }

    async fn by_key(
        &mut self,
        entity: &EntityName,
        (keys, of): (&[Vec<String>], Option<&Relation>),
        timeout: Option<Duration>,
    ) -> Result<Reread, Error> {
        let opened = self.begin(entity, None, timeout).await?;
        if let Some(of) = of.filter(|of| !has_key_of(&opened.relation, of)) {
            return Err(key_changed(&opened.relation, of.key.len()));
        }
        let mut rows = Rows::new(&opened.relation);
        // Short statements: the planner takes its time over long lists of alternatives.
        for keys in keys.chunks(200) {
            let mut alternatives = Vec::with_capacity(keys.len());
            for key in keys {
                if key.len() != opened.key.len() {
                    return Err(key_changed(&opened.relation, key.len()));
                }
                alternatives.push(format!("({})", equal(&opened.key, key)));
            }
            let condition = format!("({})", alternatives.join(" or "));
            self.fetch(&select(&opened, vec![condition]), &mut rows).await?;
        }
        self.wire.query("commit").await?;
        Ok(Reread { relation: opened.relation, snapshot: opened.snapshot, batch: rows.batch })
    }
}

/// Errors that were found on this side, with the session in a known state.
fn is_local(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table | ErrorKind::KeyChanged)
}

fn check_cursor<'a>(
    relation: &Relation,
    key: &[KeyColumn],
    cursor: &'a Cursor,
) -> Result<&'a [String], Error> {
    let same = cursor.key == key && cursor.values.len() == key.len();
    if same { Ok(&cursor.values) } else { Err(key_changed(relation, cursor.values.len())) }
}

/// Whether a table has the key, as far as can be told, that an earlier description of it has: columns of it may have got
/// other names.
fn has_key_of(now: &Relation, before: &Relation) -> bool {
    let types = |of: &Relation| of.key.iter().map(|&at| of.columns[at].type_oid).collect::<Vec<_>>();
    let renamed = before.key_names().any(|name| now.column(name).is_none());
    types(now) == types(before) && (renamed || now.key_names().eq(before.key_names()))
}

fn key_changed(relation: &Relation, parts: usize) -> Error {
    let names: Vec<_> = relation.key_names().collect();
    Error::new(
        ErrorKind::KeyChanged,
        format!(
            "the key is now ({}), which a cursor of {parts} columns of another key cannot follow",
            names.join(", ")
        ),
    )
}

fn select(opened: &Opened, conditions: Vec<String>) -> String {
    select_from(opened, "", conditions)
}

/// `part` stands behind the table's name.
fn select_from(opened: &Opened, part: &str, conditions: Vec<String>) -> String {
    let columns: Vec<_> =
        opened.relation.columns.iter().map(|column| quote::identifier(&column.name)).collect();
    // An ordinary table's children are tables of their own; a partitioned one has its rows in them.
    let only = if opened.table.partitioned { "" } else { "only " };
    let filter = opened.table.row_filter.as_ref().map(|filter| format!("({filter})"));
    let conditions: Vec<_> = conditions.into_iter().chain(filter).collect();
    let filter =
        if conditions.is_empty() { String::new() } else { format!(" where {}", conditions.join(" and ")) };
    let name = quote::entity(&opened.relation.name);
    format!("select {} from {only}{name}{part}{filter}", columns.join(", "))
}

fn chunk_select(opened: &Opened, scope: Option<String>, after: Option<&[String]>, limit: u32) -> String {
    let order: Vec<_> = opened.key.iter().map(|(name, _)| name.as_str()).collect();
    let after = after.map(|values| greater(&opened.key, values));
    let page = select(opened, after.into_iter().chain(scope).collect());
    format!("{page} order by {} limit {limit}", order.join(", "))
}

/// Bytes of a DataRow message before its first cell: how many there are (Postgres documentation, "Message
/// Formats").
const CELL_COUNT: u32 = 2;
/// Bytes before each cell: how long it is.
const CELL_LENGTH: u32 = 4;

/// Bytes of a DataRow message that are no text.
fn framing(columns: usize) -> usize {
    CELL_COUNT as usize + columns * CELL_LENGTH as usize
}

/// Rows on their way into a batch.
struct Rows {
    relation: Arc<Relation>,
    index: u32,
    batch: ChangeBatch,
    /// Bytes of text.
    text: usize,
}

impl Rows {
    fn new(relation: &Arc<Relation>) -> Self {
        let mut batch = ChangeBatch::new(Origin::Backfill);
        let index = batch.intern(relation);
        batch.transactions.push(TransactionInfo {
            xid: 0,
            commit_lsn: Lsn::ZERO,
            end_lsn: Lsn::ZERO,
            commit_time: 0,
        });
        Self { relation: Arc::clone(relation), index, batch, text: 0 }
    }

    /// Room for so many rows of about so many bytes of text.
    fn reserve(&mut self, rows: u32, average: usize) {
        let (rows, columns) = (rows as usize, self.relation.columns.len());
        self.batch.bytes.reserve(rows.saturating_mul(average + framing(columns)));
        self.batch.cells.reserve(rows.saturating_mul(columns));
        self.batch.changes.reserve(rows);
    }

    fn count(&self) -> u32 {
        u32::try_from(self.batch.changes.len()).unwrap_or(u32::MAX)
    }

    fn bytes(&self) -> usize {
        self.text
    }

    /// Appends a DataRow message. It is copied in one piece, the lengths between its cells too: that costs less
    /// than a copy a cell.
    fn push(&mut self, body: &[u8]) -> Result<(), Error> {
        let too_long = |_| Error::protocol("a page has more than 4 GiB of text");
        let first = u32::try_from(self.batch.cells.len()).map_err(too_long)?;
        let mut at = u32::try_from(self.batch.bytes.len()).map_err(too_long)?;
        u32::try_from(self.batch.bytes.len() + body.len()).map_err(too_long)?;
        self.batch.bytes.extend_from_slice(body);
        at = at.saturating_add(CELL_COUNT);
        for cell in cells(body) {
            let cell = cell?;
            at += CELL_LENGTH;
            let cell = match cell {
                None => Cell::Null,
                Some(text) => {
                    let (start, len) = (at, u32::try_from(text.len()).map_err(too_long)?);
                    at += len;
                    self.text += text.len();
                    Cell::Text { start, len }
                }
            };
            self.batch.cells.push(cell);
        }
        let count = self.batch.cells.len() - first as usize;
        if count != self.relation.columns.len() {
            return Err(Error::protocol("a row has another number of columns than was asked for"));
        }
        self.batch.changes.push(Change {
            operation: Operation::Read,
            relation: self.index,
            transaction: 0,
            sequence: self.count(),
            new: Some(RowSpan { first, count: u32::try_from(count).map_err(too_long)? }),
            old: None,
        });
        Ok(())
    }

    /// A row of this key is not there.
    fn push_gone(&mut self, key: &[Option<String>]) -> Result<(), Error> {
        let too_long = |_| Error::protocol("a page has more than 4 GiB of text");
        let first = u32::try_from(self.batch.cells.len()).map_err(too_long)?;
        let relation = Arc::clone(&self.relation);
        let count = u32::try_from(relation.columns.len()).map_err(too_long)?;
        self.batch.cells.resize(self.batch.cells.len() + relation.columns.len(), Cell::Unknown);
        for (&column, text) in relation.key.iter().zip(key) {
            let Some(text) = text else { continue };
            let start = u32::try_from(self.batch.bytes.len()).map_err(too_long)?;
            self.batch.bytes.extend_from_slice(text.as_bytes());
            self.text += text.len();
            let len = u32::try_from(text.len()).map_err(too_long)?;
            self.batch.cells[first as usize + column] = Cell::Text { start, len };
        }
        self.batch.changes.push(Change {
            operation: Operation::Delete,
            relation: self.index,
            transaction: 0,
            sequence: self.count(),
            new: None,
            old: Some(RowSpan { first, count }),
        });
        Ok(())
    }

    fn last_key(&self) -> Result<Option<Vec<String>>, Error> {
        let Some(span) = self.batch.changes.last().and_then(|change| change.new) else { return Ok(None) };
        let row = self.batch.row(span);
        let text = |&at: &usize| {
            let text = row.text(at).and_then(|text| String::from_utf8(text.to_vec()).ok());
            let name = &self.relation.columns[at].name;
            text.ok_or_else(|| {
                Error::new(ErrorKind::Table, format!("key column `{name}` is NULL or not UTF-8"))
            })
        };
        self.relation.key.iter().map(text).collect::<Result<_, _>>().map(Some)
    }
}
