//! Says of a table that is missing which one may have been meant.

use super::{Code, Findings, Severity};
use crate::model::EntityName;

/// How alike two names must be for a hint, by Jaro and Winkler, where 1 is the same.
const ALIKE: f64 = 0.85;

pub(super) fn missing(name: &EntityName, known: &[EntityName], findings: &mut Findings) {
    let mut what = format!("table {name} does not exist in this database");
    if let Some(near) = nearest(name, known) {
        what.push_str(&if near.table == name.table {
            format!("; schema `{}` has one of this name: {near}", near.schema)
        } else if near.table.to_lowercase() == name.table.to_lowercase() {
            format!("; upper and lower case count: there is {near}")
        } else {
            format!("; did you mean {near}?")
        });
    }
    findings.table(name, Severity::Error, Code::TableMissing, what, None);
}

/// The same name in another schema, else the same but for case, else the most alike.
fn nearest<'a>(name: &EntityName, known: &'a [EntityName]) -> Option<&'a EntityName> {
    let here = |other: &&EntityName| other.schema == name.schema;
    let folded = |other: &&EntityName| other.table.to_lowercase() == name.table.to_lowercase();
    let same = known.iter().find(|other| other.table == name.table);
    let case = known.iter().filter(here).find(folded).or_else(|| known.iter().find(folded));
    same.or(case).or_else(|| {
        let score = |other: &EntityName| {
            let alike = strsim::jaro_winkler(&other.table.to_lowercase(), &name.table.to_lowercase());
            if other.schema == name.schema { alike } else { alike - 0.02 }
        };
        let scored = known.iter().map(|other| (score(other), other)).filter(|(score, _)| *score >= ALIKE);
        scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_at_what_was_meant() {
        let known = ["public.orders", "shop.Products", "shop.line_items"].map(|name| name.parse().unwrap());
        let hint = |name: &str| nearest(&name.parse().unwrap(), &known).map(ToString::to_string);
        assert_eq!(hint("shop.orders").as_deref(), Some("public.orders"));
        assert_eq!(hint("shop.products").as_deref(), Some("shop.Products"));
        assert_eq!(hint("shop.line_item").as_deref(), Some("shop.line_items"));
        assert_eq!(hint("public.customers"), None);
    }
}
