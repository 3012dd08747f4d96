//! Bad input through the binary: one clear error, exit code 1 or 2, nothing created, no secret in any output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use testkit::{Cluster, ClusterOptions, Database, Host, guests::Guest, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
const DEADLINE: Duration = Duration::from_secs(60);
/// Stands in every connection string; must never be said.
const SECRET: &str = "marker-secret-7f3a";

/// What would be created by a start that goes well.
const CREATED: &str = "select (
    (select count(*) from pg_replication_slots where database = current_database())
    + (select count(*) from pg_publication)
    + (select count(*) from pg_namespace where nspname = 'anabranch'))::text";

struct Case {
    host: Host,
    database: Database,
}

impl Case {
    async fn new(cluster: &Cluster, setup: &str) -> Self {
        let database = cluster.create_database().await.unwrap();
        database.execute(setup).await.unwrap();
        let host = Host::new(BINARY).unwrap();
        let case = Self { host, database };
        case.configure(&case.url("postgres", SECRET), "public.t", "");
        case
    }

    async fn shared(setup: &str) -> Self {
        Self::new(testkit::shared().unwrap(), setup).await
    }

    fn url(&self, user: &str, password: &str) -> String {
        self.database.url.replace("postgres@", &format!("{user}:{password}@"))
    }

    fn configure(&self, url: &str, table: &str, more: &str) {
        let name = &self.database.name;
        self.host
            .config(&format!(
                "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n{more}\
                 [sink.s]\nkind = \"sqlite\"\npath = \"s.db\"\n\
                 [[map]]\ntable = \"{table}\"\ntransform = \"echo-json\"\n"
            ))
            .unwrap();
    }

    fn with_echo(self) -> Self {
        let guest = Guest::new("plugins/fixtures/echo-json");
        tokio::task::block_in_place(|| self.host.plugin("echo-json", &guest)).unwrap();
        self
    }

    /// `run` at trace level ends by itself with `code`; every one of `words` is in its last error, which is told
    /// once; nothing was created and no secret told.
    async fn fails(&mut self, code: i32, words: &[&str]) {
        self.host.start_with(&["-vv"]).unwrap();
        let status = match self.host.wait_exit(DEADLINE) {
            Ok(status) => status,
            Err(error) => panic!("{error:#}\n{}", self.host.log_tail()),
        };
        let log = self.host.log();
        assert_eq!(status.code(), Some(code), "{log}");
        let errors: Vec<_> =
            log.match_indices("error: ").filter(|(at, _)| *at == 0 || log[..*at].ends_with('\n')).collect();
        assert_eq!(errors.len(), 1, "one error:\n{log}");
        let said = &log[errors[0].0..];
        for word in words {
            assert!(said.contains(word), "{word:?} is not said:\n{log}");
        }
        assert!(!said.contains("panicked") && !log.contains(SECRET), "{log}");
        self.nothing_created().await;
    }

    async fn nothing_created(&self) {
        assert_eq!(self.database.query_text(CREATED).await.unwrap(), "0");
        assert!(!self.host.path("s.db").exists());
    }
}

const TABLE: &str = "create table t (id int primary key, a text); insert into t values (1, 'x')";

