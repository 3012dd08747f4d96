//! Changes that a transform fails for.

use super::{
    notes::{Notes, TO_SQLITE, mended},
    scene::SOON,
};

#[tokio::test(flavor = "multi_thread")]
async fn c092_a_row_that_fails_is_kept_with_all_that_is_known_of_it_and_the_others_go_on() {
    let mut notes = Notes::built(20, "").await;
    let before = notes.position().await;
    notes
        .execute(
            "begin; update public.notes set text = 'fine' where id = 6; \
             update public.notes set text = 'poison pill', data = '{\"a\": \"\\u0000\"}' where id = 7; \
             update public.notes set text = 'fine' where id = 8; commit",
        )
        .await;
    let after = notes.position().await;
    notes.quarantined(&["7"]).await;
    notes.settled_but(&[(7, Some("good 7"))], false).await;
    notes.passed(&after).await;

    let [entry] = notes.entries().try_into().unwrap();
    let says = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (says("mapping"), says("entity"), says("key")),
        ("notes".into(), "public.notes".into(), "7".into())
    );
    assert_eq!(
        (says("operation"), says("origin"), says("stage")),
        ("update".into(), "stream".into(), "transform".into())
    );
    assert_eq!((says("code"), says("reason")), ("asked".into(), "it was asked to fail".into()));
    assert!(says("plugin").starts_with("picky 1.0.0"), "{entry}");
    assert_eq!((entry["index"].as_i64(), entry["attempts"].as_i64()), (Some(1), Some(1)));
    let between = format!("select (pg_lsn '{}' between '{before}' and '{after}')::text", says("lsn"));
    assert_eq!(notes.scene.text(&between).await, "true");

    let id = entry["id"].to_string();
    let (code, shown) = notes.json(&["show", &id]);
    assert_eq!(code, 0);
    let shown = &shown["entries"][0];
    assert_eq!(shown["payload"]["new"]["text"], "poison pill");
    assert_eq!(shown["payload"]["new"]["id"], "7");
    assert!(shown["document"].is_null(), "{shown}");
    let (code, text) = notes.cli(&["show", &id]);
    assert!(
        code == 0 && text.contains("text = \"poison pill\"") && text.contains("change 1 of its"),
        "{text}"
    );
    let (code, text) = notes.cli(&["show", &id, "4711"]);
    assert!(code == 1 && text.contains("there is no entry 4711"), "{code} {text}");

    let line = notes.scene.host.wait_log(0, "put into quarantine", SOON).await.unwrap();
    assert!(line.contains("key=\"7\"") && line.contains(&says("lsn")) && line.contains("asked"), "{line}");
    let status = notes.scene.mapping("notes");
    assert_eq!((status["quarantined"].as_u64(), status["status"].as_str()), (Some(1), Some("running")));
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_without_a_quarantine_a_mapping_halts_and_keeps_the_slot() {
    let mut notes = Notes::new(20, "", TO_SQLITE).await;
    notes.start().await;
    notes.execute("update public.notes set text = 'poison' where id = 7").await;
    let after = notes.position().await;
    notes.execute("update public.notes set text = 'fine' where id = 8").await;
    let error = notes.fails_with("it was asked to fail").await;
    assert!(error.contains("row 7 of public.notes"), "{error}");
    notes.settled_but(&[(7, Some("good 7")), (8, Some("good 8"))], false).await;
    assert!(notes.held_before(&after).await);
    assert!(notes.entries().is_empty());
    notes.scene.plugin("picky", &mended());
    notes.settled(true).await;
    notes.passed(&after).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_what_may_work_later_and_what_works_for_nobody_halts_with_a_quarantine_too() {
    for word in ["retry", "fatal"] {
        let mut notes = Notes::built(20, "").await;
        notes.execute(&format!("update public.notes set text = '{word}' where id = 7")).await;
        let after = notes.position().await;
        let error = notes.fails_with("it was asked to fail").await;
        assert!(error.contains("row 7 of public.notes") && error.contains(word), "{error}");
        assert!(notes.entries().is_empty() && notes.held_before(&after).await);
        notes.scene.plugin("picky", &mended());
        notes.settled(true).await;
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

/// The first batch is of the backfill, the second of the stream; each has 1000 rows, of which one is bad.
#[tokio::test(flavor = "multi_thread")]
async fn one_row_of_a_thousand_that_crashes_hangs_or_swallows_the_plugin_is_found() {
    for word in ["trap", "loop", "allocate"] {
        let mut notes = Notes::new(1000, "on_failure = \"quarantine\"", TO_SQLITE).await;
        notes.execute(&format!("update public.notes set text = '{word} a' where id = 123")).await;
        notes.start().await;
        notes.quarantined(&["123"]).await;
        notes.settled_but(&[(123, None)], false).await;
        let [entry] = notes.entries().try_into().unwrap();
        assert_eq!((entry["operation"].as_str(), entry["origin"].as_str()), (Some("read"), Some("backfill")));
        assert!(entry["index"].is_null() && entry["committed"].is_null());

        notes
            .execute(&format!(
                "insert into public.notes select n, case n when 1999 then '{word} b' else 'live ' || n end \
                 from generate_series(1001, 2000) as n"
            ))
            .await;
        notes.quarantined(&["123", "1999"]).await;
        notes.settled_but(&[(123, None), (1999, None)], false).await;
        let code = notes.entries()[1]["code"].as_str().unwrap().to_owned();
        let wanted = match word {
            "trap" => "plugin-trap",
            "loop" => "plugin-deadline",
            _ => "plugin-memory",
        };
        assert_eq!(code, wanted, "{word}");
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_fails_for_everything_halts_and_floods_nothing() {
    for word in ["trap", "poison", "loop"] {
        let mut notes = Notes::built(20, "").await;
        notes
            .execute(&format!(
                "insert into public.notes select n, '{word} ' || n from generate_series(101, 500) as n"
            ))
            .await;
        let after = notes.position().await;
        let error = notes.fails_with("the plugin is taken to be at fault").await;
        assert!(notes.keys().await.is_empty(), "{word}: {:?}", notes.keys().await);
        assert!(notes.held_before(&after).await, "{word}: {error}");
        // One transaction each: the limit is over batches, too.
        notes.scene.plugin("picky", &mended());
        notes.settled(true).await;
        notes.passed(&after).await;
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_one_by_one_for_long_halts_as_well() {
    let notes = Notes::built(20, "quarantine_in_a_row = 10").await;
    for id in 101..=110 {
        notes.execute(&format!("insert into public.notes values ({id}, 'poison')")).await;
    }
    let ten: Vec<String> = (101..=110).map(|id: i64| id.to_string()).collect();
    let ten: Vec<&str> = ten.iter().map(String::as_str).collect();
    notes.quarantined(&ten).await;
    notes.execute("insert into public.notes values (111, 'poison')").await;
    let error = notes.fails_with("more than 10 changes one after another").await;
    assert!(error.contains("quarantine_in_a_row"), "{error}");
    notes.quarantined(&ten).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn later_changes_of_a_row_close_its_entry_but_not_those_that_leave_it_as_it_is() {
    let notes = Notes::built(20, "").await;
    let all = "1 2 3 4 5".split(' ').collect::<Vec<_>>();
    notes.execute("update public.notes set text = 'poison 1' where id <= 5").await;
    notes.quarantined(&all).await;
    // Skipped: the document of the row is older than the source still.
    notes.execute("update public.notes set text = 'skip' where id = 1").await;
    // Fails again: the same entry, with the newest change.
    notes.execute("update public.notes set text = 'poison 2' where id = 2").await;
    // A good one, a delete, a key that moves.
    notes.execute("update public.notes set text = 'better' where id = 3").await;
    notes.execute("delete from public.notes where id = 4").await;
    notes.execute("update public.notes set id = 105, text = 'moved' where id = 5").await;
    notes.quarantined(&["1", "2"]).await;
    notes.settled_but(&[(1, Some("good 1")), (2, Some("good 2"))], false).await;
    let entries = notes.entries();
    let attempts: Vec<_> = entries.iter().map(|entry| entry["attempts"].as_i64().unwrap()).collect();
    assert_eq!(attempts, [1, 2]);
    let (_, shown) = notes.json(&["show", &entries[1]["id"].to_string()]);
    assert_eq!(shown["entries"][0]["payload"]["new"]["text"], "poison 2");
    notes.execute("truncate public.notes").await;
    notes.quarantined(&[]).await;
    notes.settled(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_moves_loses_its_old_document_though_the_new_one_fails() {
    let notes = Notes::built(20, "").await;
    notes.execute("update public.notes set id = 107, text = 'poison' where id = 7").await;
    notes.quarantined(&["107"]).await;
    notes.settled_but(&[(107, None)], false).await;
    let (_, shown) = notes.json(&["show", &notes.entries()[0]["id"].to_string()]);
    let payload = &shown["entries"][0]["payload"];
    assert_eq!((&payload["new"]["id"], &payload["old"]["id"]), (&"107".into(), &"7".into()));
    // And back again, good: the entry of the id in between is over with it.
    notes.execute("update public.notes set id = 7, text = 'good again' where id = 107").await;
    notes.quarantined(&[]).await;
    notes.settled(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_came_incomplete_and_may_not_be_read_again_are_kept_one_by_one() {
    let notes = Notes::built(20, "reread = false").await;
    // Large enough to be stored out of line, and not touched by the update.
    notes.execute("alter table public.notes alter column text set storage external").await;
    notes.execute("update public.notes set text = repeat('x', 20000) where id in (3, 7)").await;
    notes.settled(false).await;
    notes
        .execute("begin; update public.notes set data = '1' where id in (3, 7); update public.notes set data = '1' where id = 8; commit")
        .await;
    notes.quarantined(&["3", "7"]).await;
    assert_eq!(notes.entries()[0]["code"], "incomplete-row");
    notes.settled(false).await;
    let (code, replayed) = notes.json(&["replay", "--all", "--wait", "--timeout", "60s"]);
    assert_eq!((code, &replayed["waited"]["accepted"]), (0, &2.into()), "{replayed}");
    notes.settled(false).await;
}
