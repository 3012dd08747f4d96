//! What the catalogue says of mapped tables: columns as published, value types, keys, row filters.
//!
//! Guarantees that a table is found by schema and name (or oid), never by a bare name, and that stream and
//! snapshot agree on columns and key. Reads only; knows nothing of tables that are not asked for.

use std::{fmt::Write as _, sync::Arc};

use super::{connect::Client, error::Error, quote, types::Types, wire::TextRow};
use crate::{
    backfill::KeyColumn,
    model::{Column, EntityName, Relation, ReplicaIdentity},
};

/// A column of a table, published or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Its `attnum`.
    pub number: i16,
    /// Its name.
    pub name: String,
    /// Its type's oid, a domain's own.
    pub type_oid: u32,
    /// Its collation's oid; 0 where the type has none.
    pub collation: u32,
    /// Whether it is computed.
    pub generated: bool,
    /// Whether the stream has it.
    pub published: bool,
}

/// What a mapped table needs to be known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Schema and name.
    pub name: EntityName,
    /// Whether it is the root (or a node) of a partition tree.
    pub partitioned: bool,
    /// Whether its changes are in the WAL: not so for unlogged and temporary tables.
    pub logged: bool,
    /// What old tuples carry.
    pub replica_identity: ReplicaIdentity,
    /// All columns that are not dropped, in their order.
    pub columns: Vec<TableColumn>,
    /// Column numbers of the primary key, in key order.
    pub primary_key: Vec<i16>,
    /// Column numbers of the replica identity's index, in key order.
    pub identity_index: Vec<i16>,
    /// Column numbers of the first unique index without NULLs, conditions or expressions.
    pub unique_index: Vec<i16>,
    /// The publication's row filter, as an SQL expression.
    pub row_filter: Option<String>,
    /// The planner's guess at the number of rows.
    pub estimated_rows: Option<i64>,
    /// Whether our role may read it.
    pub readable: bool,
}

impl TableInfo {
    /// Column numbers of the key that makes document ids: the primary key, or the identity's index; under
    /// FULL the primary key, else the first unique index. Empty where there is none.
    ///
    /// Under NOTHING there are no updates and deletes, and documents keep the ids that they have under DEFAULT.
    #[must_use]
    pub fn key_numbers(&self) -> &[i16] {
        self.key_numbers_under(self.replica_identity)
    }

    /// The same, if this were its replica identity.
    fn key_numbers_under(&self, identity: ReplicaIdentity) -> &[i16] {
        match identity {
            ReplicaIdentity::Index => &self.identity_index,
            ReplicaIdentity::Full if self.primary_key.is_empty() => &self.unique_index,
            ReplicaIdentity::Default | ReplicaIdentity::Full | ReplicaIdentity::Nothing => &self.primary_key,
        }
    }

    fn named<'a>(&'a self, numbers: &'a [i16]) -> impl Iterator<Item = Option<&'a TableColumn>> {
        numbers.iter().map(|number| self.columns.iter().find(|column| column.number == *number))
    }

    fn key(&self) -> impl Iterator<Item = Option<&TableColumn>> {
        self.named(self.key_numbers())
    }

    fn key_names(&self) -> impl Iterator<Item = Option<&str>> {
        self.key().map(|column| column.map(|column| column.name.as_str()))
    }

    /// The columns of [`key_numbers`](Self::key_numbers), as cursors know them.
    #[must_use]
    pub fn key_columns(&self) -> Vec<KeyColumn> {
        let column = |column: &TableColumn| KeyColumn {
            name: column.name.clone(),
            attribute: column.number,
            type_oid: column.type_oid,
            collation: column.collation,
        };
        self.key().flatten().map(column).collect()
    }

