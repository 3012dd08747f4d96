//! One sample in three languages: the same documents of the same rows, over the real border.

use std::{collections::BTreeMap, path::Path};

use anabranch::{
    model::{ChangeBatch, EntityName, Operation, Outcome},
    plugin::{HostSettings, Plugin, PluginHost},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use testkit::{
    guests::{self, Guest, Language, language_tools},
    paths::repository,
};

use crate::rows::{Text, all, batch, products, push};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");

/// The samples in languages that this machine can build.
pub fn samples() -> Vec<(&'static str, &'static str)> {
    let all = [
        (Language::Rust, "product-search", "plugins/product-search"),
        (Language::JavaScript, "product-search-js", "plugins/product-search-js"),
        (Language::Python, "product-search-python", "plugins/product-search-python"),
    ];
    let possible = all
        .into_iter()
        .filter(|(language, ..)| *language == Language::Rust || language_tools(*language).unwrap().is_some());
    possible.map(|(_, name, place)| (name, place)).collect()
}

/// A host with the defaults, whose compiled code is kept for all tests.
pub fn host() -> PluginHost {
    let cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled"));
    PluginHost::new(HostSettings { cache_dir, ..HostSettings::default() }).unwrap()
}

pub fn load(host: &PluginHost, place: &str) -> Plugin {
    let path = guests::build(BINARY, &Guest::new(place)).unwrap_or_else(|error| panic!("{error:#}"));
    load_file(host, &path)
}

pub fn load_file(host: &PluginHost, path: &Path) -> Plugin {
    host.load_blocking(path).unwrap_or_else(|error| panic!("{error}"))
}

type Columns = BTreeMap<String, Option<String>>;

#[derive(Deserialize)]
struct Case<'t> {
    what: String,
    operation: String,
    new: Option<Columns>,
    old: Option<Columns>,
    /// None: this row has no document.
    #[serde(borrow)]
    document: Option<&'t RawValue>,
}

/// A row of [`products`]; columns that a case does not name are filled.
fn row<'c>(columns: &'c Columns, id: &'c str) -> Vec<Text<'c>> {
    let filled = BTreeMap::from([("id", id), ("sku", "S"), ("currency", "EUR"), ("stock", "1")]);
    let value = |name: &str| match columns.get(name) {
        Some(value) => Some(value.as_deref()),
        None => Some(filled.get(name).copied()),
    };
    products().columns.iter().map(|column| value(&column.name)).collect()
}

fn rows(cases: &[Case<'_>]) -> ChangeBatch {
    let mut batch = batch(&products());
    for (at, case) in cases.iter().enumerate() {
        let operation = match case.operation.as_str() {
            "insert" => Operation::Insert,
            "update" => Operation::Update,
            "delete" => Operation::Delete,
            other => panic!("{other}"),
        };
        let id = (at + 1).to_string();
        let [new, old] =
            [&case.new, &case.old].map(|columns| columns.as_ref().map(|columns| row(columns, &id)));
        push(&mut batch, operation, new.as_deref(), old.as_deref());
    }
    batch
}

/// The tokens of a JSON text: white space between them is gone, strings are written in one way where they can be,
/// numbers are the text that they are.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => string_end(rest),
            '{' | '}' | '[' | ']' | ',' | ':' => 1,
            _ => rest.find([',', '}', ']', ' ', '\n', '\t', '\r']).unwrap_or(rest.len()),
        };
        let token = &rest[..end];
        // A lone surrogate is no text to Rust; such a token stays as it is.
        let string = serde_json::from_str::<String>(token);
        tokens.push(string.map_or_else(|_| token.to_owned(), |string| format!("{string:?}")));
        rest = rest[end..].trim_start();
    }
    tokens
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let closing = text.char_indices().skip(1).find(|&(_, c)| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    closing.map_or(text.len(), |(at, _)| at + 1)
}

#[test]
fn tokens_tell_numbers_apart_that_mean_the_same() {
    assert_eq!(tokens(r#"{"a": [1.50, "é"]}"#), tokens("{\"a\":[1.50,\n\"\\u00e9\"]}"));
    assert_ne!(tokens("[1.50]"), tokens("[1.5]"));
    assert_ne!(tokens("[1e400]"), tokens("[null]"));
    assert_eq!(tokens(r#"["\"]", "\\"]"#).len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_language_makes_the_same_documents() {
    let text = std::fs::read_to_string(repository().join("plugins/golden/product-search.json")).unwrap();
    let cases: Vec<Case<'_>> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() > 15);
    let batch = rows(&cases);
    let host = host();
    for (name, place) in samples() {
        let plugin = load(&host, place);
        assert_eq!(plugin.revision().to_string(), format!("{name} 1.0.0"));
        let transform = plugin.transform(&EntityName::new("public", "products"), BTreeMap::new());
        let outcomes =
            transform.call(&batch, &all(&batch)).await.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let mut documents = outcomes.documents.iter();
        for (case, outcome) in cases.iter().zip(&outcomes.outcomes) {
            let what = format!("{name}, {}", case.what);
            match (outcome, case.document) {
                (Outcome::Delete, None) => {}
                (Outcome::Emit { count: 1, .. }, Some(expected)) => {
                    let document = documents.next().unwrap();
                    let body = std::str::from_utf8(outcomes.slice(document.body)).unwrap();
                    assert_eq!(tokens(body), tokens(expected.get()), "{what}: {body}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        assert!(documents.next().is_none());
    }
}
