//! The judging of facts that no server at hand has.

use std::collections::HashMap;

use super::{
    facts::{Generated, Index, Publication, Server, Storage, Table},
    table::Surroundings,
    *,
};
use crate::model::ReplicaIdentity;

fn server(version: u32) -> Server {
    Server {
        version,
        settings: HashMap::from([("wal_level".to_owned(), "logical".to_owned())]),
        standby: false,
        database: "shop".to_owned(),
        encoding: "UTF8".to_owned(),
        role: "ana".to_owned(),
        may_replicate: true,
        replication_group: None,
        may_create: true,
        state_schema: None,
        slots: 0,
        wal_senders: 0,
        slot: None,
    }
}

fn generated_table(identity: ReplicaIdentity, stored: bool) -> Table {
    let primary = Index {
        name: "t_pkey".to_owned(),
        primary: true,
        identity: false,
        immediate: true,
        partial: false,
        columns: vec!["id".to_owned()],
        nullable: Vec::new(),
    };
    Table {
        root: Storage {
            oid: 1,
            name: EntityName::new("public", "t"),
            kind: 'r',
            persistence: 'p',
            identity,
            indexes: vec![primary],
            generated: vec![Generated { name: "sum".to_owned(), stored }],
        },
        schema_usage: true,
        select: true,
        row_security: false,
        owned: true,
        owner: "ana".to_owned(),
        has_id_column: true,
        children: false,
        ancestors: Vec::new(),
        leaves: Vec::new(),
        listed: false,
        published: false,
        column_list: None,
    }
}

fn judge(version: u32, table: &Table, stored_published: bool, full: bool) -> Vec<Finding> {
    let entities = [table.root.name.clone()];
    let wanted = PreflightRequest {
        slot: "s",
        publication: "p",
        managed: true,
        tables: &entities,
        full_identity: if full { &entities } else { &[] },
    };
    let publication = stored_published.then(|| Publication {
        owned: true,
        owner: "ana".to_owned(),
        all_tables: false,
        whole_schemas: false,
        via_root: true,
        missing_operations: Vec::new(),
        stored_generated: true,
    });
    let server = server(version);
    let mut findings = Findings::default();
    let around = Surroundings { server: &server, publication: publication.as_ref(), wanted: &wanted };
    table::judge(table, &around, &mut findings);
    findings.sorted()
}

#[test]
fn c016_full_identity_with_a_generated_column_is_refused_from_18_on() {
    let full = generated_table(ReplicaIdentity::Full, true);
    assert_eq!(judge(17, &full, false, false), []);
    let found = judge(18, &full, false, false);
    assert_eq!((found.len(), found[0].code, found[0].severity), (1, "generated-column", Severity::Error));
    assert_eq!(found[0].fix.as_deref(), Some("alter table \"public\".\"t\" replica identity default"));
    assert_eq!(judge(18, &full, true, false), [], "stored ones may be published");
    let virtual_column = generated_table(ReplicaIdentity::Full, false);
    assert_eq!(judge(18, &virtual_column, true, false)[0].code, "generated-column");
    assert_eq!(judge(18, &generated_table(ReplicaIdentity::Default, true), false, false), []);
}

#[test]
fn c016_a_need_for_full_does_not_lead_into_the_trap() {
    let plain = generated_table(ReplicaIdentity::Default, true);
    let fixes = |version| {
        judge(version, &plain, false, true).into_iter().map(|finding| finding.fix).collect::<Vec<_>>()
    };
    assert_eq!(fixes(17), [Some("alter table \"public\".\"t\" replica identity full".to_owned())]);
    assert_eq!(fixes(18), [None]);
}

#[test]
fn findings_are_json_with_stable_words() {
    let finding = Finding {
        severity: Severity::Error,
        code: Code::KeyNullable.as_str(),
        table: Some(EntityName::new("public", "t")),
        what: "w".to_owned(),
        fix: None,
    };
    let json = serde_json::to_string(&finding).unwrap();
    assert_eq!(
        json,
        r#"{"severity":"error","code":"key-nullable","table":"public.t","what":"w","fix":null}"#
    );
    let whole = Finding { table: None, ..finding };
    assert!(serde_json::to_string(&whole).unwrap().contains(r#""table":null"#));
}
