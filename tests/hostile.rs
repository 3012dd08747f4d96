//! Guests that misbehave, in the whole: each stops its own mapping, within its limits and with an error that names
//! it, and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::{fs, net::TcpListener, time::Duration};

use scene::{MENDED_DOCUMENTS, SOON, Scene, hostile, mended, orders, products};
use testkit::{
    guests::{self, Guest},
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, insert_orders, insert_products},
    wait_until,
};

/// The most memory that the host may ever hold, unoptimised build and compiler included.
const MEMORY_KIB: u64 = 400 << 10;

/// `bad` is the hostile mapping of the products, `beside` a good one of the same table, `good` one of another.
async fn scene(behave: &str, only: &str, rows: u64) -> Scene {
    let scene = Scene::new(rows, rows).await;
    let only = if only.is_empty() { String::new() } else { format!(", only = \"{only}\"") };
    scene.config(&format!(
        "[plugins.hostile]\nconfig = {{ behave = \"{behave}\"{only} }}\n\
         [sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
         [[map]]\nname = \"bad\"\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n\
         [[map]]\nname = \"beside\"\ntransform = \"product-search\"\ndestination = \"beside\"\n\
         [[map]]\nname = \"good\"\ntransform = \"order-summary\"\ndestination = \"good\"\n",
    ));
    scene.plugin("hostile", &hostile());
    scene.plugin("product-search", &products());
    scene.plugin("order-summary", &orders());
    scene
}

async fn others_are_right(scene: &Scene) {
    scene.settled(PRODUCT_DOCUMENTS, "beside").await;
    scene.settled(ORDER_DOCUMENTS, "good").await;
}

