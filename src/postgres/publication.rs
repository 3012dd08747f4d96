//! The publication: which tables the stream has, and which columns of them.
//!
//! Guarantees that only a publication that Anabranch itself made is altered, told by its comment, and that
//! no table is published whose application would then fail to update it. Whoever alters it has a lock of its
//! name, and looks after that: two who alter at once do so in turn.

use std::collections::BTreeMap;

use super::{
    catalog::{Catalog, TableInfo},
    column_lists::{self, ColumnLists},
    connect::Client,
    error::{Error, ErrorKind},
    identity::{UnusableIdentity, unusable_identities},
    quote,
};
use crate::model::EntityName;

/// The comment that tells a publication as ours.
const COMMENT: &str = "managed by anabranch";
/// The same while its column lists are taken off.
const WIDENED: &str = "managed by anabranch, widened";

/// What the publication is to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublicationPlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether Anabranch makes and alters it; otherwise it is only checked.
    pub managed: bool,
    /// Exactly the mapped tables.
    pub tables: &'a [EntityName],
    /// The columns that are read of each; none where every table is to be published whole.
    pub columns: Option<&'a ColumnLists>,
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
    /// Tables of which it has other columns now.
    pub relisted: Vec<EntityName>,
}

impl PublicationChange {
    /// Whether nothing was, or is, to be done.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What tells that a publication was altered as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edition {
    /// Whose statement it is of: another one after every alteration, also if it is as before again.
    version: String,
    /// Giving it away is such an alteration, and changes nothing of what is published.
    owner: u32,
}

/// A publication as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationState {
    /// One that was dropped and made anew under the same name has another.
    pub oid: u32,
    edition: Edition,
    all_tables: bool,
    via_root: bool,
    operations: bool,
    ours: bool,
    /// Its column lists are taken off until they are restored.
    pub widened: bool,
}

