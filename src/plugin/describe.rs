//! What a plugin says of itself: the JSON of `wit/v1/describe.md`, validated.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::model::{Description, Encoding, EntityName, PluginKind};

/// The most bytes that `describe` may return.
pub(super) const DESCRIBE_LIMIT: usize = 64 << 10;

/// `describe` returned what it must not.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DescribeError {
    /// Too much text.
    #[error("`describe` returned {0} bytes; the limit is {DESCRIBE_LIMIT}")]
    TooLarge(usize),
    /// Not JSON, or not of the right shape.
    #[error("`describe` returned what is no description: {0}; see wit/v1/describe.md")]
    Shape(String),
    /// A bad name.
    #[error(
        "`{0}` is no name for a plugin: a lower-case letter, then up to 63 lower-case letters, digits, - and _"
    )]
    Name(String),
    /// A bad version.
    #[error(
        "`{version}` is no version: {problem}; semver is like `1.4.0` or `2.0.0-rc.1`, see https://semver.org"
    )]
    Version {
        /// What it said.
        version: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A table that is none.
    #[error("{0}")]
    Table(String),
    /// The same column twice.
    #[error("it declares the column `{0}` twice")]
    Column(String),
    /// Raw columns that there cannot be.
    #[error("it declares `raw` columns, {0}")]
    Raw(String),
    /// Ids of its own, but no deletes.
    #[error(
        "it has `names_ids` without `wants_deletes`: who names ids must be able to name them for deletes too"
    )]
    NamesIds,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Transform,
    Sink,
}

fn json() -> Encoding {
    Encoding::Json
}

#[derive(Deserialize)]
struct Raw {
    name: String,
    version: String,
    kind: Kind,
    #[serde(default = "json")]
    encoding: Encoding,
    #[serde(default)]
    tables: Vec<String>,
    #[serde(default)]
    columns: Option<Vec<String>>,
    #[serde(default)]
    raw: Vec<String>,
    #[serde(default)]
    destination: Option<String>,
    #[serde(default)]
    wants_deletes: bool,
    #[serde(default)]
    names_ids: bool,
    #[serde(default)]
    depends_on: Vec<String>,
    #[serde(default)]
    sdk: Option<String>,
    #[serde(flatten)]
    unknown: BTreeMap<String, serde::de::IgnoredAny>,
}

/// A description, and what else was in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) description: Description,
    pub(super) sdk: Option<String>,
    /// Keys that this host does not know.
    pub(super) unknown: Vec<String>,
}

/// Whether a text can be a plugin's name.
pub(super) fn named(name: &str) -> bool {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(rest)
}

fn check_raw(raw: &[String], encoding: Encoding, columns: Option<&[String]>) -> Result<(), DescribeError> {
    if !raw.is_empty() && encoding != Encoding::Json {
        return Err(DescribeError::Raw("which only batches in JSON have".to_owned()));
    }
    let Some(columns) = columns else { return Ok(()) };
    match raw.iter().find(|name| !columns.contains(name)) {
        Some(name) => Err(DescribeError::Raw(format!("of which `{name}` is not in `columns`"))),
        None => Ok(()),
    }
}

