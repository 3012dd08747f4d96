//! Rows as serde sees them: positional for structs, by name for maps, borrowed from the batch.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, MapAccess, SeqAccess, Visitor,
        value::{BorrowedStrDeserializer, StrDeserializer},
    },
    forward_to_deserialize_any,
};

use crate::{
    msgpack::{Malformed, Reader, Token},
    value::{FIELD, RAW_JSON},
};

/// A row does not fit its type.
#[derive(Debug)]
pub(crate) struct RowError {
    column: Option<String>,
    message: String,
}

impl RowError {
    fn new(message: impl Into<String>) -> Self {
        Self { column: None, message: message.into() }
    }

    fn at(mut self, column: &str) -> Self {
        self.column.get_or_insert_with(|| column.to_owned());
        self
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.column {
            Some(column) => write!(f, "column `{column}`: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for RowError {}

impl de::Error for RowError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }
}

impl From<Malformed> for RowError {
    fn from(malformed: Malformed) -> Self {
        Self::new(format!("the batch is malformed at byte {}: expected {}", malformed.at, malformed.expected))
    }
}

/// The positions that were not sent: the array of `absent` for one tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Absent<'de>(pub(crate) Option<Reader<'de>>);

impl Absent<'_> {
    #[inline]
    fn contains(&self, position: usize) -> bool {
        self.0.is_some_and(|reader| Self::listed(reader, position))
    }

    /// Rare, and so out of the way of what reads rows.
    #[cold]
    fn listed(mut reader: Reader<'_>, position: usize) -> bool {
        let Ok(count) = reader.array() else { return false };
        (0..count).any(|_| reader.unsigned().is_ok_and(|listed| listed == position as u64))
    }
}

/// One tuple of a batch, not read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuple<'de> {
    /// At its array.
    pub(crate) reader: Reader<'de>,
    pub(crate) columns: &'de [&'de str],
    pub(crate) absent: Absent<'de>,
}

impl<'de> Tuple<'de> {
    pub(crate) fn read<R: Deserialize<'de>>(self) -> Result<R, RowError> {
        R::deserialize(self)
    }

    fn access(mut self) -> Result<RowAccess<'de>, RowError> {
        let count = self.reader.array()?;
        if count != self.columns.len() {
            return Err(RowError::new(format!("{count} values for {} columns", self.columns.len())));
        }
        Ok(RowAccess { tuple: self, position: 0 })
    }
}

impl<'de> Deserializer<'de> for Tuple<'de> {
    type Error = RowError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_map(self.access()?)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RowError> {
        visitor.visit_seq(self.access()?)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_seq(self.access()?)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit_struct seq tuple_struct map enum identifier
    }
}

struct RowAccess<'de> {
    tuple: Tuple<'de>,
    position: usize,
}

impl<'de> RowAccess<'de> {
    #[inline]
    fn value<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, RowError> {
        let position = self.position;
        self.position += 1;
        let absent = self.tuple.absent.contains(position);
        let value = seed.deserialize(Column { reader: &mut self.tuple.reader, absent });
        value.map_err(|error| error.at(self.tuple.columns[position]))
    }
}

impl<'de> SeqAccess<'de> for RowAccess<'de> {
    type Error = RowError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        if self.position == self.tuple.columns.len() {
            return Ok(None);
        }
        self.value(seed).map(Some)
    }
}

impl<'de> MapAccess<'de> for RowAccess<'de> {
    type Error = RowError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        let name = self.tuple.columns.get(self.position);
        name.map(|name| seed.deserialize(BorrowedStrDeserializer::new(name))).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, RowError> {
        self.value(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.tuple.columns.len() - self.position)
    }
}

/// One value of a row.
struct Column<'de, 'r> {
    reader: &'r mut Reader<'de>,
    absent: bool,
}