    /// The relation as the stream describes it now.
    pub(super) fn relation(&self, types: &Types) -> Relation {
        let identity: &[i16] = match self.replica_identity {
            ReplicaIdentity::Default => &self.primary_key,
            ReplicaIdentity::Index => &self.identity_index,
            ReplicaIdentity::Full | ReplicaIdentity::Nothing => &[],
        };
        let full = self.replica_identity == ReplicaIdentity::Full;
        let columns: Vec<_> = self
            .columns
            .iter()
            .filter(|column| column.published)
            .map(|column| Column {
                name: column.name.clone(),
                type_oid: column.type_oid,
                value_type: types.value_type(column.type_oid),
                identity: full || identity.contains(&column.number),
            })
            .collect();
        let key = positions(&columns, self.key_names());
        Relation {
            oid: self.oid,
            name: self.name.clone(),
            replica_identity: self.replica_identity,
            columns,
            key,
        }
    }
}

/// Positions of the named columns; empty unless all are there.
fn positions<'a>(columns: &[Column], names: impl Iterator<Item = Option<&'a str>>) -> Vec<usize> {
    let find = |name: Option<&str>| columns.iter().position(|column| Some(column.name.as_str()) == name);
    names.map(find).collect::<Option<_>>().unwrap_or_default()
}

/// A Relation message, without its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRelation {
    /// The table's oid.
    pub oid: u32,
    /// Its name.
    pub name: EntityName,
    /// What old tuples carry.
    pub replica_identity: ReplicaIdentity,
    /// Name, type oid, and whether the column is part of the identity.
    pub columns: Vec<(String, u32, bool)>,
}

/// A Relation message, with its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRelation {
    /// The relation.
    pub relation: Arc<Relation>,
    /// Column numbers of its key, in key order; empty where the catalogue is ahead of the message.
    pub key_numbers: Vec<i16>,
    /// Whether the key is known: not so where only a catalogue could tell that is ahead of the message.
    pub is_told: bool,
    /// Whether the catalogue could not say anything else once it shows the transaction that the message came in. The
    /// stream tells a commit before anybody sees it, and the transaction may have made the table what it is.
    pub settled: bool,
}

impl ResolvedRelation {
    /// Its key with the names that its columns have here, where it is all known; without collations.
    #[must_use]
    pub fn key_columns(&self) -> Option<Vec<KeyColumn>> {
        let column = |(&at, &attribute): (&usize, &i16)| {
            let Column { name, type_oid, .. } = &self.relation.columns[at];
            KeyColumn { name: name.clone(), attribute, type_oid: *type_oid, collation: 0 }
        };
        let known = !self.key_numbers.is_empty() && self.key_numbers.len() == self.relation.key.len();
        known.then(|| self.relation.key.iter().zip(&self.key_numbers).map(column).collect())
    }

    /// Whether document ids mean something else than under an earlier description: not so where a column of
    /// the key has only got another name.
    #[must_use]
    pub fn key_differs(&self, earlier: &Self) -> bool {
        let types = |of: &Self| -> Vec<u32> {
            of.relation.key.iter().map(|&at| of.relation.columns[at].type_oid).collect()
        };
        let same = match self.key_numbers.is_empty() || earlier.key_numbers.is_empty() {
            true => self.relation.key_names().eq(earlier.relation.key_names()),
            false => self.key_numbers == earlier.key_numbers,
        };
        !same || types(self) != types(earlier)
    }
}

/// Looks tables and types up; remembers types.
#[derive(Debug)]
pub struct Catalog {
    publication: String,
    types: Types,
}

impl Catalog {
    /// A catalogue seen through a publication, which need not exist yet.
    pub fn new(publication: impl Into<String>) -> Self {
        Self { publication: publication.into(), types: Types::default() }
    }

