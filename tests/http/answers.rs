//! What answers have in them, who may ask how, and clients that misbehave.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{shop::PRODUCT_DOCUMENTS, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    scene::{SOON, Scene, products},
    web::Web,
};

const PATHS: [&str; 6] = ["/", "/livez", "/readyz", "/healthz", "/metrics", "/api/status"];
const REST: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n";

async fn leading(rest: &str) -> (Scene, Web) {
    let mut scene = Scene::new(20, 1).await;
    scene.config(rest);
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/readyz", 200, "leads and streams").await;
    (scene, web)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_that_of_the_command_line() {
    let (scene, web) = leading(REST).await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.host.run(&["backfill", "rate", "500", "public.products"]).unwrap();
    let (mut there, mut here) = (Value::Null, Value::Null);
    // Positions move now and then.
    let same = wait_until("both to say the same", SOON, async || {
        let answer = web.ask("GET", "/api/status").await?;
        there = answer.json();
        here = scene.host.status()?;
        Ok(there == here && here["backfills"][0]["status"] == "complete")
    });
    same.await.unwrap_or_else(|error| panic!("{error:#}\n{there:#}\n{here:#}"));
    assert_eq!(there["controls"][0]["rows_per_second"], 500);
    assert_eq!(there["mappings"][0]["status"], "running");
    let answer = web.get("/api/status").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    // However many ask at once, one session reads.
    let mut asking = tokio::task::JoinSet::new();
    (0..20).for_each(|_| drop(asking.spawn(async move { web.get("/api/status").await.status })));
    let answers = asking.join_all().await;
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_there_is_answered_and_only_to_get_and_head() {
    let (_scene, web) = leading(REST).await;
    for path in PATHS {
        let get = web.get(path).await;
        assert_eq!((get.status, get.headers["cache-control"].as_str()), (200, "no-store"), "{path}");
        assert_eq!(get.headers["content-length"], get.body.len().to_string(), "{path}");
        let head = web.ask("HEAD", path).await.unwrap();
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.headers["content-type"], get.headers["content-type"]);
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let refused = web.ask(method, path).await.unwrap();
            assert_eq!(
                (refused.status, refused.headers["allow"].as_str()),
                (405, "GET, HEAD"),
                "{method} {path}"
            );
        }
    }
    for path in ["/nothing", "/livez/", "/metrics/../", "/API/status", "//"] {
        assert_eq!(web.get(path).await.status, 404, "{path}");
    }
    assert_eq!(web.get("/readyz?verbose=1").await.status, 200);
    let kind = &web.get("/metrics").await.headers["content-type"];
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    let page = web.get("/").await;
    assert!(page.headers["content-type"].starts_with("text/html"));
    assert!(page.body.contains("product-search") && page.body.contains("leading"), "{}", page.body);
    for banned in ["<script", "src=", "http://", "https://"] {
        assert!(!page.body.contains(banned), "{banned} in {}", page.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_no_answer_has_a_secret() {
    let mut scene = Scene::new(20, 1).await;
    let url = scene.database.url.replace("postgres@", "postgres:marker-password@");
    scene.database.url = url;
    // Nobody listens there: errors of every kind.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let sink = format!(
        "[sink.out]\nkind = \"http\"\nurl = \"http://user:marker-user@{closed}/marker-path?token=marker-query\"\n\
         headers = {{ authorization = \"Bearer marker-header\" }}\nsecret = \"marker-secret\"\n\
         [plugins.product-search]\nconfig = {{ token = \"marker-config\" }}\n[http]\nlisten = \"127.0.0.1:0\"\n"
    );
    scene.config(&sink);
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, 0).await;
    web.wait("/healthz", 200, "degraded").await;
    scene.error_of("public.products:product-search:out").await;
    let check = async |when: &str| {
        for path in PATHS {
            let answer = web.get(path).await;
            assert!(!answer.body.contains("marker-"), "{when} {path}: {}", answer.body);
            assert!(!format!("{:?}", answer.headers).contains("marker-"), "{when} {path}");
        }
    };
    check("while the sink fails").await;
    // And when the database refuses.
    let name = scene.database.name.clone();
    let refuse = format!("alter database {name} with allow_connections false");
    let other = testkit::postgres::connect(&testkit::shared().unwrap().url("postgres")).await.unwrap();
    other.batch_execute(&refuse).await.unwrap();
    let end = format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'");
    other.batch_execute(&end).await.unwrap();
    web.wait("/readyz", 503, "the term ended").await;
    web.wait("/api/status", 503, "error").await;
    check("while the database refuses").await;
    assert!(!scene.host.log().contains("marker-"), "{}", scene.host.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_hold_nobody_up_and_are_let_go() {
    let (_scene, web) = leading(REST).await;
    let mut slow = Vec::new();
    for _ in 0..150 {
        let mut stream = TcpStream::connect(web.0).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: te").await.unwrap();
        slow.push(stream);
    }
    let began = Instant::now();
    assert_eq!(web.get("/livez").await.status, 200);
    assert!(began.elapsed() < Duration::from_secs(4), "it waited for {:?}", began.elapsed());
    for mut stream in slow {
        let ended = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "a connection is held open");
    }
    // Too much of a header, and no HTTP at all.
    let long = format!("GET /{} HTTP/1.1\r\nhost: test\r\n\r\n", "x".repeat(200_000));
    for odd in [long.as_bytes(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"\r\n\r\n\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(web.0).await.unwrap();
        // It may be closed before all of it is written.
        let _ = stream.write_all(odd).await;
        let ended = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "a connection is held open");
    }
    assert_eq!(web.get("/readyz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut scene = Scene::new(5, 1).await;
    scene.config("[sink.out]\nkind = \"null\"\n");
    scene.plugin("product-search", &products());
    scene.host.start_with(&["--http", &address]).unwrap();
    let status = scene.host.wait_exit(SOON).unwrap();
    let log = scene.host.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains(&format!("cannot listen on {address} for HTTP")) && log.contains("--http"), "{log}");
    drop(taken);

    // The same address, free now, by the command line alone.
    scene.host.start_with(&["--http", &address]).unwrap();
    let web = Web(address.parse().unwrap());
    web.wait("/readyz", 200, "leads and streams").await;
    assert_eq!(scene.host.terminate(Duration::from_secs(10)).unwrap().code(), Some(0));
    let wrong = scene.host.run(&["run", "--http", "localhost:http"]).unwrap();
    assert_eq!(wrong.status.code(), Some(2), "wrong usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_section_nobody_listens() {
    let mut scene = Scene::new(5, 1).await;
    scene.config("[sink.out]\nkind = \"null\"\n");
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    scene.streaming().await;
    assert!(!scene.host.log().contains("listening for HTTP"));
}
