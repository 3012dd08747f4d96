//! What a host offers beside rows, used from other languages: questions to the source, a store, numbers, requests. One guest
//! a language does all of it, in the whole host; a guest asks for what its source uses, and for nothing else.

use std::fs;

use anabranch::{model::PluginKind, plugin::artifact::judge};
use serde_json::{Value, json};
use testkit::{
    guests::{self, Guest, Language, language_tools},
    wait_until,
};

use crate::{
    documents::{BINARY, samples},
    receiver::{Receiver, Reply},
    scene::{SOON, Scene},
    web::Web,
};

const TABLE: &str = "create table public.things (id int primary key, ask text not null, arg text not null)";

/// The languages that this machine can build, as fixtures are named after them.
pub fn languages() -> Vec<&'static str> {
    let all = [
        (Language::C, "c"),
        (Language::Go, "go"),
        (Language::JavaScript, "js"),
        (Language::Python, "python"),
    ];
    let possible = all.into_iter().filter(|(language, _)| language_tools(*language).unwrap().is_some());
    possible.map(|(_, name)| name).collect()
}

/// The settings of a plugin that takes its time.
pub fn patient(plugin: &str) -> String {
    format!("[plugins.{plugin}]\nmemory_limit = \"128MiB\"\ncall_deadline = \"60s\"\n")
}

#[test]
fn a_guest_asks_for_what_its_source_uses() {
    let of = |kind: &str, asked: &'static [&'static str]| {
        let place = |language: &str| (format!("plugins/fixtures/{kind}-{language}"), asked);
        languages().into_iter().map(place).collect::<Vec<_>>()
    };
    let plain = samples().into_iter().map(|(_, place)| (place.to_owned(), &[][..]));
    let used = [of("capable", &["http", "query", "state", "metrics"]), of("shelf", &["http"])];
    for (place, expected) in used.into_iter().flatten().chain(plain) {
        let path = guests::build(BINARY, &Guest::new(&place)).unwrap();
        let shape = judge(&fs::read(path).unwrap()).unwrap();
        let asked: Vec<_> = shape.capabilities.iter().map(|capability| capability.as_str()).collect();
        assert_eq!(asked, expected, "{place}");
        let is_sink = shape.kind == PluginKind::Sink;
        assert_eq!(is_sink, place.contains("shelf"), "{place}");
        let optional = ["purge", "generations"].map(|interface| shape.exports_optional(interface));
        assert_eq!(optional, [is_sink; 2], "{place}");
    }
}

