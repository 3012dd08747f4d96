//! Progress tokens: one row a key, in the same file as the documents that they speak for.

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::Place;
use crate::{model::Failure, sink::Progress};

/// No destination may have this name.
pub(super) const TABLE: &str = "_anabranch_progress";

/// Stores a token inside the transaction of its documents.
pub(super) fn store(
    place: &Place,
    transaction: &Transaction<'_>,
    progress: &Progress,
) -> Result<(), Failure> {
    let store = || -> rusqlite::Result<()> {
        if !is_there(transaction)? {
            let create = format!("create table {TABLE} (key text not null primary key, token text not null)");
            transaction.execute_batch(&create)?;
        }
        let upsert = format!(
            "insert into {TABLE} (key, token) values (?1, ?2) on conflict (key) do update set token = excluded.token"
        );
        transaction.prepare_cached(&upsert)?.execute((&progress.key, &progress.token)).map(drop)
    };
    store().map_err(|error| place.failure(&error))
}

/// The token of a key.
pub(super) fn load(place: &Place, connection: &Connection, key: &str) -> Result<Option<String>, Failure> {
    let load = || -> rusqlite::Result<Option<String>> {
        if !is_there(connection)? {
            return Ok(None);
        }
        let query = format!("select token from {TABLE} where key = ?1");
        connection.query_row(&query, [key], |row| row.get(0)).optional()
    };
    load().map_err(|error| place.failure(&error))
}

fn is_there(connection: &Connection) -> rusqlite::Result<bool> {
    let query = "select exists (select 1 from sqlite_master where type = 'table' and name = ?1)";
    connection.prepare_cached(query)?.query_row([TABLE], |row| row.get(0))
}