    /// The tables of these names; those that do not exist are left out.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn tables(&mut self, client: &Client, names: &[EntityName]) -> Result<Vec<TableInfo>, Error> {
        self.load(client, &Wanted::Names(names)).await
    }

    /// The name of the table of this oid, where there is one. Waits for nobody who has locked it.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn name_of(&mut self, client: &Client, oid: u32) -> Result<Option<EntityName>, Error> {
        Ok(self.load(client, &Wanted::Oid(oid)).await?.pop().map(|table| table.name))
    }

    async fn load(&mut self, client: &Client, wanted: &Wanted<'_>) -> Result<Vec<TableInfo>, Error> {
        let sql = tables_query(wanted, &self.publication, client.server_version()).join("; ");
        let tables = read_tables(client.text_results(&sql).await?)?;
        self.learn_types(
            client,
            tables.iter().flat_map(|table| &table.columns).map(|column| column.type_oid),
        )
        .await?;
        Ok(tables)
    }

    async fn learn_types(
        &mut self,
        client: &Client,
        oids: impl IntoIterator<Item = u32>,
    ) -> Result<(), Error> {
        if let Some(sql) = self.types.query_for(oids) {
            self.types.absorb(client.text_results(&sql).await?.into_iter().flatten().collect())?;
        }
        Ok(())
    }

    /// The relation of a table as it is now; [`tables`](Self::tables) gave the table.
    #[must_use]
    pub fn relation(&self, table: &TableInfo) -> Relation {
        table.relation(&self.types)
    }

    /// Completes a Relation message with value types and key. Under FULL, where the message does not tell
    /// the key, and for the order of the key's columns, the table's present state is asked; where that has other names,
    /// since the catalogue is ahead of the message, the key that was known `earlier` is taken. What is not
    /// [settled](ResolvedRelation::settled) is to be asked again once the message's transaction is seen.
    ///
    /// # Errors
    /// What the server reports.
    pub async fn resolve(
        &mut self,
        client: &Client,
        relation: &StreamRelation,
        earlier: &[KeyColumn],
    ) -> Result<ResolvedRelation, Error> {
        self.learn_types(client, relation.columns.iter().map(|column| column.1)).await?;
        let table = self.load(client, &Wanted::Oid(relation.oid)).await?.pop();
        let columns: Vec<_> = relation
            .columns
            .iter()
            .map(|(name, type_oid, identity)| Column {
                name: name.clone(),
                type_oid: *type_oid,
                value_type: self.types.value_type(*type_oid),
                identity: *identity,
            })
            .collect();
        let identity = relation.replica_identity;
        // Which index is the identity's is known only while one is; the other keys are there whatever the identity.
        let same =
            |table: &&TableInfo| identity != ReplicaIdentity::Index || table.replica_identity == identity;
        let table = table.as_ref().filter(same);
        let (key, key_numbers, is_told) = key_of(&columns, identity, table, earlier);
        let settled = self.types.know(relation.columns.iter().map(|column| column.1))
            && key.len() == 1
            && table.is_some_and(|table| tells_all(relation, &table.relation(&self.types)));
        let relation = Arc::new(Relation {
            oid: relation.oid,
            name: relation.name.clone(),
            replica_identity: relation.replica_identity,
            columns,
            key,
        });
        Ok(ResolvedRelation { relation, key_numbers, is_told, settled })
    }
}

/// The key of a message's rows, with its column numbers where the catalogue has it as well, and whether it is known. The
/// message is valid for its rows; the catalogue may be ahead of it, and is asked first.
fn key_of(
    columns: &[Column],
    identity: ReplicaIdentity,
    table: Option<&TableInfo>,
    earlier: &[KeyColumn],
) -> (Vec<usize>, Vec<i16>, bool) {
    let numbers = table.map(|table| table.key_numbers_under(identity).to_vec()).unwrap_or_default();
    let names = table.map(|table| {
        table.named(&numbers).map(|column| column.map(|column| column.name.as_str())).collect::<Vec<_>>()
    });
    let known = names.map(|names| positions(columns, names.into_iter())).unwrap_or_default();
    let whole = matches!(identity, ReplicaIdentity::Full | ReplicaIdentity::Nothing);
    let flagged: Vec<usize> = (0..columns.len()).filter(|at| !whole && columns[*at].identity).collect();
    let is_key = |at: &[usize]| {
        !at.is_empty() && (whole || (at.len() == flagged.len() && at.iter().all(|at| flagged.contains(at))))
    };
    let called = renamed(columns, earlier);
    let same = earlier.iter().map(|column| &column.attribute).eq(&numbers);
    // A name may have passed to another column since.
    let is_doubtful = whole && same && is_key(&called) && called != known;
    if is_key(&known) && !is_doubtful {
        (known, numbers, true)
    } else if is_key(&called) && (!whole || (same && known.is_empty())) {
        (called, if same { numbers } else { Vec::new() }, true)
    } else if whole {
        (Vec::new(), Vec::new(), numbers.is_empty())
    } else {
        let is_told = flagged.len() <= 1 || table.is_none();
        (flagged, Vec::new(), is_told)
    }
}

