//! What the catalogue says, for [`preflight`](super::preflight()) to judge.

use std::collections::HashMap;

use super::PreflightRequest;
use crate::{
    model::{EntityName, ReplicaIdentity},
    postgres::{Client, Error},
};

/// The server, the database, our role, the slot.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) version: u32,
    pub(super) settings: HashMap<String, String>,
    pub(super) standby: bool,
    pub(super) database: String,
    pub(super) encoding: String,
    pub(super) role: String,
    pub(super) may_replicate: bool,
    /// The role whose members may replicate where the service has taken the right itself away.
    pub(super) replication_group: Option<String>,
    pub(super) may_create: bool,
    /// Whether the schema `anabranch` exists, and if so whether we may use and add to it.
    pub(super) state_schema: Option<bool>,
    pub(super) slots: u32,
    pub(super) wal_senders: u32,
    pub(super) slot: Option<Slot>,
}

impl Server {
    /// A setting as the server counts it: milliseconds, minutes, pieces. None where it has no such setting.
    pub(super) fn number(&self, setting: &str) -> Option<i64> {
        self.settings.get(setting)?.parse().ok()
    }
}

/// A slot that has our name.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) plugin: Option<String>,
    pub(super) database: Option<String>,
    pub(super) temporary: bool,
    pub(super) active: bool,
    pub(super) lost: bool,
}

/// A publication that has our name.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub(super) owned: bool,
    pub(super) owner: String,
    pub(super) all_tables: bool,
    pub(super) whole_schemas: bool,
    pub(super) via_root: bool,
    /// Operations that it leaves out.
    pub(super) missing_operations: Vec<&'static str>,
    /// Whether stored generated columns are published (18).
    pub(super) stored_generated: bool,
}

/// A column that is computed.
#[derive(Clone, Debug)]
pub(super) struct Generated {
    pub(super) name: String,
    pub(super) stored: bool,
}

/// A valid unique index.
#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) name: String,
    pub(super) primary: bool,
    pub(super) identity: bool,
    /// False for one that checks at the end of a transaction.
    pub(super) immediate: bool,
    /// Whether it has a condition or expressions.
    pub(super) partial: bool,
    pub(super) columns: Vec<String>,
    pub(super) nullable: Vec<String>,
}

/// One relation that has rows of its own: a table, or a partition of a mapped one.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) oid: u32,
    pub(super) name: EntityName,
    /// `pg_class.relkind`.
    pub(super) kind: char,
    /// `pg_class.relpersistence`.
    pub(super) persistence: char,
    pub(super) identity: ReplicaIdentity,
    pub(super) indexes: Vec<Index>,
    pub(super) generated: Vec<Generated>,
}

/// A mapped table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) root: Storage,
    pub(super) schema_usage: bool,
    pub(super) select: bool,
    pub(super) row_security: bool,
    pub(super) owned: bool,
    pub(super) owner: String,
    pub(super) has_id_column: bool,
    pub(super) children: bool,
    /// The tables that it is a partition of.
    pub(super) ancestors: Vec<EntityName>,
    /// The partitions that have rows.
    pub(super) leaves: Vec<Storage>,
    /// Whether the publication lists it by name, its ancestors aside.
    pub(super) listed: bool,
    /// Whether the publication's stream names it.
    pub(super) published: bool,
    /// The columns that the publication lists; none where it has all.
    pub(super) column_list: Option<Vec<String>>,
}

const SETTINGS: &[&str] = &[
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "wal_sender_timeout",
    "idle_replication_slot_timeout",
    "transaction_timeout",
    "IntervalStyle",
    "bytea_output",
    "row_security",
];

