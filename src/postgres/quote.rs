//! Names and values inside SQL text, where the protocol takes no parameters.

use postgres_protocol::escape;

use crate::model::{EntityName, Lsn};

/// `"name"`, with quotes inside doubled.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `'text'`, safe whatever `standard_conforming_strings` says.
pub(super) fn literal(text: &str) -> String {
    escape::escape_literal(text).trim_start().to_owned()
}

/// `"schema"."table"`.
pub(super) fn entity(name: &EntityName) -> String {
    format!("{}.{}", identifier(&name.schema), identifier(&name.table))
}

/// `'\x00ff'::bytea`.
pub(super) fn bytea(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(bytes.len() * 2 + 12);
    out.push_str("'\\x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.push_str("'::bytea");
    out
}

/// A position as the server reads it.
pub(super) fn lsn(lsn: Lsn) -> String {
    lsn.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_cannot_break_out() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(entity(&EntityName::new("a.b", "C")), "\"a.b\".\"C\"");
        assert_eq!(bytea(&[0, 255]), "'\\x00ff'::bytea");
    }
}
