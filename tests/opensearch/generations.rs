//! Rebuilds beside what readers see: the alias moves in one step, and no kill, no second bump, no cancel and no
//! truncation shows readers anything that is not whole.

use std::time::Duration;

use serde_json::json;
use testkit::{
    guests::Guest,
    shop::{insert_orders, insert_products},
    wait_until,
};

use crate::{
    configure, configure_maps,
    receiver::Receiver,
    scene::{SOON, Scene, orders, products},
    scene_with,
    server::{PLACED, READ, Server},
    settled,
};

const HEADER: &str = "authorization = \"${SEARCH_KEY}\"";
/// Rows that change while a rebuild is under way.
const LIVE: std::ops::RangeInclusive<u64> = 1..=20;

struct World {
    scene: Scene,
    server: Server,
    receiver: Receiver,
}

impl World {
    async fn new(rows: u64, more: (&str, &str)) -> Self {
        let server = Server::default();
        let answering = server.clone();
        let receiver = Receiver::start(move |request, _| answering.answer(request)).await;
        let scene = scene_with(rows, &receiver.url(""), HEADER, "shop-", more).await;
        Self { scene, server, receiver }
    }

    /// The same, and the first generation is there.
    async fn built(rows: u64) -> Self {
        let mut world = Self::new(rows, ("", "")).await;
        world.scene.host.start().unwrap();
        world.done(1).await;
        settled(&world.scene, &world.server).await;
        world
    }

    async fn wait(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        wait_until(what, SOON, async || Ok(holds(&self.server))).await.unwrap_or_else(|error| {
            panic!("{error:#}\n{:?}\n{}", self.server.indexes(), self.scene.host.log_tail())
        });
    }