/// Reads and checks a description.
pub(super) fn parse(text: &str) -> Result<Described, DescribeError> {
    if text.len() > DESCRIBE_LIMIT {
        return Err(DescribeError::TooLarge(text.len()));
    }
    let raw: Raw = serde_json::from_str(text).map_err(|error| DescribeError::Shape(error.to_string()))?;
    if !named(&raw.name) {
        return Err(DescribeError::Name(raw.name));
    }
    let version = semver::Version::parse(&raw.version)
        .map_err(|error| DescribeError::Version { version: raw.version, problem: error.to_string() })?;
    for table in raw.tables.iter().chain(&raw.depends_on) {
        table.parse::<EntityName>().map_err(|error| DescribeError::Table(error.to_string()))?;
    }
    let columns = raw.columns.as_deref().unwrap_or_default();
    if let Some((at, twice)) = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column))
    {
        debug_assert!(at > 0);
        return Err(DescribeError::Column(twice.clone()));
    }
    check_raw(&raw.raw, raw.encoding, raw.columns.as_deref())?;
    if raw.names_ids && !raw.wants_deletes {
        return Err(DescribeError::NamesIds);
    }
    let description = Description {
        name: raw.name,
        version,
        kind: match raw.kind {
            Kind::Transform => PluginKind::Transform,
            Kind::Sink => PluginKind::Sink,
        },
        encoding: raw.encoding,
        tables: raw.tables,
        columns: raw.columns,
        raw: raw.raw,
        destination: raw.destination,
        wants_deletes: raw.wants_deletes,
        names_ids: raw.names_ids,
        depends_on: raw.depends_on,
    };
    Ok(Described { description, sdk: raw.sdk, unknown: raw.unknown.into_keys().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versioned(version: &str) -> Result<Described, DescribeError> {
        parse(&format!(r#"{{"name":"orders","version":"{version}","kind":"transform"}}"#))
    }

    #[test]
    fn defaults_are_as_the_page_has_them() {
        let described = versioned("1.4.0").unwrap();
        let expected = Description {
            name: "orders".into(),
            version: semver::Version::new(1, 4, 0),
            kind: PluginKind::Transform,
            encoding: Encoding::Json,
            tables: vec![],
            columns: None,
            raw: vec![],
            destination: None,
            wants_deletes: false,
            names_ids: false,
            depends_on: vec![],
        };
        assert_eq!(described, Described { description: expected, sdk: None, unknown: vec![] });
    }

    #[test]
    fn c091_versions_are_strict_semver() {
        for good in ["1.9.0", "1.10.0", "1.10.0-rc.1", "1.10.0+b2", "0.0.1"] {
            assert!(versioned(good).is_ok(), "{good}");
        }
        for bad in ["v1", "01.2.3", "", "1", "1.2", "1.2.3.4", " 1.2.3", "1.2.3-", "1.2.3-01", "latest"] {
            let error = versioned(bad).unwrap_err();
            assert!(
                matches!(&error, DescribeError::Version { version, .. } if version == bad),
                "{bad}: {error}"
            );
        }
        let version = |text: &str| versioned(text).unwrap().description.version;
        assert!(version("1.10.0") > version("1.9.0"));
        assert!(version("1.10.0-rc.1") < version("1.10.0"));
        assert_ne!(version("1.10.0+b2"), version("1.10.0"));
    }

    #[test]
    fn unknown_keys_are_ignored_and_told() {
        let text = r#"{"name":"a","version":"1.0.0","kind":"sink","wants_delete":true,"sdk":"x 1"}"#;
        let described = parse(text).unwrap();
        assert_eq!(described.unknown, ["wants_delete"]);
        assert_eq!(described.sdk.as_deref(), Some("x 1"));
    }

    #[test]
    fn bad_descriptions_are_refused() {
        let with =
            |more: &str| parse(&format!(r#"{{"name":"a","version":"1.0.0","kind":"transform"{more}}}"#));
        assert!(matches!(with(r#","tables":["a.b.c"]"#), Err(DescribeError::Table(_))));
        assert!(matches!(with(r#","columns":["x","y","x"]"#), Err(DescribeError::Column(_))));
        assert!(matches!(with(r#","encoding":"msgpack","raw":["x"]"#), Err(DescribeError::Raw(_))));
        assert!(matches!(with(r#","columns":["x"],"raw":["y"]"#), Err(DescribeError::Raw(_))));
        assert!(with(r#","columns":["x"],"raw":["x"]"#).is_ok() && with(r#","raw":["x"]"#).is_ok());
        assert!(matches!(with(r#","names_ids":true"#), Err(DescribeError::NamesIds)));
        assert!(matches!(with(r#","encoding":"cbor""#), Err(DescribeError::Shape(_))));
        assert!(matches!(parse(&"x".repeat(DESCRIBE_LIMIT + 1)), Err(DescribeError::TooLarge(_))));
        for text in ["", "[]", "{}", "{\"name\":1}"] {
            assert!(matches!(parse(text), Err(DescribeError::Shape(_))), "{text}");
        }
        for name in ["", "Orders", "1a", "a b", "ü", "a/b", &"a".repeat(65)] {
            let text = format!(r#"{{"name":"{name}","version":"1.0.0","kind":"transform"}}"#);
            assert_eq!(parse(&text), Err(DescribeError::Name(name.into())));
        }
    }
}
