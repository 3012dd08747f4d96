//! Document ids: the canonical text of a row's key.

use super::{Relation, RowView};

/// Appends the document id of a row to `out`, and says whether the row has one: every key column must have
/// text (not NULL, unknown or unchanged), and the relation a key.
///
/// One column's text stands as it is. Several are joined by `,`, with `,` and `\` inside a part escaped by
/// `\`, so that two different keys never share an id. Stream, snapshot and delete all come through here.
pub fn push_document_id(relation: &Relation, row: RowView<'_>, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let single = relation.key.len() == 1;
    for (position, &column) in relation.key.iter().enumerate() {
        let Some(text) = row.text(column) else {
            out.truncate(start);
            return false;
        };
        if single {
            out.extend_from_slice(text);
            return true;
        }
        if position > 0 {
            out.push(b',');
        }
        for &byte in text {
            if byte == b',' || byte == b'\\' {
                out.push(b'\\');
            }
            out.push(byte);
        }
    }
    !relation.key.is_empty()
}

/// The document id of a row, where it has one and its key is UTF-8.
#[must_use]
pub fn document_id(relation: &Relation, row: RowView<'_>) -> Option<String> {
    let mut id = Vec::new();
    push_document_id(relation, row, &mut id).then(|| String::from_utf8(id).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use crate::model::{Cell, Column, EntityName, ReplicaIdentity, ValueType};

    use super::*;

    fn relation(columns: usize, key: &[usize]) -> Relation {
        let column = |at: usize| Column {
            name: format!("c{at}"),
            type_oid: 25,
            value_type: ValueType::Text,
            identity: key.contains(&at),
        };
        Relation {
            oid: 1,
            name: EntityName::new("public", "t"),
            replica_identity: ReplicaIdentity::Default,
            columns: (0..columns).map(column).collect(),
            key: key.to_vec(),
        }
    }

    fn id_of(parts: &[Option<&str>], key: &[usize]) -> Option<String> {
        let mut bytes = Vec::new();
        let mut cells = Vec::new();
        for part in parts {
            cells.push(part.map_or(Cell::Null, |text| {
                let start = u32::try_from(bytes.len()).unwrap();
                bytes.extend_from_slice(text.as_bytes());
                Cell::Text { start, len: u32::try_from(text.len()).unwrap() }
            }));
        }
        document_id(&relation(parts.len(), key), RowView { bytes: &bytes, cells: &cells })
    }

    #[test]
    fn one_column_stands_as_it_is() {
        assert_eq!(id_of(&[Some("a,b\\c")], &[0]), Some("a,b\\c".into()));
        assert_eq!(id_of(&[Some("")], &[0]), Some(String::new()));
    }

    #[test]
    fn several_columns_never_collide() {
        assert_eq!(id_of(&[Some("1"), Some("x"), Some("2")], &[2, 0]), Some("2,1".into()));
        assert_ne!(id_of(&[Some("a,b"), Some("c")], &[0, 1]), id_of(&[Some("a"), Some("b,c")], &[0, 1]));
        assert_ne!(id_of(&[Some("a\\"), Some("b")], &[0, 1]), id_of(&[Some("a"), Some("\\b")], &[0, 1]));
    }

    #[test]
    fn a_row_without_its_key_has_no_id() {
        assert_eq!(id_of(&[None, Some("x")], &[0, 1]), None);
        assert_eq!(id_of(&[Some("x")], &[]), None);
    }
}
