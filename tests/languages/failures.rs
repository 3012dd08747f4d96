//! What goes wrong in guests in other languages concerns the change that it is about, as in Rust.

use std::time::Duration;

use anabranch::{
    model::{EntityName, FailureClass, Outcome, Outcomes},
    plugin::{FaultKind, HostSettings, PluginHost, Transform},
};
use testkit::guests::{Language, language_tools};

use crate::{
    documents::{host, load},
    rows::{all, notes},
};

/// The fixtures that this machine can build, at work with the settings of a host.
fn fixtures(host: &PluginHost) -> Vec<(&'static str, Transform)> {
    let all = [
        (Language::JavaScript, "odd-js"),
        (Language::Python, "odd-python"),
        (Language::C, "odd-c"),
        (Language::Go, "odd-go"),
    ];
    let possible = all.into_iter().filter(|(language, _)| language_tools(*language).unwrap().is_some());
    let at_work = |(_, name)| {
        let plugin = load(host, &format!("plugins/fixtures/{name}"));
        assert_eq!(plugin.revision().to_string(), format!("{name} 1.0.0"));
        let settings = [("setting".to_owned(), "of the mapping".to_owned())].into();
        (name, plugin.transform(&EntityName::new("public", "notes"), settings))
    };
    possible.map(at_work).collect()
}

fn bodies(outcomes: &Outcomes) -> Vec<&str> {
    let bodies = outcomes.documents.iter().map(|document| outcomes.slice(document.body));
    bodies.map(|body| std::str::from_utf8(body).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_concerns_its_own_change() {
    let host = host();
    for (name, transform) in fixtures(&host) {
        let batch = notes(&[
            ("9007199254740993", "fine"),
            ("2", "poison"),
            ("3", "bug"),
            ("4", "recursion"),
            ("5", "skip"),
            ("6", "log"),
            ("7", "fine"),
        ]);
        let outcomes = transform
            .call_isolating(&batch, &all(&batch))
            .await
            .unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let failed = |at: usize| match &outcomes.outcomes[at] {
            Outcome::Failed(failure) => failure.clone(),
            other => panic!("{name}, {at}: {other:?}"),
        };
        assert_eq!((failed(1).code.as_str(), failed(1).class), ("bad-note", FailureClass::Poison));
        assert_eq!(failed(1).message, "this note is bad");
        // C has no exceptions: the SDK notices what a column is read as.
        let bug = if name == "odd-c" { "column" } else { "exception" };
        assert_eq!((failed(2).code.as_str(), failed(2).class), (bug, FailureClass::Poison), "{name}");
        assert_eq!(failed(3).class, FailureClass::Poison, "{name}: {:?}", failed(3));
        assert_eq!(outcomes.outcomes[4], Outcome::Skip);
        let documents = bodies(&outcomes);
        assert_eq!(documents[0], r#"{"id":9007199254740993,"note":"fine"}"#, "{name}: no digit is lost");
        assert_eq!(documents[1], r#"{"setting":"of the mapping"}"#, "{name}");
        assert_eq!(documents[2], r#"{"id":7,"note":"fine"}"#, "{name}");
    }
}

/// Engines with a garbage collector grow from call to call: an instance is replaced before it meets its limit.
#[tokio::test(flavor = "multi_thread")]
async fn c085_no_call_meets_the_memory_limit_for_what_earlier_ones_left() {
    let cache_dir = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    let settings = HostSettings { cache_dir, memory: 40 << 20, instances: 1, ..HostSettings::default() };
    let host = PluginHost::new(settings).unwrap();
    let note = "a note of some length, ".repeat(1000);
    let rows: Vec<_> = (0..100).map(|_| ("1", note.as_str())).collect();
    let batch = notes(&rows);
    for (name, transform) in fixtures(&host) {
        for call in 0..60 {
            let outcomes = transform.call(&batch, &all(&batch)).await;
            outcomes.unwrap_or_else(|fault| panic!("{name}, call {call}: {fault}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn loops_and_hoards_end_at_their_limits() {
    let settings = HostSettings { call_deadline: Duration::from_secs(3), ..HostSettings::default() };
    let cache_dir = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    let host = PluginHost::new(HostSettings { cache_dir, ..settings }).unwrap();
    for (name, transform) in fixtures(&host) {
        let looping = notes(&[("1", "loop")]);
        let fault = transform.call(&looping, &all(&looping)).await.unwrap_err();
        assert!(matches!(fault.kind(), FaultKind::Deadline(_)), "{name}: {fault}");
        let hoarding = notes(&[("1", "memory")]);
        match transform.call(&hoarding, &all(&hoarding)).await {
            Err(fault) => {
                let ended = matches!(fault.kind(), FaultKind::Memory(_) | FaultKind::Deadline(_));
                assert!(ended, "{name}: {fault}");
            }
            Ok(outcomes) => {
                assert!(matches!(outcomes.outcomes[..], [Outcome::Failed(_)]), "{name}: {outcomes:?}")
            }
        }
        let fine = notes(&[("1", "fine")]);
        let outcomes =
            transform.call(&fine, &all(&fine)).await.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(
            bodies(&outcomes),
            [r#"{"id":1,"note":"fine"}"#],
            "{name}: the next call has a fresh instance"
        );
    }
}

/// Compilers for WASI link what a host grants to nobody: a stub within the component answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_system_that_is_not_there_is_answered_for() {
    let host = host();
    for (name, transform) in fixtures(&host) {
        if !["odd-c", "odd-go"].contains(&name) {
            continue;
        }
        let batch = notes(&[("1", "system"), ("2", "exit"), ("3", "fine")]);
        let outcomes = transform.call_isolating(&batch, &all(&batch)).await;
        let outcomes = outcomes.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        // A file, the home, the clock before and after a day asleep, and whether there are random bytes.
        assert_eq!(bodies(&outcomes), ["[false,null,0,86400,true]", r#"{"id":3,"note":"fine"}"#], "{name}");
        assert!(
            matches!(&outcomes.outcomes[1], Outcome::Failed(failure) if failure.class == FailureClass::Poison)
        );
    }
}

/// Nobody frees memory in a transform in C: the SDK uses it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_million_changes_leave_nothing_behind_in_c() {
    if language_tools(Language::C).unwrap().is_none() {
        return;
    }
    let cache_dir = Some(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    let host = PluginHost::new(HostSettings { cache_dir, ..HostSettings::default() }).unwrap();
    let plugin = load(&host, "plugins/fixtures/odd-c");
    let settings = [("setting".to_owned(), "of the mapping".to_owned())].into();
    let transform = plugin.transform(&EntityName::new("public", "notes"), settings);
    let batch = notes(&[("1", "fine"), ("2", "poison"), ("3", "bug"), ("4", "setting")]);
    let selection = all(&batch);
    let mut early = 0;
    for call in 0..250_000 {
        let outcomes = transform.call(&batch, &selection).await.unwrap_or_else(|fault| panic!("{fault}"));
        if call == 1000 {
            assert_eq!(bodies(&outcomes)[1], r#"{"setting":"of the mapping"}"#);
            early = plugin.peak_memory();
        }
    }
    assert_eq!(plugin.peak_memory(), early);
}