    /// Waits until readers see the generation.
    async fn done(&self, generation: i64) {
        wait_until("the generation to be seen", SOON, async || {
            let query = "select count(*) from anabranch.mapping where name = 'search' and generation = $1 \
                         and built = $1 and building is null";
            let done = self.scene.client.query_one(query, &[&generation]).await;
            Ok(done.is_ok_and(|row| row.get::<_, i64>(0) == 1))
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    /// Waits until this holds for the mapping `search` as it is stored.
    async fn stored(&self, holds: &str) {
        let query = format!("select count(*) from anabranch.mapping where name = 'search' and {holds}");
        wait_until(holds, SOON, async || {
            Ok(self.scene.client.query_one(&query, &[]).await?.get::<_, i64>(0) == 1)
        })
        .await
        .unwrap_or_else(|error| {
            panic!("{error:#}\n{}\n{}", self.scene.mapping("search"), self.scene.host.log_tail())
        });
    }

    /// Waits until the mapping `search` fails with an error that has this in it.
    async fn fails_with(&self, part: &str) {
        wait_until(part, SOON, async || {
            let error = self.scene.mapping("search")["last_error"].as_str().unwrap_or_default().to_owned();
            anyhow::ensure!(error.contains(part), "{error}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", self.scene.host.log_tail()));
    }

    fn asked(&self, arguments: &[&str]) {
        let asked = self.scene.host.run(&[&["backfill"], arguments].concat()).unwrap();
        assert!(asked.status.success(), "{asked:?}");
    }

    async fn execute(&self, statement: &str) {
        self.scene.client.batch_execute(statement).await.unwrap();
    }

    /// The index that is being built, once something is in it.
    async fn building(&self) -> String {
        let mut found = None;
        wait_until("rows in a new index", SOON, async || {
            let (all, seen) = self.server.indexes();
            let is_new = |index: &String| index.starts_with(READ) && !seen.contains(index);
            found = all.into_iter().find(|index| is_new(index) && !self.server.documents(index).is_empty());
            Ok(found.is_some())
        })
        .await
        .unwrap_or_else(|error| {
            panic!("{error:#}\n{:?}\n{}", self.server.indexes(), self.scene.host.log_tail())
        });
        found.unwrap()
    }

    /// A live change reaches what readers see, and an index that is being built.
    async fn flows(&self, title: &str, building: &str) {
        self.execute(&format!("update public.products set active = true, name = '{title}' where id = 2"))
            .await;
        self.wait("a live change", |server| {
            let has = |index: &str| {
                server.documents(index).get("2").is_some_and(|document| document["title"] == title)
            };
            has(READ) && has(building)
        })
        .await;
    }

    /// Everything is right: one index, behind the alias, and nothing was seen that must not be.
    async fn ends(&self, what: &str) {
        settled(&self.scene, &self.server).await;
        self.wait("one index", |server| server.indexes().0.len() == 1).await;
        let (all, seen) = self.server.indexes();
        assert_eq!(all, seen, "{what}");
        let violations = std::mem::take(&mut self.server.state().violations);
        assert_eq!(violations, Vec::<String>::new(), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_is_seen_once_it_is_whole_and_live_changes_at_once() {
    let mut world = World::built(300).await;
    let (_, first) = world.server.indexes();
    assert!(first[0].starts_with("shop-products.anabranch-1-"), "{first:?}");
    world.server.seal(LIVE);
    world.asked(&["rate", "40"]);

    // Another version of the transform, and then another generation on top, while that is being built.
    world.scene.plugin("product-search", &products().version("1.1.0"));
    let second = world.building().await;
    assert!(second.starts_with("shop-products.anabranch-2-"), "{second}");
    world.flows("live in the second", &second).await;
    let mapping = world.scene.mapping("search");
    assert!(second.ends_with(mapping["building"].as_str().unwrap()), "{mapping}");
    // What only the old index refuses holds nothing up.
    world.server.state().refuses_odd = Some(first[0].clone());
    world.execute("update public.products set active = true, name = 'odd' where id = 3").await;
    world
        .wait("the document", |server| {
            server.documents(&second).get("3").is_some_and(|one| one["title"] == "odd")
        })
        .await;
    world.flows("after the odd one", &second).await;
    assert_ne!(world.server.documents(READ)["3"]["title"], "odd");
    world.scene.host.wait_log(0, "what readers see does not take document \"3\"", SOON).await.unwrap();

    // Nor where it refuses whole requests for it.
    world.server.state().refuses_whole = true;
    world
        .execute(
            "update public.products set active = true, name = case id when 4 then 'odd' else 'beside it' end \
             where id between 4 and 6",
        )
        .await;
    world
        .wait("the documents", |server| {
            let titles = |index: &str, ids: [&str; 2]| {
                ids.map(|id| server.documents(index).get(id).map(|one| one["title"] == "beside it"))
            };
            titles(READ, ["5", "6"]) == [Some(true); 2]
                && server.documents(&second).get("4").is_some_and(|one| one["title"] == "odd")
        })
        .await;
    assert!(world.server.documents(READ).get("4").is_none_or(|one| one["title"] != "odd"));
    world.server.state().refuses_whole = false;

    world.asked(&["request", "search"]);
    world.wait("the second to be abandoned", |server| !server.indexes().0.contains(&second)).await;
    let third = world.building().await;
    assert!(third.starts_with("shop-products.anabranch-3-"), "{third}");
    world.flows("live in the third", &third).await;
    assert_eq!(world.server.indexes().1, first, "readers see the first one still");
    assert_eq!(world.server.state().alias_changes.len(), 1, "as the first generation began");
    world.asked(&["rate", "none"]);
    let waited = world.scene.host.run(&["backfill", "wait", "search", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}");
    assert_eq!(world.server.indexes().1, std::slice::from_ref(&third), "what is complete is seen");
    world.done(3).await;
    world.ends("three generations").await;
    let moved = world.server.state().alias_changes.pop().unwrap();
    assert_eq!(
        moved,
        json!([{"add": {"index": third, "alias": READ}}, {"remove": {"index": first[0], "alias": READ}}]),
        "in one request"
    );

    let passed_over = world.scene.host.log().matches("what readers see does not take document").count();
    assert_eq!(passed_over, 1, "it is told once");

    // What was truncated is gone from both.
    world.server.unseal();
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    let fourth = world.building().await;
    world.execute("truncate public.products cascade").await;
    world
        .wait("both to be empty", |server| {
            [READ, &fourth].iter().all(|index| server.documents(index).is_empty())
        })
        .await;
    world.execute(&insert_products(1, 20, 5)).await;
    world.asked(&["rate", "none"]);
    world.done(4).await;
    world.ends("truncated").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_ends_with_the_new_index_alone() {
    let mut world = World::built(120).await;
    for (round, step) in (2..).zip([
        "PUT /shop-products.anabranch-",
        PLACED,
        "POST /shop-products.anabranch-",
        "POST /_aliases",
        "DELETE /shop-products.anabranch-",
    ]) {
        world.server.seal(LIVE);
        world.server.state().hangs = Some(step.to_owned());
        world.asked(&["request", "search"]);
        world.wait(step, |server| server.state().hung).await;
        world.execute(&format!("update public.products set price = {round} where id in (1, 7)")).await;
        world.scene.host.kill().unwrap();
        {
            let mut state = world.server.state();
            (state.hangs, state.hung) = (None, false);
        }
        world.execute(&format!("update public.products set stock = {round} where id in (2, 8)")).await;
        world.scene.host.start().unwrap();
        world.done(round).await;
        world.ends(step).await;
        let index = &world.server.indexes().1[0];
        assert!(index.starts_with(&format!("shop-products.anabranch-{round}-")), "{step}: {index}");
    }
}

/// Readers see all of it also while a purge is due, which is done with the begin, and none is begun for what waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_empties_nothing_that_readers_see_and_what_waits_begins_nothing() {
    let world = World::built(60).await;
    world.server.seal(LIVE);
    world.asked(&["request", "search", "--purge"]);
    world.done(2).await;
    world.ends("with a purge").await;

    world.asked(&["pause"]);
    world.asked(&["request", "search"]);
    world.stored("generation = 3").await;
    assert_eq!(world.scene.mapping("search")["purge"], false, "it is done");
    world.execute("update public.products set active = true, name = 'while it waits' where id = 2").await;
    world
        .wait("a live change", |server| {
            server.documents(READ).get("2").is_some_and(|one| one["title"] == "while it waits")
        })
        .await;
    assert_eq!(world.server.indexes().0.len(), 1, "{:?}", world.server.indexes());
    world.asked(&["resume"]);
    world.done(3).await;
    world.ends("after a pause").await;
}

/// Otherwise readers would stay with the generation before the one that is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_for_which_another_is_given_up_cannot_be_withdrawn() {
    let mut world = World::built(60).await;
    // What is stored says so, too.
    for (given_up, restarts) in [(2, false), (4, true)] {
        world.server.state().refuses = Some(("POST /_aliases".to_owned(), 503));
        world.asked(&["request", "search"]);
        world.stored(&format!("built = {given_up} and building is not null")).await;
        world.asked(&["pause"]);
        world.asked(&["request", "search"]);
        world.stored(&format!("generation = {}", given_up + 1)).await;
        world.asked(&["cancel", "search"]);
        if restarts {
            world.scene.host.kill().unwrap();
            world.scene.host.start().unwrap();
        }
        world.server.state().refuses = None;
        world.asked(&["resume"]);
        world.done(given_up + 1).await;
        world.ends("withdrawn").await;
    }
}

/// A place that cannot be made, one that somebody removed, and one that cannot be emptied: each halts its mapping, and no
/// longer than until another generation is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_holds_nothing_up() {
    let world = World::built(300).await;
    world.server.state().refuses = Some(("PUT /shop-products.anabranch-2-".to_owned(), 403));
    world.asked(&["request", "search"]);
    world.fails_with("it is refused").await;
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    let third = world.building().await;
    assert!(third.starts_with("shop-products.anabranch-3-"), "{third}");
    world.stored("building is not null").await;
    {
        let mut state = world.server.state();
        state.indexes.remove(&third);
        state.refuses = Some(("PUT /shop-products.anabranch-3-".to_owned(), 403));
    }
    world.execute("update public.products set active = true, name = 'gone' where id = 2").await;
    world.fails_with("of the rebuild is gone").await;
    world.execute("truncate public.products cascade").await;
    world.execute(&insert_products(1, 120, 5)).await;
    world.asked(&["rate", "none"]);
    world.asked(&["request", "search"]);
    world.done(4).await;
    world.ends("what was over").await;
}

/// What the state schema does not know yet is not done: a crash would find it where the sink is further.
#[tokio::test(flavor = "multi_thread")]
async fn readers_are_switched_once_the_end_of_the_run_is_saved() {
    let world = World::built(300).await;
    let (_, first) = world.server.indexes();
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    let second = world.building().await;
    world.stored("building is not null").await;
    let holder = world.scene.database.connect().await.unwrap();
    holder.batch_execute("begin; lock table anabranch.mapping in share mode").await.unwrap();
    world.asked(&["rate", "none"]);
    let all = world.server.documents(READ).len();
    world.wait("all of it", |server| server.documents(&second).len() == all).await;
    for round in 0..30 {
        world.flows(&format!("live {round}"), &second).await;
    }
    assert_eq!(world.server.indexes().1, first, "its end is not saved");
    holder.batch_execute("rollback").await.unwrap();
    world.done(2).await;
    world.ends("saved").await;
}

/// A place that is not known after a crash is begun again under another name: until it is recorded, nothing is in it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_delivered_to_a_place_before_it_is_recorded() {
    let more = "[[map]]\nname = \"more\"\ntransform = \"order-summary\"\nsink = \"search\"\n\
                destination = \"orders\"\n";
    let mut world = World::new(60, ("", more)).await;
    world.scene.plugin("order-summary", &orders());
    world.scene.host.start().unwrap();
    world.done(1).await;
    settled(&world.scene, &world.server).await;
    // Who records a place waits for this lock.
    world
        .execute(
            "create function public.wait() returns trigger language plpgsql as \
             $$ begin perform pg_advisory_xact_lock(4711); return new; end $$; \
             create trigger wait before update on anabranch.mapping for each row \
             when (new.building is distinct from old.building) execute function public.wait()",
        )
        .await;
    let holder = world.scene.database.connect().await.unwrap();
    holder.batch_execute("select pg_advisory_lock(4711)").await.unwrap();
    // A live change is under way before the begin, and one comes behind it, which so could go out together with it.
    world.server.state().holds = Some("\"shop-products\"".to_owned());
    let bulks = || world.receiver.received().iter().filter(|one| one.target.starts_with("/_bulk")).count();
    let before = bulks();
    world.execute("update public.products set active = true, name = 'before' where id = 2").await;
    world.wait("the change before", |_| bulks() > before).await;
    world.asked(&["request", "search"]);
    let begun = "select count(*) from anabranch.run where entity = 'public.products' and status = 'running'";
    wait_until("the run to begin", SOON, async || {
        Ok(world.scene.client.query_one(begun, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", world.scene.host.log_tail()));
    world.execute("update public.products set active = true, name = 'behind' where id = 3").await;
    // The other mapping goes on: what comes for it now is handed out behind that.
    let an_order = async |id: u64| {
        let before = world.server.documents("shop-orders").len();
        world.execute(&insert_orders(id, id, 0)).await;
        world.wait("an order", |server| server.documents("shop-orders").len() > before).await;
    };
    an_order(90_001).await;
    world.server.state().holds = None;
    let second = |server: &Server| {
        server.indexes().0.into_iter().find(|index| index.starts_with("shop-products.anabranch-2-"))
    };
    world.wait("the second one", |server| second(server).is_some()).await;
    let begun = second(&world.server).unwrap();
    for id in 90_002..90_012 {
        an_order(id).await;
    }
    assert_eq!(world.server.documents(&begun).len(), 0, "before it is recorded");
    holder.batch_execute("select pg_advisory_unlock(4711)").await.unwrap();
    world.done(2).await;
    settled(&world.scene, &world.server).await;
}

/// What was begun where nothing of the config leads to any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_for_a_mapping_that_is_gone_or_leads_elsewhere_is_removed() {
    let mut world = World::built(300).await;
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    let second = world.building().await;
    world.stored("building is not null").await;
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();

    let url = world.receiver.url("");
    let elsewhere = "[[map]]\nname = \"search\"\ntransform = \"product-search\"\nsink = \"search\"\n\
                     destination = \"elsewhere\"\n";
    configure_maps(&mut world.scene, &url, HEADER, "shop-", ("", elsewhere));
    world.scene.host.start().unwrap();
    world.wait("the second to be removed", |server| !server.indexes().0.contains(&second)).await;
    let begun = |server: &Server| {
        let (all, _) = server.indexes();
        all.into_iter().filter(|index| index.starts_with("shop-elsewhere.anabranch-")).collect::<Vec<_>>()
    };
    world.asked(&["rate", "none"]);
    world.done(3).await;
    let third = begun(&world.server);
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    world.wait("a fourth one", |server| begun(server).len() == 2).await;
    world.stored("building is not null").await;
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();

    world.scene.plugin("order-summary", &orders());
    let others = "[[map]]\nname = \"more\"\ntransform = \"order-summary\"\nsink = \"search\"\n\
                  destination = \"orders\"\n";
    configure_maps(&mut world.scene, &url, HEADER, "shop-", ("", others));
    world.scene.host.start().unwrap();
    world.wait("the fourth to be removed", |server| begun(server) == third).await;
}

/// What was changed while nothing of the table was published is not in what was begun.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_is_begun_anew_where_its_table_was_not_published_for_a_while() {
    let more = "[[map]]\nname = \"more\"\ntransform = \"order-summary\"\nsink = \"search\"\n\
                destination = \"orders\"\n";
    let mut world = World::new(300, ("", more)).await;
    world.scene.plugin("order-summary", &orders());
    world.scene.host.start().unwrap();
    world.done(1).await;
    world.asked(&["rate", "20"]);
    world.asked(&["request", "search"]);
    let second = world.building().await;
    world.stored("building is not null").await;
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();
    world.execute("alter table public.products drop constraint products_pkey cascade").await;
    world.scene.host.start().unwrap();
    world.fails_with("primary key").await;
    let read = world.server.documents(&second);
    let gone = read.keys().next().unwrap();
    world.execute(&format!("delete from public.products where id = {gone}")).await;
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();
    world.execute("alter table public.products add primary key (id)").await;
    world.scene.host.start().unwrap();
    world.asked(&["rate", "none"]);
    world.stored("generation > 2 and built = generation and building is null").await;
    settled(&world.scene, &world.server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_in_the_way_is_told_and_replaced_only_when_that_is_asked_for() {
    let mut world = World::new(60, ("", "")).await;
    let plain = |id: &str| (id.to_owned(), json!({"title": "of the user"}));
    world
        .server
        .state()
        .indexes
        .entry(READ.to_owned())
        .or_default()
        .documents
        .extend([plain("1"), plain("x")]);
    world.scene.host.start().unwrap();
    let error = world.scene.error_of("search").await;
    for part in ["`shop-products` is an index", "replace_index = true", "(index-in-the-way, fatal)"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(world.server.documents(READ).len(), 2, "nothing of it was touched");
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();

    let url = world.receiver.url("");
    configure(&mut world.scene, &url, HEADER, "shop-", (", replace_index = true", ""));
    world.scene.host.start().unwrap();
    world.done(1).await;
    world.ends("replaced").await;
    let moved = world.server.state().alias_changes.pop().unwrap();
    assert!(moved.to_string().contains(r#"{"remove_index":{"index":"shop-products"}}"#), "{moved}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_change_that_comes_before_the_first_reading_leaves_no_index_in_the_way() {
    let mut world = World::built(60).await;
    world.asked(&["pause"]);
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();
    let url = world.receiver.url("");
    let more = "[[map]]\nname = \"more\"\ntransform = \"order-summary\"\nsink = \"search\"\n\
                destination = \"orders\"\n";
    world.scene.plugin("order-summary", &orders());
    configure(&mut world.scene, &url, HEADER, "shop-", ("", more));
    world.scene.host.start().unwrap();
    world
        .wait("the place of the first generation", |server| {
            server.indexes().0.iter().any(|index| index.starts_with("shop-orders"))
        })
        .await;
    world.execute(&insert_orders(90_001, 90_009, 0)).await;
    world.wait("the live rows", |server| server.documents("shop-orders").len() == 9).await;
    assert!(!world.server.indexes().0.contains(&"shop-orders".to_owned()), "{:?}", world.server.indexes());
    world.asked(&["resume"]);
    let waited = world.scene.host.run(&["backfill", "wait", "more", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}\n{}", world.scene.host.log_tail());
    world.wait("all of them", |server| server.documents("shop-orders").len() > 9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_is_not_read_is_rebuilt_like_any_other() {
    let more = "[[map]]\nname = \"notes\"\ntable = \"public.notes\"\ntransform = \"picky\"\nsink = \"search\"\n\
                destination = \"notes\"\nauto_backfill = false\n";
    let mut world = World::new(5, ("", more)).await;
    world
        .execute(
            "create table public.notes (id bigint primary key, text text); \
             insert into public.notes select n, 'good ' || n from generate_series(1, 30) as n",
        )
        .await;
    world.scene.plugin("picky", &Guest::new("plugins/fixtures/picky"));
    world.scene.host.start().unwrap();
    world.done(1).await;
    world.execute("insert into public.notes values (31, 'good 31')").await;
    world.wait("a live row", |server| server.documents("shop-notes").len() == 1).await;
    let of_notes = |server: &Server| {
        let names = server.indexes().0.into_iter();
        names.filter(|index| index.starts_with("shop-notes")).collect::<Vec<_>>()
    };
    assert_eq!(of_notes(&world.server), ["shop-notes.anabranch-0-00000000"], "no index of the alias' name");
    world.scene.host.kill().unwrap();
    world.execute("insert into public.notes values (32, 'good 32')").await;
    world.scene.host.start().unwrap();
    world.wait("another one", |server| server.documents("shop-notes").len() == 2).await;
    world.asked(&["request", "notes"]);
    let waited = world.scene.host.run(&["backfill", "wait", "notes", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}\n{}", world.scene.host.log_tail());
    assert_eq!(world.server.documents("shop-notes").len(), 32);
    world.wait("the index that was made first to be gone", |server| of_notes(server).len() == 1).await;
    assert!(
        of_notes(&world.server)[0].starts_with("shop-notes.anabranch-2-"),
        "{:?}",
        world.server.indexes()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_generation_is_seen_as_it_grows_also_when_it_is_begun_again() {
    let mut world = World::new(300, ("", "")).await;
    // Nothing begins before its record can be held up.
    world.server.state().first = vec![503; 1000];
    world.scene.host.start().unwrap();
    wait_until("the mapping's record", SOON, async || {
        let query = "select count(*) from anabranch.mapping where status = 'failing'";
        Ok(world.scene.client.query_one(query, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 1))
    })
    .await
    .unwrap();
    world.asked(&["rate", "40"]);
    let holder = world.scene.database.connect().await.unwrap();
    holder.batch_execute("begin; select from anabranch.mapping for update").await.unwrap();
    world.server.state().first.clear();
    world.wait("the place", |server| !server.indexes().1.is_empty()).await;
    world.execute(&insert_products(9_001, 9_020, 1)).await;
    // It must not come; where it does, that is soon.
    let comes = async || Ok(!world.server.documents(READ).is_empty());
    let _ = wait_until("a live row", Duration::from_secs(1), comes).await;
    world.scene.host.kill().unwrap();
    let end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity \
               where wait_event_type = 'Lock' and datname = current_database()";
    world.execute(end).await;
    holder.batch_execute("rollback").await.unwrap();
    assert!(world.server.documents(READ).is_empty(), "delivered to a place that is not recorded");

    world.scene.host.start().unwrap();
    let is_read = |id: &String| id.parse::<u64>().unwrap() <= 300;
    world.wait("rows that are read", |server| server.documents(READ).keys().any(is_read)).await;
    let built = "select built from anabranch.mapping";
    let built: i64 = world.scene.client.query_one(built, &[]).await.unwrap().get(0);
    assert_eq!(built, 0, "they were seen with the last one only");
    world.asked(&["rate", "none"]);
    world.done(1).await;
    world.ends("begun twice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_row_that_is_skipped_is_there_when_readers_are_switched() {
    let more = "[[map]]\nname = \"notes\"\ntable = \"public.notes\"\ntransform = \"picky\"\nsink = \"search\"\n\
                destination = \"notes\"\non_failure = \"quarantine\"\n";
    let mut world = World::new(5, ("", more)).await;
    world
        .execute(
            "create table public.notes (id bigint primary key, text text); \
             insert into public.notes select n, 'good ' || n from generate_series(1, 300) as n; \
             update public.notes set text = 'bad-both' where id = 5",
        )
        .await;
    world.scene.plugin("picky", &Guest::new("plugins/fixtures/picky"));
    world.scene.host.start().unwrap();
    world.wait("the first generation", |server| server.documents("shop-notes").len() == 300).await;
    let waited = world.scene.host.run(&["backfill", "wait", "notes", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}");
    let other = world.server.state().indexes.remove("shop-beside.anabranch-0-00000000").unwrap();
    assert!(other.documents.contains_key("5"));

    world.asked(&["rate", "5"]);
    world.asked(&["request", "notes"]);
    let second = |server: &Server| {
        server.indexes().0.into_iter().find(|index| index.starts_with("shop-notes.anabranch-2-"))
    };
    world.wait("a second one", |server| second(server).is_some()).await;
    let second = second(&world.server).unwrap();
    world.wait("some rows of it", |server| !server.documents(&second).is_empty()).await;
    world.execute("update public.notes set text = 'later ' || id where id = 290").await;
    world.wait("the row that is not read yet", |server| server.documents(&second).contains_key("290")).await;
    assert!(world.server.documents(&second).len() < 290, "it was read");
    assert_eq!(world.server.documents("shop-notes")["290"]["text"], "good 290", "as the plugin left it");
    let built = world.server.documents("shop-beside");
    assert!(built.contains_key("5"), "what leads elsewhere is built in place: {built:?}");
    // One that fails as a row that is read has failed, and is kept as any other. So is what the new index refuses as well,
    // which is not told as what only the old one does.
    world.execute("update public.notes set text = 'later-bad' where id = 280").await;
    world.execute("update public.notes set text = 'refused' where id = 270").await;
    let kept = "select count(*) from anabranch.quarantine where row_id in ('270', '280') and generation = 2";
    wait_until("the rows in quarantine", SOON, async || {
        Ok(world.scene.client.query_one(kept, &[]).await?.get::<_, i64>(0) == 2)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", world.scene.host.log_tail()));
    assert_eq!(world.server.documents("shop-notes")["280"]["text"], "good 280");
    assert!(!world.scene.host.log().contains("what readers see does not take"), "{}", world.scene.host.log());
    world.asked(&["rate", "none"]);
    world.wait("the switch", |server| server.documents("shop-notes")["290"]["text"] == "later 290").await;
    assert_eq!(world.server.documents("shop-notes").len(), 298);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_becomes_shared_is_built_in_place() {
    let map = |name: &str| {
        format!(
            "[[map]]\nname = \"{name}\"\ntable = \"public.{name}\"\ntransform = \"picky\"\nsink = \"search\"\n\
             destination = \"notes\"\n"
        )
    };
    let mut world = World::new(5, ("", &map("notes"))).await;
    for table in ["notes", "others"] {
        world
            .execute(&format!(
                "create table public.{table} (id bigint primary key, text text); \
                 alter table public.{table} replica identity full; \
                 insert into public.{table} select n, '{table} ' || n from generate_series(1, 120) as n"
            ))
            .await;
    }
    world.scene.plugin("picky", &Guest::new("plugins/fixtures/picky").feature("named"));
    world.scene.host.start().unwrap();
    let waited = world.scene.host.run(&["backfill", "wait", "notes", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}\n{}", world.scene.host.log_tail());
    world.asked(&["rate", "5"]);
    world.asked(&["request", "notes"]);
    let second = |server: &Server| {
        server.indexes().0.into_iter().find(|index| index.starts_with("shop-notes.anabranch-2-"))
    };
    world.wait("a second one", |server| second(server).is_some()).await;
    let building = "select count(*) from anabranch.mapping where building is not null";
    wait_until("its record", SOON, async || {
        Ok(world.scene.client.query_one(building, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await
    .unwrap();
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();

    // What is begun is given up, as soon as the server lets it.
    let url = world.receiver.url("");
    let both = map("notes") + &map("others");
    configure(&mut world.scene, &url, HEADER, "shop-", ("", &both));
    world.server.state().refuses = Some(("GET /shop-notes/_alias".to_owned(), 503));
    world.scene.host.start().unwrap();
    world.scene.host.wait_log(0, "its destination is shared now", SOON).await.unwrap();
    world.asked(&["rate", "none"]);
    world.scene.error_of("notes").await;
    world.server.state().refuses = None;
    world.wait("both tables", |server| server.documents("shop-notes").len() == 240).await;
    world.wait("the begun one to be gone", |server| second(server).is_none()).await;
    // Its run has failed as well, and is tried again in a while.
    let complete = ["backfill", "wait", "notes", "--timeout", "60s"];
    wait_until("the run", SOON, async || Ok(world.scene.host.run(&complete)?.status.success()))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", world.scene.host.log_tail()));

    // Where it never does, that is told and holds nothing up.
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();
    configure(&mut world.scene, &url, HEADER, "shop-", ("", &map("notes")));
    world.scene.host.start().unwrap();
    world.asked(&["rate", "5"]);
    world.asked(&["request", "notes"]);
    wait_until("its record", SOON, async || {
        Ok(world.scene.client.query_one(building, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", world.scene.host.log_tail()));
    world.scene.host.terminate(Duration::from_secs(30)).unwrap();
    configure(&mut world.scene, &url, HEADER, "shop-", ("", &both));
    world.server.state().refuses = Some(("GET /shop-notes/_alias".to_owned(), 403));
    let from = world.scene.host.log_length();
    world.scene.host.start().unwrap();
    world.asked(&["rate", "none"]);
    world.scene.host.wait_log(from, "could not be removed: remove it by hand", SOON).await.unwrap();
    let waited = world.scene.host.run(&["backfill", "wait", "notes", "--timeout", "60s"]).unwrap();
    assert!(waited.status.success(), "{waited:?}\n{}", world.scene.host.log_tail());
}
