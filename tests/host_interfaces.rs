//! What hosts offer to transforms, in the whole: questions to the source, a store, numbers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;
#[path = "http/web.rs"]
mod web;

use std::collections::BTreeMap;

use scene::{BINARY, SOON, Scene};
use serde_json::Value;
use testkit::{
    Cluster, ClusterOptions, Host,
    checker::Destination,
    guests::{Guest, build, install},
    wait_until,
};
use tokio_postgres::Client;
use web::Web;

const TABLE: &str =
    "create table public.things (id int primary key, ask text not null, arg text not null, v text)";

fn capable() -> Guest {
    ["query", "state", "metrics"]
        .into_iter()
        .fold(Guest::new("plugins/fixtures/capable"), |guest, feature| guest.feature(feature))
}

const GRANTS: &str = "[plugins.capable]\ncall_deadline = \"20s\"\ninstances = 2\n[plugins.capable.grants]\n\
                      query = true\nstate = true\nmetrics = true\n";
const SINK: &str = "[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n";

fn map(name: &str, more: &str) -> String {
    format!("[[map]]\nname = \"{name}\"\ntransform = \"capable\"\ndestination = \"{name}\"\n{more}\n")
}

async fn scene(grants: &str, maps: &str) -> Scene {
    let scene = Scene::new(1, 1).await;
    scene.client.batch_execute(TABLE).await.unwrap();
    scene.plugin("capable", &capable());
    scene.config(&format!("{GRANTS}{grants}{SINK}{maps}"));
    scene
}

async fn ask(client: &Client, id: i32, what: &str, arg: &str) {
    let insert = "insert into public.things values ($1, $2, $3, 'v' || $1::int)";
    client.execute(insert, &[&id, &what, &arg]).await.unwrap();
}

async fn document(host: &Host, table: &Destination, id: i32) -> Value {
    wait_until("the document", SOON, async || Ok(table.get(&id.to_string())?.is_some()))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", host.log_tail()));
    table.get(&id.to_string()).unwrap().unwrap()
}

async fn answer(scene: &Scene, table: &str, id: i32) -> Value {
    document(&scene.host, &scene.table(table), id).await
}

