//! Partitions that come while the stream flows, on Postgres 14.
//!
//! A walsender of 14 that has once seen a table remembers whether it publishes it until the publication is altered (15
//! and later ask again when the table is). The changes of a table that is attached as a partition are therefore
//! missing, and also on another connection, for that begins before the attachment. So a publication of our own is
//! touched after partitions came or went, which is in the WAL in its place, and a table to which one was attached is
//! read again behind that.
//!
//! Guarantee: partitions are compared with those that a term took up and stored, also across terms, and are stored only
//! when what follows from them is. Must never: ask anything of later servers; alter somebody else's publication.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use crate::{
    config::SourceSettings,
    model::EntityName,
    postgres::{Client, Error, touch_publication},
    state::{Store, StoredPartition},
};

use super::{error::TermError, plan::Tables};

/// The first version whose walsender asks again.
const MENDED: u32 = 15;

/// Every partition of these tables that has rows, and each table itself. By the catalogue's rows alone: the functions
/// that walk such a tree wait for whoever has a lock on a part of it.
///
/// A partition that was made as one came into the catalogue in one transaction. Of the rows that describe a table,
/// those of its system columns are never written again.
const TREE: &str = "
    with recursive tree (root, relation, stamp, attached) as (
        select c.oid, c.oid, '', false from pg_class c where c.oid = any($1) and c.relkind = 'p'
        union all
        select t.root, i.inhrelid, t.stamp || i.xmin::text || ' ', t.attached or i.xmin <> a.xmin
        from tree t join pg_inherits i on i.inhparent = t.relation and not i.inhdetachpending
        join pg_attribute a on a.attrelid = i.inhrelid and a.attname = 'tableoid' and a.attnum < 0)
    select t.root, t.relation, t.stamp, t.attached from tree t join pg_class c on c.oid = t.relation
    where c.relkind = 'r' or t.relation = t.root";

/// Partitions of the mapped tables, as they were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Partitions(BTreeMap<(u32, u32), Leaf>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Leaf {
    /// Another one after it was detached and attached again.
    stamp: String,
    /// Whether it was a table before.
    attached: bool,
}

/// What is different from before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Tables with partitions that were tables before, so that changes may have been missed.
    pub(super) attached: BTreeSet<u32>,
    /// Whether partitions came or went at all.
    pub(super) any: bool,
}

impl Partitions {
    /// As they are now.
    pub(super) async fn look(client: &Client, tables: &Tables) -> Result<Self, Error> {
        let oids: Vec<u32> = tables.values().map(|table| table.oid).filter(|oid| *oid != 0).collect();
        if client.server_version() >= MENDED || oids.is_empty() {
            return Ok(Self::default());
        }
        let mut found = BTreeMap::new();
        for row in &client.query(TREE, &[&oids]).await? {
            let leaf = Leaf { stamp: row.try_get(2)?, attached: row.try_get(3)? };
            found.insert((row.try_get(0)?, row.try_get(1)?), leaf);
        }
        Ok(Self(found))
    }

    /// What has become of tables that were looked at before.
    pub(super) fn since(&self, before: &Self) -> Difference {
        let mut difference = Difference::default();
        let known = |(root, _): &&(u32, u32)| before.0.contains_key(&(*root, *root));
        for (key, leaf) in self.0.iter().filter(|(key, _)| known(key)) {
            if before.0.get(key).is_some_and(|before| before.stamp == leaf.stamp) {
                continue;
            }
            difference.any = true;
            if leaf.attached {
                difference.attached.insert(key.0);
            }
        }
        let went = |(root, relation): &(u32, u32)| {
            self.0.contains_key(&(*root, *root)) && !self.0.contains_key(&(*root, *relation))
        };
        difference.any |= before.0.keys().any(went);
        difference
    }

    fn stored(&self) -> Vec<StoredPartition> {
        self.0.iter().map(|((root, leaf), of)| (*root, *leaf, of.stamp.clone())).collect()
    }

    fn from_stored(stored: Vec<StoredPartition>) -> Self {
        let leaf = |(root, leaf, stamp)| ((root, leaf), Leaf { stamp, attached: false });
        Self(stored.into_iter().map(leaf).collect())
    }
}

/// The tables of a difference, by name.
pub(super) fn named(oids: &BTreeSet<u32>, tables: &Tables) -> Vec<(EntityName, u32)> {
    let named = tables.iter().filter(|(_, table)| oids.contains(&table.oid));
    named.map(|(entity, table)| (entity.clone(), table.oid)).collect()
}

