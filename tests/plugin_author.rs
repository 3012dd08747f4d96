//! The author's loop through the binary: `plugin test`, `bench` and `diff`, with sample plugins and a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{fs, path::PathBuf, process::Output};

use serde_json::{Value, json};
use testkit::{Database, Host, guests::Guest};

const BINARY: &str = env!("CARGO_BIN_EXE_anabranch");

/// What the sample `order-summary` reads; a word that is none of its enum's fails.
const ORDERS: &str = "create table public.orders (id bigint primary key, customer text not null, status text not null, \
                      total numeric not null, placed_at timestamptz not null, note text)";

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn result(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
}

/// A folder without a config file, and the sample plugin in it.
fn workshop() -> (Host, PathBuf) {
    let host = Host::new(BINARY).unwrap();
    let plugin = host.plugin("order-summary", &Guest::new("plugins/order-summary")).unwrap();
    (host, plugin)
}

fn rows(host: &Host, case: &str, rows: &Value) -> PathBuf {
    let folder = host.path("golden").join(case);
    fs::create_dir_all(&folder).unwrap();
    let columns = json!({
        "id": "bigint", "customer": "text", "status": "order_status", "total": "numeric(12,2)",
        "placed_at": "timestamptz", "note": "text"
    });
    let file =
        json!({"table": "public.orders", "columns": columns, "settings": {"currency": "CHF"}, "rows": rows});
    fs::write(folder.join("rows.json"), file.to_string()).unwrap();
    folder.join("documents.json")
}

fn order(id: &str, status: &str, total: &str) -> Value {
    json!({"id": id, "customer": "Ada", "status": status, "total": total, "placed_at": "2026-01-31 12:00:00+00"})
}

#[test]
fn golden_rows_become_the_documents_that_are_expected() {
    let (host, plugin) = workshop();
    let plugin = plugin.to_str().unwrap();
    let expected = rows(
        &host,
        "orders",
        &json!([
            {"what": "an open order", "new": order("1", "open", "19.90")},
            {"what": "a draft", "operation": "read", "new": order("2", "draft", "1")},
            {"what": "another key", "operation": "update", "new": order("4", "paid", "2"), "old": {"id": "3"}},
            {"what": "gone", "operation": "delete", "old": {"id": "5"}},
            {"what": "no number", "new": order("6", "open", "NaN")},
        ]),
    );
    let test = ["plugin", "test", plugin, "--json"];

    let shape = result(&host.run(&test).unwrap(), 1);
    let found = &shape["cases"][0];
    assert_eq!(
        (&found["name"], &found["rows"], &found["failures"]),
        (&json!("orders"), &json!(5), &json!(1))
    );
    assert_eq!(found["mismatches"][2]["actual"], "delete 3, upsert 4");
    assert_eq!(found["mismatches"][2]["expected"], Value::Null, "nothing is expected yet");
    assert!(!expected.exists(), "nothing is written unless it is asked for");

    let updated = host.run(&["plugin", "test", plugin, "--update"]).unwrap();
    assert_eq!(updated.status.code(), Some(0), "{}", said(&updated));
    assert!(
        said(&updated).contains("orders: written (5 rows, of which 1 cannot be processed)"),
        "{}",
        said(&updated)
    );
    let text = fs::read_to_string(&expected).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert!(text.contains("\"total\":19.90"), "the digits as they came: {text}");
    assert_eq!(written[0]["steps"][0]["document"]["currency"], "CHF");
    assert_eq!(written[1]["steps"], json!([{"delete": "2"}]));
    assert_eq!(written[3]["steps"], json!([{"delete": "5"}]));
    assert_eq!(written[4]["failure"]["code"], "total", "a failure is an outcome: {text}");

    let agreed = host.run(&test).unwrap();
    assert_eq!(result(&agreed, 0)["ok"], true);

    // White space is nothing; a digit, a class and a row that came are.
    let changed = text.replace("\"total\":19.90", "\"total\":  19.9").replace("poison", "retry");
    fs::write(&expected, &changed).unwrap();
    let differs = host.run(&["plugin", "test", plugin]).unwrap();
    assert_eq!(differs.status.code(), Some(1));
    let lines = "an open order, document 1, total\n    expected  19.9\n    actual    19.90\n";
    assert!(said(&differs).contains(lines), "{}", said(&differs));
    let lines = "no number, failure.class\n    expected  retry\n    actual    poison\n";
    assert!(said(&differs).contains(lines), "{}", said(&differs));
    assert_eq!(fs::read_to_string(&expected).unwrap(), changed, "nothing is written unless it is asked for");
}

