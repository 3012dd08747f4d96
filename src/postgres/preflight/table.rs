//! Judges one mapped table: what it is, who may read and publish it, how its rows are told apart.

use super::{
    Code, Findings, PreflightRequest, Severity,
    facts::{Index, Publication, Server, Storage, Table},
    partitions, publication,
};
use crate::{
    model::{EntityName, ReplicaIdentity},
    postgres::quote,
};

/// What is around the table.
pub(super) struct Surroundings<'a> {
    pub(super) server: &'a Server,
    pub(super) publication: Option<&'a Publication>,
    pub(super) wanted: &'a PreflightRequest<'a>,
}

pub(super) fn judge(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) {
    if !is_table(table, findings) {
        return;
    }
    rights(table, around, findings);
    match around.publication {
        Some(found) if !around.wanted.managed => {
            publication::membership(table, found, around.wanted, findings);
        }
        _ => {}
    }
    let healthy = identity(table, around, findings);
    if around.wanted.full_identity.contains(&table.root.name) {
        full_identity(table, around, findings);
    }
    if table.root.kind == 'p' {
        partitions::judge(table, around, healthy, findings);
    }
    relatives(table, around, findings);
}

fn is_table(table: &Table, findings: &mut Findings) -> bool {
    let name = &table.root.name;
    let mut error = |code: Code, what: String, fix: Option<String>| {
        findings.table(name, Severity::Error, code, what, fix);
        false
    };
    let kind = match table.root.kind {
        'r' | 'p' => None,
        'v' => Some("a view, which has no changes of its own; map the tables that it reads"),
        'm' => Some("a materialized view, whose changes are not published; map the tables that it reads"),
        'f' => Some(
            "a foreign table, whose changes are not in this server's WAL; stream from the server that has it",
        ),
        'S' => Some("a sequence"),
        _ => Some("an index or a type"),
    };
    if let Some(kind) = kind {
        return error(Code::NotATable, format!("{name} is {kind}"), None);
    }
    if name.schema.starts_with("pg_") && table.root.persistence != 't' || name.schema == "information_schema"
    {
        return error(
            Code::NotATable,
            format!("{name} is a table of Postgres itself, which it does not publish"),
            None,
        );
    }
    if name.schema == "anabranch" {
        let what = format!("{name} is Anabranch's own state, whose changes would never end");
        return error(Code::NotATable, what, None);
    }
    match table.root.persistence {
        'p' => true,
        't' => error(Code::NotLogged, format!("{name} is a temporary table of one session"), None),
        _ => {
            let fix = format!("alter table {} set logged", quote::entity(name));
            error(Code::NotLogged, format!("{name} is unlogged: its changes are not in the WAL"), Some(fix))
        }
    }
}

fn rights(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) {
    let (name, entity) = (&table.root.name, quote::entity(&table.root.name));
    let role = quote::identifier(&around.server.role);
    let mut error = |code: Code, what: String, fix: String| {
        findings.table(name, Severity::Error, code, what, Some(fix));
    };
    let mut grants = Vec::new();
    if !table.schema_usage {
        grants.push(format!("grant usage on schema {} to {role}", quote::identifier(&name.schema)));
    }
    if !table.select {
        grants.push(format!("grant select on {entity} to {role}"));
    }
    if !grants.is_empty() {
        let what =
            format!("role {} may not read {name}, so that it cannot be backfilled", around.server.role);
        error(Code::SelectRight, what, grants.join("; "));
    }
    if table.row_security {
        let what = format!(
            "row-level security would hide rows of {name} from role {}, while the stream has them all",
            around.server.role
        );
        error(Code::RowSecurity, what, format!("alter role {role} bypassrls"));
    }
    if around.wanted.managed && !table.owned && !table.listed {
        let what = format!(
            "only the owner of {name}, {}, can put it into a publication; make role {} a member, or let the owner \
             make the publication and tell Anabranch not to manage it",
            table.owner, around.server.role
        );
        error(Code::TableOwner, what, format!("grant {} to {role}", quote::identifier(&table.owner)));
    }
}

/// How a relation's old rows are told, as the server goes by it.
pub(super) enum Identity<'a> {
    /// By all columns.
    Full,
    /// By the columns of an index.
    Columns(&'a Index),
    /// By nothing: published, every UPDATE and DELETE of the application fails. Which check, and why.
    Nothing(Code, String),
}

impl Storage {
    fn primary(&self) -> Option<&Index> {
        self.indexes.iter().find(|index| index.primary)
    }

    /// The unique indexes that can be an identity, those with columns that may be NULL at the end.
    fn candidates(&self) -> Vec<&Index> {
        let mut candidates: Vec<_> =
            self.indexes.iter().filter(|index| index.immediate && !index.partial).collect();
        candidates.sort_by_key(|index| (!index.nullable.is_empty(), !index.primary));
        candidates
    }

