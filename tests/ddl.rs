//! DDL while the stream flows, statement by statement and inside transactions: each row is read by the description of
//! its table that was valid for it. Through the binary, against the destination that the source says is right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use testkit::{Cluster, Database, Host, guests::Guest, shared, shared_of, wait_until};
use tokio_postgres::Client;

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
const DEADLINE: Duration = Duration::from_secs(90);

/// Id to row.
type Rows = BTreeMap<String, Value>;

/// A host that echoes tables with a key `id` into destinations of their names.
struct Bench {
    cluster: &'static Cluster,
    database: Database,
    client: Client,
    host: Host,
}

impl Bench {
    /// Runs `setup`, in which `PUBLICATION` is the name of the publication: it is of the host's own making if the
    /// setup does not name it. Returns once the tables are built.
    async fn built(cluster: &'static Cluster, setup: &str, tables: &[&str]) -> Self {
        let mut bench = Self::new(cluster, setup, tables).await;
        bench.host.start().unwrap();
        let wanted = tables.len();
        bench
            .until("every table to be built", async |bench| {
                let status = bench.host.status()?;
                let mappings = status["mappings"].as_array().cloned().unwrap_or_default();
                let built = |mapping: &Value| mapping["built"] == mapping["generation"];
                Ok(mappings.len() == wanted && mappings.iter().all(built))
            })
            .await;
        bench
    }

    async fn new(cluster: &'static Cluster, setup: &str, tables: &[&str]) -> Self {
        let database = cluster.create_database().await.unwrap();
        let client = database.connect().await.unwrap();
        let name = &database.name;
        client.batch_execute(&setup.replace("PUBLICATION", name)).await.unwrap();
        let host = Host::new(BINARY).unwrap();
        let managed = !setup.contains("PUBLICATION");
        let mut config = format!(
            "[source]\nurl = \"{}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             manage_publication = {managed}\n[sink.s]\nkind = \"sqlite\"\npath = \"s.db\"\n",
            database.url
        );
        for table in tables {
            write!(
                config,
                "[[map]]\ntable = \"{table}\"\ntransform = \"echo-json\"\ndestination = \"{table}\"\n"
            )
            .unwrap();
        }
        host.config(&config).unwrap();
        let echo = Guest::new("plugins/fixtures/echo-json");
        tokio::task::block_in_place(|| host.plugin("echo-json", &echo)).unwrap();
        Self { cluster, database, client, host }
    }

    async fn sql(&self, statements: &str) {
        let statements = statements.replace("PUBLICATION", &self.database.name);
        self.client
            .batch_execute(&statements)
            .await
            .unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// How often a table was built, or is to be.
    async fn generation(&self, table: &str) -> i64 {
        let query = "select generation from anabranch.mapping where entity = 'public.' || $1";
        self.client.query_one(query, &[&table]).await.unwrap().get(0)
    }

    /// What the destination of a table has; deletes are echoed by the fixture and left out here.
    fn rows(&self, table: &str) -> anyhow::Result<Rows> {
        let path = self.host.path("s.db");
        if !path.exists() {
            return Ok(Rows::new());
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        let known = "select count(*) from sqlite_master where type = 'table' and name = ?1";
        if connection.query_row(known, [table], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(Rows::new());
        }
        let mut statement = connection.prepare(&format!("select id, document from \"{table}\""))?;
        let found =
            statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let mut rows = Rows::new();
        for entry in found {
            let (id, document) = entry?;
            let mut document: Value = serde_json::from_str(&document)?;
            if document["operation"] != "delete" {
                rows.insert(id, document["row"].take());
            }
        }
        Ok(rows)
    }

    async fn until(&mut self, what: &str, holds: impl AsyncFn(&Self) -> anyhow::Result<bool>) {
        let waited = wait_until(what, DEADLINE, async || holds(self).await).await;
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.host.log_tail()));
    }

    /// Waits until the destination of a table has exactly these rows.
    async fn is(&mut self, table: &str, expected: Rows) {
        let waited = wait_until(table, DEADLINE, async || Ok(self.rows(table)? == expected)).await;
        if let Err(error) = waited {
            let found = self.rows(table).unwrap();
            panic!("{error:#}\nexpected {expected:?}\nfound    {found:?}\n{}", self.host.log_tail());
        }
    }

