//! Whether a text is JSON, without recursion: Postgres allows deeper nesting than parsers usually do.

use super::{escape::find_special, number::json_number};

/// The open containers, one bit each: whether it is an object.
#[derive(Default)]
struct Nesting {
    word: u64,
    depth: usize,
    full: Vec<u64>,
}

impl Nesting {
    fn push(&mut self, object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.full.push(self.word);
        }
        self.word = self.word << 1 | u64::from(object);
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.word >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.word = self.full.pop().unwrap_or(0);
        }
    }

    /// What the innermost container is; none outside of all.
    fn top(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.word & 1 == 1)
    }
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    /// The next byte that is not white space, passed over.
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
        }
    }

    /// The rest of a string whose quote was passed over.
    fn string(&mut self) -> Option<()> {
        loop {
            self.at += find_special(&self.text[self.at..]);
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn literal(&mut self, rest: &[u8]) -> Option<()> {
        let found = self.text.get(self.at..self.at + rest.len())?;
        self.at += rest.len();
        (found == rest).then_some(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Option<()> {
        self.string()?;
        (self.next()? == b':').then_some(())
    }

    fn scalar(&mut self, first: u8) -> Option<()> {
        match first {
            b'"' => self.string(),
            b't' => self.literal(b"rue"),
            b'f' => self.literal(b"alse"),
            b'n' => self.literal(b"ull"),
            b'-' | b'0'..=b'9' => {
                self.at = json_number(self.text, self.at - 1)?;
                Some(())
            }
            _ => None,
        }
    }

    fn document(&mut self) -> Option<()> {
        let mut nesting = Nesting::default();
        let mut first = self.next()?;
        loop {
            // One value, or the beginning of one.
            match first {
                b'{' => {
                    nesting.push(true);
                    match self.next()? {
                        b'}' => nesting.pop(),
                        b'"' => {
                            self.key()?;
                            first = self.next()?;
                            continue;
                        }
                        _ => return None,
                    }
                }
                b'[' => {
                    nesting.push(false);
                    match self.next()? {
                        b']' => nesting.pop(),
                        byte => {
                            first = byte;
                            continue;
                        }
                    }
                }
                byte => self.scalar(byte)?,
            }
            // What follows it: ends of containers, then the next value.
            loop {
                let Some(object) = nesting.top() else {
                    return self.next().is_none().then_some(());
                };
                match (self.next()?, object) {
                    (b'}', true) | (b']', false) => nesting.pop(),
                    (b',', true) => {
                        (self.next()? == b'"').then_some(())?;
                        self.key()?;
                        break;
                    }
                    (b',', false) => break,
                    _ => return None,
                }
            }
            first = self.next()?;
        }
    }
}

/// Whether the text is one JSON value (RFC 8259). Escapes of U+0000 and of lone surrogates are let through,
/// as Postgres's `json` does.
pub(super) fn is_json(text: &str) -> bool {
    Scanner { text: text.as_bytes(), at: 0 }.document().is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn json_is_told_from_what_is_not() {
        for text in [
            "null",
            " true ",
            "[]",
            "{}",
            "[[],{}]",
            "{\"a\":[1,{\"b\":null}],\"c\":-1.5e+10}",
            "\"\\u0000\\ud800\"",
            "1e400",
            "{\n\t\"a\" : 1 ,\r\n \"a\" : 2 }",
        ] {
            assert!(is_json(text), "{text}");
        }
        for text in [
            "",
            " ",
            "nul",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[1}",
            "{]",
            "1 2",
            "]",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "01",
            "+1",
            "[1",
            "{\"a\":1",
            "'a'",
            "\"a",
            "[]]",
            "NaN",
            "\u{a0}1",
        ] {
            assert!(!is_json(text), "{text}");
        }
    }

    #[test]
    fn nesting_has_no_limit() {
        for depth in [1, 63, 64, 65, 127, 128, 129, 100_000] {
            let open: String = (0..depth).map(|at| if at % 3 == 0 { "{\"a\":" } else { "[" }).collect();
            let close: String = (0..depth).rev().map(|at| if at % 3 == 0 { '}' } else { ']' }).collect();
            assert!(is_json(&format!("{open}1{close}")), "{depth}");
            assert!(
                !is_json(&format!("{open}1{}]", &close[..close.len() - 1])) || close.ends_with(']'),
                "{depth}"
            );
            assert!(!is_json(&format!("{open}1")), "{depth}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(text in "[\\[\\]{}:,\"\\\\ute01.\\-e nrfals\\n]{0,12}") {
            prop_assert_eq!(is_json(&text), serde_json::from_str::<&RawValue>(&text).is_ok(), "{}", text);
        }

        #[test]
        fn it_agrees_on_mutated_documents(at in 0_usize..60, with in "[\\[\\]{}:,\"1a ]") {
            let document = r#"{"a": [1, -2.5e3, {"b": "x\"y", "c": []}], "d": {"e": null, "f": true}}"#;
            let mut text = document.to_owned();
            text.replace_range(at..=at, &with);
            prop_assert_eq!(is_json(&text), serde_json::from_str::<&RawValue>(&text).is_ok(), "{}", text);
        }
    }
}
