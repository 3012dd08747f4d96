//! What is loaded, what is refused, and in which words.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use anabranch::{
    model::Encoding,
    plugin::{HostSettings, PluginHost, watch::DirectoryWatch},
    runtime::PluginSet,
};

use crate::guests::{directory, guest, host, hostile, load, short};

#[test]
fn samples_describe_themselves() {
    let host = host(HostSettings::default());
    let path = guest("product-search", &[]);
    let plugin = load(&host, &path);
    let (revision, description) = (plugin.revision(), plugin.description());
    assert_eq!(revision.to_string(), "product-search 1.0.0");
    assert_eq!(revision.interface, "anabranch:plugin@1.0.0");
    assert_eq!(description.encoding, Encoding::Msgpack);
    assert_eq!(description.tables, ["public.products"]);
    assert_eq!(description.destination.as_deref(), Some("products"));
    let columns = ["name", "description", "price", "active", "tags", "attributes"];
    assert_eq!(description.columns.as_deref(), Some(columns.map(str::to_owned).as_slice()));
    assert!(!description.wants_deletes);

    let inspection = host.inspect(&path).unwrap();
    assert!(inspection.loadable, "{}", inspection.verdict);
    assert_eq!(inspection.sha256, revision.sha256);
    assert!(inspection.exports.contains(&"anabranch:plugin/transform@1.0.0".to_owned()));
    assert!(
        inspection.imports.iter().all(|name| name.starts_with("anabranch:plugin/")),
        "{:?}",
        inspection.imports
    );
    assert!(inspection.description.unwrap().sdk.unwrap().starts_with("anabranch-sdk "));
}

#[test]
fn one_source_is_built_in_several_versions() {
    let host = host(HostSettings::default());
    for version in ["1.9.0", "1.10.0-rc.1"] {
        let plugin = load(&host, &guest("fixtures/hostile", &[("ANABRANCH_PLUGIN_VERSION", version)]));
        assert_eq!(plugin.revision().version.to_string(), version);
    }
}

