//! Questions to the source, to enrich documents (`[plugins.<name>.grants] query = true`).
//!
//! Whatever is asked in one go is answered from one snapshot, which sees the changes of the batch that is being
//! transformed. Names of tables need their schema. Natively (in unit tests) questions are answered by
//! [`testing::set_query`](crate::testing::set_query).
//!
//! ```no_run
//! # use anabranch_sdk::{Failure, query::Query};
//! # fn ask() -> Result<(), Failure> {
//! let answers = Query::new("select name, country from public.brands where id = $1").with([Some("7")]).run()?;
//! let brands: Vec<(String, Option<String>)> = answers.rows(0)?;
//! # Ok(())
//! # }
//! ```

use serde::de::DeserializeOwned;

use crate::{
    Failure,
    msgpack::{Malformed, Reader},
    row::{Absent, Tuple},
};

/// Statements, each with the sets of parameters that it runs with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub(crate) statements: Vec<Statement>,
}

/// One SELECT (or VALUES, or WITH … SELECT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// With parameters `$1`, `$2`, …
    pub sql: String,
    /// The statement runs once for each set.
    pub parameters: Vec<Vec<Option<String>>>,
}

impl Query {
    /// A statement. It runs for each set of parameters that [`Query::with`] adds.
    pub fn new(sql: impl Into<String>) -> Self {
        Self::default().and(sql)
    }

    /// A further statement.
    #[must_use]
    pub fn and(mut self, sql: impl Into<String>) -> Self {
        self.statements.push(Statement { sql: sql.into(), parameters: Vec::new() });
        self
    }

    /// Runs the last statement with these parameters too; `[]` of `None::<&str>` for one without any. A parameter is
    /// text, as Postgres reads it for its type; none is NULL.
    #[must_use]
    pub fn with<S: Into<String>>(mut self, parameters: impl IntoIterator<Item = Option<S>>) -> Self {
        let set = parameters.into_iter().map(|value| value.map(Into::into)).collect();
        if let Some(statement) = self.statements.last_mut() {
            statement.parameters.push(set);
        }
        self
    }

    /// Asks.
    ///
    /// # Errors
    /// As the host says: of class retry where the source cannot be reached or is slow, otherwise the statement is to
    /// blame, or what the config allows.
    pub fn run(self) -> Result<Answers, Failure> {
        #[cfg(target_family = "wasm")]
        {
            use crate::bindings::capabilities::anabranch::plugin::query as host;
            let statement = |Statement { sql, parameters }: Statement| host::Statement { sql, parameters };
            let statements: Vec<_> = self.statements.into_iter().map(statement).collect();
            let bytes = host::query(&statements).map_err(Failure::from)?;
            Ok(Answers { bytes })
        }
        #[cfg(not(target_family = "wasm"))]
        crate::testing::answer_query(&self).map(|bytes| Answers { bytes })
    }
}

/// The rows of each set of parameters, in their order over all statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    bytes: Vec<u8>,
}

impl Answers {
    /// The rows of one set of parameters, the first being 0. A row is a struct or tuple of the columns, or the first of them, in
    /// their order; json comes as text where the statement casts it (`::text`).
    ///
    /// # Errors
    /// There is no such set, or a row is not of this type.
    pub fn rows<R: DeserializeOwned>(&self, set: usize) -> Result<Vec<R>, Failure> {
        let wrong = |error: Malformed| {
            let message =
                format!("the answer is malformed at byte {}: expected {}", error.at, error.expected);
            Failure::fatal("query-answer", message)
        };
        let (mut reader, sets) = self.open().map_err(wrong)?;
        if set >= sets {
            return Err(Failure::fatal(
                "query-answer",
                format!("there are {sets} sets of rows, and none is {set}"),
            ));
        }
        for _ in 0..set {
            reader.skip().map_err(wrong)?;
        }
        reader.array().map_err(wrong)?;
        let count = reader.array().map_err(wrong)?;
        let names: Vec<&str> = (0..count).map(|_| reader.text()).collect::<Result<_, _>>().map_err(wrong)?;
        let rows = reader.array().map_err(wrong)?;
        let mut read = Vec::with_capacity(rows.min(1 << 16));
        for _ in 0..rows {
            let tuple = Tuple { reader, columns: &names, absent: Absent(None) };
            read.push(tuple.read().map_err(|error| Failure::poison("query-row", error.to_string()))?);
            reader.skip().map_err(wrong)?;
        }
        Ok(read)
    }

    /// How many sets of rows there are.
    #[must_use]
    pub fn sets(&self) -> usize {
        self.open().map_or(0, |(_, sets)| sets)
    }

    fn open(&self) -> Result<(Reader<'_>, usize), Malformed> {
        let mut reader = Reader::new(&self.bytes);
        reader.array()?;
        reader.unsigned()?;
        let sets = reader.array()?;
        Ok((reader, sets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Value, testing};

    #[test]
    fn answers_come_set_by_set_as_structs_or_tuples() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Brand {
            id: i64,
            name: Option<String>,
        }
        testing::set_query(|sql, parameters| {
            assert_eq!(sql, "select id, name from public.brands where id = $1");
            let rows = match parameters[0].as_deref() {
                Some("7") => {
                    vec![vec![Value::Integer(7), Value::Text("Köln")], vec![Value::Integer(8), Value::Null]]
                }
                _ => Vec::new(),
            };
            (vec!["id", "name"], rows)
        });
        let query = Query::new("select id, name from public.brands where id = $1")
            .with([Some("1")])
            .with([Some("7")]);
        let answers = query.run().unwrap();
        assert_eq!(answers.sets(), 2);
        assert_eq!(answers.rows::<Brand>(0).unwrap(), []);
        let brands: Vec<Brand> = answers.rows(1).unwrap();
        assert_eq!(brands[0], Brand { id: 7, name: Some("Köln".to_owned()) });
        let tuples: Vec<(i64, Option<String>)> = answers.rows(1).unwrap();
        assert_eq!(tuples[1], (8, None));
        assert!(answers.rows::<(i64, Option<String>, i64)>(1).is_err() && answers.rows::<Brand>(2).is_err());
    }
}
