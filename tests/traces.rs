//! Traces, exported to a stand-in of an OpenTelemetry collector (OTLP over HTTP, JSON).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;

use std::time::{Duration, Instant};

use receiver::{Received, Receiver, Reply};
use scene::{SOON, Scene, products};
use serde_json::Value;
use testkit::{shop::PRODUCT_DOCUMENTS, wait_until};

async fn traced(endpoint: &str) -> Scene {
    let mut scene = Scene::new(400, 1).await;
    let path = scene.host.path("out.db");
    scene.config(&format!(
        "[traces]\nendpoint = \"{endpoint}\"\n[sink.out]\nkind = \"sqlite\"\npath = \"{}\"\n",
        path.display()
    ));
    scene.plugin("product-search", &products());
    for (name, value) in [
        ("OTEL_BSP_SCHEDULE_DELAY", "200"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=marker-key"),
    ] {
        scene.host.env(name, value);
    }
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene
}

#[derive(Clone, Debug)]
struct Span {
    name: String,
    id: String,
    trace: String,
    parent: String,
    attributes: Value,
}

fn spans(received: &[Received]) -> Vec<Span> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let of_scope = |scope: Value| list(&scope, "spans");
    let of_resource = |resource: Value| list(&resource, "scopeSpans").into_iter().flat_map(of_scope);
    let bodies = received.iter().flat_map(|request| list(&request.json(), "resourceSpans"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    bodies
        .flat_map(of_resource)
        .map(|span| Span {
            name: text(&span["name"]),
            id: text(&span["spanId"]),
            trace: text(&span["traceId"]),
            parent: text(&span["parentSpanId"]),
            attributes: list(&span, "attributes")
                .iter()
                .map(|pair| {
                    let value = pair["value"].as_object().unwrap().values().next().unwrap().clone();
                    (text(&pair["key"]), value)
                })
                .collect::<serde_json::Map<_, _>>()
                .into(),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_a_trace_from_its_transform_to_its_delivery() {
    let collector = Receiver::start(|_, _| Reply::with_body(200, "{}")).await;
    let mut scene = traced(&collector.url("")).await;
    scene.client.batch_execute("update public.products set name = 'marker-row' where id = 7").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    assert!(scene.host.terminate(SOON).unwrap().success(), "what is left is exported, and it ends");

    let received = collector.received();
    assert!(received.iter().all(|request| request.target == "/v1/traces"));
    assert!(received.iter().all(|request| request.headers["x-api-key"] == "marker-key"));
    let resource = received[0].json()["resourceSpans"][0]["resource"].to_string();
    assert!(resource.contains("anabranch") && resource.contains("deployment.environment"), "{resource}");
    let spans = spans(&received);
    let batch = spans.iter().find(|span| span.name == "batch" && span.attributes["backfill"] == false);
    let batch = batch.unwrap_or_else(|| panic!("{spans:?}"));
    let entity = &batch.attributes["entity"];
    assert_eq!((batch.parent.as_str(), entity), ("", &"public.products".into()), "{batch:?}");
    for child in ["transform", "deliver"] {
        let child = spans.iter().find(|span| span.name == child && span.parent == batch.id);
        assert_eq!(child.unwrap_or_else(|| panic!("{spans:?}")).trace, batch.trace);
    }
    assert!(
        spans.iter().any(|span| span.name == "read chunk" && span.attributes["rows"] == "400"),
        "{spans:?}"
    );
    assert!(!format!("{spans:?}").contains("marker-row"), "no values of rows");
    let log = scene.host.log();
    assert!(!log.contains("marker-key") && !log.contains("marker-row"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_or_hangs_costs_spans_and_no_changes() {
    let collector = Receiver::start(|_, _| Reply::Hang).await;
    let mut scene = traced(&collector.url("/")).await;
    wait_until("an export to hang", SOON, async || Ok(!collector.received().is_empty())).await.unwrap();
    scene.client.batch_execute("update public.products set name = name || '!'").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    drop(collector);
    scene.client.batch_execute("update public.products set name = name || '?'").await.unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let asked = Instant::now();
    assert!(scene.host.terminate(SOON).unwrap().success());
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
}
