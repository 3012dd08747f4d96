//! Mappings that come, go and change while their table is read: each is read for by itself.

use testkit::{
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS},
    wait_until,
};

use crate::{
    scene::{MENDED_DOCUMENTS, SOON, mended, orders, products},
    shop::{PRODUCTS, Shop, TWO},
};

/// A second mapping of the products.
const MENDED: &str = r#"
[[map]]
name = "mended"
table = "public.products"
transform = "hostile"
sink = "out"
destination = "mended"
"#;

/// Starts the host, and waits until the products are read for a while, slowly; gives the run.
async fn under_way(shop: &mut Shop) -> String {
    shop.start_slowly(500).await;
    shop.until_run("entity = 'public.products' and status = 'running' and rows >= 1000").await;
    shop.text("select run from anabranch.run where entity = 'public.products'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_joins_in_mid_run_costs_the_other_nothing() {
    let mut shop = Shop::new(6000, 100).await;
    shop.scene.plugin("hostile", &mended());
    let run = under_way(&mut shop).await;
    shop.scene.host.kill().unwrap();
    let table = shop.scene.table("products");
    let before = table.count().unwrap();
    table.note_writes().unwrap();

    shop.scene.config(&format!("{TWO}{MENDED}"));
    // What waits behind the run does so after another kill, too.
    for _ in 0..2 {
        let from = shop.scene.host.log_length();
        shop.scene.host.start().unwrap();
        let line = shop.scene.host.wait_log(from, "gets one of its own behind it", SOON).await.unwrap();
        assert!(line.contains("mapping=\"mended\"") && line.contains(&run), "{line}");
        let line = shop.scene.host.wait_log(from, "goes on from its cursor", SOON).await.unwrap();
        assert!(line.contains(&run), "{line}");
        let rows = shop.text("select rows::text from anabranch.run where entity = 'public.products'").await;
        shop.until_run(&format!("run = '{run}' and rows > {rows} and mappings = array['products']")).await;
        shop.scene.host.kill().unwrap();
    }
    assert_eq!(shop.scene.mapping("mended")["built"], 0);
    shop.scene.host.start().unwrap();
    shop.asked(&["rate", "none"]);
    shop.reached("products", 1).await;
    shop.reached("mended", 1).await;
    shop.check().await;
    shop.scene.settled(MENDED_DOCUMENTS, "mended").await;
    let (written, count) = table.written().unwrap();
    assert_eq!(written, count - before, "no row that was in the sink is delivered again");
    assert_eq!(shop.scene.mapping("products")["generation"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_changes_in_mid_run_costs_the_other_mapping_of_its_table_nothing() {
    let mut shop = Shop::new(6000, 100).await;
    shop.scene.config(&format!("{TWO}{MENDED}"));
    shop.scene.plugin("hostile", &mended());
    let run = under_way(&mut shop).await;
    shop.asked(&["pause", PRODUCTS]);
    let table = shop.scene.table("mended");
    // In this order: a chunk that was in flight may arrive in between.
    let before = table.count().unwrap();
    table.note_writes().unwrap();
    let from = shop.scene.host.log_length();
    shop.scene.plugin("product-search", &products().version("1.1.0"));
    shop.scene.host.wait_log(from, "swapped its transform", SOON).await.unwrap();
    shop.until_run(&format!("run = '{run}' and mappings = array['mended']")).await;
    shop.asked(&["rate", "none"]);
    shop.asked(&["resume", PRODUCTS]);
    shop.reached("mended", 1).await;
    shop.reached("products", 2).await;
    shop.check().await;
    shop.scene.settled(MENDED_DOCUMENTS, "mended").await;
    let (written, count) = table.written().unwrap();
    assert!(written <= count - before, "{written} written, {before} of {count} were there");
    assert_eq!(shop.scene.mapping("mended")["generation"], 1);

    // The same while the host is down.
    table.note_writes().unwrap();
    shop.asked(&["rate", "1000", PRODUCTS]);
    shop.asked(&["request", PRODUCTS]);
    let begun = "status = 'running' and rows >= 1000 and mappings = array['mended', 'products']";
    shop.until_run(&format!("{begun} and run <> '{run}'")).await;
    let run = shop.text("select run from anabranch.run where entity = 'public.products'").await;
    shop.scene.host.kill().unwrap();
    let first = table.written().unwrap().0;
    table.note_writes().unwrap();
    shop.scene.plugin("product-search", &products());
    shop.scene.host.start().unwrap();
    shop.until_run(&format!("run = '{run}' and mappings = array['mended']")).await;
    shop.asked(&["rate", "none", PRODUCTS]);
    shop.reached("mended", 2).await;
    shop.reached("products", 4).await;
    shop.check().await;
    let (second, count) = table.written().unwrap();
    assert_eq!(first + second, count, "each row once: {first} before the kill, {second} after it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_is_taken_out_ends_its_run_and_leaves_its_documents() {
    let mut shop = Shop::new(6000, 100).await;
    under_way(&mut shop).await;
    shop.scene.host.kill().unwrap();
    let there = shop.scene.table("products").count().unwrap();
    let (head, tail) = TWO.split_once("[[map]]\nname = \"products\"").unwrap();
    let (_, tail) = tail.split_once("[[map]]").unwrap();
    shop.scene.config(&format!("{head}[[map]]{tail}"));
    // Without its file, since a plugin that no mapping names maps its tables by itself.
    std::fs::remove_file(shop.scene.host.path("plugins/product-search.wasm")).unwrap();
    shop.scene.host.start().unwrap();
    shop.until("the run to be forgotten", || {
        "select not exists (select from anabranch.run where entity = 'public.products')
         and not exists (select from anabranch.mapping where name = 'products')"
            .to_owned()
    })
    .await;
    shop.asked(&["rate", "none"]);
    shop.reached("orders", 1).await;
    let change = "update public.products set name = 'nobody maps me' where id = 1;
                  update public.orders set total = total + 1, status = 'open' where id = 1";
    shop.scene.client.batch_execute(change).await.unwrap();
    shop.scene.settled(ORDER_DOCUMENTS, "orders").await;
    assert_eq!(shop.scene.table("products").count().unwrap(), there);
    // Mapped again it is a new one, and read from the first row.
    shop.scene.host.terminate(SOON).unwrap();
    shop.scene.config(TWO);
    shop.scene.plugin("product-search", &products());
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_is_not_read_by_itself_gets_live_changes_until_it_is_requested() {
    let mut shop = Shop::new(2000, 500).await;
    shop.scene.config(
        &TWO.replace("destination = \"orders\"\n", "destination = \"orders\"\nauto_backfill = false\n"),
    );
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    let change = "update public.orders set status = 'open' where id = 7";
    shop.scene.client.batch_execute(change).await.unwrap();
    let table = shop.scene.table("orders");
    wait_until("the live change", SOON, async || Ok(table.get("7")?.is_some())).await.unwrap();
    shop.asked(&["wait", "--timeout", "60s"]);
    assert_eq!(table.count().unwrap(), 1, "nothing was read");
    shop.asked(&["request", "orders"]);
    shop.reached("orders", 2).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_purges_takes_away_what_no_row_makes() {
    let mut shop = Shop::new(1000, 500).await;
    shop.scene.config(
        &TWO.replace("destination = \"products\"\n", "destination = \"products\"\npurge_on_change = true\n"),
    );
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    shop.reached("orders", 1).await;
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    file.busy_timeout(SOON).unwrap();
    for table in ["products", "orders"] {
        let orphan = format!("update {table} set id = 'orphan' where id = (select min(id) from {table})");
        file.execute_batch(&orphan).unwrap();
    }
    shop.scene.plugin("product-search", &products().version("1.1.0"));
    shop.scene.plugin("order-summary", &orders().version("1.1.0"));
    shop.reached("products", 2).await;
    shop.reached("orders", 2).await;
    shop.scene.settled(PRODUCT_DOCUMENTS, "products").await;
    assert!(shop.scene.table("orders").get("orphan").unwrap().is_some(), "unless that is set, it stays");
}
