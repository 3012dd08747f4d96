//! `wasi:http`: what is granted goes through, and nothing else does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anabranch::{
    model::{ChangeBatch, FailureClass, Outcome, Outcomes, Secret, ValueType},
    plugin::{
        HostSettings, Plugin,
        grants::{Capability, Grants, HttpGrant, Origin},
        services::Services,
    },
};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::{
    guests::{at_work, capable, host, listen, load, short, told},
    receiver::{Receiver, Reply},
    rows::{all, batch, push, relation, text},
};
use anabranch::model::Operation;

fn asks(rows: &[(&str, &str)]) -> ChangeBatch {
    let relation =
        relation(&[("id", ValueType::Integer), ("ask", ValueType::Text), ("arg", ValueType::Text)]);
    let mut batch = batch(&relation);
    for (at, (ask, arg)) in rows.iter().enumerate() {
        push(&mut batch, Operation::Insert, Some(&[text(&at.to_string()), text(ask), text(arg)]), None);
    }
    batch
}

/// Whatever is at these origins, on this machine too.
pub fn grant(origins: &[&str]) -> HttpGrant {
    HttpGrant {
        origins: origins.iter().map(|origin| Origin::parse(origin).unwrap()).collect(),
        private_addresses: true,
        ca_file: None,
        headers: BTreeMap::new(),
        timeout: Duration::from_secs(20),
        max_request: 1 << 20,
        max_response: 1 << 20,
        in_flight: 32,
    }
}

fn granted(grant: HttpGrant) -> Plugin {
    granted_within(grant, Duration::from_secs(30))
}

/// The same, with the time that a call may take.
fn granted_within(grant: HttpGrant, call_deadline: Duration) -> Plugin {
    let grants = Grants { http: Some(grant), ..Grants::default() };
    let settings =
        HostSettings { call_deadline, grants: BTreeMap::from([("capable".to_owned(), grants)]), ..short() };
    load(&host(settings), &capable(&["http"]))
}

pub async fn ask(plugin: &Plugin, what: &str, arg: &str) -> Value {
    let batch = asks(&[(what, arg)]);
    let outcomes =
        at_work(plugin, &[]).call(&batch, &all(&batch)).await.unwrap_or_else(|fault| panic!("{fault}"));
    document(&outcomes)
}

