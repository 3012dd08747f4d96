//! The text sinks, in the whole: what a receiver, a file and standard output get.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;

use std::{collections::BTreeMap, fs, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use receiver::{Receiver, Reply};
use scene::{SOON, Scene, products};
use serde_json::Value;
use testkit::{
    shop::{PRODUCT_DOCUMENTS, insert_products},
    wait_until,
};

async fn scene(rows: u64, rest: &str) -> Scene {
    let scene = Scene::new(rows, 1).await;
    scene.config(rest);
    scene.plugin("product-search", &products());
    scene
}

/// What lines or envelopes come to: the last word on each id.
fn replay<'a>(documents: impl IntoIterator<Item = &'a Value>) -> BTreeMap<String, Value> {
    let mut replayed = BTreeMap::new();
    for document in documents {
        let id = document["id"].as_str().unwrap().to_owned();
        match document["op"].as_str().unwrap() {
            "upsert" => replayed.insert(id, document["document"].clone()),
            _ => replayed.remove(&id),
        };
    }
    replayed
}

async fn expected(scene: &Scene) -> BTreeMap<String, Value> {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as d");
    let rows = scene.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

/// The lines of a text that are complete; each has to be JSON.
fn lines(text: &str) -> Vec<Value> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    complete.lines().map(parse).collect()
}

async fn file_is_right(scene: &Scene, name: &str) {
    let want = expected(scene).await;
    wait_until("the file to be right", SOON, async || {
        Ok(replay(&lines(&fs::read_to_string(scene.host.path(name))?)) == want)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_receiver_gets_every_row_signed_in_order_whatever_it_answers_first() {
    let key = [7_u8; 24];
    let receiver = Receiver::start(|_, number| match number {
        0 => Reply::status(500),
        1 => Reply::Status(429, vec![("retry-after", "2".to_owned())], String::new()),
        _ => Reply::status(200),
    })
    .await;
    let rest = format!(
        "[sink.hook]\nkind = \"http\"\nurl = \"{}\"\nsecret = \"whsec_{}\"\n",
        receiver.url("/{destination}"),
        STANDARD.encode(key)
    );
    let mut scene = scene(60, &rest).await;
    scene.client.batch_execute("update public.products set active = true").await.unwrap();
    scene.host.start().unwrap();
    let began = std::time::Instant::now();
    wait_until("the third request", SOON, async || Ok(receiver.received().len() > 2)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "Retry-After");
    for price in 1..=30 {
        let update = format!("update public.products set price = {price} where id in (1, 2)");
        scene.client.batch_execute(&update).await.unwrap();
    }
    scene.client.batch_execute("delete from public.products where id = 3").await.unwrap();

    let want = expected(&scene).await;
    // The first two were refused.
    let accepted = || -> Vec<Value> {
        let taken = receiver.received().into_iter().skip(2);
        taken.flat_map(|received| received.json()["documents"].as_array().unwrap().clone()).collect()
    };
    wait_until("everything to arrive", SOON, async || Ok(replay(&accepted()) == want))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    for id in ["1", "2"] {
        let of = |document: &&Value| document["id"] == id && document["lsn"] != "0/0";
        let prices: Vec<f64> = accepted()
            .iter()
            .filter(of)
            .filter_map(|document| document["document"]["price"].as_f64())
            .collect();
        let live = &prices[prices.len() - 30..];
        assert_eq!(live, (1..=30).map(f64::from).collect::<Vec<_>>(), "in the order of commits");
    }
    let received = receiver.received();
    assert_eq!(received[0].body, received[1].body, "repeated as it was");
    assert_eq!(received[1].body, received[2].body);
    for received in &received {
        assert_eq!(received.target, "/products");
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
        for header in ["webhook-id", "webhook-timestamp"] {
            mac.update(received.headers[header].as_bytes());
            mac.update(b".");
        }
        mac.update(&received.body);
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        assert_eq!(received.headers["webhook-signature"], signature);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jsonl_file_stays_whole_when_the_host_is_killed() {
    let rest = "[sink.file]\nkind = \"jsonl\"\npath = \"out.jsonl\"\n[backfill]\nchunk_size = 50\n";
    let mut scene = scene(5_000, rest).await;
    for round in 0..3_u64 {
        let path = scene.host.path("out.jsonl");
        let size = || fs::metadata(&path).map_or(0, |file| file.len());
        let before = size();
        scene.host.start().unwrap();
        let first = 10_001 + round * 200;
        scene.client.batch_execute(&insert_products(first, first + 199, round)).await.unwrap();
        wait_until("lines", SOON, async || Ok(size() > before)).await.unwrap();
        scene.host.kill().unwrap();
    }
    scene.host.start().unwrap();
    scene.client.batch_execute("delete from public.products where id % 50 = 0").await.unwrap();
    file_is_right(&scene, "out.jsonl").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_output_gets_documents_and_nothing_else() {
    let mut scene = scene(40, "[sink.shown]\nkind = \"stdout\"\n").await;
    scene.host.start().unwrap();
    let want = expected(&scene).await;
    wait_until("all documents", SOON, async || {
        let log = scene.host.log();
        let shown: Vec<_> = log.lines().filter(|line| line.starts_with("{\"op\"")).collect();
        Ok(replay(&lines(&(shown.join("\n") + "\n"))) == want)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_added_later_is_filled_and_the_other_gets_nothing_of_it() {
    let first = "[sink.one]\nkind = \"jsonl\"\npath = \"one.jsonl\"\n\
        [[map]]\nname = \"one\"\ntransform = \"product-search\"\nsink = \"one\"\n";
    let mut scene = scene(300, first).await;
    scene.host.start().unwrap();
    file_is_right(&scene, "one.jsonl").await;
    wait_until("the first to be built", SOON, async || Ok(scene.mapping("one")["built"] == 1)).await.unwrap();
    scene.host.terminate(Duration::from_secs(30)).unwrap();
    let before = lines(&fs::read_to_string(scene.host.path("one.jsonl")).unwrap()).len();

    scene.config(&format!(
        "{first}[sink.two]\nkind = \"jsonl\"\npath = \"two.jsonl\"\n\
         [[map]]\nname = \"two\"\ntransform = \"product-search\"\nsink = \"two\"\n"
    ));
    scene.host.start().unwrap();
    file_is_right(&scene, "two.jsonl").await;
    // What comes after the backfill reaches both, so that what the first got is all there is.
    scene
        .client
        .batch_execute("update public.products set active = true, name = 'Last' where id = 7")
        .await
        .unwrap();
    file_is_right(&scene, "two.jsonl").await;
    file_is_right(&scene, "one.jsonl").await;
    let after = lines(&fs::read_to_string(scene.host.path("one.jsonl")).unwrap()).len();
    assert_eq!(after, before + 1, "one live change");
}
