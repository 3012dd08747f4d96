//! Plugins in other languages in the whole host: dropped into its directory, fed by the stream, rebuilt by their version.

use serde_json::Value;
use testkit::{
    guests::{self, Guest, Language, language_tools},
    shop::{self, PRODUCT_DOCUMENTS},
};

use crate::{
    documents::samples,
    scene::{BINARY, SOON, Scene},
};

const MAPPING: &str = "public.products:product-search-js:out";

#[tokio::test(flavor = "multi_thread")]
async fn a_javascript_plugin_is_dropped_in_fed_and_rebuilt_by_its_version() {
    if language_tools(Language::JavaScript).unwrap().is_none() {
        return;
    }
    let mut scene = Scene::new(500, 1).await;
    let guest = Guest::new("plugins/product-search-js");
    scene.plugin("product-search-js", &guest);
    scene.config(
        "[plugins.product-search-js]\nmemory_limit = \"128MiB\"\ncall_deadline = \"60s\"\n\
         [sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n",
    );
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.client.batch_execute(&shop::insert_products(501, 600, 7)).await.unwrap();
    scene
        .client
        .batch_execute("update public.products set active = not active where id % 5 = 0")
        .await
        .unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let before = scene.mapping(MAPPING);
    assert_eq!((&before["version"], &before["generation"]), (&Value::from("1.0.0"), &Value::from(1)));

    let from = scene.host.log_length();
    scene.plugin("product-search-js", &guest.version("1.1.0"));
    scene.host.wait_log(from, "1.1.0", SOON).await.unwrap();
    testkit::wait_until("the new generation to be built", SOON, async || {
        let mapping = scene.mapping(MAPPING);
        Ok(mapping["version"] == "1.1.0" && mapping["built"] == 2)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
}

/// Backfilled, streamed and deleted rows, one destination for each language, every one of them what the source is.
#[tokio::test(flavor = "multi_thread")]
async fn every_language_keeps_its_destination_equal_to_the_source() {
    let mut scene = Scene::new(300, 1).await;
    let mut config = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n".to_owned();
    let samples = samples();
    for (name, place) in &samples {
        scene.plugin(name, &Guest::new(place));
        config.push_str(&format!(
            "[plugins.{name}]\nmemory_limit = \"128MiB\"\ncall_deadline = \"60s\"\n\
             [[map]]\ntable = \"public.products\"\ntransform = \"{name}\"\nsink = \"out\"\n\
             destination = \"{}\"\n",
            name.replace('-', "_")
        ));
    }
    scene.config(&config);
    scene.host.start().unwrap();
    let settled = async |scene: &Scene| {
        for (name, _) in &samples {
            scene.settled(PRODUCT_DOCUMENTS, &name.replace('-', "_")).await;
        }
    };
    settled(&scene).await;
    scene.client.batch_execute(&shop::insert_products(301, 400, 7)).await.unwrap();
    scene
        .client
        .batch_execute(
            "update public.products set active = not active where id % 5 = 0; \
             update public.products set name = name || ' \"ß\" 😀', price = price * 1.10 where id % 3 = 0; \
             delete from public.products where id % 7 = 0",
        )
        .await
        .unwrap();
    settled(&scene).await;
}

/// As an author who ports a plugin asks: nothing changes, on rows of the real table. Of two versions in one language, the
/// same command tells what does.
#[tokio::test(flavor = "multi_thread")]
async fn a_diff_finds_no_difference_between_languages() {
    let scene = Scene::new(300, 1).await;
    let rust = guests::build(BINARY, &Guest::new("plugins/product-search")).unwrap();
    for (name, place) in samples() {
        // The others take long to compile, and are compiled by the same host.
        if !["product-search-c", "product-search-go"].contains(&name) {
            continue;
        }
        scene.config(&format!(
            "[plugins.{name}]\ncall_deadline = \"20s\"\n[plugins.product-search]\ncall_deadline = \"20s\"\n\
             [sink.out]\nkind = \"null\"\n"
        ));
        let other = guests::build(BINARY, &Guest::new(place)).unwrap();
        let plain = guests::build(BINARY, &Guest::new("plugins/fixtures/hostile")).unwrap();
        let diff = |new: &std::path::Path| {
            let (old, new) = (rust.to_str().unwrap(), new.to_str().unwrap());
            let table = ["--table", "public.products", "--json"];
            let output = scene.host.run(&[&["plugin", "diff", old, new], &table[..]].concat()).unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(0), "{said}");
            serde_json::from_str::<Value>(&said).unwrap()
        };
        let count = |shape: &Value, names: [&str; 6]| names.map(|name| shape[name].as_u64().unwrap());
        let names = ["rows", "changed", "added", "removed", "broken", "answered_otherwise"];
        let same = diff(&other);
        assert_eq!(count(&same, names), [300, 0, 0, 0, 0, 0], "{name}: {same:#}");
        assert!(same["unchanged"].as_u64() > Some(200), "{name}: {same:#}");
        assert_eq!(same["new"], format!("{name} 1.0.0"));
        // One that skips every row makes none of these documents.
        let otherwise = diff(&plain);
        assert_eq!(otherwise["removed"], same["unchanged"], "{otherwise:#}");
    }
}
