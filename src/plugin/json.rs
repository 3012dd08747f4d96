//! Is a text JSON? Answered faster than by parsing it: guests answer with a document for each row.

use std::ops::ControlFlow;

use crate::pgoutput::text::find_special;

/// How deep documents may be nested.
pub(super) const DEPTH: usize = 128;
const TOO_DEEP: &str = "nested deeper than 128 levels, which is the limit (fixed)";

/// What is wrong with a text, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {problem}")]
pub(super) struct JsonError {
    /// Offset in bytes.
    pub at: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// Why bytes are no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invalid {
    /// They are not UTF-8.
    Utf8,
    /// They are not JSON.
    Json(JsonError),
}

/// Checks that `text` is one JSON text (RFC 8259), nested at most [`DEPTH`] deep.
pub(super) fn validate(text: &str) -> Result<(), JsonError> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    scan.document().map_err(|problem| JsonError { at: scan.at, problem })
}

/// The same for bytes that need not be UTF-8.
pub(super) fn validate_bytes(bytes: &[u8]) -> Result<(), Invalid> {
    let text = simdutf8::basic::from_utf8(bytes).map_err(|_| Invalid::Utf8)?;
    validate(text).map_err(Invalid::Json)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Scanned<T = ()> = Result<T, &'static str>;

impl Scan<'_> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) -> Option<u8> {
        while let Some(byte) = self.peek() {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    fn document(&mut self) -> Scanned {
        // One bit a level: set for objects.
        let mut objects = 0u128;
        let mut depth = 0usize;
        loop {
            // A value begins here.
            let opened = match self.space().ok_or("a value is missing")? {
                b'{' => Some(true),
                b'[' => Some(false),
                other => {
                    self.scalar(other)?;
                    None
                }
            };
            if let Some(object) = opened {
                self.at += 1;
                if depth == DEPTH {
                    return Err(TOO_DEEP);
                }
                depth += 1;
                objects = objects << 1 | u128::from(object);
                let close = if object { b'}' } else { b']' };
                if self.space() != Some(close) {
                    if object {
                        self.key()?;
                    }
                    continue;
                }
            }
            if self.close(&mut objects, &mut depth)?.is_break() {
                return if self.space().is_none() { Ok(()) } else { Err("something follows the value") };
            }
        }
    }

    /// After a value (or at the end of an empty container): closes what ends here, up to the next value.
    #[inline]
    fn close(&mut self, objects: &mut u128, depth: &mut usize) -> Scanned<ControlFlow<()>> {
        loop {
            if *depth == 0 {
                return Ok(ControlFlow::Break(()));
            }
            let object = *objects & 1 == 1;
            match (self.space(), object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.key()?;
                    return Ok(ControlFlow::Continue(()));
                }
                (Some(b','), false) => {
                    self.at += 1;
                    return Ok(ControlFlow::Continue(()));
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    *objects >>= 1;
                    *depth -= 1;
                }
                (None, _) => return Err("it ends too early"),
                (Some(_), true) => return Err("expected `,` or `}`"),
                (Some(_), false) => return Err("expected `,` or `]`"),
            }
        }
    }

    #[inline]
    fn key(&mut self) -> Scanned {
        if self.space() != Some(b'"') {
            return Err("expected a key");
        }
        self.string()?;
        if self.space() != Some(b':') {
            return Err("expected `:`");
        }
        self.at += 1;
        Ok(())
    }

    #[inline]
    fn scalar(&mut self, first: u8) -> Scanned {
        match first {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => Err("expected a value"),
        }
    }

    fn word(&mut self, word: &'static [u8]) -> Scanned {
        if !self.bytes[self.at..].starts_with(word) {
            return Err("expected a value");
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn string(&mut self) -> Scanned {
        self.at += 1;
        loop {
            self.at += find_special(&self.bytes[self.at..]);
            match self.peek().ok_or("a string has no end")? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => self.escape()?,
                _ => return Err("a control character in a string"),
            }
        }
    }

    fn escape(&mut self) -> Scanned {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let digits = self.bytes.get(self.at + 2..self.at + 6).ok_or("a string has no end")?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return Err("a bad escape");
                }
                self.at += 6;
            }
            _ => return Err("a bad escape"),
        }
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    #[inline]
    fn number(&mut self) -> Scanned {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        match self.digits() {
            0 => return Err("expected a digit"),
            1 => {}
            _ if zero => return Err("a number with a leading zero"),
            _ => {}
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return Err("expected a digit");
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err("expected a digit");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reference(text: &str) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }

    #[test]
    fn what_is_json_and_what_is_not() {
        for text in [
            "1",
            "-0.5e+7",
            "\"\\ud800\\\"\"",
            "[]",
            "{}",
            " [ { \"a\" : [ ] } , null ]\n",
            "[[],{}]",
            "true",
        ] {
            assert_eq!(validate(text), Ok(()), "{text}");
        }
        for text in [
            "",
            " ",
            "01",
            "-",
            "1.",
            "1e",
            ".5",
            "+1",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "[1}",
            "{\"a\":1]",
            "[1",
            "1 2",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "tru",
            "nul",
            "NaN",
            "'a'",
            "]",
            "[]]",
            "{\"a\":1 \"b\":2}",
            "[1 2]",
        ] {
            assert!(!reference(text), "{text}");
            assert!(validate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn c084_depth_is_limited() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(validate(&nested(DEPTH)), Ok(()));
        assert_eq!(validate(&nested(DEPTH + 1)).map_err(|error| error.problem), Err(TOO_DEEP));
    }

    #[test]
    fn bytes_must_be_utf8_wherever_they_stand() {
        for text in ["{\"a\":\"é\"}", "\"0123456701234567é\"", "{\"日本\":[\"x\",\"ü\\n\"]}", "\"a\""] {
            assert_eq!(validate_bytes(text.as_bytes()), Ok(()), "{text}");
            for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| !byte.is_ascii()) {
                let mut broken = text.as_bytes().to_vec();
                broken[at] = 0xff;
                assert_eq!(
                    validate_bytes(&broken),
                    Err(Invalid::Utf8),
                    "{text} with 0xff for {byte} at {at}"
                );
            }
        }
        assert_eq!(validate_bytes(b"[1,\xc3]"), Err(Invalid::Utf8), "outside of a string");
        assert!(matches!(validate_bytes("[é]".as_bytes()), Err(Invalid::Json(_))));
    }

    proptest! {
        #[test]
        fn bytes_are_valid_when_they_are_utf8_and_json(bytes in prop::collection::vec(prop::sample::select(
            &[b'"', b'a', b'[', b']', 0xc3, 0xa9, 0xe2, 0x82, 0xac, b'\\', b'n', 0x1f][..],
        ), 0..24)) {
            let expected = std::str::from_utf8(&bytes).is_ok_and(reference);
            prop_assert_eq!(validate_bytes(&bytes).is_ok(), expected);
        }

        #[test]
        fn it_agrees_with_serde_json(text in "[\\[\\]{}\",:0-2eE.+ \\\\untrfalsb\u{1}é-]{0,12}") {
            prop_assert_eq!(validate(&text).is_ok(), reference(&text), "{}", text);
        }

        #[test]
        fn it_agrees_on_mutated_documents(at in 0usize..60, byte in 0u8..128) {
            let mut text = br#"{"a":[1,-2.5e3,"x\u00e9\n"],"b":{"c":null,"d":[true,false]}}"#.to_vec();
            if let Some(place) = text.get_mut(at) {
                *place = byte;
            }
            let text = String::from_utf8(text).unwrap();
            prop_assert_eq!(validate(&text).is_ok(), reference(&text), "{}", text);
        }
    }
}