/// What a term that begins finds.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) now: Partitions,
    /// Tables that have to be read again.
    pub(super) attached: Vec<(EntityName, u32)>,
    /// Whether they are other ones than are stored.
    other: bool,
}

impl Found {
    /// Compares with what the last term took up. A table that is looked at for the first time is being added to the
    /// publication, which resets what a walsender knows.
    pub(super) async fn look(
        control: &Client,
        state: &Client,
        store: &Store,
        tables: &Tables,
    ) -> Result<Self, TermError> {
        let now = Partitions::look(control, tables).await?;
        if now.0.is_empty() {
            return Ok(Self { now, attached: Vec::new(), other: false });
        }
        let stored = store.partitions(state).await?;
        let other = stored.as_ref() != Some(&now.stored());
        let before = Partitions::from_stored(stored.unwrap_or_default());
        let attached = named(&now.since(&before).attached, tables);
        Ok(Self { now, attached, other })
    }

    /// Makes every connection ask again which tables are published, and stores what was found. After it is noted
    /// which tables are to be read again, and before they are.
    pub(super) async fn take_up(
        &self,
        state: &Client,
        store: &Store,
        settings: &SourceSettings,
    ) -> Result<(), TermError> {
        if !self.other {
            return Ok(());
        }
        if settings.manage_publication {
            match touch_publication(state, &settings.publication).await {
                Ok(()) => info!(
                    publication = settings.publication,
                    "other partitions: from here on the server looks again at what it publishes"
                ),
                Err(error) if error.is_retryable() => return Err(error.into()),
                Err(error) => {
                    warn!(
                        publication = settings.publication,
                        "CHANGES OF PARTITIONS MAY GO ON MISSING: {error}"
                    );
                }
            }
        }
        Ok(store.save_partitions(state, &self.now.stored()).await?)
    }

    /// Tells what is read again.
    pub(super) fn tell_missed(&self, mappings: &[String], settings: &SourceSettings) {
        if mappings.is_empty() {
            return;
        }
        let tables: Vec<String> = self.attached.iter().map(|(entity, _)| entity.to_string()).collect();
        let (tables, mappings) = (tables.join(", "), mappings.join(", "));
        warn!(
            tables,
            mappings,
            "CHANGES MAY HAVE BEEN MISSED: tables were attached as partitions, of whose changes a connection of Postgres \
             14 does not learn; what is mapped from them is backfilled again",
        );
        if !settings.manage_publication {
            warn!(
                "the publication {name} is not Anabranch's to touch, and changes may go on missing: run \
                 alter publication \"{name}\" set (publish = '…') with what it publishes, then request the tables again",
                name = settings.publication,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions(found: &[(u32, u32, &str, bool)]) -> Partitions {
        let leaf = |(root, leaf, stamp, attached): &(u32, u32, &str, bool)| {
            ((*root, *leaf), Leaf { stamp: (*stamp).to_owned(), attached: *attached })
        };
        Partitions(found.iter().map(leaf).collect())
    }

    #[test]
    fn what_came_and_what_went_is_told_and_a_table_that_is_new_is_not() {
        let before = partitions(&[(1, 1, "", false), (1, 10, "5 ", true), (2, 2, "", false)]);
        let told = |now: &[(u32, u32, &str, bool)]| {
            let mut all = vec![(1, 1, "", false), (2, 2, "", false)];
            all.extend_from_slice(now);
            let stored = Partitions::from_stored(before.stored());
            let Difference { attached, any } = partitions(&all).since(&stored);
            (any, attached.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(told(&[(1, 10, "5 ", true)]), (false, vec![]), "as before");
        assert_eq!(told(&[(1, 10, "5 ", true), (1, 11, "6 ", false)]), (true, vec![]), "made as one");
        assert_eq!(told(&[(1, 10, "5 ", true), (2, 11, "6 ", true)]), (true, vec![2]), "attached");
        assert_eq!(told(&[(1, 10, "7 ", true)]), (true, vec![1]), "detached and attached again");
        assert_eq!(told(&[]), (true, vec![]), "detached");
        let new = [(1, 10, "5 ", true), (3, 3, "", false), (3, 30, "8 ", true)];
        assert_eq!(told(&new), (false, vec![]), "a table that is new");
    }
}
