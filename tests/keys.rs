//! Backfills by every ordinary kind of key, through the binary: chunks that come out even, empty tables, keys
//! that change during the run, a kill in the middle, and tables that are altered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use testkit::{Database, Host, guests::Guest, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
const DEADLINE: Duration = Duration::from_secs(90);
/// Rows of a table: an exact multiple of the chunk size.
const ROWS: u32 = 40;

/// Table, type of the key, the key of row `n` in SQL. Every one of them is another order than that of `n`, and
/// of the text, where the type has such an order.
const KEYS: &[(&str, &str, &str)] = &[
    ("k_int", "int", "1000 - n * 7"),
    ("k_int8", "bigint", "9007199254740993 + n * (case when n % 2 = 0 then 1 else -1 end)"),
    ("k_text", "text", "case n % 3 when 0 then 'é' when 1 then 'Z' else '\"a\\,' end || n"),
    ("k_c", "text collate \"C\"", "case n % 3 when 0 then 'b' when 1 then 'A' else 'a ' end || n"),
    ("k_locale", "text collate \"C.utf8\"", "case n % 3 when 0 then 'ß' when 1 then 'A' else 'a' end || n"),
    ("k_icu", "text collate \"und-x-icu\"", "case n % 3 when 0 then 'B' when 1 then 'a' else 'á' end || n"),
    ("k_char", "char(6)", "'r' || n"),
    ("k_uuid", "uuid", "md5(n::text)::uuid"),
    ("k_date", "date", "date '0001-03-01 BC' + n * 700"),
    ("k_tstz", "timestamptz", "timestamptz '9999-12-31 23:59:59.999999+00' + n * interval '1 day'"),
    ("k_numeric", "numeric", "(n - 20) * 1.10"),
    ("k_inet", "inet", "inet '10.0.0.250' + n"),
    ("k_bytea", "bytea", "decode(lpad(to_hex(n * 97 % 256), 2, '0') || '00ff', 'hex')"),
    ("k_bool_int", "bool, k2 int", "n % 2 = 0, n"),
    ("k_enum", "mood", "(enum_range(null::mood))[n]"),
    ("k_enum_int", "mood, k2 int", "(enum_range(null::mood))[1 + n % 3], -n"),
    ("k_interval", "interval", "n * interval '1 hour'"),
    ("k_citext", "citext", "case n % 2 when 0 then 'B' else 'a' end || n"),
    ("k_varchar", "varchar(20)", "case n % 2 when 0 then 'NULL' else '\\N' end || n"),
    ("k_domain", "d_d_int", "n * 3"),
    ("k_float", "float8", "case n when 1 then 'NaN' when 2 then '-Infinity' else (n - 20) * 0.1 end::float8"),
    ("k_real", "real", "n * 0.1"),
    ("k_special", "numeric(8,2)", "case n when 1 then 'NaN' else (20 - n) * 1.1 end::numeric"),
    (
        "k_ts",
        "timestamp",
        "case n when 1 then 'infinity' when 2 then '-infinity' else timestamp '0001-01-02' - n * interval '9 h' end::timestamp",
    ),
    ("k_time", "time", "time '00:00' + n * interval '17 min'"),
    ("k_array", "text[]", "array['a,b' || n, null, '\"']"),
    ("k_range", "int4range", "int4range(-n, n)"),
    ("k_row", "pair", "row(n % 5, 'x, \"' || n)::pair"),
    ("k_lsn", "pg_lsn", "('0/' || to_hex(n * 1000))::pg_lsn"),
    ("k_mac", "macaddr", "('08:00:2b:01:02:' || lpad(to_hex(200 - n), 2, '0'))::macaddr"),
    ("k_bit", "varbit", "n::bit(12)::varbit"),
    ("k_name", "name", "'Z' || n"),
    ("k_oid", "oid", "(4294967295 - n)::oid"),
    ("k_money", "money", "(n - 10)::money"),
    ("k_jsonb", "jsonb", "jsonb_build_object('a', n * 1.10)"),
    ("k_empty", "text", "case n when 5 then '' else chr(n + 1) || E'\\n\\t' end"),
    ("k_odd", "\"Odd \"\" Mood\"", "(enum_range(null::\"Odd \"\" Mood\"))[n]"),
    ("k_ltree", "ltree", "('a.b' || n)::ltree"),
    ("k_three_int", "date, k2 int", "date '2024-01-01' + n % 3, n"),
];

