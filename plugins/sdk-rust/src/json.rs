//! Documents as JSON text, straight into the reply.

use std::{fmt, io::Write};

use serde::{
    Serialize, Serializer,
    ser::{
        self, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
        SerializeTupleStruct, SerializeTupleVariant,
    },
};

use crate::{
    text::{push, push_json, push_key},
    value::RAW_JSON,
};

/// A value that JSON cannot say.
#[derive(Debug)]
pub struct Unwritable(String);

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unwritable {}

impl ser::Error for Unwritable {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// A value as JSON text. Floats that are not numbers become null, bytes base64,
/// [`RawJson`](crate::RawJson) stands as it is.
///
/// # Errors
/// A map has keys that are not text or numbers.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Unwritable> {
    let mut out = Vec::new();
    write(value, &mut out)?;
    String::from_utf8(out).map_err(|error| Unwritable(error.to_string()))
}

#[inline]
pub(crate) fn write<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Unwritable> {
    value.serialize(Json { out })
}

#[inline]
fn unsigned(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.push(b'"');
    for group in bytes.chunks(3) {
        let padded = [group[0], group.get(1).copied().unwrap_or(0), group.get(2).copied().unwrap_or(0)];
        let bits = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= group.len() { digit } else { b'=' });
        }
    }
    out.push(b'"');
}

struct Json<'o> {
    out: &'o mut Vec<u8>,
}

/// An open array or object.
pub(crate) struct Open<'o> {
    out: &'o mut Vec<u8>,
    empty: bool,
    close: &'static [u8],
}

impl<'o> Json<'o> {
    fn open(self, open: &str, close: &'static str) -> Open<'o> {
        self.out.extend_from_slice(open.as_bytes());
        Open { out: self.out, empty: true, close: close.as_bytes() }
    }

    fn variant(self, name: &str, open: &str, close: &'static str) -> Open<'o> {
        self.out.push(b'{');
        push_json(name, self.out);
        self.out.push(b':');
        self.open(open, close)
    }

    fn signed(self, number: i64) {
        if number < 0 {
            self.out.push(b'-');
        }
        unsigned(number.unsigned_abs(), self.out);
    }
}

impl Open<'_> {
    #[inline]
    fn next(&mut self) {
        if !self.empty {
            self.out.push(b',');
        }
        self.empty = false;
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritable> {
        self.next();
        value.serialize(Json { out: self.out })
    }

    #[inline(always)]
    fn field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), Unwritable> {
        push_key(self.empty, key, self.out);
        self.empty = false;
        value.serialize(Json { out: self.out })
    }

    fn close(self) {
        self.out.extend_from_slice(self.close);
    }
}

macro_rules! numbers {
    ($($signed:ident $s:ty, $unsigned:ident $u:ty;)*) => {$(
        fn $signed(self, number: $s) -> Result<(), Unwritable> {
            self.signed(i64::from(number));
            Ok(())
        }

        fn $unsigned(self, number: $u) -> Result<(), Unwritable> {
            unsigned(u64::from(number), self.out);
            Ok(())
        }
    )*};
}

impl<'o> Serializer for Json<'o> {
    type Ok = ();
    type Error = Unwritable;
    type SerializeSeq = Open<'o>;
    type SerializeTuple = Open<'o>;
    type SerializeTupleStruct = Open<'o>;
    type SerializeTupleVariant = Open<'o>;
    type SerializeMap = Open<'o>;
    type SerializeStruct = Open<'o>;
    type SerializeStructVariant = Open<'o>;

    numbers! {
        serialize_i8 i8, serialize_u8 u8;
        serialize_i16 i16, serialize_u16 u16;
        serialize_i32 i32, serialize_u32 u32;
        serialize_i64 i64, serialize_u64 u64;
    }

    fn serialize_bool(self, value: bool) -> Result<(), Unwritable> {
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Unwritable> {
        // The shortest digits of the f32, not those of the f64 of the same value.
        if !value.is_finite() {
            return self.serialize_unit();
        }
        write!(self.out, "{value:?}").map_err(|error| Unwritable(error.to_string()))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Unwritable> {
        if !value.is_finite() {
            return self.serialize_unit();
        }
        write!(self.out, "{value:?}").map_err(|error| Unwritable(error.to_string()))
    }

    fn serialize_char(self, value: char) -> Result<(), Unwritable> {
        push_json(value.encode_utf8(&mut [0; 4]), self.out);
        Ok(())
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Unwritable> {
        push_json(text, self.out);
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Unwritable> {
        base64(bytes, self.out);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unwritable> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unwritable> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Unwritable> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), Unwritable> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<(), Unwritable> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Unwritable> {
        if name == RAW_JSON { value.serialize(Raw { out: self.out }) } else { value.serialize(self) }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Unwritable> {
        let mut object = self.open("{", "}");
        object.field(variant, value)?;
        object.close();
        Ok(())
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Open<'o>, Unwritable> {
        Ok(self.open("[", "]"))
    }

    fn serialize_tuple(self, _len: usize) -> Result<Open<'o>, Unwritable> {
        Ok(self.open("[", "]"))
    }

    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Open<'o>, Unwritable> {
        Ok(self.open("[", "]"))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Open<'o>, Unwritable> {
        Ok(self.variant(variant, "[", "]}"))
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Open<'o>, Unwritable> {
        Ok(self.open("{", "}"))
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Open<'o>, Unwritable> {
        Ok(self.open("{", "}"))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _len: usize,
    ) -> Result<Open<'o>, Unwritable> {
        Ok(self.variant(variant, "{", "}}"))
    }
}

macro_rules! sequences {
    ($($trait:ident $method:ident;)*) => {$(
        impl $trait for Open<'_> {
            type Ok = ();
            type Error = Unwritable;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritable> {
                self.element(value)
            }

            fn end(self) -> Result<(), Unwritable> {
                self.close();
                Ok(())
            }
        }
    )*};
}

sequences! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

macro_rules! structs {
    ($($trait:ident)*) => {$(
        impl $trait for Open<'_> {
            type Ok = ();
            type Error = Unwritable;

            #[inline(always)]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Unwritable> {
                self.field(key, value)
            }

            fn end(self) -> Result<(), Unwritable> {
                self.close();
                Ok(())
            }
        }
    )*};
}

