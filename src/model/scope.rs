//! Which rows of a table are meant, where it is not all of them.

use serde::{Deserialize, Serialize};

/// A part of a table that is to be read again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Rows for which this SQL condition over the table's columns holds.
    Where(String),
    /// The rows of these keys, each one text for each column of the key, in key order.
    Keys(Vec<Vec<String>>),
}