/// Labels against the order of the alphabet.
fn types() -> String {
    let labels: Vec<_> = (0..60).rev().map(|n| format!("'m{n:02}'")).collect();
    let labels = labels.join(", ");
    format!(
        "create extension citext; create extension ltree; create type mood as enum ({labels}); \
         create type \"Odd \"\" Mood\" as enum ({labels}); create type pair as (a int, b text); \
         create domain d_int as int; create domain d_d_int as d_int;"
    )
}

fn create((table, kind, key): &(&str, &str, &str), rows: u32) -> String {
    let columns = if kind.contains("k2") { "k, k2" } else { "k" };
    format!(
        "create table {table} (k {kind}, v int, primary key ({columns})); \
         insert into {table} ({columns}, v) select {key}, n from generate_series(1, {rows}) n; "
    )
}

/// A host with the echo mapped on some tables, documents of a table in a destination of its name.
struct Bench {
    database: Database,
    host: Host,
    tables: Vec<String>,
}

impl Bench {
    async fn new(setup: &str, tables: &[&str], chunk_size: u32, echo: &Guest) -> Self {
        let database = testkit::shared().unwrap().create_database().await.unwrap();
        database.execute(setup).await.unwrap();
        let host = Host::new(BINARY).unwrap();
        let (name, url) = (&database.name, &database.url);
        let mut config = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             [backfill]\nchunk_size = {chunk_size}\nmax_concurrent = 2\n\
             [sink.s]\nkind = \"sqlite\"\npath = \"s.db\"\n"
        );
        for table in tables {
            write!(
                config,
                "[[map]]\ntable = \"{table}\"\ntransform = \"echo-json\"\ndestination = \"{table}\"\n"
            )
            .unwrap();
        }
        host.config(&config).unwrap();
        tokio::task::block_in_place(|| host.plugin("echo-json", echo)).unwrap();
        Self { database, host, tables: tables.iter().map(ToString::to_string).collect() }
    }

    /// Id to document of a destination; deletes are echoed by the fixture and left out here.
    fn documents(&self, table: &str) -> anyhow::Result<BTreeMap<String, Value>> {
        let path = self.host.path("s.db");
        if !path.exists() {
            return Ok(BTreeMap::new());
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        let known = "select count(*) from sqlite_master where type = 'table' and name = ?1";
        if connection.query_row(known, [table], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(BTreeMap::new());
        }
        let mut statement = connection.prepare(&format!("select id, document from \"{table}\""))?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let mut documents = BTreeMap::new();
        for row in rows {
            let (id, document) = row?;
            let document: Value = serde_json::from_str(&document)?;
            if document["operation"] != "delete" {
                documents.insert(id, document);
            }
        }
        Ok(documents)
    }

    fn count(&self) -> anyhow::Result<usize> {
        self.tables.iter().map(|table| self.documents(table).map(|found| found.len())).sum()
    }

    /// Keys and values of `v`, as the source has them.
    async fn source(&self, table: &str) -> BTreeSet<(String, String)> {
        let client = self.database.connect().await.unwrap();
        client.batch_execute("set timezone = 'UTC'; set intervalstyle = 'iso_8601'").await.unwrap();
        let query = format!("select format('%s', k), coalesce(v::text, 'null') from {table}");
        let rows = client.query(&query, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Waits until the destination of every table has exactly the rows of the source.
    async fn settle(&mut self) {
        for table in self.tables.clone() {
            let expected = self.source(&table).await;
            let mut last = BTreeSet::new();
            let composite = table.ends_with("_int");
            let waited = wait_until(&format!("{table} to be equal"), DEADLINE, async || {
                let documents = self.documents(&table)?;
                let cells = documents.iter().map(|(id, document)| {
                    let key = if composite { text(&document["row"]["k"]) } else { id.clone() };
                    (key, document["row"]["v"].to_string())
                });
                last = cells.collect();
                Ok(last == expected && documents.len() == expected.len())
            })
            .await;
            if let Err(error) = waited {
                let missing: Vec<_> = expected.difference(&last).take(5).collect();
                let extra: Vec<_> = last.difference(&expected).take(5).collect();
                panic!("{error:#}: missing {missing:?}, extra {extra:?}\n{}", self.host.log_tail());
            }
        }
    }

    /// Waits until all backfills are over, and gives their rows by entity.
    async fn complete(&mut self) -> BTreeMap<String, u64> {
        let mut rows = BTreeMap::new();
        let wanted = self.tables.len();
        let waited = wait_until("the backfills to be complete", DEADLINE, async || {
            let status = self.host.status()?;
            let runs = status["backfills"].as_array().cloned().unwrap_or_default();
            let done: Vec<_> = runs.iter().filter(|run| run["status"] == "complete").collect();
            rows = done
                .iter()
                .map(|run| (text(&run["entity"]), run["rows"].as_u64().unwrap_or_default()))
                .collect();
            let built = status["mappings"].as_array().is_some_and(|mappings| {
                mappings.len() == wanted
                    && mappings.iter().all(|mapping| mapping["built"] == mapping["generation"])
            });
            Ok(built)
        })
        .await;
        if let Err(error) = waited {
            panic!("{error:#}\n{:#}\n{}", self.host.status().unwrap(), self.host.log_tail());
        }
        rows
    }
}

/// As Postgres writes it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "t".to_owned(),
        Value::Bool(false) => "f".to_owned(),
        other => other.to_string(),
    }
}

