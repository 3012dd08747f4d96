//! Which columns a managed publication has of a table (Postgres documentation, "Column Lists").
//!
//! Guarantees that a list has all that the server needs to tell rows apart, without which the application's own
//! UPDATE and DELETE would fail, and that a table for which that cannot be had in a list is published whole.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::TableInfo;
use crate::model::{EntityName, ReplicaIdentity};

/// The columns that are read of each table; one that is not in here is read whole.
pub type ColumnLists = BTreeMap<EntityName, BTreeSet<String>>;

/// The list of a table, in the table's order; none where it is published whole: under FULL the identity has every
/// column, and partitions have identities of their own.
pub(super) fn of(table: &TableInfo, read: Option<&BTreeSet<String>>) -> Option<Vec<String>> {
    let read = read?;
    let identity = match table.replica_identity {
        ReplicaIdentity::Default => &table.primary_key,
        ReplicaIdentity::Index => &table.identity_index,
        ReplicaIdentity::Full | ReplicaIdentity::Nothing => return None,
    };
    if table.partitioned {
        return None;
    }
    let is_key = |number: i16| identity.contains(&number) || table.key_numbers().contains(&number);
    let mut list = Vec::new();
    let mut whole = true;
    for column in &table.columns {
        match (is_key(column.number), column.generated) {
            // Only some versions have it in a list.
            (true, true) => return None,
            (false, true) => {}
            (key, false) if key || read.contains(&column.name) => list.push(column.name.clone()),
            _ => whole = false,
        }
    }
    (!whole).then_some(list)
}

/// Whether two lists name the same columns.
pub(super) fn are_same(one: Option<&[String]>, other: Option<&[String]>) -> bool {
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    one.map(set) == other.map(set)
}

#[cfg(test)]
mod tests {
    use super::super::catalog::TableColumn;
    use super::*;

    fn table(identity: ReplicaIdentity, generated: i16) -> TableInfo {
        let column = |number: i16, name: &str| TableColumn {
            number,
            name: name.to_owned(),
            type_oid: 25,
            collation: 100,
            generated: number == generated,
            published: true,
        };
        TableInfo {
            oid: 1,
            name: EntityName::new("public", "t"),
            partitioned: false,
            logged: true,
            replica_identity: identity,
            columns: vec![column(1, "a"), column(2, "b"), column(3, "c"), column(4, "d")],
            primary_key: vec![2],
            identity_index: vec![3],
            unique_index: Vec::new(),
            row_filter: None,
            estimated_rows: None,
            readable: true,
        }
    }

    fn listed(table: &TableInfo, read: &[&str]) -> Option<String> {
        let read = read.iter().map(|&name| name.to_owned()).collect();
        of(table, Some(&read)).map(|list| list.join(" "))
    }

    #[test]
    fn a_list_has_what_is_read_and_the_identity() {
        let by_key = table(ReplicaIdentity::Default, 0);
        assert_eq!(listed(&by_key, &["d"]).as_deref(), Some("b d"));
        assert_eq!(listed(&by_key, &[]).as_deref(), Some("b"));
        assert_eq!(listed(&by_key, &["d", "gone"]).as_deref(), Some("b d"), "as far as it is there");
        assert_eq!(listed(&table(ReplicaIdentity::Index, 0), &["d"]).as_deref(), Some("c d"));
    }

    #[test]
    fn a_table_is_published_whole_where_a_list_would_break_its_application() {
        assert_eq!(listed(&table(ReplicaIdentity::Full, 0), &["d"]), None);
        assert_eq!(listed(&table(ReplicaIdentity::Default, 2), &["d"]), None, "a generated key");
        let partitioned = TableInfo { partitioned: true, ..table(ReplicaIdentity::Default, 0) };
        assert_eq!(listed(&partitioned, &["d"]), None);
        assert_eq!(of(&table(ReplicaIdentity::Default, 0), None), None, "all of it is read");
    }

    #[test]
    fn a_list_of_everything_is_none() {
        assert_eq!(listed(&table(ReplicaIdentity::Default, 0), &["a", "c", "d"]), None);
        assert_eq!(listed(&table(ReplicaIdentity::Default, 1), &["c", "d"]), None, "but what is computed");
    }

    #[test]
    fn lists_are_compared_as_sets() {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert!(are_same(Some(&list(&["a", "b"])), Some(&list(&["b", "a"]))));
        assert!(!are_same(Some(&list(&["a"])), None));
        assert!(are_same(None, None));
    }
}