    /// The same, for the rows that a query has: of integers, booleans and texts, since others differ in JSON.
    async fn equals(&mut self, table: &str, query: &str) {
        self.equals_by(table, "id", query).await;
    }

    /// The same, where another column is the key.
    async fn equals_by(&mut self, table: &str, key: &str, query: &str) {
        let query = format!("select {key}::text, to_jsonb(q)::text from ({query}) as q");
        let rows = self.client.query(&query, &[]).await.unwrap();
        let row = |row: &tokio_postgres::Row| (row.get(0), serde_json::from_str(row.get(1)).unwrap());
        self.is(table, rows.iter().map(row).collect()).await;
    }
}

fn rows(rows: Value) -> Rows {
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| (row["id"].to_string(), row.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c042_c043_columns_that_come_go_and_change_inside_one_transaction() {
    let setup = "create table t (id int primary key, a int, b text)";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t"]).await;
    bench
        .sql(
            "begin; insert into t values (1, 1, 'x');
             alter table t add column c bool not null default true; insert into t values (2, 2, 'x', false);
             alter table t alter column a type text using 'a' || a; insert into t values (3, 'three', 'x', true);
             alter table t rename column b to d; insert into t values (4, 'four', 'y', true);
             savepoint s; alter table t drop column d; insert into t values (5, 'gone', true); rollback to s;
             insert into t values (6, 'six', 'z', true);
             alter table t drop column a; insert into t values (7, 'w', false); commit",
        )
        .await;
    let expected = json!([
        {"id": 1, "a": 1, "b": "x"},
        {"id": 2, "a": 2, "b": "x", "c": false},
        {"id": 3, "a": "three", "b": "x", "c": true},
        {"id": 4, "a": "four", "d": "y", "c": true},
        {"id": 6, "a": "six", "d": "z", "c": true},
        {"id": 7, "d": "w", "c": false},
    ]);
    bench.is("t", rows(expected)).await;
    // An update brings the row as it is now.
    bench.sql("update t set c = not c").await;
    bench.equals("t", "table t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_renamed_away_and_back_misses_nothing() {
    let setup =
        "create table t (id int primary key, v text); create table other (id int primary key, v text);
                 insert into t select n, 'x' from generate_series(1, 20) n";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t", "other"]).await;
    bench.sql("alter table t rename to elsewhere; update elsewhere set v = 'away' where id <= 5").await;
    bench.sql("insert into other values (1, 'goes on')").await;
    bench.equals("other", "table other").await;
    bench.sql("alter table elsewhere rename to t; update t set v = 'back' where id in (5, 6)").await;
    bench.equals("t", "table t").await;
    bench.sql("delete from t where id = 7; insert into t values (21, 'new')").await;
    bench.equals("t", "table t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c030_c033_replica_identities_that_change_while_it_runs() {
    let setup = "create table t (id int primary key, k text not null, v int not null, big text);
                 create unique index t_k on t (k); alter table t alter big set storage external;
                 insert into t select n, 'k' || n, n, repeat('x', 5000) from generate_series(1, 30) n";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t"]).await;
    let changes = |first: u32| {
        format!(
            "update t set v = v + 1 where id = {first}; update t set id = id + 100 where id = {};
             update t set k = k || '!' where id = {}; delete from t where id = {}",
            first + 1,
            first + 2,
            first + 3
        )
    };
    bench.sql(&changes(1)).await;
    bench.sql(&format!("alter table t replica identity full; {}", changes(5))).await;
    bench.equals("t", "table t").await;
    // Without an identity inserts arrive. In one transaction, for a table that is seen without one is taken out.
    let nothing = "begin; alter table t replica identity nothing; insert into t values (50, 'k50', 50, 'b')";
    bench.sql(&format!("{nothing}; alter table t replica identity default; {}; commit", changes(9))).await;
    bench.equals("t", "table t").await;
    // The index is the key from here on, so that every document has another id.
    bench.sql("alter table t replica identity using index t_k").await;
    bench.sql("update t set v = -1 where id = 20; delete from t where id = 21").await;
    bench.equals_by("t", "k", "table t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c037_a_truncate_stands_in_its_place() {
    let setup = "create table t (id int primary key, v text); create table child (id int primary key, t int references t);
                 insert into t select n, 'x' from generate_series(1, 20) n; insert into child values (1, 1)";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t", "child"]).await;
    bench
        .sql(
            "begin; insert into t values (21, 'before'); update t set v = 'before' where id = 1;
             insert into child values (2, 2); truncate t restart identity cascade;
             insert into t values (1, 'after'), (22, 'after'); insert into child values (3, 22); commit",
        )
        .await;
    let after = json!([{"id": 1, "v": "after"}, {"id": 22, "v": "after"}]);
    bench.is("t", rows(after)).await;
    bench.is("child", rows(json!([{"id": 3, "t": 22}]))).await;
    bench
        .sql(
            "begin; truncate child; savepoint s; truncate t cascade; rollback to s; insert into t values (23, 'z');
             commit; insert into child values (4, 23); truncate child",
        )
        .await;
    bench.equals("t", "table t").await;
    bench.is("child", Rows::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_of_a_partitioned_table_are_tables_of_their_own() {
    let setup = "create table p (id int primary key, v text) partition by range (id);
                 create table p_1 partition of p for values from (1) to (100);
                 create table p_2 partition of p for values from (100) to (200);
                 create table p_3 partition of p for values from (200) to (300);
                 insert into p select n, 'x' from generate_series(1, 299, 10) n; delete from p where id in (101, 111)";
    let mut bench = Bench::built(shared().unwrap(), setup, &["p_1", "p_2"]).await;
    bench
        .sql(
            "update p set id = id + 100 where id = 1; update p set id = id - 100 where id = 211;
             update p set v = 'y' where id in (11, 121, 221); insert into p values (99, 'z'), (299, 'z');
             delete from p where id in (21, 131, 231); truncate p_3; insert into p_1 values (98, 'direct')",
        )
        .await;
    bench.equals("p_1", "table p_1").await;
    bench.equals("p_2", "table p_2").await;
    bench.sql("truncate p; insert into p values (1, 'a'), (101, 'b')").await;
    bench.equals("p_1", "table p_1").await;
    bench.equals("p_2", "table p_2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c015_published_generated_columns_are_the_same_in_both_paths_on_18() {
    let setup =
        "create table t (id int primary key, a int, g int generated always as (a * 2) stored, b text);
                 insert into t (id, a, b) select n, n, 'x' from generate_series(1, 10) n;
                 create publication PUBLICATION for table t with (publish_generated_columns = stored)";
    let mut bench = Bench::built(shared_of(18).unwrap(), setup, &["t"]).await;
    bench.equals("t", "table t").await;
    bench.sql("insert into t (id, a, b) values (11, 11, 'y'); update t set a = 0 where id = 1").await;
    bench.sql("delete from t where id = 2; alter table t replica identity full").await;
    bench.sql("update t set a = 7 where id = 3; delete from t where id = 4").await;
    bench.equals("t", "table t").await;
    bench.sql("alter publication PUBLICATION set (publish_generated_columns = none)").await;
    bench.sql("alter table t replica identity default; update t set b = 'without'").await;
    bench.equals("t", "select id, a, b from t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c016_a_table_whose_updates_would_fail_on_18_is_not_published() {
    let setup = "create table t (id int primary key, a int, g int generated always as (a * 2) stored);
                 alter table t replica identity full; insert into t (id, a) values (1, 1);
                 create table good (id int primary key, v text)";
    let mut bench = Bench::new(shared_of(18).unwrap(), setup, &["t", "good"]).await;
    assert!(bench.cluster.major() >= 18);
    bench.host.start().unwrap();
    bench.sql("insert into good values (1, 'x')").await;
    bench.equals("good", "table good").await;
    let status = bench.host.status().unwrap();
    let mappings = status["mappings"].as_array().unwrap();
    let error =
        mappings.iter().find(|mapping| mapping["entity"] == "public.t").map(|found| &found["last_error"]);
    let error = error.and_then(Value::as_str).unwrap_or_default();
    assert!(error.contains("generated"), "{status:#}");
    bench.sql("update t set a = 2").await;
    bench.sql("alter table t replica identity default").await;
    bench.equals("t", "select id, a from t").await;
}

/// The server refuses updates and deletes of a published table without an identity: the application's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_loses_its_key_is_no_more_published_and_built_again_with_the_next() {
    let setup =
        "create table t (id int primary key, v text); create table other (id int primary key, v text);
                 insert into t select n, 'x' from generate_series(1, 20) n; insert into other values (1, 'x')";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t", "other"]).await;
    let update = "update t set v = 'keyless' where id = 1";
    let refused =
        bench.client.batch_execute(&format!("alter table t drop constraint t_pkey; {update}")).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code()), Some("55000"), "{refused}");

    bench.sql("alter table t drop constraint t_pkey").await;
    bench.sql("insert into t values (21, 'keyless'); insert into other values (2, 'goes on')").await;
    bench.until("the update", async |bench| Ok(bench.client.batch_execute(update).await.is_ok())).await;
    bench.equals("other", "table other").await;
    let waiting = "select status || ' ' || last_error from anabranch.mapping where entity = 'public.t'";
    let waits = async |bench: &Bench| {
        let state: Option<String> = bench.client.query_one(waiting, &[]).await?.get(0);
        Ok(state.is_some_and(|state| state.starts_with("refused") && state.contains("primary key")))
    };
    bench.until("the table to wait", waits).await;
    bench.sql("update t set v = 'unseen' where id = 2; update other set v = 'and on'").await;
    bench.equals("other", "table other").await;

    bench.sql("alter table t add primary key (id); update t set v = 'back' where id = 3").await;
    bench.equals("t", "table t").await;
    bench.sql("update t set v = 'streamed' where id = 4; delete from t where id = 5").await;
    bench.equals("t", "table t").await;
    assert_eq!((bench.generation("t").await, bench.generation("other").await), (2, 1));
    assert!(bench.host.is_running().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_start_leaves_no_table_published_whose_application_would_fail() {
    let setup = "create table t (id int primary key, v text); insert into t values (1, 'x')";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t"]).await;
    assert!(bench.host.terminate(DEADLINE).unwrap().success());
    let update = "update t set v = v || '!'";
    bench.sql("alter table t drop constraint t_pkey").await;
    assert!(bench.client.batch_execute(update).await.is_err());
    bench.host.start().unwrap();
    assert_eq!(bench.host.wait_exit(DEADLINE).unwrap().code(), Some(1), "{}", bench.host.log_tail());
    bench.sql(update).await;
    bench.sql("alter table t add primary key (id)").await;
    bench.host.start().unwrap();
    bench.equals("t", "table t").await;
    assert_eq!(bench.generation("t").await, 2);
}

/// What Postgres 14 remembers of a table for the life of a connection is wrong once it is a partition.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_attached_are_followed_on_14_also_while_no_host_runs() {
    let setup = "create table p (id int primary key, v text) partition by range (id);
                 create table p_1 partition of p for values from (0) to (100);
                 create table q (id int primary key, v text); create table r (id int primary key, v text);
                 insert into p values (1, 'x')";
    let mut bench = Bench::built(shared_of(14).unwrap(), setup, &["p"]).await;
    // The connection has seen the table before it is a partition.
    bench.sql("insert into q values (101, 'before'); update p set v = 'y'").await;
    bench.equals("p", "table p").await;
    bench.sql("alter table p attach partition q for values from (100) to (200)").await;
    bench.sql("update q set v = 'attached'").await;
    bench.equals("p", "table p").await;
    bench.sql("update q set v = 'streamed'; insert into q values (102, 'new')").await;
    bench.equals("p", "table p").await;
    assert_eq!(bench.generation("p").await, 2);

    // What is still to be streamed has it from before it is a partition.
    assert!(bench.host.terminate(DEADLINE).unwrap().success());
    bench.sql("insert into r values (201, 'before')").await;
    bench.sql("alter table p attach partition r for values from (200) to (300)").await;
    bench.sql("update r set v = 'attached'").await;
    bench.host.start().unwrap();
    bench.equals("p", "table p").await;
    bench.sql("update r set v = 'streamed'; insert into r values (202, 'new')").await;
    bench.equals("p", "table p").await;
    assert_eq!(bench.generation("p").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_made_and_given_away_is_no_reason_to_read_again_on_14() {
    let setup = "create table p (id int primary key, v text) partition by range (id);
                 create table p_1 partition of p for values from (0) to (100); insert into p values (1, 'x')";
    let mut bench = Bench::built(shared_of(14).unwrap(), setup, &["p"]).await;
    let edition = "select xmin::text from pg_publication";
    let before: String = bench.client.query_one(edition, &[]).await.unwrap().get(0);
    bench.sql("create table p_2 partition of p for values from (100) to (200)").await;
    bench.sql("create role \"PUBLICATION_owner\"; alter table p_2 owner to \"PUBLICATION_owner\"").await;
    bench
        .until("the publication to be touched", async |bench| {
            Ok(bench.client.query_one(edition, &[]).await?.get::<_, String>(0) != before)
        })
        .await;
    bench.sql("insert into p values (101, 'new')").await;
    bench.equals("p", "table p").await;
    assert_eq!(bench.generation("p").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_given_away_on_18_is_no_gap() {
    let setup = "create table t (id int primary key, v text); create table other (id int primary key);
                 insert into t values (1, 'x')";
    let mut bench = Bench::built(shared_of(18).unwrap(), setup, &["t", "other"]).await;
    let from = bench.host.log_length();
    bench
        .sql(
            "create role \"PUBLICATION_owner\"; alter publication \"PUBLICATION\" owner to \"PUBLICATION_owner\";
             alter table other drop constraint other_pkey",
        )
        .await;
    // It has looked.
    bench.host.wait_log(from, "primary key", DEADLINE).await.unwrap();
    bench.sql("insert into t values (2, 'y')").await;
    bench.equals("t", "table t").await;
    assert_eq!(bench.generation("t").await, 1);
    // Renamed, it is.
    bench.sql("alter publication \"PUBLICATION\" rename to away; insert into t values (3, 'z')").await;
    bench.sql("alter publication away rename to \"PUBLICATION\"").await;
    bench.until("another generation", async |bench| Ok(bench.generation("t").await > 1)).await;
    bench.equals("t", "table t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_away_is_built_again_once_whatever_comes_of_it() {
    let setup =
        "create table t (id int primary key, v text); create table other (id int primary key, v text);
                 insert into t select n, 'x' from generate_series(1, 20) n";
    let mut bench = Bench::built(shared().unwrap(), setup, &["t", "other"]).await;
    bench.sql("alter table t rename to elsewhere; update elsewhere set v = 'away' where id <= 5").await;
    for column in ["a", "b", "c"] {
        bench
            .sql(&format!("alter table elsewhere add column {column} int; update elsewhere set {column} = 1"))
            .await;
    }
    bench.sql("insert into other values (1, 'goes on')").await;
    bench.equals("other", "table other").await;
    bench.sql("alter table elsewhere rename to t").await;
    bench.sql("update t set v = 'back' where id = 6").await;
    bench.equals("t", "table t").await;
    assert_eq!(bench.generation("t").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_is_locked_does_not_stop_the_stream() {
    let setup = "create table p (id int primary key, v text) partition by range (id);
                 create table p_1 partition of p for values from (0) to (100);
                 create table p_2 partition of p for values from (100) to (200); insert into p values (101, 'x')";
    let mut bench = Bench::built(shared().unwrap(), setup, &["p"]).await;
    bench.sql("alter table p add column n int").await;
    let locker = bench.database.connect().await.unwrap();
    locker.batch_execute("begin; lock table p_1 in access exclusive mode").await.unwrap();
    bench.sql("update p_2 set n = 1").await;
    bench.is("p", rows(json!([{"id": 101, "v": "x", "n": 1}]))).await;
    locker.batch_execute("commit").await.unwrap();
}