fn echo() -> Guest {
    Guest::new("plugins/fixtures/echo-json")
}

fn all_keys() -> (String, Vec<&'static str>) {
    let setup: String = KEYS.iter().map(|key| create(key, ROWS)).collect();
    (types() + &setup, KEYS.iter().map(|key| key.0).collect())
}

/// Changes every table: a key moves behind the last and one before the first, rows come, go and change.
fn changes() -> String {
    let mut sql = String::new();
    for (table, kind, key) in KEYS {
        let columns = if kind.contains("k2") { "(k, k2)" } else { "k" };
        let insert = if kind.contains("k2") { "k, k2, v" } else { "k, v" };
        write!(
            sql,
            "update {table} set {columns} = (select {key} from (values (45)) x(n)) where v = 3; \
             delete from {table} where v = 7; update {table} set v = v + 1000 where v in (1, 20, 39); \
             insert into {table} ({insert}) select {key}, 50 from (values (50)) x(n); "
        )
        .unwrap();
    }
    sql
}

#[tokio::test(flavor = "multi_thread")]
async fn c025_every_kind_of_key_with_changes_and_a_kill_in_the_middle() {
    let (setup, tables) = all_keys();
    let mut bench = Bench::new(&setup, &tables, 4, &echo()).await;
    bench.host.start().unwrap();
    let total = tables.len() * ROWS as usize;
    let some = |bench: &Bench, least: usize| bench.count().map(|count| count >= least);
    wait_until("a third to be there", DEADLINE, async || some(&bench, total / 3)).await.unwrap();
    bench.host.kill().unwrap();
    assert!(bench.count().unwrap() < total, "it was killed in the middle");
    bench.database.execute(&changes()).await.unwrap();
    bench.host.start().unwrap();
    bench.database.execute("update k_int set k = k - 5000 where v % 2 = 0").await.unwrap();
    bench.complete().await;
    bench.settle().await;
    assert!(bench.host.terminate(DEADLINE).unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn c067_border_cases_of_chunks_end() {
    let setup = "create table empty (k int primary key, v int); \
                 create table exact (k int primary key, v int); insert into exact select n, n from generate_series(1, 12) n; \
                 create table one (k int primary key, v int); insert into one values (1, 1)";
    for chunk_size in [1, 4] {
        let mut bench = Bench::new(setup, &["empty", "exact", "one"], chunk_size, &echo()).await;
        bench.host.start().unwrap();
        let rows = bench.complete().await;
        bench.settle().await;
        let expected = [("public.empty", 0), ("public.exact", 12), ("public.one", 1)];
        assert_eq!(rows, expected.map(|(name, rows)| (name.to_owned(), rows)).into(), "{chunk_size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c067_rows_that_are_all_updated_within_their_windows() {
    let setup = "create table hot (k int primary key, v int); \
                 insert into hot select n, 0 from generate_series(1, 300) n";
    let mut bench = Bench::new(setup, &["hot"], 10, &echo()).await;
    let client = bench.database.connect().await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let updates = tokio::spawn(async move {
        let mut stopped = stopped;
        while stopped.try_recv().is_err() {
            client.batch_execute("update hot set v = v + 1").await.unwrap();
        }
    });
    bench.host.start().unwrap();
    bench.complete().await;
    stop.send(()).unwrap();
    updates.await.unwrap();
    bench.settle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c067_a_transform_that_wants_no_row() {
    let setup =
        "create table t (k int primary key, v int); insert into t select n, n from generate_series(1, 12) n";
    let mut bench = Bench::new(setup, &["t"], 4, &echo()).await;
    let config =
        fs::read_to_string(bench.host.path("anabranch.toml")).unwrap().replace("echo-json", "hostile");
    bench.host.config(&(config + "[plugins.hostile]\nconfig = { behave = \"delete\" }\n")).unwrap();
    fs::remove_file(bench.host.path("plugins/echo-json.wasm")).unwrap();
    let hostile = Guest::new("plugins/fixtures/hostile");
    tokio::task::block_in_place(|| bench.host.plugin("hostile", &hostile)).unwrap();
    bench.host.start().unwrap();
    assert_eq!(bench.complete().await.get("public.t"), Some(&12));
    assert_eq!(bench.documents("t").unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c043_a_key_renamed_during_its_backfill() {
    let setup = "create table t (id int primary key, v int); insert into t select n, n from generate_series(1, 200) n";
    let mut bench = Bench::new(setup, &["t"], 2, &echo()).await;
    bench.host.start().unwrap();
    wait_until("the backfill to be on its way", DEADLINE, async || bench.count().map(|count| count > 10))
        .await
        .unwrap();
    bench.database.execute("alter table t rename column id to k").await.unwrap();
    bench.complete().await;
    bench.settle().await;
    bench.database.execute("update t set k = 1000 where k = 1; delete from t where k = 2").await.unwrap();
    bench.settle().await;
}

/// What is streamed later is of before: where only the catalogue tells the key, it has other names by then.
#[tokio::test(flavor = "multi_thread")]
async fn c043_a_key_renamed_while_nobody_looked() {
    renamed_late("", [1, 1]).await;
}

/// Where nothing is known of before, either, the tables are built again, once.
#[tokio::test(flavor = "multi_thread")]
async fn c043_a_key_that_nothing_tells_is_built_again() {
    renamed_late("update anabranch.run set cursor = null; ", [2, 2]).await;
}

async fn renamed_late(forget: &str, generations: [i64; 2]) {
    let setup = "create table t (id int primary key, v int); alter table t replica identity full; \
                 create table lines_int (pos int, k int, v int, primary key (k, pos)); \
                 insert into t select n, n from generate_series(1, 10) n; \
                 insert into lines_int select 100 + n, n, n from generate_series(1, 10) n";
    let mut bench = Bench::new(setup, &["t", "lines_int"], 4, &echo()).await;
    bench.host.start().unwrap();
    bench.complete().await;
    bench.host.kill().unwrap();
    let late = "insert into t values (11, 11); update t set v = 20 where id = 2; delete from t where id = 3; \
                insert into lines_int values (111, 11, 11); update lines_int set v = 20 where k = 2; \
                delete from lines_int where k = 3";
    bench.database.execute(&format!("{forget}{late}")).await.unwrap();
    // So that it is described twice.
    bench.database.execute("analyze t; analyze lines_int; update t set v = 50 where id = 5").await.unwrap();
    bench
        .database
        .execute("alter table t rename id to k; alter table lines_int rename pos to position")
        .await
        .unwrap();
    bench.host.start().unwrap();
    bench.complete().await;
    bench.settle().await;
    bench
        .database
        .execute("update t set v = 40 where k = 4; update lines_int set v = 40 where k = 4")
        .await
        .unwrap();
    bench.settle().await;
    let status = bench.host.status().unwrap();
    let found: Vec<_> =
        status["mappings"].as_array().unwrap().iter().map(|mapping| mapping["generation"].clone()).collect();
    assert_eq!(found, generations, "{status:#}\n{}", bench.host.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn c021_tables_of_the_same_name_in_two_schemas() {
    let setup = "create schema a; create schema b; \
                 create table a.items (k int primary key, v int); create table b.items (k int primary key, v int); \
                 insert into a.items values (1, 10); insert into b.items values (1, 20), (2, 21)";
    let mut bench = Bench::new(setup, &["a.items", "b.items"], 4, &echo()).await;
    bench.host.start().unwrap();
    bench.complete().await;
    bench.settle().await;
    let more =
        "update a.items set v = 11; insert into b.items values (3, 22); delete from b.items where k = 1";
    bench.database.execute(more).await.unwrap();
    bench.settle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c033_identity_by_an_index_that_is_not_the_key() {
    let setup = "create table t (id int primary key, k text not null, v int not null, rest text not null); \
                 create unique index t_k on t (k); alter table t replica identity using index t_k; \
                 insert into t select n, 'k' || n, n, 'r' from generate_series(1, 12) n";
    let mut bench = Bench::new(setup, &["t"], 4, &echo()).await;
    bench.host.start().unwrap();
    bench.complete().await;
    bench.settle().await;
    bench
        .database
        .execute("delete from t where id in (1, 2); update t set k = 'moved' where id = 3")
        .await
        .unwrap();
    bench.settle().await;
    let documents = bench.documents("t").unwrap();
    assert_eq!(documents.get("moved").map(|document| &document["row"]["id"]), Some(&Value::from(3)));
    assert_eq!(documents.get("k3"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn c042_columns_added_and_dropped_before_the_host_reads() {
    let setup = "create table t (first text, k int primary key, v int); insert into t values ('f', 1, 1)";
    let mut bench = Bench::new(setup, &["t"], 4, &echo()).await;
    bench.host.start().unwrap();
    bench.complete().await;
    assert!(bench.host.terminate(DEADLINE).unwrap().success());
    let steps = "insert into t values ('g', 2, 2);
        alter table t add column added text not null default 'd';
        insert into t values ('h', 3, 3, 'x');
        alter table t drop column first;
        insert into t values (4, 4, 'y');";
    for step in steps.split(';').filter(|step| !step.trim().is_empty()) {
        bench.database.execute(step).await.unwrap();
    }
    bench.host.start().unwrap();
    bench.settle().await;
    let documents = bench.documents("t").unwrap();
    let row = |id: &str| documents[id]["row"].clone();
    assert_eq!(row("2"), serde_json::json!({"first": "g", "k": 2, "v": 2}));
    assert_eq!(row("3"), serde_json::json!({"first": "h", "k": 3, "v": 3, "added": "x"}));
    assert_eq!(row("4"), serde_json::json!({"k": 4, "v": 4, "added": "y"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn c043_columns_renamed_live_and_during_a_backfill() {
    let setup = "create table t (k int primary key, old text, v int); \
                 insert into t select n, 'x', n from generate_series(1, 200) n";
    let mut bench = Bench::new(setup, &["t"], 2, &echo()).await;
    bench.host.start().unwrap();
    wait_until("the backfill to be on its way", DEADLINE, async || bench.count().map(|count| count > 10))
        .await
        .unwrap();
    bench.database.execute("alter table t rename column old to new").await.unwrap();
    bench.database.execute("insert into t values (500, 'live', 500)").await.unwrap();
    bench.complete().await;
    bench.settle().await;
    let documents = bench.documents("t").unwrap();
    assert_eq!(documents["500"]["row"], serde_json::json!({"k": 500, "new": "live", "v": 500}));
    // The key by another name is the same key, also to the next chunk.
    bench.database.execute("alter table t rename column k to key").await.unwrap();
    bench
        .database
        .execute("insert into t values (501, 'live', 501); delete from t where key = 500")
        .await
        .unwrap();
    let renamed = wait_until("the row under the new name", DEADLINE, async || {
        let documents = bench.documents("t")?;
        let row = documents.get("501").map(|document| document["row"].clone());
        let wanted = serde_json::json!({"key": 501, "new": "live", "v": 501});
        Ok(row == Some(wanted) && !documents.contains_key("500") && documents.len() == 201)
    });
    if let Err(error) = renamed.await {
        panic!("{error:#}\n{}", bench.host.log_tail());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c044_harmless_statements_need_no_relation_message() {
    let setup = "create table t (k int primary key, v int); insert into t values (1, 1)";
    let mut bench = Bench::new(setup, &["t"], 4, &echo()).await;
    bench.host.start().unwrap();
    bench.complete().await;
    let role = format!("owner_{}", bench.database.name);
    let harmless =
        format!("create role {role}; alter table t owner to {role}; alter table t alter v drop not null");
    bench.database.execute(&harmless).await.unwrap();
    bench.database.execute("insert into t values (2, 2)").await.unwrap();
    bench.settle().await;
}
