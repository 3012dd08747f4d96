//! Golden errors, and what a whole config comes to.

use std::{fs, path::Path, time::Duration};

use super::*;
use crate::{
    plugin::grants::{Capability, Grants},
    sink::SinkSettings,
};

/// Each `tests/golden/config/NAME.toml` gives exactly the error in `NAME.err`. With `UPDATE_GOLDEN` set, the
/// errors are written instead, to be read in the diff.
#[test]
fn c093_golden_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/config");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_name().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let error = parse(name, &text, &user).expect_err(&format!("{name:?} has an error"));
        let said = format!("{error}\n");
        let golden = path.with_extension("err");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&golden).unwrap_or_default(), "{}", golden.display());
        seen += 1;
    }
    assert!(seen >= 20, "only {seen} golden files");
}

/// An environment in which a config without `url` connects as somebody.
fn user(name: &str) -> Option<std::ffi::OsString> {
    (name == "USER").then(|| "ada".into())
}

const FULL: &str = r#"
[source]
url = "postgres://app:${PASSWORD}@db.example/shop"
slot = "1shop_2"
publication = "Shop Pub"
manage_publication = false
column_lists = false
purge_on_repair = true
failover_slot = false
status_interval = "5s"
silence_limit = "2m"
heartbeat_interval = "1m"

[plugins]
dir = "wasm"
cache_dir = "/var/cache/shop"
memory_limit = "64MiB"
call_deadline = "2s"
total_memory = "2GiB"
max_documents = 7
log_lines = 0
max_output = "1MiB"
instances = 2

[plugins.product-search]
config = { token = "${TOKEN}", language = "en", empty = "" }
rederive = { patch = false }
memory_limit = "256MiB"

[sink.search]
kind = "sqlite"
path = "search.db"

[sink.hook]
kind = "http"
url = "https://hooks.example/${TOKEN}"
headers = { authorization = "Bearer ${TOKEN}" }
secret = ["${PASSWORD}", "whsec_b2xk"]
gzip = true
timeout = "5s"

[sink.out]
kind = "stdout"

[[map]]
name = "products"
table = 'Shop."Order Items"'
transform = "product-search"
sink = "search"
destination = "products"
version = "2"
auto_backfill = false
auto_backfill_on_version_change = false
purge_on_change = true
on_failure = "halt"
reread = false

[backfill]
chunk_size = 1
max_chunk_bytes = "1MiB"
prefetch_bytes = "4MiB"
max_concurrent = 2
statement_timeout = "90s"

[pipeline]
batch_rows = 10
batch_bytes = "64KiB"
queue_bytes = "1MiB"
streaming = false
spool_memory = "2MiB"
spool_limit = "3GiB"
spool_dir = "large"

[http]
listen = "[::1]:9200"

[log]
format = "json"
level = "debug"
"#;

fn environment(name: &str) -> Option<std::ffi::OsString> {
    match name {
        "PASSWORD" => Some("marker-password".into()),
        "TOKEN" => Some("marker-token".into()),
        "HOME" => Some("/home/ada".into()),
        "USER" => Some("ada".into()),
        _ => None,
    }
}

#[test]
fn every_key_has_its_effect() {
    let config = parse("etc/anabranch.toml", FULL, &environment).unwrap();
    let password = "postgres://app:marker-password@db.example/shop";
    assert_eq!(config.source.connect, crate::postgres::ConnectSettings::parse(password, |_| None).unwrap());
    assert_eq!((config.source.slot.as_str(), config.source.publication.as_str()), ("1shop_2", "Shop Pub"));
    assert!(!config.source.manage_publication && config.source.purge_on_repair);
    assert!(!config.source.failover_slot);
    assert_eq!(config.source.status_interval, Duration::from_secs(5));
    assert_eq!(config.source.silence_limit, Duration::from_secs(120));
    assert_eq!(config.source.heartbeat_interval, Duration::from_secs(60));
    assert_eq!(config.plugins.dir, Path::new("etc/wasm"));
    assert_eq!(config.plugins.cache_dir, Path::new("/var/cache/shop"));
    let limits = PluginLimits {
        memory: 64 << 20,
        call_deadline: Duration::from_secs(2),
        max_output: 1 << 20,
        max_documents: 7,
        log_lines: 0,
        instances: 2,
    };
    assert_eq!(config.plugins.limits, limits);
    assert_eq!(config.plugins.host_settings().total_memory, 2 << 30);
    let plugin = config.plugins.of("product-search");
    assert_eq!(plugin.limits, PluginLimits { memory: 256 << 20, ..limits.clone() });
    assert_eq!(plugin.config["token"].expose(), "marker-token");
    assert_eq!(plugin.config["empty"].expose(), "");
    assert!(!plugin.rederive_patch);
    assert_eq!(config.plugins.of("other").limits, limits);
    let SinkSettings::Sqlite(sqlite) = &config.sinks["search"] else { panic!() };
    assert_eq!(sqlite.path, Path::new("etc/search.db"));
    let SinkSettings::Http(http) = &config.sinks["hook"] else { panic!() };
    assert_eq!(http.headers[0].1.expose(), "Bearer marker-token");
    assert_eq!((http.secrets.len(), http.gzip, http.timeout), (2, true, Duration::from_secs(5)));
    let SinkSettings::Jsonl(out) = &config.sinks["out"] else { panic!() };
    assert_eq!(out.path, Path::new("-"));
    let map = &config.maps[0];
    assert_eq!(map.table.as_ref().unwrap().table, "Order Items");
    assert!(!map.policy.auto_backfill && !map.policy.auto_backfill_on_version_change);
    assert!(map.policy.purge_on_change);
    assert_eq!((config.backfill.chunk_size, config.backfill.max_concurrent), (1, 2));
    assert_eq!(config.backfill.statement_timeout, Duration::from_secs(90));
    assert_eq!(config.pipeline.queue_bytes, 1 << 20);
    let pipeline = &config.pipeline;
    assert_eq!((pipeline.streaming, pipeline.spool_memory, pipeline.spool_limit), (false, 2 << 20, 3 << 30));
    assert_eq!(pipeline.spool_dir, Path::new("etc/large"));
    assert_eq!(config.http.listen, Some("[::1]:9200".parse().unwrap()));
    assert_eq!((config.log.format, config.log.level), (LogFormat::Json, LogLevel::Debug));
}

