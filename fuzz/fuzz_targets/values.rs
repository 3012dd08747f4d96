//! Texts of values: a line that names a type, then the text. `integer`, `numeric[]`, `text[;]`.
//!
//! Invariants: both encodings take the same texts; what they make is valid JSON and MessagePack of the same value; an
//! error leaves nothing behind; memory follows the input.
#![no_main]

use anabranch::model::ValueType;
use anabranch::pgoutput::{Encoder, JsonEncoder, MsgpackEncoder, encode_str, encode_value};
use anabranch_fuzz::{bounded, msgpack};
use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::Value;

const BASE: usize = 64 << 10;
const SCALARS: [ValueType; 13] = [
    ValueType::Bool,
    ValueType::Integer,
    ValueType::Float,
    ValueType::Numeric,
    ValueType::Text,
    ValueType::Date,
    ValueType::Time,
    ValueType::Timestamp,
    ValueType::TimestampTz,
    ValueType::Interval,
    ValueType::Bytea,
    ValueType::Json,
    ValueType::Hstore,
];

fn value_type(name: &[u8]) -> Option<ValueType> {
    let array = |element: &[u8], delimiter| Some(ValueType::Array(Box::new(value_type(element)?), delimiter));
    match name {
        [element @ .., b'[', b']'] if element.len() < 20 => array(element, b','),
        [element @ .., b'[', b';', b']'] if element.len() < 20 => array(element, b';'),
        _ => SCALARS.into_iter().find(|scalar| scalar.name().as_bytes() == name),
    }
}

/// Encodes behind what is there already.
fn encoded<'a, E: Encoder>(
    value_type: &ValueType,
    text: &[u8],
    out: &'a mut Vec<u8>,
    encoder: impl Fn(&'a mut Vec<u8>) -> E,
) -> (bool, E) {
    let mut encoder = encoder(out);
    let taken = encode_value(value_type, text, &mut encoder).is_ok();
    if !taken {
        assert_eq!(encoder.buffer().as_slice(), b"before", "an error leaves nothing behind");
    }
    if let Ok(text) = std::str::from_utf8(text) {
        let length = encoder.buffer().len();
        assert_eq!(encode_str(value_type, text, &mut encoder).is_ok(), taken);
        let (first, second) = encoder.buffer().split_at(length);
        assert!(first.ends_with(second), "known to be UTF-8 or not, it is the same value");
        encoder.buffer().truncate(length);
    }
    (taken, encoder)
}

/// Whether a value of MessagePack is that of JSON; floats, bytes and JSON have other forms there.
fn same(value_type: &ValueType, json: &Value, msgpack: &Value) -> bool {
    match (value_type, json, msgpack) {
        (ValueType::Float | ValueType::Bytea | ValueType::Json, ..) => true,
        (ValueType::Array(element, _), Value::Array(json), Value::Array(msgpack)) => {
            json.len() == msgpack.len()
                && json.iter().zip(msgpack).all(|(json, msgpack)| match (json, msgpack) {
                    // A further dimension.
                    (Value::Array(_), Value::Array(_)) if !matches!(**element, ValueType::Array(..)) => {
                        same(value_type, json, msgpack)
                    }
                    _ => same(element, json, msgpack),
                })
        }
        _ => json == msgpack,
    }
}

fn run(value_type: &ValueType, text: &[u8]) {
    let (mut json, mut packed) = (b"before".to_vec(), b"before".to_vec());
    let (in_json, _) = encoded(value_type, text, &mut json, JsonEncoder::new);
    let (in_msgpack, _) = encoded(value_type, text, &mut packed, MsgpackEncoder::new);
    assert_eq!(in_json, in_msgpack, "both encodings take the same texts");
    if in_json {
        msgpack::json(&json[6..]);
        let packed = msgpack::whole(&packed[6..]);
        // Lone surrogates and numbers beyond all bounds are JSON, and no value of this parser.
        if let Ok(json) = serde_json::from_slice(&json[6..]) {
            assert!(same(value_type, &json, &packed), "{json} {packed}");
        }
    }
}

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Corpus::Reject };
    let Some(value_type) = value_type(&input[..end]) else { return Corpus::Reject };
    let text = &input[end + 1..];
    // A value of the JSON parser takes more than its text.
    bounded(text.len(), BASE, 512, || run(&value_type, text));
    Corpus::Keep
});
