//! `describe`: the JSON of `wit/v1/describe.md`, and the columns of a row's type.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Visitor},
    forward_to_deserialize_any,
};

use crate::{Transform, json::to_json};

#[derive(Serialize)]
struct Description<'a> {
    name: &'a str,
    version: &'a str,
    kind: &'a str,
    encoding: &'a str,
    tables: &'a [&'a str],
    columns: Option<&'a [&'a str]>,
    destination: Option<&'a str>,
    wants_deletes: bool,
    names_ids: bool,
    depends_on: &'a [&'a str],
    sdk: &'a str,
}

/// What a transform says of itself.
#[must_use]
pub fn describe<T: Transform>(name: &str, version: &str) -> String {
    let description = Description {
        name,
        version,
        kind: "transform",
        encoding: "msgpack",
        tables: T::TABLES,
        columns: columns::<T::Row<'static>>(),
        destination: T::DESTINATION,
        wants_deletes: T::WANTS_DELETES,
        names_ids: T::NAMES_IDS,
        depends_on: T::DEPENDS_ON,
        sdk: concat!("anabranch-sdk ", env!("CARGO_PKG_VERSION")),
    };
    to_json(&description).unwrap_or_default()
}

/// What a sink says of itself.
#[cfg(feature = "sink")]
#[must_use]
pub fn describe_sink(name: &str, version: &str) -> String {
    let description = Description {
        name,
        version,
        kind: "sink",
        encoding: "msgpack",
        tables: &[],
        columns: None,
        destination: None,
        wants_deletes: false,
        names_ids: false,
        depends_on: &[],
        sdk: concat!("anabranch-sdk ", env!("CARGO_PKG_VERSION")),
    };
    to_json(&description).unwrap_or_default()
}

/// The fields of a row's type, as serde names them; none for a map.
pub(crate) fn columns<'de, R: Deserialize<'de>>() -> Option<&'static [&'static str]> {
    match R::deserialize(Collector) {
        Err(Collected(fields)) => fields,
        Ok(_) => None,
    }
}

/// Asks a type what it would read, and reads nothing.
struct Collector;

/// The answer, on the way of an error.
#[derive(Debug)]
struct Collected(Option<&'static [&'static str]>);

impl fmt::Display for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("columns were collected")
    }
}

impl std::error::Error for Collected {}

impl de::Error for Collected {
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for Collector {
    type Error = Collected;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Collected> {
        Err(Collected(None))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Collected> {
        Err(Collected(Some(fields)))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Collected> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
