//! What probes hear while a host starts, leads, stands by, fails in part, loses its database and ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use testkit::{Cluster, ClusterOptions, Host, Stop, shop, shop::PRODUCT_DOCUMENTS, shop::Size};

use super::{
    receiver::{Receiver, Reply},
    scene::{BINARY, SOON, Scene, products},
    web::Web,
};

const LISTEN: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";
const TO_SQLITE: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn c098_a_host_that_prepares_is_alive_and_not_ready() {
    let mut scene = Scene::new(20, 1).await;
    scene.config(&format!("{TO_SQLITE}{LISTEN}"));
    scene.plugin("product-search", &products());
    // The slot's creation waits for this.
    let writer = scene.database.connect().await.unwrap();
    writer.batch_execute("begin; update public.products set stock = 1 where id = 1").await.unwrap();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    scene.host.wait_log(0, "transaction open for", SOON).await.unwrap();
    assert_eq!(web.get("/livez").await.status, 200);
    let ready = web.get("/readyz").await;
    assert_eq!((ready.status, ready.body.as_str()), (503, "leads, and does not stream yet\n"));
    let health = web.get("/healthz").await;
    assert_eq!((health.status, &health.json()["status"]), (503, &"down".into()), "{}", health.body);
    assert_eq!(health.json()["role"], "leading");
    assert_eq!(web.metrics().await.value("ready", &[]), 0.0);
    writer.batch_execute("commit").await.unwrap();
    web.wait("/readyz", 200, "leads and streams").await;
    let health = web.wait("/healthz", 200, "\"ok\"").await.json();
    assert_eq!(
        (&health["alive"], &health["term"], &health["reasons"]),
        (&true.into(), &1.into(), &serde_json::json!([]))
    );
    let status = scene.host.terminate(Duration::from_secs(10)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", scene.host.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn c098_a_failing_sink_degrades_and_a_standby_is_ready() {
    let answer = Arc::new(AtomicU16::new(200));
    let script = Arc::clone(&answer);
    let receiver = Receiver::start(move |_, _| Reply::status(script.load(Ordering::Relaxed))).await;
    let mut scene = Scene::new(20, 1).await;
    let rest = format!("[sink.out]\nkind = \"http\"\nurl = \"{}\"\n{LISTEN}", receiver.url("/hook"));
    let mut standby = Host::new(BINARY).unwrap();
    scene.config(&rest);
    scene.config_of(&standby, &rest);
    scene.plugin("product-search", &products());
    tokio::task::block_in_place(|| standby.plugin("product-search", &products())).unwrap();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/healthz", 200, "\"ok\"").await;
    web.wait_metrics("the backfill", |metrics| metrics.sum("backfill_runs_completed_total", &[]) == 1.0)
        .await;

    standby.start().unwrap();
    let other = Web::of(&mut standby, 0).await;
    let ready = other.wait("/readyz", 200, "stands by").await;
    assert_eq!(ready.body, "stands by: another host leads\n");
    let health = other.health().await;
    assert_eq!(
        (&health["status"], &health["role"], &health["stream"]),
        (&"ok".into(), &"standby".into(), &().into())
    );
    let metrics = other.metrics().await;
    assert_eq!((metrics.value("leader", &[]), metrics.value("ready", &[])), (0.0, 1.0));
    assert_eq!(metrics.get("lag_bytes", &[]), None, "that is the leader's");

    answer.store(500, Ordering::Relaxed);
    scene.client.batch_execute("update public.products set name = 'x' where id = 3").await.unwrap();
    let health = web.wait("/healthz", 200, "\"degraded\"").await.json();
    let mapping = &health["mappings"][0];
    assert_eq!(
        (&mapping["state"], &mapping["entity"]),
        (&"failing".into(), &"public.products".into()),
        "{health}"
    );
    assert_eq!(
        (&mapping["last_error"]["code"], &mapping["last_error"]["class"]),
        (&"http-500".into(), &"retry".into())
    );
    assert!(
        mapping["attempts"].as_u64() >= Some(1) && mapping["queued_bytes"].as_u64() > Some(0),
        "{health}"
    );
    let name = mapping["name"].as_str().unwrap();
    assert_eq!(health["reasons"], serde_json::json!([format!("mapping {name} is failing")]));
    assert_eq!(web.get("/readyz").await.status, 200, "the others would go on");
    let page = web.get("/").await;
    assert!(page.body.contains("degraded") && page.body.contains("http-500"), "{}", page.body);
    let of = [("mapping", name), ("sink", "out")];
    let metrics = web.metrics().await;
    assert_eq!((metrics.value("mapping_works", &of), metrics.value("leader", &[])), (0.0, 1.0));
    assert!(metrics.value("failures_total", &[("stage", "delivery"), ("class", "retry")]) >= 1.0);
    assert!(metrics.value("lag_seconds", &[]) > 0.0, "a transaction is under way");
    assert!(metrics.value("delivery_seconds_count", &[("outcome", "failed")]) >= 1.0);

    answer.store(200, Ordering::Relaxed);
    let health = web.wait("/healthz", 200, "\"ok\"").await.json();
    assert_eq!(
        (&health["mappings"][0]["state"], &health["mappings"][0]["last_error"]),
        (&"running".into(), &().into())
    );

    let status = scene.host.terminate(Duration::from_secs(10)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", scene.host.log_tail());
    assert!(web.ask("GET", "/livez").await.is_err(), "nobody listens any more");
    other.wait("/readyz", 200, "leads and streams").await;
    assert_eq!(other.metrics().await.value("leader", &[]), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c098_a_database_that_is_away_is_no_reason_to_be_killed() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database().await.unwrap();
    let client = database.connect().await.unwrap();
    shop::create(&client, Size { products: 20, orders: 1, customers: 1 }).await.unwrap();
    let mut scene = Scene { host: Host::new(BINARY).unwrap(), database, client };
    scene.config(&format!("{TO_SQLITE}{LISTEN}"));
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/readyz", 200, "leads and streams").await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;

    cluster.stop(Stop::Immediate).unwrap();
    let ready = web.wait("/readyz", 503, "the term ended: ").await;
    assert_eq!(ready.body.lines().count(), 1, "{}", ready.body);
    assert_eq!(web.get("/livez").await.status, 200);
    let answer = web.get("/healthz").await;
    let health = answer.json();
    assert_eq!(
        (answer.status, &health["status"], &health["role"]),
        (503, &"down".into(), &"between terms".into())
    );
    assert!(health["last_error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{health}");
    let metrics = web.metrics().await;
    assert_eq!((metrics.value("leader", &[]), metrics.value("ready", &[])), (0.0, 0.0));
    let status = web.get("/api/status").await;
    assert_eq!((status.status, &status.json()["error"]["kind"]), (503, &"failed".into()));

    cluster.start_again().unwrap();
    web.wait("/readyz", 200, "leads and streams").await;
    web.wait("/healthz", 200, "\"ok\"").await;
    assert_eq!(web.metrics().await.value("terms_total", &[]), 2.0);
    let status = scene.host.terminate(Duration::from_secs(10)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", scene.host.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn c098_an_ending_host_says_so_and_is_alive() {
    let receiver = Receiver::start(|_, _| Reply::Hang).await;
    let mut scene = Scene::new(20, 1).await;
    let sink =
        format!("[sink.out]\nkind = \"http\"\nurl = \"{}\"\ntimeout = \"10m\"\n", receiver.url("/hook"));
    scene.config(&format!("{sink}{LISTEN}[pipeline]\ndrain_limit = \"3s\"\n"));
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/readyz", 200, "leads and streams").await;
    testkit::wait_until("the delivery that hangs", SOON, async || Ok(!receiver.received().is_empty()))
        .await
        .unwrap();
    scene.host.signal("TERM").unwrap();
    web.wait("/readyz", 503, "stopping").await;
    assert_eq!(web.get("/livez").await.status, 200);
    assert_eq!(web.metrics().await.value("leader", &[]), 1.0, "until the term ends");
    let status = scene.host.wait_exit(Duration::from_secs(15)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", scene.host.log_tail());
}

/// Half of a link: the leader's session is there, and says nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn c057_a_session_that_falls_silent_is_noticed() {
    let mut scene = Scene::new(20, 1).await;
    scene.config(&format!("{TO_SQLITE}{LISTEN}"));
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/readyz", 200, "leads and streams").await;
    let pid = scene.leader().await.unwrap().to_string();
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    // In the health, where it stays: `/readyz` tells it for the pause before the next term, which may be short.
    let told = web.ask_until("/healthz", "did not answer within 10 s", "/livez").await;
    signal("-CONT");
    told.unwrap();
    web.wait("/readyz", 200, "leads and streams").await;
    let health = web.health().await;
    assert!(health["last_error"]["message"].as_str().unwrap().contains("did not answer"), "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c100_a_slot_that_keeps_half_of_what_is_allowed_is_told() {
    let options = ClusterOptions::new().setting("max_slot_wal_keep_size", "64MB");
    let cluster = Cluster::start(options).unwrap();
    let database = cluster.create_database().await.unwrap();
    let client = database.connect().await.unwrap();
    shop::create(&client, Size { products: 20, orders: 1, customers: 1 }).await.unwrap();
    let mut scene = Scene { host: Host::new(BINARY).unwrap(), database, client };
    let receiver = Receiver::start(|_, number| Reply::status(if number == 0 { 200 } else { 500 })).await;
    scene.config(&format!("[sink.out]\nkind = \"http\"\nurl = \"{}\"\n{LISTEN}", receiver.url("/hook")));
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    let before =
        web.wait_metrics("the slot", |metrics| metrics.get("slot_remaining_bytes", &[]).is_some()).await;
    assert_eq!(before.value("slot_wal_status", &[("status", "reserved")]), 1.0);
    // The mapping fails from now on, and the server writes on.
    scene.client.batch_execute("update public.products set stock = 2 where id = 2").await.unwrap();
    web.wait("/healthz", 200, "\"degraded\"").await;
    let from = scene.host.log_length();
    let write =
        "select pg_logical_emit_message(false, 'other', repeat('x', 1000000)) from generate_series(1, 40)";
    scene.client.batch_execute(write).await.unwrap();
    scene.host.wait_log(from, "the slot keeps half of the WAL", SOON).await.unwrap();
    let reasons = web.health().await["reasons"].to_string();
    assert!(reasons.contains("bytes of WAL for the slot"), "{reasons}");
    let after = web.metrics().await;
    assert!(after.value("slot_retained_bytes", &[]) >= 40e6, "{after:#?}");
    assert!(after.value("slot_remaining_bytes", &[]) < before.value("slot_remaining_bytes", &[]) - 30e6);
    assert!(after.value("lag_bytes", &[]) >= 40e6);
}
