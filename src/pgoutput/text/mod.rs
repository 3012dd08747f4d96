//! From Postgres's text of a value to what plugins see: one decoder for stream and snapshot.
//!
//! The sessions pin DateStyle ISO, IntervalStyle iso_8601, TimeZone UTC, bytea_output hex and
//! extra_float_digits, so the text of a streamed and of a backfilled value is the same, and so is what is
//! made of it here. [`encode_value`] is the table of types.
//!
//! Guarantees: digits are never rounded; text that is not of its type is a [`ValueError`], never NULL and
//! never a guess; after an error the output is as it was before the value.
//! Must never: allocate for a value without escapes.

mod array;
mod encoder;
mod escape;
mod hstore;
mod json;
mod number;
#[cfg(test)]
mod tests;
mod time;

use std::str;

pub use encoder::{Container, Encoder, JSON_EXTENSION, JsonEncoder, MsgpackEncoder};
pub(crate) use escape::find_special;

use crate::model::ValueType;

/// How much of a value an error shows, in bytes of the value.
const EXCERPT: usize = 48;

/// A text that is not of its column's type. The caller adds table, column and row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{excerpt}` cannot be read as {value_type}: {problem}")]
pub struct ValueError {
    /// The type, as `integer` or `numeric[]`.
    pub value_type: String,
    /// What is wrong.
    pub problem: &'static str,
    /// The beginning of the value, escaped.
    pub excerpt: String,
}

impl ValueError {
    #[cold]
    fn new(value_type: &ValueType, text: &[u8], problem: &'static str) -> Self {
        let shown = &text[..text.len().min(EXCERPT)];
        let dots = if shown.len() < text.len() { "…" } else { "" };
        let excerpt = match str::from_utf8(shown) {
            Ok(shown) => format!("{}{dots}", shown.escape_debug()),
            Err(_) => format!("{}{dots}", shown.escape_ascii()),
        };
        Self { value_type: type_name(value_type), problem, excerpt }
    }
}

fn type_name(value_type: &ValueType) -> String {
    match value_type {
        ValueType::Array(element, _) => format!("{}[]", type_name(element)),
        other => other.name().to_owned(),
    }
}

/// What is wrong with a value or a part of it.
type Problem = &'static str;

/// Appends a column's value: its text, or null where it has none because it is NULL.
///
/// Cells that are unchanged or unknown have no value: the caller leaves the column out.
#[inline]
pub fn encode_cell(
    value_type: &ValueType,
    text: Option<&[u8]>,
    out: &mut impl Encoder,
) -> Result<(), ValueError> {
    match text {
        Some(text) => encode_value(value_type, text, out),
        None => {
            out.null();
            Ok(())
        }
    }
}

/// Appends the value that `text` means for a type; on an error nothing is appended.
#[inline]
pub fn encode_value(value_type: &ValueType, text: &[u8], out: &mut impl Encoder) -> Result<(), ValueError> {
    let start = out.buffer().len();
    encode(value_type, text, out).map_err(|problem| {
        out.buffer().truncate(start);
        ValueError::new(value_type, text, problem)
    })
}

/// The same for text that is known to be UTF-8.
#[inline]
pub fn encode_str(value_type: &ValueType, text: &str, out: &mut impl Encoder) -> Result<(), ValueError> {
    let start = out.buffer().len();
    let encoded = match value_type {
        ValueType::Integer | ValueType::Bool | ValueType::Bytea => encode(value_type, text.as_bytes(), out),
        _ => encode_text(value_type, text, out),
    };
    encoded.map_err(|problem| {
        out.buffer().truncate(start);
        ValueError::new(value_type, text.as_bytes(), problem)
    })
}

#[inline]
fn encode(value_type: &ValueType, text: &[u8], out: &mut impl Encoder) -> Result<(), Problem> {
    match value_type {
        ValueType::Integer => {
            out.integer(number::integer(text).ok_or("it is not an integer of at most 64 bits")?);
            Ok(())
        }
        ValueType::Bool => match text {
            b"t" | b"f" => {
                out.bool(text == b"t");
                Ok(())
            }
            _ => Err("it is neither t nor f"),
        },
        ValueType::Bytea => match text.strip_prefix(b"\\x") {
            Some(hex) => out.hex(hex),
            None => Err("it does not begin with \\x; the session's bytea_output must be hex"),
        },
        _ => encode_text(value_type, str::from_utf8(text).map_err(|_| "it is not UTF-8")?, out),
    }
}

/// The types whose text must be UTF-8, and all others when they are parts of an array.
fn encode_text(value_type: &ValueType, text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    match value_type {
        ValueType::Text => out.string(text),
        ValueType::Numeric if number::is_numeric(text) => out.string(text),
        ValueType::Numeric => return Err("it is not a number of plain digits"),
        ValueType::Float => return float(text, out),
        ValueType::Date => time::date(text, out)?,
        ValueType::Time => time::time(text, out)?,
        ValueType::Timestamp => time::timestamp(text, out)?,
        ValueType::TimestampTz => time::timestamptz(text, out)?,
        ValueType::Interval if time::is_interval(text) => out.string(text),
        ValueType::Interval => {
            return Err("it is not an ISO 8601 duration; the session's IntervalStyle must be iso_8601");
        }
        ValueType::Json if json::is_json(text) => out.json(text),
        ValueType::Json => return Err("it is not JSON"),
        ValueType::Hstore => hstore::encode(text, out)?,
        ValueType::Array(element, delimiter) => array::encode(element, *delimiter, text, out)?,
        ValueType::Bool | ValueType::Integer | ValueType::Bytea => {
            return encode(value_type, text.as_bytes(), out);
        }
    }
    Ok(())
}

fn float(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    match text {
        "NaN" | "Infinity" | "-Infinity" => {
            out.string(text);
            Ok(())
        }
        _ if number::is_json_number(text.as_bytes()) => out.float(text),
        _ => Err("it is not a floating-point number"),
    }
}
