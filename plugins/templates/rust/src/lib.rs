//! Makes documents of `{{table}}`.

use anabranch_sdk::{{imports}};
use serde::{Deserialize, Serialize};

/// The columns that are read, in this order; no others are sent. An `Option` takes NULL.
#[derive(Debug, Deserialize)]
pub struct Row{{a}} {
{{fields}}
}

/// What is kept in the destination.
#[derive(Debug, Serialize)]
pub struct Document{{a}} {
{{fields}}
}

/// The transform.
#[derive(Debug)]
pub struct Plugin;

impl Transform for Plugin {
    const TABLES: &'static [&'static str] = &[{{table_text}}];
    type Row<'a> = Row{{a}};
    type Answer<'a> = Option<Document{{a}}>;

    /// `None`: this row has no document.
    fn transform<'a>(change: Change<'a, Row{{a}}>) -> Result<Option<Document{{a}}>, Failure> {
        let Row { {{bindings}} } = change.row;
        Ok(Some(Document { {{bindings}} }))
    }
}

anabranch_sdk::export!(Plugin);

#[cfg(test)]
mod tests {
    {{test_imports}}

    use super::*;

    #[test]
    fn a_row_becomes_a_document() {
        let row = [
{{test_row}}
        ];
        let outcomes = Table::of::<Plugin>().insert("1", &row).run::<Plugin>().unwrap();
        assert_eq!(outcomes[0].document(), Some({{document_text}}));
    }
}
