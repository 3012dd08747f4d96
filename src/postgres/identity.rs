//! Which tables must not be published, because the application's own UPDATE or DELETE would then fail.

use super::{catalog::Wanted, connect::Client, error::Error};
use crate::model::EntityName;

/// A table that has no usable replica identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableIdentity {
    /// The mapped table.
    pub entity: EntityName,
    /// The table itself or one of its partitions.
    pub relation: EntityName,
    /// What is wrong.
    pub why: String,
    /// The statement that would help.
    pub fix: String,
}

/// Those of `names`, partitions looked into, whose publishing would break the application's writes
/// (Postgres documentation, "Publication" and `ALTER TABLE … REPLICA IDENTITY`). `publication` may exist
/// already with generated columns published, which is then considered.
///
/// # Errors
/// What the server reports.
pub async fn unusable_identities(
    client: &Client,
    publication: &str,
    names: &[EntityName],
) -> Result<Vec<UnusableIdentity>, Error> {
    // From 18 on, generated columns that are not published break an identity that has them.
    let generated = if client.server_version() >= 18 {
        format!(
            "(not exists (select from pg_publication p where p.pubname = {} and p.pubgencols = 's') and exists (
               select from pg_attribute a where a.attrelid = l.oid and a.attgenerated <> '' and not a.attisdropped
               and (l.relreplident = 'f' or exists (
                 select from pg_index i where i.indrelid = l.oid and a.attnum = any(i.indkey)
                 and (i.indisreplident or (l.relreplident = 'd' and i.indisprimary))))))",
            super::quote::literal(publication)
        )
    } else {
        "false".to_owned()
    };
    let sql = format!(
        "select * from (
           select n.nspname, c.relname, ln.nspname, l.relname, case
             when l.relreplident = 'n' then 'nothing'
             when l.relreplident = 'd' and not exists (
               select from pg_index i where i.indrelid = l.oid and i.indisprimary and i.indimmediate and i.indisvalid)
               then 'no key'
             when l.relreplident = 'i' and not exists (
               select from pg_index i where i.indrelid = l.oid and i.indisreplident and i.indisvalid) then 'no index'
             when {generated} then 'generated' end as why
           from pg_class c join pg_namespace n on n.oid = c.relnamespace
           cross join lateral (select c.oid where c.relkind = 'r' union
             select t.relid from pg_partition_tree(c.oid) t where c.relkind = 'p' and t.isleaf) t(relid)
           join pg_class l on l.oid = t.relid join pg_namespace ln on ln.oid = l.relnamespace
           where c.relkind in ('r', 'p') and {}) found
         where why is not null order by 1, 2, 3, 4",
        Wanted::Names(names).condition()
    );
    let rows = client.text_results(&sql).await?.into_iter().flatten();
    rows.map(|row| {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let relation = EntityName::new(text(2), text(3));
        let (why, fix) = explain(text(4), &super::quote::entity(&relation));
        Ok(UnusableIdentity { entity: EntityName::new(text(0), text(1)), relation, why, fix })
    })
    .collect()
}

fn explain(why: &str, name: &str) -> (String, String) {
    match why {
        "nothing" => (
            "its replica identity is NOTHING".to_owned(),
            format!(
                "alter table {name} replica identity default; -- with a primary key, or: replica identity full"
            ),
        ),
        "no index" => (
            "the index of its replica identity is gone".to_owned(),
            format!("alter table {name} replica identity default;"),
        ),
        "generated" => (
            "its replica identity has a generated column, which is not published".to_owned(),
            format!(
                "alter table {name} replica identity using index <a unique index without generated columns>;"
            ),
        ),
        _ => (
            "it has no primary key".to_owned(),
            format!(
                "alter table {name} add primary key (<columns>); -- or, with a unique index over NOT NULL \
                 columns: alter table {name} replica identity using index <index>;"
            ),
        ),
    }
}
