//! Ordinary work: samples, projections, settings, splitting, several calls at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anabranch::{
    model::{FailureClass, Operation, Origin, Outcome, ValueType},
    plugin::{FaultKind, HostSettings},
};

use crate::{
    guests::{at_work, guest, host, hostile, load, short},
    rows::{all, batch, notes, product, products, push, relation, text},
};

#[tokio::test(flavor = "multi_thread")]
async fn products_become_search_documents() {
    let plugin = load(&host(HostSettings::default()), &guest("product-search", &[]));
    let mut batch = batch(&products());
    for id in 0..2500 {
        product(&mut batch, id, id % 10 != 0);
    }
    batch.origin = Origin::Backfill;
    push(&mut batch, Operation::Delete, None, Some(&[Some(None); 12]));
    push(&mut batch, Operation::Truncate, None, None);
    let outcomes = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap();
    assert_eq!(outcomes.outcomes.len(), 2502);
    assert_eq!(outcomes.documents.len(), 2250);
    for (id, outcome) in outcomes.outcomes[..2500].iter().enumerate() {
        let Outcome::Emit { first, count: 1 } = outcome else {
            assert!(*outcome == Outcome::Delete && id % 10 == 0, "{id} {outcome:?}");
            continue;
        };
        let body: serde_json::Value =
            serde_json::from_slice(outcomes.slice(outcomes.documents[*first as usize].body)).unwrap();
        assert_eq!(body["title"], format!("Oak chair \"{id}\""));
        assert_eq!(body["attributes"]["width_mm"], id);
        assert_eq!(body["tags"], serde_json::json!(["tag1", "tag 2"]));
    }
    assert_eq!(
        outcomes.outcomes[2500..],
        [Outcome::Delete, Outcome::Skip],
        "deletes and truncates do not reach it"
    );
    let first = &outcomes.documents[0];
    assert!(
        String::from_utf8_lossy(outcomes.slice(first.body)).contains("\"price\":19.90"),
        "digits are kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_the_table_lacks_is_named() {
    let plugin = load(&host(HostSettings::default()), &guest("product-search", &[]));
    let batch = notes(&[("1", "a"), ("2", "b")]);
    let fault = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap_err();
    assert!(matches!(fault.kind(), FaultKind::MissingColumn { column, .. } if column == "name"), "{fault}");
    assert!(fault.to_string().contains("the table has id, note"), "{fault}");
    assert_eq!((fault.class(), fault.may_be_one_change()), (FailureClass::Fatal, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_cannot_be_read_fails_its_own_change() {
    let plugin = load(&host(HostSettings::default()), &guest("fixtures/echo-msgpack", &[]));
    let relation = relation(&[("id", ValueType::Integer), ("on", ValueType::Bool)]);
    let mut batch = batch(&relation);
    for value in ["t", "maybe", "f"] {
        push(&mut batch, Operation::Insert, Some(&[text("1"), text(value)]), None);
    }
    let outcomes = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap().outcomes;
    assert!(matches!((&outcomes[0], &outcomes[2]), (Outcome::Emit { .. }, Outcome::Emit { .. })));
    let Outcome::Failed(failure) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert!(failure.message.contains("column `on` of public.products") && failure.message.contains("maybe"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relation_that_changes_within_a_batch_is_no_problem() {
    let plugin = load(&host(HostSettings::default()), &guest("fixtures/echo-json", &[]));
    let before = relation(&[("id", ValueType::Integer), ("old_name", ValueType::Text)]);
    let after = relation(&[("id", ValueType::Integer), ("name", ValueType::Text), ("more", ValueType::Text)]);
    let mut batch = batch(&before);
    push(&mut batch, Operation::Insert, Some(&[text("1"), text("a")]), None);
    batch.intern(&after);
    push(&mut batch, Operation::Insert, Some(&[text("2"), text("b"), Some(None)]), None);
    let outcomes = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap();
    let bodies: Vec<_> = outcomes
        .documents
        .iter()
        .map(|d| String::from_utf8_lossy(outcomes.slice(d.body)).into_owned())
        .collect();
    assert!(bodies[0].contains("old_name") && bodies[1].contains("\"more\":null"), "{bodies:?}");
    // Only what is selected is sent.
    let one = at_work(&plugin, &[]).call(&batch, &[1]).await.unwrap();
    assert_eq!(one.outcomes.len(), 1);
    assert!(at_work(&plugin, &[]).call(&batch, &[]).await.unwrap().outcomes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn mappings_of_one_plugin_have_their_own_settings() {
    let plugin = load(&host(HostSettings { instances: 1, ..short() }), &hostile());
    let batch = notes(&[("1", "a"), ("2", "b"), ("3", "c")]);
    let (mixed, skips) = (at_work(&plugin, &[("behave", "mixed")]), at_work(&plugin, &[]));
    for _ in 0..3 {
        let outcomes = mixed.call(&batch, &all(&batch)).await.unwrap();
        assert_eq!(outcomes.outcomes, [Outcome::Skip, Outcome::Delete, Outcome::Emit { first: 0, count: 1 }]);
        let document = outcomes.documents[0];
        assert_eq!(outcomes.slice(document.id.unwrap()), b"aA");
        assert_eq!(outcomes.slice(document.destination.unwrap()), b"d");
        assert_eq!(outcomes.slice(document.body), b"{\"x\":1.0}");
        assert_eq!(skips.call(&batch, &all(&batch)).await.unwrap().outcomes, vec![Outcome::Skip; 3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_run_side_by_side() {
    let plugin =
        load(&host(HostSettings { instances: 2, ..HostSettings::default() }), &guest("product-search", &[]));
    let transform = Arc::new(at_work(&plugin, &[]));
    let mut rows = batch(&products());
    for id in 0..200 {
        product(&mut rows, id, true);
    }
    let rows = Arc::new(rows);
    let calls = (0..8).map(|_| {
        let (transform, rows) = (Arc::clone(&transform), Arc::clone(&rows));
        tokio::spawn(async move { transform.call(&rows, &all(&rows)).await.unwrap() })
    });
    let mut answers = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        answers.push(call.await.unwrap());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(answers[0].documents.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_calls_run_at_once_than_a_plugin_has_instances() {
    let deadline = Duration::from_secs(1);
    let host = host(HostSettings { instances: 1, call_deadline: deadline, ..short() });
    let plugin = load(&host, &hostile());
    let (looping, good) = (at_work(&plugin, &[("behave", "loop")]), at_work(&plugin, &[]));
    let batch = Arc::new(notes(&[("1", "a")]));
    let began = Instant::now();
    let stuck = tokio::spawn({
        let batch = Arc::clone(&batch);
        async move { looping.call(&batch, &[0]).await.is_err() }
    });
    testkit::wait_until("the instance that loops", Duration::from_secs(10), async || Ok(host.memory() > 0))
        .await
        .unwrap();
    good.call(&batch, &[0]).await.unwrap();
    assert!(began.elapsed() >= deadline, "it did not wait for its place: {:?}", began.elapsed());
    assert!(stuck.await.unwrap());
}
