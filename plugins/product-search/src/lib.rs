//! Makes search documents of `public.products`. Products that are not active have none.

use anabranch_sdk::{Change, Failure, RawJson, Transform};
use serde::{Deserialize, Serialize};

/// The columns that are read.
#[derive(Debug, Deserialize)]
pub struct Product<'a> {
    name: &'a str,
    description: Option<&'a str>,
    price: &'a str,
    active: bool,
    tags: Option<Vec<Option<&'a str>>>,
    attributes: Option<RawJson<'a>>,
}

/// What is searched.
#[derive(Debug, Serialize)]
pub struct SearchDocument<'a> {
    title: &'a str,
    text: &'a str,
    /// The digits as Postgres keeps them; null for a price that is not a number.
    price: Option<RawJson<'a>>,
    tags: Vec<Option<&'a str>>,
    attributes: Option<RawJson<'a>>,
}

/// The transform.
#[derive(Debug)]
pub struct ProductSearch;

impl Transform for ProductSearch {
    const TABLES: &'static [&'static str] = &["public.products"];
    const DESTINATION: Option<&'static str> = Some("products");
    type Row<'a> = Product<'a>;
    type Answer<'a> = Option<SearchDocument<'a>>;

    fn transform<'a>(change: Change<'a, Product<'a>>) -> Result<Option<SearchDocument<'a>>, Failure> {
        let product = change.row;
        Ok(product.active.then(|| SearchDocument {
            title: product.name,
            text: product.description.unwrap_or_default(),
            price: number(product.price),
            tags: product.tags.unwrap_or_default(),
            attributes: product.attributes,
        }))
    }
}

/// A numeric as a JSON number, without going through a float. `NaN` and the infinities are no numbers.
fn number(text: &str) -> Option<RawJson<'_>> {
    text.ends_with(|last: char| last.is_ascii_digit()).then(|| RawJson::new(text))
}

anabranch_sdk::export!(ProductSearch);
