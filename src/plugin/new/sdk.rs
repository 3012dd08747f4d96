//! The SDKs' files, to be copied into new projects.

use crate::plugin::build::Language;

macro_rules! files {
    ($from:literal, $to:literal, [$($name:literal),* $(,)?]) => {
        &[$((concat!($to, $name), include_str!(concat!("../../../plugins/", $from, $name)))),*]
    };
}

const RUST: &[(&str, &str)] = files!(
    "sdk-rust/src/",
    "anabranch-sdk/src/",
    [
        "answer.rs",
        "batch.rs",
        "bindings.rs",
        "describe.rs",
        "failure.rs",
        "generated.rs",
        "generated_capabilities.rs",
        "generated_generations.rs",
        "generated_http.rs",
        "generated_purge.rs",
        "generated_sink.rs",
        "host.rs",
        "http.rs",
        "json.rs",
        "lib.rs",
        "metrics.rs",
        "msgpack.rs",
        "query.rs",
        "row.rs",
        "sink.rs",
        "state.rs",
        "testing.rs",
        "text.rs",
        "value.rs",
    ]
);
/// The SDK's own manifest takes from its workspace, which a copy has not.
const RUST_MANIFEST: (&str, &str) =
    ("anabranch-sdk/Cargo.toml", include_str!("../../../plugins/templates/rust/sdk.Cargo.toml"));

const JAVASCRIPT: &[(&str, &str)] = files!(
    "sdk-js/",
    "anabranch-sdk/",
    [
        "package.json",
        "src/batch.js",
        "src/component.js",
        "src/failure.js",
        "src/host.js",
        "src/http.js",
        "src/import-http.js",
        "src/import-metrics.js",
        "src/import-query.js",
        "src/import-state.js",
        "src/index.d.ts",
        "src/index.js",
        "src/json.js",
        "src/metrics.js",
        "src/msgpack.js",
        "src/native.js",
        "src/outbound.js",
        "src/plugin.js",
        "src/query.js",
        "src/rows.js",
        "src/sink-component.js",
        "src/sink.js",
        "src/state.js",
        "src/testing.d.ts",
        "src/testing.js",
    ]
);

const PYTHON: &[(&str, &str)] = files!(
    "sdk-python/",
    "",
    [
        "anabranch_sdk/__init__.py",
        "anabranch_sdk/batch.py",
        "anabranch_sdk/component.py",
        "anabranch_sdk/failure.py",
        "anabranch_sdk/host.py",
        "anabranch_sdk/http.py",
        "anabranch_sdk/jsontext.py",
        "anabranch_sdk/metrics.py",
        "anabranch_sdk/msgpack.py",
        "anabranch_sdk/outbound.py",
        "anabranch_sdk/plugin.py",
        "anabranch_sdk/py.typed",
        "anabranch_sdk/query.py",
        "anabranch_sdk/sinks.py",
        "anabranch_sdk/state.py",
        "anabranch_sdk/testing.py",
        "anabranch_sdk/wasi_http.py",
    ]
);

const C: &[(&str, &str)] = files!(
    "sdk-c/",
    "anabranch-sdk/",
    [
        "anabranch.h",
        "anabranch_http.h",
        "anabranch_sink.h",
        "anabranch_testing.h",
        "batch.c",
        "component.c",
        "component_host.c",
        "component_http.c",
        "internal.h",
        "json.c",
        "memory.c",
        "msgpack.c",
        "outbound.c",
        "query.c",
        "sink.c",
        "testing.c",
        "testing_host.c",
        "testing_internal.h",
        "testing_sink.c",
    ]
);

const GO: &[(&str, &str)] = files!(
    "sdk-go/",
    "anabranch-sdk/",
    [
        "batch.go",
        "component.go",
        "component_host.go",
        "component_http.go",
        "failure.go",
        "go.mod",
        "host.go",
        "host_native.go",
        "http.go",
        "json.go",
        "metrics.go",
        "msgpack.go",
        "plugin.go",
        "query.go",
        "row.go",
        "sink.go",
        "state.go",
        "testing.go",
        "testing_sink.go",
        "types.go",
    ]
);

/// Paths in the project, and texts.
pub(super) fn files(language: Language) -> impl Iterator<Item = (&'static str, &'static str)> {
    let (files, manifest) = match language {
        Language::Rust => (RUST, Some(RUST_MANIFEST)),
        Language::JavaScript => (JAVASCRIPT, None),
        Language::Python => (PYTHON, None),
        Language::C => (C, None),
        Language::Go => (GO, None),
    };
    files.iter().copied().chain(manifest)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// A file that was forgotten here would break every new project.
    #[test]
    fn no_file_of_an_sdk_is_left_out() {
        for (language, folder, from) in [
            (Language::Rust, "sdk-rust/src", "anabranch-sdk/src/"),
            (Language::JavaScript, "sdk-js/src", "anabranch-sdk/src/"),
            (Language::Python, "sdk-python/anabranch_sdk", "anabranch_sdk/"),
            (Language::C, "sdk-c", "anabranch-sdk/"),
            (Language::Go, "sdk-go", "anabranch-sdk/"),
        ] {
            let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins").join(folder);
            let there: BTreeSet<_> = fs::read_dir(place)
                .unwrap()
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.file_type().unwrap().is_file())
                .map(|entry| entry.file_name().into_string().unwrap())
                .filter(|name| name != "Makefile" && !name.ends_with("_test.go"))
                .collect();
            let here = files(language).filter_map(|(path, _)| path.strip_prefix(from)).map(str::to_owned);
            assert_eq!(here.collect::<BTreeSet<_>>(), there, "{language}");
        }
    }

    #[test]
    fn the_copy_has_the_version_of_the_sdk() {
        let own = include_str!("../../../plugins/sdk-rust/Cargo.toml");
        let version = own.lines().find(|line| line.starts_with("version")).unwrap();
        assert!(RUST_MANIFEST.1.lines().any(|line| line == version), "{version}");
    }
}