pub(super) async fn server(client: &Client, wanted: &PreflightRequest<'_>) -> Result<Server, Error> {
    let sql = "select pg_is_in_recovery(), current_database()::text, pg_encoding_to_char(d.encoding)::text,
          current_user::text, r.rolsuper or r.rolreplication, has_database_privilege(d.oid, 'create'),
          (select has_schema_privilege(n.oid, 'usage') and has_schema_privilege(n.oid, 'create')
             from pg_namespace n where n.nspname = 'anabranch'),
          (select count(*)::int from pg_replication_slots), (select count(*)::int from pg_stat_replication),
          (select g.rolname::text from pg_roles g where g.rolname in ('rds_replication', 'alloydbreplication')
             order by pg_has_role(g.oid, 'member') desc limit 1),
          coalesce((select bool_or(pg_has_role(g.oid, 'member')) from pg_roles g
             where g.rolname in ('rds_replication', 'alloydbreplication')), false)
        from pg_database d, pg_roles r where d.datname = current_database() and r.rolname = current_user";
    let row = client.query_one(sql, &[]).await?;
    let settings = client
        .query(
            "select lower(name), setting from pg_settings where lower(name) = any($1)",
            &[&lower(SETTINGS)],
        )
        .await?
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, Error>>()?;
    let count = |at: usize| Ok::<_, Error>(u32::try_from(row.try_get::<_, i32>(at)?).unwrap_or_default());
    Ok(Server {
        version: client.server_version(),
        settings,
        standby: row.try_get(0)?,
        database: row.try_get(1)?,
        encoding: row.try_get(2)?,
        role: row.try_get(3)?,
        may_replicate: row.try_get::<_, bool>(4)? || row.try_get::<_, bool>(10)?,
        replication_group: row.try_get(9)?,
        may_create: row.try_get(5)?,
        state_schema: row.try_get(6)?,
        slots: count(7)?,
        wal_senders: count(8)?,
        slot: slot(client, wanted.slot).await?,
    })
}

fn lower(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_lowercase()).collect()
}

async fn slot(client: &Client, name: &str) -> Result<Option<Slot>, Error> {
    // `invalidation_reason` came with 17, and says `lost` of a slot's other troubles too.
    let reason = if client.server_version() >= 17 { "invalidation_reason is not null" } else { "false" };
    let sql = format!(
        "select plugin::text, database::text, temporary, active,
           coalesce(wal_status = 'lost', false) or {reason}
         from pg_replication_slots where slot_name = $1::text"
    );
    let row = client.query_opt(&sql, &[&name]).await?;
    row.map(|row| {
        Ok(Slot {
            plugin: row.try_get(0)?,
            database: row.try_get(1)?,
            temporary: row.try_get(2)?,
            active: row.try_get(3)?,
            lost: row.try_get(4)?,
        })
    })
    .transpose()
}

pub(super) async fn publication(
    client: &Client,
    wanted: &PreflightRequest<'_>,
) -> Result<Option<Publication>, Error> {
    let version = client.server_version();
    let schemas = "exists (select from pg_publication_namespace s where s.pnpubid = p.oid)";
    let sql = format!(
        "select pg_has_role(p.pubowner, 'usage'), pg_get_userbyid(p.pubowner)::text, p.puballtables, p.pubviaroot,
           p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, {}, {}
         from pg_publication p where p.pubname = $1::text",
        if version >= 15 { schemas } else { "false" },
        if version >= 18 { "p.pubgencols::text = 's'" } else { "false" }
    );
    let Some(row) = client.query_opt(&sql, &[&wanted.publication]).await? else { return Ok(None) };
    let mut missing_operations = Vec::new();
    for (at, operation) in [(4, "insert"), (5, "update"), (6, "delete"), (7, "truncate")] {
        if !row.try_get::<_, bool>(at)? {
            missing_operations.push(operation);
        }
    }
    Ok(Some(Publication {
        owned: row.try_get(0)?,
        owner: row.try_get(1)?,
        all_tables: row.try_get(2)?,
        via_root: row.try_get(3)?,
        whole_schemas: row.try_get(8)?,
        stored_generated: row.try_get(9)?,
        missing_operations,
    }))
}

