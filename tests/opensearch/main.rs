//! The sink for OpenSearch and Elasticsearch, in the whole: against a stand-in of the documented protocol on a real port,
//! and against a real server where `OPENSEARCH_URL` names one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod generations;
#[path = "../support/receiver.rs"]
mod receiver;
#[path = "../scene/mod.rs"]
mod scene;
mod server;

use receiver::Receiver;
use scene::{SOON, Scene, products};
use serde_json::Value;
use server::{Documents, KEY, Server};
use testkit::{
    guests::Guest,
    shop::{PRODUCT_DOCUMENTS, insert_products},
    wait_until,
};

async fn scene(rows: u64, url: &str, header: &str, prefix: &str) -> Scene {
    scene_with(rows, url, header, prefix, ("", "")).await
}

/// The same with more settings of the sink, and more of the config.
async fn scene_with(rows: u64, url: &str, header: &str, prefix: &str, more: (&str, &str)) -> Scene {
    let mut scene = Scene::new(rows, 5).await;
    configure(&mut scene, url, header, prefix, more);
    scene.plugin("product-search", &products());
    scene.plugin("opensearch-sink", &Guest::new("plugins/opensearch-sink"));
    scene
}

fn configure(scene: &mut Scene, url: &str, header: &str, prefix: &str, (settings, rest): (&str, &str)) {
    let map = "[[map]]\nname = \"search\"\ntransform = \"product-search\"\nsink = \"search\"\n";
    configure_maps(scene, url, header, prefix, (settings, &format!("{map}{rest}")));
}

/// The same with mappings of one's own.
fn configure_maps(scene: &mut Scene, url: &str, header: &str, prefix: &str, (settings, maps): (&str, &str)) {
    scene.host.env("SEARCH_KEY", KEY);
    let headers = if header.is_empty() {
        String::new()
    } else {
        format!("headers = {{ \"{url}\" = {{ {header} }} }}\n")
    };
    scene.config(&format!(
        "[plugins.opensearch-sink]\ncall_deadline = \"60s\"\n\
         [plugins.opensearch-sink.grants]\nhttp = [\"{url}\"]\nprivate_addresses = true\nhttp_timeout = \"15s\"\n{headers}\
         [sink.search]\nkind = \"plugin\"\nplugin = \"opensearch-sink\"\n\
         config = {{ url = \"{url}\", index_prefix = \"{prefix}\", max_bytes = 20000{settings} }}\n\
         [backfill]\nchunk_size = 100\n{maps}",
    ));
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
    server.state().first = vec![503, 429];
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

    server.state().without_key = true;
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
    // Anew: another index behind the same name.
    let index = async || {
        let told = request(reqwest::Method::GET, "/_alias").send().await?.text().await?;
        let told: std::collections::BTreeMap<String, Value> = serde_json::from_str(&told)?;
        anyhow::Ok(told.into_keys().collect::<Vec<_>>())
    };
    let before = index().await.unwrap();
    assert!(scene.host.run(&["backfill", "request", "search"]).unwrap().status.success());
    wait_until("another index", SOON, async || {
        let now = index().await?;
        Ok(now.len() == 1 && now != before)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    scene.host.kill().unwrap();
    for index in index().await.unwrap() {
        let path = format!("{url}/{index}");
        let request = client.delete(path);
        let request = match &authorization {
            Some(text) => request.header("authorization", text),
            None => request,
        };
        request.send().await.unwrap();
    }
}