/// The columns of a key that was known before, where a message has all of them.
fn renamed(columns: &[Column], earlier: &[KeyColumn]) -> Vec<usize> {
    let find = |key: &KeyColumn| {
        columns.iter().position(|column| column.name == key.name && column.type_oid == key.type_oid)
    };
    earlier.iter().map(find).collect::<Option<_>>().unwrap_or_default()
}

/// Whether a message describes the table as the catalogue has it, and says itself what the key is: an index's, of which
/// it does not say the order.
fn tells_all(message: &StreamRelation, present: &Relation) -> bool {
    let columns = present.columns.iter().map(|column| (&column.name, column.type_oid, column.identity));
    matches!(message.replica_identity, ReplicaIdentity::Default | ReplicaIdentity::Index)
        && (&message.name, message.replica_identity) == (&present.name, present.replica_identity)
        && message.columns.iter().map(|(name, type_oid, identity)| (name, *type_oid, *identity)).eq(columns)
}

/// Which tables a query is about.
pub(super) enum Wanted<'a> {
    Names(&'a [EntityName]),
    Oid(u32),
    /// The table of the schema `$1` and the name `$2` of a prepared statement.
    Parameters,
}

impl Wanted<'_> {
    /// A condition over `pg_class c` and `pg_namespace n`.
    pub(super) fn condition(&self) -> String {
        match self {
            Self::Oid(oid) => format!("c.oid = {oid}"),
            Self::Parameters => "n.nspname = $1 and c.relname = $2".to_owned(),
            Self::Names([]) => "false".to_owned(),
            Self::Names(names) => {
                let mut text = String::from("(n.nspname, c.relname) in (");
                for (at, name) in names.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    // Writing to a String cannot fail.
                    let _ = write!(
                        text,
                        "{comma}({},{})",
                        quote::literal(&name.schema),
                        quote::literal(&name.table)
                    );
                }
                text.push(')');
                text
            }
        }
    }
}

/// Of how many rows the planner thinks a table to be.
const ESTIMATE: &str = "case when c.relkind = 'p' then (
      select sum(greatest(l.reltuples, 0))::bigint from pg_partition_tree(c.oid) t
      join pg_class l on l.oid = t.relid where t.isleaf)
    else nullif(c.reltuples, -1)::bigint end";

