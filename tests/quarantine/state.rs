//! Transforms that keep something from one call to the next: around a halt, and around a row that crashes them.

use testkit::{guests::Guest, wait_until};

use super::{
    notes::Notes,
    scene::{SOON, Scene},
    web::Web,
};

const GRANTS: &str = "[plugins.capable]\ncall_deadline = \"20s\"\ninstances = 4\n[plugins.capable.grants]\n\
                      query = true\nstate = true\nmetrics = true\n";

/// A table of things, and a mapping of it whose plugin counts in its state what it is asked to count.
async fn counting(map: &str) -> Notes {
    let scene = Scene::new(1, 1).await;
    scene
        .client
        .batch_execute(
            "create table public.things (id int primary key, ask text not null, arg text not null)",
        )
        .await
        .unwrap();
    let capable = ["query", "state", "metrics"]
        .into_iter()
        .fold(Guest::new("plugins/fixtures/capable"), |guest, feature| guest.feature(feature));
    scene.plugin("capable", &capable);
    scene.config(&format!(
        "{GRANTS}[sink.out]\nkind = \"sqlite\"\npath = \"out.db\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
         [[map]]\nname = \"notes\"\ntransform = \"capable\"\nsink = \"out\"\ndestination = \"notes\"\n\
         on_failure = \"quarantine\"\n{map}\n"
    ));
    Notes { scene }
}

/// What was counted for a thing.
async fn counted(notes: &Notes, id: i32) -> u64 {
    let table = notes.destination();
    wait_until("the document", SOON, async || Ok(table.get(&id.to_string())?.is_some()))
        .await
        .unwrap_or_else(|error| panic!("{id}: {error:#}\n{}", notes.scene.host.log_tail()));
    table.get(&id.to_string()).unwrap().unwrap()["answer"].as_str().unwrap().parse().unwrap()
}

/// Work that halts before its entries are stored is transformed again, and nothing after it has been meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn state_is_written_in_order_while_a_mapping_halts() {
    let mut notes = counting("quarantine_limit = 1").await;
    let from = notes.scene.host.log_length();
    notes.scene.host.start().unwrap();
    let web = Web::of(&mut notes.scene.host, from).await;
    notes.is_built(1).await;
    notes.execute("insert into public.things values (1, 'poison', '')").await;
    notes.quarantined(&["1"]).await;
    notes.execute("insert into public.things values (2, 'count', 'n'), (3, 'poison', '')").await;
    notes.fails_with("quarantine_limit").await;

    let handed = |text: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with("anabranch_batches_total{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let before = handed(&web.get("/metrics").await.body);
    for id in 4..=6 {
        notes.execute(&format!("insert into public.things values ({id}, 'count', 'n')")).await;
    }
    wait_until("more to be handed to the mapping", SOON, async || {
        Ok(handed(&web.get("/metrics").await.body) > before)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    let attempts = notes.scene.mapping("notes")["attempts"].as_i64();
    wait_until("another attempt", SOON, async || {
        Ok(notes.scene.mapping("notes")["attempts"].as_i64() > attempts)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    assert_eq!(notes.cli(&["drop", "--key", "1"]).0, 0);
    notes.quarantined(&["3"]).await;

    let mut counts = Vec::new();
    for id in [2, 4, 5, 6] {
        counts.push(counted(&notes, id).await);
    }
    let first = counts[0];
    assert!(first > 1, "it was tried again: {counts:?}");
    assert_eq!(counts, [first, first + 1, first + 2, first + 3], "one after the other");
}

/// A batch with rows that crash the guest is taken apart: every other row is counted once, in order.
#[tokio::test(flavor = "multi_thread")]
async fn state_counts_each_row_once_around_those_that_crash_the_guest() {
    let mut notes = counting("").await;
    notes.scene.host.start().unwrap();
    notes.is_built(1).await;
    notes
        .execute(
            "insert into public.things select n, case when n in (7, 13, 14) then 'trap' else 'count' end, 'n' \
             from generate_series(1, 20) as n",
        )
        .await;
    notes.quarantined(&["13", "14", "7"]).await;
    let mut counts = Vec::new();
    for id in (1..=20).filter(|id| ![7, 13, 14].contains(id)) {
        counts.push(counted(&notes, id).await);
    }
    assert_eq!(counts, (1..=17).collect::<Vec<u64>>());
    let query = "select convert_from(value, 'utf8') from anabranch.guest_state where key = 'n'";
    assert_eq!(notes.scene.text(query).await, "17");
}