/// What a row asks, and its document; for an error, words of it.
fn asked(server: &Receiver) -> Vec<(&'static str, String, Result<Value, &'static str>)> {
    let question = "select v from (values (1, 'row ' || $1::text), (2, null)) as t (n, v) order by n";
    let answer = |text: &str| Ok(json!({ "answer": text }));
    vec![
        ("query", question.to_owned(), answer("row 1, null")),
        ("query", "select v from public.things".to_owned(), Err("query-")),
        ("query", "select 'Köln' where $1 = '3'".to_owned(), answer("Köln")),
        ("query", "select 'none' where $1 = '0'".to_owned(), answer("")),
        ("count", "seen".to_owned(), answer("1")),
        ("count", "seen".to_owned(), answer("2")),
        ("count", "söther".to_owned(), answer("1")),
        ("keys", "s".to_owned(), answer("seen, söther")),
        ("keys", "x".to_owned(), answer("")),
        ("metric", "a".to_owned(), answer("told")),
        ("metric", "a".to_owned(), answer("told")),
        ("get", server.url("/own?a=b"), Ok(json!({ "status": 200, "answer": "/own?a=b own granted" }))),
        ("get", server.url("/gone"), Ok(json!({ "status": 404, "answer": "" }))),
        ("get", server.url("/large"), Ok(json!({ "status": 200, "answer": "x".repeat(300_000) }))),
        ("get", server.url("/close"), Err("http-failed: ")),
        (
            "get",
            "http://127.0.0.1:1/".to_owned(),
            Err("http-denied: requests to http://127.0.0.1:1 are not granted"),
        ),
        ("get", "no url".to_owned(), Err("http-request: ")),
        ("get", "http://no host/".to_owned(), Err("http-request: ")),
        // What is no UTF-8 is a failure of its change, and ends no call.
        ("bad", "key".to_owned(), Err("text: a key of the store ")),
        ("bad", "sql".to_owned(), Err("text: the SQL of a question ")),
        ("bad", "parameter".to_owned(), Err("text: ")),
        ("bad", "label".to_owned(), Err("text: the value of a label ")),
        ("bad", "url".to_owned(), Err("http-request: ")),
        ("bad", "setting".to_owned(), answer("none")),
        // Asked for once for all rows of a batch, before the first is answered.
        ("prepared", "a".to_owned(), answer("asked for a")),
        ("prepared", "Köln".to_owned(), answer("asked for Köln")),
        ("say", "nothing".to_owned(), answer("say nothing")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_language_uses_what_it_is_granted() {
    let mut scene = Scene::new(1, 1).await;
    scene.client.batch_execute(TABLE).await.unwrap();
    let server = Receiver::start(|request, _| match request.target.as_str() {
        "/gone" => Reply::status(404),
        "/large" => Reply::with_body(200, &"x".repeat(300_000)),
        "/close" => Reply::Close,
        target => {
            let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
            Reply::with_body(200, &format!("{target} {} {}", header("x-own"), header("x-granted")))
        }
    })
    .await;
    let names: Vec<_> = languages().into_iter().map(|language| format!("capable-{language}")).collect();
    let mut maps =
        "[http]\nlisten = \"127.0.0.1:0\"\n[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n".to_owned();
    let mut grants = String::new();
    for name in &names {
        scene.plugin(name, &Guest::new(format!("plugins/fixtures/{name}")));
        maps += &format!(
            "[[map]]\nname = \"{name}\"\ntable = \"public.things\"\ntransform = \"{name}\"\ndestination = \"{name}\"\n"
        );
        grants += &format!(
            "{}[plugins.{name}.grants]\nquery = true\nquery_timeout = \"30s\"\nstate = true\nmetrics = true\nhttp = [\"{origin}\"]\n\
             private_addresses = true\nheaders = {{ \"{origin}\" = {{ x-granted = \"granted\" }} }}\n",
            patient(name),
            origin = server.url("")
        );
    }
    for (id, (ask, arg, _)) in (1..).zip(asked(&server)) {
        let insert = "insert into public.things values ($1::int, $2, $3)";
        scene.client.execute(insert, &[&id, &ask, &arg]).await.unwrap();
    }

    scene.config(&maps);
    let check = scene.host.run(&["check"]).unwrap();
    let text = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.success(), names.is_empty(), "{text}");
    for name in &names {
        let words = format!("{name} 1.0.0 asks for http, query, state and metrics");
        assert!(
            text.contains(&words) && text.contains(&format!("[plugins.{name}.grants] http = ")),
            "{text}"
        );
    }

    scene.config(&format!("{grants}{maps}"));
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    let web = Web::of(&mut scene.host, from).await;
    let asked = asked(&server);
    for name in &names {
        let table = scene.table(name);
        for (id, (ask, arg, expected)) in (1..).zip(&asked) {
            wait_until("the document", SOON, async || Ok(table.get(&id.to_string())?.is_some()))
                .await
                .unwrap_or_else(|error| panic!("{name} {id}: {error:#}\n{}", scene.host.log_tail()));
            let document = table.get(&id.to_string()).unwrap().unwrap();
            match expected {
                // A batch that was sent again met its own earlier writes.
                Ok(expected) if *ask == "count" => {
                    let counted = |value: &Value| value["answer"].as_str()?.parse::<u64>().ok();
                    assert!(counted(&document) >= counted(expected), "{name}, {ask} {arg}: {document}");
                }
                Ok(expected) => assert!(document == *expected, "{name}, {ask} {arg}: {document}"),
                Err(words) => {
                    let error =
                        document["error"].as_str().unwrap_or_else(|| panic!("{name}, {arg}: {document}"));
                    assert!(error.starts_with(words), "{name}, {ask} {arg}: {error}");
                }
            }
        }
    }
    let metrics = web.get("/metrics").await.body;
    for name in &names {
        let labels = format!("{{plugin=\"{name}\",mapping=\"{name}\"");
        let value = |series: String| {
            let line =
                metrics.lines().find_map(|line| line.strip_prefix(&series)?.trim().parse::<f64>().ok());
            line.unwrap_or_else(|| panic!("{series} is not in\n{metrics}"))
        };
        assert!(value(format!("anabranch_guest_rows_seen_total{labels},kind=\"a\"}}")) >= 4.0, "{metrics}");
        assert!((value(format!("anabranch_guest_depth{labels}}}")) - 1.5).abs() < f64::EPSILON, "{metrics}");
    }
}