/// Two statements: one row a table, then one row a column. The one by its oid opens no table and waits for no lock; it
/// leaves the row filter and the number of rows out.
pub(super) fn tables_query(wanted: &Wanted<'_>, publication: &str, version: u32) -> [String; 2] {
    let condition = wanted.condition();
    let publication = quote::literal(publication);
    let of_publication = |expression: &str| {
        format!(
            "(select {expression} from pg_publication_rel pr join pg_publication p on p.oid = pr.prpubid
              where p.pubname = {publication} and pr.prrelid = c.oid)"
        )
    };
    let none = || "null".to_owned();
    // Row filters and column lists came with 15, published generated columns with 18.
    let list = if version >= 15 { of_publication("pr.prattrs::text") } else { none() };
    // What opens tables waits for whoever has locked them.
    let (filter, estimate) = match wanted {
        Wanted::Oid(_) => (none(), none()),
        Wanted::Names(_) | Wanted::Parameters => {
            let filter = of_publication("pg_get_expr(pr.prqual, pr.prrelid)");
            (if version >= 15 { filter } else { none() }, ESTIMATE.to_owned())
        }
    };
    let generated = if version >= 18 {
        format!("(select p.pubgencols::text from pg_publication p where p.pubname = {publication})")
    } else {
        "null".to_owned()
    };
    let index = |condition: &str| {
        format!(
            "(select string_agg(k.number::text, ',' order by k.place) from
               (select i.* from pg_index i where i.indrelid = c.oid and i.indisvalid and {condition}
                order by i.indexrelid limit 1) i,
               unnest(i.indkey::int2[]) with ordinality k(number, place) where k.place <= i.indnkeyatts)"
        )
    };
    let primary = index("i.indisprimary");
    let identity = index("i.indisreplident");
    let unique = index(
        "i.indisunique and i.indimmediate and i.indpred is null and i.indexprs is null and not exists (
           select from unnest(i.indkey::int2[]) with ordinality k(number, place)
           join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
           where k.place <= i.indnkeyatts and not a.attnotnull)",
    );
    let tables = format!(
        "select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
           {primary}, {identity}, {unique}, {filter}, {list}, {generated},
           {estimate},
           has_table_privilege(c.oid, 'select')
         from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p') and {condition}"
    );
    let columns = format!(
        "select a.attrelid, a.attnum, a.attname, a.atttypid, a.attgenerated, a.attcollation
         from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped and {condition}
         order by a.attrelid, a.attnum"
    );
    [tables, columns]
}

/// Reads what [`tables_query`] answered.
pub(super) fn read_tables(results: Vec<Vec<TextRow>>) -> Result<Vec<TableInfo>, Error> {
    let nonsense = || Error::protocol("the catalogue has a row that makes no sense");
    let mut results = results.into_iter();
    let (tables, columns) = (results.next().unwrap_or_default(), results.next().unwrap_or_default());
    tables.iter().map(|row| read_table(row, &columns).ok_or_else(nonsense)).collect()
}

fn read_table(row: &TextRow, columns: &[TextRow]) -> Option<TableInfo> {
    let text = |at: usize| row.get(at).and_then(Option::as_deref);
    let numbers = |at: usize, separator: char| -> Option<Vec<i16>> {
        let list = text(at).unwrap_or_default();
        list.split(separator).filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect()
    };
    let list = text(10).map(|_| numbers(10, ' ')).map_or(Some(None), |list| list.map(Some))?;
    let stored_published = text(11) == Some("s");
    let read_column = |column: &TextRow| {
        let text = |at: usize| column.get(at).and_then(Option::as_deref);
        let number = text(1)?.parse().ok()?;
        let generated = text(4).unwrap_or_default();
        let published = match &list {
            Some(list) => list.contains(&number),
            None => generated.is_empty() || (generated == "s" && stored_published),
        };
        Some(TableColumn {
            number,
            name: text(2)?.to_owned(),
            type_oid: text(3)?.parse().ok()?,
            collation: text(5)?.parse().ok()?,
            generated: !generated.is_empty(),
            published,
        })
    };
    Some(TableInfo {
        oid: text(0)?.parse().ok()?,
        name: EntityName::new(text(1)?, text(2)?),
        partitioned: text(3)? == "p",
        logged: text(4)? == "p",
        replica_identity: match text(5)? {
            "d" => ReplicaIdentity::Default,
            "f" => ReplicaIdentity::Full,
            "i" => ReplicaIdentity::Index,
            _ => ReplicaIdentity::Nothing,
        },
        columns: columns
            .iter()
            .filter(|column| column.first() == row.first())
            .map(read_column)
            .collect::<Option<_>>()?,
        primary_key: numbers(6, ',')?,
        identity_index: numbers(7, ',')?,
        unique_index: numbers(8, ',')?,
        row_filter: text(9).map(str::to_owned),
        estimated_rows: text(12).and_then(|text| text.parse().ok()),
        readable: text(13)? == "t",
    })
}
