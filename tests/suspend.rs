//! Suspending an installation: nobody streams, whoever starts a host, until it is resumed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::process::Output;

use scene::{BINARY, SOON, Scene, products};
use serde_json::Value;
use testkit::{Host, shop::PRODUCT_DOCUMENTS, wait_until};

/// A host whose only mapping is built.
async fn built() -> Scene {
    let mut scene = Scene::new(500, 1).await;
    scene.config(&sink(&scene.host));
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene
}

fn sink(host: &Host) -> String {
    format!("[sink.out]\nkind = \"sqlite\"\npath = \"{}\"\n", host.path("out.db").display())
}

fn run(host: &Host, arguments: &[&str]) -> (i32, Value) {
    let arguments = [arguments, &["--json"]].concat();
    let output: Output = tokio::task::block_in_place(|| host.run(&arguments).unwrap());
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}{errors}"));
    (output.status.code().unwrap(), value)
}

async fn publications(scene: &Scene) -> String {
    let query =
        format!("select count(*)::text from pg_publication where pubname = '{}'", scene.database.name);
    scene.text(&query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_streams_through_restarts_until_it_is_resumed() {
    let mut scene = built().await;
    let mut standby = Host::new(BINARY).unwrap();
    scene.config_of(&standby, &sink(&scene.host));
    tokio::task::block_in_place(|| standby.plugin("product-search", &products())).unwrap();
    standby.start().unwrap();
    standby.wait_log(0, "waiting for the lead", SOON).await.unwrap();

    let (code, said) = run(&scene.host, &["suspend", "--reason", "upgrade to 18"]);
    assert_eq!((code, &said["new"], &said["settled"]), (0, &true.into(), &true.into()), "{said}");
    assert_eq!((scene.slot("active").await, publications(&scene).await.as_str()), (None, "0"));
    scene.host.wait_log(0, "suspended (upgrade to 18)", SOON).await.unwrap();
    standby.wait_log(0, "suspended (upgrade to 18)", SOON).await.unwrap();
    let (code, said) = run(&scene.host, &["suspend"]);
    assert_eq!((code, &said["new"], &said["reason"]), (0, &false.into(), &"upgrade to 18".into()), "{said}");

    // What a slot or a replica identity would be in the way of; and rows that no stream will tell of.
    scene.client.batch_execute("delete from public.products where id % 3 = 0").await.unwrap();
    assert!(scene.host.terminate(SOON).unwrap().success());
    scene.released().await;
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    scene.host.wait_log(from, "suspended (upgrade to 18)", SOON).await.unwrap();
    assert!(scene.host.is_running().unwrap() && standby.is_running().unwrap());
    let status = scene.host.status().unwrap();
    assert_eq!(status["suspended"]["reason"], "upgrade to 18", "{status}");
    let (code, said) = run(&scene.host, &["backfill", "wait", "--timeout", "1s"]);
    assert_eq!((code, &said["result"]), (3, &"timeout".into()), "{said}");
    assert!(said["notes"][0].as_str().unwrap().contains("`anabranch resume`"), "{said}");
    let (code, said) = run(&scene.host, &["plan"]);
    assert_eq!(code, 0, "{said}");
    assert!(said["notices"][0].as_str().unwrap().contains("suspended since"), "{said}");
    assert_eq!((scene.slot("active").await, publications(&scene).await.as_str()), (None, "0"));

    let (code, said) = run(&scene.host, &["resume", "--purge"]);
    assert_eq!((code, &said["resumed"]), (0, &true.into()), "{said}");
    scene.streaming().await;
    // Nothing of the deleted rows is left: the destination was emptied.
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.client.batch_execute("update public.products set name = 'Again' where id % 7 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let left = scene.text("select count(*)::text from anabranch.suspension").await;
    assert_eq!(left, "0", "the term has taken it up");
    let (code, said) = run(&scene.host, &["resume"]);
    assert_eq!((code, &said["resumed"]), (0, &false.into()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_slot_nothing_is_missed_and_nothing_built_again() {
    let mut scene = built().await;
    let (code, said) = run(&scene.host, &["suspend", "--keep-slot"]);
    assert_eq!((code, &said["settled"], &said["keep_slot"]), (0, &true.into(), &true.into()), "{said}");
    assert_eq!(
        (scene.slot("active").await.as_deref(), publications(&scene).await.as_str()),
        (Some("false"), "1")
    );
    scene.host.wait_log(0, "the slot keeps all WAL", SOON).await.unwrap();
    scene.table("products").note_writes().unwrap();
    let changes = "update public.products set name = 'Meanwhile' where id <= 20; \
                   delete from public.products where id between 31 and 35";
    scene.client.batch_execute(changes).await.unwrap();
    let (code, _) = run(&scene.host, &["resume", "--purge"]);
    assert_eq!(code, 0);
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let (written, _) = scene.table("products").written().unwrap();
    assert!((1..=20).contains(&written), "{written}: no more than what was changed");
    let generations = "select max(generation)::text from anabranch.mapping";
    assert_eq!(scene.text(generations).await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn c100_a_kept_slot_that_is_lost_is_noticed_at_the_resumption() {
    let mut scene = built().await;
    assert_eq!(run(&scene.host, &["suspend", "--keep-slot"]).0, 0);
    let drop_it = format!("select pg_drop_replication_slot('{}')::text", scene.database.name);
    scene.client.query(&drop_it, &[]).await.unwrap();
    scene.client.batch_execute("update public.products set name = 'Unseen' where id % 2 = 0").await.unwrap();
    assert_eq!(run(&scene.host, &["resume"]).0, 0);
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.host.wait_log(0, "every mapped table is backfilled again", SOON).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_needs_no_host_and_outlives_a_kill() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    scene.released().await;
    assert_eq!(run(&scene.host, &["suspend", "--keep-slot"]).0, 0);
    assert_eq!(scene.slot("active").await.as_deref(), Some("false"));
    // It goes further, and never back.
    let (code, said) = run(&scene.host, &["suspend"]);
    assert_eq!((code, &said["keep_slot"]), (0, &false.into()), "{said}");
    assert_eq!((scene.slot("active").await, publications(&scene).await.as_str()), (None, "0"));
    assert_eq!(run(&scene.host, &["suspend", "--keep-slot"]).1["keep_slot"], false);

    scene.client.batch_execute("delete from public.products where id % 5 = 0").await.unwrap();
    assert_eq!(run(&scene.host, &["resume", "--purge"]).0, 0);
    scene.host.start().unwrap();
    scene.host.wait_log(0, "resumed: a new slot is made", SOON).await.unwrap();
    scene.host.kill().unwrap();
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_let_go_is_named_and_waited_for() {
    let mut scene = built().await;
    scene.host.signal("STOP").unwrap();
    let (code, said) = run(&scene.host, &["suspend", "--timeout", "4s"]);
    assert_eq!((code, &said["settled"]), (3, &false.into()), "{said}");
    assert!(said["leader"].as_str().unwrap().contains("server process"), "{said}");
    scene.host.signal("CONT").unwrap();
    let (code, said) = run(&scene.host, &["suspend"]);
    assert_eq!((code, &said["settled"]), (0, &true.into()), "{said}");
    assert_eq!(scene.slot("active").await, None);
    assert!(scene.host.terminate(SOON).unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_else_on_the_slot_is_named() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    scene.released().await;
    let slot = scene.database.name.clone();
    let mut other = tokio::task::block_in_place(|| {
        let binaries = testkit::shared().unwrap().binaries();
        std::process::Command::new(binaries.program("pg_recvlogical"))
            .args(["--dbname", &scene.database.url, "--slot", &slot, "--start", "--file", "/dev/null"])
            .args(["--option", "proto_version=2", "--option", &format!("publication_names={slot}")])
            .spawn()
            .unwrap()
    });
    wait_until("the other to stream", SOON, async || {
        Ok(scene.slot("active").await.as_deref() == Some("true"))
    })
    .await
    .unwrap();
    let (code, said) = run(&scene.host, &["suspend"]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(code, 1, "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("pg_terminate_backend"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_others_are_left_alone() {
    let scene = built().await;
    let other = testkit::shared().unwrap().create_database().await.unwrap();
    let url = other.url.as_str();
    let ask = |slot: &str, url: &str| {
        let (code, said) = run(&scene.host, &["suspend", "--timeout", "5s", "--url", url, "--slot", slot]);
        (code, said.to_string())
    };
    // The slot of a host that runs, by a wrong database.
    let ours = scene.database.name.clone();
    let (code, said) = ask(&ours, url);
    assert!(code == 2 && said.contains(&format!("is a slot of database {ours}")), "{said}");
    assert_eq!(scene.slot("active").await.as_deref(), Some("true"));
    assert!(!scene.host.log().contains("ends the walsender"), "{}", scene.host.log_tail());
    // One of the same database that no host has made, one of another plugin, and a standby's.
    let names = ["pgoutput", "test_decoding"].map(|plugin| format!("{ours}_{plugin}"));
    for (name, plugin) in names.iter().zip(["pgoutput", "test_decoding"]) {
        let make = format!("select pg_create_logical_replication_slot('{name}', '{plugin}')");
        scene.client.batch_execute(&make).await.unwrap();
    }
    let physical = format!("{ours}_standby");
    scene
        .client
        .batch_execute(&format!("select pg_create_physical_replication_slot('{physical}')"))
        .await
        .unwrap();
    for name in names.iter().chain([&physical]) {
        let (code, said) = ask(name, &scene.database.url);
        assert!(code == 2 && said.contains("somebody else's"), "{name}: {said}");
        let there = format!("select count(*)::text from pg_replication_slots where slot_name = '{name}'");
        assert_eq!(scene.text(&there).await, "1", "{name}");
        scene.client.batch_execute(&format!("select pg_drop_replication_slot('{name}')")).await.unwrap();
    }
    // A name that was mistyped.
    let (code, said) = run(&scene.host, &["suspend", "--url", url, "--slot", "mistyped"]);
    assert_eq!((code, &said["known"]), (0, &false.into()), "{said}");
}
