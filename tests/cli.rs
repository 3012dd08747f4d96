//! The command line from outside: exit codes, help, errors and JSON shapes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

/// Runs the program in `folder` with a clean environment.
fn anabranch(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("USER", "ada")
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_tells_the_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let help = anabranch(folder.path(), &["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    for line in ["0  done", "1  failed", "2  usage or config", "3  not ready in time", "--config", "--json"] {
        assert!(help.contains(line), "{line} is missing:\n{help}");
    }
    let version = anabranch(folder.path(), &["--version"]);
    assert_eq!(text(&version.stdout), format!("anabranch {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["rum"], &["status", "--colour"], &["--config"]] {
        let output = anabranch(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    assert!(text(&anabranch(folder.path(), &["stauts"]).stderr).contains("status"), "the nearest command");
}

/// The golden errors of the config, through the program.
#[test]
fn c093_config_errors_are_exit_code_2_and_tell_the_place() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/config");
    let mut seen = 0;
    for entry in fs::read_dir(&golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let output = anabranch(&golden, &["status", "--config", name]);
        let expected = fs::read_to_string(path.with_extension("err")).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(text(&output.stderr), format!("error: {expected}"), "{name}");
        assert!(output.stdout.is_empty(), "{name}");
        seen += 1;
    }
    assert!(seen >= 20, "only {seen} golden files");
}

#[test]
fn a_config_error_is_one_json_value() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("anabranch.toml"), "[source]\nsolt = \"x\"\n[sink.s]\nkind = \"null\"\n")
        .unwrap();
    let output = anabranch(folder.path(), &["--json", "status"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stderr.is_empty());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["error"]["kind"], "config");
    let problem = &value["error"]["problems"][0];
    assert_eq!(
        (problem["file"].as_str(), problem["key"].as_str()),
        (Some("anabranch.toml"), Some("source.solt"))
    );
    assert_eq!((problem["line"].as_u64(), problem["column"].as_u64()), (Some(2), Some(1)));
    assert!(problem["message"].as_str().unwrap().contains("did you mean `slot`?"));
}

#[test]
fn a_missing_config_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = anabranch(folder.path(), &["status"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.starts_with("error: anabranch.toml: cannot be read") && said.contains("--config"), "{said}");
}

#[test]
fn a_source_that_is_not_there_is_exit_code_1_without_its_password() {
    let folder = tempfile::tempdir().unwrap();
    // Port 1 is not served; a socket directory that is not there is not either.
    let url = format!("postgres://ada:marker-password@/shop?host={}", folder.path().display());
    for arguments in [
        &["status", "--url", &url][..],
        &["-vv", "status", "--url", &url],
        &["--json", "status", "--url", &url],
    ] {
        let output = anabranch(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stderr));
        assert!(!text(&output.stdout).contains("marker-") && !text(&output.stderr).contains("marker-"));
    }
    let typo =
        anabranch(folder.path(), &["status", "--url", "postgres://ada:marker-password@localhost/?sslmod=x"]);
    assert_eq!(typo.status.code(), Some(2), "{}", text(&typo.stderr));
    assert!(text(&typo.stderr).contains("sslmod") && !text(&typo.stderr).contains("marker-"));
}

