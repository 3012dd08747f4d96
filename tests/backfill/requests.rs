//! Asking for whole tables: requests, cancelling, pauses, rates, purges, waiting.

use testkit::shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS};

use crate::{
    scene::{SOON, hostile, products},
    shop::{PRODUCTS, Shop},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_rebuilds_what_it_names_and_nothing_else() {
    let shop = Shop::built(3000, 500).await;
    let (products_table, orders_table) = (shop.scene.table("products"), shop.scene.table("orders"));
    shop.check().await;
    products_table.note_writes().unwrap();
    orders_table.note_writes().unwrap();

    shop.asked(&["request", PRODUCTS]);
    shop.reached("products", 2).await;
    let count: i64 = shop
        .scene
        .client
        .query_one(&format!("select count(*) from ({PRODUCT_DOCUMENTS}) as d"), &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(products_table.written().unwrap().0, count.unsigned_abs(), "each document once");
    assert_eq!(orders_table.written().unwrap().0, 0, "the other mapping is left alone");
    assert_eq!(shop.scene.mapping("orders")["generation"], 1);
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_takes_away_what_no_row_makes() {
    let shop = Shop::built(2000, 100).await;
    shop.check().await;
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    file.busy_timeout(SOON).unwrap();
    file.execute_batch("update products set id = 'orphan' where id = (select min(id) from products)")
        .unwrap();

    shop.asked(&["request", "products"]);
    shop.reached("products", 2).await;
    let orphan = || shop.scene.table("products").get("orphan").unwrap();
    assert!(orphan().is_some(), "without a purge, what no row makes stays");

    shop.asked(&["request", "products", "--purge"]);
    shop.reached("products", 3).await;
    assert_eq!(orphan(), None);
    assert_eq!(shop.text("select purge::text from anabranch.mapping where name = 'products'").await, "false");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_during_a_run_wins_and_the_table_starts_over() {
    let mut shop = Shop::new(12_000, 100).await;
    shop.start_slowly(500).await;
    shop.until_run("entity = 'public.products' and rows > 0 and status = 'running'").await;
    let first = shop.text("select run from anabranch.run where entity = 'public.products'").await;
    shop.asked(&["request", PRODUCTS]);
    shop.until_run(&format!("entity = 'public.products' and run <> '{first}'")).await;
    let cancelled = shop.asked(&["cancel", PRODUCTS]);
    shop.asked(&["rate", "none"]);
    shop.reached("products", 2).await;
    shop.check().await;
    let run =
        shop.text("select run || ' ' || status from anabranch.run where entity = 'public.products'").await;
    assert!(run.ends_with(" complete") && !run.starts_with(&first), "{run} after {first}: {cancelled}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_withdraws_what_has_not_begun_and_the_table_is_left_alone_until_asked() {
    let mut shop = Shop::built(2000, 100).await;
    shop.check().await;
    shop.asked(&["pause"]);
    shop.asked(&["request", PRODUCTS, "--purge"]);
    shop.until_run("entity = 'public.products' and status = 'queued'").await;
    shop.asked(&["cancel", PRODUCTS]);
    shop.until_run("entity = 'public.products' and status = 'cancelled'").await;
    shop.asked(&["resume"]);
    shop.check().await;

    // A new version: its documents are of the live stream alone, and nothing is read.
    shop.scene.plugin("product-search", &products().version("1.1.0"));
    let swapped = "select exists (select from anabranch.mapping where name = 'products'
                   and identity -> 'transform' ->> 'version' = '1.1.0')";
    shop.until("the new version", || swapped.to_owned()).await;
    shop.scene.host.terminate(SOON).unwrap();
    shop.scene.host.start().unwrap();
    shop.scene.streaming().await;
    shop.scene
        .client
        .batch_execute("update public.products set stock = stock + 1 where id = 7")
        .await
        .unwrap();
    shop.scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let status = "select status from anabranch.run where entity = 'public.products'";
    assert_eq!(shop.text(status).await, "cancelled");

    shop.asked(&["request", PRODUCTS]);
    shop.until("the request to be built", || {
        "select exists (select from anabranch.mapping where name = 'products' and built = generation)"
            .to_owned()
    })
    .await;
    assert_eq!(shop.text(status).await, "complete");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_reads_is_not_cancelled() {
    let mut shop = Shop::new(8000, 100).await;
    shop.start_slowly(500).await;
    shop.until_run("entity = 'public.products' and rows > 0").await;
    shop.asked(&["cancel", PRODUCTS]);
    shop.asked(&["rate", "none"]);
    shop.reached("products", 1).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_found_without_its_notification_and_survives_kills() {
    let mut shop = Shop::built(1000, 100).await;
    let name = shop.scene.database.name.clone();
    let silent = format!(
        "insert into anabranch.request (installation, kind, target) values ('{name}', 'table', 'public.products')"
    );
    shop.scene.client.batch_execute(&silent).await.unwrap();
    shop.reached("products", 2).await;

    for generation in 3..8 {
        shop.asked(&["request", "products"]);
        shop.scene.host.kill().unwrap();
        shop.scene.host.start().unwrap();
        shop.reached("products", generation).await;
    }
    assert_eq!(shop.text("select count(*)::text from anabranch.request").await, "0");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_nobody_maps_stays_requested_until_somebody_does() {
    let mut shop = Shop::built(500, 100).await;
    shop.scene
        .client
        .batch_execute(
            "create table public.lonely (id int primary key); insert into public.lonely values (1)",
        )
        .await
        .unwrap();
    let from = shop.scene.host.log_length();
    shop.asked(&["request", "public.lonely"]);
    shop.asked(&["request", "public.lonely"]);
    shop.scene.host.wait_log(from, "the request waits until it is", SOON).await.unwrap();
    assert_eq!(shop.text("select count(*)::text from anabranch.request").await, "1");
    shop.asked(&["request", PRODUCTS]);
    shop.reached("products", 2).await;
    assert_eq!(shop.text("select target from anabranch.request").await, "public.lonely");
    let warnings = |shop: &Shop| shop.scene.host.log().matches("the request waits until it is").count();
    assert_eq!(warnings(&shop), 1, "one warning a term");

    shop.scene.host.terminate(SOON).unwrap();
    let from = shop.scene.host.log_length();
    shop.scene.host.start().unwrap();
    shop.scene.host.wait_log(from, "the request waits until it is", SOON).await.unwrap();
    shop.asked(&["request", PRODUCTS]);
    shop.reached("products", 3).await;
    assert_eq!(warnings(&shop), 2, "one warning a term");
    assert_eq!(shop.text("select target from anabranch.request").await, "public.lonely");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_cannot_be_is_told_and_the_table_is_read_all_the_same() {
    let mut shop = Shop::new(300, 300).await;
    let config = crate::shop::TWO
        .replacen("sink = \"out\"", "sink = \"log\"", 1)
        .replace("destination = \"orders\"", "destination = \"shared\"");
    shop.scene.config(&format!(
        "[sink.log]\nkind = \"jsonl\"\npath = \"log.jsonl\"\n{config}[[map]]\nname = \"beside\"\n\
         table = \"public.orders\"\ntransform = \"order-summary\"\nsink = \"again\"\ndestination = \"shared\"\n\
         [sink.again]\nkind = \"sqlite\"\npath = \"out.db\"\n"
    ));
    shop.scene.host.start().unwrap();
    for mapping in ["products", "orders", "beside"] {
        shop.reached(mapping, 1).await;
    }
    shop.scene.settled(ORDER_DOCUMENTS, "shared").await;
    let before = shop.scene.table("shared").count().unwrap();
    let from = shop.scene.host.log_length();
    shop.asked(&["request", "products", "--purge"]);
    shop.asked(&["request", "orders", "--purge"]);
    let line =
        shop.scene.host.wait_log(from, "but a jsonl sink cannot: its documents stay", SOON).await.unwrap();
    assert!(line.contains("mapping=\"products\""), "{line}");
    let line =
        shop.scene.host.wait_log(from, "is shared with beside: its documents stay", SOON).await.unwrap();
    assert!(line.contains("mapping=\"orders\"") && line.contains("destination=\"shared\""), "{line}");
    shop.reached("products", 2).await;
    shop.reached("orders", 2).await;
    shop.until("no purge to be due", || "select not bool_or(purge) from anabranch.mapping".to_owned()).await;
    assert_eq!(shop.scene.table("shared").count().unwrap(), before);
    shop.scene.settled(ORDER_DOCUMENTS, "shared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_tables_are_read_at_once_as_is_configured() {
    for (most, states_wanted) in [(1, "queued running"), (2, "running running")] {
        let mut shop = Shop::new(4000, 4000).await;
        let concurrent = format!("[backfill]\nmax_concurrent = {most}\n");
        shop.scene.config(&crate::shop::TWO.replace("[backfill]\n", &concurrent));
        shop.scene.host.start().unwrap();
        shop.reached("products", 1).await;
        shop.reached("orders", 1).await;
        shop.asked(&["rate", "500", PRODUCTS]);
        shop.asked(&["rate", "500", "public.orders"]);
        shop.asked(&["request", PRODUCTS]);
        shop.asked(&["request", "public.orders"]);
        shop.until(&format!("{most} to be read for a while"), || {
            format!("select count(*) >= {most} from anabranch.run where status = 'running' and rows >= 1000")
        })
        .await;
        let states = "select string_agg(status, ' ' order by status) from anabranch.run";
        assert_eq!(shop.text(states).await, states_wanted);
        shop.asked(&["rate", "none", PRODUCTS]);
        shop.asked(&["rate", "none", "public.orders"]);
        shop.reached("products", 2).await;
        shop.reached("orders", 2).await;
        shop.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_reading_and_waiting_says_so() {
    let mut shop = Shop::new(3000, 100).await;
    // Before there is a host, and so a schema.
    let (code, _) = shop.ask(&["wait", "--timeout", "1s"]);
    assert_eq!(code, 3);
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    shop.asked(&["pause", PRODUCTS]);
    shop.asked(&["request", PRODUCTS]);
    shop.until_run("entity = 'public.products' and status = 'queued'").await;
    // The stream goes on, and other tables are read.
    shop.asked(&["request", "orders"]);
    shop.reached("orders", 2).await;
    shop.check().await;
    let (code, shape) = shop.ask(&["wait", PRODUCTS, "--timeout", "2s"]);
    assert_eq!(code, 3, "{shape}");
    shop.asked(&["resume", PRODUCTS]);
    shop.asked(&["wait", "--timeout", "120s"]);
    assert_eq!(shop.scene.mapping("products")["built"], 2);
    shop.asked(&["wait"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_from_the_first_reading_after_a_restart() {
    let mut shop = Shop::built(3000, 100).await;
    shop.midway().await;
    let rows = "select rows::text from anabranch.run where entity = 'public.products' and status = 'running'";
    for generation in 2..4 {
        assert!(shop.scene.host.terminate(SOON).unwrap().success());
        let before = shop.text(rows).await;
        shop.scene.host.start().unwrap();
        // Another table is read from its first row to its last meanwhile.
        shop.asked(&["request", "orders"]);
        shop.reached("orders", generation).await;
        assert_eq!(shop.text(rows).await, before, "{}", shop.scene.host.log_tail());
    }
    shop.go_on(2).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tells_how_far_it_is_and_what_holds_it_back() {
    let shop = Shop::built(3000, 10).await;
    shop.asked(&["rate", "300", PRODUCTS]);
    shop.asked(&["request", PRODUCTS]);
    shop.until_run("status = 'running' and rows >= 300 and (report ->> 'throttled_ms')::int >= 1000").await;
    let (code, shape) = shop.ask(&["wait", "--timeout", "0s"]);
    assert_eq!(code, 3, "{shape}");
    assert_eq!(shape["result"], "timeout");
    let items = shape["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["name"] == PRODUCTS).unwrap();
    let of = |name: &str| item[name].as_u64().unwrap_or_else(|| panic!("{name} of {item}"));
    assert_eq!((item["step"].as_str(), of("rows_per_second"), of("estimate")), (Some("reading"), 300, 3000));
    assert!((300..3000).contains(&of("rows")) && of("percent") == of("rows") * 100 / 3000, "{item}");
    assert!(of("throttled_seconds") >= 1 && of("elapsed_seconds") >= 1 && of("left_seconds") >= 1, "{item}");
    // Again, and until the end.
    shop.asked(&["rate", "none", PRODUCTS]);
    let shape = shop.asked(&["wait", PRODUCTS, "--timeout", "120s"]);
    assert_eq!(
        (&shape["items"][0]["step"], &shape["items"][0]["percent"]),
        (&"complete".into(), &100.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_and_the_account_says_where_the_time_went() {
    let shop = Shop::built(1000, 10).await;
    shop.asked(&["rate", "200", PRODUCTS]);
    shop.asked(&["request", PRODUCTS]);
    shop.reached("products", 2).await;
    let report = shop.text("select report::text from anabranch.run where entity = 'public.products'").await;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let of = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} of {report}"));
    let stages =
        ["queued", "reading", "stream", "yielding", "transforming", "delivering", "throttled", "backoff"];
    let accounted: u64 = stages.iter().map(|stage| of(&format!("{stage}_ms"))).sum();
    assert_eq!(of("rows"), 1000);
    assert!(of("bytes") > 1000 * 100 && of("chunks") >= 5, "{report}");
    // 1000 rows at 200 a second, of which one page may come at once.
    assert!(of("wall_ms") >= 3500 && of("throttled_ms") > 0, "{report}");
    assert!(accounted * 100 >= of("wall_ms") * 95 && accounted <= of("wall_ms") + 8, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_last_error_where_a_mapping_fails() {
    let mut shop = Shop::built(500, 100).await;
    shop.scene.host.terminate(SOON).unwrap();
    shop.scene.config(&format!(
        "[plugins.hostile]\nconfig = {{ behave = \"trap\" }}\n{}\n[[map]]\nname = \"broken\"\n\
         table = \"public.products\"\ntransform = \"hostile\"\nsink = \"out\"\ndestination = \"broken\"\n",
        crate::shop::TWO
    ));
    shop.scene.plugin("hostile", &hostile());
    shop.scene.host.start().unwrap();
    let error = shop.scene.error_of("broken").await;
    let (code, shape) = shop.ask(&["wait", "broken", "--timeout", "60s"]);
    assert_eq!(code, 1, "{shape}");
    assert!(shape.to_string().contains("hostile"), "{shape} does not tell {error}");
    // Nobody else suffers.
    shop.asked(&["request", "products", "orders"]);
    shop.reached("products", 2).await;
    shop.reached("orders", 2).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_repair_of_a_gap_purges_where_that_is_configured() {
    let mut shop = Shop::built(1000, 100).await;
    let slot = shop.scene.database.name.clone();
    let lose = async |shop: &mut Shop, delete: &str| {
        shop.check().await;
        assert!(shop.scene.host.terminate(SOON).unwrap().success());
        shop.scene.released().await;
        let lost = format!("select pg_drop_replication_slot('{slot}'); {delete}");
        shop.scene.client.batch_execute(&lost).await.unwrap();
        shop.scene.host.start().unwrap();
    };
    lose(
        &mut shop,
        "delete from public.products where id in (select min(id) from public.products where active)",
    )
    .await;
    shop.reached("products", 2).await;
    let count = |shop: &Shop| shop.scene.table("products").count().unwrap();
    let rows = async |shop: &Shop| -> u64 {
        let count = format!("select count(*) from ({PRODUCT_DOCUMENTS}) as d");
        shop.scene.client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0).unsigned_abs()
    };
    assert_eq!(count(&shop), rows(&shop).await + 1, "by default, what was deleted in the gap stays");

    assert!(shop.scene.host.terminate(SOON).unwrap().success());
    let config = std::fs::read_to_string(shop.scene.host.path("anabranch.toml")).unwrap();
    shop.scene.host.config(&config.replace("[source]\n", "[source]\npurge_on_repair = true\n")).unwrap();
    shop.scene.released().await;
    shop.scene.client.batch_execute(&format!("select pg_drop_replication_slot('{slot}')")).await.unwrap();
    shop.scene.host.start().unwrap();
    shop.reached("products", 3).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_is_taken_out_leaves_its_run_and_the_others_go_on_from_the_cursor() {
    let mut shop = Shop::new(6000, 100).await;
    let second = "[[map]]\nname = \"again\"\ntable = \"public.products\"\ntransform = \"product-search\"\n\
                  sink = \"out\"\ndestination = \"again\"\n";
    shop.scene.config(&format!("{}\n{second}", crate::shop::TWO));
    shop.start_slowly(500).await;
    shop.until_run("entity = 'public.products' and rows >= 1000 and mappings = array['again', 'products']")
        .await;
    let run = shop.text("select run from anabranch.run where entity = 'public.products'").await;
    assert!(shop.scene.host.terminate(SOON).unwrap().success());
    shop.scene.config(crate::shop::TWO);
    let from = shop.scene.host.log_length();
    shop.scene.host.start().unwrap();
    let line =
        shop.scene.host.wait_log(from, "goes on from its cursor entity=public.products", SOON).await.unwrap();
    assert!(line.contains(&run), "{line}");
    shop.until_run(&format!("run = '{run}' and mappings = array['products']")).await;
    shop.asked(&["rate", "none"]);
    shop.reached("products", 1).await;
    shop.check().await;
    assert_eq!(shop.text("select count(*)::text from anabranch.mapping where name = 'again'").await, "0");
}
