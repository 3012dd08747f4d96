//! Judges the partitions of a mapped table: the server goes by each one's own replica identity, while the
//! stream describes all of them by the table's.

use super::{
    Code, Findings, Severity,
    facts::{Index, Storage, Table},
    table::{Identity, Surroundings, replica_identity_full, same_columns},
};
use crate::postgres::quote;

/// How many partitions a sentence names.
const NAMED: usize = 3;

pub(super) fn judge(table: &Table, around: &Surroundings<'_>, healthy: bool, findings: &mut Findings) {
    kinds(table, findings);
    // Where the table itself has no identity, that comes first.
    if healthy {
        without_identity(table, findings);
        other_identity(table, findings);
        generated(table, around, findings);
    }
}

fn named(leaves: &[&Storage]) -> String {
    let mut text: Vec<String> = leaves.iter().take(NAMED).map(|leaf| leaf.name.to_string()).collect();
    if leaves.len() > NAMED {
        text.push(format!("{} more", leaves.len() - NAMED));
    }
    text.join(", ")
}

fn kinds(table: &Table, findings: &mut Findings) {
    let name = &table.root.name;
    let foreign: Vec<_> = table.leaves.iter().filter(|leaf| leaf.kind != 'r').collect();
    if !foreign.is_empty() {
        let what = format!(
            "partitions of {name} are foreign tables, whose changes are not in this server's WAL: {}; Postgres \
             refuses to publish it with them",
            named(&foreign)
        );
        findings.table(name, Severity::Error, Code::Partition, what, None);
    }
    let unlogged: Vec<_> =
        table.leaves.iter().filter(|leaf| leaf.kind == 'r' && leaf.persistence != 'p').collect();
    if !unlogged.is_empty() {
        let what = format!(
            "partitions of {name} are not logged, so that their changes are missing: {}",
            named(&unlogged)
        );
        let fix = unlogged.iter().map(|leaf| format!("alter table {} set logged", quote::entity(&leaf.name)));
        let fix = fix.collect::<Vec<_>>().join("; ");
        findings.table(name, Severity::Error, Code::NotLogged, what, Some(fix));
    }
}

fn tables(table: &Table) -> impl Iterator<Item = &Storage> {
    table.leaves.iter().filter(|leaf| leaf.kind == 'r')
}

fn without_identity(table: &Table, findings: &mut Findings) {
    let name = &table.root.name;
    let without: Vec<_> =
        tables(table).filter(|leaf| matches!(leaf.effective_identity(), Identity::Nothing(..))).collect();
    if without.is_empty() {
        return;
    }
    let what = format!(
        "partitions of {name} have nothing to tell their rows by: {}; published, every UPDATE and DELETE of the \
         application that meets them would fail",
        named(&without)
    );
    let root = table.root.effective_identity();
    let fix = without.iter().map(|leaf| follow(&root, leaf)).collect::<Vec<_>>().join("; ");
    findings.table(name, Severity::Error, Code::NoIdentity, what, Some(fix));
}

/// Makes a partition's identity that of its table.
fn follow(root: &Identity<'_>, leaf: &Storage) -> String {
    let same =
        |of_root: &Index| leaf.indexes.iter().find(|index| usable(index) && same_columns(index, of_root));
    match root {
        Identity::Columns(of_root) => match same(of_root) {
            Some(index) if index.primary => {
                format!("alter table {} replica identity default", quote::entity(&leaf.name))
            }
            Some(index) => format!(
                "alter table {} replica identity using index {}",
                quote::entity(&leaf.name),
                quote::identifier(&index.name)
            ),
            None => replica_identity_full(std::iter::once(&leaf.name)),
        },
        Identity::Full | Identity::Nothing(..) => replica_identity_full(std::iter::once(&leaf.name)),
    }
}

fn usable(index: &Index) -> bool {
    index.immediate && !index.partial && index.nullable.is_empty()
}

fn other_identity(table: &Table, findings: &mut Findings) {
    let name = &table.root.name;
    let root = table.root.effective_identity();
    let differs = |leaf: &&Storage| match (&root, leaf.effective_identity()) {
        // All of the old row has what is asked for.
        (_, Identity::Full | Identity::Nothing(..)) | (Identity::Nothing(..), _) => false,
        (Identity::Full, Identity::Columns(_)) => true,
        (Identity::Columns(of_root), Identity::Columns(of_leaf)) => !same_columns(of_root, of_leaf),
    };
    let others: Vec<_> = tables(table).filter(differs).collect();
    if others.is_empty() {
        return;
    }
    let what = format!(
        "partitions of {name} have another replica identity than the table, so that their old rows lack columns: {}",
        named(&others)
    );
    let fix = others.iter().map(|leaf| follow(&root, leaf)).collect::<Vec<_>>().join("; ");
    findings.table(name, Severity::Error, Code::PartitionIdentity, what, Some(fix));
}

/// From 18 on, as for the table itself.
fn generated(table: &Table, around: &Surroundings<'_>, findings: &mut Findings) {
    if around.server.version < 18 {
        return;
    }
    let name = &table.root.name;
    let broken = |leaf: &&Storage| {
        matches!(leaf.effective_identity(), Identity::Full) && !leaf.unpublished(table, around).is_empty()
    };
    // Where the table is FULL itself, it has its own finding.
    if matches!(table.root.effective_identity(), Identity::Full) {
        return;
    }
    let broken: Vec<_> = tables(table).filter(broken).collect();
    if broken.is_empty() {
        return;
    }
    let what = format!(
        "partitions of {name} are FULL and have generated columns that are not published: {}; published, every \
         UPDATE and DELETE of the application that meets them would fail",
        named(&broken)
    );
    let fix = broken.iter().map(|leaf| follow(&table.root.effective_identity(), leaf));
    let useful: Vec<_> = fix.filter(|fix| !fix.ends_with("full")).collect();
    let fix = (!useful.is_empty()).then(|| useful.join("; "));
    findings.table(name, Severity::Error, Code::GeneratedColumn, what, fix);
}
