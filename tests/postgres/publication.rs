use anabranch::{
    model::EntityName,
    postgres::{
        ErrorKind, PublicationPlan, Purpose, drop_publication, ensure_publication, published_tables,
        unusable_identities, withdraw_unusable,
    },
};

use super::{settings, shared_database};

fn names(list: &[&str]) -> Vec<EntityName> {
    list.iter().map(|name| name.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_managed_publication_has_exactly_the_mapped_tables() {
    let (_, database) = shared_database().await;
    database
        .execute(
            r#"create schema "Odd.Schema";
               create table public.a (id int primary key);
               create table public.b (id int primary key);
               create table "Odd.Schema"."T x, table y" (id int primary key);
               create table public.p (id int primary key) partition by range (id);
               create table public.p1 partition of public.p for values from (0) to (10)"#,
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let ensure = async |tables: &[&str]| {
        let tables = names(tables);
        let plan = PublicationPlan { name: "Pub é", managed: true, tables: &tables, ..Default::default() };
        ensure_publication(&client, &plan).await.unwrap()
    };
    let odd = r#""Odd.Schema"."T x, table y""#;
    assert!(ensure(&["public.a", odd, "public.p"]).await.created);
    let mut published = published_tables(&client, "Pub é").await.unwrap();
    published.sort();
    assert_eq!(published, names(&[odd, "public.a", "public.p"]));
    assert_eq!(ensure(&["public.a", odd, "public.p"]).await, Default::default());
    let change = ensure(&["public.b", "public.p"]).await;
    assert_eq!(change.added, names(&["public.b"]));
    assert_eq!(change.dropped, names(&[odd, "public.a"]));
    assert_eq!(published_tables(&client, "Pub é").await.unwrap(), names(&["public.b", "public.p"]));
    assert!(drop_publication(&client, "Pub é").await.unwrap());
    assert!(!drop_publication(&client, "Pub é").await.unwrap());
    let none = PublicationPlan { name: "empty", managed: true, tables: &[], ..Default::default() };
    assert!(ensure_publication(&client, &none).await.unwrap().created);
}

#[tokio::test]
async fn somebody_elses_publication_is_left_alone() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.a (id int primary key); create table public.b (id int primary key);
             create publication theirs for table public.a, public.b with (publish_via_partition_root = true);
             create publication partly for table public.a with (publish = 'insert')",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let tables = names(&["public.a"]);
    let ensure = async |name: &str, managed: bool, tables: &[EntityName]| {
        ensure_publication(&client, &PublicationPlan { name, managed, tables, ..Default::default() }).await
    };
    let error = ensure("theirs", true, &tables).await.unwrap_err();
    assert!(error.to_string().contains("manage_publication = false"), "{error}");
    assert_eq!(ensure("theirs", false, &tables).await.unwrap(), Default::default());
    assert_eq!(published_tables(&client, "theirs").await.unwrap().len(), 2);
    assert!(!drop_publication(&client, "theirs").await.unwrap());
    let error = ensure("partly", false, &tables).await.unwrap_err();
    assert!(error.to_string().contains("leaves out"), "{error}");
    let error = ensure("missing", false, &tables).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    let error = ensure("theirs", false, &names(&["public.c"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Table);
}

#[tokio::test]
async fn c030_tables_whose_application_would_fail_are_not_published() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.keyless (id int);
             create table public.nothing (id int primary key); alter table public.nothing replica identity nothing;
             create table public.full_row (id int); alter table public.full_row replica identity full;
             create table public.deferred (id int primary key deferrable);
             create table public.indexed (id int not null);
             create unique index indexed_id on public.indexed (id);
             alter table public.indexed replica identity using index indexed_id;
             create table public.root (id int primary key) partition by range (id);
             create table public.leaf partition of public.root for values from (0) to (10);
             alter table public.leaf replica identity nothing",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let all = names(&["keyless", "nothing", "full_row", "deferred", "indexed", "root"]);
    let found = unusable_identities(&client, "p", &all).await.unwrap();
    let relations: Vec<_> = found.iter().map(|bad| bad.relation.to_string()).collect();
    assert_eq!(relations, ["public.deferred", "public.keyless", "public.nothing", "public.leaf"]);
    for table in ["keyless", "nothing", "root"] {
        let tables = names(&[table]);
        let plan = PublicationPlan { name: "p", managed: true, tables: &tables, ..Default::default() };
        let error = ensure_publication(&client, &plan).await.unwrap_err();
        assert!(error.to_string().contains("alter table"), "{error}");
        assert_eq!(published_tables(&client, "p").await.unwrap(), []);
    }
    // The application goes on.
    database
        .execute("insert into public.keyless values (1); update public.keyless set id = 2")
        .await
        .unwrap();
}

#[tokio::test]
async fn c030_tables_that_lose_their_identity_are_taken_out_of_a_publication_of_ours() {
    let (_, database) = shared_database().await;
    database
        .execute(
            "create table public.good (id int primary key); create table public.keyless (id int primary key);
             create table public.unlisted (id int);
             create table public.root (id int primary key) partition by range (id);
             create table public.leaf partition of public.root for values from (0) to (10);
             create table public.leaf_2 partition of public.root for values from (10) to (20);
             create table public.theirs (id int primary key); create publication theirs for table public.theirs",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let all = names(&["public.good", "public.keyless", "public.root"]);
    let plan = PublicationPlan { name: "p", managed: true, tables: &all, ..Default::default() };
    assert!(ensure_publication(&client, &plan).await.unwrap().created);
    let asked = names(&["public.good", "public.keyless", "public.root", "public.theirs", "public.unlisted"]);
    assert_eq!(withdraw_unusable(&client, "p", &asked).await.unwrap(), []);
    database
        .execute(
            "alter table public.keyless drop constraint keyless_pkey;
             alter table public.leaf replica identity nothing; alter table public.leaf_2 replica identity nothing;
             alter table public.theirs drop constraint theirs_pkey; insert into public.keyless values (1)",
        )
        .await
        .unwrap();
    let update = "update public.keyless set id = 2";
    assert!(database.execute(update).await.is_err(), "its application is in trouble");
    let withdrawn = withdraw_unusable(&client, "p", &asked).await.unwrap();
    let withdrawn: Vec<_> = withdrawn.iter().map(|table| table.entity.to_string()).collect();
    assert_eq!(withdrawn, ["public.keyless", "public.root"]);
    assert_eq!(published_tables(&client, "p").await.unwrap(), names(&["public.good"]));
    database.execute(update).await.unwrap();
    for name in ["theirs", "nothing"] {
        assert_eq!(withdraw_unusable(&client, name, &asked).await.unwrap(), [], "{name}");
    }
    assert_eq!(published_tables(&client, "theirs").await.unwrap(), names(&["public.theirs"]));
}

#[tokio::test]
async fn c016_a_generated_column_in_the_identity_breaks_writes_from_18_on() {
    let (cluster, database) = shared_database().await;
    database
        .execute(
            "create table public.t (id int primary key, a int, b int generated always as (a * 2) stored);
             alter table public.t replica identity full; insert into public.t values (1, 1)",
        )
        .await
        .unwrap();
    let client = settings(&database.url).connect(Purpose::Control).await.unwrap();
    let tables = names(&["public.t"]);
    let plan = PublicationPlan { name: "p", managed: true, tables: &tables, ..Default::default() };
    let made = ensure_publication(&client, &plan).await;
    if cluster.major() >= 18 {
        let error = made.unwrap_err();
        assert!(error.to_string().contains("generated column"), "{error}");
    } else {
        assert!(made.unwrap().created);
    }
    database.execute("update public.t set a = 2").await.unwrap();
}