structs! { SerializeStruct SerializeStructVariant }

impl SerializeMap for Open<'_> {
    type Ok = ();
    type Error = Unwritable;

    /// Numbers are quoted; what is neither text nor a number cannot be a key.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unwritable> {
        self.next();
        let start = self.out.len();
        key.serialize(Json { out: self.out })?;
        match self.out[start] {
            b'"' => Ok(()),
            b'-' | b'0'..=b'9' => {
                self.out.insert(start, b'"');
                self.out.push(b'"');
                Ok(())
            }
            _ => Err(Unwritable("keys of a map must be text or numbers".into())),
        }
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unwritable> {
        self.out.push(b':');
        value.serialize(Json { out: self.out })
    }

    fn end(self) -> Result<(), Unwritable> {
        self.close();
        Ok(())
    }
}

/// Takes the text of a `RawJson`, and nothing else.
struct Raw<'o> {
    out: &'o mut Vec<u8>,
}

macro_rules! refuse {
    ($($method:ident($($argument:ty),*);)*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<(), Unwritable> {
            Err(Unwritable("not raw JSON".into()))
        }
    )*};
}

impl Serializer for Raw<'_> {
    type Ok = ();
    type Error = Unwritable;
    type SerializeSeq = ser::Impossible<(), Unwritable>;
    type SerializeTuple = ser::Impossible<(), Unwritable>;
    type SerializeTupleStruct = ser::Impossible<(), Unwritable>;
    type SerializeTupleVariant = ser::Impossible<(), Unwritable>;
    type SerializeMap = ser::Impossible<(), Unwritable>;
    type SerializeStruct = ser::Impossible<(), Unwritable>;
    type SerializeStructVariant = ser::Impossible<(), Unwritable>;

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Unwritable> {
        push(text.as_bytes(), self.out);
        Ok(())
    }

    refuse! {
        serialize_bool(bool); serialize_i8(i8); serialize_i16(i16); serialize_i32(i32); serialize_i64(i64);
        serialize_u8(u8); serialize_u16(u16); serialize_u32(u32); serialize_u64(u64); serialize_f32(f32);
        serialize_f64(f64); serialize_char(char); serialize_bytes(&[u8]); serialize_none(); serialize_unit();
        serialize_unit_struct(&'static str); serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unwritable> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<(), Unwritable> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _value: &T,
    ) -> Result<(), Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_seq(self, _len: Option<usize>) -> Result<Self::SerializeSeq, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_tuple(self, _len: usize) -> Result<Self::SerializeTuple, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_tuple_struct(
        self,
        _name: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleStruct, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeTupleVariant, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_map(self, _len: Option<usize>) -> Result<Self::SerializeMap, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Self::SerializeStruct, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Self::SerializeStructVariant, Unwritable> {
        Err(Unwritable("not raw JSON".into()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{RawJson, Value};

    #[derive(Serialize)]
    enum Shape {
        Unit,
        New(u8),
        Tuple(u8, &'static str),
        Struct { a: Option<i8> },
    }

    #[derive(Serialize)]
    struct Everything<'a> {
        text: &'a str,
        numbers: (i64, u64, f64, f32),
        not_numbers: [f64; 2],
        shapes: Vec<Shape>,
        map: BTreeMap<u8, char>,
        empty: [u8; 0],
    }

    #[test]
    fn it_writes_what_serde_json_writes() {
        let everything = Everything {
            text: "a\"\\\n\r\t\u{8}\u{1f}é\u{1f600}\u{7f}",
            numbers: (i64::MIN, u64::MAX, 1e300, 0.1),
            not_numbers: [f64::NAN, f64::INFINITY],
            shapes: vec![Shape::Unit, Shape::New(1), Shape::Tuple(2, "x"), Shape::Struct { a: Some(-3) }],
            map: BTreeMap::from([(1, 'a'), (20, 'b')]),
            empty: [],
        };
        let ours: serde_json::Value = serde_json::from_str(&to_json(&everything).unwrap()).unwrap();
        assert_eq!(
            ours,
            serde_json::from_str::<serde_json::Value>(&serde_json::to_string(&everything).unwrap()).unwrap()
        );
    }

    #[test]
    fn raw_json_stands_as_it_is() {
        let raw = RawJson::new("{\"a\": 1.50,\n\"b\":\"\\ud800\"}");
        assert_eq!(to_json(&[raw]).unwrap(), format!("[{}]", raw.get()));
    }

    #[test]
    fn bytes_are_base64() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe", "//4=")]
        {
            assert_eq!(to_json(&Value::Bytes(bytes)).unwrap(), format!("\"{text}\""));
        }
    }

    #[test]
    fn keys_must_be_text_or_numbers() {
        assert!(to_json(&BTreeMap::from([(true, 1)])).is_err());
    }
}