fn refused(host: &PluginHost, path: &Path) -> String {
    match host.load_blocking(path) {
        Ok(plugin) => panic!("{plugin:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn c088_what_is_no_plugin_is_refused_in_clear_words() {
    let host = host(short());
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let component = fs::read(hostile()).unwrap();
    for (name, bytes, words) in [
        ("empty.wasm", &b""[..], "is empty"),
        ("text.wasm", b"hello", "is not WebAssembly"),
        ("core.wasm", b"\0asm\x01\0\0\0", "core module"),
        ("cut.wasm", &component[..component.len() / 2], "cut or damaged"),
        ("bare.wasm", b"\0asm\x0d\0\x01\0", "exports nothing"),
    ] {
        let path = write(name, bytes);
        let error = refused(&host, &path);
        assert!(error.contains(words) && error.contains(name), "{error}");
        let inspection = host.inspect(&path).unwrap();
        assert!(!inspection.loadable && inspection.verdict.contains(words), "{inspection:?}");
    }
    assert!(refused(&host, Path::new("/nowhere/a.wasm")).contains("/nowhere/a.wasm"));
}

#[test]
fn c091_a_version_that_is_none_is_refused() {
    let host = host(short());
    for version in ["v1", "01.2.3", ""] {
        let error = refused(&host, &guest("fixtures/hostile", &[("ANABRANCH_PLUGIN_VERSION", version)]));
        assert!(error.contains(&format!("`{version}` is no version")), "{error}");
    }
}

#[test]
fn c084_describe_runs_within_limits() {
    let host = host(short());
    for (describe, words) in [
        ("loop", "did not return within 1s"),
        ("trap", "`describe` failed: it crashed"),
        ("allocate", "memory_limit"),
        ("huge", "the limit is 65536"),
        ("{}", "is no description"),
        (
            r#"{"name":"x","version":"1.0.0","kind":"sink"}"#,
            "describes itself as a sink, but exports a transform",
        ),
    ] {
        let path = guest("fixtures/hostile", &[("ANABRANCH_FIXTURE_DESCRIBE", describe)]);
        // On a thread that is left alone where it does not come back.
        let (tell, told) = mpsc::channel();
        let examining = host.clone();
        std::thread::spawn(move || tell.send(refused(&examining, &path)));
        let error = told
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|error| panic!("{describe} is described for ever, or not refused: {error}"));
        assert!(error.contains(words), "{describe}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_scanned_and_no_bad_file_stops_another() {
    let (search, hostile) = (guest("product-search", &[]), hostile());
    let other = guest("fixtures/hostile", &[("ANABRANCH_PLUGIN_VERSION", "1.9.0")]);
    let files = [("a.wasm", search.as_path()), ("b.wasm", &hostile), ("c.wasm", &other), ("d.txt", &search)];
    let directory = directory(&files);
    fs::write(directory.path().join("broken.wasm"), "x").unwrap();
    let host = host(short());
    let scanned = host.scan(directory.path()).await;
    let words: Vec<_> = scanned
        .iter()
        .map(|(path, plugin)| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, plugin.as_ref().map_or_else(ToString::to_string, |plugin| plugin.revision().to_string()))
        })
        .collect();
    assert_eq!(words.len(), 4);
    assert_eq!(words[0], ("a.wasm".into(), "product-search 1.0.0".into()));
    assert!(words[1].1.contains("b.wasm: its name hostile is also that of") && words[1].1.contains("c.wasm"));
    assert!(words[2].1.contains("is not WebAssembly"));
    assert!(words[3].1.contains("c.wasm: its name hostile is also that of") && words[3].1.contains("b.wasm"));

    let nowhere = host.scan(Path::new("/nowhere")).await;
    assert!(nowhere[0].1.as_ref().unwrap_err().to_string().contains("[plugins] dir"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c089_a_file_that_is_copied_slowly_is_loaded_when_it_is_complete() {
    let component = fs::read(hostile()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.wasm");
    let host = host(short());
    let mut watch = DirectoryWatch::start(directory.path(), Duration::from_millis(50)).unwrap();
    for part in 1..=4 {
        let written = &component[..component.len() * part / 4];
        fs::write(&path, written).unwrap();
        // Until the watcher has seen this part; it may see a file in the middle of a write first.
        while watch.last().values().flatten().next() != Some(&anabranch::plugin::artifact::sha256(written)) {
            let changed = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
            assert!(changed.unwrap());
        }
        let loaded = host.load(&path).await;
        assert_eq!(loaded.is_ok(), part == 4, "{part}: {loaded:?}");
    }
    // What was loaded needs the file no more.
    let plugin = host.load(&path).await.unwrap();
    fs::write(&path, "gone").unwrap();
    let batch = crate::rows::notes(&[("1", "x")]);
    let transform = crate::guests::at_work(&plugin, &[]);
    assert_eq!(transform.call(&batch, &[0]).await.unwrap().outcomes.len(), 1);
}

/// What a directory comes to while it changes beside plugins that are at work.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_at_work_stays_until_its_file_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let plugins = root.path().join("plugins");
    fs::create_dir(&plugins).unwrap();
    let place = plugins.join("hostile.wasm");
    fs::copy(hostile(), &place).unwrap();
    let file = root.path().join("anabranch.toml");
    fs::write(
        &file,
        format!(
            "[source]\nurl = \"postgres://u@h/d\"\n[plugins]\ndir = \"{}\"\n[sink.out]\nkind = \"null\"\n",
            plugins.display()
        ),
    )
    .unwrap();
    let config = anabranch::config::load(&file).unwrap();
    let host = host(short());
    let names = |set: &PluginSet| set.plugins.keys().cloned().collect::<Vec<_>>();
    let first = PluginSet::load(&host, &config, None).await;
    assert_eq!((names(&first), first.problems.len()), (vec!["hostile".to_owned()], 0));

    // Cut; and in a directory that cannot be listed, as a mount that is being exchanged.
    fs::write(&place, "cut").unwrap();
    let cut = PluginSet::load(&host, &config, Some(&first)).await;
    assert_eq!(names(&cut), names(&first));
    assert!(cut.problems[0].contains("hostile.wasm: it is not WebAssembly"), "{:?}", cut.problems);
    fs::rename(&plugins, root.path().join("aside")).unwrap();
    let away = PluginSet::load(&host, &config, Some(&cut)).await;
    assert_eq!(names(&away), names(&first));
    assert!(away.problems[0].contains("[plugins] dir"), "{:?}", away.problems);
    fs::rename(root.path().join("aside"), &plugins).unwrap();

    fs::remove_file(&place).unwrap();
    let gone = PluginSet::load(&host, &config, Some(&away)).await;
    assert!(names(&gone).is_empty() && gone.problems.is_empty());
    assert_eq!(gone.descriptions().len(), 1, "what it was is known still");
    assert!(PluginSet::load(&host, &config, None).await.descriptions().is_empty());
}

fn entries(cache: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![cache.join("code/modules")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_none() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn c087_a_bad_cache_entry_is_a_miss() {
    let cache = tempfile::tempdir().unwrap();
    let (first, second) = (hostile(), guest("product-search", &[]));
    // Each host is a new start: it has nothing in memory.
    let start = || host(HostSettings { cache_dir: Some(cache.path().to_owned()), ..short() });
    let use_of = || {
        let host = start();
        assert_eq!(load(&host, &first).revision().name, "hostile");
        assert_eq!(load(&host, &second).revision().name, "product-search");
        host.cache_use()
    };
    assert_eq!(use_of(), (0, 2), "cold");
    assert_eq!(use_of(), (2, 0), "warm");
    let files = entries(cache.path());
    assert_eq!(files.len(), 2);
    let whole = fs::read(&files[0]).unwrap();

    fs::write(&files[0], &whole[..whole.len() / 2]).unwrap();
    assert_eq!(use_of(), (1, 1), "cut");
    let mut scrambled = fs::read(&files[0]).unwrap();
    let middle = scrambled.len() / 2;
    scrambled[middle] ^= 0x55;
    fs::write(&files[0], scrambled).unwrap();
    assert_eq!(use_of(), (1, 1), "scrambled");
    let (one, two) = (fs::read(&files[0]).unwrap(), fs::read(&files[1]).unwrap());
    fs::write(&files[0], two).unwrap();
    fs::write(&files[1], one).unwrap();
    assert_eq!(use_of(), (0, 2), "swapped");
    fs::write(cache.path().join("sums"), "\u{0}nonsense").unwrap();
    assert_eq!(use_of(), (0, 2), "nothing is known of the entries");
    assert_eq!(use_of(), (2, 0), "warm again");
}

#[test]
fn the_sdks_bindings_are_those_of_the_interface() {
    let root = testkit::paths::repository();
    let parts = ["host", "plugin", "types", "worlds"]
        .map(|name| fs::read(root.join(format!("wit/v1/{name}.wit"))).unwrap());
    let line = format!("// wit {}", anabranch::plugin::artifact::sha256(&parts.concat()));
    let generated = fs::read_to_string(root.join("plugins/sdk-rust/src/generated.rs")).unwrap();
    assert!(
        generated.contains(&line),
        "wit/v1 changed: renew plugins/sdk-rust/src/generated.rs as its head says ({line})"
    );
}
