//! What has to be right before streaming can work, looked at all at once and told with what would help.
//!
//! Guarantees that nothing is created, altered or locked beyond the catalogue; that what is wrong with one
//! table is a finding of that table, so that the others can run; that a fix is a statement to run as it
//! stands, names quoted; that a table whose publishing would make the application's own UPDATE or DELETE fail
//! is found before anything is published.
//!
//! Facts are gathered first ([`facts`]), in a handful of queries whatever the number of tables; the judging
//! ([`server`], [`publication`], [`table`], [`partitions`]) is pure.

mod facts;
mod names;
mod partitions;
mod publication;
mod server;
mod table;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::{Client, Error};
use crate::model::EntityName;

/// The oldest server that has all that is used.
const OLDEST_VERSION: u32 = 14;

/// What is going to be used.
#[derive(Clone, Copy, Debug)]
pub struct PreflightRequest<'a> {
    /// The slot's name.
    pub slot: &'a str,
    /// The publication's name.
    pub publication: &'a str,
    /// Whether Anabranch makes and alters the publication; otherwise it is used as it is.
    pub managed: bool,
    /// The mapped tables.
    pub tables: &'a [EntityName],
    /// Those of them whose old rows must be whole, because a transform names its own document ids or looks at
    /// what a deleted row was.
    pub full_identity: &'a [EntityName],
}

/// How bad a finding is. Errors are the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, with a risk that should be known.
    Warning,
    /// It cannot work, or would harm the application.
    Error,
}

/// Which check found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// The server is older than 14.
    ServerVersion,
    /// The server is a standby.
    Standby,
    /// The session's settings were dropped on the way.
    Pooler,
    /// `wal_level` is not `logical`.
    WalLevel,
    /// The database is not in UTF-8.
    Encoding,
    /// Another server setting that will hurt.
    ServerSetting,
    /// The role may not stream.
    ReplicationRight,
    /// A name that the server does not take.
    Name,
    /// A slot of the name is not ours to use.
    SlotForeign,
    /// The slot exists and cannot be streamed from any more.
    SlotLost,
    /// No slot is free.
    SlotsFull,
    /// No walsender is free.
    WalSendersFull,
    /// The schema `anabranch` cannot be made or used.
    StateSchema,
    /// The publication cannot be made or altered.
    PublicationRight,
    /// The publication that was to be used as it is does not exist.
    PublicationMissing,
    /// The publication leaves out operations, tables, columns or partition roots.
    PublicationContent,
    /// There is no such table.
    TableMissing,
    /// It is a view, a foreign table or something else without changes of its own.
    NotATable,
    /// It is temporary or unlogged: its changes are not in the WAL.
    NotLogged,
    /// The role may not read it.
    SelectRight,
    /// Row-level security would hide rows.
    RowSecurity,
    /// Only its owner can publish it.
    TableOwner,
    /// Publishing it would make the application's UPDATE and DELETE fail.
    NoIdentity,
    /// It has no key that tells its rows apart.
    NoKey,
    /// Its only unique index has columns that may be NULL.
    KeyNullable,
    /// Its primary key is deferrable.
    KeyDeferrable,
    /// A generated column that is not published is part of key or identity.
    GeneratedColumn,
    /// Documents are named by the identity's index, not by the primary key.
    KeyIsIdentityIndex,
    /// Old rows are not whole, and a mapping needs them.
    NotFullIdentity,
    /// Its partitions have another identity than the table.
    PartitionIdentity,
    /// One of its partitions, or the table that it is a partition of, stands in the way.
    Partition,
    /// It has children by inheritance, which are tables of their own to the stream.
    Inheritance,
}

