//! Sinks that are components, in the whole: what reaches them, and what becomes of those that misbehave.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::{collections::BTreeMap, fs, time::Duration};

use scene::{SOON, Scene, orders, products};
use serde_json::Value;
use testkit::{
    guests::Guest,
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, insert_products},
    wait_until,
};

fn odd() -> Guest {
    Guest::new("plugins/fixtures/odd-sink")
}

fn memory() -> Guest {
    Guest::new("plugins/fixtures/memory-sink")
}

/// The odd sink, mended: it accepts everything.
fn mended(version: &str) -> Guest {
    odd().version(version).feature("mended")
}

/// A scene whose products go to odd sinks, one for each of some `config` tables, and to a good one; so do the orders.
/// The mapping, its sink and its destination have the name that is given with the table.
async fn scene(rows: u64, sinks: &[(&str, &str)]) -> Scene {
    scene_with(rows, "instances = 4\n", sinks, "").await
}

/// The same with other settings of plugins, and more settings for the mappings of odd sinks.
async fn scene_with(rows: u64, plugins: &str, sinks: &[(&str, &str)], map: &str) -> Scene {
    let scene = Scene::new(rows, rows).await;
    let mut rest = plugins.to_owned()
        + "[log]\nformat = \"json\"\n[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
        [[map]]\nname = \"good\"\ntransform = \"product-search\"\nsink = \"out\"\ndestination = \"good\"\n\
        [[map]]\nname = \"orders\"\ntransform = \"order-summary\"\nsink = \"out\"\ndestination = \"orders\"\n";
    for (name, config) in sinks {
        rest += &format!(
            "[sink.{name}]\nkind = \"plugin\"\nplugin = \"odd-sink\"\nconfig = {{ {config} }}\n\
             [[map]]\nname = \"{name}\"\ntransform = \"product-search\"\nsink = \"{name}\"\ndestination = \"{name}\"\n\
             {map}\n"
        );
    }
    scene.config(&rest);
    scene.plugin("product-search", &products());
    scene.plugin("order-summary", &orders());
    scene.plugin("odd-sink", &odd());
    scene
}

async fn others_are_right(scene: &Scene) {
    scene.settled(PRODUCT_DOCUMENTS, "good").await;
    scene.settled(ORDER_DOCUMENTS, "orders").await;
}

/// The odd sink's lines since a place in the log, for one destination: operation, destination, id, document.
fn told(scene: &Scene, from: usize, destination: &str) -> Vec<Value> {
    let log = scene.host.log();
    assert!(!log.contains("log lines were dropped"), "the log is not whole");
    let lines = log[from..].lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = lines.filter_map(|line| {
        let message = line["fields"]["message"].as_str().or(line["message"].as_str())?;
        Some(serde_json::from_str::<Value>(message.strip_prefix("accepted ")?).unwrap())
    });
    said.filter(|said| said[1] == destination).collect()
}

/// What these come to: the last word on each id.
fn accepted(scene: &Scene, from: usize, destination: &str) -> BTreeMap<String, Value> {
    let mut documents = BTreeMap::new();
    for said in told(scene, from, destination) {
        let id = said[2].as_str().unwrap().to_owned();
        match said[0].as_str().unwrap() {
            "upsert" => documents.insert(id, said[3].clone()),
            _ => documents.remove(&id),
        };
    }
    documents
}

