//! Metrics that count: a known load comes to exactly these numbers.

use testkit::{shop::PRODUCT_DOCUMENTS, shop::insert_products};

use super::{
    scene::{Scene, hostile, mended, products},
    web::Web,
};

const ROWS: u64 = 230;

#[tokio::test(flavor = "multi_thread")]
async fn a_known_load_is_counted_exactly() {
    let mut scene = Scene::new(ROWS, 1).await;
    scene.config(
        "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n[backfill]\n\
         chunk_size = 100\n[[map]]\nname = \"a \\\"b\\\\c\"\ntransform = \"product-search\"\n",
    );
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    let table = [("entity", "public.products")];
    let mapping = [("mapping", "a \"b\\c"), ("sink", "out")];
    let done = web
        .wait_metrics("the backfill to be counted", |metrics| {
            metrics.get("backfill_runs_completed_total", &table) == Some(1.0)
                && metrics.get("mapping_built_generation", &mapping) == Some(1.0)
        })
        .await;
    assert_eq!(done.value("backfill_rows_total", &table), ROWS as f64);
    assert_eq!(done.value("backfill_chunks_total", &table), 3.0);
    assert_eq!(done.value("backfill_overtaken_rows_total", &table), 0.0);
    assert!(done.value("backfill_read_bytes_total", &table) > ROWS as f64 * 100.0);
    assert!(done.sum("backfill_stage_seconds_total", &table) > 0.0);
    assert_eq!(done.value("documents_delivered_total", &mapping), ROWS as f64);
    assert_eq!(done.sum("changes_received_total", &[]), 0.0, "nothing was changed");
    assert_eq!(done.sum("backfill_runs", &[]), 0.0, "nothing runs any more");

    scene.client.batch_execute(&insert_products(1001, 1120, 3)).await.unwrap();
    scene.client.batch_execute("update public.products set stock = 7 where id <= 40").await.unwrap();
    scene.client.batch_execute("delete from public.products where id <= 9").await.unwrap();
    scene.client.batch_execute("update public.orders set gift = true").await.unwrap();
    let changes = 120.0 + 40.0 + 9.0;
    let live = web
        .wait_metrics("the changes to be counted", |metrics| {
            metrics.value("documents_delivered_total", &mapping) >= ROWS as f64 + changes
                && metrics.value("received_bytes_total", &[]) > 120.0 * 200.0
                && metrics.value("lag_bytes", &[]) < 1e9
                && metrics.value("mapping_queued_bytes", &mapping) == 0.0
                && metrics.value("lag_seconds", &[]) == 0.0
        })
        .await;
    let kind = |kind| live.value("changes_received_total", &[("kind", kind)]);
    assert_eq!(
        (kind("insert"), kind("update"), kind("delete")),
        (120.0, 40.0, 9.0),
        "and none of a table not mapped"
    );
    assert_eq!(live.value("transactions_received_total", &[]), 3.0);
    assert_eq!(live.value("documents_delivered_total", &mapping), ROWS as f64 + changes);
    let batches = live.sum("batches_total", &[]);
    assert!((1.0..=3.0).contains(&batches), "{batches} batches");
    let tried = |stage: &str| live.value(&format!("{stage}_seconds_count"), &[("outcome", "ok")]);
    assert!(tried("transform") >= 2.0 && tried("delivery") >= 2.0);
    assert_eq!(live.get("failures_total", &[]), None);
    assert_eq!((live.value("leader", &[]), live.value("terms_total", &[])), (1.0, 1.0));
    assert_eq!(
        (live.value("mapping_works", &mapping), live.value("mapping_generation", &mapping)),
        (1.0, 1.0)
    );
    assert_eq!(live.value("build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert!(live.value("plugin_instances", &[("plugin", "product-search")]) >= 1.0);
    assert_eq!(live.value("plugin_instances_discarded_total", &[("plugin", "product-search")]), 0.0);
    assert_eq!(live.sum("slot_wal_status", &[]), 1.0);
    assert!(live.value("slot_retained_bytes", &[]) > 0.0);
    assert!(live.value("confirmed_lsn", &[]) > 0.0 && live.value("stream_silence_seconds", &[]) < 60.0);
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_traps_is_counted() {
    let mut scene = Scene::new(20, 1).await;
    let map = "[[map]]\nname = \"bad\"\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n";
    let sink = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n";
    scene.config(&format!("{sink}{map}[plugins.hostile]\nconfig = {{ behave = \"trap\" }}\n"));
    scene.plugin("hostile", &hostile());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    let trapped = web
        .wait_metrics("a trap", |metrics| {
            metrics
                .get("plugin_instances_discarded_total", &[("plugin", "hostile")])
                .is_some_and(|n| n >= 1.0)
        })
        .await;
    assert!(
        trapped.sum("failures_total", &[("mapping", "bad"), ("stage", "transform")]) >= 1.0,
        "{trapped:#?}"
    );
    assert!(trapped.value("transform_seconds_count", &[("mapping", "bad"), ("outcome", "failed")]) >= 1.0);
    scene.plugin("hostile", &mended());
    let works = web
        .wait_metrics("the mended plugin", |metrics| {
            metrics.get("mapping_works", &[("mapping", "bad")]) == Some(1.0)
                && metrics.get("mapping_built_generation", &[("mapping", "bad")]) == Some(2.0)
        })
        .await;
    let versions = works.names();
    assert!(versions.contains(&"anabranch_plugin_instances"), "{versions:?}");
    assert_eq!(works.get("plugin_instances", &[("plugin", "hostile"), ("version", "1.0.0")]), None, "gone");
}

/// A value that is stored out of line and not updated does not come along the stream.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_read_again_are_counted() {
    let mut scene = Scene::new(5, 1).await;
    scene.config("[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n");
    scene.plugin("product-search", &products());
    let large = "alter table public.products alter description set storage external;
        update public.products set description = repeat('x', 5000), active = true";
    scene.client.batch_execute(large).await.unwrap();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.client.batch_execute("update public.products set name = 'n' where id <= 3").await.unwrap();
    let metrics =
        web.wait_metrics("three rows", |metrics| metrics.sum("rows_reread_total", &[]) >= 3.0).await;
    assert_eq!(metrics.value("rows_reread_total", &[("entity", "public.products")]), 3.0);
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}