impl Code {
    /// The word for programs. Stable.
    fn as_str(self) -> &'static str {
        match self {
            Self::ServerVersion => "server-version",
            Self::Standby => "standby",
            Self::Pooler => "pooler",
            Self::WalLevel => "wal-level",
            Self::Encoding => "encoding",
            Self::ServerSetting => "server-setting",
            Self::ReplicationRight => "replication-right",
            Self::Name => "name",
            Self::SlotForeign => "slot-foreign",
            Self::SlotLost => "slot-lost",
            Self::SlotsFull => "slots-full",
            Self::WalSendersFull => "wal-senders-full",
            Self::StateSchema => "state-schema",
            Self::PublicationRight => "publication-right",
            Self::PublicationMissing => "publication-missing",
            Self::PublicationContent => "publication-content",
            Self::TableMissing => "table-missing",
            Self::NotATable => "not-a-table",
            Self::NotLogged => "not-logged",
            Self::SelectRight => "select-right",
            Self::RowSecurity => "row-security",
            Self::TableOwner => "table-owner",
            Self::NoIdentity => "no-identity",
            Self::NoKey => "no-key",
            Self::KeyNullable => "key-nullable",
            Self::KeyDeferrable => "key-deferrable",
            Self::GeneratedColumn => "generated-column",
            Self::KeyIsIdentityIndex => "key-is-identity-index",
            Self::NotFullIdentity => "not-full-identity",
            Self::PartitionIdentity => "partition-identity",
            Self::Partition => "partition",
            Self::Inheritance => "inheritance",
        }
    }
}

fn as_text<S: serde::Serializer>(name: &Option<EntityName>, serializer: S) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => serializer.collect_str(name),
        None => serializer.serialize_none(),
    }
}

/// One thing that is not right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Which check found it: a short stable word for programs, such as `wal-level`.
    pub code: &'static str,
    /// The table that it is about, in JSON as text; none for the installation as a whole: server, database,
    /// role, slot, publication.
    #[serde(serialize_with = "as_text")]
    pub table: Option<EntityName>,
    /// One sentence: what is wrong, and what comes of it.
    pub what: String,
    /// SQL to run as it stands, by somebody who may; none where the answer lies in the configuration or
    /// outside of SQL, which `what` says then.
    pub fix: Option<String>,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)?;
        match &self.fix {
            Some(fix) => write!(f, "; run: {fix}"),
            None => Ok(()),
        }
    }
}

/// Where findings gather.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn installation(&mut self, severity: Severity, code: Code, what: impl Into<String>, fix: Option<String>) {
        self.0.push(Finding { severity, code: code.as_str(), table: None, what: what.into(), fix });
    }

    fn table(
        &mut self,
        name: &EntityName,
        severity: Severity,
        code: Code,
        what: impl Into<String>,
        fix: Option<String>,
    ) {
        self.0.push(Finding {
            severity,
            code: code.as_str(),
            table: Some(name.clone()),
            what: what.into(),
            fix,
        });
    }

    /// Errors first, then the installation's before tables', each in the order of the checks.
    fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by(|a, b| b.severity.cmp(&a.severity).then_with(|| a.table.cmp(&b.table)));
        self.0
    }
}

/// Looks at everything. An empty list means that streaming can start; so does one of warnings alone. Reads
/// the catalogue only.
///
/// # Errors
/// A lost connection or another failure of the look itself; what is wrong with the source is a finding.
pub async fn preflight(client: &Client, wanted: &PreflightRequest<'_>) -> Result<Vec<Finding>, Error> {
    let mut findings = Findings::default();
    let version = client.server_version();
    if version < OLDEST_VERSION {
        let what =
            format!("the server is Postgres {version}, and {OLDEST_VERSION} is the oldest that will do");
        findings.installation(Severity::Error, Code::ServerVersion, what, None);
        // What follows reads catalogues that older servers do not have.
        return Ok(findings.sorted());
    }
    let reading = |error: Error| error.context("looking whether the source is ready");
    let server = facts::server(client, wanted).await.map_err(reading)?;
    server::judge(&server, wanted, &mut findings);
    let publication = facts::publication(client, wanted).await.map_err(reading)?;
    publication::judge(publication.as_ref(), &server, wanted, &mut findings);
    let tables = facts::tables(client, wanted).await.map_err(reading)?;
    let known = if tables.iter().all(Option::is_some) {
        Vec::new()
    } else {
        facts::known_names(client).await.map_err(reading)?
    };
    let surroundings = table::Surroundings { server: &server, publication: publication.as_ref(), wanted };
    let mut seen: Vec<&EntityName> = Vec::new();
    for (name, found) in wanted.tables.iter().zip(&tables) {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        match found {
            Some(found) => table::judge(found, &surroundings, &mut findings),
            None => names::missing(name, &known, &mut findings),
        }
    }
    Ok(findings.sorted())
}
