//! Preflight on real servers: each finding is seen, its fix is run as it stands, and the finding is gone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use anabranch::{
    model::EntityName,
    postgres::{ConnectSettings, Finding, PreflightRequest, Purpose, Severity, preflight},
};
use testkit::{Cluster, ClusterOptions, Database, shared};

/// What is asked for; findings of the server that a test is not about are left out.
struct Ask<'a> {
    url: &'a str,
    slot: &'a str,
    publication: &'a str,
    managed: bool,
    tables: Vec<EntityName>,
    full: Vec<EntityName>,
}

impl<'a> Ask<'a> {
    fn new(database: &'a Database, tables: &[&str]) -> Self {
        Self {
            url: &database.url,
            slot: &database.name,
            publication: &database.name,
            managed: true,
            tables: tables.iter().map(|name| name.parse().unwrap()).collect(),
            full: Vec::new(),
        }
    }

    fn with_role(mut self, url: &'a str) -> Self {
        self.url = url;
        self
    }

    fn unmanaged(mut self) -> Self {
        self.managed = false;
        self
    }

    fn slot(mut self, slot: &'a str) -> Self {
        self.slot = slot;
        self
    }

    fn all_full(mut self) -> Self {
        self.full.clone_from(&self.tables);
        self
    }

    async fn findings(&self) -> Vec<Finding> {
        let settings = ConnectSettings::parse(self.url, |_| None).unwrap();
        let client = settings.connect(Purpose::Control).await.unwrap();
        let request = PreflightRequest {
            slot: self.slot,
            publication: self.publication,
            managed: self.managed,
            tables: &self.tables,
            full_identity: &self.full,
        };
        preflight(&client, &request).await.unwrap()
    }

    /// Code by code: `code` of the installation, `code table` of a table.
    async fn codes(&self) -> BTreeSet<String> {
        let code = |finding: Finding| match finding.table {
            Some(table) => format!("{} {table}", finding.code),
            None => finding.code.to_owned(),
        };
        self.findings().await.into_iter().map(code).collect()
    }

    /// Runs every fix, as the superuser.
    async fn mend(&self, database: &Database) {
        for finding in self.findings().await {
            database.execute(&finding.fix.expect(&finding.what)).await.unwrap();
        }
    }
}

fn set(codes: &[&str]) -> BTreeSet<String> {
    codes.iter().map(|&code| code.to_owned()).collect()
}

