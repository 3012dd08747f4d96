//! Asking for parts of tables: keys and conditions.

use testkit::{shop::ORDER_DOCUMENTS, wait_until};

use crate::{
    scene::SOON,
    shop::{PRODUCTS, Shop},
};

fn damage(shop: &Shop, statements: &str) {
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    file.busy_timeout(crate::scene::SOON).unwrap();
    file.execute_batch(statements).unwrap();
}

async fn quiet(shop: &Shop) {
    shop.asked(&["wait", "--timeout", "120s"]);
    shop.until("no scoped run to be left", || {
        "select not exists (select from anabranch.run where scope is not null)
         and not exists (select from anabranch.request)"
            .to_owned()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_keys_are_delivered_again_and_no_others() {
    let shop = Shop::built(3000, 200).await;
    shop.check().await;
    damage(&shop, "delete from orders where id in ('5', '17', '199')");
    let orders = shop.scene.table("orders");
    orders.note_writes().unwrap();
    shop.asked(&["request", "public.orders", "--keys", "5", "17", "199", "100000"]);
    quiet(&shop).await;
    assert_eq!(orders.written().unwrap().0, 3, "the rows that are there");
    assert_eq!(shop.scene.mapping("orders")["generation"], 1, "a part makes no generation");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_condition_are_delivered_again_in_pages() {
    let shop = Shop::built(100, 4000).await;
    shop.check().await;
    damage(&shop, "update orders set document = '{}'");
    shop.asked(&["request", "orders", "--where", "id % 2 = 0"]);
    quiet(&shop).await;
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    let count = |query: &str| file.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
    let even = count("select count(*) from orders where cast(id as integer) % 2 = 0");
    assert_eq!(count("select count(*) from orders where document <> '{}'"), even);
    let delivered = "select count(*) from orders where document <> '{}' and cast(id as integer) % 2 = 0";
    assert_eq!(count(delivered), even);
    shop.asked(&["request", "orders", "--where", "id % 2 = 1"]);
    quiet(&shop).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_waits_for_its_table_and_survives_a_kill() {
    let mut shop = Shop::built(6000, 3000).await;
    shop.check().await;
    // Far from the rows that are damaged next, however slow the machine.
    shop.asked(&["rate", "50"]);
    shop.asked(&["request", "orders", "--where", "id <= 2900"]);
    shop.until_run("scope is not null and status = 'running' and rows > 0").await;
    damage(&shop, "update orders set document = '{}' where cast(id as integer) between 2800 and 2900");
    shop.scene.host.kill().unwrap();
    shop.scene.host.start().unwrap();
    shop.asked(&["rate", "none"]);
    quiet(&shop).await;
    shop.check().await;

    // Asked while the whole table is read: it comes behind, and is covered where it came before.
    shop.asked(&["pause"]);
    shop.asked(&["request", PRODUCTS]);
    shop.until_run("entity = 'public.products' and scope is null and status = 'queued'").await;
    shop.asked(&["request", PRODUCTS, "--keys", "1", "2"]);
    shop.asked(&["resume"]);
    quiet(&shop).await;
    shop.reached("products", 2).await;
    shop.check().await;
}

/// The sink has more of the run than was saved, since the state schema is held up; a kill then repeats nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c066_a_part_that_is_killed_goes_on_from_what_its_sink_has() {
    let mut shop = Shop::built(100, 6000).await;
    shop.check().await;
    let orders = shop.scene.table("orders");
    orders.note_writes().unwrap();
    shop.asked(&["rate", "300"]);
    shop.asked(&["request", "orders", "--where", "id <= 5000"]);
    shop.until_run("scope is not null and status = 'running' and rows > 0").await;
    let holder = shop.scene.database.connect().await.unwrap();
    holder
        .batch_execute("begin; select from anabranch.run where scope is not null for update")
        .await
        .unwrap();
    let saved = orders.written().unwrap().0;
    wait_until("the sink to be ahead", SOON, async || Ok(orders.written()?.0 > saved + 700)).await.unwrap();
    shop.scene.host.kill().unwrap();
    let before = orders.written().unwrap().0;
    orders.note_writes().unwrap();
    holder.batch_execute("rollback").await.unwrap();
    let from = shop.scene.host.log_length();
    shop.scene.host.start().unwrap();
    shop.scene.host.wait_log(from, "the sinks have more of the backfill than was saved", SOON).await.unwrap();
    shop.asked(&["rate", "none"]);
    quiet(&shop).await;
    let count = format!("select count(*)::text from ({ORDER_DOCUMENTS} and id <= 5000) as d");
    let documents: u64 = shop.text(&count).await.parse().unwrap();
    let after = orders.written().unwrap().0;
    assert_eq!(before + after, documents, "each once: {before} before the kill, {after} after it");
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_a_part_and_a_bad_condition_are_refused_at_once() {
    let shop = Shop::built(100, 100).await;
    let (code, _) = shop.ask(&["request", PRODUCTS, "--where", "no_such_column = 1"]);
    assert_eq!(code, 2);
    assert_eq!(shop.text("select count(*)::text from anabranch.request").await, "0");
}
