//! Conformance of values: every type through `anabranch run` into SQLite, by backfill and by stream, in both
//! encodings, under the settings of a well-behaved database and of a hostile one; field by field.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use serde_json::value::RawValue;
use testkit::{Cluster, ClusterOptions, Database, Host, guests::Guest, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");
const DEADLINE: Duration = Duration::from_secs(60);
const ENCODINGS: [&str; 2] = ["json", "msgpack"];

/// Types that the table needs, in the schema `public`.
const TYPES: &str = "
    create extension hstore; create extension citext; create extension ltree; create extension cube;
    create type mood as enum ('sad', 'ok', 'very happy');
    create type pair as (a int, b text, c numeric, d timestamptz);
    create domain d_hstore as hstore; create domain d_d_hstore as d_hstore;
    create domain d_int as int check (value > 0); create domain d_d_int as d_int;
    create domain d_array as numeric[]; create domain d_d_array as d_array;
    create type float_range as range (subtype = float8);
    create type nothing as enum ();";

/// Column, type, value in SQL, the value as JSON text.
const COLUMNS: &[(&str, &str, &str, &str)] = &[
    ("c_bool", "bool", "true", "true"),
    ("c_false", "bool", "false", "false"),
    ("c_int2", "int2", "-32768", "-32768"),
    ("c_int4", "int4", "2147483647", "2147483647"),
    ("c_int8", "int8", "9223372036854775807", "9223372036854775807"),
    ("c_int8_low", "int8", "-9223372036854775808", "-9223372036854775808"),
    ("c_int8_odd", "int8", "9007199254740993", "9007199254740993"),
    ("c_oid", "oid", "4294967295", "4294967295"),
    ("f4", "float4", "0.1", "0.1"),
    ("f4_large", "float4", "3.4028235e38", "3.4028235e+38"),
    ("f8", "float8", "0.1::float8 + 0.2::float8", "0.30000000000000004"),
    ("f8_small", "float8", "5e-324", "5e-324"),
    ("f8_five", "float8", "1e-5", "1e-05"),
    ("f8_zero", "float8", "'-0'", "-0"),
    ("f8_whole", "float8", "12", "12"),
    ("f8_nan", "float8", "'NaN'", r#""NaN""#),
    ("f8_inf", "float8", "'Infinity'", r#""Infinity""#),
    ("f8_minus_inf", "float8", "'-Infinity'", r#""-Infinity""#),
    ("n_7000", "numeric", "7000", r#""7000""#),
    ("n_scale", "numeric", "1.10", r#""1.10""#),
    ("n_small", "numeric", "1e-20", r#""0.00000000000000000001""#),
    (
        "n_long",
        "numeric",
        "123456789012345678901234567890123456789012345678901234567890",
        r#""123456789012345678901234567890123456789012345678901234567890""#,
    ),
    ("n_nan", "numeric", "'NaN'", r#""NaN""#),
    ("n_inf", "numeric", "'-Infinity'", r#""-Infinity""#),
    ("n_typed", "numeric(12,4)", "-0.5", r#""-0.5000""#),
    ("t_text", "text", r#"E'Zoë "x" \\ \\N \t\n\r\x01 🦀'"#, r#""Zoë \"x\" \\ \\N \t\n\r\u0001 🦀""#),
    ("t_null_word", "text", "'NULL'", r#""NULL""#),
    ("t_varchar", "varchar(10)", "'ab  '", r#""ab  ""#),
    ("t_char", "char(5)", "'ab'", r#""ab   ""#),
    ("t_citext", "citext", "'MiXed'", r#""MiXed""#),
    ("t_name", "name", "'a b'", r#""a b""#),
    ("t_one", "\"char\"", "'x'", r#""x""#),
    ("e_mood", "mood", "'very happy'", r#""very happy""#),
    ("u_uuid", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", r#""a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11""#),
    ("i_inet", "inet", "'192.168.1.5/24'", r#""192.168.1.5/24""#),
    ("i_inet6", "inet", "'2001:db8::1'", r#""2001:db8::1""#),
    ("i_cidr", "cidr", "'10.1.0.0/16'", r#""10.1.0.0/16""#),
    ("i_mac", "macaddr", "'08:00:2b:01:02:03'", r#""08:00:2b:01:02:03""#),
    ("x_xml", "xml", "'<a b=\"1\">x &amp; y</a>'", r#""<a b=\"1\">x &amp; y</a>""#),
    ("r_int", "int4range", "'[1,5]'", r#""[1,6)""#),
    ("r_empty", "int4range", "'empty'", r#""empty""#),
    ("r_num", "numrange", "'(1.10,)'", r#""(1.10,)""#),
    ("r_float", "float_range", "float_range(0.1::float8 + 0.2::float8, null)", r#""[0.30000000000000004,)""#),
    (
        "r_tstz",
        "tstzrange",
        "'[2024-01-31 12:00:00+00,2024-02-01 12:00:00+00)'",
        r#""[\"2024-01-31 12:00:00+00\",\"2024-02-01 12:00:00+00\")""#,
    ),
    ("r_date", "daterange", "'[2024-01-31,2024-02-03)'", r#""[2024-01-31,2024-02-03)""#),
    ("r_multi", "int4multirange", "'{[1,3), [5,7)}'", r#""{[1,3),[5,7)}""#),
    (
        "p_pair",
        "pair",
        "row(1, 'a \"b\", c', 1.10, '2024-01-31 12:00:00+00')::pair",
        r#""(1,\"a \"\"b\"\", c\",1.10,\"2024-01-31 12:00:00+00\")""#,
    ),
    ("v_tsvector", "tsvector", "'fat:1A cat:2 ''it''''s'':3'", r#""'cat':2 'fat':1A 'it''s':3""#),
    ("v_tsquery", "tsquery", "'fat & !cat'", r#""'fat' & !'cat'""#),
    ("l_lsn", "pg_lsn", "'16/B374D848'", r#""16/B374D848""#),
    ("m_money", "money", "'1234.50'", r#""$1,234.50""#),
    ("b_bit", "bit(4)", "B'1010'", r#""1010""#),
    ("b_varbit", "varbit", "B'101'", r#""101""#),
    ("g_point", "point", "point(0.1::float8 + 0.2::float8, -1e-5)", r#""(0.30000000000000004,-1e-05)""#),
    ("g_box", "box", "'(3,4),(1,2)'", r#""(3,4),(1,2)""#),
    ("g_path", "path", "'[(1,2),(3,4)]'", r#""[(1,2),(3,4)]""#),
    ("g_circle", "circle", "'<(1,2),3>'", r#""<(1,2),3>""#),
    ("e_ltree", "ltree", "'a.b.c'", r#""a.b.c""#),
    ("e_cube", "cube", "'(1,2),(3,4)'", r#""(1, 2),(3, 4)""#),
    ("j_path", "jsonpath", "'$.a[*] ? (@ > 1)'", r#""$.\"a\"[*]?(@ > 1)""#),
    ("d_date", "date", "'2024-01-31'", r#""2024-01-31""#),
    ("d_first", "date", "'0001-01-01'", r#""0001-01-01""#),
    ("d_last", "date", "'9999-12-31'", r#""9999-12-31""#),
    ("d_infinity", "date", "'-infinity'", r#""-infinity""#),
    ("d_bc", "date", "'0044-03-15 BC'", r#""0044-03-15 BC""#),
    ("d_10000", "date", "'10000-01-01'", r#""10000-01-01""#),
    ("d_time", "time", "'12:34:56.7'", r#""12:34:56.7""#),
    ("d_midnight", "time", "'24:00:00'", r#""24:00:00""#),
    ("d_timetz", "timetz", "'12:34:56.789+05:30'", r#""12:34:56.789+05:30""#),
    ("d_ts", "timestamp", "'2024-01-31 12:34:56.789'", r#""2024-01-31T12:34:56.789""#),
    ("d_ts_infinity", "timestamp", "'infinity'", r#""infinity""#),
    ("d_ts_bc", "timestamp", "'0044-03-15 01:02:03 BC'", r#""0044-03-15 01:02:03 BC""#),
    ("d_ts_10000", "timestamp", "'10000-01-01 00:00:00'", r#""10000-01-01 00:00:00""#),
    ("d_tstz", "timestamptz", "'2024-01-31 12:34:56.123456+05:30'", r#""2024-01-31T07:04:56.123456Z""#),
    ("d_tstz_infinity", "timestamptz", "'-infinity'", r#""-infinity""#),
    ("d_tstz_bc", "timestamptz", "'0044-03-15 01:02:03+00 BC'", r#""0044-03-15 01:02:03+00 BC""#),
    ("d_tstz_10000", "timestamptz", "'10000-01-01 00:00:00+00'", r#""10000-01-01 00:00:00+00""#),
    ("d_tstz_zone", "timestamptz", "'9999-12-31 23:30:00+00'", r#""9999-12-31T23:30:00Z""#),
    ("s_interval", "interval", "'1 year 2 months 3 days 04:05:06.7'", r#""P1Y2M3DT4H5M6.7S""#),
    ("s_negative", "interval", "'-1 day +2:03:00'", r#""P-1DT2H3M""#),
    ("s_zero", "interval", "'0'", r#""PT0S""#),
    ("y_bytea", "bytea", r"'\x00ff5c27'", r#""AP9cJw==""#),
    ("y_empty", "bytea", "''", r#""""#),
    (
        "j_json",
        "json",
        "E'{\"a\":\\n 1.0, \"a\": 1e400,\\t\"nul\": \"\\\\u0000\", \"half\": \"\\\\ud800\"}'",
        "{\"a\":\n 1.0, \"a\": 1e400,\t\"nul\": \"\\u0000\", \"half\": \"\\ud800\"}",
    ),
    ("j_null", "json", "'null'", "null"),
    (
        "j_jsonb",
        "jsonb",
        "'{\"b\":9007199254740993,\"a\":1.0,\"c\":[9223372036854775808,1.10,1e3]}'",
        r#"{"a": 1.0, "b": 9007199254740993, "c": [9223372036854775808, 1.10, 1000]}"#,
    ),
    ("j_deep", "jsonb", "('{\"x\": 1' || repeat('0', 400) || '}')::jsonb", BIG_JSON),
    ("a_int", "int[]", "'{1,NULL,3}'", "[1,null,3]"),
    ("a_nested", "int[]", "'{{1,2},{3,NULL}}'", "[[1,2],[3,null]]"),
    ("a_empty", "int[]", "'{}'", "[]"),
    ("a_bound", "int[]", "'[2:4]={1,2,3}'", r#""[2:4]={1,2,3}""#),
    (
        "a_text",
        "text[]",
        r#"array['a "q"', 'b,c', '', 'NULL', null, '\', '{}', E'line\nend']"#,
        r#"["a \"q\"","b,c","","NULL",null,"\\","{}","line\nend"]"#,
    ),
    ("a_numeric", "numeric[]", "array[0.1, 1.10, 7000, 1e-20, 'NaN']", A_NUMERIC),
    ("a_float", "float8[]", "array[0.1, 1.5, 'NaN']::float8[]", r#"[0.1,1.5,"NaN"]"#),
    ("a_bool", "bool[]", "'{t,f,NULL}'", "[true,false,null]"),
    ("a_interval", "interval[]", "'{1 day,02:00}'", r#"["P1D","PT2H"]"#),
    ("a_date", "date[]", "'{2024-01-31,infinity}'", r#"["2024-01-31","infinity"]"#),
    ("a_tstz", "timestamptz[]", "'{2024-01-31 12:00:00+00}'", r#"["2024-01-31T12:00:00Z"]"#),
    ("a_bytea", "bytea[]", r"array['\x00ff'::bytea, '']", r#"["AP8=",""]"#),
    ("a_jsonb", "jsonb[]", r#"array['{"a":1e2}'::jsonb, 'null', null]"#, r#"[{"a": 100},null,null]"#),
    ("a_uuid", "uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", A_UUID),
    ("a_box", "box[]", "'{(3,4),(1,2);(1,1),(0,0)}'", r#"["(3,4),(1,2)","(1,1),(0,0)"]"#),
    ("a_enum", "mood[]", "'{sad,very happy,NULL}'", r#"["sad","very happy",null]"#),
    ("a_domain", "d_d_int[]", "'{1,2}'", "[1,2]"),
    ("a_pair", "pair[]", "array[row(1,'x',0.10,null)::pair]", r#"["(1,x,0.10,)"]"#),
    ("a_hstore", "hstore[]", r#"array['a=>NULL,b=>""'::hstore]"#, r#"[{"a":null,"b":""}]"#),
    ("a_citext", "citext[]", "'{Ab,NULL}'", r#"["Ab",null]"#),
    ("h_hstore", "hstore", r#"'a=>NULL,b=>"",c=>"x\"y"'"#, r#"{"a":null,"b":"","c":"x\"y"}"#),
    ("h_empty", "hstore", "''", "{}"),
    ("h_domain", "d_d_hstore", r#"'a=>NULL,b=>""'"#, r#"{"a":null,"b":""}"#),
    ("h_array", "d_d_hstore[]", r#"array['a=>NULL'::d_d_hstore]"#, r#"[{"a":null}]"#),
    ("o_int", "d_d_int", "7", "7"),
    ("o_array", "d_d_array", "'{1.10,NULL}'", r#"["1.10",null]"#),
];

const A_NUMERIC: &str = r#"["0.1","1.10","7000","0.00000000000000000001","NaN"]"#;
const A_UUID: &str = r#"["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]"#;
const BIG_JSON: &str = concat!(
    r#"{"x": 1"#,
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "}"
);

/// Where MessagePack has a double, a guest writes it in its own form: the same number in other digits.
const MSGPACK: &[(&str, &str)] =
    &[("f4_large", "3.4028235e38"), ("f8_five", "1e-5"), ("f8_zero", "-0.0"), ("f8_whole", "12.0")];

/// Columns whose type takes an empty string.
const EMPTY: &[&str] = &["t_text", "t_varchar", "t_citext", "v_tsvector", "y_bytea", "h_hstore", "h_domain"];

type Row = BTreeMap<String, Box<RawValue>>;

#[derive(serde::Deserialize)]
struct Echo {
    operation: String,
    row: Option<Row>,
    old: Option<Row>,
    absent: Vec<String>,
}

/// A database with a table, a host with both echoes mapped on it.
struct Bench {
    database: Database,
    host: Host,
}

impl Bench {
    async fn new(setup: &str) -> Self {
        Self::on(testkit::shared().unwrap(), setup).await
    }

    async fn on(cluster: &Cluster, setup: &str) -> Self {
        let database = cluster.create_database().await.unwrap();
        database.execute(setup).await.unwrap();
        let host = Host::new(BINARY).unwrap();
        let url = database.url.clone();
        let bench = Self { database, host };
        bench.configure(&url, "public.t");
        for encoding in ENCODINGS {
            let name = format!("echo-{encoding}");
            let guest = Guest::new(format!("plugins/fixtures/{name}"));
            tokio::task::block_in_place(|| bench.host.plugin(&name, &guest)).unwrap();
        }
        bench
    }

    fn configure(&self, url: &str, table: &str) {
        let name = &self.database.name;
        let mut config = format!(
            "[source]\nurl = \"{url}\"\nslot = \"{name}\"\npublication = \"{name}\"\n\
             [sink.s]\nkind = \"sqlite\"\npath = \"s.db\"\n"
        );
        for encoding in ENCODINGS {
            write!(
                config,
                "[[map]]\ntable = \"{table}\"\ntransform = \"echo-{encoding}\"\ndestination = \"{encoding}\"\n"
            )
            .unwrap();
        }
        self.host.config(&config).unwrap();
    }

    /// The raw text of a document.
    fn document(&self, encoding: &str, id: &str) -> anyhow::Result<Option<String>> {
        let path = self.host.path("s.db");
        if !path.exists() {
            return Ok(None);
        }
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        let table = "select count(*) from sqlite_master where type = 'table' and name = ?1";
        if connection.query_row(table, [encoding], |row| row.get::<_, i64>(0))? == 0 {
            return Ok(None);
        }
        let query = format!("select document from \"{encoding}\" where id = ?1");
        Ok(connection.query_row(&query, [id], |row| row.get(0)).optional()?)
    }

    /// The document, once `wanted` holds for it.
    async fn echo(&mut self, encoding: &str, id: &str, what: &str, wanted: impl Fn(&Echo) -> bool) -> Echo {
        let mut found = None;
        let description = format!("{what}: {encoding} {id}");
        let waited = wait_until(&description, DEADLINE, async || {
            let Some(text) = self.document(encoding, id)? else { return Ok(false) };
            let echo: Echo = serde_json::from_str(&text)?;
            let holds = wanted(&echo);
            found = holds.then_some(echo);
            Ok(holds)
        });
        if let Err(error) = waited.await {
            let now = self.document(encoding, id);
            panic!("{error:#}\n{now:?}\n{}", self.host.log_tail());
        }
        found.unwrap()
    }

    /// Waits for the document in both encodings; each is one of the operation.
    async fn both(&mut self, id: &str, operation: &str) -> [Echo; 2] {
        let mut found = Vec::new();
        for encoding in ENCODINGS {
            found.push(self.echo(encoding, id, operation, |echo| echo.operation == operation).await);
        }
        found.try_into().unwrap_or_else(|_| panic!("two encodings"))
    }

    /// Waits for an update after which a column of both documents has this text.
    async fn updated(&mut self, id: &str, column: &str, expected: &str) -> [Echo; 2] {
        let mut found = Vec::new();
        for encoding in ENCODINGS {
            let holds = |echo: &Echo| {
                let cell = echo.row.as_ref().and_then(|row| row.get(column));
                cell.is_some_and(|cell| cell.get() == expected)
            };
            found.push(self.echo(encoding, id, &format!("{column} = {expected}"), holds).await);
        }
        found.try_into().unwrap_or_else(|_| panic!("two encodings"))
    }
}

/// SQL that inserts the row of values, the row of NULLs and the row of empty strings.
fn inserts(first: u32) -> String {
    let values: Vec<_> = COLUMNS.iter().map(|(_, _, value, _)| *value).collect();
    let empty = vec!["''"; EMPTY.len()];
    format!(
        "set datestyle = 'ISO, YMD'; set timezone = 'UTC'; set intervalstyle = 'postgres'; \
         set lc_monetary = 'C'; \
         insert into t (id, {}) values ({first}, {}); insert into t (id) values ({}); \
         insert into t (id, {}) values ({}, {})",
        COLUMNS.iter().map(|column| column.0).collect::<Vec<_>>().join(", "),
        values.join(", "),
        first + 1,
        EMPTY.join(", "),
        first + 2,
        empty.join(", "),
    )
}

fn expected(encoding: &str, row: u32) -> Vec<(&'static str, &'static str)> {
    let own: BTreeMap<_, _> = MSGPACK.iter().copied().collect();
    let cell = |&(name, _, _, json): &(&'static str, &'static str, &'static str, &'static str)| {
        let json = match row {
            1 if encoding == "msgpack" => own.get(name).copied().unwrap_or(json),
            1 => json,
            3 if name.starts_with("h_") && EMPTY.contains(&name) => "{}",
            3 if EMPTY.contains(&name) => "\"\"",
            _ => "null",
        };
        (name, json)
    };
    COLUMNS.iter().map(cell).collect()
}

/// The differences between a document and what was written by hand.
fn differences(encoding: &str, row: u32, id: u32, echo: &Echo) -> String {
    let mut said = String::new();
    let mut found = echo.row.as_ref().expect("a row").clone();
    if found.remove("id").is_none_or(|cell| cell.get() != id.to_string()) {
        said.push_str("id\n");
    }
    assert!(echo.absent.is_empty(), "{:?}", echo.absent);
    for (name, wanted) in expected(encoding, row) {
        let cell = found.remove(name);
        let cell = cell.as_deref().map_or("(left out)", RawValue::get);
        if cell != wanted {
            writeln!(said, "{encoding} row {id} {name}:\n  expected {wanted}\n  found    {cell}").unwrap();
        }
    }
    if !found.is_empty() {
        writeln!(said, "{encoding} row {id} has {:?}", found.keys()).unwrap();
    }
    said
}

/// Rows 1 to 3 by backfill, rows 101 to 103 by stream: all of them equal to what was written by hand.
async fn conforms(mut bench: Bench) {
    bench.database.execute(&inserts(1)).await.unwrap();
    bench.host.start().unwrap();
    bench.both("3", "read").await;
    bench.database.execute(&inserts(101)).await.unwrap();
    let mut said = String::new();
    for row in 1..=3 {
        for (id, operation) in [(row, "read"), (100 + row, "insert")] {
            let echoes = bench.both(&id.to_string(), operation).await;
            for (encoding, echo) in ENCODINGS.iter().zip(&echoes) {
                said.push_str(&differences(encoding, row, id, echo));
            }
        }
    }
    assert!(said.is_empty(), "\n{said}");
}

fn every_type() -> String {
    let columns: Vec<_> = COLUMNS.iter().map(|(name, kind, _, _)| format!("{name} {kind}")).collect();
    format!("{TYPES} create table t (id int primary key, {})", columns.join(", "))
}

const HOSTILE: &[(&str, &str)] = &[
    ("DateStyle", "German, DMY"),
    ("IntervalStyle", "postgres_verbose"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-5"),
    ("TimeZone", "Asia/Kolkata"),
    ("lc_monetary", "C.utf8"),
    ("xmloption", "document"),
    ("quote_all_identifiers", "on"),
    ("standard_conforming_strings", "off"),
    ("search_path", "nowhere"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
];

fn hostile(subject: &str) -> String {
    HOSTILE.iter().map(|(name, value)| format!("alter {subject} set {name} = '{value}';")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn c003_c004_c009_c011_every_type_is_the_same_by_backfill_and_by_stream() {
    conforms(Bench::new(&every_type()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_database_change_nothing() {
    let bench = Bench::new(&every_type()).await;
    let settings = hostile(&format!("database {}", bench.database.name));
    bench.database.execute(&settings).await.unwrap();
    let shown =
        bench.database.query_text("select '2024-01-31'::date::text || '1 day'::interval").await.unwrap();
    assert_eq!(shown, "31.01.2024@ 1 day", "the settings hold for ordinary sessions");
    // Writable for the test's own sessions, and only for them.
    let mut bench = bench;
    bench.database.url = format!(
        "{}?options=-c%20default_transaction_read_only%3Doff%20-c%20search_path%3Dpublic\
         %20-c%20standard_conforming_strings%3Don%20-c%20xmloption%3Dcontent",
        bench.database.url
    );
    conforms(bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_the_role_change_nothing() {
    let bench = Bench::new(&every_type()).await;
    let role = format!("hostile_{}", bench.database.name);
    let settings = format!("create role {role} superuser login; {}", hostile(&format!("role {role}")));
    bench.database.execute(&settings).await.unwrap();
    let url = bench.database.url.replace("postgres@", &format!("{role}@"));
    assert_ne!(url, bench.database.url);
    bench.configure(&url, "public.t");
    conforms(bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c007_enum_labels_and_types_that_are_made_while_it_runs() {
    let setup = "create type mood as enum ('sad', 'ok'); \
                 create table t (id int primary key, m mood, ms mood[]); \
                 insert into t values (1, 'sad', '{ok}')";
    let mut bench = Bench::new(setup).await;
    bench.host.start().unwrap();
    bench.both("1", "read").await;
    bench.database.execute("alter type mood add value 'meh'").await.unwrap();
    bench.database.execute("insert into t values (2, 'meh', '{sad,meh}')").await.unwrap();
    for echo in bench.both("2", "insert").await {
        let row = echo.row.unwrap();
        assert_eq!((row["m"].get(), row["ms"].get()), ("\"meh\"", "[\"sad\",\"meh\"]"));
    }
    let again = "alter type mood rename to mood_old; create type mood as enum ('new', 'sad', 'ok', 'meh'); \
                 alter table t alter m type mood using m::text::mood, \
                   alter ms type mood[] using ms::text[]::mood[]; \
                 drop type mood_old; insert into t values (3, 'new', '{new,NULL}')";
    bench.database.execute(again).await.unwrap();
    for echo in bench.both("3", "insert").await {
        let row = echo.row.unwrap();
        assert_eq!((row["m"].get(), row["ms"].get()), ("\"new\"", "[\"new\",null]"));
    }
    assert!(bench.host.is_running().unwrap());
}

/// The stream tells a commit before anybody sees it: for long, while a synchronous standby is missing.
#[tokio::test(flavor = "multi_thread")]
async fn c007_a_table_is_known_that_a_transaction_made_whom_nobody_sees_yet() {
    let cluster = Cluster::start(ClusterOptions::new().setting(STANDBYS, "")).unwrap();
    let setup = "create table t (id int primary key, a text); insert into t values (1, 'x')";
    let mut bench = Bench::on(&cluster, setup).await;
    let publish = format!("create publication {} for all tables", bench.database.name);
    bench.database.execute(&publish).await.unwrap();
    let config = std::fs::read_to_string(bench.host.path("anabranch.toml")).unwrap();
    bench.host.config(&config.replace("[sink.s]", "manage_publication = false\n[sink.s]")).unwrap();
    bench.host.start().unwrap();
    bench.both("1", "read").await;
    let altered = "create type mood as enum ('sad', 'ok'); alter table t add ms mood[]; \
                   insert into t values (2, 'y', '{ok,NULL}')";
    in_limbo(&cluster, &mut bench, altered).await;
    for echo in bench.both("2", "insert").await {
        assert_eq!(echo.row.unwrap()["ms"].get(), "[\"ok\",null]");
    }
    let made_again = "drop table t; create table t (id int primary key, ms mood[]); \
                      insert into t values (3, '{sad}')";
    in_limbo(&cluster, &mut bench, made_again).await;
    bench.both("3", "read").await;
    // Under FULL no message tells the key.
    let rekeyed = "alter table t add code text not null default 'c'; alter table t replica identity full; \
                   alter table t drop constraint t_pkey, add primary key (id, code); \
                   insert into t values (4, null, 'd')";
    in_limbo(&cluster, &mut bench, rekeyed).await;
    bench.both("4,d", "read").await;
    assert!(bench.host.is_running().unwrap());
}

const STANDBYS: &str = "synchronous_standby_names";

/// Commits these statements as one transaction, of which the stream tells before it is visible.
async fn in_limbo(cluster: &Cluster, bench: &mut Bench, statements: &'static str) {
    cluster.configure(&[(STANDBYS, "nobody")]).unwrap();
    cluster.reload(STANDBYS, "nobody").await.unwrap();
    let from = bench.host.log_length();
    let url = bench.database.url.clone();
    let migration = tokio::spawn(async move {
        testkit::postgres::connect(&url).await.unwrap().batch_execute(statements).await.unwrap();
    });
    bench.host.wait_log(from, "not visible yet", DEADLINE).await.unwrap();
    cluster.configure(&[(STANDBYS, "")]).unwrap();
    cluster.reload(STANDBYS, "").await.unwrap();
    migration.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c008_an_enum_without_labels_that_nobody_publishes_is_nobodys_business() {
    let setup = "create type nothing as enum (); create domain nothings as nothing[]; \
                 create table elsewhere (n nothing, ns nothings); \
                 create table t (id int primary key, a text); insert into t values (1, 'x')";
    let mut bench = Bench::new(setup).await;
    bench.host.start().unwrap();
    for echo in bench.both("1", "read").await {
        assert_eq!(echo.row.unwrap()["a"].get(), "\"x\"");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c014_null_empty_and_unchanged_are_three_things() {
    let setup = "create table t (id int primary key, a text, b text, big text, n int); \
                 alter table t alter big set storage external; \
                 insert into t values (1, null, '', repeat('x', 100000), 0)";
    let mut bench = Bench::new(setup).await;
    let big = format!("\"{}\"", "x".repeat(100_000));
    bench.host.start().unwrap();
    bench.both("1", "read").await;
    let cells = |echo: &Echo| {
        let row = echo.row.as_ref().unwrap();
        (row["a"].get().to_owned(), row["b"].get().to_owned(), row["big"].get() == big)
    };
    let steps = [
        ("n = 1", ("null", "\"\"", true)),
        ("n = 2, b = null", ("null", "null", true)),
        ("n = 3, a = '', b = ''", ("\"\"", "\"\"", true)),
        ("n = 4, a = null", ("null", "\"\"", true)),
    ];
    for (n, (change, (a, b, whole))) in (1..).zip(steps) {
        bench.database.execute(&format!("update t set {change} where id = 1")).await.unwrap();
        for echo in bench.updated("1", "n", &i32::to_string(&n)).await {
            assert_eq!(cells(&echo), (a.to_owned(), b.to_owned(), whole), "{change}");
            assert!(echo.absent.is_empty(), "{change}: re-read, not absent: {:?}", echo.absent);
        }
    }
}

/// What was not sent is read again, or taken from the old row: the same bytes as those that were sent.
#[tokio::test(flavor = "multi_thread")]
async fn large_values_that_were_not_sent_are_the_same_as_sent() {
    let columns = ["j", "b", "y", "a", "h", "n", "i"];
    let setup = "create extension hstore;
        create table t (id int primary key, v int, j json, b jsonb, y bytea, a text[], h hstore, n numeric, i timestamptz[]);
        insert into t select 1, 0, ('{\"a\":\n 1.0, \"b\": \"' || s || '\"}')::json,
          jsonb_build_object('n', 9007199254740993, 's', s), decode(md5('x') || s, 'hex'),
          array[s, null, 'q\"'], hstore(array['k', s, 'null', null]), repeat('7', 20000)::numeric,
          array_agg(timestamptz '2024-01-31 12:00:00+00' + m * interval '1 min')
        from (select string_agg(md5(m::text), '') s from generate_series(1, 1000) m) x, generate_series(1, 2000) m
        group by s";
    let externals: Vec<_> = columns
        .iter()
        .filter(|name| **name != "n")
        .map(|name| format!("alter {name} set storage external"))
        .collect();
    let mut bench = Bench::new(setup).await;
    let settings = hostile(&format!("database {}", bench.database.name));
    let external = format!(
        "alter table t {}; create table copy as table t; truncate t; insert into t table copy",
        externals.join(", ")
    );
    bench.database.execute(&external).await.unwrap();
    bench.database.execute(&settings).await.unwrap();
    bench.database.url += "?options=-c%20default_transaction_read_only%3Doff%20-c%20search_path%3Dpublic";
    bench.host.start().unwrap();
    let read = bench.both("1", "read").await;
    for (v, identity) in [(1, "default"), (2, "full")] {
        let update = format!("alter table t replica identity {identity}; update t set v = {v}");
        bench.database.execute(&update).await.unwrap();
        let updated = bench.updated("1", "v", &v.to_string()).await;
        for (read, updated) in read.iter().zip(&updated) {
            assert!(updated.absent.is_empty(), "{identity}: {:?}", updated.absent);
            for name in columns {
                let [read, updated] = [read, updated].map(|echo| echo.row.as_ref().unwrap()[name].get());
                assert!(read.len() > 19_000, "{name} is large");
                assert!(read == updated, "{identity} {name}: {read:.200} and {updated:.200}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c015_generated_columns_are_the_same_in_both_paths() {
    let setup = "create table t (id int primary key, a int, g int generated always as (a * 2) stored, b text); \
                 insert into t (id, a, b) values (1, 5, 'x')";
    let mut bench = Bench::new(setup).await;
    bench.host.start().unwrap();
    let names = |echo: &Echo| -> Vec<(String, String)> {
        let row = echo.row.as_ref().unwrap();
        row.iter().map(|(name, cell)| (name.clone(), cell.get().to_owned())).collect()
    };
    let read: Vec<_> = bench.both("1", "read").await.iter().map(names).collect();
    bench.database.execute("insert into t (id, a, b) values (2, 5, 'x')").await.unwrap();
    let inserted: Vec<_> = bench.both("2", "insert").await.iter().map(names).collect();
    for (read, inserted) in read.iter().zip(&inserted) {
        let without_id = |row: &[(String, String)]| -> Vec<_> {
            row.iter().filter(|(name, _)| name != "id").cloned().collect()
        };
        assert_eq!(without_id(read), without_id(inserted));
        assert_eq!(without_id(read).last().unwrap(), &("b".to_owned(), "\"x\"".to_owned()));
    }
    bench.database.execute("update t set a = 6 where id = 1").await.unwrap();
    for (echo, read) in bench.updated("1", "a", "6").await.iter().zip(&read) {
        let keys = |row: &[(String, String)]| row.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&names(echo)), keys(read));
        assert!(echo.old.is_none());
    }
}
