//! What has to be right before streaming can work, looked at all at once.
//!
//! Guarantees that nothing is created or altered, and that each finding comes with what to do about it.

use super::{
    catalog::{Catalog, TableInfo},
    connect::Client,
    error::Error,
    identity::unusable_identities,
    publication::published_tables,
    quote,
    slot::find_slot,
};
use crate::model::{EntityName, ReplicaIdentity};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, but not as well as it could.
    Warning,
    /// It cannot work.
    Error,
}

/// One thing that is not right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// The table that it is about; none when it concerns the whole installation.
    pub table: Option<EntityName>,
    /// A short stable word for programs, such as `wal-level`.
    pub code: &'static str,
    /// What is wrong.
    pub what: String,
    /// A statement or setting that helps.
    pub fix: String,
}

impl Finding {
    fn error(code: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Error, table: None, code, what: what.into(), fix: fix.into() }
    }

    fn warning(code: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, table: None, code, what: what.into(), fix: fix.into() }
    }
}

impl Finding {
    fn about(self, table: &EntityName) -> Self {
        Self { table: Some(table.clone()), ..self }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})\n  fix: {}", self.what, self.code, self.fix)
    }
}

/// What is going to be used.
#[derive(Clone, Copy, Debug)]
pub struct PreflightRequest<'a> {
    /// The slot's name.
    pub slot: &'a str,
    /// The publication's name.
    pub publication: &'a str,
    /// Whether Anabranch makes and alters the publication.
    pub managed: bool,
    /// The mapped tables.
    pub tables: &'a [EntityName],
    /// Those whose transforms name their own document ids, so that deletes need the whole old row.
    pub full_identity: &'a [EntityName],
}

