//! The sink for OpenSearch and Elasticsearch, in the whole: against a stand-in of the documented protocol on a real port,
//! and against a real server where `OPENSEARCH_URL` names one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use receiver::{Received, Receiver, Reply};
use scene::{SOON, Scene, products};
use serde_json::{Value, json};
use testkit::{
    guests::Guest,
    shop::{PRODUCT_DOCUMENTS, insert_products},
    wait_until,
};

const KEY: &str = "ApiKey bWFya2VyLTQ3MTE6c2VjcmV0";

type Documents = BTreeMap<String, Value>;

#[derive(Default)]
struct Index {
    documents: Documents,
    /// What searches find: those of the last refresh.
    visible: Documents,
}

/// As much of the server as the sink speaks with.
#[derive(Clone, Default)]
struct Server {
    indexes: Arc<Mutex<BTreeMap<String, Index>>>,
    /// Answers that come before any other.
    first: Arc<Mutex<Vec<u16>>>,
    without_key: Arc<Mutex<bool>>,
}

impl Server {
    fn answer(&self, request: &Received) -> Reply {
        let plain = |status, body: Value| Reply::with_body(status, &body.to_string());
        let key = request.headers.get("authorization").map(String::as_str);
        if key != Some(KEY) || *self.without_key.lock().unwrap() {
            let error = json!({"type": "security_exception", "reason": "missing authentication credentials"});
            return plain(401, json!({"error": error, "status": 401}));
        }
        if let Some(status) = self.first.lock().unwrap().pop() {
            let pause = vec![("retry-after", "1".to_owned())];
            return Reply::Status(status, pause, "{}".to_owned());
        }
        let (path, _) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let mut indexes = self.indexes.lock().unwrap();
        if path == "/_bulk" {
            return bulk(&mut indexes, request);
        }
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let Some(index) = indexes.get_mut(parts[0]) else {
            let error = json!({"type": "index_not_found_exception", "reason": "no such index"});
            return plain(404, json!({"error": error, "status": 404}));
        };
        match parts[1] {
            "_refresh" => {
                index.visible = index.documents.clone();
                plain(200, json!({"_shards": {"total": 1, "successful": 1, "failed": 0}}))
            }
            "_delete_by_query" => {
                let found: Vec<_> = index.visible.keys().cloned().collect();
                found.iter().for_each(|id| drop(index.documents.remove(id)));
                index.visible = index.documents.clone();
                plain(200, json!({"deleted": found.len(), "version_conflicts": 0, "failures": []}))
            }
            other => panic!("nobody asks for {other}"),
        }
    }

    fn documents(&self, index: &str) -> Documents {
        self.indexes.lock().unwrap().get(index).map(|index| index.documents.clone()).unwrap_or_default()
    }
}

/// `POST /_bulk`, as the reference has it.
fn bulk(indexes: &mut BTreeMap<String, Index>, request: &Received) -> Reply {
    assert_eq!(request.headers["content-type"], "application/x-ndjson");
    assert_eq!(request.body.last(), Some(&b'\n'), "the last line ends with a line break");
    let text = std::str::from_utf8(&request.body).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut items = Vec::new();
    while let Some(action) = lines.next() {
        let (kind, target) = action.as_object().unwrap().iter().next().unwrap();
        let (name, id) = (target["_index"].as_str().unwrap(), target["_id"].as_str().unwrap());
        if kind == "delete" {
            let removed = indexes.get_mut(name).and_then(|index| index.documents.remove(id));
            items.push(json!({"delete": {"status": if removed.is_some() { 200 } else { 404 }}}));
            continue;
        }
        assert_eq!(kind, "index");
        let source = lines.next().unwrap();
        if source["title"] == "boom" {
            let cause = json!({"type": "illegal_argument_exception", "reason": "For input string: \"boom\""});
            let error = json!({"type": "mapper_parsing_exception", "reason": "failed to parse field [title]", "caused_by": cause});
            items.push(json!({"index": {"status": 400, "error": error}}));
            continue;
        }
        let before = indexes.entry(name.to_owned()).or_default().documents.insert(id.to_owned(), source);
        items.push(json!({"index": {"status": if before.is_some() { 200 } else { 201 }}}));
    }
    Reply::with_body(200, &json!({"items": items}).to_string())
}

async fn scene(rows: u64, url: &str, header: &str, prefix: &str) -> Scene {
    let mut scene = Scene::new(rows, 1).await;
    scene.host.env("SEARCH_KEY", KEY);
    let headers = if header.is_empty() {
        String::new()
    } else {
        format!("headers = {{ \"{url}\" = {{ {header} }} }}\n")
    };
    scene.config(&format!(
        "[plugins.opensearch-sink]\ncall_deadline = \"20s\"\n\
         [plugins.opensearch-sink.grants]\nhttp = [\"{url}\"]\nprivate_addresses = true\n{headers}\
         [sink.search]\nkind = \"plugin\"\nplugin = \"opensearch-sink\"\n\
         config = {{ url = \"{url}\", index_prefix = \"{prefix}\", max_bytes = 20000 }}\n\
         [[map]]\nname = \"search\"\ntransform = \"product-search\"\nsink = \"search\"\n\
         [backfill]\nchunk_size = 100\n",
    ));
    scene.plugin("product-search", &products());
    scene.plugin("opensearch-sink", &Guest::new("plugins/opensearch-sink"));
    scene
}

