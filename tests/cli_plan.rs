//! `plugin build`, `plugin inspect`, `check` and `plan` with a real plugin and a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{process::Output, time::Duration};

use anabranch::{
    model::EntityName,
    state::{Store, StoredMapping},
};
use serde_json::Value;
use testkit::{Database, Host, guests::Guest};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
const MAPPING: &str = "public.products:product-search:search";

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// A host whose directory has the plugin `product-search`, and a database with its table.
async fn shop(version: &str) -> (Host, Database) {
    let database = testkit::shared().unwrap().create_database().await.unwrap();
    database
        .execute(
            "create table public.products (id bigint primary key, name text not null, description text, \
             price numeric not null, active boolean not null, tags text[], attributes jsonb)",
        )
        .await
        .unwrap();
    let host = Host::new(BINARY).unwrap();
    host.config(&format!(
        "[source]\nurl = \"{}\"\nslot = \"{}\"\npublication = \"{}\"\n[plugins]\ncache_dir = \"cache\"\n\
         [sink.search]\nkind = \"sqlite\"\npath = \"search.db\"\n",
        database.url, database.name, database.name
    ))
    .unwrap();
    let guest = Guest::new("plugins/product-search").version(version);
    tokio::task::block_in_place(|| host.plugin("product-search", &guest)).unwrap();
    (host, database)
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_a_ready_source_and_changes_nothing() {
    let (host, database) = shop("1.4.0").await;
    let output = host.run(&["check", "--json"]).unwrap();
    let shape = json(&output);
    assert_eq!(output.status.code(), Some(0), "{shape:#}");
    assert_eq!((&shape["ok"], &shape["plugins"][0]["version"]), (&Value::Bool(true), &"1.4.0".into()));
    assert_eq!(shape["mappings"][0]["name"], MAPPING);
    assert_eq!(shape["mappings"][0]["destination"], "products");
    let left = "select (select count(*) from pg_namespace where nspname = 'anabranch') \
                + (select count(*) from pg_publication) \
                + (select count(*) from pg_replication_slots where database = current_database())";
    assert_eq!(database.query_text(&format!("select ({left})::text")).await.unwrap(), "0");
    assert!(!host.path("search.db").exists());

    let inspected = host.run(&["plugin", "inspect", "plugins/product-search.wasm", "--json"]).unwrap();
    let shape = json(&inspected);
    assert_eq!(inspected.status.code(), Some(0), "{shape:#}");
    assert_eq!(
        (&shape["description"]["name"], &shape["kind"]),
        (&"product-search".into(), &"transform".into())
    );
    assert_eq!(shape["verdict"], "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_a_missing_table_and_the_one_that_was_meant() {
    let (host, database) = shop("1.4.0").await;
    database.execute("alter table public.products rename to \"Products\"").await.unwrap();
    let output = host.run(&["check", "--json"]).unwrap();
    let shape = json(&output);
    assert_eq!(output.status.code(), Some(1), "{shape:#}");
    let findings = shape["findings"].as_array().unwrap();
    let table = findings.iter().find(|finding| finding["code"] == "table-missing").unwrap();
    let message = table["message"].as_str().unwrap();
    assert!(message.contains("public.products") && message.contains("public.Products"), "{message}");
}

/// Stores the mapping as `run` would, with `change` made to its identity.
async fn store(database: &Database, change: impl FnOnce(&mut Value)) {
    let client = database.connect().await.unwrap();
    let store = Store::new(database.name.as_str());
    store.upgrade(&client).await.unwrap();
    let mut identity = serde_json::json!({
        "route": { "entity": "public.products", "sink": "search", "sink_kind": "sqlite", "destination": "products" },
        "transform": { "name": "product-search", "version": "1.4.0", "sha256": "00" },
        "inputs": { "tables": [], "depends_on": [], "wants_deletes": false, "names_ids": false }
    });
    change(&mut identity);
    let products = EntityName::new("public", "products");
    let mapping =
        StoredMapping { built: 1, ..StoredMapping::new(MAPPING, products, 0, identity.to_string()) };
    store.save_mapping(&client, &mapping).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_tells_new_rebuild_and_refused() {
    let (host, database) = shop("1.5.0").await;
    let output = host.run(&["plan", "--json"]).unwrap();
    let shape = json(&output);
    assert_eq!(output.status.code(), Some(0), "{shape:#}");
    assert_eq!((&shape["changes"], &shape["mappings"][0]["action"]), (&Value::Bool(true), &"new".into()));
    assert_eq!(shape["mappings"][0]["backfill"], true);

    store(&database, |_| ()).await;
    let shape = json(&host.run(&["plan", "--json"]).unwrap());
    assert_eq!(shape["mappings"][0]["action"], "rebuild", "{shape:#}");
    assert_eq!(shape["mappings"][0]["reasons"][0], "product-search 1.4.0 → 1.5.0");

    store(&database, |identity| identity["transform"]["version"] = "1.5.0".into()).await;
    let output = host.run(&["plan", "--json"]).unwrap();
    let shape = json(&output);
    assert_eq!(shape["mappings"][0]["action"], "refused", "{shape:#}");
    assert_eq!(output.status.code(), Some(1));
    let reason = shape["mappings"][0]["reasons"][0].as_str().unwrap();
    assert!(reason.contains("product-search 1.5.0 has other bytes") && reason.contains("bump"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_works_until_it_is_told_to_stop_and_plan_finds_no_change_then() {
    let (mut host, database) = shop("1.4.0").await;
    database
        .execute("insert into public.products select i, 'p' || i, null, 1.5, true from generate_series(1, 50) as i")
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        host.start().unwrap();
        testkit::wait_for("the backfill to complete", Duration::from_secs(60), || {
            let status = host.status()?;
            Ok(status["mappings"][0]["built"] == 1 && status["backfills"][0]["status"] == "complete")
        })
        .unwrap();
        let ended = host.terminate(Duration::from_secs(30)).unwrap();
        assert_eq!(ended.code(), Some(0), "{}", host.log());
    });
    let said = host.run(&["plan"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "no change\n");
    assert_eq!(said.status.code(), Some(0));
    database.drop_slots().await.unwrap();
}
