//! Sinks: what becomes of their instances.

use std::time::Duration;

use anabranch::{
    model::{Documents, FailureClass},
    plugin::HostSettings,
};
use serde_json::{Value, json};

use crate::{
    frozen::{documents, sink},
    guests::{guest, host, load, short},
};

/// Who failed for good is not asked again: an instance that is opened anew knows nothing of it. Who failed for now is.
#[tokio::test]
async fn an_instance_that_failed_for_good_serves_no_more() {
    let plugin = load(&host(short()), &guest("fixtures/odd-sink", &[]));
    let one = documents(&[("1", Some("{}"))]);
    for (behave, class) in [
        ("fatal", FailureClass::Fatal),
        ("fatal-batch", FailureClass::Fatal),
        ("retry", FailureClass::Retry),
        ("retry-batch", FailureClass::Retry),
    ] {
        // Each instance fails in its first call, and in no other.
        let sink = sink(&plugin, json!({"behave": behave, "times": 1}));
        let failure = sink.deliver(&one, &[0], None).await.unwrap_err();
        assert_eq!((failure.class, failure.code.as_str()), (class, "asked"), "{behave}");
        let again = sink.deliver(&one, &[0], None).await;
        assert_eq!(again.is_err(), class == FailureClass::Fatal, "{behave}: {again:?}");
    }
}

/// Each attempt that comes to more memory than is left has the next one wait for it, until all of it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_waits_for_the_memory_that_its_last_attempt_did_not_get() {
    let odd = guest("fixtures/odd-sink", &[]);
    let body = format!("\"{}\"", "x".repeat(1 << 20));
    let (small, large) = (documents(&[("1", Some("{}"))]), documents(&[("1", Some(&body))]));
    let needs = async |documents: &Documents, settings: Value| {
        let host = host(short());
        let sink = sink(&load(&host, &odd), settings);
        // What is left is that of its instance.
        let _ = sink.deliver(documents, &[0], None).await;
        host.memory()
    };
    let little = needs(&small, json!({"behave": "retry-batch"})).await;
    let much = needs(&large, json!({})).await;
    assert!(little > 0 && much > little + (1 << 20), "{little} {much}");

    let total_memory = much + little / 2;
    let host = host(HostSettings { total_memory, call_deadline: Duration::from_secs(60), ..short() });
    let plugin = load(&host, &odd);
    let at_length = sink(&plugin, json!({"behave": "loop"}));
    let busy = tokio::spawn(async move { at_length.deliver(&small, &[0], None).await });
    testkit::wait_until("the other's memory", Duration::from_secs(50), async || Ok(host.memory() >= little))
        .await
        .unwrap();
    let sink = sink(&plugin, json!({}));
    let mut failed = 0;
    let waiting = loop {
        let mut delivery = Box::pin(sink.deliver(&large, &[0], None));
        let Ok(early) = tokio::time::timeout(Duration::from_millis(300), &mut delivery).await else {
            break delivery;
        };
        let failure = early.unwrap_err();
        let told = (failure.class, failure.code.as_str());
        assert_eq!(told, (FailureClass::Retry, "plugin-total-memory"), "{failure}");
        failed += 1;
        assert!(failed < 10, "it never waits: {failure}");
    };
    assert!(failed > 0, "the first attempt knows of nothing");
    // Its instance goes with it.
    busy.abort();
    assert_eq!(waiting.await.unwrap_or_else(|failure| panic!("{failure}")), []);
}
