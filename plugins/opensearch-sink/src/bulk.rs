//! Documents as requests of the bulk API: newline-delimited JSON, an action and its source on a line each.

use std::{collections::BTreeSet, ops::Range};

use anabranch_sdk::{
    Failure,
    sink::{Delivered, Document},
};

/// The longest id that an index takes, in bytes.
const MAX_ID: usize = 512;
/// The longest name of an index, in bytes.
const MAX_INDEX: usize = 255;

/// One request: its body, and the documents that are in it, by their index in the batch.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Newline-delimited JSON.
    pub body: Vec<u8>,
    /// Which documents, in the order of their lines.
    pub documents: Vec<usize>,
}

/// What the destinations of a batch are called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// What stands before the name of each.
    pub prefix: &'a str,
    /// The place that all of it is for; none: for what readers see.
    pub place: Option<&'a str>,
    /// Destinations that are known to be indexes and no aliases.
    pub plain: Option<&'a BTreeSet<String>>,
}

impl Names<'_> {
    /// Whether a document is for an alias or for nothing: the server makes an index of its own accord where there is
    /// none, and one of the alias' name would be in the way of every rebuild.
    fn wants_alias(self, document: &Document<'_>) -> bool {
        let is_plain = self.plain.is_some_and(|plain| plain.contains(document.destination));
        document.body.is_some() && !is_plain
    }

    fn of(self, destination: &str) -> Result<String, Failure> {
        match self.place {
            Some(place) => place_index(self.prefix, destination, place).map(|index| write_alias(&index)),
            None => index_name(self.prefix, destination),
        }
    }
}

/// Stands for the digits of a place, in the name of an index that no place was begun for. The host's own are random.
const UNBEGUN: &str = "00000000";

/// The index that is made where documents of a generation come and no place was begun.
///
/// # Errors
/// No index can have that name.
pub fn unbegun_index(prefix: &str, destination: &str, generation: i64) -> Result<String, Failure> {
    place_index(prefix, destination, &format!("{generation}-{UNBEGUN}"))
}

/// What stands between the name of a destination and that of a place in the name of an index.
pub const MARK: &str = ".anabranch-";

/// The index of a place.
///
/// # Errors
/// No index can have that name.
pub fn place_index(prefix: &str, destination: &str, place: &str) -> Result<String, Failure> {
    index_name(prefix, destination)?;
    index_name(prefix, &format!("{destination}{MARK}{place}{WRITE}"))?;
    index_name(prefix, &format!("{destination}{MARK}{place}"))
}

const WRITE: &str = ".write";

/// The alias by which the index of a place is written to: nothing is written where it is gone.
#[must_use]
pub fn write_alias(index: &str) -> String {
    format!("{index}{WRITE}")
}

/// The name of the alias (or of the index) that a destination is.
///
/// # Errors
/// No index can have that name.
pub fn index_name(prefix: &str, destination: &str) -> Result<String, Failure> {
    let name = format!("{prefix}{destination}");
    let forbidden = |c: char| c.is_uppercase() || c.is_whitespace() || "\\/*?\"<>|,#:".contains(c);
    let problem = if name.is_empty() || name.len() > MAX_INDEX {
        "has to have 1 to 255 bytes"
    } else if name.starts_with(['-', '_', '+']) || name == "." || name == ".." {
        "must not begin with - _ or +"
    } else if name.contains(forbidden) {
        "must not have upper-case letters, spaces or any of \\ / * ? \" < > | , # :"
    } else {
        return Ok(name);
    };
    let message =
        format!("`{name}` cannot be an index: its name {problem}; set another `destination` in the [[map]]");
    Err(Failure::fatal("index-name", message))
}

/// A name as a part of a path.
#[must_use]
pub fn path_segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// The bound under which a request that was too large becomes two.
#[must_use]
pub fn halves(bytes: usize) -> usize {
    bytes.div_ceil(2).max(1)
}