#[test]
fn a_plugin_that_is_broken_as_a_whole_is_no_expectation() {
    let (host, plugin) = workshop();
    let plugin = plugin.to_str().unwrap();
    let folder = host.path("golden/short");
    fs::create_dir_all(&folder).unwrap();
    let file = r#"{"table": "public.orders", "columns": {"id": "bigint"}, "rows": [{"new": {"id": "1"}}]}"#;
    fs::write(folder.join("rows.json"), file).unwrap();
    let output = host.run(&["plugin", "test", plugin, "--update", "--json"]).unwrap();
    let shape = result(&output, 1);
    let fault = shape["cases"][0]["fault"].as_str().unwrap();
    assert!(fault.contains("reads the column `customer`"), "{fault}");
    assert!(!folder.join("documents.json").exists());

    let none = host.run(&["plugin", "test", plugin, "--golden", "plugins"]).unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(said(&none).contains("no golden case"), "{}", said(&none));
}

async fn orders() -> Database {
    let database = testkit::shared().unwrap().create_database().await.unwrap();
    database
        .execute(&format!(
            "{ORDERS}; insert into public.orders select i, 'Ada', 'open', 1.50, '2026-01-31 12:00:00+00', null \
             from generate_series(1, 20000) as i; analyze public.orders"
        ))
        .await
        .unwrap();
    database
}

