//! A publication that somebody drops, makes anew or takes tables out of: what was not published is not in the
//! stream, and is built again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::time::Duration;

use scene::{SOON, Scene, orders, products};
use testkit::{
    shop::{ORDER_DOCUMENTS, PRODUCT_DOCUMENTS},
    wait_until,
};

/// A host whose two mappings are built.
async fn built() -> Scene {
    let mut scene = Scene::new(400, 50).await;
    let path = scene.host.path("out.db");
    scene.config(&format!("[sink.out]\nkind = \"sqlite\"\npath = \"{}\"\n", path.display()));
    scene.plugin("product-search", &products());
    scene.plugin("order-summary", &orders());
    scene.host.start().unwrap();
    settled(&scene).await;
    scene
}

async fn settled(scene: &Scene) {
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene.settled(ORDER_DOCUMENTS, "orders").await;
}

/// Waits until each entity was built so often, by name: `entity built/generation`.
async fn generations(scene: &Scene, expected: &str) {
    let query = "select string_agg(format('%s %s/%s', entity, built, generation), ', ' order by entity)
        from anabranch.mapping";
    let mut found = String::new();
    let waited = wait_until("the generations", SOON, async || {
        found = scene.text(query).await;
        Ok(found == expected)
    })
    .await;
    waited.unwrap_or_else(|error| panic!("{error:#}: {found}\n{}", scene.host.log_tail()));
}

async fn execute(scene: &Scene, statements: &str) {
    let statements = statements.replace("NAME", &scene.database.name);
    scene.client.batch_execute(&statements).await.unwrap();
}

const CHANGE_BOTH: &str = "update public.products set name = name || '!' where id % 2 = 0; \
                           update public.orders set total = total + 1 where id % 3 = 0;";

