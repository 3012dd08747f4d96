use anabranch::{
    model::EntityName,
    postgres::{Finding, PreflightRequest, Purpose, Severity, preflight},
};
use testkit::ClusterOptions;

use super::{settings, shared_database, start};

async fn findings(url: &str, tables: &[&str], managed: bool) -> Vec<Finding> {
    let client = settings(url).connect(Purpose::Control).await.unwrap();
    let tables: Vec<EntityName> = tables.iter().map(|name| name.parse().unwrap()).collect();
    let request =
        PreflightRequest { slot: "s", publication: "p", managed, tables: &tables, full_identity: &[] };
    preflight(&client, &request).await.unwrap()
}

fn errors(findings: &[Finding]) -> Vec<(&'static str, Option<String>)> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    errors.map(|finding| (finding.code, finding.table.as_ref().map(ToString::to_string))).collect()
}

#[tokio::test]
async fn a_good_database_has_nothing_to_complain_of() {
    let (_, database) = shared_database().await;
    database.execute("create table public.t (id int primary key)").await.unwrap();
    assert_eq!(errors(&findings(&database.url, &["public.t"], true).await), []);
    let left =
        "select (select count(*) from pg_publication)::text || (select count(*) from pg_replication_slots
        where database = current_database())::text || (to_regnamespace('anabranch') is null)::text";
    assert_eq!(database.query_text(left).await.unwrap(), "00true", "nothing was made");
}

#[tokio::test]
async fn c016_c029_c030_tables_that_cannot_work_are_named_with_their_fix() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create schema \"Shop\"; create table \"Shop\".\"Items\" (id int primary key);
             create table public.keyless (id int);
             create table public.full_keyless (id int); alter table public.full_keyless replica identity full;
             create unlogged table public.scratch (id int primary key);
             create view public.seen as select 1 as id",
        )
        .await
        .unwrap();
    let all = ["public.keyless", "public.full_keyless", "public.scratch", "public.seen", "public.items"];
    let found = findings(&database.url, &all, true).await;
    let mut codes = errors(&found);
    codes.sort();
    let about = |name: &str| Some(name.to_owned());
    let expected = [
        ("identity", about("public.keyless")),
        ("key", about("public.full_keyless")),
        ("table", about("public.items")),
        ("table", about("public.seen")),
        ("unlogged", about("public.scratch")),
    ];
    assert_eq!(codes, expected);
    let text = |code: &str, word: &str| {
        assert!(
            found.iter().any(|finding| finding.code == code && finding.to_string().contains(word)),
            "{found:#?}"
        );
    };
    text("identity", "alter table \"public\".\"keyless\" add primary key");
    text("table", "is a view");
    text("table", "there is Shop.Items");
    text("unlogged", "set logged");
}

#[tokio::test]
async fn a_server_that_cannot_stream_says_why() {
    let options = ClusterOptions::new().setting("wal_level", "replica").setting("max_replication_slots", "0");
    let cluster = start(options).await;
    let database = cluster.create_database().await.unwrap();
    database
        .execute(
            "create table public.t (id int primary key); create role weak login; create role owner_of_t;
            alter table public.t owner to owner_of_t",
        )
        .await
        .unwrap();
    let url = format!("postgres://weak@127.0.0.1:{}/{}", cluster.port(), database.name);
    let found = findings(&url, &["public.t"], true).await;
    let mut codes = errors(&found);
    codes.sort();
    let about_t = Some("public.t".to_owned());
    let expected = [
        ("create-right", None),
        ("owner", about_t.clone()),
        ("replication-right", None),
        ("select-right", about_t),
        ("slots", None),
        ("wal-level", None),
    ];
    assert_eq!(codes, expected, "{found:#?}");
    for finding in found {
        assert!(!finding.fix.is_empty());
    }
}

#[tokio::test]
async fn row_security_is_told_instead_of_reading_too_little() {
    let (cluster, database) = shared_database().await;
    database
        .execute(&format!(
            "create table public.t (id int primary key); create table public.u (id int primary key);
             alter table public.t enable row level security; create role reader_{0} login;
             grant select on public.t, public.u to reader_{0}",
            database.name
        ))
        .await
        .unwrap();
    let url = format!("postgres://reader_{0}@127.0.0.1:{1}/{0}", database.name, cluster.port());
    let found = findings(&url, &["public.t", "public.u"], true).await;
    let told: Vec<_> = errors(&found).into_iter().filter(|(code, _)| *code == "row-security").collect();
    assert_eq!(told, [("row-security", Some("public.t".to_owned()))]);
}

#[tokio::test]
async fn c013_a_database_of_unknown_characters_is_refused() {
    let (cluster, database) = shared_database().await;
    let name = format!("{}_ascii", database.name);
    database
        .execute(&format!("create database {name} encoding 'SQL_ASCII' template template0"))
        .await
        .unwrap();
    let found = findings(&cluster.url(&name), &[], true).await;
    assert_eq!(errors(&found), [("encoding", None)]);
}

#[tokio::test]
async fn an_unmanaged_publication_must_have_the_tables_and_their_keys() {
    let (cluster, database) = shared_database().await;
    // Column lists came with 15.
    if cluster.major() < 15 {
        return;
    }
    database
        .execute(
            "create table public.t (id int primary key, v text); create table public.u (id int primary key);
            create publication p for table public.t (v)",
        )
        .await
        .unwrap();
    let found = findings(&database.url, &["public.t", "public.u"], false).await;
    let mut codes: Vec<_> = errors(&found).into_iter().map(|(code, _)| code).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["key-columns", "publication"], "{found:#?}");
}
