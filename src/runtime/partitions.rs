//! Partitions that come while the stream flows, on Postgres 14.
//!
//! A walsender of 14 that has once seen a table remembers for its whole life whether it publishes it (15 and later ask
//! again when the table changes). The changes of a table that is attached as a partition are therefore missing until
//! there is another connection. This room notices it, and says which tables have to be read again.
//!
//! Guarantee: a partition that was not there at the last look is told once. Must never: ask anything of later servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    model::EntityName,
    postgres::{Client, Error},
};

use super::plan::Tables;

/// The first version whose walsender asks again.
const MENDED: u32 = 15;

/// Partitions of the mapped tables, as they were last seen.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    known: Option<BTreeSet<(u32, u32)>>,
}

/// Partitions that were not there before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Their tables.
    pub(super) entities: BTreeSet<EntityName>,
    /// Those of them that were tables before, so that changes may have been missed.
    pub(super) attached: BTreeSet<EntityName>,
}

impl Partitions {
    /// What came since the last look; nothing at the first.
    pub(super) async fn look(&mut self, client: &Client, tables: &Tables) -> Result<Arrived, Error> {
        if client.server_version() >= MENDED {
            return Ok(Arrived::default());
        }
        // A partition that was made as one came into the catalogue in one transaction, and was never seen as
        // anything else.
        let sql = "select r.oid, l.relid::oid, exists (select from pg_partition_ancestors(l.relid) a
                join pg_inherits i on i.inhrelid = a.relid join pg_type t on t.typrelid = a.relid
                where i.xmin <> t.xmin)
            from pg_class r, pg_partition_tree(r.oid) l
            where r.oid = any($1) and r.relkind = 'p' and l.isleaf";
        let oids: Vec<u32> = tables.values().map(|table| table.oid).filter(|oid| *oid != 0).collect();
        let rows = client.query(sql, &[&oids]).await?;
        let mut found = BTreeMap::new();
        for row in &rows {
            found.insert((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?);
        }
        Ok(self.compare(&found, tables))
    }

    fn compare(&mut self, found: &BTreeMap<(u32, u32), bool>, tables: &Tables) -> Arrived {
        let before = self.known.replace(found.keys().copied().collect());
        let mut arrived = Arrived::default();
        let Some(before) = before else { return arrived };
        for ((root, _), attached) in found.iter().filter(|(leaf, _)| !before.contains(*leaf)) {
            let named = tables.iter().filter(|(_, table)| table.oid == *root);
            for (entity, _) in named {
                arrived.entities.insert(entity.clone());
                if *attached {
                    arrived.attached.insert(entity.clone());
                }
            }
        }
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::TableState;
    use super::*;

    #[test]
    fn what_came_since_the_last_look_is_told_once() {
        let name = |table: &str| EntityName::new("public", table);
        let table = |oid| TableState { oid, ..TableState::default() };
        let tables = Tables::from([(name("a"), table(1)), (name("b"), table(2))]);
        let mut partitions = Partitions::default();
        let mut look = |found: &[((u32, u32), bool)]| {
            let arrived = partitions.compare(&found.iter().copied().collect(), &tables);
            let text = |names: BTreeSet<EntityName>| {
                names.into_iter().map(|name| name.table).collect::<Vec<_>>().join(" ")
            };
            (text(arrived.entities), text(arrived.attached))
        };
        let told = |entities: &str, attached: &str| (entities.to_owned(), attached.to_owned());
        assert_eq!(look(&[((1, 10), true), ((2, 20), false)]), told("", ""), "the first look");
        assert_eq!(look(&[((1, 10), true), ((2, 20), false), ((2, 21), false)]), told("b", ""));
        assert_eq!(look(&[((1, 10), true), ((1, 11), true), ((2, 21), false)]), told("a", "a"));
        assert_eq!(look(&[((1, 11), true), ((2, 21), false)]), told("", ""));
    }
}