async fn expected(scene: &Scene) -> BTreeMap<String, Value> {
    let query = format!("select id::text, document::text from ({PRODUCT_DOCUMENTS}) as d");
    let rows = scene.client.query(&query, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect()
}

/// Waits until a destination of an odd sink, as far as the log tells of it, is what it should be.
async fn arrives(scene: &Scene, from: usize, destination: &str) {
    let want = expected(scene).await;
    wait_until("everything to arrive", SOON, async || Ok(accepted(scene, from, destination) == want))
        .await
        .unwrap_or_else(|error| {
            let got = accepted(scene, from, destination);
            panic!("{destination}: {error:#}\nwant {want:?}\ngot {got:?}\n{}", scene.host.log_tail())
        });
}

async fn runs(scene: &Scene, name: &str, generation: i64) {
    wait_until("the mapping to run and to be built", SOON, async || {
        let mapping = scene.mapping(name);
        Ok(mapping["status"] == "running"
            && mapping["built"] == generation
            && mapping["generation"] == generation)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", scene.mapping(name), scene.host.log_tail()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_gets_every_document_in_order() {
    let mut scene = scene(30, &[("odd", "")]).await;
    scene.host.start().unwrap();
    arrives(&scene, 0, "odd").await;
    for price in 1..=20 {
        let update = format!("update public.products set active = true, price = {price} where id in (1, 2)");
        scene.client.batch_execute(&update).await.unwrap();
    }
    scene.client.batch_execute("delete from public.products where id = 3").await.unwrap();
    arrives(&scene, 0, "odd").await;
    let log = scene.host.log();
    let prices: Vec<f64> = log
        .lines()
        .filter(|line| {
            line.contains("accepted [") && line.contains("\\\"odd\\\",\\\"1\\\"") && line.contains("stream")
        })
        .filter_map(|line| line.split("price\\\":").nth(1)?.split([',', '}']).next()?.parse().ok())
        .collect();
    assert_eq!(
        prices[prices.len() - 20..],
        (1..=20).map(f64::from).collect::<Vec<_>>(),
        "in the order of commits"
    );
    runs(&scene, "odd", 1).await;
    assert_eq!(scene.mapping("odd")["version"], "1.0.0 / 1.0.0");
    assert_eq!(scene.mapping("good")["version"], "1.0.0");
    others_are_right(&scene).await;
}

/// Name, settings, and what the error has to say.
const MISBEHAVING: &[(&str, &str, &[&str])] = &[
    ("trap", "behave = \"trap\", only = \"boom\"", &["it crashed", "delivering public.products at LSN 0/"]),
    ("loop", "behave = \"loop\", only = \"boom\"", &["did not answer within 300ms", "call_deadline"]),
    ("allocate", "behave = \"allocate\", only = \"boom\"", &["memory_limit"]),
    ("few", "behave = \"too-few\", only = \"boom\"", &["with 1 results; there must be one for each"]),
    ("many", "behave = \"too-many\", only = \"boom\"", &["with 3 results; there must be one for each"]),
    ("text", "behave = \"not-json\", only = \"boom\"", &["cannot be read", "payload-json.md"]),
    ("none", "behave = \"empty\", only = \"boom\"", &["cannot be read"]),
    ("huge", "behave = \"huge\", only = \"boom\"", &["max_output"]),
    ("poison", "behave = \"poison\", only = \"boom\"", &["it was asked to fail", "(asked, poison)", "2001"]),
    ("retry", "behave = \"retry\", only = \"boom\"", &["it was asked to fail", "(asked, retry)", "2001"]),
    ("fatal", "behave = \"fatal\", only = \"boom\"", &["it was asked to fail", "(asked, fatal)", "2001"]),
    ("batch", "behave = \"retry-batch\", only = \"boom\"", &["it failed the batch", "(asked, retry)"]),
    (
        "refuse",
        "behave = \"refuse\"",
        &["cannot be opened", "no sink can work like that", "(settings, fatal)"],
    ),
    ("unknown", "behaev = \"trap\"", &["cannot be opened", "no setting `behaev`"]),
    ("closed", "behave = \"trap-open\"", &["it crashed"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_misbehaving_sink_stops_its_own_mapping_and_says_why() {
    let sinks: Vec<_> = MISBEHAVING.iter().map(|(name, config, _)| (*name, *config)).collect();
    let mut scene = scene(2, &sinks).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    let boom = insert_products(2001, 2001, 1).replace("'SKU-'", "'boom-'")
        + "update public.products set name = 'boom', active = true where id = 2001;";
    scene.client.batch_execute(&boom).await.unwrap();
    others_are_right(&scene).await;
    for (name, _, parts) in MISBEHAVING {
        let error = scene.error_of(name).await;
        for part in [&["plugin odd-sink 1.0.0", &format!("sink {name}")], *parts].concat() {
            assert!(error.contains(part), "{name}: {part} is not in: {error}");
        }
        assert_eq!(scene.mapping(name)["status"], "failing", "{name}");
    }
    // What comes meanwhile reaches the others.
    scene.client.batch_execute("update public.products set price = 5 where id = 1").await.unwrap();
    others_are_right(&scene).await;
    assert_eq!(scene.mapping("good")["status"], "running");
    assert!(scene.host.is_running().unwrap());

    let from = scene.host.log_length();
    scene.plugin("odd-sink", &mended("1.0.1"));
    for (name, _, _) in MISBEHAVING {
        arrives(&scene, from, name).await;
        runs(&scene, name, 2).await;
        assert_eq!(scene.mapping(name)["version"], "1.0.0 / 1.0.1", "{name}");
    }
    // Mappings of other sinks have nothing to do with it.
    assert_eq!(scene.mapping("good")["generation"], 1);
    assert_eq!(scene.mapping("orders")["generation"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sink_wants_to_have_again_it_gets_again_and_nothing_before_it() {
    let mut scene = scene(20, &[("odd", "behave = \"retry\", only = \"boom\", times = 5")]).await;
    scene.host.start().unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;
    let before = told(&scene, 0, "odd");
    let change = "begin; update public.products set active = true, price = 7 where id = 1; \
                  update public.products set active = true, name = 'boom' where id = 2; \
                  update public.products set active = true, price = 9 where id = 3; commit";
    scene.client.batch_execute(change).await.unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;
    let after = told(&scene, 0, "odd");
    let again: Vec<&str> = after[before.len()..].iter().filter_map(|said| said[2].as_str()).collect();
    assert!(again.iter().all(|id| ["1", "2", "3"].contains(id)), "{again:?}");
    let times = |id: &str| again.iter().filter(|other| **other == id).count();
    assert_eq!(times("2"), 1, "it is accepted once: {again:?}");
    assert!(times("1") > 1 && times("3") > 1, "the batch comes again: {again:?}");
    others_are_right(&scene).await;
}

/// A component that cannot take a document, by itself or by failing the whole batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_a_component_rejects_is_kept_in_quarantine() {
    let sinks = [
        ("one", "behave = \"poison\", only = \"boom\""),
        ("whole", "behave = \"poison-batch\", only = \"boom\""),
    ];
    let mut scene = scene_with(20, "instances = 4\n", &sinks, "on_failure = \"quarantine\"").await;
    scene.host.start().unwrap();
    for (name, _) in sinks {
        arrives(&scene, 0, name).await;
        runs(&scene, name, 1).await;
    }
    let change = "begin; update public.products set active = true, price = 7 where id = 1; \
                  update public.products set active = true, name = 'boom' where id = 2; \
                  update public.products set active = true, price = 9 where id = 3; commit";
    scene.client.batch_execute("update public.products set active = false where id = 2").await.unwrap();
    scene.client.batch_execute(change).await.unwrap();
    let mut want = expected(&scene).await;
    want.remove("2");
    for (name, _) in sinks {
        wait_until("the others to arrive", SOON, async || Ok(accepted(&scene, 0, name) == want))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error:#}\n{}", scene.host.log_tail()));
    }
    let query = "select coalesce(string_agg(concat_ws(' ', mapping, row_id, stage, code, document_id), ', ' \
                 order by mapping), '') from anabranch.quarantine";
    wait_until("both to be kept", SOON, async || {
        Ok(scene.text(query).await == "one 2 delivery asked 2, whole 2 delivery asked 2")
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    for (name, _) in sinks {
        let mapping = scene.mapping(name);
        assert_eq!(
            (&mapping["status"], &mapping["quarantined"]),
            (&"running".into(), &1.into()),
            "{mapping}"
        );
    }

    // The next version takes it, and has nothing in quarantine.
    let from = scene.host.log_length();
    scene.plugin("odd-sink", &mended("1.0.1"));
    for (name, _) in sinks {
        arrives(&scene, from, name).await;
        runs(&scene, name, 2).await;
    }
    wait_until("the quarantine to be empty", SOON, async || Ok(scene.text(query).await.is_empty()))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    others_are_right(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bump_of_the_sink_rebuilds_its_mappings_and_no_others() {
    let mut scene = scene(20, &[("odd", "")]).await;
    scene.host.start().unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;

    // The same version with other bytes is refused, and what ran goes on.
    scene.plugin("odd-sink", &mended("1.0.0"));
    scene.host.wait_log(0, "has other bytes than the 1.0.0", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set price = 3 where id = 1").await.unwrap();
    arrives(&scene, 0, "odd").await;

    // What does not load changes nothing.
    let place = scene.host.path("plugins/odd-sink.wasm");
    fs::write(&place, "not WebAssembly").unwrap();
    scene.host.wait_log(0, "a plugin was not taken up", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set price = 4 where id = 1").await.unwrap();
    arrives(&scene, 0, "odd").await;
    assert_eq!(scene.mapping("odd")["generation"], 1);

    // While it runs.
    let from = scene.host.log_length();
    scene.plugin("odd-sink", &odd().version("1.1.0"));
    arrives(&scene, from, "odd").await;
    runs(&scene, "odd", 2).await;

    // And over a restart, which `plan` foretells.
    scene.host.terminate(Duration::from_secs(30)).unwrap();
    scene.plugin("odd-sink", &odd().version("1.2.0"));
    let plan = scene.host.run(&["plan", "--json"]).unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let action = |name: &str| {
        let steps = plan["mappings"].as_array().unwrap();
        steps.iter().find(|step| step["mapping"] == name).unwrap().clone()
    };
    assert_eq!(action("odd")["action"], "rebuild");
    assert_eq!(action("odd")["reasons"], serde_json::json!(["odd-sink 1.1.0 → 1.2.0"]));
    assert_eq!(action("good")["action"], "unchanged");
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    arrives(&scene, from, "odd").await;
    runs(&scene, "odd", 3).await;
    assert_eq!(scene.mapping("good")["generation"], 1);
    assert_eq!(scene.mapping("orders")["generation"], 1);
    others_are_right(&scene).await;
}

/// Ends a term as a cut connection does, and waits for the next one. Gives the place in the log where it was cut.
async fn cut(scene: &mut Scene) -> usize {
    let from = scene.host.log_length();
    let query = "select count(pg_terminate_backend(pid)) from pg_stat_replication
        where pid = (select active_pid from pg_replication_slots where slot_name = current_database())";
    assert_eq!(scene.client.query_one(query, &[]).await.unwrap().get::<_, i64>(0), 1);
    scene.host.wait_log(from, "the term ended", SOON).await.unwrap();
    scene.host.wait_log(from, "\"streaming\"", SOON).await.unwrap();
    from
}

/// Whether what was swapped in place is still what runs, and nothing was built again after a place in the log.
async fn stayed(scene: &Scene, from: usize, generation: i64, version: &str, accepted_from: usize) {
    scene.client.batch_execute("update public.products set active = true, stock = stock + 1").await.unwrap();
    arrives(scene, accepted_from, "odd").await;
    others_are_right(scene).await;
    runs(scene, "odd", generation).await;
    assert_eq!(scene.mapping("odd")["version"], version);
    let log = scene.host.log();
    for words in ["is rebuilt", "is run by this plugin", "does not run", "swapped its"] {
        assert!(!log[from..].contains(words), "{words}\n{}", &log[from..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_swapped_in_place_outlives_its_term() {
    let mut scene = scene(20, &[("odd", "")]).await;
    scene.host.start().unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;
    scene.plugin("product-search", &products().version("1.1.0"));
    runs(&scene, "odd", 2).await;
    let swapped = scene.host.log_length();
    scene.plugin("odd-sink", &odd().version("1.1.0"));
    runs(&scene, "odd", 3).await;
    runs(&scene, "good", 2).await;
    let from = cut(&mut scene).await;
    stayed(&scene, from, 3, "1.1.0 / 1.1.0", swapped).await;

    // Other bytes of the same versions: what is refused while it runs is refused for the next term as well.
    let touched = scene.host.log_length();
    scene.plugin("odd-sink", &mended("1.1.0"));
    scene.host.wait_log(touched, "odd-sink 1.1.0 has other bytes", SOON).await.unwrap();
    let path = scene.host.path("plugins/product-search.wasm");
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(&[0, 7, 5, b't', b'o', b'u', b'c', b'h', 1]);
    fs::write(scene.host.path("plugins/.touched"), bytes).unwrap();
    fs::rename(scene.host.path("plugins/.touched"), &path).unwrap();
    scene.host.wait_log(touched, "product-search 1.1.0 has other bytes", SOON).await.unwrap();
    let from = cut(&mut scene).await;
    stayed(&scene, from, 3, "1.1.0 / 1.1.0", swapped).await;

    // And what changes then is taken up, in place and from the files as they are.
    let from = scene.host.log_length();
    scene.plugin("odd-sink", &odd().version("1.2.0"));
    arrives(&scene, from, "odd").await;
    runs(&scene, "odd", 4).await;
    assert_eq!(scene.mapping("odd")["version"], "1.1.0 / 1.2.0");
    assert_eq!(scene.mapping("good")["generation"], 2);
    scene.plugin("product-search", &products().version("1.2.0"));
    runs(&scene, "odd", 5).await;
    runs(&scene, "good", 3).await;
    let from = cut(&mut scene).await;
    stayed(&scene, from, 5, "1.2.0 / 1.2.0", from).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_whose_file_is_deleted_stops_and_goes_on_where_it_was() {
    let mut scene = scene(20, &[("odd", "")]).await;
    scene.host.start().unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;
    let place = scene.host.path("plugins/odd-sink.wasm");
    let aside = scene.host.path("odd-sink.aside");
    fs::rename(&place, &aside).unwrap();
    let error = scene.error_of("odd").await;
    assert!(error.contains("odd-sink 1.0.0 was removed") && error.contains("Put it back"), "{error}");
    scene.client.batch_execute(&insert_products(3001, 3010, 1)).await.unwrap();
    others_are_right(&scene).await;
    assert_eq!(accepted(&scene, 0, "odd").keys().filter(|id| id.starts_with("30")).count(), 0);
    fs::rename(&aside, &place).unwrap();
    arrives(&scene, 0, "odd").await;
    runs(&scene, "odd", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_deliveries_loses_nothing() {
    let mut scene = scene(25, &[("odd", "")]).await;
    for round in 0..4_u64 {
        let before = scene.host.log_length();
        scene.host.start().unwrap();
        let first = 10_001 + round * 10;
        scene.client.batch_execute(&insert_products(first, first + 4, round)).await.unwrap();
        scene.host.wait_log(before, "accepted [", SOON).await.unwrap();
        scene.client.batch_execute(&insert_products(first + 5, first + 9, round)).await.unwrap();
        scene.host.kill().unwrap();
    }
    scene.host.start().unwrap();
    scene.client.batch_execute("delete from public.products where id % 10 = 5").await.unwrap();
    arrives(&scene, 0, "odd").await;
    others_are_right(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_of_the_sdk_keeps_documents_and_empties_destinations() {
    let mut scene = Scene::new(12, 1).await;
    scene.host.env("SINK_KEY", "marker-4711");
    scene.config(
        "instances = 1\n[sink.memory]\nkind = \"plugin\"\nplugin = \"memory-sink\"\n\
         config = { room = 12, key = \"${SINK_KEY}\" }\n\
         [[map]]\nname = \"memory\"\ntransform = \"product-search\"\nsink = \"memory\"\n",
    );
    scene.plugin("product-search", &products());
    scene.plugin("memory-sink", &memory());
    scene.client.batch_execute("update public.products set active = true").await.unwrap();
    scene.host.start().unwrap();
    scene.host.wait_log(0, "holds 12 documents", SOON).await.unwrap();
    assert!(scene.host.log().contains("opened with a key of 11 characters"));
    runs(&scene, "memory", 1).await;

    scene.client.batch_execute("delete from public.products where id = 1").await.unwrap();
    scene.host.wait_log(0, "holds 11 documents", SOON).await.unwrap();
    scene.client.batch_execute("truncate public.products cascade").await.unwrap();
    scene.host.wait_log(0, "purged products, holds 0 documents", SOON).await.unwrap();
    let many = insert_products(1, 13, 1) + "update public.products set active = true;";
    scene.client.batch_execute(&many).await.unwrap();
    let error = scene.error_of("memory").await;
    assert!(error.contains("there is room for 12") && error.contains("(full, poison)"), "{error}");
    assert!(!scene.host.log().contains("marker-4711"), "a secret");
}

/// A sink that learns to build beside what readers see, and one that knows it no more: what is built from then on is built
/// as the sink can, what was read before is where it is, and what only the one before could go on with is read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_goes_on_as_its_sink_can() {
    let mut scene = Scene::new(300, 1).await;
    scene.config(
        "instances = 1\n[plugins.memory-sink]\nrederive = { patch = false }\n\
         [sink.memory]\nkind = \"plugin\"\nplugin = \"memory-sink\"\nconfig = { room = 1000 }\n\
         [[map]]\nname = \"memory\"\ntransform = \"product-search\"\nsink = \"memory\"\n\
         [backfill]\nchunk_size = 20\n",
    );
    // The releases differ by their patch numbers: nothing is rebuilt for these.
    let beside = || memory().version("1.1.0").feature("generations");
    let in_place = || memory().version("1.1.1");
    let asked = |scene: &Scene, arguments: &[&str]| {
        let asked = scene.host.run(&[&["backfill"], arguments].concat()).unwrap();
        assert!(asked.status.success(), "{asked:?}");
    };
    let stored = async |scene: &Scene, query: &str| {
        wait_until(query, SOON, async || Ok(scene.client.query_one(query, &[]).await?.get(0)))
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    };
    const BEGUN: &str =
        "select count(*) = 1 from anabranch.mapping where name = 'memory' and building is not null";
    const READ: &str = "select count(*) = 1 from anabranch.run where entity = 'public.products' \
                        and status = 'running' and rows > 0";
    scene.plugin("product-search", &products());
    scene.plugin("memory-sink", &memory());
    scene.client.batch_execute("update public.products set active = true").await.unwrap();
    scene.host.start().unwrap();
    scene.host.wait_log(0, "holds 300 documents", SOON).await.unwrap();
    runs(&scene, "memory", 1).await;

    // A bump to one that can.
    let from = scene.host.log_length();
    scene.plugin("memory-sink", &beside());
    scene.host.wait_log(from, "switched products to 2-", SOON).await.unwrap();
    runs(&scene, "memory", 2).await;

    // In the middle of a rebuild, to one that cannot go on with it.
    asked(&scene, &["rate", "5"]);
    asked(&scene, &["request", "memory"]);
    stored(&scene, BEGUN).await;
    stored(&scene, READ).await;
    let from = scene.host.log_length();
    scene.plugin("memory-sink", &in_place());
    scene.host.wait_log(from, "its sink builds in place now", SOON).await.unwrap();
    asked(&scene, &["rate", "none"]);
    scene.host.wait_log(from, "holds 300 documents", SOON).await.unwrap();
    runs(&scene, "memory", 4).await;

    // In the middle of one in place, to one that can: the rows that were read are where they are.
    asked(&scene, &["rate", "5"]);
    asked(&scene, &["request", "memory"]);
    stored(&scene, READ).await;
    scene.host.terminate(Duration::from_secs(30)).unwrap();
    scene.plugin("memory-sink", &beside());
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    asked(&scene, &["rate", "none"]);
    runs(&scene, "memory", 5).await;
    assert!(!scene.host.log()[from..].contains("is built beside"), "{}", &scene.host.log()[from..]);

    // And while nobody looks.
    asked(&scene, &["rate", "5"]);
    asked(&scene, &["request", "memory"]);
    stored(&scene, BEGUN).await;
    stored(&scene, READ).await;
    scene.host.terminate(Duration::from_secs(30)).unwrap();
    scene.plugin("memory-sink", &in_place());
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    scene.host.wait_log(from, "its sink builds in place now", SOON).await.unwrap();
    asked(&scene, &["rate", "none"]);
    scene.host.wait_log(from, "holds 300 documents", SOON).await.unwrap();
    runs(&scene, "memory", 7).await;
}

/// As one whose server does not answer: the call lasts as long as the deadline lets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_hangs_takes_no_instance_from_another_sink_of_its_plugin() {
    let plugins = "instances = 1\n[plugins.odd-sink]\ncall_deadline = \"10m\"\n";
    let sinks = [("hangs", "behave = \"loop\", only = \"boom\""), ("odd", "")];
    let mut scene = scene_with(10, plugins, &sinks, "").await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    for name in ["hangs", "odd"] {
        arrives(&scene, 0, name).await;
        runs(&scene, name, 1).await;
    }
    let boom = "update public.products set active = true, name = 'boom'";
    scene.client.batch_execute(boom).await.unwrap();
    scene.host.wait_log(0, "spins from now on", SOON).await.unwrap();
    scene.client.batch_execute("update public.products set stock = stock + 1").await.unwrap();
    arrives(&scene, 0, "odd").await;
    others_are_right(&scene).await;
    assert!(!accepted(&scene, 0, "hangs").values().any(|document| document.to_string().contains("boom")));
    assert_eq!(scene.mapping("hangs")["last_error"], Value::Null, "it waits, and no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_what_a_sink_repeats_of_its_settings_is_told_nowhere() {
    let key = "marker-4711\\";
    let mut scene = Scene::new(6, 1).await;
    scene.host.env("SINK_KEY", key);
    let mut config = "instances = 4\n".to_owned();
    for behave in ["poison", "retry", "fatal", "retry-batch", "poison-batch", "refuse"] {
        config += &format!(
            "[sink.{behave}]\nkind = \"plugin\"\nplugin = \"odd-sink\"\n\
             config = {{ behave = \"{behave}\", only = \"boom\", key = \"${{SINK_KEY}}\" }}\n\
             [[map]]\nname = \"{behave}\"\ntransform = \"product-search\"\nsink = \"{behave}\"\n"
        );
    }
    config += "[[map]]\nname = \"kept\"\ntransform = \"product-search\"\nsink = \"poison\"\n\
               destination = \"kept\"\non_failure = \"quarantine\"\n";
    scene.config(&config);
    scene.plugin("product-search", &products());
    scene.plugin("odd-sink", &odd());
    scene
        .client
        .batch_execute("update public.products set active = true, name = 'boom' where id = 2")
        .await
        .unwrap();
    scene.host.start().unwrap();
    let mut told = String::new();
    for behave in ["poison", "retry", "fatal", "retry-batch", "poison-batch", "refuse"] {
        let error = scene.error_of(behave).await;
        assert!(error.contains("***"), "{behave}: {error}");
        told += &error;
    }
    let entries = async |scene: &Scene| {
        let listed = scene.host.run(&["quarantine", "list", "--json"]).unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    wait_until("the entry", SOON, async || Ok(entries(&scene).await.contains("it was asked to fail")))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    told += &entries(&scene).await;
    told += &scene.text("select string_agg(t::text, ' ') from anabranch.quarantine as t").await;
    told += &scene.text("select string_agg(t::text, ' ') from anabranch.mapping as t").await;
    told += &scene.host.status().unwrap().to_string();
    told += &scene.host.log();
    assert!(!told.contains("marker-4711"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_and_inspect_know_sinks() {
    let scene = scene(1, &[("odd", "")]).await;
    scene.plugin("memory-sink", &memory());
    let checked = scene.host.run(&["check", "--json"]).unwrap();
    let check: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(check["ok"], true, "{check}");
    let notices = check["notices"].to_string();
    assert!(notices.contains("memory-sink") && notices.contains("no [sink.<name>] names it"), "{notices}");

    let inspected = scene.host.run(&["plugin", "inspect", "plugins/memory-sink.wasm", "--json"]).unwrap();
    let inspection: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!(
        (&inspection["loadable"], &inspection["kind"]),
        (&true.into(), &"sink".into()),
        "{inspection}"
    );
    assert!(inspection["exports"].to_string().contains("anabranch:plugin/purge@1.0.0"), "{inspection}");
    let tested = scene.host.run(&["plugin", "test", "plugins/memory-sink.wasm"]).unwrap();
    assert!(!tested.status.success());
    assert!(String::from_utf8_lossy(&tested.stderr).contains("is a sink"), "{tested:?}");

    fs::remove_file(scene.host.path("plugins/odd-sink.wasm")).unwrap();
    let checked = scene.host.run(&["check", "--json"]).unwrap();
    assert_eq!(checked.status.code(), Some(2));
    let check: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let problem = check["problems"][0].to_string();
    assert!(problem.contains("sink.odd") && problem.contains("no plugin in"), "{problem}");
}
