//! Makes one-line summaries of `public.orders`. Drafts have none.

use anabranch_sdk::{Change, Failure, RawJson, Transform, host};
use serde::{Deserialize, Serialize};

/// The columns that are read.
#[derive(Debug, Deserialize)]
pub struct Order<'a> {
    id: i64,
    customer: &'a str,
    status: Status,
    total: &'a str,
    placed_at: &'a str,
}

/// Where an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Not placed yet.
    Draft,
    /// Placed.
    Open,
    /// Paid.
    Paid,
    /// On its way.
    Shipped,
    /// Withdrawn.
    Cancelled,
}

/// What is shown.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    title: String,
    status: Status,
    total: RawJson<'a>,
    currency: String,
    day: &'a str,
}

/// The transform.
#[derive(Debug)]
pub struct OrderSummary;

impl Transform for OrderSummary {
    const TABLES: &'static [&'static str] = &["public.orders"];
    const DESTINATION: Option<&'static str> = Some("orders");
    type Row<'a> = Order<'a>;
    type Answer<'a> = Option<Summary<'a>>;

    fn transform<'a>(change: Change<'a, Order<'a>>) -> Result<Option<Summary<'a>>, Failure> {
        let order = change.row;
        if order.status == Status::Draft {
            return Ok(None);
        }
        if !order.total.ends_with(|last: char| last.is_ascii_digit()) {
            let message = format!("order {} has the total {}; give it a number", order.id, order.total);
            return Err(Failure::poison("total", message));
        }
        Ok(Some(Summary {
            title: format!("Order {} of {}", order.id, order.customer),
            status: order.status,
            total: RawJson::new(order.total),
            currency: host::config("currency").unwrap_or_else(|| "EUR".to_owned()),
            day: order.placed_at.get(..10).unwrap_or(order.placed_at),
        }))
    }
}

anabranch_sdk::export!(OrderSummary);
