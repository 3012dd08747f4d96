//! The tables of an SQLite sink: their names, their shape, and what writes to them.

use rusqlite::{CachedStatement, Connection, ErrorCode, OptionalExtension as _, Transaction};

use super::{Place, Rejected, progress};
use crate::{
    model::{DocumentOperation, DocumentView, Documents, Failure},
    sink::{render, usable},
};

/// The columns of a table that this sink made. A user may add columns with defaults, indexes and triggers.
const COLUMNS: [&str; 4] = ["id", "document", "updated_lsn", "updated_at"];
/// The longest name of a destination, in bytes.
const NAME_LIMIT: usize = 255;

/// Writes the documents of one batch inside one transaction.
pub(super) struct Tables<'a> {
    place: &'a Place,
    transaction: &'a Transaction<'a>,
    documents: &'a Documents,
    /// One a destination of the batch, made when it is first needed.
    writers: Vec<Option<Target<'a>>>,
    /// The position as text, and the commit that it belongs to: rows of a commit share it.
    position: Position,
}

enum Target<'a> {
    Table(Writer<'a>),
    /// The name cannot be a table's, for this reason.
    Unusable(&'static str),
}

struct Writer<'a> {
    upsert: CachedStatement<'a>,
    delete: CachedStatement<'a>,
}

#[derive(Default)]
struct Position {
    of: Option<(u64, i64)>,
    lsn: String,
    time: String,
}

impl<'a> Tables<'a> {
    pub(super) fn new(place: &'a Place, transaction: &'a Transaction<'a>, documents: &'a Documents) -> Self {
        let writers = documents.destinations.iter().map(|_| None).collect();
        Self { place, transaction, documents, writers, position: Position::default() }
    }

    /// Writes all documents in order; gives those that were not taken.
    pub(super) fn write(mut self) -> Result<Vec<Rejected>, Failure> {
        let mut rejected = Vec::new();
        for index in 0..self.documents.len() {
            match usable(self.documents, index) {
                Ok(document) => rejected.extend(self.write_one(index, &document)?),
                Err(refused) => rejected.push(refused),
            }
        }
        Ok(rejected)
    }

    fn write_one(&mut self, index: usize, document: &DocumentView<'_>) -> Result<Option<Rejected>, Failure> {
        let at = document.entry.destination as usize;
        if self.writers[at].is_none() {
            self.writers[at] = Some(self.target(document.destination)?);
        }
        let writer = match &mut self.writers[at] {
            Some(Target::Table(writer)) => writer,
            Some(Target::Unusable(reason)) => {
                let message = format!("destination `{}`: {reason}", document.destination);
                return Ok(Some(Rejected::poison(index, "sqlite-destination", message)));
            }
            None => return Ok(None),
        };
        let done = match document.operation {
            DocumentOperation::Upsert => {
                self.position.set(document);
                let Position { lsn, time, .. } = &self.position;
                writer.upsert.execute((document.id, document.body, lsn, time))
            }
            DocumentOperation::Delete => writer.delete.execute((document.id,)),
        };
        match done {
            Ok(_) => Ok(None),
            // These undo the statement and leave the transaction as it was.
            Err(error) => match error.sqlite_error_code() {
                Some(ErrorCode::TooBig) => {
                    let message = "the document is larger than SQLite can store (about 1 GB)";
                    Ok(Some(Rejected::poison(index, "sqlite-too-big", message)))
                }
                Some(ErrorCode::ConstraintViolation) => {
                    let message =
                        format!("table `{}` has a constraint against it: {error}", document.destination);
                    Ok(Some(Rejected::poison(index, "sqlite-constraint", message)))
                }
                _ => Err(self.place.failure(&error)),
            },
        }
    }