impl PublicationState {
    /// Whether it was altered as a whole since `before`, also if it is as before again: renamed, or set otherwise. Where
    /// it has another owner, that is taken for all that was altered.
    #[must_use]
    pub fn is_another_edition(&self, before: &Self) -> bool {
        self.edition.version != before.edition.version && self.edition.owner == before.edition.owner
    }

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
          coalesce(obj_description(oid, 'pg_publication'), ''), xmin::text, pubowner
        from pg_publication where pubname = $1";
    let row = client.query_opt(sql, &[&name]).await?;
    row.map(|row| {
        let comment: String = row.try_get(4)?;
        Ok(PublicationState {
            oid: row.try_get(0)?,
            all_tables: row.try_get(1)?,
            via_root: row.try_get(2)?,
            operations: row.try_get(3)?,
            ours: comment == COMMENT || comment == WIDENED,
            widened: comment == WIDENED,
            edition: Edition { version: row.try_get(5)?, owner: row.try_get(6)? },
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
    if !plan.managed {
        let tables = planned_tables(client, plan).await?;
        let found = find_publication(client, plan.name).await?;
        return check_unmanaged(client, plan, found, &tables).await.map(|()| PublicationChange::default());
    }
    alone(client, plan.name, async {
        let (change, sql) = difference(client, plan).await?;
        if !sql.is_empty() {
            client.batch_execute(&sql).await.map_err(|error| denied(error.into(), plan.name))?;
        }
        Ok(change)
    })
    .await
}

/// What [`ensure_publication`] would do to a publication that it manages. Touches nothing.
///
/// # Errors
/// As [`ensure_publication`].
pub async fn pending_change(client: &Client, plan: &PublicationPlan<'_>) -> Result<PublicationChange, Error> {
    difference(client, plan).await.map(|(change, _)| change)
}

/// Takes all column lists off, until [`restore_publication`]: the tables that had one.
///
/// # Errors
/// It is not there, or not ours, or not our role's ([`ErrorKind::Settings`] for the first two).
pub async fn widen_publication(client: &Client, name: &str) -> Result<Vec<EntityName>, Error> {
    alone(client, name, async {
        ours(client, name).await?;
        let listed = member_tables(client, name).await?.into_iter().filter(|(_, list)| list.is_some());
        let listed: Vec<EntityName> = listed.map(|(table, _)| table).collect();
        let mut sql = String::new();
        for table in &listed {
            sql.push_str(&relist(name, &format!("only {}", quote::entity(table)), table));
        }
        sql.push_str(&comment(name, WIDENED));
        client.batch_execute(&sql).await.map_err(|error| denied(error.into(), name))?;
        Ok(listed)
    })
    .await
}

/// Lets the leader put the column lists on again: whether they had been taken off.
///
/// # Errors
/// As [`widen_publication`].
pub async fn restore_publication(client: &Client, name: &str) -> Result<bool, Error> {
    alone(client, name, async {
        let widened = ours(client, name).await?.widened;
        client.batch_execute(&comment(name, COMMENT)).await.map_err(|error| denied(error.into(), name))?;
        Ok(widened)
    })
    .await
}

/// Takes those of `tables` out whose application cannot update or delete for want of an identity, so that it can again:
/// these, with what is wrong. None where there is no publication, or one that is not ours.
///
/// # Errors
/// What the server reports.
pub async fn withdraw_unusable(
    client: &Client,
    name: &str,
    tables: &[EntityName],
) -> Result<Vec<UnusableIdentity>, Error> {
    alone(client, name, async {
        if !find_publication(client, name).await?.is_some_and(|found| found.ours) {
            return Ok(Vec::new());
        }
        let members = member_tables(client, name).await?;
        let mut unusable = unusable_identities(client, name, tables).await?;
        unusable.retain(|unusable| members.contains_key(&unusable.entity));
        // One partition of a table is enough.
        unusable.dedup_by(|one, other| one.entity == other.entity);
        let sql: String = unusable.iter().map(|unusable| take_out(name, &unusable.entity)).collect();
        client.batch_execute(&sql).await.map_err(|error| denied(error.into(), name))?;
        Ok(unusable)
    })
    .await
}

/// Writes into the WAL, in its place in the order, that the publication is what it is. From there on every connection
/// asks again which tables are of it.
///
/// # Errors
/// As [`widen_publication`].
pub async fn touch_publication(client: &Client, name: &str) -> Result<(), Error> {
    alone(client, name, async {
        ours(client, name).await?;
        client.batch_execute(&as_a_whole(name)).await.map_err(|error| denied(error.into(), name))
    })
    .await
}

/// The statement by which a publication has every operation, under the names of partitioned tables.
fn as_a_whole(name: &str) -> String {
    format!(
        "alter publication {} set (publish = 'insert, update, delete, truncate', \
         publish_via_partition_root = true); ",
        quote::identifier(name)
    )
}

async fn ours(client: &Client, name: &str) -> Result<PublicationState, Error> {
    match find_publication(client, name).await? {
        Some(found) if found.ours => Ok(found),
        Some(_) => Err(Error::settings(format!(
            "publication `{name}` was not made by Anabranch, and its column lists are its maker's to change"
        ))),
        None => Err(Error::settings(format!(
            "publication `{name}` does not exist: a host makes it at its start, unless the installation is suspended"
        ))),
    }
}

/// Does something in a transaction, while nobody else of us alters the publication.
async fn alone<T>(
    client: &Client,
    name: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    client.batch_execute("begin").await?;
    let done = async {
        let key = format!("anabranch publication {name}");
        client.query_one("select pg_advisory_xact_lock(hashtextextended($1, 0))", &[&key]).await?;
        work.await
    };
    match done.await {
        Ok(done) => {
            client.batch_execute("commit").await?;
            Ok(done)
        }
        Err(error) => {
            // What went wrong first is what is told.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}

async fn planned_tables(client: &Client, plan: &PublicationPlan<'_>) -> Result<Vec<TableInfo>, Error> {
    let tables = Catalog::new(plan.name).tables(client, plan.tables).await?;
    match plan.tables.iter().find(|name| !tables.iter().any(|table| table.name == **name)) {
        Some(missing) => {
            Err(Error::new(ErrorKind::Table, format!("table {missing} does not exist in this database")))
        }
        None => Ok(tables),
    }
}

/// What a managed publication lacks, and the statements that mend it.
async fn difference(
    client: &Client,
    plan: &PublicationPlan<'_>,
) -> Result<(PublicationChange, String), Error> {
    let tables = planned_tables(client, plan).await?;
    let found = find_publication(client, plan.name).await?;
    if let Some(bad) = unusable_identities(client, plan.name, plan.tables).await?.into_iter().next() {
        return Err(Error::new(
            ErrorKind::Table,
            format!(
                "table {} cannot be published: {}, and the application's own UPDATE and DELETE would fail; run: {}",
                bad.relation, bad.why, bad.fix
            ),
        ));
    }
    // Column lists came with 15.
    let listed = client.server_version() >= 15 && !found.as_ref().is_some_and(|found| found.widened);
    let lists = plan.columns.filter(|_| listed);
    let list_of = |table: &TableInfo| lists.and_then(|lists| column_lists::of(table, lists.get(&table.name)));
    let name = quote::identifier(plan.name);
    let Some(found) = found else {
        let items: Vec<_> = tables.iter().map(|table| item(table, list_of(table).as_deref())).collect();
        let items = if items.is_empty() { String::new() } else { format!(" for table {}", items.join(", ")) };
        let sql = format!(
            "create publication {name}{items} with (publish = 'insert, update, delete, truncate', \
             publish_via_partition_root = true); {}",
            comment(plan.name, COMMENT)
        );
        let change = PublicationChange { created: true, added: plan.tables.to_vec(), ..Default::default() };
        return Ok((change, sql));
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
        sql = as_a_whole(plan.name);
    }
    let mut present = member_tables(client, plan.name).await?;
    for table in &tables {
        let list = list_of(table);
        let item = item(table, list.as_deref());
        match present.remove(&table.name) {
            None => {
                sql.push_str(&format!("alter publication {name} add table {item}; "));
                change.added.push(table.name.clone());
            }
            Some(present) if !column_lists::are_same(present.as_deref(), list.as_deref()) => {
                sql.push_str(&relist(plan.name, &item, &table.name));
                change.relisted.push(table.name.clone());
            }
            Some(_) => {}
        }
    }
    for gone in present.into_keys() {
        sql.push_str(&take_out(plan.name, &gone));
        change.dropped.push(gone);
    }
    Ok((change, sql))
}

/// A table as a publication lists it.
fn item(table: &TableInfo, list: Option<&[String]>) -> String {
    let only = if table.partitioned { "" } else { "only " };
    let columns = list.map(|list| list.iter().map(|column| quote::identifier(column)).collect::<Vec<_>>());
    let columns = columns.map(|columns| format!(" ({})", columns.join(", "))).unwrap_or_default();
    format!("{only}{}{columns}", quote::entity(&table.name))
}

/// The statements by which a publication has other columns of a table. In one transaction, nobody sees it without.
fn relist(publication: &str, item: &str, table: &EntityName) -> String {
    let add = format!("alter publication {} add table {item}; ", quote::identifier(publication));
    take_out(publication, table) + &add
}

fn take_out(publication: &str, table: &EntityName) -> String {
    let (name, table) = (quote::identifier(publication), quote::entity(table));
    format!("alter publication {name} drop table only {table}; ")
}

fn comment(publication: &str, text: &str) -> String {
    format!("comment on publication {} is {}", quote::identifier(publication), quote::literal(text))
}

fn denied(error: Error, name: &str) -> Error {
    error.context(format!(
        "publication `{name}` cannot be made or altered; it takes CREATE on the database and ownership of the tables"
    ))
}

/// What the publication lists itself, roots and leaves as they were added, each with its column list.
async fn member_tables(
    client: &Client,
    name: &str,
) -> Result<BTreeMap<EntityName, Option<Vec<String>>>, Error> {
    let list = match client.server_version() >= 15 {
        true => {
            "(select array_agg(a.attname::text order by a.attnum) from pg_attribute a
              where a.attrelid = r.prrelid and a.attnum = any(r.prattrs::int2[]))"
        }
        false => "null::text[]",
    };
    let sql = format!(
        "select n.nspname, c.relname, {list} from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
        join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace
        where p.pubname = $1"
    );
    let rows = client.query(&sql, &[&name]).await?;
    rows.iter()
        .map(|row| {
            let name = EntityName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?);
            Ok((name, row.try_get(2)?))
        })
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