/// Whether a document can be in an index at all.
fn check(document: &Document<'_>) -> Delivered {
    if document.id.len() > MAX_ID {
        let message = format!("its id has {} bytes, and an index takes {MAX_ID}", document.id.len());
        return Err(Failure::poison("id-too-long", message));
    }
    match document.body {
        Some(body) if !body.trim_start().starts_with('{') => {
            Err(Failure::poison("no-object", "an index takes JSON objects, and this document is none"))
        }
        _ => Ok(()),
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    // A string always can be written.
    out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
}

fn push(out: &mut Vec<u8>, index: &str, wants_alias: bool, document: &Document<'_>) {
    let action: &[u8] =
        if document.body.is_some() { b"{\"index\":{\"_index\":" } else { b"{\"delete\":{\"_index\":" };
    out.extend_from_slice(action);
    push_string(out, index);
    out.extend_from_slice(b",\"_id\":");
    push_string(out, document.id);
    out.extend_from_slice(if wants_alias { b",\"require_alias\":true}}\n" } else { b"}}\n" });
    if let Some(body) = document.body {
        // Line breaks stand between tokens only; inside of strings JSON has them escaped.
        out.extend(body.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        out.push(b'\n');
    }
}

/// Some documents of a batch as requests of at most so many bytes; a single larger document goes alone. What cannot be
/// sent has its result in `results` already, which has one for each document.
///
/// # Errors
/// A destination cannot be an index.
pub fn requests(
    documents: &[Document<'_>],
    range: Range<usize>,
    names: Names<'_>,
    max_bytes: usize,
    results: &mut [Delivered],
) -> Result<Vec<Request>, Failure> {
    let mut requests: Vec<Request> = Vec::new();
    let mut line = Vec::new();
    for at in range {
        let document = &documents[at];
        let index = names.of(document.destination)?;
        if let Err(failure) = check(document) {
            results[at] = Err(failure);
            continue;
        }
        line.clear();
        push(&mut line, &index, names.wants_alias(document), document);
        match requests.last_mut() {
            Some(last) if last.body.len() + line.len() <= max_bytes => {
                last.body.extend_from_slice(&line);
                last.documents.push(at);
            }
            _ => requests.push(Request { body: line.clone(), documents: vec![at] }),
        }
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document<'a>(destination: &'a str, id: &'a str, body: Option<&'a str>) -> Document<'a> {
        Document { destination, id, body, lsn: 1, commit_time_us: 0 }
    }

    #[test]
    fn actions_and_sources_have_a_line_each() {
        let documents = [
            document("products", "7", Some("{\"a\": 1.50,\n \"b\": \"x\\ny\"}")),
            document("products", "8 \"Uno\"\n", None),
        ];
        let mut results = vec![Ok(()), Ok(())];
        let names = Names { prefix: "shop-", ..Names::default() };
        let made = requests(&documents, 0..2, names, 1 << 20, &mut results).unwrap();
        assert_eq!(made.len(), 1);
        assert_eq!(made[0].documents, [0, 1]);
        assert_eq!(
            String::from_utf8_lossy(&made[0].body),
            "{\"index\":{\"_index\":\"shop-products\",\"_id\":\"7\",\"require_alias\":true}}\n\
             {\"a\": 1.50,  \"b\": \"x\\ny\"}\n\
             {\"delete\":{\"_index\":\"shop-products\",\"_id\":\"8 \\\"Uno\\\"\\n\"}}\n"
        );
        let plain = BTreeSet::from(["products".to_owned()]);
        let made = requests(&documents, 0..1, Names { plain: Some(&plain), ..names }, 1 << 20, &mut results);
        assert!(!String::from_utf8_lossy(&made.unwrap()[0].body).contains("require_alias"));
    }

    #[test]
    fn requests_are_bounded_and_keep_the_order() {
        let body = format!("{{\"x\":\"{}\"}}", "y".repeat(100));
        let documents: Vec<_> = (0..10).map(|_| document("d", "1", Some(&body))).collect();
        let mut results = vec![Ok(()); 10];
        let few = requests(&documents, 2..10, Names::default(), 520, &mut results).unwrap();
        assert_eq!(
            few.iter().map(|request| request.documents.clone()).collect::<Vec<_>>(),
            [vec![2, 3, 4], vec![5, 6, 7], vec![8, 9]]
        );
        assert!(few.iter().all(|request| request.body.len() <= 520));
        let single = requests(&documents, 0..2, Names::default(), 10, &mut results).unwrap();
        assert_eq!(single.len(), 2, "larger than the bound, so alone");
    }

    #[test]
    fn what_no_index_takes_is_not_sent() {
        let long = "x".repeat(513);
        let documents = [
            document("d", &long, Some("{}")),
            document("d", "1", Some("[1]")),
            document("d", "2", Some(" {}")),
            document("d", "3", Some("null")),
        ];
        let mut results = vec![Ok(()); 4];
        let sent = requests(&documents, 0..4, Names::default(), 1 << 20, &mut results).unwrap();
        assert_eq!(sent[0].documents, [2]);
        let codes: Vec<_> = results
            .iter()
            .filter_map(|result| result.as_ref().err().map(|failure| failure.code.as_str()))
            .collect();
        assert_eq!(codes, ["id-too-long", "no-object", "no-object"]);
    }

    #[test]
    fn a_name_that_no_index_can_have_is_told() {
        for bad in ["", "_all", "-x", "Products", "a/b", "a b", "a,b", "a*", "x:y"] {
            let failure = index_name("", bad).unwrap_err();
            assert_eq!(failure.code, "index-name", "{bad}");
            assert!(failure.message.contains("destination"), "{}", failure.message);
        }
        assert_eq!(index_name("shop-", "public.products").unwrap(), "shop-public.products");
        assert_eq!(index_name("", "größe-2").unwrap(), "größe-2");
    }
}
