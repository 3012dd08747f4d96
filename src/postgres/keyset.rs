//! Conditions over a table's key, in its own order, with the types' own operators.

use super::{
    error::{Error, ErrorKind},
    quote,
    types::KeyType,
};

fn literal(value: &str, key: &KeyType) -> String {
    format!("{}::{}", quote::literal(value), key.cast)
}

pub(super) fn equal(key: &[(String, KeyType)], values: &[String]) -> String {
    let parts = key.iter().zip(values).map(|((name, key), value)| {
        format!("{name} operator({}.=) {}", key.operator_schema, literal(value, key))
    });
    parts.collect::<Vec<_>>().join(" and ")
}

/// `key > values` in the key's own order. As one comparison of rows where the operators live in one schema,
/// which is nearly always, since an index serves that directly.
pub(super) fn greater(key: &[(String, KeyType)], values: &[String]) -> String {
    let schema = key.first().map_or("", |(_, key)| key.operator_schema.as_str());
    if key.iter().all(|(_, key)| key.operator_schema == schema) {
        let names: Vec<_> = key.iter().map(|(name, _)| name.as_str()).collect();
        let values: Vec<_> = key.iter().zip(values).map(|((_, key), value)| literal(value, key)).collect();
        return format!("({}) operator({schema}.>) ({})", names.join(", "), values.join(", "));
    }
    let first_bound = format!("{} operator({schema}.>=) {}", key[0].0, literal(&values[0], &key[0].1));
    let alternatives: Vec<_> = (0..key.len())
        .map(|at| {
            let (name, own) = &key[at];
            let more = format!("{name} operator({}.>) {}", own.operator_schema, literal(&values[at], own));
            let same = equal(&key[..at], &values[..at]);
            if at == 0 { more } else { format!("({same} and {more})") }
        })
        .collect();
    format!("{first_bound} and ({})", alternatives.join(" or "))
}

/// The rows of these keys. As one comparison with a list where the operators live in one schema: lists are
/// hashed or looked up, long alternatives are not.
pub(super) fn among(key: &[(String, KeyType)], keys: &[Vec<String>]) -> Result<String, Error> {
    if let Some(odd) = keys.iter().find(|values| values.len() != key.len()) {
        let message = format!("it is asked for keys of {} parts, but its key has {}", odd.len(), key.len());
        return Err(Error::new(ErrorKind::Table, message));
    }
    let Some((_, first)) = key.first().filter(|_| !keys.is_empty()) else { return Ok("false".to_owned()) };
    if !key.iter().all(|(_, key)| key.operator_schema == first.operator_schema) {
        let alternatives: Vec<_> = keys.iter().map(|values| format!("({})", equal(key, values))).collect();
        return Ok(format!("({})", alternatives.join(" or ")));
    }
    let names: Vec<_> = key.iter().map(|(name, _)| name.as_str()).collect();
    let row = |values: &Vec<String>| {
        let parts: Vec<_> = key.iter().zip(values).map(|((_, key), value)| literal(value, key)).collect();
        format!("({})", parts.join(", "))
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    let (names, schema) = (names.join(", "), &first.operator_schema);
    Ok(format!("({names}) operator({schema}.=) any (values {})", rows.join(", ")))
}

/// A query for those of these keys that `table` (with the word `only`, where that is meant) has no row of, in the
/// server's own text.
pub(super) fn absent(key: &[(String, KeyType)], keys: &[Vec<String>], table: &str, filter: &str) -> String {
    let row = |values: &Vec<String>| {
        let parts: Vec<_> = key.iter().zip(values).map(|((_, key), value)| literal(value, key)).collect();
        format!("({})", parts.join(", "))
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    let names: Vec<_> = (0..key.len()).map(|at| format!("k{at}")).collect();
    let same = key
        .iter()
        .zip(&names)
        .map(|((name, key), asked)| format!("t.{name} operator({}.=) asked.{asked}", key.operator_schema));
    let same: Vec<_> = same.collect();
    format!(
        "select distinct {} from (values {}) as asked ({names}) where not exists (select from {table} as t where {}{filter})",
        names.iter().map(|name| format!("asked.{name}")).collect::<Vec<_>>().join(", "),
        rows.join(", "),
        same.join(" and "),
        names = names.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(names: &[(&str, &str, &str)]) -> Vec<(String, KeyType)> {
        let part = |(name, cast, schema): &(&str, &str, &str)| {
            (
                quote::identifier(name),
                KeyType { cast: (*cast).to_owned(), operator_schema: (*schema).to_owned() },
            )
        };
        names.iter().map(part).collect()
    }

    #[test]
    fn c025_cursors_are_compared_as_their_own_type() {
        let one = key(&[("id", "pg_catalog.int8", "pg_catalog")]);
        assert_eq!(greater(&one, &["7".into()]), "(\"id\") operator(pg_catalog.>) ('7'::pg_catalog.int8)");
        let mixed = key(&[("a", "x.citext", "x"), ("b", "pg_catalog.int4", "pg_catalog")]);
        assert_eq!(
            greater(&mixed, &["it's".into(), "2".into()]),
            "\"a\" operator(x.>=) 'it''s'::x.citext and (\"a\" operator(x.>) 'it''s'::x.citext or \
             (\"a\" operator(x.=) 'it''s'::x.citext and \"b\" operator(pg_catalog.>) '2'::pg_catalog.int4))"
        );
    }
}
