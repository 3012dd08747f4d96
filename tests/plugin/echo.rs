//! Every column reaches a guest and comes back, the same in both encodings.

use anabranch::{
    model::{ChangeBatch, Operation, Outcome, Outcomes, ValueType},
    plugin::HostSettings,
};
use serde_json::{Value, json};

use crate::{
    guests::{at_work, guest, host, load},
    rows::{all, batch, push, relation, text},
};

fn documents(outcomes: &Outcomes) -> Vec<Value> {
    outcomes
        .documents
        .iter()
        .map(|document| serde_json::from_slice(outcomes.slice(document.body)).unwrap())
        .collect()
}

fn rows() -> ChangeBatch {
    let relation = relation(&[
        ("id", ValueType::Integer),
        ("big", ValueType::Integer),
        ("truth", ValueType::Bool),
        ("ratio", ValueType::Float),
        ("price", ValueType::Numeric),
        ("name", ValueType::Text),
        ("day", ValueType::Date),
        ("at", ValueType::TimestampTz),
        ("raw", ValueType::Bytea),
        ("data", ValueType::Json),
        ("tags", ValueType::Array(Box::new(ValueType::Integer), b',')),
        ("pairs", ValueType::Hstore),
        ("note", ValueType::Text),
    ]);
    let mut batch = batch(&relation);
    let full = [
        text("7"),
        text("-9223372036854775808"),
        text("t"),
        text("-Infinity"),
        text("1234567890123456789012345678901234567890.50"),
        text("a \"quoted\" \\ name\nwith é and \u{1f600}"),
        text("2026-01-31"),
        text("2026-01-31 12:00:00.5+00"),
        text("\\x00ff10"),
        text("{\"a\": [1, 2.50], \"b\": null}"),
        text("{{1,NULL},{3,4}}"),
        text("\"a\"=>\"1\", \"b\"=>NULL"),
        text(""),
    ];
    let mut sparse = [Some(None); 13];
    sparse[0] = text("7");
    sparse[12] = None;
    push(&mut batch, Operation::Insert, Some(&full), None);
    push(&mut batch, Operation::Update, Some(&sparse), Some(&full));
    push(&mut batch, Operation::Delete, None, Some(&full));
    batch
}

fn full() -> Value {
    json!({
        "id": 7, "big": i64::MIN, "truth": true, "ratio": "-Infinity",
        "price": "1234567890123456789012345678901234567890.50",
        "name": "a \"quoted\" \\ name\nwith é and \u{1f600}", "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.5Z", "raw": "AP8Q", "data": {"a": [1, 2.5], "b": null},
        "tags": [[1, null], [3, 4]], "pairs": {"a": "1", "b": null}, "note": ""
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_back_as_they_were_in_both_encodings() {
    let host = host(HostSettings::default());
    let batch = rows();
    let mut answers = Vec::new();
    for project in ["fixtures/echo-msgpack", "fixtures/echo-json"] {
        let plugin = load(&host, &guest(project, &[]));
        let outcomes = at_work(&plugin, &[]).call(&batch, &all(&batch)).await.unwrap();
        assert!(outcomes.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Emit { count: 1, .. })));
        answers.push(documents(&outcomes));
    }
    assert_eq!(answers[0], answers[1]);
    let [insert, update, delete] = answers[0].as_slice() else { panic!("{answers:?}") };
    assert_eq!(insert["row"], full());
    assert_eq!((&insert["operation"], &insert["id"]), (&json!("insert"), &json!("7")));
    assert_eq!((&insert["absent"], &insert["old"]), (&json!([]), &json!(null)));
    assert_eq!(
        (&update["absent"], &update["old_absent"]),
        (&json!(["note"]), &json!([])),
        "c014: NULL is not absent"
    );
    assert_eq!(update["row"]["name"], json!(null));
    assert_eq!(update["old"], full());
    assert_eq!((&delete["operation"], &delete["row"]), (&json!("delete"), &json!(null)));
    assert_eq!(delete["old"], full());
}