/// Replaces the hostile file by a good version, and waits until nothing is missing.
async fn mend(scene: &mut Scene) {
    scene.plugin("hostile", &mended());
    scene.settled(MENDED_DOCUMENTS, "bad").await;
    others_are_right(scene).await;
    let built = || {
        let mapping = scene.mapping("bad");
        mapping["built"] == mapping["generation"] && mapping["status"] == "running"
    };
    wait_until("the mapping to be built", SOON, async || Ok(built())).await.unwrap();
    let peak = scene.host.peak_memory_kib().unwrap();
    assert!(peak < MEMORY_KIB, "{peak} KiB");
    assert!(scene.host.is_running().unwrap());
    assert_eq!(scene.mapping("bad")["version"], "1.0.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_loops_in_a_backfill_stops_neither_its_table_nor_others_nor_the_link() {
    let mut scene = scene("loop", "", 500).await;
    scene.host.start().unwrap();
    // One table at a time is read, and the one with the hostile mapping comes first.
    others_are_right(&scene).await;
    let error = scene.error_of("bad").await;
    assert!(error.contains("plugin hostile 1.0.0") && error.contains("public.products"), "{error}");
    assert!(error.contains("at LSN"), "{error}");
    assert!(scene.host.log().contains("plugin hostile 1.0.0 on public.products at LSN"));

    // Longer than the three seconds after which the server would end a link that is not answered.
    let pid = scene.slot("active_pid").await;
    let replies = "select coalesce(max(extract(epoch from reply_time)), 0)::float8 from pg_stat_replication
        where pid = (select active_pid from pg_replication_slots where database = current_database())";
    let first: f64 = scene.client.query_one(replies, &[]).await.unwrap().get(0);
    wait_until("replies for more than six seconds", SOON, async || {
        Ok(scene.client.query_one(replies, &[]).await?.get::<_, f64>(0) > first + 6.5)
    })
    .await
    .unwrap();
    assert_eq!(scene.slot("active_pid").await, pid, "the same link");

    let live = insert_products(1001, 1050, 7) + &insert_orders(1001, 1050, 7);
    scene.client.batch_execute(&live).await.unwrap();
    others_are_right(&scene).await;
    assert_eq!(scene.table("bad").count().unwrap(), 0);
    mend(&mut scene).await;
}

/// How a guest misbehaves, and words of what is said of it. The first two wait in the host: for a server that takes what
/// it is sent and says nothing, and for a statement that lasts ten minutes.
const KINDS: [(&str, &[&str]); 20] = [
    ("fetch", &["did not answer within 300ms", "call_deadline"]),
    ("ask", &["did not answer within 300ms", "call_deadline"]),
    ("loop", &["did not answer within 300ms", "call_deadline"]),
    ("pester", &["did not answer within 300ms", "call_deadline"]),
    ("allocate", &["the limit for one instance is 32.0 MiB", "memory_limit"]),
    ("stack", &["used up its stack"]),
    ("trap", &["wasm `unreachable` instruction executed"]),
    ("panic", &["wasm `unreachable` instruction executed"]),
    ("bounds", &["out of bounds memory access"]),
    ("divide", &["integer divide by zero"]),
    ("exit", &["wasm `unreachable` instruction executed"]),
    ("gigantic", &["list pointer/length out of bounds"]),
    ("huge", &["8.0 MiB", "max_output"]),
    ("too-few", &["outcomes; there must be one for each"]),
    ("too-many", &["outcomes; there must be one for each"]),
    ("not-json", &["cannot be read", "payload-json.md"]),
    ("same-id", &["two documents with the same destination and id"]),
    ("deep", &["nested deeper than 128"]),
    ("no-documents", &["emitted no document"]),
    ("many", &["more than 10000 documents", "max_documents"]),
];

/// The hostile guest of a kind: those that wait in the host ask for it.
fn guest(behave: &str) -> Guest {
    if matches!(behave, "fetch" | "ask") { hostile().feature("blocks") } else { hostile() }
}

/// A name of seven letters, which the hostile plugin's own name is, too.
fn name(kind: usize) -> String {
    format!("hbad-{kind:02}")
}

/// The guest with another name in it.
fn named(guest: &Guest, name: &str) -> Vec<u8> {
    const OWN: &[u8] = b"\"name\":\"hostile\"";
    let mut bytes = fs::read(guests::build(scene::BINARY, guest).unwrap()).unwrap();
    let at = bytes.windows(OWN.len()).position(|window| window == OWN).expect("the plugin's name");
    let place = &mut bytes[at + OWN.len() - 8..at + OWN.len() - 1];
    assert_eq!(place, b"hostile");
    place.copy_from_slice(name.as_bytes());
    bytes
}

fn install(scene: &Scene, guest: &Guest, kind: usize) {
    let (place, beside) = (format!("plugins/{}.wasm", name(kind)), format!("plugins/.{}", name(kind)));
    let beside = scene.host.path(&beside);
    fs::write(&beside, named(guest, &name(kind))).unwrap();
    fs::rename(beside, scene.host.path(&place)).unwrap();
}

/// All kinds of hostile guests at once on the products, each a plugin and a mapping of its own, beside good ones.
struct Crowd {
    scene: Scene,
    /// Takes connections, and never answers.
    _silent: TcpListener,
}

async fn crowd(only: &str, rows: u64) -> Crowd {
    let scene = Scene::new(rows, rows).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut config = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
         [[map]]\nname = \"beside\"\ntransform = \"product-search\"\ndestination = \"beside\"\n\
         [[map]]\nname = \"good\"\ntransform = \"order-summary\"\ndestination = \"good\"\n\
         [plugins.product-search]\ncall_deadline = \"20s\"\n[plugins.order-summary]\ncall_deadline = \"20s\"\n"
        .to_owned();
    let only = if only.is_empty() { String::new() } else { format!(", only = \"{only}\"") };
    for (kind, (behave, _)) in KINDS.iter().enumerate() {
        let name = name(kind);
        config.push_str(&format!(
            "[plugins.{name}]\nconfig = {{ behave = \"{behave}\", url = \"{url}\"{only} }}\n\
             [[map]]\nname = \"{behave}\"\ntable = \"public.products\"\ntransform = \"{name}\"\n\
             destination = \"{behave}\"\n"
        ));
        if guest(behave) != hostile() {
            // It is the deadline of the call that ends them.
            config.push_str(&format!(
                "[plugins.{name}.grants]\nhttp = [\"{url}\"]\nprivate_addresses = true\nhttp_timeout = \"10m\"\n\
                 query = true\nquery_timeout = \"10m\"\n"
            ));
        }
    }
    scene.config(&config);
    tokio::task::block_in_place(|| {
        KINDS.iter().enumerate().for_each(|(kind, (behave, _))| install(&scene, &guest(behave), kind));
    });
    scene.plugin("product-search", &products());
    scene.plugin("order-summary", &orders());
    Crowd { scene, _silent: silent }
}

/// Waits until each kind has failed as it should, and looks at what is said.
async fn all_are_told(scene: &Scene) {
    for (kind, (behave, words)) in KINDS.iter().enumerate() {
        // A machine that is busy may have let the deadline pass first; it is tried again.
        let mut error = String::new();
        wait_until("what is said of it", SOON, async || {
            error = scene.mapping(behave)["last_error"].as_str().unwrap_or_default().to_owned();
            Ok(words.iter().any(|word| error.contains(word)))
        })
        .await
        .unwrap_or_else(|timeout| panic!("{behave}: {timeout:#}: {error}\n{}", scene.host.log_tail()));
        for part in
            [format!("plugin {} 1.0.0", name(kind)), "public.products".to_owned(), "at LSN 0/".to_owned()]
        {
            // A document that is refused is told with its row.
            let is_outcome = matches!(*behave, "same-id" | "deep" | "no-documents" | "many");
            assert!(error.contains(&part) || is_outcome, "{behave}: {error}");
        }
        assert_eq!(scene.mapping(behave)["status"], "failing", "{behave}");
    }
}

/// Replaces every hostile file by a good version, and waits until nothing is missing anywhere.
async fn mend_all(scene: &mut Scene) {
    tokio::task::block_in_place(|| (0..KINDS.len()).for_each(|kind| install(scene, &mended(), kind)));
    for (behave, _) in KINDS {
        scene.settled(MENDED_DOCUMENTS, behave).await;
    }
    others_are_right(scene).await;
    let peak = scene.host.peak_memory_kib().unwrap();
    assert!(peak < MEMORY_KIB, "{peak} KiB");
    wait_until("the source to be asked nothing any more", SOON, async || {
        let query = "select count(*)::text from pg_stat_activity where datname = current_database() \
                     and application_name like '%/query' and state <> 'idle'";
        Ok(scene.text(query).await == "0")
    })
    .await
    .unwrap();
}

/// Every one is hostile from its first call on, which is one of the backfill.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_guests_of_every_kind_stop_themselves_and_nobody_else() {
    let Crowd { mut scene, _silent } = crowd("", 300).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    all_are_told(&scene).await;
    let built = || Ok(scene.mapping("beside")["built"] == 1 && scene.mapping("good")["built"] == 1);
    wait_until("the good mappings to be built", SOON, async || built()).await.unwrap();
    // Live, and read again.
    let live = insert_products(1001, 1050, 7) + &insert_orders(1001, 1050, 7);
    scene.client.batch_execute(&live).await.unwrap();
    others_are_right(&scene).await;
    let request = scene.host.run(&["backfill", "request", "public.orders"]).unwrap();
    assert!(request.status.success());
    let waited = scene.host.run(&["backfill", "wait", "public.orders", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stdout));
    for (behave, _) in KINDS {
        assert_eq!(scene.table(behave).count().unwrap(), 0, "{behave}");
    }
    assert!(scene.host.is_running().unwrap());
    mend_all(&mut scene).await;
}

