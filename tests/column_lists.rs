//! A managed publication with column lists, and the migrations that such a list stands in the way of.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::process::Output;

use scene::{SOON, Scene, products};
use serde_json::Value;
use testkit::{shop::PRODUCT_DOCUMENTS, wait_until};

/// A host whose only mapping is built, from a publication of the columns that it reads.
async fn built() -> Scene {
    let mut scene = Scene::new(400, 1).await;
    configure(&scene, "column_lists = true\n");
    scene.plugin("product-search", &products());
    scene.host.start().unwrap();
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    scene
}

fn configure(scene: &Scene, line: &str) {
    let path = scene.host.path("out.db");
    scene.config(&format!("[sink.out]\nkind = \"sqlite\"\npath = \"{}\"\n", path.display()));
    let config = std::fs::read_to_string(scene.host.path("anabranch.toml")).unwrap();
    scene.host.config(&config.replace("[plugins]\n", &format!("{line}[plugins]\n"))).unwrap();
}

/// The columns of `public.products` that the publication lists; `all` without a list.
async fn listed(scene: &Scene) -> String {
    let query = format!(
        "select coalesce((select string_agg(a.attname, ' ' order by a.attnum) from pg_attribute a
            where a.attrelid = r.prrelid and a.attnum = any(r.prattrs::int2[])), 'all')
         from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
         where p.pubname = '{}' and r.prrelid = 'public.products'::regclass",
        scene.database.name
    );
    scene.text(&query).await
}

async fn becomes(scene: &Scene, expected: &str) {
    let mut found = String::new();
    wait_until("the column list", SOON, async || {
        found = listed(scene).await;
        Ok(found == expected)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}: {found}\n{}", scene.host.log_tail()));
}

fn run(scene: &Scene, command: &str) -> (i32, Value) {
    let output: Output = tokio::task::block_in_place(|| scene.host.run(&[command, "--json"]).unwrap());
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

async fn execute(scene: &Scene, statements: &str) {
    scene.client.batch_execute(statements).await.unwrap();
}

async fn generation(scene: &Scene) -> String {
    scene.text("select format('%s/%s', built, generation) from anabranch.mapping").await
}

const READ: &str = "id name description price active tags attributes";

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_a_list_blocks_passes_while_it_is_widened_and_nothing_is_missed() {
    let scene = built().await;
    assert_eq!(listed(&scene).await, READ);
    execute(&scene, "update public.products set name = name || '!' where id % 2 = 0").await;
    let drop = "alter table public.products drop column active";
    let blocked = scene.client.batch_execute(drop).await.unwrap_err();
    assert!(format!("{blocked:?}").contains("depends on"), "{blocked:?}");

    let (code, said) = run(&scene, "widen");
    assert_eq!((code, &said["tables"][0]), (0, &"public.products".into()), "{said}");
    assert_eq!(listed(&scene).await, "all");
    let (code, said) = run(&scene, "widen");
    assert_eq!((code, said["tables"].as_array().unwrap().len()), (0, 0), "{said}");
    // It may be long until the migration is through; a term that begins meanwhile leaves it as it is.
    let mut scene = scene;
    assert!(scene.host.terminate(SOON).unwrap().success());
    scene.host.start().unwrap();
    scene.streaming().await;
    assert_eq!(listed(&scene).await, "all");
    execute(
        &scene,
        "alter table public.products rename column active to gone;
         update public.products set name = name || '?' where id % 3 = 0;
         alter table public.products drop column gone, add column active boolean not null default true;
         update public.products set stock = stock + 1",
    )
    .await;

    let (code, said) = run(&scene, "restore");
    assert_eq!((code, &said["restored"]), (0, &true.into()), "{said}");
    let mut moved: Vec<&str> = READ.split(' ').collect();
    moved.retain(|name| *name != "active");
    becomes(&scene, &[moved.join(" "), "active".to_owned()].join(" ")).await;
    execute(&scene, "update public.products set name = name || '.', active = id % 5 = 0 where id % 7 < 3")
        .await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    assert_eq!(generation(&scene).await, "1/1", "nothing is built again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_follows_the_identity_and_the_config() {
    let mut scene = built().await;
    // Only until this is noticed do the application's own updates fail.
    execute(&scene, "alter table public.products replica identity full").await;
    becomes(&scene, "all").await;
    execute(&scene, "update public.products set name = name || '!' where id % 2 = 0").await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    execute(&scene, "alter table public.products replica identity default").await;
    becomes(&scene, READ).await;

    assert!(scene.host.terminate(SOON).unwrap().success());
    configure(&scene, "");
    execute(&scene, "update public.products set name = name || '.' where id % 3 = 0").await;
    scene.host.start().unwrap();
    becomes(&scene, "all").await;
    scene.settled(PRODUCT_DOCUMENTS, "products").await;
    let (code, said) = run(&scene, "restore");
    assert_eq!((code, &said["restored"]), (0, &false.into()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_somebody_elses_is_not_widened() {
    let scene = built().await;
    execute(&scene, &format!("comment on publication \"{}\" is 'ours'", scene.database.name)).await;
    let (code, said) = run(&scene, "widen");
    assert_eq!(code, 1, "{said}");
    assert!(said["error"]["message"].as_str().unwrap().contains("not made by Anabranch"), "{said}");
    assert_eq!(listed(&scene).await, READ);
}