/// Looks at everything. An empty list means that streaming can start.
///
/// # Errors
/// A lost connection; what is wrong with the database is a finding, not an error.
pub async fn preflight(client: &Client, request: &PreflightRequest<'_>) -> Result<Vec<Finding>, Error> {
    let mut findings = server(client, request).await?;
    // What follows reads catalogues that older servers do not have.
    if client.server_version() >= 14 {
        tables(client, request, &mut findings).await?;
        publication(client, request, &mut findings).await?;
        pooler(client, &mut findings).await?;
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

async fn server(client: &Client, request: &PreflightRequest<'_>) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let sql = "select current_setting('server_version'), current_setting('wal_level'),
          pg_encoding_to_char(encoding), pg_is_in_recovery(), rolsuper or rolreplication,
          current_setting('max_replication_slots')::int - (select count(*)::int from pg_replication_slots),
          current_setting('max_wal_senders')::int - (select count(*)::int from pg_stat_replication),
          current_user::text, current_setting('max_slot_wal_keep_size')
        from pg_database, pg_roles where datname = current_database() and rolname = current_user";
    if client.server_version() < 14 {
        let what =
            format!("the server is Postgres {}, and 14 is the oldest supported", client.server_version());
        return Ok(vec![Finding::error("version", what, "upgrade the server")]);
    }
    let row = client.query_one(sql, &[]).await?;
    let level: String = row.try_get(1)?;
    if level != "logical" {
        findings.push(Finding::error(
            "wal-level",
            format!("wal_level is `{level}`, and streaming needs `logical`"),
            "alter system set wal_level = 'logical'; -- then restart the server",
        ));
    }
    let encoding: String = row.try_get(2)?;
    if encoding != "UTF8" {
        findings.push(encoding_finding(&encoding));
    }
    if row.try_get(3)? {
        findings.push(Finding::error(
            "standby",
            "the server is a standby, where neither publication nor state can be written",
            "connect to the primary, or list both hosts with target_session_attrs=primary",
        ));
    }
    let role = quote::identifier(row.try_get(7)?);
    if !row.try_get::<_, bool>(4)? {
        let what = format!("role {role} may not replicate");
        findings.push(Finding::error("replication-right", what, format!("alter role {role} replication;")));
    }
    let slot = find_slot(client, request.slot).await?;
    slot_findings(slot.as_ref(), request.slot, client, &mut findings).await?;
    if slot.is_none() && row.try_get::<_, i32>(5)? <= 0 {
        findings.push(Finding::error(
            "slots",
            "all replication slots are taken",
            "drop one that is not used (select slot_name, active from pg_replication_slots), or: alter system set \
             max_replication_slots = …; -- then restart the server",
        ));
    }
    if row.try_get::<_, i32>(6)? <= 0 {
        findings.push(Finding::error(
            "wal-senders",
            "all walsenders are taken",
            "alter system set max_wal_senders = …; -- then restart the server",
        ));
    }
    if row.try_get::<_, &str>(8)? == "-1" {
        findings.push(Finding::warning(
            "slot-limit",
            "max_slot_wal_keep_size is not limited: while Anabranch is stopped, WAL fills the server's disk",
            "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();",
        ));
    }
    Ok(findings)
}

fn encoding_finding(encoding: &str) -> Finding {
    let what = match encoding {
        "SQL_ASCII" => {
            "the database is in SQL_ASCII: nothing tells which characters its bytes are".to_owned()
        }
        other => {
            return Finding::warning(
                "encoding",
                format!("the database is in {other}; its text is converted to UTF-8 by the server"),
                "nothing to do, unless some of its characters have no UTF-8: the stream then stops with an error",
            );
        }
    };
    Finding::error(
        "encoding",
        what,
        "copy the data into a database made with: create database … encoding 'UTF8' template template0;",
    )
}

async fn slot_findings(
    slot: Option<&super::slot::SlotState>,
    name: &str,
    client: &Client,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let Some(slot) = slot else { return Ok(()) };
    let database: String = client.query_one("select current_database()::text", &[]).await?.try_get(0)?;
    if slot.plugin.as_deref() != Some("pgoutput") || slot.database.as_deref() != Some(&database) {
        findings.push(Finding::error(
            "slot-other",
            format!("slot `{name}` exists, and is not a pgoutput slot of this database"),
            "choose another `slot` in the configuration",
        ));
    }
    if let Some(reason) = &slot.lost {
        findings.push(Finding::warning(
            "slot-lost",
            format!(
                "slot `{name}` is lost: {reason}; at the next start every mapped table will be backfilled"
            ),
            "alter system set max_slot_wal_keep_size = …; -- so that it lasts through the next outage",
        ));
    }
    Ok(())
}

async fn tables(
    client: &Client,
    request: &PreflightRequest<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let found = Catalog::new(request.publication).tables(client, request.tables).await?;
    for name in request.tables {
        let Some(table) = found.iter().find(|table| table.name == *name) else {
            findings.push(missing_table(client, name).await?.about(name));
            continue;
        };
        table_findings(table, request, findings);
    }
    for bad in unusable_identities(client, request.publication, request.tables).await? {
        let what = format!(
            "table {} cannot be published: {}, and the application's own UPDATE and DELETE would fail",
            bad.relation, bad.why
        );
        findings.push(Finding::error("identity", what, bad.fix).about(&bad.entity));
    }
    Ok(())
}

async fn missing_table(client: &Client, name: &EntityName) -> Result<Finding, Error> {
    let sql = "select c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = $2";
    let kind = client.query_opt(sql, &[&name.schema, &name.table]).await?;
    let what = match kind.map(|row| row.try_get::<_, String>(0)).transpose()?.as_deref() {
        Some("v" | "m") => format!("{name} is a view, which has no changes of its own"),
        Some("f") => format!("{name} is a foreign table, whose changes are not in this server's WAL"),
        Some(_) => format!("{name} is not a table"),
        None => {
            let sql = "select n.nspname::text, c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where c.relkind in ('r', 'p') and lower(c.relname) = lower($1) order by 1, 2 limit 1";
            let near = client.query_opt(sql, &[&name.table]).await?;
            let near = near.map(|row| {
                Ok::<_, Error>(EntityName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?))
            });
            let hint = near.transpose()?.map_or_else(String::new, |near| format!("; there is {near}"));
            format!("table {name} does not exist in this database{hint}")
        }
    };
    Ok(Finding::error(
        "table",
        what,
        "correct the name in the configuration (upper and lower case count), or create the table",
    ))
}

fn table_findings(table: &TableInfo, request: &PreflightRequest<'_>, findings: &mut Vec<Finding>) {
    let name = quote::entity(&table.name);
    if !table.readable {
        let what = format!("the role may not read {}, so it cannot be backfilled", table.name);
        findings.push(
            Finding::error("select-right", what, format!("grant select on {name} to <role>;"))
                .about(&table.name),
        );
    }
    if table.row_security {
        let what =
            format!("row security policies keep rows of {} from the role, and reading it fails", table.name);
        findings
            .push(Finding::error("row-security", what, "alter role <role> bypassrls;").about(&table.name));
    }
    if !table.logged {
        let what = format!("{} is unlogged or temporary: its changes are not in the WAL", table.name);
        findings.push(
            Finding::error("unlogged", what, format!("alter table {name} set logged;")).about(&table.name),
        );
    }
    let key = table.key_numbers();
    if key.is_empty() && table.replica_identity == ReplicaIdentity::Full {
        findings.push(
            Finding::error(
                "key",
                format!("{} has neither a primary key nor a unique index over NOT NULL columns", table.name),
                format!("alter table {name} add primary key (<columns>);"),
            )
            .about(&table.name),
        );
    }
    if request.full_identity.contains(&table.name) && table.replica_identity != ReplicaIdentity::Full {
        findings.push(
            Finding::error(
                "full-identity",
                format!(
                    "the transform of {} names its own document ids, so that deletes need the whole old row",
                    table.name
                ),
                format!("alter table {name} replica identity full;"),
            )
            .about(&table.name),
        );
    }
    let published =
        |number: &i16| table.columns.iter().any(|column| column.number == *number && column.published);
    if !key.iter().all(published) {
        findings.push(
            Finding::error(
                "key-columns",
                format!("the publication leaves out key columns of {}", table.name),
                format!(
                    "alter publication {} set table {name} (<columns, with the key>);",
                    quote::identifier(request.publication)
                ),
            )
            .about(&table.name),
        );
    }
}

async fn publication(
    client: &Client,
    request: &PreflightRequest<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let name = quote::identifier(request.publication);
    let sql = "select has_database_privilege(current_database(), 'create'), current_database()::text, current_user::text,
          exists (select from pg_namespace where nspname = 'anabranch'),
          exists (select from pg_publication where pubname = $1)";
    let row = client.query_one(sql, &[&request.publication]).await?;
    let (may_create, database, role): (bool, String, String) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (schema, exists): (bool, bool) = (row.try_get(3)?, row.try_get(4)?);
    if !may_create && (!schema || (request.managed && !exists)) {
        findings.push(Finding::error(
            "create-right",
            "the role may not create the schema `anabranch` and the publication in this database",
            format!(
                "grant create on database {} to {};",
                quote::identifier(&database),
                quote::identifier(&role)
            ),
        ));
    }
    if request.managed {
        return owners(client, request, &role, findings).await;
    }
    let published = published_tables(client, request.publication).await?;
    for table in request.tables.iter().filter(|table| !published.contains(table)) {
        let (what, fix) = if exists {
            let add = format!("alter publication {name} add table {};", quote::entity(table));
            (format!("publication `{}` does not have table {table}", request.publication), add)
        } else {
            let create = format!(
                "create publication {name} for table {} with (publish_via_partition_root = true);",
                quote::entity(table)
            );
            (format!("publication `{}` does not exist", request.publication), create)
        };
        findings.push(Finding::error("publication", what, fix).about(table));
    }
    Ok(())
}

/// Only a table's owner may publish it.
async fn owners(
    client: &Client,
    request: &PreflightRequest<'_>,
    role: &str,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let sql = format!(
        "select n.nspname, c.relname, pg_get_userbyid(c.relowner) from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where c.relkind in ('r', 'p') and {} and not pg_has_role(c.relowner, 'usage')
           and not exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
             where r.prrelid = c.oid and p.pubname = {}) order by 1, 2",
        super::catalog::Wanted::Names(request.tables).condition(),
        quote::literal(request.publication)
    );
    for row in client.text_results(&sql).await?.into_iter().flatten() {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let table = EntityName::new(text(0), text(1));
        findings.push(
            Finding::error(
                "owner",
                format!("only the owner of {table}, `{}`, may add it to a publication", text(2)),
                format!(
                    "grant {} to {}; -- or create the publication as the owner and set `managed = false`",
                    quote::identifier(text(2)),
                    quote::identifier(role)
                ),
            )
            .about(&table),
        );
    }
    Ok(())
}

/// Statements of one session that reach different server processes.
async fn pooler(client: &Client, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let mut pids = Vec::new();
    for _ in 0..3 {
        let row = client
            .text_results(
                "select pg_backend_pid(), current_setting('DateStyle'), current_setting('TimeZone')",
            )
            .await?;
        pids.push(row.into_iter().flatten().next().unwrap_or_default());
    }
    let pinned = pids.iter().all(|row| row.get(2).and_then(Option::as_deref) == Some("UTC"));
    if !pinned || pids.iter().any(|row| row.first() != pids[0].first()) {
        findings.push(Finding::error(
            "pooler",
            "a connection pooler in transaction mode is in between: sessions, locks and replication do not work through it",
            "use the server's own host and port in `[source] url`",
        ));
    }
    Ok(())
}
