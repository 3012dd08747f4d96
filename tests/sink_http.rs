//! The HTTP sink, against a receiver on a real socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod support;

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::Read as _,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anabranch::{
    model::{Failure, FailureClass, Secret},
    sink::{HttpSettings, Rejected, Sink, SinkSettings, build},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use receiver::{Received, Receiver, Reply};
use support::Batch;

fn settings(receiver: &Receiver) -> HttpSettings {
    HttpSettings::new(Secret::new(receiver.url("/hook")))
}

fn sink_of(settings: HttpSettings) -> Box<dyn Sink> {
    build("hook", &SinkSettings::Http(settings)).unwrap()
}

fn sink(receiver: &Receiver) -> Box<dyn Sink> {
    sink_of(settings(receiver))
}

fn class_and_code(failure: &Failure) -> (FailureClass, &str) {
    (failure.class, &failure.code)
}

fn indexes(rejected: &[Rejected]) -> Vec<usize> {
    rejected.iter().map(|rejected| rejected.index).collect()
}

/// What a receiver does by the Standard Webhooks specification.
fn signature(key: &[u8], received: &Received) -> String {
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
    mac.update(received.headers["webhook-id"].as_bytes());
    mac.update(b".");
    mac.update(received.headers["webhook-timestamp"].as_bytes());
    mac.update(b".");
    mac.update(&received.body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn a_batch_arrives_as_documented() {
    let receiver = Receiver::start(|_, _| Reply::with_body(200, "ok")).await;
    let mut settings = settings(&receiver);
    settings.headers.push(("Authorization".to_owned(), Secret::new("Bearer token-1")));
    let sink = sink_of(settings);
    sink.open().await.unwrap();
    let batch = Batch::new().upsert("1", r#"{"a":1}"#).delete("2").build();
    assert_eq!(sink.deliver(&batch, None).await.unwrap(), []);
    let [received] = &receiver.received()[..] else { panic!("one request") };
    assert_eq!(received.target, "/hook");
    assert_eq!(received.headers["content-type"], "application/json");
    assert_eq!(received.headers["authorization"], "Bearer token-1");
    assert!(received.headers["user-agent"].starts_with("anabranch/"));
    assert!(!received.headers.contains_key("webhook-signature"), "no key");
    let id = &received.headers["webhook-id"];
    let expected = format!(
        r#"{{"id":"{id}","entity":"public.products","destination":"products","origin":"stream","generation":3,"documents":[{},{}]}}"#,
        r#"{"op":"upsert","id":"1","lsn":"1/10","commit_time":"2024-01-31T12:00:00.500000Z","document":{"a":1}}"#,
        r#"{"op":"delete","id":"2","lsn":"1/10","commit_time":"2024-01-31T12:00:00.500000Z"}"#,
    );
    assert_eq!(String::from_utf8_lossy(&received.body), expected);
    assert_eq!(sink.deliver(&Batch::new().build(), None).await.unwrap(), []);
    assert_eq!(receiver.received().len(), 1, "nothing to say, nothing sent");
}

#[tokio::test]
async fn c077_the_signature_is_over_the_bytes_that_were_sent() {
    let receiver = Receiver::start(|_, _| Reply::status(204)).await;
    let key = [7_u8, 255, 0, 13, 200];
    let body = r#"{"z":12345678901234567890123.4500,  "a":"é😀\u0000 \ud800","e":1E400}"#;
    for gzip in [false, true] {
        let mut settings = settings(&receiver);
        settings.gzip = gzip;
        settings.secrets =
            vec![Secret::new(format!("whsec_{}", STANDARD.encode(key))), Secret::new("old key é")];
        let batch = Batch::new().upsert("ключ", body).build();
        sink_of(settings).deliver(&batch, None).await.unwrap();
        let received = receiver.received().pop().unwrap();
        let both = format!("{} {}", signature(&key, &received), signature("old key é".as_bytes(), &received));
        assert_eq!(received.headers["webhook-signature"], both);
        let mut json = String::new();
        if gzip {
            assert_eq!(received.headers["content-encoding"], "gzip");
            flate2::read::GzDecoder::new(&received.body[..]).read_to_string(&mut json).unwrap();
        } else {
            assert!(!received.headers.contains_key("content-encoding"));
            json = String::from_utf8(received.body).unwrap();
        }
        assert!(json.contains(&format!(r#","document":{body}}}]}}"#)), "the document is untouched: {json}");
    }
}

#[tokio::test]
async fn c077_a_repeated_request_keeps_id_and_bytes_and_gets_a_fresh_timestamp() {
    let receiver = Receiver::start(|_, number| Reply::status(if number < 2 { 500 } else { 200 })).await;
    let mut settings = settings(&receiver);
    settings.secrets = vec![Secret::new("key")];
    let sink = sink_of(settings);
    let batch = Batch::new().upsert("1", "1").build();
    let failure = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!(class_and_code(&failure), (FailureClass::Retry, "http-500"));
    sink.deliver(&batch, None).await.unwrap_err();
    // The next second, so that a fresh timestamp is another one.
    let second = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let last = receiver.received()[1].headers["webhook-timestamp"].parse().unwrap();
    while second(SystemTime::now()) <= last {
        tokio::task::yield_now().await;
    }
    sink.deliver(&batch, None).await.unwrap();
    let received = receiver.received();
    assert_eq!(received.len(), 3);
    for one in &received {
        assert_eq!(one.headers["webhook-id"], received[0].headers["webhook-id"]);
        assert_eq!(one.json()["id"], *one.headers["webhook-id"]);
        assert_eq!(one.body, received[0].body);
        assert_eq!(one.headers["webhook-signature"], signature(b"key", one));
    }
    assert!(received[2].headers["webhook-timestamp"] > received[1].headers["webhook-timestamp"]);
    // The same content another time is another delivery.
    sink.deliver(&batch, None).await.unwrap();
    assert_ne!(receiver.received()[3].headers["webhook-id"], received[0].headers["webhook-id"]);
}

#[tokio::test]
async fn c076_retry_after_is_passed_on() {
    let receiver = Receiver::start(|_, number| {
        let wait = if number == 0 {
            "5".to_owned()
        } else {
            httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60))
        };
        Reply::Status(if number == 0 { 429 } else { 503 }, vec![("retry-after", wait)], String::new())
    })
    .await;
    let sink = sink(&receiver);
    let batch = Batch::new().upsert("1", "1").build();
    let failure = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!(class_and_code(&failure), (FailureClass::Retry, "http-429"));
    assert_eq!(failure.retry_after, Some(Duration::from_secs(5)));
    let failure = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!(class_and_code(&failure), (FailureClass::Retry, "http-503"));
    let wait = failure.retry_after.unwrap();
    assert!(wait > Duration::from_secs(50) && wait <= Duration::from_secs(60), "{wait:?}");
}

#[tokio::test]
async fn c076_a_receiver_that_never_answers_does_not_hold_us() {
    let receiver = Receiver::start(|_, _| Reply::Hang).await;
    let mut settings = settings(&receiver);
    settings.timeout = Duration::from_millis(200);
    let started = Instant::now();
    let failure = sink_of(settings).deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap_err();
    assert_eq!(class_and_code(&failure), (FailureClass::Retry, "http-timeout"));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn c076_a_broken_connection_is_no_consent() {
    let receiver = Receiver::start(|_, number| match number {
        0 => Reply::Cut,
        1 => Reply::Close,
        _ => Reply::status(200),
    })
    .await;
    let sink = sink(&receiver);
    let batch = Batch::new().upsert("1", "1").build();
    for _ in 0..2 {
        let failure = sink.deliver(&batch, None).await.unwrap_err();
        assert_eq!(class_and_code(&failure), (FailureClass::Retry, "http-network"), "{failure}");
    }
    assert_eq!(sink.deliver(&batch, None).await.unwrap(), []);
    let url = receiver.url("/");
    drop(receiver);
    // Nobody listens there any more.
    let failure = loop {
        match sink_of(HttpSettings::new(Secret::new(url.clone()))).deliver(&batch, None).await {
            Err(failure) if failure.code == "http-connect" => break failure,
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!(failure.class, FailureClass::Retry);
}

/// 500 for a batch that has one key: the caller's attempts end, and it splits. Parts that went through are
/// not sent again while the rest is retried.
#[tokio::test]
async fn c076_parts_that_were_taken_are_not_sent_again() {
    let well = Arc::new(Mutex::new(false));
    let healed = Arc::clone(&well);
    let receiver = Receiver::start(move |request, _| {
        let bad = request.ids().contains(&"5".to_owned()) && !*healed.lock().unwrap();
        Reply::status(if bad { 500 } else { 200 })
    })
    .await;
    let mut settings = settings(&receiver);
    settings.max_documents = 2;
    let sink = sink_of(settings);
    let batch = Batch::new().numbers(0, 8).build();
    for _ in 0..3 {
        assert_eq!(sink.deliver(&batch, None).await.unwrap_err().code, "http-500");
    }
    *well.lock().unwrap() = true;
    assert_eq!(sink.deliver(&batch, None).await.unwrap(), []);
    let sent = receiver.ids();
    assert_eq!(sent, [["0", "1"], ["2", "3"], ["4", "5"], ["4", "5"], ["4", "5"], ["4", "5"], ["6", "7"]]);
    sink.deliver(&batch, None).await.unwrap();
    assert_eq!(receiver.received().len(), sent.len() + 4, "another delivery is sent whole");
}

#[tokio::test]
async fn c075_a_body_too_large_is_halved_down_to_one() {
    let receiver =
        Receiver::start(|request, _| Reply::status(if request.body.len() > 1000 { 413 } else { 200 })).await;
    let big = format!("\"{}\"", "x".repeat(2000));
    let batch = Batch::new().numbers(0, 7).upsert("big", &big).numbers(8, 5).build();
    let rejected = sink(&receiver).deliver(&batch, None).await.unwrap();
    assert_eq!(indexes(&rejected), [7]);
    assert_eq!(class_and_code(&rejected[0].failure), (FailureClass::Poison, "http-413"));
    let taken: Vec<String> = receiver
        .received()
        .iter()
        .filter(|request| request.body.len() <= 1000)
        .flat_map(Received::ids)
        .collect();
    let expected: Vec<String> = (0..13).filter(|n| *n != 7).map(|n| n.to_string()).collect();
    assert_eq!(taken, expected, "all others, once and in order");
}

#[tokio::test]
async fn c076_one_bad_document_is_rejected_alone() {
    let receiver = Receiver::start(|request, _| {
        let bad = request.ids().contains(&"11".to_owned());
        if bad { Reply::with_body(422, "{\"error\":\"no such\ncolour\"}") } else { Reply::status(200) }
    })
    .await;
    let sink = sink(&receiver);
    let rejected = sink.deliver(&Batch::new().numbers(0, 64).build(), None).await.unwrap();
    assert_eq!(indexes(&rejected), [11]);
    assert_eq!(class_and_code(&rejected[0].failure), (FailureClass::Poison, "http-422"));
    assert!(rejected[0].failure.message.contains("no such colour"), "{}", rejected[0].failure);
    let requests = receiver.received();
    assert_eq!(requests.len(), 13, "two a level");
    let mut seen: HashMap<String, usize> = HashMap::new();
    for request in requests.iter().filter(|request| !request.ids().contains(&"11".to_owned())) {
        request.ids().into_iter().for_each(|id| *seen.entry(id).or_default() += 1);
    }
    assert_eq!(seen.len(), 63);
    assert!(seen.values().all(|times| *times == 1));
}

#[tokio::test]
async fn results_in_the_answer_are_honoured() {
    let receiver = Receiver::start(|request, _| {
        let at = request.ids().iter().position(|id| id == "bad");
        Reply::with_body(
            200,
            &at.map_or(String::new(), |at| {
                format!(r#"{{"rejected":[{{"index":{at},"message":"no\ncolour"}}]}}"#)
            }),
        )
    })
    .await;
    let mut settings = settings(&receiver);
    settings.max_documents = 3;
    let batch = Batch::new()
        .to("a")
        .numbers(0, 3)
        .to("b")
        .numbers(10, 1)
        .to("a")
        .numbers(3, 1)
        .upsert("bad", "1")
        .upsert("x", "");
    let rejected = sink_of(settings).deliver(&batch.build(), None).await.unwrap();
    assert_eq!(indexes(&rejected), [5, 6]);
    assert_eq!(class_and_code(&rejected[0].failure), (FailureClass::Poison, "http-rejected"));
    assert_eq!(rejected[0].failure.message, "no colour");
}

#[tokio::test]
async fn a_receiver_that_lies_is_not_believed() {
    let receiver = Receiver::start(|_, _| Reply::with_body(200, r#"{"rejected":[{"index":7}]}"#)).await;
    let failure = sink(&receiver).deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap_err();
    assert_eq!(class_and_code(&failure), (FailureClass::Fatal, "http-answer"));
}

#[tokio::test]
async fn refusals_of_whoever_asks_are_fatal_and_redirects_are_not_followed() {
    let statuses = [401, 403, 404, 301, 307];
    let receiver = Receiver::start(move |_, number| {
        Reply::Status(
            statuses[number],
            vec![("location", "http://127.0.0.1:1/marker".to_owned())],
            String::new(),
        )
    })
    .await;
    let sink = sink(&receiver);
    for status in statuses {
        let failure = sink.deliver(&Batch::new().numbers(0, 4).build(), None).await.unwrap_err();
        assert_eq!(class_and_code(&failure), (FailureClass::Fatal, format!("http-{status}").as_str()));
        assert!(
            failure.message.contains("hook") && failure.message.contains(&status.to_string()),
            "{failure}"
        );
    }
    assert_eq!(receiver.received().len(), statuses.len());
}

#[tokio::test]
async fn destinations_may_be_part_of_the_url() {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    let sink = sink_of(HttpSettings::new(Secret::new(receiver.url("/in/{destination}?d={destination}"))));
    let batch =
        Batch::new().to("a b").upsert("1", "1").to("..").upsert("2", "2").to("a b").upsert("3", "3").build();
    let rejected = sink.deliver(&batch, None).await.unwrap();
    assert_eq!(indexes(&rejected), [1]);
    assert_eq!(receiver.received()[0].target, "/in/a%20b?d=a%20b");
    assert_eq!(receiver.ids(), [["1", "3"]]);
}

#[tokio::test]
async fn requests_are_cut_by_count_and_bytes() {
    let receiver = Receiver::start(|_, _| Reply::status(200)).await;
    let mut settings = settings(&receiver);
    (settings.max_documents, settings.max_bytes) = (10, 2000);
    let sink = sink_of(settings);
    sink.deliver(&Batch::new().numbers(0, 25).build(), None).await.unwrap();
    assert_eq!(receiver.ids().iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
    let big = format!("\"{}\"", "x".repeat(900));
    let batch = Batch::new().upsert("1", &big).upsert("2", &big).upsert("3", &big).upsert("4", "4").build();
    sink.deliver(&batch, None).await.unwrap();
    assert!(receiver.received().iter().all(|request| request.body.len() < 2000 + 200));
    assert_eq!(receiver.ids()[3..].concat(), ["1", "2", "3", "4"]);
}

/// All that is logged, by our own code and by the client's libraries.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn c096_no_secret_in_any_failure_debug_text_or_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    subscriber.with_writer(move || writer.clone()).init();
    let receiver = Receiver::start(|request, number| {
        // Echoes all that it was sent.
        let echo = format!("{:?} {}", request.headers, request.target);
        match number {
            0 => Reply::with_body(500, &echo),
            1 => Reply::with_body(401, &request.headers["x-key"]),
            2 => Reply::with_body(422, &request.target),
            3 => Reply::with_body(
                200,
                &format!(r#"{{"rejected":[{{"index":0,"message":"{}"}}]}}"#, request.headers["x-key"]),
            ),
            4 => Reply::Close,
            _ => Reply::Hang,
        }
    })
    .await;
    let url = receiver.url("/marker-path?marker-query=1").replace("//", "//marker-user:marker-password@");
    let mut settings = HttpSettings::new(Secret::new(url));
    settings.headers.push(("x-key".to_owned(), Secret::new("Bearer marker-token")));
    settings.secrets.push(Secret::new("marker-signing"));
    settings.timeout = Duration::from_millis(200);
    let mut text = format!("{settings:?}");
    let sink = sink_of(settings.clone());
    for _ in 0..6 {
        match sink.deliver(&Batch::new().upsert("1", "1").build(), None).await {
            Ok(rejected) => write!(text, "{rejected:?}").unwrap(),
            Err(failure) => write!(text, "{failure} {failure:?}").unwrap(),
        }
        write!(text, "{sink:?}").unwrap();
    }
    drop(receiver);
    let failure = sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap_err();
    write!(text, "{failure:?}").unwrap();
    assert!(!text.contains("marker"), "{text}");
    assert!(text.contains("[secret]"));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("127.0.0.1"), "the client logs where it connects: {log}");
    assert!(!log.contains("marker"), "{log}");
    let basic = STANDARD.encode("marker-user:marker-password");
    assert!(!text.contains(&basic) && !log.contains(&basic), "{text}");
}

#[tokio::test]
async fn c096_a_secret_is_not_quoted_in_part() {
    // Wherever the quote ends: before, within and after the secret.
    let receiver = Receiver::start(|request, number| {
        Reply::with_body(500, &format!("{} {} end", "-".repeat(150 + number), request.headers["x-key"]))
    })
    .await;
    let mut settings = settings(&receiver);
    settings.headers.push(("x-key".to_owned(), Secret::new("Bearer marker-token")));
    let sink = sink_of(settings);
    for _ in 0..60 {
        let failure = sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap_err();
        assert!(failure.message.contains("-----"), "the answer is quoted: {failure}");
        assert!(!failure.message.contains("Bearer m"), "{failure}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_at_once() {
    let refused = |change: fn(&mut HttpSettings)| {
        let mut settings = HttpSettings::new(Secret::new("https://marker@example.com/marker"));
        change(&mut settings);
        let failure = build("hook", &SinkSettings::Http(settings)).unwrap_err();
        assert_eq!(failure.class, FailureClass::Fatal);
        assert!(failure.message.contains("sink `hook`") && !failure.message.contains("marker"), "{failure}");
        failure.code
    };
    assert_eq!(refused(|settings| settings.url = Secret::new("marker")), "http-url");
    assert_eq!(
        refused(|settings| settings.headers.push(("Host".into(), Secret::new("marker")))),
        "http-header"
    );
    assert_eq!(refused(|settings| settings.secrets.push(Secret::new("whsec_marker!"))), "http-secret");
}