/// What there is of each entity, in their order.
pub(super) async fn tables(
    client: &Client,
    wanted: &PreflightRequest<'_>,
) -> Result<Vec<Option<Table>>, Error> {
    let mut tables = table_rows(client, wanted).await?;
    let roots: Vec<u32> = tables.iter().flatten().map(|table| table.root.oid).collect();
    let mut leaves = leaf_rows(client, &roots).await?;
    let oids: Vec<u32> = roots.iter().copied().chain(leaves.iter().map(|(_, leaf)| leaf.oid)).collect();
    let indexes = index_rows(client, &oids).await?;
    let generated = generated_rows(client, &oids).await?;
    let all = tables.iter_mut().flatten().map(|table| &mut table.root);
    for storage in all.chain(leaves.iter_mut().map(|(_, leaf)| leaf)) {
        storage.indexes = indexes.get(&storage.oid).cloned().unwrap_or_default();
        storage.generated = generated.get(&storage.oid).cloned().unwrap_or_default();
    }
    for table in tables.iter_mut().flatten() {
        let own = leaves.iter().filter(|(root, _)| *root == table.root.oid);
        table.leaves = own.map(|(_, leaf)| leaf.clone()).collect();
    }
    Ok(tables)
}

async fn table_rows(client: &Client, wanted: &PreflightRequest<'_>) -> Result<Vec<Option<Table>>, Error> {
    let list = if client.server_version() >= 15 {
        "(select array(select a.attname::text from unnest(r.prattrs::int2[]) l(number)
            join pg_attribute a on a.attrelid = c.oid and a.attnum = l.number)
          from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid and r.prattrs is not null)"
    } else {
        "null::text[]"
    };
    let sql = format!(
        "select w.place::int, c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
           c.relreplident::text, has_schema_privilege(n.oid, 'usage'),
           has_table_privilege(c.oid, 'select') or coalesce((
             select bool_and(has_column_privilege(c.oid, a.attnum, 'select')) from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped), false),
           row_security_active(c.oid), pg_has_role(c.relowner, 'usage'), pg_get_userbyid(c.relowner)::text,
           exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'id'),
           c.relkind = 'r' and exists (select from pg_inherits i where i.inhparent = c.oid),
           array(select an.nspname::text from pg_partition_ancestors(c.oid) with ordinality t(relid, level)
             join pg_class a on a.oid = t.relid join pg_namespace an on an.oid = a.relnamespace
             where t.relid <> c.oid order by t.level),
           array(select a.relname::text from pg_partition_ancestors(c.oid) with ordinality t(relid, level)
             join pg_class a on a.oid = t.relid where t.relid <> c.oid order by t.level),
           p.oid is not null and exists (
             select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid),
           p.oid is not null and exists (
             select from pg_publication_tables t where t.pubname = p.pubname and t.schemaname = n.nspname
               and t.tablename = c.relname),
           {list}
         from unnest($1::text[], $2::text[]) with ordinality w(schema, name, place)
         join pg_namespace n on n.nspname = w.schema
         join pg_class c on c.relnamespace = n.oid and c.relname = w.name
         left join pg_publication p on p.pubname = $3::text"
    );
    let schemas: Vec<&str> = wanted.tables.iter().map(|name| name.schema.as_str()).collect();
    let names: Vec<&str> = wanted.tables.iter().map(|name| name.table.as_str()).collect();
    let mut tables: Vec<Option<Table>> = wanted.tables.iter().map(|_| None).collect();
    for row in client.query(&sql, &[&schemas, &names, &wanted.publication]).await? {
        let place = usize::try_from(row.try_get::<_, i32>(0)?).unwrap_or_default();
        let ancestors =
            row.try_get::<_, Vec<String>>(14)?.into_iter().zip(row.try_get::<_, Vec<String>>(15)?);
        let table = Table {
            root: storage(&row, 1)?,
            schema_usage: row.try_get(7)?,
            select: row.try_get(8)?,
            row_security: row.try_get(9)?,
            owned: row.try_get(10)?,
            owner: row.try_get(11)?,
            has_id_column: row.try_get(12)?,
            children: row.try_get(13)?,
            ancestors: ancestors.map(|(schema, table)| EntityName { schema, table }).collect(),
            leaves: Vec::new(),
            listed: row.try_get(16)?,
            published: row.try_get(17)?,
            column_list: row.try_get(18)?,
        };
        if let Some(slot) = place.checked_sub(1).and_then(|at| tables.get_mut(at)) {
            *slot = Some(table);
        }
    }
    Ok(tables)
}

