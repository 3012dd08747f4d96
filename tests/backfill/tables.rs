//! Tables that change while they are read: columns, keys, TRUNCATE, other tables under the same name, partitions,
//! publications of the user's own.

use testkit::shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS, insert_orders, insert_products};

use crate::{
    scene::SOON,
    shop::{PRODUCTS, Shop},
};

async fn sql(shop: &Shop, statements: &str) {
    shop.scene.client.batch_execute(statements).await.unwrap();
}

async fn products_are(shop: &Shop, query: &str) {
    shop.scene.settled(query, "products").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_come_go_and_change_during_a_run() {
    let shop = Shop::built(3000, 100).await;
    let run = shop.midway().await;
    sql(
        &shop,
        "alter table public.products add column extra text not null default 'x';
         update public.products set stock = stock + 1 where id in (1, 2999);
         alter table public.products drop column sku;
         update public.products set description = 'dropped one' where id in (2, 2998);
         alter table public.products rename column category to kind;
         insert into public.products select 3001, name, description, kind, price, stock, true, tags, attributes,
             created_at, updated_at, 'y' from public.products where id = 1;
         alter table public.products alter column stock type bigint, alter column name type varchar(200);
         update public.products set name = 'retyped ' || id where id in (3, 2997)",
    )
    .await;
    shop.go_on(2).await;
    shop.check().await;
    // What no transform reads is no reason to begin again.
    assert_eq!(shop.text("select run from anabranch.run where entity = 'public.products'").await, run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_is_renamed_away_fails_its_mapping_alone_until_it_is_back() {
    let shop = Shop::built(3000, 500).await;
    shop.midway().await;
    sql(&shop, "alter table public.products rename column price to cost").await;
    sql(&shop, "update public.products set stock = stock + 1 where id in (1, 2999)").await;
    shop.asked(&["rate", "none", PRODUCTS]);
    shop.asked(&["resume", PRODUCTS]);
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("`price`") && error.contains("product-search"), "{error}");
    // Others are read and streamed.
    sql(&shop, "update public.orders set total = total + 1 where id <= 10").await;
    shop.asked(&["request", "orders"]);
    shop.reached("orders", 2).await;
    shop.scene.settled(ORDER_DOCUMENTS, "orders").await;
    // What came without the column is read again, once there is one.
    sql(&shop, "update public.products set cost = cost + 1 where id in (2, 2998)").await;
    sql(&shop, "delete from public.products where id in (3, 2997)").await;
    sql(&shop, "alter table public.products rename column cost to price").await;
    shop.reached("products", 2).await;
    shop.check().await;
    assert_eq!(shop.scene.mapping("products")["status"], "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn c037_a_truncate_in_the_middle_of_a_run_leaves_the_ten_rows_after_it() {
    let shop = Shop::built(3000, 100).await;
    shop.midway().await;
    sql(&shop, "truncate public.products").await;
    sql(&shop, &insert_products(1, 10, 1)).await;
    shop.go_on(2).await;
    shop.check().await;
    assert!(shop.scene.table("products").count().unwrap() <= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn c035_a_cascading_truncate_empties_both_destinations() {
    let shop = Shop::built(3000, 500).await;
    sql(&shop, "alter table public.orders add column product bigint references public.products (id)").await;
    shop.midway().await;
    sql(&shop, "truncate public.products cascade").await;
    sql(&shop, &insert_products(100, 109, 1)).await;
    let orders = insert_orders(7, 12, 1).replace("select g,", "select s.*, 100 from (select g,");
    sql(&shop, &orders.replace(" as hash;", " as hash) as s;")).await;
    shop.go_on(2).await;
    shop.check().await;
    assert!(shop.scene.table("orders").count().unwrap() <= 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn c043_a_run_goes_on_from_its_cursor_when_its_key_column_is_renamed() {
    let mut shop = Shop::built(3000, 100).await;
    let run = shop.midway().await;
    let from = shop.scene.host.log_length();
    sql(
        &shop,
        "alter table public.products rename column id to product_id;
         update public.products set stock = stock + 1, name = 'renamed ' || product_id
             where product_id in (1, 2999)",
    )
    .await;
    let renamed = PRODUCT_DOCUMENTS.replace("select id,", "select product_id as id,");
    shop.go_on(2).await;
    products_are(&shop, &renamed).await;
    assert_eq!(shop.text("select run from anabranch.run where entity = 'public.products'").await, run);
    let log = shop.scene.host.log()[from..].to_owned();
    assert!(!log.contains("begins again from the first row"), "{log}");
    // The same across a restart, when the cursor comes from the state schema.
    sql(&shop, "alter table public.products rename column product_id to id").await;
    shop.midway().await;
    shop.scene.host.kill().unwrap();
    sql(&shop, "alter table public.products rename column id to product_id").await;
    let from = shop.scene.host.log_length();
    shop.scene.host.start().unwrap();
    shop.scene.host.wait_log(from, "goes on from its cursor", SOON).await.unwrap();
    shop.go_on(3).await;
    products_are(&shop, &renamed).await;
    let log = shop.scene.host.log()[from..].to_owned();
    assert!(
        !log.contains("begins again from the first row") && !log.contains("the key of its table"),
        "{log}"
    );
}

const BY_TWO: &str = "select id || ',' || sku as id, document from (select sku, d.* from (";

/// The products by a key of two columns.
fn by_two() -> String {
    format!("{BY_TWO}{PRODUCT_DOCUMENTS}) as d join public.products as p on p.id = d.id) as both_parts")
}

const REKEY: &str = "alter table public.products drop constraint products_pkey, add primary key (id, sku)";

#[tokio::test(flavor = "multi_thread")]
async fn c023_a_table_whose_key_changes_starts_over_with_other_ids() {
    let shop = Shop::built(2000, 100).await;
    shop.midway().await;
    // First no row comes along the stream that would tell, then one that does.
    sql(&shop, REKEY).await;
    shop.go_on(3).await;
    products_are(&shop, &by_two()).await;
    sql(&shop, "alter table public.products drop constraint products_pkey, add primary key (id)").await;
    sql(&shop, "update public.products set name = 'back' where id = 1").await;
    shop.reached("products", 4).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c023_a_key_that_changed_while_nobody_looked_is_noticed() {
    let mut shop = Shop::built(2000, 100).await;
    shop.check().await;
    shop.scene.host.kill().unwrap();
    // By the old key, and still to be streamed.
    sql(&shop, "update public.products set name = 'late', active = true where id in (1, 1999)").await;
    sql(&shop, REKEY).await;
    shop.scene.host.start().unwrap();
    shop.reached("products", 2).await;
    products_are(&shop, &by_two()).await;
    assert_eq!(shop.scene.mapping("orders")["generation"], 1);
}

/// An update that leaves a large value alone is streamed without it, and its row read again: by then of another key, of
/// one of another name, and with another column.
#[tokio::test(flavor = "multi_thread")]
async fn c023_a_row_is_read_again_whose_key_changed_while_nobody_looked() {
    let mut shop = Shop::built(100, 100).await;
    sql(
        &shop,
        "alter table public.products alter description set storage external;
         update public.products set description = repeat('large ', 4000) where id in (1, 99)",
    )
    .await;
    shop.check().await;
    let late =
        "update public.products set name = 'late', stock = stock + 1, active = true where id in (1, 99)";
    let renamed = PRODUCT_DOCUMENTS.replace("select id,", "select product_id as id,");
    shop.scene.host.kill().unwrap();
    sql(&shop, late).await;
    sql(&shop, "alter table public.products rename column id to product_id").await;
    shop.scene.host.start().unwrap();
    products_are(&shop, &renamed).await;
    assert_eq!(shop.scene.mapping("products")["generation"], 1);
    sql(&shop, "alter table public.products rename column product_id to id").await;
    shop.scene.host.kill().unwrap();
    sql(&shop, &late.replace("late", "later")).await;
    sql(&shop, REKEY).await;
    shop.scene.host.start().unwrap();
    shop.reached("products", 2).await;
    products_are(&shop, &by_two()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c023_a_key_that_changes_under_a_quiet_table_is_noticed() {
    let shop = Shop::built(100, 100).await;
    shop.check().await;
    sql(&shop, REKEY).await;
    shop.reached("products", 2).await;
    products_are(&shop, &by_two()).await;
    assert_eq!(shop.scene.mapping("orders")["generation"], 1);
}

/// Another table under the name, with fewer columns in another order.
const REPLACEMENT: &str = "(
    attributes jsonb not null, tags text[] not null, active boolean not null, price numeric(10, 2) not null,
    description text not null, name text not null, id bigint primary key)";

const REPLACED_ROWS: &str = "select '{}', array['new'], true, 1.50, 'Another', 'replaced ' || g, g
    from generate_series(2001, 2600) as g";

/// Drops the products and makes another table of that name.
pub(crate) async fn make_again(shop: &Shop) {
    let statements = format!(
        "begin; drop table if exists public.products; create table public.products {REPLACEMENT};
         insert into public.products {REPLACED_ROWS}; commit"
    );
    sql(shop, &statements).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c045_a_table_that_is_made_again_during_a_run_is_rebuilt_from_nothing() {
    let shop = Shop::built(3000, 100).await;
    shop.midway().await;
    make_again(&shop).await;
    shop.go_on(3).await;
    shop.check().await;
    assert_eq!(shop.scene.table("products").count().unwrap(), 600);
    sql(&shop, "update public.products set name = 'live' where id = 2001").await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c045_a_table_that_was_made_again_while_stopped_is_rebuilt_from_nothing() {
    let mut shop = Shop::built(1000, 100).await;
    shop.check().await;
    shop.scene.host.kill().unwrap();
    // The old table's last changes are still to be streamed, and are of nothing that is there.
    sql(&shop, "update public.products set name = 'late', active = true where id <= 10").await;
    make_again(&shop).await;
    shop.scene.host.start().unwrap();
    shop.reached("products", 2).await;
    shop.check().await;
    sql(&shop, "update public.products set name = 'live' where id = 2001").await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c045_tables_that_are_swapped_by_renames_are_told_apart() {
    let shop = Shop::built(3000, 100).await;
    shop.midway().await;
    sql(
        &shop,
        &format!(
            "create table public.products_new {REPLACEMENT};
             insert into public.products_new {REPLACED_ROWS};
             begin;
             alter table public.products rename to products_old;
             alter table public.products_new rename to products;
             commit;
             update public.products_old set name = 'nobody sees me', active = true where id in (1, 2999);
             update public.products set name = 'live' where id = 2002"
        ),
    )
    .await;
    shop.go_on(3).await;
    sql(&shop, "update public.products_old set name = 'nobody sees me either' where id < 10").await;
    sql(&shop, "update public.products set name = 'live' where id = 2003").await;
    shop.check().await;
    assert_eq!(shop.scene.table("products").count().unwrap(), 600);
}

/// Makes the products a partitioned table, with `products_1` to `products_3` from and to these ids; what they were is
/// `plain`.
async fn partitioned(shop: &Shop, parts: [(u32, u32); 3]) {
    let parts: String = (1..)
        .zip(parts)
        .map(|(n, (from, to))| {
            format!(
                "create table public.products_{n} partition of public.products for values from ({from}) to ({to});"
            )
        })
        .collect();
    sql(
        shop,
        &format!(
            "alter table public.products rename to plain; alter index public.products_pkey rename to plain_pkey;
             create table public.products (like public.plain, primary key (id)) partition by range (id);
             {parts} insert into public.products select * from public.plain"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_is_read_through_its_root_while_rows_and_partitions_move() {
    let mut shop = Shop::new(3000, 100).await;
    partitioned(&shop, [(1, 1001), (1001, 2001), (2001, 5001)]).await;
    sql(
        &shop,
        "create table public.products_5 (like public.plain, primary key (id));
         create table public.products_6 (like public.plain, primary key (id))",
    )
    .await;
    // On 14 a delete may be missed before the attachment is noticed.
    let file = shop.scene.host.path("anabranch.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("[plugins]", "purge_on_repair = true\n[plugins]")).unwrap();
    shop.scene.host.start().unwrap();
    shop.midway().await;
    // Rows move between partitions, in both directions over the cursor; a partition comes with rows that were
    // written before, ahead of the cursor.
    sql(
        &shop,
        "update public.products set id = id + 3000 where id between 1 and 20;
         update public.products set id = id - 2960 where id between 2961 and 2970;
         insert into public.products_5 select id + 6000, sku, name, description, category, price, stock, active,
             tags, attributes, created_at, updated_at from public.plain where id <= 50;
         alter table public.products attach partition public.products_5 for values from (6001) to (7001);
         update public.products set name = 'attached' where id in (6001, 6050);
         create table public.products_4 partition of public.products for values from (5001) to (6001)",
    )
    .await;
    sql(&shop, &insert_products(5001, 5010, 0)).await;
    shop.go_on(2).await;
    shop.check().await;
    sql(&shop, "update public.products set id = id + 2500 where id between 3001 and 3010").await;
    sql(&shop, "delete from public.products where id > 5040").await;
    shop.check().await;
}

/// Detached, a partition's rows are nobody's any more; attached, they are the table's.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_detached_and_attached_during_a_run_count_as_they_are() {
    let mut shop = Shop::new(3000, 100).await;
    partitioned(&shop, [(1, 11), (11, 2001), (2001, 5001)]).await;
    sql(&shop, "update public.products set active = true").await;
    shop.scene.host.start().unwrap();
    shop.midway().await;
    // One that was read, and one that was not.
    sql(
        &shop,
        "alter table public.products detach partition public.products_1;
         alter table public.products detach partition public.products_3;
         update public.products_3 set name = 'nobody sees me' where id < 2010;
         update public.products set name = 'seen' where id in (11, 2000);
         delete from public.products_1 where id = 1",
    )
    .await;
    shop.go_on(2).await;
    let read = format!(
        "{PRODUCT_DOCUMENTS} union all {}",
        PRODUCT_DOCUMENTS
            .replace("public.products", "public.plain")
            .replace("where active", "where id <= 10")
    );
    products_are(&shop, &read).await;
    // What was detached behind the cursor is taken away by a purge; what comes back ahead of it is read.
    shop.midway().await;
    sql(
        &shop,
        "alter table public.products attach partition public.products_3 for values from (2001) to (5001);
         update public.products set name = 'back' where id in (2001, 3000);
         update public.products set id = id + 2000 where id between 1995 and 1999;
         update public.products set id = id - 996 where id between 2991 and 2995",
    )
    .await;
    shop.go_on(3).await;
    shop.check().await;
    assert_eq!(shop.scene.table("products").get("5").unwrap(), None);
}

/// Row filters and column lists came with 15.
fn has_filters() -> bool {
    testkit::shared().unwrap().major() >= 15
}

/// Products and orders through a publication that somebody else has made.
async fn with_publication(setup: &str) -> Shop {
    let mut shop = Shop::new(3000, 200).await;
    let name = shop.scene.database.name.clone();
    sql(&shop, &setup.replace("PUBLICATION", &format!("\"{name}\""))).await;
    let file = shop.scene.host.path("anabranch.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let own = config.replace("[plugins]", "manage_publication = false\n[plugins]");
    std::fs::write(&file, own).unwrap();
    shop.scene.host.start().unwrap();
    shop
}

#[tokio::test(flavor = "multi_thread")]
async fn c039_a_row_filter_holds_for_backfill_and_stream() {
    if !has_filters() {
        return;
    }
    let shop = with_publication(
        "alter table public.products replica identity full;
         create publication PUBLICATION for table public.products where (stock < 250), public.orders",
    )
    .await;
    let filtered = format!("{PRODUCT_DOCUMENTS} and stock < 250");
    shop.midway().await;
    // In and out, on both sides of the cursor.
    sql(
        &shop,
        "update public.products set stock = 499 where id <= 20 or id > 2980;
         update public.products set stock = 1, active = true where id between 5 and 10 or id between 2990 and 2995;
         update public.products set stock = 1 where id = 30",
    )
    .await;
    shop.go_on(2).await;
    products_are(&shop, &filtered).await;
    sql(&shop, "update public.products set stock = 499 where id between 100 and 200").await;
    sql(&shop, "update public.products set stock = 3 where id between 150 and 160").await;
    products_are(&shop, &filtered).await;
    shop.scene.settled(ORDER_DOCUMENTS, "orders").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c040_a_column_list_holds_for_backfill_and_stream() {
    if !has_filters() {
        return;
    }
    let listed = "(id, name, description, price, active, tags, attributes)";
    let shop = with_publication(&format!(
        "create publication PUBLICATION for table public.products {listed}, public.orders"
    ))
    .await;
    shop.midway().await;
    let name = shop.scene.database.name.clone();
    let set =
        |list: &str| format!("alter publication \"{name}\" set table public.products {list}, public.orders");
    sql(&shop, "update public.products set stock = 1, name = 'listed' where id in (1, 2999)").await;
    sql(&shop, &set("(id, sku, name, description, price, active, tags, attributes)")).await;
    sql(&shop, "update public.products set sku = 'x', name = 'more' where id in (2, 2998)").await;
    shop.go_on(2).await;
    shop.check().await;

    sql(&shop, &set("(id, name, description, active, tags, attributes)")).await;
    // Read without it, as the stream would be.
    shop.asked(&["request", PRODUCTS]);
    let error = shop.scene.error_of("products").await;
    assert!(error.contains("`price`"), "{error}");
    sql(&shop, "update public.products set price = 7 where id = 3").await;
    sql(&shop, "update public.orders set total = 5 where id = 3").await;
    shop.scene.settled(ORDER_DOCUMENTS, "orders").await;
    sql(&shop, &set("")).await;
    sql(&shop, "update public.products set name = 'whole' where id in (4, 2996)").await;
    shop.reached("products", 3).await;
    shop.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_a_key_waits_beside_a_good_one_until_it_has_one() {
    let mut shop = Shop::new(2000, 500).await;
    sql(&shop, "alter table public.orders drop constraint orders_pkey").await;
    shop.scene.host.start().unwrap();
    shop.reached("products", 1).await;
    products_are(&shop, PRODUCT_DOCUMENTS).await;
    let error = shop.scene.error_of("orders").await;
    assert!(error.contains("primary key") && error.contains("public.orders"), "{error}");
    // The application's own statements work meanwhile.
    sql(&shop, "update public.orders set total = total + 1 where id <= 10").await;
    shop.midway().await;
    sql(&shop, "alter table public.orders add primary key (id)").await;
    shop.reached("orders", 1).await;
    shop.go_on(2).await;
    shop.check().await;
    sql(&shop, "delete from public.orders where id <= 10").await;
    shop.check().await;
}
