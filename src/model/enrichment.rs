//! Questions that a transform has for the source.

use super::ValueType;

/// A statement and the sets of parameters that it runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryStatement {
    /// One statement that gives rows.
    pub sql: String,
    /// As text; none is NULL. The statement runs once for each set.
    pub parameters: Vec<Vec<Option<String>>>,
}

/// What a statement gave for one set of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRows {
    /// Names and types.
    pub columns: Vec<(String, ValueType)>,
    /// Row by row, in Postgres's own text; none is NULL.
    pub cells: Vec<Option<String>>,
}

impl QueryRows {
    /// No rows of these columns.
    #[must_use]
    pub fn new(columns: Vec<(String, ValueType)>) -> Self {
        Self { columns, cells: Vec::new() }
    }

    /// The rows, each with as many cells as there are columns.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Option<String>]> {
        self.cells.chunks(self.columns.len().max(1))
    }
}
