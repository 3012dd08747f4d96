//! Rows that the stream does not show whole, and tables that are emptied.

use testkit::{postgres::shared, shop::Size, wait_until};

use super::{
    web::Web,
    world::{ORDERS, SOON, TWO_MAPPINGS, World, order_summary, product_search},
};

/// 100 kB that do not compress well.
const LARGE: &str = "(select string_agg(md5(i::text), ' ') from generate_series(1, 3100) as i)";

#[tokio::test(flavor = "multi_thread")]
async fn c014_an_unchanged_large_value_stays_in_the_document() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 50, orders: 10, customers: 0 };
    let mut world = World::new(&database.url, rows, TWO_MAPPINGS).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world
        .execute(&format!("update public.products set active = true, description = {LARGE} where id <= 20"))
        .await;
    world.host.start().unwrap();
    world.built("products", 1).await;
    let destination = world.destination("products");
    let text_of =
        |id: u64| destination.get(&id.to_string()).unwrap().map(|document| document["text"].clone());
    let whole = text_of(1).unwrap();
    assert!(whole.as_str().unwrap().len() > 100_000);
    for round in 0..5 {
        // Alone, several in one transaction, and with a key that changes.
        world.execute(&format!("update public.products set price = {round}.25 where id = 1")).await;
        world.execute("update public.products set price = price + 1 where id between 2 and 18").await;
        world
            .execute(&format!("update public.products set id = 1000 + {round} where id = 5 + {round}"))
            .await;
    }
    wait_until("the last price", SOON, async || {
        Ok(destination.get("1")?.is_some_and(|document| document["price"] == 4.25))
    })
    .await
    .unwrap();
    assert_eq!(text_of(1).unwrap(), whole);
    world.check().await;
    assert_eq!(text_of(1004).unwrap(), whole);
    assert_eq!(world.host.log().matches("replica identity full").count(), 1, "{}", world.host.log_tail());

    // With the old row in the stream nothing has to be read again.
    world.execute("alter table public.products replica identity full").await;
    world.execute("update public.products set price = 77 where id = 1").await;
    world.check().await;
    assert_eq!(text_of(1).unwrap(), whole);
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c014_a_mapping_that_may_not_read_again_halts_at_an_incomplete_row_and_goes_on_once_it_may() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 50, orders: 10, customers: 0 };
    let strict = TWO_MAPPINGS.replacen("[[map]]\n", "[[map]]\nreread = false\n", 1);
    let mut world = World::new(&database.url, rows, &strict).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world
        .execute(&format!("update public.products set active = true, description = {LARGE} where id <= 20"))
        .await;
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.execute("update public.products set price = 3 where id = 7").await;
    let line = world.logged(0, "forbids to read it again").await;
    assert!(line.contains("row 7 of public.products") && line.contains("replica identity full"), "{line}");
    // Nothing else waits.
    world.execute("update public.orders set total = total + 1").await;
    world.check_one("orders", testkit::shop::ORDER_DOCUMENTS).await;
    assert_eq!(world.mapping("products").await.unwrap().2, "failing");

    world.terminate();
    world.configure(&world.host, TWO_MAPPINGS);
    world.host.start().unwrap();
    world.check().await;
    world.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn c037_a_truncate_during_a_backfill_leaves_only_what_came_after() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 10, orders: 10_000, customers: 0 };
    let config = format!("{TWO_MAPPINGS}\n[backfill]\nchunk_size = 50\n");
    let mut world = World::new(&database.url, rows, &config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    wait_until("some of the orders to be there", SOON, async || {
        Ok(world.reading(ORDERS).await.is_some_and(|rows| rows > 500))
    })
    .await
    .unwrap();
    let durable = world.reading(ORDERS).await;
    assert!(durable.is_some_and(|rows| rows < 9_000), "the backfill was already at {durable:?}");
    world.execute("truncate public.orders").await;
    let insert = testkit::shop::insert_orders(3_001, 3_010, 7);
    world.execute(&format!("{insert} update public.orders set status = 'open'")).await;
    world.built("orders", 1).await;
    world.check().await;
    assert_eq!(world.destination("orders").count().unwrap(), 10);
    world.terminate();
}

/// More than a gigabyte as text: the server can store it and never send it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes gigabytes of memory and half a minute"]
async fn c017_a_row_that_the_server_cannot_send_is_a_state_of_its_own() {
    let database = shared().unwrap().create_database().await.unwrap();
    let rows = Size { products: 50, orders: 10, customers: 0 };
    let config = format!("{TWO_MAPPINGS}\n[http]\nlisten = \"127.0.0.1:0\"\n");
    let mut world = World::new(&database.url, rows, &config).await;
    world.install("product-search", &product_search("1.0.0"));
    world.install("order-summary", &order_summary("1.0.0"));
    world.host.start().unwrap();
    world.built("products", 1).await;
    world.built("orders", 1).await;
    let web = Web::of(&mut world.host, 0).await;
    let before = world.position().await;
    // As text it takes twice as much.
    world.execute("alter table public.products add column photo bytea").await;
    let large = "update public.products set photo = convert_to(repeat('x', 600000000), 'UTF8') where id = 1";
    world.execute(large).await;
    let line = world.logged(0, "THE STREAM IS STUCK at ").await;
    assert!(line.contains("public.products") && line.contains("`anabranch suspend`"), "{line}");
    let at = line.split("STUCK at ").nth(1).unwrap().split(':').next().unwrap().to_owned();
    let behind = world.text(&format!("select ('{at}'::pg_lsn >= '{before}'::pg_lsn)::text")).await;
    assert_eq!(behind.as_deref(), Some("true"), "{at} is where it was written, after {before}");
    let health = web.wait("/healthz", 503, "THE STREAM IS STUCK").await.json();
    assert_eq!(health["role"], "stuck", "{health}");

    // As the message says.
    world.execute("update public.products set photo = 'small', name = 'again' where id = 1").await;
    for command in ["suspend", "resume"] {
        let output = world.host.run(&[command]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    world.built("products", 2).await;
    world.check().await;
    web.wait("/healthz", 200, "\"ok\"").await;
    let tries = world.host.log().matches("THE STREAM IS STUCK").count();
    assert!(tries <= 3, "{tries} tries");
    world.terminate();
}
