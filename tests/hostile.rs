//! Guests that misbehave, in the whole: each stops its own mapping, within its limits and with an error that names
//! it, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::time::Duration;

use scene::{MENDED_DOCUMENTS, SOON, Scene, hostile, mended, orders, products};
use testkit::{
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, insert_orders, insert_products},
    wait_until,
};

/// The most memory that the host may ever hold, unoptimised build and compiler included.
const MEMORY_KIB: u64 = 400 << 10;

/// `bad` is the hostile mapping of the products, `beside` a good one of the same table, `good` one of another.
async fn scene(behave: &str, only: &str, rows: u64) -> Scene {
    let scene = Scene::new(rows, rows).await;
    let only = if only.is_empty() { String::new() } else { format!(", only = \"{only}\"") };
    scene.config(&format!(
        "[plugins.hostile]\nconfig = {{ behave = \"{behave}\"{only} }}\n\
         [sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
         [[map]]\nname = \"bad\"\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n\
         [[map]]\nname = \"beside\"\ntransform = \"product-search\"\ndestination = \"beside\"\n\
         [[map]]\nname = \"good\"\ntransform = \"order-summary\"\ndestination = \"good\"\n",
    ));
    scene.plugin("hostile", &hostile());
    scene.plugin("product-search", &products());
    scene.plugin("order-summary", &orders());
    scene
}

async fn others_are_right(scene: &Scene) {
    scene.settled(PRODUCT_DOCUMENTS, "beside").await;
    scene.settled(ORDER_DOCUMENTS, "good").await;
}

