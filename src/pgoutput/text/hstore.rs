//! The hstore extension's text, `"key"=>"value", "other"=>NULL` (Postgres documentation, "hstore").

use super::{Container, Encoder, Problem};

/// Reads a double-quoted string with backslash escapes from `start`, behind its quote. Gives the string,
/// borrowed from the text or from `scratch` where it had escapes, and the position behind the closing quote.
pub(super) fn quoted<'a>(
    text: &'a str,
    start: usize,
    scratch: &'a mut String,
) -> Result<(&'a str, usize), Problem> {
    const OPEN: Problem = "a quoted part has no end";
    let bytes = text.as_bytes();
    let find = |from: usize| {
        let rest = bytes.get(from..).ok_or(OPEN)?;
        memchr::memchr2(b'"', b'\\', rest).map(|at| from + at).ok_or(OPEN)
    };
    let mut at = find(start)?;
    if bytes[at] == b'"' {
        return Ok((&text[start..at], at + 1));
    }
    scratch.clear();
    let mut from = start;
    while bytes[at] == b'\\' {
        scratch.push_str(&text[from..at]);
        // The escaped character begins a new piece, whatever it is.
        from = at + 1;
        at = find(at + 2)?;
    }
    scratch.push_str(&text[from..at]);
    Ok((scratch, at + 1))
}

/// Appends a map of strings; a value may be NULL, which is not the empty string.
pub(super) fn encode(text: &str, out: &mut impl Encoder) -> Result<(), Problem> {
    let mark = out.begin(Container::Map);
    let mut scratch = String::new();
    let mut count = 0;
    let mut rest = text.trim_start_matches(' ');
    while !rest.is_empty() {
        if !rest.starts_with('"') {
            return Err("a key lacks its quotes");
        }
        out.separate(count);
        let (key, end) = quoted(rest, 1, &mut scratch)?;
        out.string(key);
        out.colon();
        rest = rest[end..].strip_prefix("=>").ok_or("a key has no =>")?;
        if let Some(after) = rest.strip_prefix("NULL") {
            out.null();
            rest = after;
        } else if rest.starts_with('"') {
            let (value, end) = quoted(rest, 1, &mut scratch)?;
            out.string(value);
            rest = &rest[end..];
        } else {
            return Err("a value is neither quoted nor NULL");
        }
        count += 1;
        rest = match rest.strip_prefix(',') {
            Some(more) if more.trim_start_matches(' ').is_empty() => return Err("a pair is missing"),
            Some(more) => more.trim_start_matches(' '),
            None if rest.is_empty() => rest,
            None => return Err("there is no comma between two pairs"),
        };
    }
    out.end(Container::Map, mark, count);
    Ok(())
}