    fn target(&self, destination: &str) -> Result<Target<'a>, Failure> {
        if let Err(reason) = check_name(destination) {
            return Ok(Target::Unusable(reason));
        }
        let failure = |error: rusqlite::Error| self.place.failure(&error);
        let table = quoted(destination);
        if !exists(self.place, self.transaction, destination)? {
            let create = format!(
                "create table {table} (id text not null primary key, document text not null, \
                 updated_lsn text not null, updated_at text not null)"
            );
            self.transaction.execute_batch(&create).map_err(failure)?;
        }
        let upsert = format!(
            "insert into {table} (id, document, updated_lsn, updated_at) values (?1, ?2, ?3, ?4) \
             on conflict (id) do update set document = excluded.document, \
             updated_lsn = excluded.updated_lsn, updated_at = excluded.updated_at"
        );
        let delete = format!("delete from {table} where id = ?1");
        Ok(Target::Table(Writer {
            upsert: self.transaction.prepare_cached(&upsert).map_err(failure)?,
            delete: self.transaction.prepare_cached(&delete).map_err(failure)?,
        }))
    }
}

impl Position {
    fn set(&mut self, document: &DocumentView<'_>) {
        let of = Some((document.entry.commit_lsn.0, document.entry.commit_time));
        if self.of != of {
            self.of = of;
            self.lsn = document.entry.commit_lsn.to_string();
            let mut time = Vec::new();
            render::push_timestamp(&mut time, document.entry.commit_time);
            self.time = String::from_utf8(time).unwrap_or_default();
        }
    }
}

/// Empties the table of a destination, if there is one.
pub(super) fn purge(place: &Place, connection: &Connection, destination: &str) -> Result<(), Failure> {
    if let Err(reason) = check_name(destination) {
        return Err(place.fatal("sqlite-destination", &format!("destination `{destination}`: {reason}")));
    }
    if exists(place, connection, destination)? {
        let delete = format!("delete from {}", quoted(destination));
        connection.execute_batch(&delete).map_err(|error| place.failure(&error))?;
    }
    Ok(())
}

/// Whether the destination has its table. Something else in its place is a fatal failure.
pub(super) fn exists(place: &Place, connection: &Connection, destination: &str) -> Result<bool, Failure> {
    let look = || -> rusqlite::Result<_> {
        let found = "select type, name from sqlite_master where name = ?1 collate nocase \
                     order by name = ?1 desc, type = 'table' desc limit 1";
        let mut found = connection.prepare_cached(found)?;
        let Some((kind, name)) =
            found.query_row([destination], |row| Ok((row.get(0)?, row.get(1)?))).optional()?
        else {
            return Ok(None);
        };
        let mut columns = connection.prepare_cached("select name, pk from pragma_table_info(?1)")?;
        let columns = columns.query_map([&name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(Some((kind, name, columns.collect::<rusqlite::Result<Vec<(String, i64)>>>()?)))
    };
    let found: Option<(String, String, _)> = look().map_err(|error| place.failure(&error))?;
    let Some((kind, name, columns)) = found else { return Ok(false) };
    if name != destination {
        let what = format!(
            "destination `{destination}` and its {kind} `{name}` differ in case only, which SQLite cannot tell apart; rename the destination"
        );
        return Err(place.fatal("sqlite-case", &what));
    }
    let has =
        |wanted: &str| columns.iter().any(|(name, key)| name == wanted && (*key == 1) == (wanted == "id"));
    let one_key = columns.iter().filter(|(_, key)| *key > 0).count() == 1;
    if kind != "table" || !one_key || !COLUMNS.into_iter().all(has) {
        let what = format!(
            "it has a {kind} `{name}` that was not made by this sink; name another destination or another file"
        );
        return Err(place.fatal("sqlite-foreign-table", &what));
    }
    Ok(true)
}

fn check_name(destination: &str) -> Result<(), &'static str> {
    if destination.is_empty() || destination.len() > NAME_LIMIT {
        Err("a table's name has 1 to 255 bytes")
    } else if destination.chars().any(char::is_control) {
        Err("a table's name has no control characters")
    } else if destination.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_")) {
        Err("SQLite keeps names that begin with `sqlite_` for itself")
    } else if destination.eq_ignore_ascii_case(progress::TABLE) {
        Err("this sink keeps its progress in a table of this name")
    } else {
        Ok(())
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_quoted() {
        for good in ["products", "Ünï code", "a\"b", "select", "a.b", "1; drop table x", &"x".repeat(255)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "sqlite_master",
            "SQLITE_x",
            "_anabranch_progress",
            "_Anabranch_Progress",
            "a\0b",
            "a\nb",
            &"x".repeat(256),
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