/// Replaces the hostile file by a good version, and waits until nothing is missing.
async fn mend(scene: &mut Scene) {
    scene.plugin("hostile", &mended());
    scene.settled(MENDED_DOCUMENTS, "bad").await;
    others_are_right(scene).await;
    let built = || {
        let mapping = scene.mapping("bad");
        mapping["built"] == mapping["generation"] && mapping["status"] == "running"
    };
    wait_until("the mapping to be built", SOON, async || Ok(built())).await.unwrap();
    let peak = scene.host.peak_memory_kib().unwrap();
    assert!(peak < MEMORY_KIB, "{peak} KiB");
    assert!(scene.host.is_running().unwrap());
    assert_eq!(scene.mapping("bad")["version"], "1.0.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_loops_in_a_backfill_stops_neither_its_table_nor_others_nor_the_link() {
    let mut scene = scene("loop", "", 500).await;
    scene.host.start().unwrap();
    // One table at a time is read, and the one with the hostile mapping comes first.
    others_are_right(&scene).await;
    let error = scene.error_of("bad").await;
    assert!(error.contains("plugin hostile 1.0.0") && error.contains("public.products"), "{error}");
    assert!(error.contains("at LSN"), "{error}");
    assert!(scene.host.log().contains("plugin hostile 1.0.0 on public.products at LSN"));

    // Longer than the three seconds after which the server would end a link that is not answered.
    let pid = scene.slot("active_pid").await;
    let replies = "select coalesce(max(extract(epoch from reply_time)), 0)::float8 from pg_stat_replication
        where pid = (select active_pid from pg_replication_slots where database = current_database())";
    let first: f64 = scene.client.query_one(replies, &[]).await.unwrap().get(0);
    wait_until("replies for more than six seconds", SOON, async || {
        Ok(scene.client.query_one(replies, &[]).await?.get::<_, f64>(0) > first + 6.5)
    })
    .await
    .unwrap();
    assert_eq!(scene.slot("active_pid").await, pid, "the same link");

    let live = insert_products(1001, 1050, 7) + &insert_orders(1001, 1050, 7);
    scene.client.batch_execute(&live).await.unwrap();
    others_are_right(&scene).await;
    assert_eq!(scene.table("bad").count().unwrap(), 0);
    mend(&mut scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_hostile_guest_holds_the_slot_at_its_own_position() {
    for behave in ["loop", "allocate", "trap", "stack", "too-few", "not-json", "huge"] {
        let mut scene = scene(behave, "boom", 50).await;
        scene.host.start().unwrap();
        others_are_right(&scene).await;
        let before = scene.text("select pg_current_wal_lsn()::text").await;
        let boom = insert_products(2001, 2001, 1).replace("'SKU-'", "'boom-'")
            + "update public.products set sku = 'boom', name = 'boom' where id = 2001;";
        scene.client.batch_execute(&boom).await.unwrap();
        let after = scene.text("select pg_current_wal_lsn()::text").await;
        let error = scene.error_of("bad").await;
        for part in ["plugin hostile 1.0.0", "public.products", "at LSN 0/"] {
            assert!(error.contains(part), "{behave}: {error}");
        }
        let log = scene.host.wait_log(0, "transform failed", SOON).await.unwrap();
        for part in ["hostile 1.0.0", "public.products", "lsn"] {
            assert!(log.contains(part), "{behave}: {log}");
        }

        scene.client.batch_execute(&insert_orders(3001, 3010, 1)).await.unwrap();
        others_are_right(&scene).await;
        let good_is_ahead = format!(
            "select (m.accepted > '{after}')::text from anabranch.mapping m
             where installation = current_database() and name = 'good'"
        );
        wait_until("the good mapping's position to be saved", SOON, async || {
            Ok(scene.client.query_one(&good_is_ahead, &[]).await?.get::<_, String>(0) == "true")
        })
        .await
        .unwrap_or_else(|error| panic!("{behave}: {error:#}\n{}", scene.host.log_tail()));
        let held = format!("confirmed_flush_lsn < '{after}'::pg_lsn and restart_lsn <= '{before}'::pg_lsn");
        assert_eq!(scene.slot(&held).await.as_deref(), Some("true"), "{behave}");
        assert!(scene.host.is_running().unwrap(), "{behave}");

        mend(&mut scene).await;
        let moves = format!("confirmed_flush_lsn >= '{after}'::pg_lsn");
        wait_until("the slot to move on", SOON, async || {
            Ok(scene.slot(&moves).await.as_deref() == Some("true"))
        })
        .await
        .unwrap();
        scene.host.terminate(Duration::from_secs(30)).unwrap();
        scene.database.drop_slots().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_table_whose_only_mapping_fails_leaves_its_turn_to_others() {
    let mut scene = Scene::new(300, 300).await;
    scene.config(
        "[plugins.hostile]\nconfig = { behave = \"trap\" }\n[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
         [[map]]\nname = \"bad\"\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n\
         [[map]]\nname = \"good\"\ntransform = \"order-summary\"\ndestination = \"good\"\n\
         [backfill]\nmax_concurrent = 1\n",
    );
    scene.plugin("hostile", &hostile());
    scene.plugin("order-summary", &orders());
    scene.host.start().unwrap();
    scene.settled(ORDER_DOCUMENTS, "good").await;
    scene.error_of("bad").await;
    // The plugin is mended while the host is down: what is stored is enough.
    scene.host.kill().unwrap();
    scene.plugin("hostile", &mended());
    scene.host.start().unwrap();
    scene.settled(MENDED_DOCUMENTS, "bad").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_left_its_run_is_not_taken_for_built_after_a_restart() {
    let mut scene = scene("trap", "", 400).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    scene.host.wait_log(0, "leaves its table's backfill", SOON).await.unwrap();
    wait_until("the good mapping to be built", SOON, async || Ok(scene.mapping("beside")["built"] == 1))
        .await
        .unwrap();
    assert_eq!(scene.mapping("bad")["built"], 0);
    scene.host.kill().unwrap();
    scene.host.start().unwrap();
    scene.streaming().await;
    mend(&mut scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_log_lines_is_dammed() {
    let mut scene = scene("flood", "", 50).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    wait_until("the flooding mapping to be built", SOON, async || Ok(scene.mapping("bad")["built"] == 1))
        .await
        .unwrap();
    assert!(scene.host.log_length() < 1 << 20, "{} bytes", scene.host.log_length());
    assert!(scene.host.peak_memory_kib().unwrap() < MEMORY_KIB);
}
