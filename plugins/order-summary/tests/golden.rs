//! Rows in, documents out, whole batches as the host sends them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use anabranch_sdk::{
    FailureClass, Value,
    testing::{Named, Outcome, Table, set_config},
};
use order_summary::OrderSummary;

fn order<'a>(status: &'a str, total: &'a str) -> [Named<'a>; 5] {
    [
        ("id", Value::Integer(7)),
        ("customer", Value::Text("Ada")),
        ("status", Value::Text(status)),
        ("total", Value::Text(total)),
        ("placed_at", Value::Text("2026-01-31T12:00:00Z")),
    ]
}

fn one(status: &str, total: &str) -> Outcome {
    let outcomes = Table::of::<OrderSummary>().insert("7", &order(status, total)).run::<OrderSummary>();
    outcomes.unwrap().remove(0)
}

#[test]
fn an_open_order_is_summed_up() {
    assert_eq!(one("open", "12.50").document(), Some(include_str!("golden/order.json").trim_end()));
}

#[test]
fn the_mapping_sets_the_currency() {
    set_config("currency", "CHF");
    assert!(one("open", "12.50").document().unwrap().contains(r#""currency":"CHF""#));
}

#[test]
fn a_draft_has_no_document() {
    assert_eq!(one("draft", "12.50"), Outcome::Delete);
}

#[test]
fn what_is_not_known_fails_its_own_order() {
    for (status, total) in [("open", "NaN"), ("lost", "1")] {
        match one(status, total) {
            Outcome::Failed(failure) => assert_eq!(failure.class, FailureClass::Poison),
            other => panic!("{other:?}"),
        }
    }
}
