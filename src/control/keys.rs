//! Keys as people write them: read, checked against the table's key, put in order.

use crate::{
    model::EntityName,
    postgres::{self, Catalog, Client},
};

use super::ControlError;

/// The keys of a table's rows, in an order that makes the same keys the same request.
pub(super) async fn check(
    client: &Client,
    installation: &str,
    entity: &EntityName,
    written: &[String],
) -> Result<Vec<Vec<String>>, ControlError> {
    let usage = |text: String| Err(ControlError::Usage(text));
    let tables = Catalog::new(installation).tables(client, std::slice::from_ref(entity)).await?;
    let Some(table) = tables.first() else {
        return usage(format!("there is no table {entity}, so that its keys cannot be checked"));
    };
    let types: Vec<u32> = table
        .key_numbers()
        .iter()
        .filter_map(|number| table.columns.iter().find(|column| column.number == *number))
        .map(|column| column.type_oid)
        .collect();
    if types.is_empty() {
        return usage(format!("{entity} has no key"));
    }
    let mut keys = Vec::with_capacity(written.len());
    for text in written {
        match parse(text, types.len()) {
            Some(key) => keys.push(key),
            None => {
                return usage(format!(
                    "the key `{text}` does not have the {} parts of the key of {entity}; they are separated by \
                     `,`, and `,` and `\\` inside a part are written `\\,` and `\\\\`",
                    types.len()
                ));
            }
        }
    }
    keys.sort();
    keys.dedup();
    if keys.is_empty() {
        return usage("no key is given".to_owned());
    }
    for (part, type_oid) in types.iter().enumerate() {
        let parts: Vec<&str> = keys.iter().filter_map(|key| key.get(part)).map(String::as_str).collect();
        check_type(client, entity, *type_oid, &parts).await?;
    }
    Ok(keys)
}

/// Whether the server reads the texts as values of a type.
async fn check_type(
    client: &Client,
    entity: &EntityName,
    type_oid: u32,
    parts: &[&str],
) -> Result<(), ControlError> {
    let failed = postgres::Error::from;
    let name = client.query_one("select format_type($1, null)", &[&type_oid]).await.map_err(failed)?;
    let name: &str = name.get(0);
    let query = format!("select count(part::{name}) from unnest($1::text[]) as part");
    match client.query_one(&query, &[&parts]).await {
        Ok(_) => Ok(()),
        Err(error) if error.as_db_error().is_some() => Err(ControlError::Usage(format!(
            "a key is no key of {entity}, whose key column is of type {name}: {}",
            failed(error)
        ))),
        Err(error) => Err(failed(error).into()),
    }
}

/// Reads a key of so many columns: one column's text stands as it is, several are joined by `,`.
fn parse(text: &str, columns: usize) -> Option<Vec<String>> {
    if columns == 1 {
        return Some(vec![text.to_owned()]);
    }
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ',' => parts.push(String::new()),
            '\\' => parts.last_mut()?.push(chars.next().filter(|c| matches!(c, ',' | '\\'))?),
            c => parts.last_mut()?.push(c),
        }
    }
    (parts.len() == columns).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_document_ids_are_written() {
        assert_eq!(parse("a,b\\", 1), Some(vec!["a,b\\".to_owned()]));
        assert_eq!(parse("a\\,b,c\\\\", 2), Some(vec!["a,b".to_owned(), "c\\".to_owned()]));
        assert_eq!(parse(",", 2), Some(vec![String::new(), String::new()]));
        for bad in ["a", "a,b,c", "a\\x,b", "a,b\\"] {
            assert_eq!(parse(bad, 2), None, "{bad}");
        }
    }
}