/// What is typed is used or refused; what stands in the environment is there for every command.
#[test]
fn an_option_that_a_command_would_ignore_is_refused_and_what_to_do_is_told() {
    const URL: &str = "postgres://ada:marker-password@localhost/shop";
    let folder = tempfile::tempdir().unwrap();
    for (line, words) in [
        (
            "plugin new go items --sink --url URL",
            "--url is used with --table only, and a sink has no table: leave it out",
        ),
        (
            "plugin new go items --url URL",
            "--url is used with --table only, whose columns are read there: add `--table",
        ),
        ("plugin new go items --table public.items --slot shop", "unexpected argument '--slot'"),
        ("plugin new go items --sink --slot shop", "unexpected argument '--slot'"),
        ("plugin test items --url URL", "--url is used with --sample only, and golden rows are of no source"),
        ("plugin test items --table public.items", "--table is used with --sample only"),
        ("plugin test items --timeout 3s", "--timeout is used with --sample only"),
        ("plugin test items --sample 3 --slot shop", "unexpected argument '--slot'"),
        ("plugin bench items --golden g --url URL", "--url is not used with --golden"),
        ("plugin bench items --golden g --table public.items", "--table is not used with --golden"),
        ("plugin bench items --url URL --timeout 3s", "--timeout is used with --sample only"),
    ] {
        let arguments: Vec<_> = line.split(' ').map(|word| if word == "URL" { URL } else { word }).collect();
        let output = anabranch(folder.path(), &arguments);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{line}: {said}");
        assert!(!said.contains("marker-") && !folder.path().join("items").exists(), "{line}: {said}");
    }
    let told = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        command.args(line.split(' ')).current_dir(folder.path()).env_clear().env("ANABRANCH_URL", URL);
        command.output().unwrap()
    };
    for line in ["plugin new go items --sink", "plugin new python search"] {
        let output = told(line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    }
    let output = told("plugin test nothing.wasm");
    assert!(text(&output.stderr).contains("nothing.wasm"), "it goes on: {}", text(&output.stderr));
}

