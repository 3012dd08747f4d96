//! MessagePack, read back strictly.

use anabranch::pgoutput::text::JSON_EXTENSION;
use rmp::{Marker, decode};
use serde_json::{Value, value::RawValue};

/// A value as JSON; what JSON cannot tell apart is told in strings. The value must be all there is.
///
/// # Panics
/// It is malformed, or has an extension that is not JSON.
#[must_use]
pub fn whole(bytes: &[u8]) -> Value {
    let mut rest = bytes;
    let value = one(&mut rest);
    assert!(rest.is_empty(), "{} bytes behind the value", rest.len());
    value
}

fn take<'a>(rest: &mut &'a [u8], length: u32) -> &'a [u8] {
    let (taken, after) = rest.split_at(length as usize);
    *rest = after;
    taken
}

fn text(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8(bytes.to_vec()).expect("a string is UTF-8"))
}

fn one(rest: &mut &[u8]) -> Value {
    const WHOLE: &str = "the value is whole";
    match Marker::from_u8(*rest.first().expect(WHOLE)) {
        Marker::Null => {
            decode::read_nil(rest).expect(WHOLE);
            Value::Null
        }
        Marker::True | Marker::False => Value::Bool(decode::read_bool(rest).expect(WHOLE)),
        Marker::F64 => Value::from(decode::read_f64(rest).expect(WHOLE)),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            let length = decode::read_str_len(rest).expect(WHOLE);
            text(take(rest, length))
        }
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let length = decode::read_bin_len(rest).expect(WHOLE);
            Value::from(format!("{} bytes", take(rest, length).len()))
        }
        Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
            let meta = decode::read_ext_meta(rest).expect(WHOLE);
            assert_eq!(meta.typeid.cast_unsigned(), JSON_EXTENSION);
            json(take(rest, meta.size));
            Value::from("json")
        }
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
            let count = decode::read_array_len(rest).expect(WHOLE);
            Value::from((0..count).map(|_| one(rest)).collect::<Vec<_>>())
        }
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            let count = decode::read_map_len(rest).expect(WHOLE);
            let mut map = serde_json::Map::new();
            for _ in 0..count {
                let key = one(rest);
                let value = one(rest);
                map.insert(key.as_str().expect("a key is a string").to_owned(), value);
            }
            Value::Object(map)
        }
        _ => Value::from(decode::read_int::<i64, _>(rest).expect(WHOLE)),
    }
}

/// JSON that a parser takes, as far as it goes: Postgres nests deeper than parsers do.
///
/// # Panics
/// It is not JSON.
pub fn json(bytes: &[u8]) {
    if let Err(error) = serde_json::from_slice::<Box<RawValue>>(bytes) {
        let too_deep = error.to_string().contains("recursion limit");
        assert!(too_deep, "{error}: {}", bytes.escape_ascii());
    }
}
