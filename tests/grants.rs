//! What plugins are granted, in the whole: who asks for more does not run, or waits while its predecessor goes on; what
//! is refused is seen; secrets stay with the host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;
#[path = "http/web.rs"]
mod web;

use receiver::{Receiver, Reply};
use scene::{SOON, Scene, products};
use serde_json::Value;
use testkit::{guests::Guest, shop::PRODUCT_DOCUMENTS, wait_until};
use web::Web;

const TABLE: &str = "create table public.things (id int primary key, ask text not null, arg text not null)";
const MAP: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
                   [[map]]\nname = \"m\"\ntransform = \"capable\"\ndestination = \"m\"\n";

fn capable(features: &[&str]) -> Guest {
    features.iter().fold(Guest::new("plugins/fixtures/capable"), |guest, feature| guest.feature(feature))
}

async fn things(scene: &Scene) {
    scene.client.batch_execute(TABLE).await.unwrap();
}

async fn ask(scene: &Scene, id: i32, what: &str, arg: &str) {
    let insert = "insert into public.things values ($1, $2, $3)";
    scene.client.execute(insert, &[&id, &what, &arg]).await.unwrap();
}

/// The document of a row, once it is there.
async fn answer(scene: &Scene, table: &str, id: i32) -> Value {
    let table = scene.table(table);
    wait_until("the document", SOON, async || Ok(table.get(&id.to_string())?.is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    table.get(&id.to_string()).unwrap().unwrap()
}

async fn status_is(scene: &Scene, what: &str, holds: impl Fn(&Value) -> bool) {
    wait_until(what, SOON, async || {
        let status = scene.host.status()?;
        Ok(status["mappings"].as_array().into_iter().flatten().any(|m| m["name"] == "m" && holds(m)))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn c088_who_asks_for_more_than_is_granted_alone_does_not_run() {
    let mut scene = Scene::new(20, 1).await;
    things(&scene).await;
    let server = Receiver::start(|_, _| Reply::with_body(200, "hello")).await;
    scene.plugin("capable", &capable(&["http"]));
    scene.plugin("product-search", &products());
    let beside = format!(
        "{MAP}[[map]]\nname = \"beside\"\ntransform = \"product-search\"\ndestination = \"beside\"\n"
    );
    scene.config(&beside);
    ask(&scene, 1, "get", &server.url("/")).await;
    let lines = "[plugins.capable.grants] http = [\"https://host.example:443\"]";

    let check = scene.host.run(&["check"]).unwrap();
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(!check.status.success() && text.contains("asks for http") && text.contains(lines), "{text}");
    let plan = scene.host.run(&["plan"]).unwrap();
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(!plan.status.success() && text.contains("m  refused: capable 1.0.0 asks for http"), "{text}");

    // Of a transform and of its sink: both are told.
    scene.plugin("opensearch-sink", &Guest::new("plugins/opensearch-sink"));
    scene.config(&format!(
        "[sink.search]\nkind = \"plugin\"\nplugin = \"opensearch-sink\"\nconfig = {{ url = \"{url}\" }}\n\
         [[map]]\nname = \"both\"\ntransform = \"capable\"\nsink = \"search\"\ndestination = \"both\"\n",
        url = server.url("")
    ));
    for command in ["plan", "check"] {
        let run = scene.host.run(&[command]).unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(!run.status.success() && text.contains(lines), "{text}");
        assert!(text.contains("[plugins.opensearch-sink.grants] http = "), "{command}: {text}");
        assert!(command == "check" || text.contains("both  refused: capable 1.0.0 asks for http"), "{text}");
    }
    scene.config(&beside);

    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "beside").await;
    status_is(&scene, "the refusal", |m| m["status"] == "refused").await;
    let error = scene.error_of("m").await;
    assert!(error.contains("plugin capable 1.0.0 asks for http") && error.contains(lines), "{error}");
    assert_eq!(scene.table("m").count().unwrap(), 0);
    assert!(server.received().is_empty());

    scene.host.terminate(SOON).unwrap();
    scene.config(&format!(
        "[plugins.capable]\ncall_deadline = \"10s\"\n[plugins.capable.grants]\nhttp = [\"{}\"]\nprivate_addresses = true\n{beside}",
        server.url("")
    ));
    scene.host.start().unwrap();
    assert_eq!(answer(&scene, "m", 1).await["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revision_that_asks_for_more_is_held_until_it_is_granted() {
    let mut scene = Scene::new(1, 1).await;
    things(&scene).await;
    scene.plugin("capable", &capable(&[]));
    scene.config(MAP);
    ask(&scene, 1, "count", "k").await;
    scene.host.start().unwrap();
    assert_eq!(answer(&scene, "m", 1).await["answer"], "count k", "this revision keeps no state");

    scene.plugin("capable", &capable(&["state"]).version("1.1.0"));
    status_is(&scene, "the held revision", |m| m["held_revision"].is_string()).await;
    let mapping = scene.mapping("m");
    let held = mapping["held_revision"].as_str().unwrap();
    assert!(held.contains("capable 1.1.0 asks for state in addition"), "{held}");
    assert!(held.contains("1.0.0 goes on; add [plugins.capable.grants] state = true"), "{held}");
    assert_eq!((mapping["status"].as_str(), mapping["version"].as_str()), (Some("running"), Some("1.0.0")));
    ask(&scene, 2, "count", "k").await;
    assert_eq!(answer(&scene, "m", 2).await["answer"], "count k", "the old one goes on");
    let plan = scene.host.run(&["plan"]).unwrap();
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(text.contains("m  held: capable 1.1.0 asks for state in addition"), "{text}");
    assert_eq!(plan.status.code(), Some(1));

    // Without the grant it does not run after a restart either, and the slot keeps what it misses.
    scene.host.terminate(SOON).unwrap();
    scene.host.start().unwrap();
    status_is(&scene, "the refusal", |m| m["status"] == "refused").await;
    ask(&scene, 3, "count", "k").await;
    scene.host.terminate(SOON).unwrap();

    scene.config(&format!("[plugins.capable.grants]\nstate = true\n{MAP}"));
    scene.host.start().unwrap();
    status_is(&scene, "the new revision", |m| m["version"] == "1.1.0" && m["built"] == m["generation"]).await;
    assert_eq!(scene.mapping("m")["held_revision"], Value::Null);
    let mut answers = Vec::new();
    for id in 1..=3 {
        wait_until("the rebuilt document", SOON, async || {
            Ok(scene.table("m").get(&id.to_string())?.is_some_and(|document| document["answer"] != "count k"))
        })
        .await
        .unwrap();
        answers.push(answer(&scene, "m", id).await["answer"].as_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(answers.iter().all(|count| *count >= 1), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_a_secret_of_a_header_reaches_its_server_and_nobody_else() {
    let mut scene = Scene::new(1, 1).await;
    things(&scene).await;
    let server = Receiver::start(|request, _| match request.target.as_str() {
        "/fail" => Reply::Close,
        _ => Reply::with_body(200, "hello"),
    })
    .await;
    // Whoever runs the host may have a proxy; it would be shown the secret, and connect wherever it likes.
    let proxy = Receiver::start(|_, _| Reply::with_body(200, "through the proxy")).await;
    for name in ["http_proxy", "HTTP_PROXY", "ALL_PROXY"] {
        scene.host.env(name, &proxy.url(""));
    }
    scene.plugin("capable", &capable(&["http"]));
    scene.host.env("MARKER", "Bearer marker-4711");
    scene.config(&format!(
        "[plugins.capable]\ncall_deadline = \"10s\"\n[plugins.capable.grants]\nhttp = [\"{origin}\"]\n\
         private_addresses = true\nheaders = {{ \"{origin}\" = {{ authorization = \"${{MARKER}}\" }} }}\n{MAP}\
         [log]\nlevel = \"trace\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
        origin = server.url("")
    ));
    ask(&scene, 1, "authorized", &server.url("/")).await;
    ask(&scene, 2, "get", &server.url("/fail")).await;
    ask(&scene, 3, "get", "http://127.0.0.1:1/").await;
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, from).await;
    let first = answer(&scene, "m", 1).await;
    assert_eq!(first["status"], 200);
    assert!(answer(&scene, "m", 2).await["error"].as_str().unwrap().starts_with("Failed("));
    assert!(answer(&scene, "m", 3).await["error"].as_str().unwrap().starts_with("Denied("));
    assert!(server.received().iter().all(|request| request.headers["authorization"] == "Bearer marker-4711"));
    assert!(proxy.received().is_empty(), "{:?}", proxy.received());

    let metrics = web.get("/metrics").await.body;
    let refusals = "anabranch_plugin_refusals_total{plugin=\"capable\",mapping=\"m\",capability=\"http\"} 1";
    assert!(metrics.contains(refusals), "{metrics}");
    let log = scene.host.log();
    assert!(log.contains("a request was refused: requests to http://127.0.0.1:1 are not granted"), "{log}");
    let status = scene.host.status().unwrap().to_string() + &web.get("/api/status").await.body;
    for (what, text) in
        [("log", &log), ("metrics", &metrics), ("status", &status), ("document", &first.to_string())]
    {
        assert!(!text.contains("marker-4711"), "{what}");
    }
}
