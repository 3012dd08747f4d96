//! Two hosts of one installation: one leads, the other waits and takes over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::time::Duration;

use scene::{BINARY, SOON, Scene, products};
use testkit::{Host, shop::PRODUCT_DOCUMENTS, shop::insert_products, wait_until};

/// Two hosts with one destination; the first leads and is done with the backfill.
async fn pair() -> (Scene, Host) {
    let mut scene = Scene::new(500, 1).await;
    let sink = format!("[sink.out]\nkind = \"sqlite\"\npath = \"{}\"\n", scene.host.path("out.db").display());
    let mut standby = Host::new(BINARY).unwrap();
    scene.config(&sink);
    scene.config_of(&standby, &sink);
    scene.plugin("product-search", &products());
    tokio::task::block_in_place(|| standby.plugin("product-search", &products())).unwrap();
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    standby.start().unwrap();
    standby.wait_log(0, "waiting for the lead", SOON).await.unwrap();
    (scene, standby)
}

#[tokio::test(flavor = "multi_thread")]
async fn c063_the_standby_takes_over_when_the_leader_is_killed() {
    let (mut scene, mut standby) = pair().await;
    assert!(!standby.log().contains(" leading"), "one at a time");
    scene.client.batch_execute(&insert_products(1001, 3000, 3)).await.unwrap();
    scene.host.kill().unwrap();
    scene.client.batch_execute("update public.products set name = 'Amid' where id % 7 = 0").await.unwrap();
    standby.wait_log(0, "streaming", Duration::from_secs(30)).await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c063_a_leader_that_was_asleep_finds_that_it_leads_no_more() {
    let (mut scene, mut standby) = pair().await;
    let from = scene.host.log_length();
    let old = scene.leader().await.unwrap();
    scene.host.signal("STOP").unwrap();
    scene.text(&format!("select pg_terminate_backend({old})::text")).await;
    scene.client.batch_execute("update public.products set name = 'Asleep' where id % 3 = 0").await.unwrap();
    // The sleeper's walsender holds the slot until the server ends it, which nobody answers: never two streams.
    standby.wait_log(0, "streaming", SOON).await.unwrap();
    scene.streaming().await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let pid = scene.slot("active_pid").await;
    let new = scene.leader().await;
    assert!(new.is_some_and(|new| new != old));

    scene.host.signal("CONT").unwrap();
    scene.host.wait_log(from, "the term ended", SOON).await.unwrap();
    scene.host.wait_log(from, "waiting for the lead", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set name = 'Awake' where id % 5 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    assert_eq!(
        (scene.slot("active_pid").await, scene.leader().await),
        (pid, new),
        "the standby still streams"
    );
    assert!(scene.host.is_running().unwrap() && standby.is_running().unwrap());

    // And back again.
    standby.kill().unwrap();
    wait_until("the first to lead again", SOON, async || {
        Ok(scene.leader().await.is_some_and(|pid| Some(pid) != new))
    })
    .await
    .unwrap();
    scene.client.batch_execute("delete from public.products where id % 11 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

/// A file that is being copied, or has become something else.
fn spoil(host: &Host) -> Vec<u8> {
    let file = host.path("plugins/product-search.wasm");
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn c089_half_a_plugin_takes_nothing_away_from_leader_and_standby() {
    let (mut scene, mut standby) = pair().await;
    let whole = spoil(&scene.host);
    spoil(&standby);
    scene.host.wait_log(0, "a plugin was not taken up", SOON).await.unwrap();
    standby.wait_log(0, "a plugin was not taken up", SOON).await.unwrap();
    scene.client.batch_execute("delete from public.products where id % 13 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let from = scene.host.log_length();
    std::fs::write(scene.host.path("plugins/product-search.wasm"), &whole).unwrap();
    scene.host.wait_log(from, "the plugin directory changed", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set name = 'Whole' where id % 17 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    assert_eq!(
        scene.text("select generation::text from anabranch.mapping").await,
        "1",
        "nothing is built again"
    );

    // Its own file is still half.
    scene.host.kill().unwrap();
    standby.wait_log(0, "streaming", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set name = 'Half' where id % 19 = 0").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}