fn document(outcomes: &Outcomes) -> Value {
    let Outcome::Emit { first, .. } = outcomes.outcomes[0] else { panic!("{:?}", outcomes.outcomes) };
    serde_json::from_slice(outcomes.slice(outcomes.documents[first as usize].body)).unwrap()
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

async fn receiver() -> Receiver {
    Receiver::start(|request, _| match request.target.as_str() {
        "/large" => Reply::with_body(200, &"y".repeat(2 << 20)),
        "/cut" => Reply::Cut,
        "/hang" => Reply::Hang,
        "/empty" => Reply::status(200),
        _ => Reply::with_body(200, "hello"),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_granted_origin_is_answered() {
    let server = receiver().await;
    let plugin = granted(grant(&[&server.url("")]));
    assert_eq!(plugin.asks(), &BTreeSet::from([Capability::Http]));
    assert!(plugin.ungranted().is_none());
    let answer = ask(&plugin, "get", &server.url("/a?b=c")).await;
    assert_eq!(answer["status"], 200);
    assert!(answer["answer"].as_str().unwrap().ends_with("\nhello"), "{answer}");
    let answer = ask(&plugin, "post", &format!("{} 100000", server.url("/b"))).await;
    assert_eq!(answer["status"], 200);
    let received = server.received();
    assert_eq!((received[0].target.as_str(), received[1].target.as_str()), ("/a?b=c", "/b"));
    assert_eq!(received[1].body, vec![b'x'; 100_000]);
    assert!(received[0].headers["user-agent"].starts_with("anabranch/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c088_what_is_not_granted_is_told_with_the_lines_and_never_runs() {
    let plugin = load(&host(short()), &capable(&["http"]));
    let ungranted = plugin.ungranted().unwrap();
    assert_eq!(ungranted.toml(), "[plugins.capable.grants]\nhttp = [\"https://host.example:443\"]");
    let batch = asks(&[("say", "hello")]);
    let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
    assert_eq!(fault.code(), "plugin-ungranted");
    assert!(fault.to_string().contains("asks for http, which the config does not grant"), "{fault}");
    assert!(!fault.may_be_one_change());
}

#[test]
fn a_guest_that_makes_no_request_asks_for_nothing() {
    let host = host(short());
    let plugin = load(&host, &capable(&[]));
    assert!(plugin.asks().is_empty() && plugin.ungranted().is_none());
    assert!(host.inspect(&capable(&[])).unwrap().capabilities.is_empty());
}

#[test]
fn what_is_asked_for_is_shown_with_what_is_granted() {
    let grants = Grants { http: Some(grant(&["https://a.example"])), ..Grants::default() };
    let grants = BTreeMap::from([("capable".to_owned(), grants)]);
    let inspection = host(HostSettings { grants, ..short() }).inspect(&capable(ALL)).unwrap();
    let shown: Vec<_> = inspection.capabilities.iter().map(|asked| (asked.name, asked.granted)).collect();
    let expected =
        [("http", Some(true)), ("query", Some(false)), ("state", Some(false)), ("metrics", Some(false))];
    assert_eq!(shown, expected);
    assert!(inspection.loadable, "a grant is not the file's business");
}

const ALL: &[&str] = &["http", "query", "state", "metrics"];

#[tokio::test(flavor = "multi_thread")]
async fn the_authors_host_does_what_it_can_and_refuses_the_rest() {
    let plugin = load(&host(HostSettings { lenient: true, ..short() }), &capable(ALL));
    let transform = at_work(&plugin, &[]).with_services(Services::in_memory());
    let mut answers = Vec::new();
    for (what, arg) in [
        ("count", "n"),
        ("count", "n"),
        ("metric", "x"),
        ("get", "http://127.0.0.1:1/"),
        ("query-plain", "select 1"),
    ] {
        let batch = asks(&[(what, arg)]);
        let outcomes = transform.call(&batch, &all(&batch)).await.unwrap();
        answers.push(document(&outcomes));
    }
    let texts: Vec<_> = answers[..3].iter().map(|answer| answer["answer"].as_str().unwrap()).collect();
    assert_eq!(texts, ["1", "2", "told"]);
    assert!(error(&answers[3]).contains("are not granted"), "{}", answers[3]);
    assert!(error(&answers[4]).contains("query-unavailable"), "{}", answers[4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_origins_are_refused_by_name() {
    let (server, other) = (receiver().await, receiver().await);
    let plugin = granted(grant(&[&server.url("")]));
    let answer = ask(&plugin, "get", &other.url("/")).await;
    let origin = other.url("");
    assert!(error(&answer).starts_with("Denied("), "{answer}");
    assert!(
        error(&answer).contains(&format!(
            "requests to {origin} are not granted: add \\\"{origin}\\\" to `[plugins.capable.grants] http`"
        )),
        "{answer}"
    );
    // The same place by another name, another scheme, and with what another parser might take for the host.
    let port = server.url("").rsplit(':').next().unwrap().to_owned();
    for (url, words) in [
        (format!("http://localhost:{port}/"), format!("requests to http://localhost:{port} are not granted")),
        (
            format!("https://127.0.0.1:{port}/"),
            format!("requests to https://127.0.0.1:{port} are not granted"),
        ),
        (format!("http://user@127.0.0.1:{port}/"), "may not have a user or a password".to_owned()),
        (
            format!("http://127.0.0.1:{port}@{}/", other.url("").trim_start_matches("http://")),
            "may not have a user or a password".to_owned(),
        ),
    ] {
        let answer = ask(&plugin, "get", &url).await;
        assert!(error(&answer).starts_with("Denied(") && error(&answer).contains(&words), "{url}: {answer}");
    }
    assert!(server.received().is_empty() && other.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_refused_by_number_and_by_name() {
    let server = receiver().await;
    let by_name = server.url("").replace("127.0.0.1", "localhost");
    // Forms that come out as the same address, and those of IPv6.
    let port = server.url("").rsplit(':').next().unwrap().to_owned();
    let forms =
        ["2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"].map(|form| format!("http://{form}:{port}"));
    let mut origins = vec![server.url(""), by_name.clone()];
    origins.extend(forms.clone());
    let origins: Vec<_> = origins.iter().map(String::as_str).collect();
    let plugin = granted(HttpGrant { private_addresses: false, ..grant(&origins) });
    for url in [server.url("/"), format!("{by_name}/")].into_iter().chain(forms) {
        let answer = ask(&plugin, "get", &url).await;
        assert!(error(&answer).starts_with("Denied("), "{url}: {answer}");
        assert!(
            error(&answer).contains("`[plugins.capable.grants] private_addresses = true`"),
            "{url}: {answer}"
        );
    }
    assert!(server.received().is_empty());
    let plugin = granted(grant(&[&by_name]));
    assert_eq!(ask(&plugin, "get", &by_name).await["status"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_the_guests_to_follow_and_the_grants_to_refuse() {
    let elsewhere = receiver().await;
    let target = elsewhere.url("/secret");
    let server = Receiver::start(move |request, _| match request.target.as_str() {
        "/out" => Reply::Status(302, vec![("location", target.clone())], String::new()),
        _ => Reply::with_body(200, "hello"),
    })
    .await;
    let plugin = granted(grant(&[&server.url("")]));
    assert_eq!(ask(&plugin, "get", &server.url("/out")).await["status"], 302);
    let answer = ask(&plugin, "follow", &server.url("/out")).await;
    assert!(error(&answer).contains("are not granted"), "{answer}");
    assert!(elsewhere.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_granted_headers_go_to_their_origin_alone_and_the_guest_never_sees_them() {
    let (server, other) = (receiver().await, receiver().await);
    let origin = Origin::parse(&server.url("")).unwrap();
    let secret = BTreeMap::from([("authorization".to_owned(), Secret::new("marker-4711"))]);
    let headers = BTreeMap::from([(origin, secret)]);
    let plugin = granted(HttpGrant { headers, ..grant(&[&server.url(""), &other.url("")]) });
    for url in [server.url("/"), other.url("/")] {
        let answer = ask(&plugin, "authorized", &url).await;
        assert_eq!(answer["status"], 200);
        assert!(!answer.to_string().contains("marker"), "{answer}");
    }
    let (to_server, to_other) = (&server.received()[0].headers, &other.received()[0].headers);
    assert_eq!((to_server["authorization"].as_str(), to_server["x-own"].as_str()), ("marker-4711", "own"));
    assert_eq!(to_other["authorization"], "mine");
    // A server would tell what it was sent, or let the guest go on from there.
    for method in ["TRACE", "CONNECT"] {
        let answer = ask(&plugin, &format!("method {method}"), &server.url("/")).await;
        assert!(error(&answer).starts_with("Denied("), "{method}: {answer}");
    }
    assert_eq!(server.received().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_have_limits_that_name_their_settings() {
    let server = receiver().await;
    let plugin =
        granted(HttpGrant { max_request: 50_000, max_response: 1 << 20, ..grant(&[&server.url("")]) });
    let answer = ask(&plugin, "post", &format!("{} 50001", server.url("/"))).await;
    assert!(error(&answer).contains("`[plugins.capable.grants] http_max_request`"), "{answer}");
    assert!(server.received().is_empty());
    let answer = ask(&plugin, "post", &format!("{} 50000", server.url("/"))).await;
    assert_eq!(answer["status"], 200);
    let answer = ask(&plugin, "get", &server.url("/large")).await;
    assert!(error(&answer).contains("`[plugins.capable.grants] http_max_response`"), "{answer}");
    let answer = ask(&plugin, "get", &server.url("/cut")).await;
    assert!(error(&answer).starts_with("Failed("), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_length_has_the_same_limit() {
    let server = chunked().await;
    let plugin = granted(HttpGrant { max_response: 100_000, ..grant(&[&server]) });
    let answer = ask(&plugin, "get", &server).await;
    assert!(error(&answer).contains("`[plugins.capable.grants] http_max_response`"), "{answer}");
}

/// What is announced to be too large is refused before any of it has come.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_says_it_is_too_large_is_not_waited_for() {
    let server = speaking("content-length: 2000000", "", Duration::from_secs(60)).await;
    let plugin = granted(HttpGrant { max_response: 1 << 20, ..grant(&[&server]) });
    let answer = ask(&plugin, "get", &server).await;
    assert!(error(&answer).contains("`[plugins.capable.grants] http_max_response`"), "{answer}");
}

/// One that comes byte by byte has its limit as well: it is on the whole of it.
#[tokio::test(flavor = "multi_thread")]
async fn time_is_limited_until_the_last_byte_in_both_directions() {
    let drops = speaking("content-length: 100000", "x", Duration::from_millis(20)).await;
    let server = receiver().await;
    let timeout = Duration::from_millis(300);
    let plugin = granted(HttpGrant { timeout, ..grant(&[&drops, &server.url("")]) });
    for (what, url) in [("get", drops.as_str()), ("unfinished", &server.url("/"))] {
        let answer = ask(&plugin, what, url).await;
        assert!(error(&answer).contains("`[plugins.capable.grants] http_timeout`"), "{what}: {answer}");
    }
    assert!(server.received().is_empty(), "a request that is not whole goes nowhere");
}

/// Headers that would change where a request ends, or whom it is for.
#[tokio::test(flavor = "multi_thread")]
async fn headers_of_the_connection_are_not_the_guests_to_set() {
    let server = receiver().await;
    let plugin = granted(grant(&[&server.url("")]));
    let arg = format!("{} 40", server.url("/"));
    let answer = ask(&plugin, "header content-length 3", &arg).await;
    assert!(error(&answer).contains("HttpProtocolError"), "{answer}");
    let answer = ask(&plugin, "header content-length 40", &arg).await;
    assert_eq!(answer["status"], 200, "{answer}");
    for name in ["host", "transfer-encoding", "connection", "proxy-authorization"] {
        let answer = ask(&plugin, &format!("header {name} chunked"), &arg).await;
        assert!(error(&answer).contains("a header cannot be sent"), "{name}: {answer}");
    }
    let [received] = server.received().try_into().unwrap_or_else(|all| panic!("{all:?}"));
    assert_eq!((received.body.len(), received.headers["content-length"].as_str()), (40, "40"));
    // A server would take the next request on the connection for the body of this one.
    let answer = ask(&plugin, "bodiless", &format!("{} 5", server.url("/"))).await;
    assert!(error(&answer).contains("HttpRequestBodySize"), "{answer}");
    assert_eq!(server.received().len(), 1);
}

/// What costs a guest nearly nothing and its host much.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_keeps_for_a_guest_is_bounded() {
    let server = receiver().await;
    let plugin = granted(grant(&[&server.url("")]));
    let batch = asks(&[("hoard", "")]);
    let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
    assert_eq!(fault.code(), "plugin-trap", "{fault}");
    assert!(fault.to_string().contains("resource table has no free keys"), "{fault}");
    let batch = asks(&[("fat", &format!("{} 40000", server.url("/")))]);
    let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
    assert!(fault.to_string().contains("total size of fields exceeds limit"), "{fault}");
    assert_eq!(ask(&plugin, "fat", &format!("{} 20000", server.url("/"))).await["status"], 200);

    let plugin = load(&host(HostSettings { lenient: true, ..short() }), &capable(ALL));
    let transform = at_work(&plugin, &[]).with_services(Services::in_memory());
    let batch = asks(&[("copies", "10"), ("copies", "20")]);
    let outcomes = transform.call(&batch, &[0]).await.unwrap();
    assert_eq!(document(&outcomes)["answer"], "10");
    let fault = transform.call(&batch, &[1]).await.unwrap_err();
    assert_eq!(fault.code(), "plugin-memory", "{fault}");
    let words = "it passes more than 16.0 MiB to the host in one call, the limit of an instance (`[plugins] memory_limit`)";
    assert!(fault.to_string().contains(words), "{fault}");
}

/// A server that answers with a header and then with the same again and again.
async fn speaking(header: &'static str, again: &'static str, pause: Duration) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let head = format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
            while stream.write_all(again.as_bytes()).await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        }
    });
    url
}

/// A server that sends without end.
async fn chunked() -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            let chunk = format!("1000\r\n{}\r\n", "z".repeat(0x1000));
            while stream.write_all(chunk.as_bytes()).await.is_ok() {}
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn time_has_a_limit_that_names_its_setting() {
    let server = receiver().await;
    let plugin = granted(HttpGrant { timeout: Duration::from_millis(300), ..grant(&[&server.url("")]) });
    let began = Instant::now();
    let answer = ask(&plugin, "get", &server.url("/hang")).await;
    assert!(error(&answer).starts_with("Timeout("), "{answer}");
    assert!(error(&answer).contains("`[plugins.capable.grants] http_timeout`"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_an_answer_ends_with_its_deadline() {
    let server = receiver().await;
    let plugin = granted_within(grant(&[&server.url("")]), Duration::from_millis(500));
    let batch = asks(&[("get", &server.url("/hang"))]);
    let began = Instant::now();
    let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
    assert_eq!(fault.code(), "plugin-deadline", "{fault}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "not only once the request has taken its twenty seconds"
    );
    assert_eq!(ask(&plugin, "get", &server.url("/")).await["status"], 200, "the next call works");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_are_bounded() {
    let held = Arc::new(Semaphore::new(0));
    let until = Arc::clone(&held);
    let server = Receiver::start(move |request, _| match request.target.as_str() {
        "/held" => Reply::Held(Arc::clone(&until)),
        _ => Reply::with_body(200, "hello"),
    })
    .await;
    // The first is under way for as long as it takes to make the second.
    let limit = Duration::from_secs(600);
    let grant = HttpGrant { in_flight: 1, timeout: limit, ..grant(&[&server.url("")]) };
    let plugin = granted_within(grant, limit);
    let (first, url) = (server.url("/held"), server.url("/"));
    let waiting = {
        let plugin = plugin.clone();
        tokio::spawn(async move { ask(&plugin, "get", &first).await })
    };
    let arrived = async || Ok(!server.received().is_empty());
    testkit::wait_until("the first request", Duration::from_secs(90), arrived).await.unwrap();
    let answer = ask(&plugin, "get", &url).await;
    assert!(error(&answer).contains("`[plugins.capable.grants] http_in_flight`"), "{answer}");
    held.add_permits(1);
    assert_eq!(waiting.await.unwrap()["status"], 200);
    assert_eq!(ask(&plugin, "get", &url).await["status"], 200, "it was given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_guest_leaves_end_with_its_call() {
    let server = receiver().await;
    let plugin = granted(HttpGrant { in_flight: 2, ..grant(&[&server.url("")]) });
    for path in ["/a", "/b", "/c", "/d", "/e"] {
        let answer = ask(&plugin, "leave", &server.url(path)).await;
        assert_eq!(answer["answer"], "200", "{answer}");
    }
    let answers = async |count: usize| {
        for _ in 0..count {
            assert_eq!(ask(&plugin, "get", &server.url("/")).await["status"], 200);
        }
    };
    answers(5).await;
    // One that finishes what it begins serves on.
    let discarded = plugin.instances().discarded;
    assert!(discarded > 0);
    answers(3).await;
    // What had nothing to read was at its end when it came, and what was read to its end is, whoever keeps it.
    for (what, path) in [("leave", "/empty"), ("keep", "/"), ("keep", "/"), ("keep", "/")] {
        assert_eq!(ask(&plugin, what, &server.url(path)).await["answer"], "200");
    }
    assert_eq!(plugin.instances().discarded, discarded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_service_is_no_changes_fault() {
    let server = receiver().await;
    let plugin = granted_within(grant(&[&server.url("")]), Duration::from_millis(300));
    let transform = at_work(&plugin, &[]);
    let (hang, quick) = (server.url("/hang"), server.url("/"));
    let batch = asks(&[("get", &quick), ("get", &hang), ("get", &quick)]);
    let fault = transform.call(&batch, &all(&batch)).await.unwrap_err();
    assert_eq!((fault.code(), fault.class()), ("plugin-deadline", FailureClass::Retry), "{fault}");
    let fault = transform.call_isolating(&batch, &all(&batch)).await.unwrap_err();
    assert_eq!((fault.code(), fault.class()), ("plugin-deadline", FailureClass::Retry), "{fault}");
    assert_eq!(fault.positions(), 1..2, "fewer were tried");
}

#[tokio::test]
async fn changes_that_wait_too_long_together_go_on_in_fewer_and_in_more_again_once_they_are_quick() {
    listen();
    let late = Arc::new(AtomicBool::new(true));
    let server = Receiver::start({
        let late = Arc::clone(&late);
        move |_, _| match late.load(Ordering::SeqCst) {
            true => Reply::Late(Duration::from_millis(50)),
            false => Reply::status(200),
        }
    })
    .await;
    let plugin = granted_within(grant(&[&server.url("")]), Duration::from_millis(300));
    let url = server.url("/");
    let batch = asks(&[("get", url.as_str()); 12]);
    let transform = at_work(&plugin, &[]);
    let call = async || transform.call(&batch, &all(&batch)).await.unwrap_or_else(|fault| panic!("{fault}"));
    let outcomes = call().await;
    assert!(outcomes.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Emit { .. })), "{outcomes:?}");
    assert_eq!((outcomes.outcomes.len(), outcomes.documents.len()), (12, 12), "each once");
    let fewer = ["changes=12", "goes on with 6 in a call", "(`prepare`)", "`[plugins] call_deadline`"];
    let first = told();
    for words in fewer {
        assert!(first.contains(words), "{words}: {first}");
    }
    late.store(false, Ordering::SeqCst);
    for _ in 0..20 {
        call().await;
    }
    late.store(true, Ordering::SeqCst);
    told();
    call().await;
    let again = told();
    assert!(again.contains("changes=12"), "all in one call again: {again}");
}
