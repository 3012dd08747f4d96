//! Array literals as `array_out` writes them (Postgres documentation, "Array Input and Output Syntax").

use super::{Container, Encoder, Problem, encode_text, hstore::quoted};
use crate::model::ValueType;

/// Postgres's own limit (`MAXDIM`).
const MAX_DIMENSIONS: usize = 6;

/// Appends an array, nested as it is. With a lower bound other than 1 (`[0:1]={1,2}`) its meaning does not
/// fit an array, so Postgres's text stands as a string.
pub(super) fn encode(
    element: &ValueType,
    delimiter: u8,
    text: &str,
    out: &mut impl Encoder,
) -> Result<(), Problem> {
    if text.starts_with('[') && text.contains("]={") && text.ends_with('}') {
        out.string(text);
        return Ok(());
    }
    let mut parser = Parser { text, at: 0, element, delimiter, scratch: String::new() };
    parser.expect_brace()?;
    parser.level(1, out)?;
    if parser.at == text.len() { Ok(()) } else { Err("there is more behind the array's end") }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    element: &'a ValueType,
    delimiter: u8,
    scratch: String,
}

impl Parser<'_> {
    fn peek(&self) -> Result<u8, Problem> {
        self.text.as_bytes().get(self.at).copied().ok_or("the array has no end")
    }

    fn expect_brace(&mut self) -> Result<(), Problem> {
        if self.text.as_bytes().get(self.at) != Some(&b'{') {
            return Err("an array begins with {");
        }
        self.at += 1;
        Ok(())
    }

    /// One dimension, whose brace was passed over.
    fn level(&mut self, depth: usize, out: &mut impl Encoder) -> Result<(), Problem> {
        if depth > MAX_DIMENSIONS {
            return Err("the array has more than six dimensions");
        }
        let mark = out.begin(Container::Array);
        let mut count = 0;
        if self.peek()? == b'}' {
            self.at += 1;
            out.end(Container::Array, mark, count);
            return Ok(());
        }
        loop {
            out.separate(count);
            self.item(depth, out)?;
            count += 1;
            let next = self.peek()?;
            self.at += 1;
            if next == b'}' {
                out.end(Container::Array, mark, count);
                return Ok(());
            }
            if next != self.delimiter {
                return Err("there is no delimiter between two elements");
            }
        }
    }

    fn item(&mut self, depth: usize, out: &mut impl Encoder) -> Result<(), Problem> {
        match self.peek()? {
            b'{' => {
                self.at += 1;
                self.level(depth + 1, out)
            }
            b'"' => {
                let (item, end) = quoted(self.text, self.at + 1, &mut self.scratch)?;
                self.at = end;
                encode_text(self.element, item, out)
            }
            _ => self.bare(out),
        }
    }

    fn bare(&mut self, out: &mut impl Encoder) -> Result<(), Problem> {
        let rest = &self.text[self.at..];
        let end = memchr::memchr2(self.delimiter, b'}', rest.as_bytes()).ok_or("the array has no end")?;
        let item = &rest[..end];
        if item.is_empty() || memchr::memchr3(b'{', b'"', b'\\', item.as_bytes()).is_some() {
            return Err("an element is empty or lacks its quotes");
        }
        self.at += end;
        if item.eq_ignore_ascii_case("null") {
            out.null();
            return Ok(());
        }
        encode_text(self.element, item, out)
    }
}