/// A database of the shared cluster and the text that connects to it.
async fn database() -> (testkit::Database, String) {
    let database = testkit::shared().unwrap().create_database().await.unwrap();
    let url = database.url.clone();
    (database, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn status_of_a_database_without_an_installation() {
    let folder = tempfile::tempdir().unwrap();
    let (_database, url) = database().await;
    let output = anabranch(folder.path(), &["status", "--json", "--url", &url]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let shape: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shape["installation"], "anabranch");
    assert!(shape["checkpoint"].is_null() && shape["slot"].is_null());
    let said = text(&anabranch(folder.path(), &["status", "--url", &url]).stdout);
    assert!(said.contains("never ran on this database"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_what_is_stored() {
    use anabranch::{
        model::{EntityName, Lsn},
        state::{Installation, MappingStatus, RunStatus, Store, StoredMapping, StoredRun},
    };
    let folder = tempfile::tempdir().unwrap();
    let (database, url) = database().await;
    let client = database.connect().await.unwrap();
    let store = Store::new("shop");
    store.upgrade(&client).await.unwrap();
    let installation = Installation {
        name: "shop".into(),
        publication: "shop_pub".into(),
        publication_oid: None,
        system_identifier: "7".into(),
        timeline: 1,
        confirmed: Lsn(0x16_0000_0010),
        term: 3,
        baseline: None,
    };
    store.save_installation(&client, &installation).await.unwrap();
    let entity = EntityName::new("public", "products");
    let identity = r#"{"route":{"entity":"public.products","sink":"search","sink_kind":"sqlite","destination":"d"},
        "transform":{"name":"p","version":"1.4.0","sha256":"ab"},"version_key":"2",
        "inputs":{"tables":[],"depends_on":[],"wants_deletes":false,"names_ids":false}}"#;
    let mapping = StoredMapping {
        generation: 2,
        built: 1,
        accepted: Lsn(0x16_0000_0010),
        status: MappingStatus::Failing,
        last_error: Some("the sink is full".into()),
        attempts: 4,
        ..StoredMapping::new("m", entity.clone(), 0, identity)
    };
    store.save_mapping(&client, &mapping).await.unwrap();
    let run = StoredRun {
        status: RunStatus::Running,
        rows: 41,
        chunks: 2,
        estimate: Some(100),
        ..StoredRun::new(entity, "r1", vec!["m".into()])
    };
    store.save_run(&client, &run).await.unwrap();

    let output = anabranch(folder.path(), &["status", "--json", "--url", &url, "--slot", "shop"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut shape: Value = serde_json::from_slice(&output.stdout).unwrap();
    let elapsed = shape["backfills"][0]["elapsed_seconds"].take();
    assert!(elapsed.is_u64() && shape["backfills"][0]["report"]["rows"] == 0, "{shape:#}");
    shape["backfills"][0]["left_seconds"].take();
    shape["backfills"][0]["report"].take();
    let expected = serde_json::json!({
        "installation": "shop",
        "checkpoint": {
            "publication": "shop_pub", "system_identifier": "7", "timeline": 1,
            "confirmed_lsn": "16/10", "term": 3
        },
        "suspended": null,
        "slot": null,
        "mappings": [{
            "name": "m", "entity": "public.products", "transform": "p", "version": "1.4.0 (2)",
            "sink": "search", "destination": "d", "generation": 2, "built": 1, "status": "failing",
            "since_lsn": null, "accepted_lsn": "16/10", "attempts": 4, "last_error": "the sink is full",
            "purge": false, "building": null, "held_revision": null, "quarantined": 0
        }],
        "requests": [],
        "backfills": [{
            "entity": "public.products", "run": "r1", "scope": null, "mappings": ["m"], "status": "running",
            "paused": false, "rows_per_second": null, "rows": 41, "chunks": 2, "estimate": 100, "percent": 41,
            "elapsed_seconds": null, "left_seconds": null, "attempts": 0, "last_error": null, "report": null
        }],
        "controls": []
    });
    assert_eq!(shape, expected);

    let said = text(&anabranch(folder.path(), &["status", "--url", &url, "--slot", "shop"]).stdout);
    assert!(said.contains("2, being built") && said.contains("the sink is full"), "{said}");
    assert!(said.contains("public.products reading 41% (41 of ~100 rows)"), "{said}");
    let other = anabranch(folder.path(), &["status", "--url", &url, "--slot", "sh_p"]);
    assert_eq!(other.status.code(), Some(1), "another installation is another installation");
}

#[test]
fn inspect_tells_what_is_no_plugin() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.wasm"), "not WebAssembly").unwrap();
    fs::write(folder.path().join("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
    for name in ["text.wasm", "core.wasm"] {
        let output = anabranch(folder.path(), &["plugin", "inspect", name, "--json"]);
        assert_eq!(output.status.code(), Some(1), "{name}: {}", text(&output.stderr));
        let shape: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((shape["loadable"].as_bool(), shape["path"].as_str()), (Some(false), Some(name)));
        assert!(!shape["verdict"].as_str().unwrap().is_empty());
    }
    let missing = anabranch(folder.path(), &["plugin", "inspect", "no.wasm"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("no.wasm"), "{}", text(&missing.stderr));
}

#[test]
fn a_build_without_a_project_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = anabranch(folder.path(), &["plugin", "build", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("nowhere has no Cargo.toml"), "{}", text(&output.stderr));
    let both = anabranch(folder.path(), &["plugin", "build", "--out", "a", "--output", "b"]);
    assert_eq!(both.status.code(), Some(2), "one of the two");
}

#[test]
fn check_names_broken_plugins_and_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[plugins]\ncache_dir = \"cache\"\n[sink.s]\nkind = \"null\"\n";
    fs::write(folder.path().join("anabranch.toml"), config).unwrap();
    let absent = anabranch(folder.path(), &["check"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("plugins cannot be read"), "{}", text(&absent.stderr));

    fs::create_dir(folder.path().join("plugins")).unwrap();
    fs::write(folder.path().join("plugins/text.wasm"), "not WebAssembly").unwrap();
    let output = anabranch(folder.path(), &["check", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    let shape: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&shape["ok"], &shape["plugins"][0]["ok"]), (&Value::Bool(false), &Value::Bool(false)));
    assert!(shape["problems"][0]["message"].as_str().unwrap().contains("nothing to do"), "{shape}");
    let said = text(&anabranch(folder.path(), &["check"]).stdout);
    assert!(said.contains("text.wasm") && said.ends_with("not ready to run\n"), "{said}");
}
