//! The sample in JavaScript, compiled ahead of time. This needs `weval` on `PATH`, which takes minutes to build.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use testkit::{
    guests::{self, Guest},
    paths::repository,
};

use crate::documents::{BINARY, agrees, host, load_file};

/// The sample's component.
pub fn build() -> PathBuf {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ahead/product-search-js");
    let _ = fs::remove_dir_all(&project);
    fs::create_dir_all(project.join("src")).unwrap();
    let sample = repository().join("plugins/product-search-js");
    let text = fs::read_to_string(sample.join("package.json")).unwrap();
    let mut package: Value = serde_json::from_str(&text).unwrap();
    package["anabranch"] = json!({"aot": true});
    fs::write(project.join("package.json"), package.to_string()).unwrap();
    fs::copy(sample.join("src/index.js"), project.join("src/index.js")).unwrap();
    // What the sample has, which is installed when it is built.
    guests::build(BINARY, &Guest::new("plugins/product-search-js")).unwrap();
    symlink(repository().join("plugins/node_modules"), project.join("node_modules")).unwrap();
    guests::build(BINARY, &Guest::new(&project)).unwrap_or_else(|error| panic!("{error:#}"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs weval: cargo install weval"]
async fn compiled_ahead_of_time_it_makes_the_same_documents() {
    agrees("product-search-js", &load_file(&host(), &build())).await;
}