    pub(super) fn effective_identity(&self) -> Identity<'_> {
        let nothing = |why: &str| Identity::Nothing(Code::NoIdentity, why.to_owned());
        match self.identity {
            ReplicaIdentity::Full => Identity::Full,
            ReplicaIdentity::Nothing => nothing("its replica identity is NOTHING"),
            ReplicaIdentity::Default => match self.primary() {
                Some(primary) if primary.immediate => Identity::Columns(primary),
                Some(_) => Identity::Nothing(
                    Code::KeyDeferrable,
                    "its primary key is deferrable, which cannot be a replica identity".to_owned(),
                ),
                None => nothing("it has no primary key"),
            },
            ReplicaIdentity::Index => match self.indexes.iter().find(|index| index.identity) {
                Some(index) => Identity::Columns(index),
                None => nothing("the index of its replica identity is gone"),
            },
        }
    }

    /// The index that makes document ids.
    fn key(&self) -> Option<&Index> {
        match self.effective_identity() {
            Identity::Columns(index) => Some(index),
            Identity::Nothing(..) => None,
            Identity::Full => self.primary().or_else(|| self.candidates().first().copied()),
        }
    }

    /// Statements that give the relation an identity.
    pub(super) fn cure(&self, has_id_column: bool) -> Option<String> {
        let entity = quote::entity(&self.name);
        let using = |index: &Index| {
            if index.primary {
                return format!("alter table {entity} replica identity default");
            }
            format!("alter table {entity} replica identity using index {}", quote::identifier(&index.name))
        };
        match (self.candidates().first(), self.primary()) {
            (Some(index), _) if index.nullable.is_empty() => Some(using(index)),
            (_, Some(_)) => Some(format!("alter table {entity} replica identity full")),
            (Some(index), None) => Some(format!("{}; {}", set_not_null(&entity, index), using(index))),
            // The key of a partitioned table has to have the columns that it is partitioned by.
            (None, None) if self.kind == 'p' => None,
            (None, None) => {
                let column = if has_id_column { "anabranch_id" } else { "id" };
                let reset = match self.identity {
                    ReplicaIdentity::Default => String::new(),
                    _ => format!("; alter table {entity} replica identity default"),
                };
                Some(format!(
                    "alter table {entity} add column {} bigint generated always as identity primary key{reset}",
                    quote::identifier(column)
                ))
            }
        }
    }

    /// Generated columns that the stream does not have.
    pub(super) fn unpublished(&self, table: &Table, around: &Surroundings<'_>) -> Vec<&str> {
        let stored = around.publication.is_some_and(|publication| publication.stored_generated);
        let published = |name: &String, is_stored: bool| match &table.column_list {
            Some(list) => list.contains(name),
            None => stored && is_stored,
        };
        let hidden = self.generated.iter().filter(|column| !published(&column.name, column.stored));
        hidden.map(|column| column.name.as_str()).collect()
    }
}

fn set_not_null(entity: &str, index: &Index) -> String {
    let columns =
        index.nullable.iter().map(|name| format!("alter column {} set not null", quote::identifier(name)));
    format!("alter table {entity} {}", columns.collect::<Vec<_>>().join(", "))
}

/// Judges identity and key; says whether the table has an identity.
fn identity(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) -> bool {
    let (root, name) = (&table.root, &table.root.name);
    let full = match root.effective_identity() {
        Identity::Nothing(code, why) => {
            let what = format!(
                "{name} has nothing to tell its rows by: {why}; published, every UPDATE and DELETE of the \
                 application would fail"
            );
            findings.table(name, Severity::Error, code, what, root.cure(table.has_id_column));
            return false;
        }
        Identity::Full => true,
        Identity::Columns(_) => false,
    };
    key(table, full, findings);
    generated(table, full, around, findings);
    true
}

fn key(table: &Table, full: bool, findings: &mut Findings) {
    let (root, name, entity) = (&table.root, &table.root.name, quote::entity(&table.root.name));
    let Some(key) = root.key() else {
        let what = format!(
            "{name} has neither a primary key nor a unique index over all of its rows, so that none of its rows has \
             a document id"
        );
        findings.table(
            name,
            Severity::Error,
            Code::NoKey,
            what,
            root.cure(table.has_id_column).map(keep_full(root)),
        );
        return;
    };
    if !key.nullable.is_empty() {
        let what = format!(
            "the key of {name} is unique index {}, where {} may be NULL: such rows have no document id and would \
             never be backfilled",
            key.name,
            key.nullable.join(" and ")
        );
        findings.table(name, Severity::Error, Code::KeyNullable, what, Some(set_not_null(&entity, key)));
    }
    if full && !key.immediate {
        let what = format!(
            "the primary key of {name} is deferrable: a transaction that swaps the keys of two rows could lose a \
             document"
        );
        findings.table(name, Severity::Warning, Code::KeyDeferrable, what, None);
    }
    match root.primary() {
        Some(primary) if root.identity == ReplicaIdentity::Index && !same_columns(primary, key) => {
            let what = format!(
                "documents of {name} are named by {} (the index of its replica identity, {}), not by its primary \
                 key, {}",
                key.columns.join(", "),
                key.name,
                primary.columns.join(", ")
            );
            let fix = primary.immediate.then(|| format!("alter table {entity} replica identity default"));
            findings.table(name, Severity::Warning, Code::KeyIsIdentityIndex, what, fix);
        }
        _ => {}
    }
}

