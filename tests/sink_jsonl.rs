//! The JSONL sink, against real files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use anabranch::{
    model::FailureClass,
    sink::{JsonlSettings, Sink, SinkSettings, build},
};
use serde_json::Value;
use support::Batch;

fn sink(path: &Path) -> Box<dyn Sink> {
    build("log", &SinkSettings::Jsonl(JsonlSettings::new(path))).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(path: &Path) -> Vec<String> {
    lines(path).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_line_says_everything_and_keeps_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let sink = sink(&path);
    sink.open().await.unwrap();
    let body = r#"{"b":12345678901234567890.10,  "a":"é\u0000"}"#;
    let batch = Batch::new().upsert("1\"é", body).to("other").delete("2").build();
    assert_eq!(sink.deliver(&batch, None).await.unwrap(), []);
    let expected = format!(
        "{}{body}}}\n{}\n",
        r#"{"op":"upsert","destination":"products","id":"1\"é","lsn":"1/10","commit_time":"2024-01-31T12:00:00.500000Z","entity":"public.products","origin":"stream","document":"#,
        r#"{"op":"delete","destination":"other","id":"2","lsn":"1/10","commit_time":"2024-01-31T12:00:00.500000Z","entity":"public.products","origin":"stream"}"#,
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert!(!sink.capabilities().purge);
    assert_eq!(sink.purge("products", None).await.unwrap_err().class, FailureClass::Fatal);
}

#[tokio::test]
async fn a_document_with_line_breaks_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    sink(&path)
        .deliver(&Batch::new().upsert("a\nb", "{\n  \"a\":\r\n \"x\\ny\"\n}").build(), None)
        .await
        .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    assert_eq!(lines(&path)[0]["document"]["a"], "x\ny");
    assert_eq!(lines(&path)[0]["id"], "a\nb");
}

#[tokio::test]
async fn a_torn_last_line_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    sink(&path).deliver(&Batch::new().numbers(1, 2).build(), None).await.unwrap();
    let whole = fs::read(&path).unwrap();
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // At every byte, without and with zeros that a power cut left.
    for end in second..whole.len() {
        for zeros in [0, 3, if end % 16 == 0 { 70_000 } else { 1 }] {
            let mut torn = whole[..end].to_vec();
            torn.resize(end + zeros, 0);
            fs::write(&path, &torn).unwrap();
            let sink = sink(&path);
            sink.open().await.unwrap();
            sink.deliver(&Batch::new().upsert("3", "3").build(), None).await.unwrap();
            let complete = end == whole.len() - 1 && zeros == 0;
            let expected: &[&str] = if complete { &["1", "2", "3"] } else { &["1", "3"] };
            assert_eq!(ids(&path), expected, "cut at {end} with {zeros} zeros");
        }
    }
}

#[tokio::test]
async fn somebody_elses_text_is_not_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "dear diary\nno end").unwrap();
    let failure = sink(&path).deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap_err();
    assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "jsonl-foreign"));
    assert!(failure.message.contains("notes.txt"), "{failure}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary\nno end");
}

#[tokio::test]
async fn the_file_may_be_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let (path, rotated) = (dir.path().join("out.jsonl"), dir.path().join("out.jsonl.1"));
    let sink = sink(&path);
    sink.deliver(&Batch::new().upsert("1", "1").build(), None).await.unwrap();
    fs::rename(&path, &rotated).unwrap();
    sink.deliver(&Batch::new().upsert("2", "2").build(), None).await.unwrap();
    assert_eq!((ids(&rotated), ids(&path)), (vec!["1".to_owned()], vec!["2".to_owned()]));
}

#[tokio::test]
async fn paths_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (path, code) in [
        (dir.path().join("missing/x.jsonl"), "jsonl-open"),
        (dir.path().to_owned(), "jsonl-not-a-file"),
        ("/dev/null".into(), "jsonl-not-a-file"),
    ] {
        let failure = sink(&path).open().await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, code), "{failure}");
        assert!(failure.message.contains(path.to_str().unwrap()), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_do_not_mix_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let shared: Arc<dyn Sink> = Arc::from(sink(&path));
    let mut deliveries = tokio::task::JoinSet::new();
    for lane in 0..4 {
        let sink: Arc<dyn Sink> = if lane < 2 { Arc::clone(&shared) } else { Arc::from(sink(&path)) };
        deliveries.spawn(async move {
            for round in 0..5 {
                sink.deliver(&Batch::new().numbers(lane * 10_000 + round * 500, 500).build(), None)
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = deliveries.join_next().await {
        done.unwrap();
    }
    let mut numbers: Vec<u64> =
        lines(&path).iter().map(|line| line["document"]["n"].as_u64().unwrap()).collect();
    for lane in 0..4 {
        let own: Vec<u64> = numbers.iter().copied().filter(|n| n / 10_000 == lane).collect();
        assert!(own.is_sorted(), "a lane's order is kept");
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 10_000);
}

/// The test program itself, as a child with a pipe for standard output.
#[test]
fn standard_output_is_a_sink() {
    if std::env::var_os("SINK_TO_STDOUT").is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let sink = sink(Path::new("-"));
        runtime.block_on(sink.open()).unwrap();
        let done = runtime.block_on(sink.deliver(&Batch::new().numbers(1, 3).build(), None));
        if let Err(failure) = done {
            assert_eq!((failure.class, failure.code.as_str()), (FailureClass::Fatal, "jsonl-pipe"));
        }
        return;
    }
    let child = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "standard_output_is_a_sink", "--nocapture"]);
        child.env("SINK_TO_STDOUT", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        child
    };
    let output = child().output().unwrap();
    std::io::stderr().write_all(&output.stderr).unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.matches(r#"{"op":"upsert","destination":"products","id":""#).count(), 3, "{text}");
}