/// A question, its parameters, and what comes of it: rows, or what is said of the failure.
type Asked<'a> = (&'a str, &'a str, Result<&'a str, &'a [&'a str]>);

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_and_bounded_and_only_read() {
    let mut scene =
        scene("query_timeout = \"500ms\"\nquery_max_rows = 50\nquery_max_bytes = \"64KiB\"\n", &map("m", ""))
            .await;
    scene.host.start().unwrap();
    scene.streaming().await;
    let asked: &[Asked<'_>] = &[
        ("query", "select v from public.things where id = $1::int", Ok("v1")),
        ("query", "select id from public.things where id = $1::int", Ok("")),
        ("query-many", "select v from public.things where id = $1::int", Ok("a;null;v3")),
        ("query-plain", "values ('a'), (null), ('c;d')", Ok("a, null, c;d")),
        (
            "query-plain",
            "with x as (delete from public.things returning v) select * from x",
            Err(&["query-writes"]),
        ),
        ("query-plain", "select nextval('public.counter')::text", Err(&["query-writes"])),
        (
            "query-plain",
            "select set_config('transaction_read_only', 'off', false)",
            Err(&["query-statement", "transaction read-write mode"]),
        ),
        ("query-plain", "commit", Err(&["query-statement", "gives no rows"])),
        (
            "query-plain",
            "select '1'; delete from public.things",
            Err(&["query-statement", "multiple commands"]),
        ),
        (
            "query-plain",
            "select nothing from public.things",
            Err(&["query-statement", "nothing", "in: select nothing"]),
        ),
        (
            "query-plain",
            "select v from public.things where id = $1::int",
            Err(&["takes 1 parameters and was given 0"]),
        ),
        ("query", "select $1::int / 0", Err(&["query-data", "poison"])),
        (
            "query-plain",
            "select n::text from generate_series(1, 51) as n",
            Err(&["query-rows", "query_max_rows"]),
        ),
        ("query-plain", "select repeat('x', 70000)", Err(&["query-bytes", "query_max_bytes"])),
        ("query-plain", "select 'slow' from pg_sleep(20)", Err(&["query-timeout", "query_timeout", "retry"])),
        (
            "query-two",
            "select set_config('statement_timeout', '0', true); select 'slow' from pg_sleep(1000)",
            Err(&["query-timeout", "query_timeout", "retry"]),
        ),
        ("query-plain", "select count(*)::text from public.things", Ok("17")),
    ];
    scene.client.batch_execute("create sequence public.counter").await.unwrap();
    for (id, (what, arg, expected)) in (1..).zip(asked) {
        ask(&scene.client, id, what, arg).await;
        let document = answer(&scene, "m", id).await;
        match expected {
            // A number comes as a number, which the guest does not take for text.
            Ok("") => assert!(document["error"].as_str().unwrap().contains("query-row"), "{document}"),
            Ok(text) => assert_eq!(document["answer"], *text, "{arg}: {document}"),
            Err(words) => {
                let error = document["error"].as_str().unwrap_or_else(|| panic!("{arg}: {document}"));
                assert!(words.iter().all(|word| error.contains(word)), "{arg}: {error}");
            }
        }
    }
    assert_eq!(scene.text("select last_value::text || is_called from public.counter").await, "1false");

    // Who does not let itself be cancelled keeps its turn: others wait for theirs, and there are no more sessions.
    let stubborn = "create function public.stubborn() returns text language plpgsql as $$ begin loop begin \
                    perform pg_sleep(1); exception when query_canceled then null; end; end loop; end $$";
    scene.client.batch_execute(stubborn).await.unwrap();
    for id in 101..=106 {
        ask(&scene.client, id, "query-plain", "select public.stubborn()").await;
        let document = answer(&scene, "m", id).await;
        assert!(document["error"].as_str().unwrap().contains("query-timeout"), "{document}");
    }
    let sessions =
        "from pg_stat_activity where datname = current_database() and application_name like '%/query'";
    assert_eq!(scene.text(&format!("select count(*)::text {sessions}")).await, "4");
    scene.text(&format!("select count(pg_terminate_backend(pid))::text {sessions}")).await;
    wait_until("the server to be done with all of it", SOON, async || {
        let query = "select count(*)::text from pg_stat_activity where datname = current_database() \
                     and application_name like '%/query' and state <> 'idle'";
        Ok(scene.text(query).await == "0")
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_asked_by_the_role_that_is_meant_for_it() {
    let mut scene = scene("", &map("m", "")).await;
    // Roles are of the whole server, which tests share.
    let role = format!("asker_{}", scene.database.name);
    scene.client.batch_execute(&format!("create role {role} login")).await.unwrap();
    let url = scene.database.url.replacen("postgres@", &format!("{role}@"), 1);
    assert!(url.contains(&role), "{url}");
    scene.config(&format!("{GRANTS}query_url = \"{url}\"\n{SINK}{}", map("m", "")));
    scene.host.start().unwrap();
    scene.streaming().await;
    ask(&scene.client, 1, "query-plain", "select current_user::text").await;
    assert_eq!(answer(&scene, "m", 1).await["answer"], *role);
    ask(&scene.client, 2, "query-plain", "select v from public.things").await;
    let error = answer(&scene, "m", 2).await;
    assert!(error["error"].as_str().unwrap().contains("query-rights"), "{error}");
    let terminate = "select pg_terminate_backend(pid)::text from pg_stat_activity where datname = current_database() and backend_type = 'walsender'";
    ask(&scene.client, 3, "query-plain", terminate).await;
    let error = answer(&scene, "m", 3).await;
    assert!(error["answer"] == "" || error["error"].is_string(), "{error}");
    scene.host.terminate(SOON).unwrap();
    scene.client.batch_execute(&format!("drop role {role}")).await.unwrap();
}

/// Rows that are changed again and again, each asked for at once: no answer is older than its change.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_sees_the_change_that_asks() {
    let mut scene = scene("", &map("m", "")).await;
    let rows = "insert into public.things select n, 'strict', \
                'select v from public.things where id = $1::int', '0' from generate_series(1, 20) as n";
    scene.client.batch_execute(rows).await.unwrap();
    scene.host.start().unwrap();
    scene.streaming().await;
    for turn in 1..=30 {
        let update = format!("update public.things set v = '{turn}' where id % 7 = {} ", turn % 7);
        scene.client.batch_execute(&update).await.unwrap();
    }
    let expected = "select id, jsonb_build_object('answer', v) as document from public.things";
    scene.settled(expected, "m").await;
}

/// A commit that is streamed and that no new snapshot sees: nothing is answered from before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_for_a_commit_in_limbo() {
    const STANDBYS: &str = "synchronous_standby_names";
    let options = ClusterOptions::new().setting(STANDBYS, "");
    let cluster = tokio::task::block_in_place(|| Cluster::start(options)).unwrap();
    let database = cluster.create_database().await.unwrap();
    database.execute(TABLE).await.unwrap();
    let mut host = Host::new(BINARY).unwrap();
    let built = tokio::task::block_in_place(|| build(BINARY, &capable())).unwrap();
    install(&built, &host.path("plugins"), "capable").unwrap();
    let source = format!(
        "[source]\nurl = \"{}\"\nslot = \"limbo\"\npublication = \"limbo\"\nstatus_interval = \"200ms\"\n",
        database.url
    );
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    let plugins = format!("[plugins]\ncache_dir = \"{}\"\n", cache.display());
    host.config(&format!("{source}{plugins}{GRANTS}query_timeout = \"300ms\"\n{SINK}{}", map("m", "")))
        .unwrap();
    let client = database.connect().await.unwrap();
    let question = "select v from public.things where id = $1::int";
    ask(&client, 1, "strict", question).await;
    host.start().unwrap();
    let table = Destination::new(host.path("out.db"), "m");
    assert_eq!(document(&host, &table, 1).await["answer"], "v1");

    cluster.configure(&[(STANDBYS, "nobody")]).unwrap();
    cluster.reload(STANDBYS, "nobody").await.unwrap();
    let stuck = tokio::spawn(async move { ask(&client, 2, "strict", question).await });
    wait_until("the host to say why, or to answer from before", SOON, async || {
        let status = host.status()?;
        let error = status["mappings"][0]["last_error"].as_str().unwrap_or_default().to_owned();
        Ok(error.contains("query-invisible") || error.contains("not visible") || table.get("2")?.is_some())
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", host.log_tail()));
    assert_eq!(table.get("2").unwrap(), None, "answered from before its own change");

    cluster.configure(&[(STANDBYS, "")]).unwrap();
    cluster.reload(STANDBYS, "").await.unwrap();
    stuck.await.unwrap();
    assert_eq!(document(&host, &table, 2).await["answer"], "v2");
}

/// Waits until mappings have read the table: what is asked from then on is asked once.
async fn built(scene: &Scene, names: &[&str]) {
    wait_until("the first reading", SOON, async || {
        let status = scene.host.status()?;
        let mappings = status["mappings"].as_array().cloned().unwrap_or_default();
        let built = |name: &&str| {
            mappings.iter().any(|m| m["name"] == **name && m["built"] == m["generation"] && m["built"] != 0)
        };
        Ok(names.iter().all(built))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

async fn kept(scene: &Scene) -> BTreeMap<(String, i64, String), String> {
    let query = "select mapping, generation, key, convert_from(value, 'utf8') from anabranch.guest_state";
    let rows = scene.client.query(query, &[]).await.unwrap();
    rows.into_iter().map(|row| ((row.get(0), row.get(1), row.get(2)), row.get(3))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn state_survives_and_is_apart_by_mapping_and_generation() {
    let two = |version: &str| map("a", version) + &map("b", "");
    let mut scene = scene("state_max_bytes = \"2KiB\"\nstate_max_keys = 3\n", &two("")).await;
    scene.host.start().unwrap();
    built(&scene, &["a", "b"]).await;
    let of = |mapping: &str, generation: i64, key: &str| (mapping.to_owned(), generation, key.to_owned());
    for id in 1..=3 {
        ask(&scene.client, id, "count", "n").await;
    }
    assert_eq!(answer(&scene, "a", 3).await["answer"], "3", "one call after the other, each seeing the last");
    assert_eq!(answer(&scene, "b", 3).await["answer"], "3");
    ask(&scene.client, 4, "keys", "").await;
    assert_eq!(answer(&scene, "a", 4).await["answer"], "n");
    // Durable before the document was there.
    assert_eq!(kept(&scene).await[&of("a", 1, "n")], "3");

    scene.host.kill().unwrap();
    scene.host.start().unwrap();
    ask(&scene.client, 5, "count", "n").await;
    let after: u64 = answer(&scene, "a", 5).await["answer"].as_str().unwrap().parse().unwrap();
    assert!(after >= 4, "{after}");

    // Bounds name their settings.
    ask(&scene.client, 6, "set-large", "3000").await;
    let error = answer(&scene, "a", 6).await;
    assert!(
        error["error"].as_str().unwrap().contains("`[plugins.capable.grants] state_max_bytes`"),
        "{error}"
    );
    ask(&scene.client, 7, "delete", "n").await;
    answer(&scene, "a", 7).await;
    answer(&scene, "b", 7).await;
    assert_eq!(kept(&scene).await, BTreeMap::new());

    // Another generation of `a` begins with nothing, and what the one before kept is gone.
    ask(&scene.client, 8, "count", "n").await;
    answer(&scene, "a", 8).await;
    answer(&scene, "b", 8).await;
    scene.host.terminate(SOON).unwrap();
    assert_eq!(kept(&scene).await.len(), 2);
    scene.config(&format!("{GRANTS}{SINK}{}", two("version = \"2\"")));
    scene.host.start().unwrap();
    wait_until("the rebuild", SOON, async || {
        let status = scene.host.status()?;
        let mappings = status["mappings"].as_array().unwrap().clone();
        Ok(mappings.iter().any(|m| m["name"] == "a" && m["generation"] == 2 && m["built"] == 2))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    let now = kept(&scene).await;
    let mut apart: Vec<_> =
        now.keys().map(|(mapping, generation, _)| (mapping.as_str(), *generation)).collect();
    apart.dedup();
    assert_eq!(apart, [("a", 2), ("b", 1)], "{now:?}");

    // A mapping that is gone takes its state along.
    scene.host.terminate(SOON).unwrap();
    scene.config(&format!("{GRANTS}{SINK}{}", map("b", "")));
    scene.host.start().unwrap();
    wait_until("the state of `a` to go", SOON, async || {
        Ok(kept(&scene).await.keys().all(|(mapping, ..)| mapping == "b"))
    })
    .await
    .unwrap();
}

/// What is locked cannot be written; then there are no documents either, of this mapping alone.
#[tokio::test(flavor = "multi_thread")]
async fn writes_are_durable_before_their_documents_and_hold_up_no_other_mapping() {
    let mut scene = scene("", &(map("a", "") + &map("b", ""))).await;
    scene.host.start().unwrap();
    built(&scene, &["a", "b"]).await;
    ask(&scene.client, 1, "count-strict", "n").await;
    assert_eq!(answer(&scene, "a", 1).await["answer"], "1");
    assert_eq!(answer(&scene, "b", 1).await["answer"], "1");
    let other = scene.database.connect().await.unwrap();
    other
        .batch_execute("begin; select from anabranch.guest_state where mapping = 'a' for update")
        .await
        .unwrap();
    ask(&scene.client, 2, "count-strict", "n").await;
    assert_eq!(answer(&scene, "b", 2).await["answer"], "2");
    wait_until("`a` to wait for its store", SOON, async || {
        Ok(scene.mapping("a")["last_error"].as_str().is_some_and(|error| error.contains("state-timeout")))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
    let error = scene.error_of("a").await;
    assert!(error.contains("the state of the mapping a was not there within"), "{error}");
    assert_eq!(scene.table("a").get("2").unwrap(), None, "delivered before it was durable");
    ask(&scene.client, 3, "count-strict", "n").await;
    assert_eq!(answer(&scene, "b", 3).await["answer"], "3");
    // Whoever tries again does not have ever more sessions wait at the server.
    let waiting = "select count(*)::text from pg_stat_activity where datname = current_database() \
                   and application_name like '%/state' and wait_event_type = 'Lock'";
    assert_eq!(scene.text(waiting).await, "1", "nor holds anybody up");
    other.batch_execute("rollback").await.unwrap();
    let last = answer(&scene, "a", 3).await["answer"].as_str().unwrap().to_owned();
    assert_eq!(kept(&scene).await[&("a".to_owned(), 1, "n".to_owned())], last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generation_for_which_nothing_is_read_goes_on_with_the_store() {
    let on = |version: &str| map("a", &format!("{version}auto_backfill_on_version_change = false"));
    let few = "state_max_keys = 2\n";
    let mut scene = scene(few, &on("")).await;
    scene.host.start().unwrap();
    built(&scene, &["a"]).await;
    for id in 1..=2 {
        ask(&scene.client, id, "count-strict", "n").await;
    }
    assert_eq!(answer(&scene, "a", 2).await["answer"], "2");
    scene.host.terminate(SOON).unwrap();
    scene.config(&format!("{GRANTS}{few}{SINK}{}", on("version = \"2\"\n")));
    scene.host.start().unwrap();
    ask(&scene.client, 3, "count-strict", "n").await;
    let count: u64 = answer(&scene, "a", 3).await["answer"].as_str().unwrap().parse().unwrap();
    assert!(count >= 3, "{count}");
    assert_eq!(scene.mapping("a")["generation"], 2);
    let now = kept(&scene).await;
    assert_eq!(now, BTreeMap::from([(("a".to_owned(), 2, "n".to_owned()), count.to_string())]));

    // What calls keep together is bounded, and not only what one of them writes.
    ask(&scene.client, 4, "count-strict", "second").await;
    answer(&scene, "a", 4).await;
    ask(&scene.client, 5, "count-strict", "third").await;
    let error = scene.error_of("a").await;
    assert!(error.contains("the mapping a would keep 3 keys"), "{error}");
    assert!(error.contains("raise `[plugins.capable.grants] state_max_keys`"), "{error}");
    assert_eq!(kept(&scene).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn c099_numbers_are_shown_bounded_and_go_with_their_mapping() {
    let http = "[http]\nlisten = \"127.0.0.1:0\"\n";
    let mut scene = scene("metrics_max_series = 3\n", &(map("a", "") + &map("b", "") + http)).await;
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, from).await;
    built(&scene, &["a", "b"]).await;
    for (id, (what, arg)) in (1..).zip([("metric", "x"), ("metric", "x"), ("metric", "y"), ("gauge", "2.5")])
    {
        ask(&scene.client, id, what, arg).await;
        assert_eq!(answer(&scene, "a", id).await["answer"], "told");
    }
    for (id, arg, word) in [(5, "z", "metrics_max_series"), (6, "w", "metrics_max_series")] {
        ask(&scene.client, id, "metric", arg).await;
        let error = answer(&scene, "a", id).await;
        assert!(error["error"].as_str().unwrap().contains(word), "{error}");
    }
    ask(&scene.client, 7, "metric-name", "Bad name").await;
    assert!(answer(&scene, "a", 7).await["error"].as_str().unwrap().contains("metrics-name"));
    answer(&scene, "b", 7).await;
    let text = web.get("/metrics").await.body;
    for line in [
        "anabranch_guest_rows_seen_total{plugin=\"capable\",mapping=\"a\",kind=\"x\"} 4",
        "anabranch_guest_rows_seen_total{plugin=\"capable\",mapping=\"b\",kind=\"y\"} 2",
        "anabranch_guest_depth{plugin=\"capable\",mapping=\"a\"} 2.5",
        "anabranch_plugin_refusals_total{plugin=\"capable\",mapping=\"a\",capability=\"metrics\"} 3",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("kind=\"z\"") && !text.contains("kind=\"w\""), "{text}");
}