/// A new key leaves FULL as it is.
fn keep_full(root: &Storage) -> impl Fn(String) -> String {
    let reset = format!("; alter table {} replica identity default", quote::entity(&root.name));
    let full = root.identity == ReplicaIdentity::Full;
    move |fix| if full { fix.replace(&reset, "") } else { fix }
}

pub(super) fn same_columns(one: &Index, other: &Index) -> bool {
    one.columns.len() == other.columns.len()
        && one.columns.iter().all(|column| other.columns.contains(column))
}

/// Generated columns that are not published, where identity or key has them.
fn generated(table: &Table, full: bool, around: &Surroundings<'_>, findings: &mut Findings) {
    let (root, name) = (&table.root, &table.root.name);
    let hidden = root.unpublished(table, around);
    let strict = around.server.version >= 18;
    let in_key: Vec<&str> = hidden
        .iter()
        .copied()
        .filter(|column| root.key().is_some_and(|key| key.columns.iter().any(|of_key| of_key == column)))
        .collect();
    let (columns, harm) = match (full && strict, in_key.is_empty()) {
        (true, _) if !hidden.is_empty() => {
            (hidden, "published, every UPDATE and DELETE of the application would fail")
        }
        (_, false) if strict => (in_key, "published, every UPDATE and DELETE of the application would fail"),
        (_, false) => (in_key, "the stream has no key of its rows"),
        _ => return,
    };
    let what = format!(
        "generated columns of {name} are part of what tells its rows apart, and not published: {}; {harm}",
        columns.join(", ")
    );
    findings.table(
        name,
        Severity::Error,
        Code::GeneratedColumn,
        what,
        without_generated(table, &columns, around),
    );
}

/// An identity without these columns, or their publishing.
fn without_generated(table: &Table, columns: &[&str], around: &Surroundings<'_>) -> Option<String> {
    let (root, entity) = (&table.root, quote::entity(&table.root.name));
    let free = |index: &&Index| {
        index.nullable.is_empty() && !index.columns.iter().any(|column| columns.contains(&column.as_str()))
    };
    let other = root.candidates().into_iter().find(free);
    let whole = around.wanted.full_identity.contains(&root.name);
    match other {
        Some(index) if !whole && index.primary => {
            Some(format!("alter table {entity} replica identity default"))
        }
        Some(index) if !whole => Some(format!(
            "alter table {entity} replica identity using index {}",
            quote::identifier(&index.name)
        )),
        _ => {
            let stored =
                |name: &str| root.generated.iter().any(|column| column.name == name && column.stored);
            let possible = around.server.version >= 18
                && around.publication.is_some()
                && columns.iter().all(|name| stored(name));
            let publication = quote::identifier(around.wanted.publication);
            possible
                .then(|| format!("alter publication {publication} set (publish_generated_columns = stored)"))
        }
    }
}

fn full_identity(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) {
    let root = &table.root;
    if root.identity == ReplicaIdentity::Full {
        return;
    }
    let hidden = root.unpublished(table, around);
    let mut what = format!(
        "a mapping needs whole old rows of {}, to name its documents or to see what a deleted row was, and the \
         replica identity gives the key alone",
        root.name
    );
    let harmful = around.server.version >= 18 && !hidden.is_empty();
    if harmful {
        what.push_str(&format!(
            "; it cannot be FULL as long as generated columns are not published ({}), or the application's own \
             UPDATE and DELETE would fail",
            hidden.join(", ")
        ));
    }
    let all = std::iter::once(&root.name).chain(
        table.leaves.iter().filter(|leaf| leaf.identity != ReplicaIdentity::Full).map(|leaf| &leaf.name),
    );
    let fix = (!harmful).then(|| replica_identity_full(all));
    findings.table(&root.name, Severity::Error, Code::NotFullIdentity, what, fix);
}

pub(super) fn replica_identity_full<'a>(names: impl Iterator<Item = &'a EntityName>) -> String {
    let statements = names.map(|name| format!("alter table {} replica identity full", quote::entity(name)));
    statements.collect::<Vec<_>>().join("; ")
}

/// Parents and children, in both senses.
fn relatives(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) {
    let name = &table.root.name;
    if let Some(mapped) = table.ancestors.iter().find(|ancestor| around.wanted.tables.contains(ancestor)) {
        let what = format!(
            "{name} is a partition of {mapped}, which is mapped too: all changes come under that name; map one of \
             the two"
        );
        findings.table(name, Severity::Error, Code::Partition, what, None);
    }
    if table.children {
        let what = format!(
            "other tables inherit from {name}: their rows are no rows of it, neither in a backfill nor in the \
             stream; map them too if they are wanted"
        );
        findings.table(name, Severity::Warning, Code::Inheritance, what, None);
    }
}
