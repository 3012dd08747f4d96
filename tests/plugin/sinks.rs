//! Sinks: what becomes of their instances.

use anabranch::model::FailureClass;
use serde_json::json;

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
