//! One sample in every language: the same documents of the same rows, over the real border.

use std::path::Path;

use anabranch::{
    author::{answers, cases},
    plugin::{HostSettings, Plugin, PluginHost},
};
use testkit::{
    guests::{self, Guest, Language, language_tools},
    paths::repository,
};

pub const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");

/// The samples in languages that this machine can build.
pub fn samples() -> Vec<(&'static str, &'static str)> {
    let all = [
        (Language::Rust, "product-search", "plugins/product-search"),
        (Language::JavaScript, "product-search-js", "plugins/product-search-js"),
        (Language::Python, "product-search-python", "plugins/product-search-python"),
        (Language::C, "product-search-c", "plugins/product-search-c"),
        (Language::Go, "product-search-go", "plugins/product-search-go"),
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

#[tokio::test(flavor = "multi_thread")]
async fn every_language_makes_the_same_documents() {
    let cases = cases(&repository().join("plugins/golden")).unwrap();
    let [case] = cases.as_slice() else { panic!("{cases:?}") };
    let rows = &case.rows;
    let count = u32::try_from(rows.names.len()).unwrap();
    assert!(count > 15);
    let host = host();
    for (name, place) in samples() {
        let plugin = load(&host, place);
        assert_eq!(plugin.revision().to_string(), format!("{name} 1.0.0"));
        let transform = plugin.transform(&rows.relation().name, rows.settings.clone());
        let answers = answers(&transform, &rows.batch, 0..count).await;
        let answers = answers.unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(case.mismatches(&answers), [], "{name}");
    }
}