/// What a command that only reads may not leave.
async fn assert_untouched(database: &Database) {
    let left = "select (select count(*) from pg_namespace where nspname = 'anabranch') \
                + (select count(*) from pg_publication) \
                + (select count(*) from pg_replication_slots where database = current_database())";
    assert_eq!(database.query_text(&format!("select ({left})::text")).await.unwrap(), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_of_a_table_shows_documents_and_failures() {
    let database = orders().await;
    let (host, plugin) = tokio::task::block_in_place(workshop);
    let plugin = plugin.to_str().unwrap();
    let test = ["plugin", "test", plugin, "--sample", "50", "--url", &database.url, "--json"];
    let shape = result(&host.run(&test).unwrap(), 0);
    assert_eq!((&shape["rows"], &shape["failures"]), (&json!(50), &json!(0)), "{shape:#}");
    assert_eq!(shape["table"], "public.orders", "the one that the plugin names");
    let first = &shape["answers"][0];
    let id = first["row"].as_str().unwrap();
    assert_eq!(first["steps"][0]["upsert"], id);
    assert_eq!(first["steps"][0]["document"]["title"], format!("Order {id} of Ada"));

    if testkit::shared().unwrap().major() >= 15 {
        // A new version may read columns that are not published yet; rows that are not published are never its.
        let publication =
            "create publication anabranch for table public.orders (id, customer) where (id <= 20)";
        database.execute(publication).await.unwrap();
        let shape = result(&host.run(&test).unwrap(), 0);
        assert_eq!(shape["rows"], 20, "{shape:#}");
        database.execute("drop publication anabranch").await.unwrap();
    }

    database.execute("update public.orders set total = 'NaN'").await.unwrap();
    let output = host.run(&["plugin", "test", plugin, "--sample", "3", "--url", &database.url]).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("give it a number (total, poison)"), "{}", said(&output));
    assert!(said(&output).contains("3 rows of public.orders, 3 fail"), "{}", said(&output));
    assert_untouched(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_is_refused_in_clear_words_and_without_secrets() {
    let database = orders().await;
    let (host, plugin) = tokio::task::block_in_place(workshop);
    let plugin = plugin.to_str().unwrap();
    let url = database.url.as_str();
    let missing = ["plugin", "test", plugin, "--sample", "3", "--table", "public.nothing", "--url", url];
    let output = host.run(&missing).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("public.nothing"), "{}", said(&output));

    let unreachable = "postgres://u:hunter2@127.0.0.1:1/nowhere?connect_timeout=2";
    let output = host.run(&["plugin", "test", plugin, "--sample", "3", "--url", unreachable]).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(!said(&output).contains("hunter2"), "{}", said(&output));

    let other = database.connect().await.unwrap();
    other.batch_execute("begin; lock table public.orders in access exclusive mode").await.unwrap();
    let output =
        host.run(&["plugin", "test", plugin, "--sample", "3", "--url", url, "--timeout", "200ms"]).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("reading public.orders"), "{}", said(&output));
    drop(other);

    let none = host.run(&["plugin", "test", plugin, "--sample", "0", "--url", url]).unwrap();
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_tells_what_it_measured_and_compares_it_with_another() {
    let database = orders().await;
    let (host, plugin) = tokio::task::block_in_place(workshop);
    let plugin = plugin.to_str().unwrap();
    rows(
        &host,
        "first",
        &json!([{"new": order("1", "open", "1")}, {"operation": "delete", "old": {"id": "1"}}]),
    );
    rows(&host, "second", &json!([{"new": order("2", "paid", "2")}]));
    let bench = ["plugin", "bench", plugin, "--batch", "1,7", "--seconds", "0.02", "--json"];
    let run = |more: &[&str], code: i32| result(&host.run(&[&bench, more].concat()).unwrap(), code);

    let shape = run(&["--golden", "golden", "--save", "kept.json"], 0);
    assert_eq!((&shape["rows_from"], &shape["against"]), (&json!("golden"), &Value::Null), "{shape:#}");
    let sizes = shape["batches"].as_array().unwrap();
    assert_eq!(sizes.iter().map(|size| &size["batch"]).collect::<Vec<_>>(), [&json!(1), &json!(7)]);
    for size in sizes {
        assert!(size["calls"].as_u64() > Some(0) && size["rows_per_second"].as_f64() > Some(0.0), "{size}");
        assert!(size["p50_us"].as_f64() <= size["p99_us"].as_f64(), "{size}");
        assert_eq!(size["failed_rows"], 0);
    }
    let document =
        r#"{"title":"Order 1 of Ada","status":"open","total":1,"currency":"CHF","day":"2026-01-31"}"#;
    assert!((shape["output_bytes"].as_f64().unwrap() - document.len() as f64).abs() < 2.0, "{shape:#}");
    assert!(shape["memory_bytes"].as_u64() > Some(64 << 10), "{shape:#}");

    let against = &run(&["--golden", "golden", "--against", "kept.json"], 0)["against"];
    assert_eq!((&against["before"], &against["notes"]), (&json!("order-summary 1.0.0"), &json!([])));
    assert!(against["batches"][1]["rows_per_second"].as_f64() > Some(0.0), "{against:#}");

    // Whoever makes up a status makes up one that is none; that is told and not called fast.
    let shape = run(&["--url", &database.url, "--against", "kept.json"], 0);
    assert_eq!((&shape["rows_from"], &shape["rows"]), (&json!("generated"), &json!(1000)));
    let size = &shape["batches"][0];
    assert_eq!(size["failed_rows"], size["calls"], "{size}");
    assert!(shape["against"]["notes"][0].as_str().unwrap().contains("other rows"), "{shape:#}");

    let shape = run(&["--url", &database.url, "--sample", "40"], 0);
    assert_eq!((&shape["rows_from"], &shape["rows"]), (&json!("sample"), &json!(40)));
    assert_eq!(shape["batches"][1]["failed_rows"], 0);
    let nothing = run(&[], 2);
    assert!(nothing["error"]["message"].as_str().unwrap().contains("--golden"), "{nothing:#}");
    assert_untouched(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_counts_documents_fields_and_failures_of_a_sample() {
    let database = orders().await;
    database
        .execute(
            "update public.orders set status = 'draft' where id % 4 = 0; \
             update public.orders set total = 'NaN' where id % 4 = 1; analyze public.orders",
        )
        .await
        .unwrap();
    let (host, old) = tokio::task::block_in_place(workshop);
    let mended = Guest::new("plugins/fixtures/hostile").version("1.0.1").feature("mended");
    let new = tokio::task::block_in_place(|| host.plugin("hostile", &mended)).unwrap();
    let (old, new) = (old.to_str().unwrap(), new.to_str().unwrap());
    let diff = |old: &str, new: &str, more: &[&str]| {
        let fixed = ["plugin", "diff", old, new, "--url", &database.url, "--table", "public.orders"];
        host.run(&[&fixed, more].concat()).unwrap()
    };

    let shape = result(&diff(old, new, &["--sample", "20000", "--json"]), 0);
    let counts = ["rows", "changed", "unchanged", "added", "removed", "broken", "mended", "failing"];
    assert_eq!(
        counts.map(|name| shape[name].as_u64().unwrap()),
        [20_000, 10_000, 0, 5_000, 0, 0, 5_000, 0],
        "{shape:#}"
    );
    assert_eq!(shape["fields"]["mended"]["documents"], 10_000);
    let example = &shape["fields"]["currency"]["examples"][0];
    assert_eq!((&example["old"], &example["new"]), (&json!("\"EUR\""), &Value::Null));
    assert_eq!(shape["rebuild"]["rows"], 20_000);
    assert_eq!(shape["rebuild"]["seconds"], Value::Null, "there was no run");
    assert!(shape["rebuild"]["transform_us"].as_f64() > Some(0.0));
    assert!(shape["notes"][0].as_str().unwrap().contains("two plugins"), "{shape:#}");

    let back = diff(new, old, &["--sample", "20000"]);
    assert_eq!(back.status.code(), Some(0), "{}", said(&back));
    for words in [
        "documents: 10000 changed, 0 added, 5000 removed, 0 the same",
        "mended: 10 000 documents",
        "rows that fail: 5000 only now, 0 only before, 0 in both",
        "(total, poison)",
        "a rebuild reads ~20 000 rows",
    ] {
        assert!(said(&back).contains(words), "{words}: {}", said(&back));
    }

    let same = result(&diff(old, old, &["--json"]), 0);
    assert_eq!((&same["rows"], &same["changed"]), (&json!(1000), &json!(0)));
    assert!(same["notes"][0].as_str().unwrap().contains("byte for byte"), "{same:#}");
    assert_untouched(&database).await;
}