#[tokio::test(flavor = "multi_thread")]
async fn c041_a_publication_that_is_dropped_while_streaming_is_noticed_and_repaired() {
    let mut scene = built().await;
    execute(&scene, &format!("drop publication \"NAME\"; {CHANGE_BOTH}")).await;
    scene.host.wait_log(0, "THE STREAM HAS A GAP: the publication", SOON).await.unwrap();
    settled(&scene).await;
    generations(&scene, "public.orders 2/2, public.products 2/2").await;
    execute(&scene, CHANGE_BOTH).await;
    settled(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c041_a_publication_that_was_made_anew_while_stopped_is_noticed_and_repaired() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    execute(
        &scene,
        &format!(
            "drop publication \"NAME\"; {CHANGE_BOTH} \
             create publication \"NAME\" for table only public.products, only public.orders \
             with (publish_via_partition_root = true); \
             comment on publication \"NAME\" is 'managed by anabranch'"
        ),
    )
    .await;
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    scene.host.wait_log(from, "was dropped and made anew", SOON).await.unwrap();
    settled(&scene).await;
    generations(&scene, "public.orders 2/2, public.products 2/2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_taken_out_is_published_and_built_again_and_no_other() {
    let mut scene = built().await;
    let from = scene.host.log_length();
    execute(&scene, "alter publication \"NAME\" drop table public.products").await;
    execute(&scene, CHANGE_BOTH).await;
    scene.host.wait_log(from, "public.products was taken out of the publication", SOON).await.unwrap();
    settled(&scene).await;
    generations(&scene, "public.orders 1/1, public.products 2/2").await;

    assert!(scene.host.terminate(SOON).unwrap().success());
    execute(&scene, "alter publication \"NAME\" drop table public.orders").await;
    execute(&scene, CHANGE_BOTH).await;
    scene.host.start().unwrap();
    settled(&scene).await;
    generations(&scene, "public.orders 2/2, public.products 2/2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_while_a_table_was_not_published_is_not_brought_back_from_the_slot() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    let config = std::fs::read_to_string(scene.host.path("anabranch.toml")).unwrap();
    scene.host.config(&config.replace("[plugins]\n", "purge_on_repair = true\n[plugins]\n")).unwrap();
    // A backlog that is still being delivered when the destination is emptied, and deletes that nobody will hear of.
    for round in 0..120 {
        execute(&scene, &format!("update public.products set name = 'n{round} ' || id where id <= 300"))
            .await;
    }
    execute(&scene, "alter publication \"NAME\" drop table public.products").await;
    execute(&scene, "delete from public.products where id between 10 and 120").await;
    scene.host.start().unwrap();
    generations(&scene, "public.orders 1/1, public.products 2/2").await;
    execute(&scene, CHANGE_BOTH).await;
    settled(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_of_the_publication_is_a_gap() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    execute(&scene, CHANGE_BOTH).await;
    let config = std::fs::read_to_string(scene.host.path("anabranch.toml")).unwrap();
    let name = &scene.database.name;
    let renamed =
        config.replace(&format!("publication = \"{name}\""), &format!("publication = \"{name}_2\""));
    scene.host.config(&renamed).unwrap();
    let from = scene.host.log_length();
    scene.host.start().unwrap();
    scene.host.wait_log(from, "THE STREAM HAS A GAP: the publication is", SOON).await.unwrap();
    settled(&scene).await;
    generations(&scene, "public.orders 2/2, public.products 2/2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_that_were_left_out_for_a_while_are_made_good() {
    let mut scene = built().await;
    let from = scene.host.log_length();
    execute(&scene, "alter publication \"NAME\" set (publish = 'insert')").await;
    execute(&scene, CHANGE_BOTH).await;
    scene.host.wait_log(from, "leaves operations out", SOON).await.unwrap();
    generations(&scene, "public.orders 2/2, public.products 2/2").await;
    settled(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_taken_out_of_a_publication_of_somebody_elses_is_built_again_once_it_is_back() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    let config = std::fs::read_to_string(scene.host.path("anabranch.toml")).unwrap();
    let name = scene.database.name.clone();
    let line = format!("publication = \"{name}\"\n");
    assert!(config.contains(&line));
    scene.host.config(&config.replace(&line, &format!("{line}manage_publication = false\n"))).unwrap();
    scene.host.start().unwrap();
    scene.streaming().await;
    let from = scene.host.log_length();
    execute(&scene, "alter publication \"NAME\" drop table public.products").await;
    execute(&scene, CHANGE_BOTH).await;
    scene.host.wait_log(from, "does not run, and is built again once it can", SOON).await.unwrap();
    execute(&scene, "alter publication \"NAME\" add table only public.products").await;
    generations(&scene, "public.orders 1/1, public.products 2/2").await;
    settled(&scene).await;
}

/// The same where it was being read for the first time, and where a transaction that is open now has written to it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_table_misses_outside_a_publication_of_somebody_elses_is_read_again() {
    let mut scene = built().await;
    assert!(scene.host.terminate(SOON).unwrap().success());
    let config = std::fs::read_to_string(scene.host.path("anabranch.toml")).unwrap();
    let line = format!("publication = \"{}\"\n", scene.database.name);
    let config = config.replace(&line, &format!("{line}manage_publication = false\n"));
    scene.host.config(&format!("{config}\n[backfill]\nchunk_size = 10\n")).unwrap();
    scene.host.start().unwrap();
    scene.streaming().await;
    run(&scene, &["backfill", "rate", "20"]);
    run(&scene, &["backfill", "request", "products"]);
    let begun = "select count(*) from anabranch.run where entity = 'public.products' and status = 'running' and rows > 0";
    wait_until("a part to be read", SOON, async || {
        Ok(scene.client.query_one(begun, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await
    .unwrap();
    let from = scene.host.log_length();
    execute(&scene, "alter publication \"NAME\" drop table public.products").await;
    scene.host.wait_log(from, "does not run, and is built again once it can", SOON).await.unwrap();
    execute(&scene, CHANGE_BOTH).await;
    let open = scene.database.connect().await.unwrap();
    open.batch_execute("begin; update public.products set name = 'open', active = true where id = 2")
        .await
        .unwrap();
    let from = scene.host.log_length();
    execute(&scene, "alter publication \"NAME\" add table only public.products").await;
    scene.host.wait_log(from, "streaming", SOON).await.unwrap();
    run(&scene, &["backfill", "rate", "none"]);
    // What it has written is in no stream, so that no reading may miss it.
    let whole = "select count(*) from anabranch.run where entity = 'public.products' and status = 'complete'";
    let early = wait_until("a run that waits for nobody", Duration::from_secs(2), async || {
        Ok(scene.client.query_one(whole, &[]).await?.get::<_, i64>(0) == 1)
    });
    assert!(early.await.is_err(), "{}", scene.host.log_tail());
    open.batch_execute("commit").await.unwrap();
    generations(&scene, "public.orders 1/1, public.products 2/2").await;
    settled(&scene).await;
}

fn run(scene: &Scene, arguments: &[&str]) {
    let said = scene.host.run(arguments).unwrap();
    assert!(said.status.success(), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c041_a_publication_that_is_renamed_away_and_back_does_not_stop_the_stream_for_ever() {
    let scene = built().await;
    execute(&scene, "alter publication \"NAME\" rename to elsewhere").await;
    execute(&scene, CHANGE_BOTH).await;
    execute(&scene, "alter publication elsewhere rename to \"NAME\"").await;
    settled(&scene).await;
    execute(&scene, CHANGE_BOTH).await;
    settled(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_not_ours_any_more_does_not_hide_what_becomes_of_the_tables() {
    let mut scene = built().await;
    let from = scene.host.log_length();
    execute(&scene, "comment on publication \"NAME\" is 'mine now'").await;
    scene.host.wait_log(from, "was not made by Anabranch", SOON).await.unwrap();
    let from = scene.host.log_length();
    execute(&scene, "alter table public.orders drop constraint orders_pkey").await;
    scene.host.wait_log(from, "primary key", SOON).await.unwrap();
    let log = scene.host.log()[from..].to_owned();
    assert!(!log.contains("was not made by Anabranch"), "it is told once: {log}");
    generations(&scene, "public.orders 1/1, public.products 1/1").await;
}
