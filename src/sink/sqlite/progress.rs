//! Progress tokens: one row a key, in the same file as the documents that they speak for.
//!
//! A row also says under which leadership it was written: a host that leads no more, and does not know it yet,
//! finds a later one there, and writes nothing.

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::Place;
use crate::{
    model::{Failure, FailureClass},
    sink::Progress,
};

/// No destination may have this name.
pub(super) const TABLE: &str = "_anabranch_progress";

/// Stores a token inside the transaction of its documents, which the caller gives up where this fails.
pub(super) fn store(
    place: &Place,
    transaction: &Transaction<'_>,
    progress: &Progress,
) -> Result<(), Failure> {
    let store = || -> rusqlite::Result<bool> {
        prepare(transaction)?;
        let upsert = format!(
            "insert into {TABLE} (key, token, owner, term) values (?1, ?2, ?3, ?4) on conflict (key) do update \
             set token = excluded.token, owner = excluded.owner, term = excluded.term \
             where owner is not excluded.owner or term <= excluded.term"
        );
        let Progress { key, token, fence } = progress;
        let written = transaction.prepare_cached(&upsert)?.execute((key, token, &fence.owner, fence.term))?;
        Ok(written > 0)
    };
    if store().map_err(|error| place.failure(&error))? {
        return Ok(());
    }
    let message =
        "another host of this installation has written here since: this one leads no more".to_owned();
    Err(Failure::new(FailureClass::Retry, "superseded", message))
}

/// Makes the table, or what was added to it since.
fn prepare(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    match columns(transaction)? {
        0 => transaction.execute_batch(&format!(
            "create table {TABLE} (key text not null primary key, token text not null, owner text, \
             term integer not null default 0)"
        )),
        2 => transaction.execute_batch(&format!(
            "alter table {TABLE} add column owner text; \
             alter table {TABLE} add column term integer not null default 0"
        )),
        _ => Ok(()),
    }
}

/// The token of a key.
pub(super) fn load(place: &Place, connection: &Connection, key: &str) -> Result<Option<String>, Failure> {
    let load = || -> rusqlite::Result<Option<String>> {
        if columns(connection)? == 0 {
            return Ok(None);
        }
        let query = format!("select token from {TABLE} where key = ?1");
        connection.query_row(&query, [key], |row| row.get(0)).optional()
    };
    load().map_err(|error| place.failure(&error))
}

/// How many columns the table has; none where it is not there.
fn columns(connection: &Connection) -> rusqlite::Result<i64> {
    let query = "select count(*) from pragma_table_info(?1)";
    connection.prepare_cached(query)?.query_row([TABLE], |row| row.get(0))
}
