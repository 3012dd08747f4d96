//! Two hosts of one installation: the second goes on where the first was.

use testkit::{Host, wait_until};

use crate::{
    scene::{BINARY, SOON, orders, products},
    shop::{Shop, TWO},
};

/// A second host, which writes to the same file, as two hosts would to the same server.
fn second(shop: &Shop) -> Host {
    let host = Host::new(BINARY).unwrap();
    let file = shop.scene.host.path("out.db");
    let config = TWO.replace("\"out.db\"", &format!("\"{}\"", file.display()));
    shop.scene.config_of(&host, &config);
    tokio::task::block_in_place(|| {
        host.plugin("product-search", &products()).unwrap();
        host.plugin("order-summary", &orders()).unwrap();
    });
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_from_the_saved_cursor() {
    let mut shop = Shop::new(8000, 100).await;
    let mut standby = second(&shop);
    shop.start_slowly(500).await;
    shop.until_run("entity = 'public.products'").await;
    standby.start().unwrap();
    shop.until_run("entity = 'public.products' and rows >= 2000").await;
    let run = shop.text("select run from anabranch.run where entity = 'public.products'").await;
    shop.scene.host.kill().unwrap();
    let products_table = shop.scene.table("products");
    products_table.note_writes().unwrap();
    let before = products_table.count().unwrap();
    let line = standby.wait_log(0, "goes on from its cursor", SOON).await.unwrap();
    shop.asked(&["rate", "none"]);
    shop.reached("products", 1).await;
    shop.check().await;
    assert!(line.contains(&run), "{line} is not of {run}");
    let after = products_table.count().unwrap();
    assert_eq!(
        products_table.written().unwrap().0,
        after - before,
        "no row that was in the sink is delivered again"
    );
    assert!(standby.terminate(SOON).unwrap().success());
}

/// How often products were written since `count_writes`.
fn writes(shop: &Shop) -> i64 {
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    file.busy_timeout(SOON).unwrap();
    file.query_row("select count(*) from writes", [], |row| row.get(0)).unwrap()
}

fn count_writes(shop: &Shop) {
    let file = rusqlite::Connection::open(shop.scene.host.path("out.db")).unwrap();
    file.busy_timeout(SOON).unwrap();
    file.execute_batch(
        "create table writes (id text not null);
         create trigger count_inserts after insert on products begin insert into writes values (new.id); end;
         create trigger count_updates after update on products begin insert into writes values (new.id); end;",
    )
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_that_are_asked_and_deployed_at_once_build_a_generation_once() {
    let mut shop = Shop::new(3000, 100).await;
    let mut standby = second(&shop);
    shop.scene.host.start().unwrap();
    shop.scene.streaming().await;
    standby.start().unwrap();
    shop.reached("products", 1).await;
    shop.reached("orders", 1).await;
    shop.check().await;
    let documents = i64::try_from(shop.scene.table("products").count().unwrap()).unwrap();
    count_writes(&shop);

    // By both hosts' commands, at the same moment.
    shop.asked(&["pause"]);
    let hosts = [&shop.scene.host, &standby];
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let ask =
                |host: &'_ Host| host.run(&["backfill", "request", "products"]).unwrap().status.success();
            let asking: Vec<_> = (0..8).map(|at| scope.spawn(move || ask(hosts[at % 2]))).collect();
            assert!(asking.into_iter().all(|asked| asked.join().unwrap()));
        });
    });
    shop.until("the requests to be taken up", || {
        "select exists (select from anabranch.run where entity = 'public.products' and status = 'queued')
         and not exists (select from anabranch.request)"
            .to_owned()
    })
    .await;
    shop.asked(&["resume"]);
    shop.reached("products", 2).await;
    shop.check().await;
    assert_eq!(writes(&shop), documents, "each document once");
    let runs = "select string_agg(status, ' ') from anabranch.run where entity = 'public.products'";
    assert_eq!(shop.text(runs).await, "complete");

    // A version that is deployed to both, of which the second one takes over later.
    let before = shop.text("select generation::text from anabranch.mapping where name = 'products'").await;
    let next = before.parse::<i64>().unwrap() + 1;
    shop.scene.plugin("product-search", &products().version("1.1.0"));
    tokio::task::block_in_place(|| standby.plugin("product-search", &products().version("1.1.0"))).unwrap();
    shop.reached("products", next).await;
    shop.check().await;
    assert_eq!(writes(&shop), 2 * documents);
    let from = standby.log_length();
    shop.scene.host.kill().unwrap();
    standby.wait_log(from, "streaming", SOON).await.unwrap();
    let change = "update public.products set name = 'live', active = true where id = 1";
    shop.scene.client.batch_execute(change).await.unwrap();
    let table = shop.scene.table("products");
    wait_until("the live change", SOON, async || {
        Ok(table.get("1")?.is_some_and(|document| document["title"] == "live"))
    })
    .await
    .unwrap();
    assert_eq!(
        shop.scene.mapping("products")["generation"],
        next,
        "the one that takes over rebuilds nothing"
    );
    assert_eq!(writes(&shop), 2 * documents + 1);
    assert!(standby.terminate(SOON).unwrap().success());
}
