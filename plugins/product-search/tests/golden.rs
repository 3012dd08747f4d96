//! Rows in, documents out, whole batches as the host sends them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use anabranch_sdk::{
    RawJson, Value,
    testing::{Named, Outcome, Table, describe},
};
use product_search::ProductSearch;

fn product<'a>(price: &'a str, active: bool) -> [Named<'a>; 6] {
    [
        ("name", Value::Text("Kettle \"Uno\"")),
        ("description", Value::Null),
        ("price", Value::Text(price)),
        ("active", Value::Bool(active)),
        ("tags", Value::Array(vec![Value::Text("kitchen"), Value::Text("steel")])),
        ("attributes", Value::Json(RawJson::new("{\"watts\": 2200.50}"))),
    ]
}

#[test]
fn an_active_product_is_found() {
    let outcomes =
        Table::of::<ProductSearch>().insert("1", &product("19.90", true)).run::<ProductSearch>().unwrap();
    assert_eq!(outcomes[0].document(), Some(include_str!("golden/product.json").trim_end()));
}

#[test]
fn a_price_that_is_no_number_is_null() {
    let outcomes =
        Table::of::<ProductSearch>().insert("1", &product("NaN", true)).run::<ProductSearch>().unwrap();
    assert!(outcomes[0].document().unwrap().contains("\"price\":null"));
}

#[test]
fn an_inactive_product_has_no_document() {
    let outcomes = Table::of::<ProductSearch>()
        .update("1", &product("19.90", false), None)
        .insert("2", &product("1", true))
        .run::<ProductSearch>()
        .unwrap();
    assert_eq!(outcomes[0], Outcome::Delete);
    assert!(outcomes[1].document().is_some());
}

#[test]
fn it_says_which_columns_it_reads() {
    let description = describe::<ProductSearch>();
    assert!(description.contains(r#""columns":["name","description","price","active","tags","attributes"]"#));
}