/// Six columns from `at`: oid, schema, name, kind, persistence, identity.
fn storage(row: &tokio_postgres::Row, at: usize) -> Result<Storage, Error> {
    let letter = |at: usize| Ok::<_, Error>(row.try_get::<_, &str>(at)?.chars().next().unwrap_or('?'));
    Ok(Storage {
        oid: row.try_get(at)?,
        name: EntityName::new(row.try_get::<_, String>(at + 1)?, row.try_get::<_, String>(at + 2)?),
        kind: letter(at + 3)?,
        persistence: letter(at + 4)?,
        identity: match letter(at + 5)? {
            'd' => ReplicaIdentity::Default,
            'f' => ReplicaIdentity::Full,
            'i' => ReplicaIdentity::Index,
            _ => ReplicaIdentity::Nothing,
        },
        indexes: Vec::new(),
        generated: Vec::new(),
    })
}

async fn leaf_rows(client: &Client, roots: &[u32]) -> Result<Vec<(u32, Storage)>, Error> {
    let sql =
        "select r.oid, l.oid, n.nspname::text, l.relname::text, l.relkind::text, l.relpersistence::text,
          l.relreplident::text
        from unnest($1::oid[]) w(oid) join pg_class r on r.oid = w.oid and r.relkind = 'p'
        cross join lateral pg_partition_tree(r.oid) t
        join pg_class l on l.oid = t.relid join pg_namespace n on n.oid = l.relnamespace
        where t.isleaf and l.relkind <> 'p' order by r.oid, n.nspname, l.relname";
    let rows = client.query(sql, &[&roots]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, storage(row, 1)?))).collect()
}

async fn index_rows(client: &Client, oids: &[u32]) -> Result<HashMap<u32, Vec<Index>>, Error> {
    let columns = |condition: &str| {
        format!(
            "array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(number, place)
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
               where k.place <= i.indnkeyatts {condition} order by k.place)"
        )
    };
    let sql = format!(
        "select i.indrelid, c.relname::text, i.indisprimary, i.indisreplident, i.indimmediate,
           i.indpred is not null or i.indexprs is not null, {}, {}
         from pg_index i join pg_class c on c.oid = i.indexrelid
         where i.indrelid = any($1) and i.indisunique and i.indisvalid order by i.indexrelid",
        columns(""),
        columns("and not a.attnotnull")
    );
    let mut indexes: HashMap<u32, Vec<Index>> = HashMap::new();
    for row in client.query(&sql, &[&oids]).await? {
        indexes.entry(row.try_get(0)?).or_default().push(Index {
            name: row.try_get(1)?,
            primary: row.try_get(2)?,
            identity: row.try_get(3)?,
            immediate: row.try_get(4)?,
            partial: row.try_get(5)?,
            columns: row.try_get(6)?,
            nullable: row.try_get(7)?,
        });
    }
    Ok(indexes)
}

async fn generated_rows(client: &Client, oids: &[u32]) -> Result<HashMap<u32, Vec<Generated>>, Error> {
    let sql = "select attrelid, attname::text, attgenerated::text = 's' from pg_attribute
        where attrelid = any($1) and attgenerated <> '' and not attisdropped order by attrelid, attnum";
    let mut generated: HashMap<u32, Vec<Generated>> = HashMap::new();
    for row in client.query(sql, &[&oids]).await? {
        let column = Generated { name: row.try_get(1)?, stored: row.try_get(2)? };
        generated.entry(row.try_get(0)?).or_default().push(column);
    }
    Ok(generated)
}

/// The tables that there are, for a hint at what was meant.
pub(super) async fn known_names(client: &Client) -> Result<Vec<EntityName>, Error> {
    let sql = "select n.nspname::text, c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p') and not c.relispartition and n.nspname <> 'information_schema'
          and n.nspname !~ '^pg_' and n.nspname <> 'anabranch' order by 1, 2 limit 20000";
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| Ok(EntityName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?)))
        .collect()
}
