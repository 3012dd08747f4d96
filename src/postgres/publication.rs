//! The publication: which tables the stream has.
//!
//! Guarantees that only a publication that Anabranch itself made is altered, told by its comment, and that
//! no table is published whose application would then fail to update it.

use super::{
    catalog::{Catalog, TableInfo},
    connect::Client,
    error::{Error, ErrorKind},
    identity::unusable_identities,
    quote,
};
use crate::model::EntityName;

/// The comment that tells a publication as ours.
const COMMENT: &str = "managed by anabranch";

/// What the publication is to be.
#[derive(Clone, Copy, Debug)]
pub struct PublicationPlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether Anabranch makes and alters it; otherwise it is only checked.
    pub managed: bool,
    /// Exactly the mapped tables.
    pub tables: &'a [EntityName],
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicationChange {
    /// It did not exist.
    pub created: bool,
    /// Tables that it now has.
    pub added: Vec<EntityName>,
    /// Tables that it had.
    pub dropped: Vec<EntityName>,
}

/// A publication as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationState {
    /// One that was dropped and made anew under the same name has another.
    pub oid: u32,
    /// One that was renamed, given away or set otherwise as a whole has another, also if it is as before again.
    pub edition: String,
    all_tables: bool,
    via_root: bool,
    operations: bool,
    ours: bool,
}

impl PublicationState {
    /// Whether it has insert, update, delete and truncate, and the rows of partitions under their tables' names.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.operations && self.via_root
    }
}

/// The publication of exactly this name.
///
/// # Errors
/// What the server reports.
pub async fn find_publication(client: &Client, name: &str) -> Result<Option<PublicationState>, Error> {
    let sql = "select oid, puballtables, pubviaroot, pubinsert and pubupdate and pubdelete and pubtruncate,
          coalesce(obj_description(oid, 'pg_publication') = $2, false), xmin::text
        from pg_publication where pubname = $1";
    let row = client.query_opt(sql, &[&name, &COMMENT]).await?;
    row.map(|row| {
        Ok(PublicationState {
            oid: row.try_get(0)?,
            all_tables: row.try_get(1)?,
            via_root: row.try_get(2)?,
            operations: row.try_get(3)?,
            ours: row.try_get(4)?,
            edition: row.try_get(5)?,
        })
    })
    .transpose()
}

/// The tables that the stream names, as the publication has them now (roots where it publishes through them).
///
/// # Errors
/// What the server reports.
pub async fn published_tables(client: &Client, name: &str) -> Result<Vec<EntityName>, Error> {
    let sql = "select schemaname, tablename from pg_publication_tables where pubname = $1 order by 1, 2";
    let rows = client.query(sql, &[&name]).await?;
    rows.iter()
        .map(|row| Ok(EntityName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?)))
        .collect()
}