#[tokio::test(flavor = "multi_thread")]
async fn c096_a_wrong_password_then_a_wal_level_that_does_not_stream() {
    let options = ClusterOptions::new()
        .setting("wal_level", "replica")
        .hba("host all locked 127.0.0.1/32 scram-sha-256");
    let cluster = tokio::task::block_in_place(|| Cluster::start(options)).unwrap();
    let mut case = Case::new(&cluster, TABLE).await.with_echo();
    case.database.execute("create role locked superuser login password 'right'").await.unwrap();
    case.configure(&case.url("locked", SECRET), "public.t", "");
    case.fails(1, &["password authentication failed", "locked"]).await;

    let mut case = Case::new(&cluster, TABLE).await.with_echo();
    case.fails(1, &["wal_level", "replica", "logical"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_slots_are_used_up() {
    let options = ClusterOptions::new().setting("max_replication_slots", "1");
    let cluster = tokio::task::block_in_place(|| Cluster::start(options)).unwrap();
    let mut case = Case::new(&cluster, TABLE).await.with_echo();
    case.database.execute("select pg_create_physical_replication_slot('other')").await.unwrap();
    case.fails(1, &["max_replication_slots"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_an_unreachable_host_is_told_and_the_wait_can_be_ended() {
    let mut case = Case::shared(TABLE).await.with_echo();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://ada:{SECRET}@127.0.0.1:{port}/shop?connect_timeout=2");
    case.configure(&url, "public.t", "");
    let check = case.host.run(&["check", "-vv"]).unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("127.0.0.1:{port}")) && !said.contains(SECRET), "{said}");

    // A server that is not there yet is waited for, aloud.
    case.host.start_with(&["-vv"]).unwrap();
    let line = case.host.wait_log(0, &format!("127.0.0.1:{port}"), DEADLINE).await.unwrap();
    assert!(line.contains("WARN") && !case.host.log().contains(SECRET), "{line}");
    assert!(case.host.terminate(DEADLINE).unwrap().success());
    case.nothing_created().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table() {
    let mut case =
        Case::shared("create schema shop; create table shop.t (id int primary key)").await.with_echo();
    case.fails(1, &["public.t", "does not exist", "shop.t"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c029_c030_tables_without_a_usable_identity() {
    let mut case = Case::shared("create table t (id int, a text)").await.with_echo();
    case.fails(1, &["public.t", "primary key", "alter table"]).await;
    let nothing = "create table t (id int primary key); alter table t replica identity nothing";
    let mut case = Case::shared(nothing).await.with_echo();
    case.fails(1, &["public.t", "NOTHING", "replica identity default"]).await;
    case.database.execute("insert into t values (1); update t set id = 2; delete from t").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c013_a_database_in_sql_ascii() {
    let cluster = testkit::shared().unwrap();
    let mut case = Case::shared(TABLE).await.with_echo();
    let name = format!("{}_ascii", case.database.name);
    case.database
        .execute(&format!("create database {name} encoding 'SQL_ASCII' template template0"))
        .await
        .unwrap();
    case.database = Database { url: cluster.url(&name), name };
    case.database.execute(&format!("{TABLE}; insert into t values (2, E'\\xff')")).await.unwrap();
    case.configure(&case.url("postgres", SECRET), "public.t", "");
    case.fails(1, &["SQL_ASCII", "UTF8"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_key_in_the_config() {
    let mut case = Case::shared(TABLE).await;
    case.configure(&case.url("postgres", SECRET), "public.t", "solt = \"x\"\n");
    case.fails(2, &["anabranch.toml:5:1", "source.solt", "did you mean `slot`"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_plugins() {
    // A component (layer 1) with one instance export, of an interface nobody knows.
    let name = b"other:thing/run@0.1.0";
    let mut other = b"\0asm\x0d\0\x01\0\x05\x03\x01\x01\0\x0b".to_vec();
    other.push(u8::try_from(name.len()).unwrap() + 6);
    other.extend([1, 0, u8::try_from(name.len()).unwrap()]);
    other.extend(name);
    other.extend([5, 0, 0]);
    let files: [(&[u8], &[&str]); 4] = [
        (b"just some text\n", &["not WebAssembly", "plugin build"]),
        (b"\0asm\x01\0\0\0", &["core module", "component"]),
        (b"", &["empty"]),
        (&other, &["other:thing/run@0.1.0"]),
    ];
    for (bytes, words) in files {
        let mut case = Case::shared(TABLE).await;
        fs::write(case.host.path("plugins/broken.wasm"), bytes).unwrap();
        case.fails(1, &[&["broken.wasm"][..], words].concat()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c071_a_failing_table_does_not_keep_the_others_from_running() {
    let setup = "create table t (id int primary key, a text); insert into t values (1, 'x'); \
                 create table locked (id int primary key, a text)";
    let mut case = Case::shared(setup).await.with_echo();
    let role = format!("reader_{}", case.database.name);
    case.database
        .execute(&format!(
            "create role {role} login replication; grant create on database {0} to {role}; \
             alter table t owner to {role}; alter table locked owner to {role}; \
             revoke select on locked from {role}",
            case.database.name
        ))
        .await
        .unwrap();
    let more = "[[map]]\ntable = \"public.locked\"\ntransform = \"echo-json\"\nsink = \"s\"\n";
    case.configure(&case.url(&role, SECRET), "public.t", more);
    case.host.start_with(&["-vv"]).unwrap();
    let good = testkit::checker::Destination::new(case.host.path("s.db"), "t");
    let there = wait_until("the good table", DEADLINE, async || Ok(good.get("1")?.is_some())).await;
    if let Err(error) = there {
        panic!("{error:#}\n{}", case.host.log_tail());
    }
    case.database.execute("insert into t values (2, 'y')").await.unwrap();
    wait_until("the good table live", DEADLINE, async || Ok(good.get("2")?.is_some())).await.unwrap();
    let status = case.host.status().unwrap();
    let mappings = status["mappings"].as_array().unwrap();
    let of = |entity: &str| mappings.iter().find(|mapping| mapping["entity"] == entity).unwrap();
    assert_eq!(of("public.t")["status"], "running", "{status:#}");
    let locked = of("public.locked");
    assert_ne!(locked["status"], "running", "{status:#}");
    let why = locked["last_error"].as_str().unwrap_or_default();
    assert!(why.contains("locked") && why.contains("grant select"), "{status:#}");
    assert!(case.host.terminate(DEADLINE).unwrap().success());
    assert!(!case.host.log().contains(SECRET));
}
