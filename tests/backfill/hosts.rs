//! Two hosts of one installation: the second goes on where the first was.

use testkit::Host;

use crate::{
    scene::{BINARY, SOON, orders, products},
    shop::{Shop, TWO},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_goes_on_from_the_saved_cursor() {
    let mut shop = Shop::new(8000, 100).await;
    let mut standby = Host::new(BINARY).unwrap();
    // Both write to the same file, as two hosts would to the same server.
    let file = shop.scene.host.path("out.db");
    let config = TWO.replace("\"out.db\"", &format!("\"{}\"", file.display()));
    shop.scene.config_of(&standby, &config);
    tokio::task::block_in_place(|| {
        standby.plugin("product-search", &products()).unwrap();
        standby.plugin("order-summary", &orders()).unwrap();
    });
    shop.scene.host.start().unwrap();
    shop.until_run("entity = 'public.products'").await;
    shop.asked(&["rate", "2000"]);
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