async fn database(sql: &str) -> Database {
    let database = shared().unwrap().create_database().await.unwrap();
    database.execute(sql).await.unwrap();
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_ready_has_no_findings_and_stays_as_it_is() {
    let database = database("create table t (id int primary key, body text)").await;
    assert_eq!(Ask::new(&database, &["public.t", "public.t"]).findings().await, []);
    let made = "select (select count(*) from pg_publication) + (select count(*) from pg_namespace where nspname = 'anabranch')
        + (select count(*) from pg_replication_slots where slot_name = current_database())";
    assert_eq!(database.query_text(&format!("select ({made})::text")).await.unwrap(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn c030_tables_without_a_usable_identity_are_refused_and_the_fix_helps() {
    let database = database(
        r#"create schema "We""ird";
        create table "We""ird"."T 1" (a int);
        create table no_key (id int, b int not null, unique (b));
        create table nothing (id int primary key); alter table nothing replica identity nothing;
        create table nothing_at_all (a int); alter table nothing_at_all replica identity nothing;
        create table later (id int primary key deferrable);
        create table gone (id int not null); create unique index gone_i on gone (id);
        alter table gone replica identity using index gone_i; drop index gone_i"#,
    )
    .await;
    let mut ask = Ask::new(
        &database,
        &["public.no_key", "public.nothing", "public.nothing_at_all", "public.later", "public.gone"],
    );
    ask.tables.push(EntityName::new("We\"ird", "T 1"));
    let found = ask.codes().await;
    assert_eq!(
        found,
        set(&[
            "no-identity \"We\"\"ird\".\"T 1\"",
            "no-identity public.gone",
            "no-identity public.no_key",
            "no-identity public.nothing",
            "no-identity public.nothing_at_all",
            "key-deferrable public.later",
        ])
    );
    assert!(ask.findings().await.iter().all(|finding| finding.severity == Severity::Error));
    ask.mend(&database).await;
    // What is left is a warning: FULL with a deferrable key.
    let left = ask.findings().await;
    assert_eq!((left.len(), left[0].code, left[0].severity), (1, "key-deferrable", Severity::Warning));
    // And so it is: published, the application's own UPDATE works.
    database
        .execute(
            r#"create publication p for table no_key, nothing, nothing_at_all, later, gone, "We""ird"."T 1";
            update no_key set b = 1; update nothing set id = 1; update nothing_at_all set a = 1;
            update later set id = 1; update gone set id = 1; update "We""ird"."T 1" set a = 1"#,
        )
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c028_c029_keys_of_full_tables() {
    let database = database(
        "create table by_unique (id int not null unique); alter table by_unique replica identity full;
        create table nullable (id int unique, b int); alter table nullable replica identity full;
        create table partial (id int not null); create unique index on partial (id) where id > 0;
        alter table partial replica identity full;
        create table none (a int); alter table none replica identity full",
    )
    .await;
    let ask = Ask::new(&database, &["public.by_unique", "public.nullable", "public.partial", "public.none"]);
    let found = ask.codes().await;
    assert_eq!(found, set(&["key-nullable public.nullable", "no-key public.none", "no-key public.partial"]));
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);
    let full = "select count(*)::text from pg_class where relnamespace = 'public'::regnamespace and relreplident = 'f'";
    assert_eq!(database.query_text(full).await.unwrap(), "4", "a key of FULL tables leaves them FULL");
}

#[tokio::test(flavor = "multi_thread")]
async fn c033_the_identitys_index_is_the_key_and_that_is_told() {
    let database = database(
        "create table t (id int primary key, code text not null); create unique index t_code on t (code);
        alter table t replica identity using index t_code;
        create table same (id int primary key); create unique index same_i on same (id);
        alter table same replica identity using index same_i",
    )
    .await;
    let ask = Ask::new(&database, &["public.t", "public.same"]);
    let found = ask.findings().await;
    assert_eq!(
        (found.len(), found[0].code, found[0].severity),
        (1, "key-is-identity-index", Severity::Warning)
    );
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_old_rows_are_asked_for_where_a_mapping_needs_them() {
    let database = database(
        "create table t (id int primary key); create table p (id int primary key) partition by range (id);
        create table p1 partition of p for values from (0) to (10)",
    )
    .await;
    let ask = Ask::new(&database, &["public.t", "public.p"]).all_full();
    assert_eq!(ask.codes().await, set(&["not-full-identity public.p", "not-full-identity public.t"]));
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_table_is_refused_by_name() {
    let database = database(
        r#"create table orders (id int primary key); create schema shop; create table shop."Products" (id int primary key);
        create view v as select 1; create materialized view m as select 1; create sequence s;
        create unlogged table u (id int primary key); create schema anabranch; create table anabranch.run (id int primary key)"#,
    )
    .await;
    let ask = Ask::new(
        &database,
        &[
            "public.v",
            "public.m",
            "public.s",
            "public.u",
            "anabranch.run",
            "pg_catalog.pg_class",
            "shop.orders",
            "shop.products",
            "public.order",
            "x.y",
        ],
    );
    let found = ask.findings().await;
    let of =
        |table: &str| found.iter().find(|finding| finding.table == Some(table.parse().unwrap())).unwrap();
    for table in ["public.v", "public.m", "public.s", "anabranch.run", "pg_catalog.pg_class"] {
        assert_eq!(of(table).code, "not-a-table", "{table}");
    }
    assert_eq!(of("public.u").fix.as_deref(), Some("alter table \"public\".\"u\" set logged"));
    assert!(of("shop.orders").what.ends_with("schema `public` has one of this name: public.orders"));
    assert!(of("shop.products").what.ends_with("there is shop.Products"));
    assert!(of("public.order").what.ends_with("did you mean public.orders?"));
    assert!(of("x.y").what.ends_with("does not exist in this database"));
    assert_eq!(found.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_missing_rights_are_findings_of_their_table_or_of_the_installation() {
    let database = database("create table theirs (id int primary key); create schema hid; create table hid.t (id int primary key)").await;
    let role = format!("{}_r\"x", database.name);
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    database
        .execute(&format!(
            "create role {quoted} login; revoke create on schema public from public;
            create schema own authorization {quoted}; create table own.mine (id int primary key);
            alter table own.mine owner to {quoted};
            create table secure (id int primary key); alter table secure enable row level security;
            grant select on secure to {quoted}"
        ))
        .await
        .unwrap();
    let url = database.url.replace("postgres@", &format!("{}@", role.replace('"', "%22")));
    let ask = Ask::new(&database, &["public.theirs", "hid.t", "own.mine", "public.secure"]).with_role(&url);
    let found = ask.codes().await;
    assert_eq!(
        found,
        set(&[
            "replication-right",
            "state-schema",
            "publication-right",
            "select-right public.theirs",
            "select-right hid.t",
            "row-security public.secure",
            "table-owner public.theirs",
            "table-owner public.secure",
            "table-owner hid.t",
        ])
    );
    let reading = ask.findings().await;
    let hidden =
        reading.iter().find(|finding| finding.code == "select-right" && finding.what.contains("hid.t"));
    let grants =
        format!("grant usage on schema \"hid\" to {quoted}; grant select on \"hid\".\"t\" to {quoted}");
    assert_eq!(hidden.unwrap().fix.as_deref(), Some(grants.as_str()));
    for finding in reading {
        // Membership in a superuser is the fix of this test alone: hand the table over instead.
        let fix = match (finding.code, finding.table) {
            ("table-owner", Some(table)) => format!("alter table {table} owner to {quoted}"),
            _ => finding.fix.unwrap(),
        };
        database.execute(&fix).await.unwrap();
    }
    assert_eq!(ask.findings().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_have_identities_of_their_own() {
    let database = database(
        "create table p (id int primary key, code int not null) partition by range (id);
        create table p1 partition of p for values from (0) to (10);
        create table p2 partition of p for values from (10) to (20);
        create table p3 partition of p for values from (20) to (30);
        alter table p2 replica identity nothing; create unique index p3_code on p3 (code);
        alter table p3 replica identity using index p3_code;
        create table f (id int primary key) partition by range (id);
        create table f1 partition of f for values from (0) to (10); alter table f replica identity full",
    )
    .await;
    let ask = Ask::new(&database, &["public.p", "public.f", "public.p1"]);
    assert_eq!(
        ask.codes().await,
        set(&[
            "no-identity public.p",
            "partition-identity public.p",
            "partition-identity public.f",
            "partition public.p1"
        ])
    );
    let ask = Ask::new(&database, &["public.p", "public.f"]);
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);
    let sql = "select string_agg(relreplident::text, '' order by relname) from pg_class
        where relname in ('p1', 'p2', 'p3', 'f1')";
    assert_eq!(database.query_text(sql).await.unwrap(), "fddd");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_not_ours_is_looked_through() {
    let database = database(
        "create table t (id int primary key, body text); create table other (id int primary key);
        create table p (id int primary key) partition by range (id);
        create table p1 partition of p for values from (0) to (10)",
    )
    .await;
    let ask = Ask::new(&database, &["public.t", "public.p"]).unmanaged();
    assert_eq!(ask.codes().await, set(&["publication-missing"]));
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);

    let name = &database.name;
    database
        .execute(&format!(
            "drop publication {name}; create publication {name} for table other, p with (publish = 'insert, delete')"
        ))
        .await
        .unwrap();
    let found = ask.codes().await;
    assert_eq!(
        found,
        set(&["publication-content", "publication-content public.p", "publication-content public.t"])
    );
    ask.mend(&database).await;
    assert_eq!(ask.findings().await, []);

    if shared().unwrap().major() >= 15 {
        database.execute(&format!("alter publication {name} set table t (body), p")).await.unwrap();
        assert_eq!(ask.codes().await, set(&["publication-content public.t"]));
        ask.mend(&database).await;
        assert_eq!(ask.findings().await, []);
    }
    database
        .execute(&format!("drop publication {name}; create publication {name} for all tables"))
        .await
        .unwrap();
    assert_eq!(Ask::new(&database, &["public.t"]).unmanaged().findings().await, []);
    assert_eq!(Ask::new(&database, &["public.t"]).codes().await, set(&["publication-content"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn c019_names_and_foreign_slots_are_refused() {
    let (one, two) = (database("create table t (id int primary key)").await, database("").await);
    for bad in ["Abc", "a-b", "", &"x".repeat(64)] {
        assert_eq!(Ask::new(&one, &["public.t"]).slot(bad).codes().await, set(&["name"]), "{bad}");
    }
    let name = format!("{}_taken", two.name);
    two.execute(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await.unwrap();
    let ask = Ask::new(&one, &["public.t"]).slot(&name);
    assert_eq!(ask.codes().await, set(&["slot-foreign"]));
    assert_eq!(Ask::new(&two, &[]).slot(&name).findings().await, [], "where it is at home, it is ours");
    two.execute(&format!("select pg_drop_replication_slot('{name}')")).await.unwrap();
    one.execute(&format!("select pg_create_physical_replication_slot('{name}')")).await.unwrap();
    assert_eq!(ask.codes().await, set(&["slot-foreign"]));
    ask.mend(&one).await;
    assert_eq!(ask.findings().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn inheritance_is_told() {
    let database = database("create table t (id int primary key); create table child () inherits (t)").await;
    assert_eq!(Ask::new(&database, &["public.t"]).codes().await, set(&["inheritance public.t"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn c013_a_server_that_is_not_set_up_is_told_all_at_once() {
    let options = ClusterOptions::new()
        .setting("wal_level", "replica")
        .setting("max_replication_slots", "0")
        .setting("max_wal_senders", "0")
        .setting("wal_sender_timeout", "0");
    let cluster = Cluster::start(options).unwrap();
    let maintenance = cluster.create_database().await.unwrap();
    maintenance.execute("create database plain encoding 'SQL_ASCII' template template0").await.unwrap();
    let database = Database { name: "plain".to_owned(), url: cluster.url("plain") };
    let ask = Ask::new(&database, &[]);
    assert_eq!(
        ask.codes().await,
        set(&["encoding", "wal-level", "slots-full", "wal-senders-full", "server-setting"])
    );
    let severities: Vec<_> = ask.findings().await.iter().map(|finding| finding.severity).collect();
    assert!(severities.is_sorted_by(|a, b| a >= b), "errors come first");

    // `alter system` refuses to be one of several statements.
    for finding in ask.findings().await {
        for statement in finding.fix.unwrap().split("; ") {
            database.execute(statement).await.unwrap();
        }
    }
    cluster.restart(testkit::Stop::Fast).unwrap();
    assert_eq!(ask.codes().await, set(&["encoding"]));
    let utf8 = Database { name: "plain_utf8".to_owned(), url: cluster.url("plain_utf8") };
    assert_eq!(Ask::new(&utf8, &[]).findings().await, []);

    maintenance
        .execute("create database latin encoding 'LATIN1' template template0 locale 'C'")
        .await
        .unwrap();
    let latin = Database { name: "latin".to_owned(), url: cluster.url("latin") };
    let found = Ask::new(&latin, &[]).findings().await;
    assert_eq!((found.len(), found[0].code, found[0].severity), (1, "encoding", Severity::Warning));
}
