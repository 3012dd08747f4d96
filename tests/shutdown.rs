//! SIGTERM, whatever the host is doing: it ends within a limit with exit code 0, gives slot and lock back, and the
//! next start makes everything right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;

use std::time::{Duration, Instant};

use receiver::{Receiver, Reply};
use scene::{BINARY, MENDED_DOCUMENTS, SOON, Scene, hostile, mended, products};
use testkit::{Host, shop::PRODUCT_DOCUMENTS, wait_until};

/// How long an end may take where nothing is in the way; two cores are shared by several tests.
const LIMIT: Duration = Duration::from_secs(10);

const TO_SQLITE: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n";

async fn scene(rows: u64, rest: &str) -> Scene {
    let scene = Scene::new(rows, 1).await;
    scene.config(rest);
    scene.plugin("product-search", &products());
    scene
}

/// SIGTERM; ends with 0 within the limit and leaves nothing held.
async fn ends(scene: &mut Scene, limit: Duration) {
    let status = scene.host.terminate(limit);
    let status = status.unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    assert_eq!(status.code(), Some(0), "{}", scene.host.log_tail());
    scene.released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c097_while_idle() {
    let mut scene = scene(50, TO_SQLITE).await;
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    ends(&mut scene, LIMIT).await;
    scene.client.batch_execute("update public.products set name = 'Later' where id < 9").await.unwrap();
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c097_amid_a_backfill() {
    let rest = format!("{TO_SQLITE}[backfill]\nchunk_size = 50\n");
    let mut scene = scene(30_000, &rest).await;
    scene.host.start().unwrap();
    let table = scene.table("products");
    wait_until("the first documents", SOON, async || Ok(table.count()? > 0)).await.unwrap();
    ends(&mut scene, LIMIT).await;
    let built = "select built::text from anabranch.mapping where installation = current_database()";
    assert_eq!(scene.text(built).await, "0", "not amid a backfill");
    scene.host.start().unwrap();
    scene.host.wait_log(0, "goes on from its cursor", SOON).await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c097_while_a_sink_hangs_and_a_second_signal_ends_at_once() {
    let receiver = Receiver::start(|_, _| Reply::Hang).await;
    let hanging = format!(
        "[sink.out]\nkind = \"http\"\nurl = \"{}\"\ntimeout = \"10m\"\n[pipeline]\ndrain_limit = \"1s\"\n",
        receiver.url("/hook")
    );
    let mut scene = scene(20, &hanging).await;
    scene.host.start().unwrap();
    wait_until("the delivery that hangs", SOON, async || Ok(!receiver.received().is_empty())).await.unwrap();
    ends(&mut scene, LIMIT).await;
    assert!(scene.host.log().contains("the drain took too long"), "{}", scene.host.log_tail());

    scene.config(&hanging.replace("\"1s\"", "\"10m\""));
    let from = scene.host.log_length();
    let before = receiver.received().len();
    scene.host.start().unwrap();
    wait_until("the same again", SOON, async || Ok(receiver.received().len() > before)).await.unwrap();
    scene.host.signal("TERM").unwrap();
    scene.host.wait_log(from, "draining", SOON).await.unwrap();
    let began = Instant::now();
    let status = scene.host.terminate(LIMIT).unwrap();
    assert_eq!(status.code(), Some(143), "told twice");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn c097_while_waiting_for_the_lock() {
    let mut scene = scene(20, TO_SQLITE).await;
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let mut standby = Host::new(BINARY).unwrap();
    scene.config_of(&standby, TO_SQLITE);
    tokio::task::block_in_place(|| standby.plugin("product-search", &products())).unwrap();
    standby.start().unwrap();
    standby.wait_log(0, "waiting for the lead", SOON).await.unwrap();
    let status = standby.terminate(LIMIT).unwrap();
    assert_eq!(status.code(), Some(0), "{}", standby.log_tail());
    ends(&mut scene, LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c061_while_waiting_for_the_slot() {
    let mut scene = scene(20, TO_SQLITE).await;
    let writer = scene.database.connect().await.unwrap();
    writer.batch_execute("begin; update public.products set stock = 1 where id = 1").await.unwrap();
    let pid: i32 = writer.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    scene.host.start().unwrap();
    let line = scene.host.wait_log(0, "transaction open for", SOON).await.unwrap();
    assert!(line.contains(&pid.to_string()), "{line}");
    ends(&mut scene, LIMIT).await;
    assert_eq!(scene.slot("slot_name").await, None, "no slot is left");
    let senders = "select count(*)::text from pg_stat_activity where backend_type = 'walsender'
        and datname = current_database()";
    assert_eq!(scene.text(senders).await, "0", "nobody makes one any more");

    let from = scene.host.log_length();
    scene.host.start().unwrap();
    scene.host.wait_log(from, "transaction open for", SOON).await.unwrap();
    writer.batch_execute("commit").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c097_while_a_plugin_loops() {
    let rest = format!(
        "[plugins.hostile]\nconfig = {{ behave = \"loop\" }}\ncall_deadline = \"3s\"\n{TO_SQLITE}\
         [[map]]\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n"
    );
    let mut scene = Scene::new(20, 1).await;
    scene.config(&rest);
    scene.plugin("hostile", &hostile());
    scene.host.start().unwrap();
    scene.streaming().await;
    // The chunk is read and given to the guest.
    scene.host.wait_log(0, "transform failed", SOON).await.unwrap();
    ends(&mut scene, LIMIT).await;
    scene.plugin("hostile", &mended());
    scene.host.start().unwrap();
    scene.settled(MENDED_DOCUMENTS, "bad").await;
}