async fn expected(scene: &Scene) -> Documents {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as d");
    let rows = scene.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

async fn settled(scene: &Scene, server: &Server) {
    let want = expected(scene).await;
    wait_until("the index to be right", SOON, async || Ok(server.documents("shop-products") == want))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_what_the_table_is_whatever_happens() {
    let server = Server::default();
    *server.first.lock().unwrap() = vec![503, 429];
    let answering = server.clone();
    let receiver = Receiver::start(move |request, _| answering.answer(request)).await;
    let url = receiver.url("");
    let mut scene = scene(600, &url, "authorization = \"${SEARCH_KEY}\"", "shop-").await;
    // Killed twice in the middle of the backfill.
    for round in 0..2 {
        scene.host.start().unwrap();
        let (before, some) = (receiver.received().len(), if round == 0 { 4 } else { 0 });
        wait_until("some requests", SOON, async || Ok(receiver.received().len() > before + some))
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
        scene
            .client
            .batch_execute(&insert_products(10_001 + round * 50, 10_050 + round * 50, round))
            .await
            .unwrap();
        scene.host.kill().unwrap();
    }
    scene.host.start().unwrap();
    scene
        .client
        .batch_execute("update public.products set price = price + 1, active = not active")
        .await
        .unwrap();
    scene.client.batch_execute("delete from public.products where id % 7 = 0").await.unwrap();
    settled(&scene, &server).await;

    // A mapping error names the document, and stops the mapping alone.
    let boom = "update public.products set name = 'boom', active = true where id = 1";
    scene.client.batch_execute(boom).await.unwrap();
    let error = scene.error_of("search").await;
    for part in ["mapper_parsing_exception, poison", "For input string", "document 1 in products"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    scene.client.batch_execute("update public.products set name = 'fine' where id = 1").await.unwrap();
    assert!(!scene.host.log().contains(KEY), "a secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_table_empties_its_index_and_credentials_are_asked_for() {
    let server = Server::default();
    let answering = server.clone();
    let receiver = Receiver::start(move |request, _| answering.answer(request)).await;
    let mut scene = scene(50, &receiver.url(""), "authorization = \"${SEARCH_KEY}\"", "shop-").await;
    scene.host.start().unwrap();
    settled(&scene, &server).await;
    scene.client.batch_execute("truncate public.products cascade").await.unwrap();
    settled(&scene, &server).await;
    scene.client.batch_execute(&insert_products(1, 20, 5)).await.unwrap();
    settled(&scene, &server).await;
    assert!(!server.documents("shop-products").is_empty());

    *server.without_key.lock().unwrap() = true;
    scene.client.batch_execute("update public.products set price = 1").await.unwrap();
    let error = scene.error_of("search").await;
    for part in ["missing authentication credentials", "[plugins.opensearch-sink.grants]", "http-401, fatal"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// `OPENSEARCH_URL=http://127.0.0.1:9200 cargo test --test opensearch`; credentials in `OPENSEARCH_AUTHORIZATION`.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_agrees() {
    let Ok(url) = std::env::var("OPENSEARCH_URL") else { return };
    let authorization = std::env::var("OPENSEARCH_AUTHORIZATION").ok();
    let header = authorization.as_ref().map(|text| format!("authorization = \"{text}\"")).unwrap_or_default();
    let prefix = format!("anabranch-test-{}-", std::process::id());
    let mut scene = scene(300, &url, &header, &prefix).await;
    scene.host.start().unwrap();
    scene.client.batch_execute(&insert_products(10_001, 10_050, 1)).await.unwrap();
    scene.client.batch_execute("delete from public.products where id % 7 = 0").await.unwrap();
    let want = expected(&scene).await;
    let client = reqwest::Client::new();
    let request = |method: reqwest::Method, path: &str| {
        let request = client.request(method, format!("{url}/{prefix}products{path}"));
        match &authorization {
            Some(text) => request.header("authorization", text),
            None => request,
        }
    };
    wait_until("the index to be right", SOON, async || {
        request(reqwest::Method::POST, "/_refresh").send().await?;
        let found: Value = serde_json::from_str(
            &request(reqwest::Method::GET, "/_search?size=10000").send().await?.text().await?,
        )?;
        let hits = found["hits"]["hits"].as_array().cloned().unwrap_or_default();
        let documents: Documents = hits
            .iter()
            .map(|hit| (hit["_id"].as_str().unwrap_or_default().to_owned(), hit["_source"].clone()))
            .collect();
        Ok(documents == want)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    request(reqwest::Method::DELETE, "").send().await.unwrap();
}
