//! Two documents, field by field.
//!
//! White space and the order of keys do not matter; the digits of numbers do: `19.90` is not `19.9`. A key that stands
//! twice in an object is two fields.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// More differences than these are not told of one pair of documents.
const MOST: usize = 100;
/// How much of a value is shown, in bytes.
const EXCERPT: usize = 200;

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `price`, `tags[1]`, `attributes["a b"].c`; empty for the document as a whole.
    pub path: String,
    /// The same without the positions of arrays: `tags[]`.
    pub pattern: String,
    /// The value on the left, as JSON; none where there is none.
    pub left: Option<String>,
    /// The value on the right.
    pub right: Option<String>,
}

/// A JSON text whose numbers are the text that they are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Json {
    Scalar(String),
    Array(Vec<Json>),
    /// By key, and by how often the key stood there before.
    Object(BTreeMap<(String, usize), Json>),
}

/// The entries of an object, keys that stand twice among them.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

impl Json {
    /// What cannot be taken apart (a lone surrogate in a key, say) is compared as its text.
    fn of(text: &str) -> Self {
        let text = text.trim();
        Self::parts(text).unwrap_or_else(|| Self::Scalar(text.to_owned()))
    }

    fn parts(text: &str) -> Option<Self> {
        match text.as_bytes().first()? {
            b'{' => {
                let Entries(entries) = serde_json::from_str(text).ok()?;
                let mut object = BTreeMap::new();
                let mut seen: BTreeMap<String, usize> = BTreeMap::new();
                for (key, raw) in entries {
                    let before = seen.entry(key.clone()).or_default();
                    object.insert((key, *before), Self::of(raw.get()));
                    *before += 1;
                }
                Some(Self::Object(object))
            }
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                Some(Self::Array(items.into_iter().map(|raw| Self::of(raw.get())).collect()))
            }
            b'"' => {
                let string: String = serde_json::from_str(text).ok()?;
                serde_json::to_string(&string).ok().map(Self::Scalar)
            }
            _ => None,
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Scalar(text) => out.push_str(text),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(entries) => {
                out.push('{');
                for (at, ((key, _), value)) in entries.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&quoted(key));
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        excerpt(text)
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The beginning of a long text.
pub(super) fn excerpt(mut text: String) -> String {
    if text.len() > EXCERPT {
        let end = (0..=EXCERPT).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Where a walk through two documents is.
#[derive(Clone, Default)]
struct Place {
    path: String,
    pattern: String,
}

impl Place {
    fn key(&self, (key, before): &(String, usize)) -> Self {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        let again = if *before > 0 { format!("#{}", before + 1) } else { String::new() };
        let step = match (plain, self.path.is_empty()) {
            (true, true) => key.to_owned(),
            (true, false) => format!(".{key}"),
            (false, _) => format!("[{}]", quoted(key)),
        };
        let below = |place: &str| format!("{place}{step}{again}");
        Self { path: below(&self.path), pattern: below(&self.pattern) }
    }

    fn item(&self, at: usize) -> Self {
        Self { path: format!("{}[{at}]", self.path), pattern: format!("{}[]", self.pattern) }
    }
}

/// What differs between two JSON texts: nothing if they mean the same.
#[must_use]
pub fn compare(left: &str, right: &str) -> Vec<Difference> {
    let mut found = Vec::new();
    if left != right {
        walk(&Place::default(), Some(&Json::of(left)), Some(&Json::of(right)), &mut found);
    }
    found
}

fn walk(place: &Place, left: Option<&Json>, right: Option<&Json>, found: &mut Vec<Difference>) {
    if left == right || found.len() >= MOST {
        return;
    }
    match (left, right) {
        (Some(Json::Object(left)), Some(Json::Object(right))) => {
            let mut keys: Vec<_> = left.keys().chain(right.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                walk(&place.key(key), left.get(key), right.get(key), found);
            }
        }
        (Some(Json::Array(left)), Some(Json::Array(right))) => {
            for at in 0..left.len().max(right.len()) {
                walk(&place.item(at), left.get(at), right.get(at), found);
            }
        }
        _ => found.push(Difference {
            path: place.path.clone(),
            pattern: place.pattern.clone(),
            left: left.map(Json::shown),
            right: right.map(Json::shown),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(left: &str, right: &str) -> Vec<String> {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        compare(left, right)
            .into_iter()
            .map(|found| {
                format!("{} {} {} {}", found.path, found.pattern, text(found.left), text(found.right))
            })
            .collect()
    }

    #[test]
    fn white_space_escapes_and_the_order_of_keys_do_not_matter() {
        assert!(
            lines("{\"a\": [1.50, \"é\"],\n\"b\":null}", "{\"b\":null,\"a\":[1.50,\"\\u00e9\"]}").is_empty()
        );
    }

    #[test]
    fn every_digit_matters() {
        assert_eq!(lines("{\"a\":1.50}", "{\"a\":1.5}"), ["a a 1.50 1.5"]);
        let big = "1234567890123456789012345678901234567890.50";
        assert_eq!(lines(big, &format!("{big}0")), [format!("  {big} {big}0")]);
    }

    #[test]
    fn fields_are_told_by_their_paths() {
        let left = r#"{"gone":1,"tags":["a","b"],"x":{"a b":[{"c":1}],"":2}}"#;
        let right = r#"{"new":{"z":1},"tags":["a","c","d"],"x":{"a b":[{"c":"1"}],"":3}}"#;
        assert_eq!(
            lines(left, right),
            [
                "gone gone 1 -",
                "new new - {\"z\":1}",
                "tags[1] tags[] \"b\" \"c\"",
                "tags[2] tags[] - \"d\"",
                "x[\"\"] x[\"\"] 2 3",
                "x[\"a b\"][0].c x[\"a b\"][].c 1 \"1\"",
            ]
        );
        assert_eq!(lines("null", "{}"), ["  null {}"], "null is no object");
        assert_eq!(lines("[]", "[null]"), ["[0] [] - null"], "null is not nothing");
    }

    #[test]
    fn a_key_that_stands_twice_is_two_fields() {
        assert!(lines(r#"{"a":1,"a":2}"#, r#"{"a": 1, "a": 2}"#).is_empty());
        assert_eq!(lines(r#"{"a":1,"a":2}"#, r#"{"a":2}"#), ["a a 1 2", "a#2 a#2 2 -"]);
    }

    #[test]
    fn long_values_and_lists_are_cut() {
        let long = format!("\"{}\"", "é".repeat(300));
        let shown = compare(&long, "1").remove(0).left.unwrap();
        assert!(shown.len() <= EXCERPT + '…'.len_utf8() && shown.ends_with('…'), "{shown}");
        let many = format!("[{}]", vec!["1"; 1000].join(","));
        assert_eq!(compare("[]", &many).len(), MOST);
    }

    #[test]
    fn what_is_no_text_to_rust_is_compared_as_it_is() {
        assert!(compare(r#"["\ud800"]"#, r#"[ "\ud800" ]"#).is_empty());
        assert_eq!(compare(r#"["\ud800"]"#, r#"["\ud801"]"#).len(), 1);
    }
}
