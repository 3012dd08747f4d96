//! Tables as the stream describes them.

use std::{fmt, str::FromStr};

use super::ValueType;

/// `schema.table`: how an entity is named everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityName {
    /// The schema, unquoted, case kept.
    pub schema: String,
    /// The table, unquoted, case kept.
    pub table: String,
}

impl EntityName {
    /// Names `schema.table`.
    pub fn new(schema: impl Into<String>, table: impl Into<String>) -> Self {
        Self { schema: schema.into(), table: table.into() }
    }
}

/// Writes a part bare where it is a plain identifier (no dot, quote or space), else in double quotes.
fn write_part(f: &mut fmt::Formatter<'_>, part: &str) -> fmt::Result {
    let plain = !part.is_empty() && !part.contains(['.', '"']) && !part.contains(char::is_whitespace);
    if plain { f.write_str(part) } else { write!(f, "\"{}\"", part.replace('"', "\"\"")) }
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_part(f, &self.schema)?;
        f.write_str(".")?;
        write_part(f, &self.table)
    }
}

/// The text does not name a table.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` does not name a table; write `schema.table`, with double quotes around a part that has a dot")]
pub struct ParseEntityError(String);

impl FromStr for EntityName {
    type Err = ParseEntityError;

    /// Reads `schema.table`; a part may be in double quotes. Case is kept as written. A bare `table`
    /// means `public.table`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseEntityError(text.to_owned());
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = take_part(rest).ok_or_else(error)?;
            parts.push(part);
            match after.strip_prefix('.') {
                Some(next) => rest = next,
                None if after.is_empty() => break,
                None => return Err(error()),
            }
        }
        match <[String; 2]>::try_from(parts) {
            Ok([schema, table]) => Ok(Self { schema, table }),
            Err(mut parts) if parts.len() == 1 => Ok(Self::new("public", parts.remove(0))),
            Err(_) => Err(error()),
        }
    }
}

fn take_part(text: &str) -> Option<(String, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        let mut part = String::new();
        let mut chars = quoted.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' if chars.peek().is_some_and(|(_, next)| *next == '"') => {
                    chars.next();
                    part.push('"');
                }
                '"' => return (!part.is_empty()).then_some((part, &quoted[at + 1..])),
                other => part.push(other),
            }
        }
        return None;
    }
    let end = text.find('.').unwrap_or(text.len());
    let part = &text[..end];
    let plain = !part.is_empty() && !part.contains('"') && !part.contains(char::is_whitespace);
    plain.then(|| (part.to_owned(), &text[end..]))
}

/// What the server puts into old tuples (Postgres documentation, `ALTER TABLE … REPLICA IDENTITY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key's columns.
    Default,
    /// Nothing: updates and deletes cannot be published.
    Nothing,
    /// The whole old row.
    Full,
    /// The columns of one unique index.
    Index,
}

/// A column of a [`Relation`], in the order of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The name, unquoted.
    pub name: String,
    /// The type's oid in `pg_type`, as the stream says it (a domain's own oid).
    pub type_oid: u32,
    /// How its text is read.
    pub value_type: ValueType,
    /// Whether the stream marks it as part of the replica identity.
    pub identity: bool,
}

/// A table as one Relation message described it, completed from the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// `pg_class.oid` (of the root, for a partitioned table published through it).
    pub oid: u32,
    /// Its name.
    pub name: EntityName,
    /// What old tuples carry.
    pub replica_identity: ReplicaIdentity,
    /// The published columns.
    pub columns: Vec<Column>,
    /// Positions in `columns` of the key that makes document ids, in key order: the primary key, or the
    /// columns of the replica identity's index. Empty when the table has no usable key.
    pub key: Vec<usize>,
}

impl Relation {
    /// The position of a column.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The same with fewer columns: those of the key, and those that are wanted.
    #[must_use]
    pub fn narrowed(mut self, wanted: impl Fn(&str) -> bool) -> Self {
        let kept = |(at, column): &(usize, Column)| self.key.contains(at) || wanted(&column.name);
        let columns = std::mem::take(&mut self.columns).into_iter().enumerate();
        let (places, columns): (Vec<usize>, _) = columns.filter(kept).unzip();
        self.key = self.key.iter().filter_map(|at| places.binary_search(at).ok()).collect();
        self.columns = columns;
        self
    }

    /// The names of the key's columns.
    pub fn key_names(&self) -> impl Iterator<Item = &str> {
        self.key.iter().map(|&at| self.columns[at].name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_names_round_trip() {
        for (schema, table) in [("public", "orders"), ("a.b", "c\"d"), ("Shop", "Order Items"), ("x", "é")] {
            let name = EntityName::new(schema, table);
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!("orders".parse(), Ok(EntityName::new("public", "orders")));
    }

    #[test]
    fn a_narrowed_relation_keeps_its_key_in_order() {
        let column = |name: &&str| Column {
            name: (*name).to_owned(),
            type_oid: 25,
            value_type: ValueType::Text,
            identity: false,
        };
        let relation = Relation {
            oid: 1,
            name: EntityName::new("public", "orders"),
            replica_identity: ReplicaIdentity::Default,
            columns: ["note", "b", "price", "a"].iter().map(column).collect(),
            key: vec![3, 1],
        };
        let narrowed = relation.clone().narrowed(|name| name == "price");
        let names: Vec<_> = narrowed.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["b", "price", "a"]);
        assert_eq!(narrowed.key_names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(relation.clone().narrowed(|_| true), relation);
    }

    #[test]
    fn malformed_entity_names_are_refused() {
        for text in ["", ".", "a.", ".b", "a.b.c", "\"a", "a b.c", "\"\".x", "\"a\"b.c"] {
            assert!(text.parse::<EntityName>().is_err(), "{text}");
        }
    }
}