#[test]
fn a_short_config_is_enough() {
    let config = parse("anabranch.toml", "[sink.s]\nkind = \"null\"\n", &environment).unwrap();
    assert_eq!(config.source.slot, "anabranch");
    assert!(config.source.manage_publication && config.source.failover_slot);
    assert_eq!(config.plugins.dir, Path::new("./plugins"));
    assert!(config.plugins.cache_dir.starts_with("/home/ada"));
    assert_eq!(config.backfill.chunk_size, 5000);
    assert!(config.pipeline.streaming);
    assert_eq!(config.pipeline.spool_dir, Path::new("/home/ada/.cache/anabranch/spool"));
    assert_eq!(config.log.level, LogLevel::Info);
    assert_eq!(config.http.listen, None, "nobody listens unless it is asked for");
    let listening = parse("anabranch.toml", "[sink.s]\nkind = \"null\"\n[http]\n", &user).unwrap();
    assert_eq!(listening.http.listen, Some("127.0.0.1:9187".parse().unwrap()));
    let homeless = parse("anabranch.toml", "[sink.s]\nkind = \"null\"\n", &user).unwrap();
    assert_eq!(homeless.plugins.cache_dir, Path::new("./plugins/.cache"));
    assert_eq!(homeless.pipeline.spool_dir, Path::new("./.spool"));
}

#[test]
fn c093_a_byte_order_mark_is_no_error() {
    assert!(parse("anabranch.toml", "\u{feff}[sink.s]\nkind = \"null\"\n", &user).is_ok());
}

#[test]
fn c096_no_secret_is_shown() {
    let config = parse("anabranch.toml", FULL, &environment).unwrap();
    assert!(!format!("{config:?} {config:#?}").contains("marker-"));
    // A secret in the wrong place: the message quotes what was typed, not what it stood for.
    let misplaced = "[source]\nslot = \"${PASSWORD}\"\nsilence_limit = \"${PASSWORD}\"\n[sink.s]\nkind = \
                     \"${TOKEN}\"\n[[map]]\ntransform = \"p\"\nsink = \"${TOKEN}\"\ntable = \"${TOKEN} x\"\n\
                     [log]\nlevel = \"${TOKEN}\"\n";
    let error = parse("anabranch.toml", misplaced, &environment).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("marker-"), "{error}");
    assert_eq!(error.problems.len(), 6, "{error}");
}

#[test]
fn a_config_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anabranch.toml");
    assert!(load(&path).unwrap_err().to_string().contains("anabranch.toml: cannot be read: "));
    fs::write(&path, b"# fine\n\xff\n").unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("is not UTF-8: see line 2"));
}

mod arbitrary {
    use proptest::prelude::*;

    proptest! {
        /// No text makes the reader panic, and an error always has a problem to show.
        #[test]
        fn no_text_is_too_odd(text in r#"(\[{1,2}(source|sink\.a|map|plugins\.x|log)\]{1,2}\n|(url|kind|slot|config|dir) = ("[a-z$\{\}é]*"|[0-9]{1,20}|\{a = "b"\}|\[\])\n|.|\n){0,12}"#) {
            if let Err(error) = super::parse("x", &text, &super::user) {
                prop_assert!(!error.problems.is_empty());
            }
        }
    }
}

#[test]
fn nothing_is_granted_by_itself() {
    let text = "[sink.a]\nkind = \"null\"\n[plugins.p]\ninstances = 1\n";
    let config = parse("x", text, &user).unwrap();
    assert_eq!(config.plugins.of("p").grants, Grants::default());
    assert_eq!(config.plugins.of("other").grants, Grants::default());
    let granted = format!(
        "{text}[plugins.p.grants]\nhttp = [\"https://Search.example.com\"]\nquery = true\nmetrics = false\n\
         headers = {{ \"https://search.example.com:443\" = {{ Authorization = \"Bearer ${{USER}}\" }} }}\n"
    );
    let config = parse("x", &granted, &user).unwrap();
    assert!(!format!("{config:?}").contains("Bearer"), "a header is a secret");
    let grants = config.plugins.of("p").grants;
    let http = grants.http.unwrap();
    assert_eq!(
        http.origins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["https://search.example.com:443"]
    );
    assert!(!http.private_addresses);
    let headers: Vec<_> =
        http.headers.values().flatten().map(|(name, value)| (name.as_str(), value.expose())).collect();
    assert_eq!(headers, [("authorization", "Bearer ada")]);
    assert!(grants.query.is_some() && grants.state.is_none() && grants.metrics.is_none());
    assert!(config.plugins.host_settings().grants["p"].has(Capability::Http));
    let asked =
        format!("{text}[plugins.p.grants]\nquery = true\nquery_url = \"postgres://asker:secret@h/d\"\n");
    let config = parse("x", &asked, &user).unwrap();
    assert_eq!(config.plugins.of("p").query_connect.unwrap().user(), "asker");
    let error = parse("x", &asked.replace("query = true\n", ""), &user).unwrap_err().to_string();
    assert!(error.contains("`query = true`") && !error.contains("secret"), "{error}");
}
