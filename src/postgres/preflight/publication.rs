//! Judges the publication as a whole, and what it has of a table.

use super::{
    Code, Findings, PreflightRequest, Severity,
    facts::{Publication, Server, Table},
};
use crate::{model::ReplicaIdentity, postgres::quote};

pub(super) fn judge(
    publication: Option<&Publication>,
    server: &Server,
    wanted: &PreflightRequest<'_>,
    findings: &mut Findings,
) {
    match publication {
        None if wanted.managed => {
            if !server.may_create {
                let what = format!(
                    "role {} may not create a publication in database {}",
                    server.role, server.database
                );
                let fix = format!(
                    "grant create on database {} to {}",
                    quote::identifier(&server.database),
                    quote::identifier(&server.role)
                );
                findings.installation(Severity::Error, Code::PublicationRight, what, Some(fix));
            }
        }
        None => missing(wanted, findings),
        Some(found) if wanted.managed => managed(found, server, wanted, findings),
        Some(found) => unmanaged(found, wanted, findings),
    }
}

fn missing(wanted: &PreflightRequest<'_>, findings: &mut Findings) {
    let tables: Vec<_> = wanted.tables.iter().map(quote::entity).collect();
    let tables = if tables.is_empty() { String::new() } else { format!(" for table {}", tables.join(", ")) };
    let fix = format!(
        "create publication {}{tables} with (publish_via_partition_root = true)",
        quote::identifier(wanted.publication)
    );
    let what = format!(
        "publication `{}` does not exist, and Anabranch is told not to manage it",
        wanted.publication
    );
    findings.installation(Severity::Error, Code::PublicationMissing, what, Some(fix));
}

fn managed(found: &Publication, server: &Server, wanted: &PreflightRequest<'_>, findings: &mut Findings) {
    let name = quote::identifier(wanted.publication);
    if !found.owned {
        let what = format!(
            "publication `{}` belongs to {}, and only its owner can alter it",
            wanted.publication, found.owner
        );
        let fix = format!("grant {} to {}", quote::identifier(&found.owner), quote::identifier(&server.role));
        findings.installation(Severity::Error, Code::PublicationRight, what, Some(fix));
    }
    if found.all_tables || found.whole_schemas {
        let scope = if found.all_tables { "all tables" } else { "whole schemas" };
        let what = format!(
            "publication `{}` is for {scope}, and one that Anabranch manages lists its tables; drop it, choose \
             another name, or tell Anabranch not to manage it",
            wanted.publication
        );
        let fix = format!("drop publication {name}");
        findings.installation(Severity::Error, Code::PublicationContent, what, Some(fix));
    }
}

fn unmanaged(found: &Publication, wanted: &PreflightRequest<'_>, findings: &mut Findings) {
    if found.missing_operations.is_empty() {
        return;
    }
    let what =
        format!("publication `{}` leaves out {}", wanted.publication, found.missing_operations.join(" and "));
    let fix = format!(
        "alter publication {} set (publish = 'insert, update, delete, truncate')",
        quote::identifier(wanted.publication)
    );
    findings.installation(Severity::Error, Code::PublicationContent, what, Some(fix));
}

/// Whether a publication that we do not manage has the table as its mapping needs it.
pub(super) fn membership(
    table: &Table,
    found: &Publication,
    wanted: &PreflightRequest<'_>,
    findings: &mut Findings,
) {
    let (name, entity) = (quote::identifier(wanted.publication), quote::entity(&table.root.name));
    let mut error = |what: String, fix: String| {
        findings.table(&table.root.name, Severity::Error, Code::PublicationContent, what, Some(fix));
    };
    if table.root.kind == 'p' && !found.via_root {
        error(
            format!(
                "publication `{}` names the partitions of {} instead of the table",
                wanted.publication, table.root.name
            ),
            format!("alter publication {name} set (publish_via_partition_root = true)"),
        );
    } else if !table.published {
        error(
            format!("publication `{}` does not have table {}", wanted.publication, table.root.name),
            format!("alter publication {name} add table {entity}"),
        );
    }
    let Some(list) = &table.column_list else { return };
    let identity: &[String] = match table.root.identity {
        ReplicaIdentity::Full => &[],
        ReplicaIdentity::Nothing => return,
        ReplicaIdentity::Default => index_columns(table, |index| index.primary),
        ReplicaIdentity::Index => index_columns(table, |index| index.identity),
    };
    if table.root.identity == ReplicaIdentity::Full || identity.iter().any(|column| !list.contains(column)) {
        error(
            format!(
                "publication `{}` lists columns of {} without all that the replica identity has, so that the \
                 application's own UPDATE and DELETE fail; drop the table from it and add it again whole",
                wanted.publication, table.root.name
            ),
            format!(
                "alter publication {name} drop table {entity}; alter publication {name} add table {entity}"
            ),
        );
    }
}

fn index_columns(table: &Table, which: impl Fn(&super::facts::Index) -> bool) -> &[String] {
    table.root.indexes.iter().find(|index| which(index)).map_or(&[], |index| index.columns.as_slice())
}
