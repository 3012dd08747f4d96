//! Types for columns that the standard ones cannot tell apart.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

/// By this name our deserializers know that absent is allowed.
pub(crate) const FIELD: &str = "$anabranch::Field";
/// By this name our deserializers and our JSON writer know raw JSON.
pub(crate) const RAW_JSON: &str = "$anabranch::RawJson";

/// A column in each of its three states. A plain type takes neither of the others; an `Option` takes NULL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// Not sent: an unchanged large value that the server left out, or a column outside of the key in an
    /// old row.
    #[default]
    Absent,
    /// SQL NULL.
    Null,
    /// A value.
    Value(T),
}

impl<T> Field<T> {
    /// The value, where there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct States<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for States<T> {
            type Value = Field<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Field::Absent)
            }

            fn visit_none<E>(self) -> Result<Self::Value, E> {
                Ok(Field::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                T::deserialize(deserializer).map(Field::Value)
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
                inner.deserialize_option(self)
            }
        }

        deserializer.deserialize_newtype_struct(FIELD, States(std::marker::PhantomData))
    }
}

/// The text of a json or jsonb column, as it is. In a document it stands as itself, unparsed: digits of
/// numbers, the order of keys and lone surrogates are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawJson<'a>(&'a str);

impl<'a> RawJson<'a> {
    /// Takes a text that is known to be JSON. One that is not makes the host refuse the document.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// The text, to be parsed with the JSON library of your choice.
    #[must_use]
    pub fn get(self) -> &'a str {
        self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = &'de str;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a json column")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<&'de str, E> {
                Ok(text)
            }
        }

        deserializer.deserialize_newtype_struct(RAW_JSON, Text).map(RawJson)
    }
}

impl Serialize for RawJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(RAW_JSON, self.0)
    }
}

/// Any column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Not sent.
    Absent,
    /// SQL NULL.
    Null,
    /// A bool.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A float that is a number; NaN and the infinities are strings.
    Float(f64),
    /// Text, and all that crosses as text: numeric, dates, uuid and so on.
    Text(&'a str),
    /// A bytea.
    Bytes(&'a [u8]),
    /// A json or jsonb.
    Json(RawJson<'a>),
    /// An array.
    Array(Vec<Value<'a>>),
    /// An hstore.
    Map(BTreeMap<&'a str, Value<'a>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a column")
            }

            fn visit_unit<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Absent)
            }

            fn visit_none<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
                Ok(Value::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
                Ok(Value::Integer(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value<'de>, E> {
                i64::try_from(value).map(Value::Integer).map_err(|_| E::custom("integer beyond 63 bits"))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
                Ok(Value::Float(value))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(text))
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Value<'de>, E> {
                Ok(Value::Bytes(bytes))
            }

            /// Raw JSON comes as a newtype, to be told from text.
            fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Value<'de>, D::Error> {
                RawJson::deserialize(inner).map(Value::Json)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
                let mut array = Vec::with_capacity(items.size_hint().unwrap_or(0).min(1024));
                while let Some(item) = items.next_element()? {
                    array.push(item);
                }
                Ok(Value::Array(array))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value<'de>, A::Error> {
                let mut map = BTreeMap::new();
                while let Some((key, value)) = entries.next_entry()? {
                    map.insert(key, value);
                }
                Ok(Value::Map(map))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_none(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::Json(json) => json.serialize(serializer),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Map(entries) => serializer.collect_map(entries),
        }
    }
}