impl<'de> Column<'de, '_> {
    fn nothing(&self) -> RowError {
        RowError::new(if self.absent {
            "was not sent (an unchanged large value, or outside of the key in an old row); take it as `Field`"
        } else {
            "is NULL; take it as `Option` or `Field`"
        })
    }

    /// A value of a type that takes no NULL.
    #[inline]
    fn present<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        let start = *self.reader;
        match self.reader.next()? {
            Token::Nil => Err(self.nothing()),
            Token::Ext(..) => Err(RowError::new("is json; take it as `RawJson`")),
            token => self.visit(token, start, visitor),
        }
    }

    #[inline]
    fn visit<V: Visitor<'de>>(
        self,
        token: Token<'de>,
        start: Reader<'de>,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        match token {
            Token::Nil if self.absent => visitor.visit_unit(),
            Token::Nil => visitor.visit_none(),
            Token::Bool(value) => visitor.visit_bool(value),
            Token::Unsigned(value) => visitor.visit_u64(value),
            Token::Signed(value) => visitor.visit_i64(value),
            Token::Float(value) => visitor.visit_f64(value),
            Token::Str(text) => visitor.visit_borrowed_str(text),
            Token::Bin(bytes) => visitor.visit_borrowed_bytes(bytes),
            Token::Ext(..) => {
                *self.reader = start;
                visitor.visit_newtype_struct(self)
            }
            Token::Array(left) => {
                visit_all(Items { reader: self.reader, left }, |items| visitor.visit_seq(items))
            }
            Token::Map(left) => {
                visit_all(Items { reader: self.reader, left }, |items| visitor.visit_map(items))
            }
        }
    }

    fn float<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        let start = *self.reader;
        match self.reader.next()? {
            Token::Nil => Err(self.nothing()),
            Token::Str("NaN") => visitor.visit_f64(f64::NAN),
            Token::Str("Infinity") => visitor.visit_f64(f64::INFINITY),
            Token::Str("-Infinity") => visitor.visit_f64(f64::NEG_INFINITY),
            token => self.visit(token, start, visitor),
        }
    }
}

/// Lets a visitor read a list or map, and steps over what it left.
fn visit_all<'de, 'r, T>(
    mut items: Items<'de, 'r>,
    visit: impl FnOnce(&mut Items<'de, 'r>) -> Result<T, RowError>,
) -> Result<T, RowError> {
    let value = visit(&mut items)?;
    if items.left > 0 {
        return Err(RowError::new(format!("{} elements more than its type takes", items.left)));
    }
    Ok(value)
}

macro_rules! present {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
            self.present(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Column<'de, '_> {
    type Error = RowError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        let start = *self.reader;
        let token = self.reader.next()?;
        self.visit(token, start, visitor)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        if self.absent {
            return Err(self.nothing());
        }
        if self.reader.take_nil() {
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        match name {
            FIELD if self.absent => {
                self.reader.next()?;
                visitor.visit_unit()
            }
            RAW_JSON if self.reader.at_nil() => Err(self.nothing()),
            RAW_JSON => match self.reader.json()? {
                Some(text) => visitor.visit_borrowed_str(text),
                None => Err(RowError::new("is not json; `RawJson` takes json and jsonb columns")),
            },
            _ => visitor.visit_newtype_struct(self),
        }
    }

    #[inline]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.reader.take_text() {
            Some(text) => visitor.visit_borrowed_str(text),
            None => self.present(visitor),
        }
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        match self.reader.take_bool() {
            Some(value) => visitor.visit_bool(value),
            None => self.present(visitor),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        self.float(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        self.float(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RowError> {
        match self.reader.next()? {
            Token::Str(text) => visitor.visit_enum(StrDeserializer::new(text)),
            Token::Nil => Err(self.nothing()),
            _ => Err(RowError::new("is not text; an enum takes text")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RowError> {
        self.reader.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        self.present(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, RowError> {
        self.present(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, RowError> {
        self.present(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RowError> {
        self.present(visitor)
    }

    present! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_char
        deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_seq deserialize_map deserialize_identifier
    }
}

/// The elements of an array, or the entries of an hstore.
struct Items<'de, 'r> {
    reader: &'r mut Reader<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for &mut Items<'de, '_> {
    type Error = RowError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Column { reader: self.reader, absent: false }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for &mut Items<'de, '_> {
    type Error = RowError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, RowError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Column { reader: self.reader, absent: false }).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, RowError> {
        seed.deserialize(Column { reader: self.reader, absent: false })
    }
}