/// Makes the publication what the plan says, or checks that it is.
///
/// # Errors
/// Before anything is touched: a table that is missing ([`ErrorKind::Table`]), or whose application would fail
/// ([`ErrorKind::Table`]), or a publication that is not ours ([`ErrorKind::Settings`]).
pub async fn ensure_publication(
    client: &Client,
    plan: &PublicationPlan<'_>,
) -> Result<PublicationChange, Error> {
    let tables = Catalog::new(plan.name).tables(client, plan.tables).await?;
    if let Some(missing) = plan.tables.iter().find(|name| !tables.iter().any(|table| table.name == **name)) {
        return Err(Error::new(ErrorKind::Table, format!("table {missing} does not exist in this database")));
    }
    let found = find_publication(client, plan.name).await?;
    if !plan.managed {
        return check_unmanaged(client, plan, found, &tables).await.map(|()| PublicationChange::default());
    }
    if let Some(bad) = unusable_identities(client, plan.name, plan.tables).await?.into_iter().next() {
        return Err(Error::new(
            ErrorKind::Table,
            format!(
                "table {} cannot be published: {}, and the application's own UPDATE and DELETE would fail; run: {}",
                bad.relation, bad.why, bad.fix
            ),
        ));
    }
    let name = quote::identifier(plan.name);
    let item = |table: &TableInfo| {
        format!("{}{}", if table.partitioned { "" } else { "only " }, quote::entity(&table.name))
    };
    let Some(found) = found else {
        let list: Vec<_> = tables.iter().map(item).collect();
        let list = if list.is_empty() { String::new() } else { format!(" for table {}", list.join(", ")) };
        let sql = format!(
            "create publication {name}{list} with (publish = 'insert, update, delete, truncate', \
             publish_via_partition_root = true); comment on publication {name} is '{COMMENT}'"
        );
        client.batch_execute(&sql).await.map_err(|error| denied(error.into(), plan.name))?;
        return Ok(PublicationChange { created: true, added: plan.tables.to_vec(), dropped: Vec::new() });
    };
    if !found.ours {
        return Err(Error::settings(format!(
            "publication `{}` exists and was not made by Anabranch; choose another name, set `manage_publication = false` to \
             use it as it is, or hand it over: comment on publication {name} is '{COMMENT}';",
            plan.name
        )));
    }
    let mut change = PublicationChange::default();
    let mut sql = String::new();
    if !found.is_whole() {
        sql = format!(
            "alter publication {name} set (publish = 'insert, update, delete, truncate', \
             publish_via_partition_root = true); "
        );
    }
    let present = member_tables(client, plan.name).await?;
    for table in tables.iter().filter(|table| !present.contains(&table.name)) {
        sql.push_str(&format!("alter publication {name} add table {}; ", item(table)));
        change.added.push(table.name.clone());
    }
    for gone in present.into_iter().filter(|name| !plan.tables.contains(name)) {
        sql.push_str(&format!("alter publication {name} drop table only {}; ", quote::entity(&gone)));
        change.dropped.push(gone);
    }
    if !sql.is_empty() {
        // Several statements in one text are one transaction.
        client.batch_execute(&sql).await.map_err(|error| denied(error.into(), plan.name))?;
    }
    Ok(change)
}

fn denied(error: Error, name: &str) -> Error {
    error.context(format!(
        "publication `{name}` cannot be made or altered; it takes CREATE on the database and ownership of the tables"
    ))
}

/// What the publication lists itself, roots and leaves as they were added.
async fn member_tables(client: &Client, name: &str) -> Result<Vec<EntityName>, Error> {
    let sql =
        "select n.nspname, c.relname from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
        join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace
        where p.pubname = $1 order by 1, 2";
    let rows = client.query(sql, &[&name]).await?;
    rows.iter()
        .map(|row| Ok(EntityName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?)))
        .collect()
}

async fn check_unmanaged(
    client: &Client,
    plan: &PublicationPlan<'_>,
    found: Option<PublicationState>,
    tables: &[TableInfo],
) -> Result<(), Error> {
    let name = quote::identifier(plan.name);
    let Some(found) = found else {
        return Err(Error::settings(format!(
            "publication `{}` does not exist, and `manage_publication = false` says not to make it; create it, or leave the key out",
            plan.name
        )));
    };
    if !found.operations {
        return Err(Error::settings(format!(
            "publication `{}` leaves out some of insert, update, delete and truncate; run: alter publication {name} \
             set (publish = 'insert, update, delete, truncate');",
            plan.name
        )));
    }
    if let Some(table) = tables.iter().find(|table| table.partitioned && !found.via_root) {
        return Err(Error::settings(format!(
            "publication `{}` names the partitions of {} instead of the table; run: alter publication {name} set \
             (publish_via_partition_root = true);",
            plan.name, table.name
        )));
    }
    let published =
        if found.all_tables { plan.tables.to_vec() } else { published_tables(client, plan.name).await? };
    match plan.tables.iter().find(|table| !published.contains(table)) {
        Some(table) => Err(Error::settings(format!(
            "publication `{}` does not have table {table}; run: alter publication {name} add table {};",
            plan.name,
            quote::entity(table)
        ))),
        None => Ok(()),
    }
}

/// Drops the publication if it is ours. Says whether it was there.
///
/// # Errors
/// What the server reports.
pub async fn drop_publication(client: &Client, name: &str) -> Result<bool, Error> {
    match find_publication(client, name).await? {
        Some(found) if found.ours => {
            client.batch_execute(&format!("drop publication {}", quote::identifier(name))).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}