/// Every one is built, and turns hostile at one row.
#[tokio::test(flavor = "multi_thread")]
async fn guests_that_turn_hostile_hold_the_slot_at_their_own_position() {
    let Crowd { mut scene, _silent } = crowd("boom", 50).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    for (behave, _) in KINDS {
        wait_until("the mappings to be built", SOON, async || Ok(scene.mapping(behave)["built"] == 1))
            .await
            .unwrap();
    }
    let before = scene.text("select pg_current_wal_lsn()::text").await;
    let boom = insert_products(2001, 2001, 1).replace("'SKU-'", "'boom-'")
        + "update public.products set sku = 'boom', name = 'boom' where id = 2001;";
    scene.client.batch_execute(&boom).await.unwrap();
    let after = scene.text("select pg_current_wal_lsn()::text").await;
    all_are_told(&scene).await;
    let log = scene.host.wait_log(0, "transform failed", SOON).await.unwrap();
    for part in ["hbad-", "public.products", "lsn"] {
        assert!(log.contains(part), "{log}");
    }
    scene.client.batch_execute(&insert_orders(3001, 3010, 1)).await.unwrap();
    others_are_right(&scene).await;
    let good_is_ahead = format!(
        "select (m.accepted > '{after}')::text from anabranch.mapping m
         where installation = current_database() and name = 'good'"
    );
    wait_until("the good mapping's position to be saved", SOON, async || {
        Ok(scene.client.query_one(&good_is_ahead, &[]).await?.get::<_, String>(0) == "true")
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    let held = format!("confirmed_flush_lsn < '{after}'::pg_lsn and restart_lsn <= '{before}'::pg_lsn");
    assert_eq!(scene.slot(&held).await.as_deref(), Some("true"));
    assert!(scene.host.is_running().unwrap());

    mend_all(&mut scene).await;
    let moves = format!("confirmed_flush_lsn >= '{after}'::pg_lsn");
    wait_until("the slot to move on", SOON, async || Ok(scene.slot(&moves).await.as_deref() == Some("true")))
        .await
        .unwrap();
    scene.host.terminate(Duration::from_secs(30)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_table_whose_only_mapping_fails_leaves_its_turn_to_others() {
    let mut scene = Scene::new(300, 300).await;
    scene.config(
        "[plugins.hostile]\nconfig = { behave = \"trap\" }\n[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n\
         [[map]]\nname = \"bad\"\ntable = \"public.products\"\ntransform = \"hostile\"\ndestination = \"bad\"\n\
         [[map]]\nname = \"good\"\ntransform = \"order-summary\"\ndestination = \"good\"\n\
         [backfill]\nmax_concurrent = 1\n",
    );
    scene.plugin("hostile", &hostile());
    scene.plugin("order-summary", &orders());
    scene.host.start().unwrap();
    scene.settled(ORDER_DOCUMENTS, "good").await;
    scene.error_of("bad").await;
    // The plugin is mended while the host is down: what is stored is enough.
    scene.host.kill().unwrap();
    scene.plugin("hostile", &mended());
    scene.host.start().unwrap();
    scene.settled(MENDED_DOCUMENTS, "bad").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_left_its_run_is_not_taken_for_built_after_a_restart() {
    let mut scene = scene("trap", "", 400).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    scene.host.wait_log(0, "leaves its table's backfill", SOON).await.unwrap();
    wait_until("the good mapping to be built", SOON, async || Ok(scene.mapping("beside")["built"] == 1))
        .await
        .unwrap();
    assert_eq!(scene.mapping("bad")["built"], 0);
    scene.host.kill().unwrap();
    scene.host.start().unwrap();
    scene.streaming().await;
    mend(&mut scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_log_lines_is_dammed() {
    let mut scene = scene("flood", "", 50).await;
    scene.host.start().unwrap();
    others_are_right(&scene).await;
    wait_until("the flooding mapping to be built", SOON, async || Ok(scene.mapping("bad")["built"] == 1))
        .await
        .unwrap();
    assert!(scene.host.log_length() < 1 << 20, "{} bytes", scene.host.log_length());
    assert!(scene.host.peak_memory_kib().unwrap() < MEMORY_KIB);
}
