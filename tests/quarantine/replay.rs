//! Entries that are tried again or dropped.

use testkit::wait_until;

use super::{
    notes::{Notes, TO_SQLITE, mended},
    scene::SOON,
};

/// A version that is not followed by a rebuild, so that what is in quarantine stays there.
const NO_REBUILD: &str = "auto_backfill_on_version_change = false";

fn wait(arguments: &[&'static str]) -> Vec<&'static str> {
    [&["replay"], arguments, &["--wait", "--timeout", "60s"]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_a_replay_runs_under_todays_revision_and_one_that_fails_leaves_its_entry() {
    let notes = Notes::built(20, NO_REBUILD).await;
    notes.execute("update public.notes set text = 'poison' where id in (7, 8)").await;
    notes.execute("update public.notes set text = 'trap' where id = 9").await;
    notes.quarantined(&["7", "8", "9"]).await;

    let (code, replayed) = notes.json(&wait(&["--key", "7"]));
    assert_eq!(code, 1, "{replayed}");
    let failed = &replayed["waited"]["failed"][0];
    assert_eq!((failed["key"].as_str(), failed["attempts"].as_i64()), (Some("7"), Some(2)), "{replayed}");
    assert_eq!((failed["operation"].as_str(), failed["origin"].as_str()), (Some("read"), Some("backfill")));
    notes.quarantined(&["7", "8", "9"]).await;

    notes.scene.plugin("picky", &mended());
    wait_until("the new revision", SOON, async || Ok(notes.scene.mapping("notes")["version"] == "1.0.1"))
        .await
        .unwrap();
    let (code, replayed) = notes.json(&wait(&["--code", "asked"]));
    assert_eq!((code, &replayed["waited"]["accepted"]), (0, &2.into()), "{replayed}");
    notes.quarantined(&["9"]).await;
    assert_eq!(notes.entries()[0]["code"], "plugin-trap");
    let (code, text) = notes.cli(&wait(&["--mapping", "notes", "--table", "public.notes"]));
    assert!(code == 0 && text.contains("accepted 1 row"), "{code} {text}");
    notes.quarantined(&[]).await;
    let right = "select id, jsonb_build_object('text', text, 'mended', id in (7, 8, 9)) as document from public.notes";
    notes.scene.settled(right, "notes").await;
    assert_eq!(notes.scene.mapping("notes")["quarantined"], 0);
}

/// What is stored in an entry is never delivered: rows go on changing while they are replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_never_overwrites_what_came_later() {
    let notes = Notes::built(200, NO_REBUILD).await;
    notes.execute("update public.notes set text = 'poison ' || id where id <= 100").await;
    wait_until("all to be in quarantine", SOON, async || Ok(notes.keys().await.len() == 100)).await.unwrap();
    notes.scene.plugin("picky", &mended());
    wait_until("the new revision", SOON, async || Ok(notes.scene.mapping("notes")["version"] == "1.0.1"))
        .await
        .unwrap();
    let writer = notes.scene.database.connect().await.unwrap();
    let writing = async {
        for round in 0..150 {
            let id = 1 + round * 7 % 100;
            let change = match round % 5 {
                0 => format!("delete from public.notes where id = {id}"),
                1 => format!("update public.notes set id = id + 1000 where id = {id}"),
                2 => format!(
                    "insert into public.notes values ({id}, 'back {round}') on conflict (id) do nothing"
                ),
                _ => format!("update public.notes set text = 'later {round}' where id = {id}"),
            };
            writer.batch_execute(&change).await.unwrap();
            if round % 30 == 0 {
                let (code, text) = notes.cli(&["replay", "--all"]);
                assert_eq!(code, 0, "{text}");
            }
        }
    };
    writing.await;
    let (code, text) = notes.cli(&wait(&["--all"]));
    assert_eq!(code, 0, "{text}");
    notes.quarantined(&[]).await;
    let right = "select id, text from public.notes where id <= 100 or id > 1000";
    let right = format!(
        "select id, jsonb_build_object('text', text, 'mended', true) as document from ({right}) as r union all \
         select id, jsonb_build_object('text', text, 'mended', false) from public.notes where id between 101 and 1000"
    );
    notes.scene.settled(&right, "notes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_gone_loses_its_document_by_a_replay() {
    let notes = Notes::built(20, "").await;
    notes.damage(
        "create trigger keep before delete on notes when old.id = '7' begin select raise(abort, 'it is kept'); end",
    );
    notes.execute("delete from public.notes where id in (7, 8)").await;
    notes.quarantined(&["7"]).await;
    let [entry] = notes.entries().try_into().unwrap();
    assert_eq!((entry["operation"].as_str(), entry["stage"].as_str()), (Some("delete"), Some("delivery")));
    assert_eq!(entry["code"], "sqlite-constraint");
    let (code, text) = notes.cli(&wait(&["--all"]));
    assert!(code == 1 && text.contains("still in quarantine"), "{code} {text}");
    notes.damage("drop trigger keep");
    let (code, text) = notes.cli(&wait(&["--all"]));
    assert_eq!(code, 0, "{text}");
    notes.quarantined(&[]).await;
    notes.settled(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_without_a_host_is_done_by_the_next_one_and_what_is_dropped_is_gone() {
    let mut notes = Notes::built(20, NO_REBUILD).await;
    notes.execute("update public.notes set text = 'poison' where id in (3, 7, 8)").await;
    let after = notes.position().await;
    notes.quarantined(&["3", "7", "8"]).await;
    notes.passed(&after).await;
    notes.scene.host.kill().unwrap();
    notes.scene.plugin("picky", &mended());
    let url = notes.scene.database.url.clone();
    let (code, text) =
        notes.cli(&["replay", "--key", "7", "--url", &url, "--slot", &notes.scene.database.name]);
    assert!(code == 0 && text.contains("asked to read 1 row again"), "{code} {text}");
    let status = |key: &str| {
        let entry = notes.entries().into_iter().find(|entry| entry["key"] == key).unwrap();
        entry["status"].as_str().unwrap().to_owned()
    };
    assert_eq!((status("3"), status("7")), ("waiting".to_owned(), "replaying".to_owned()));
    let (code, text) = notes.cli(&["replay", "--key", "7", "--wait", "--timeout", "100ms"]);
    assert!(code == 3 && text.contains("not read in time"), "{code} {text}");
    let (code, dropped) = notes.json(&["drop", "--key", "8"]);
    assert_eq!((code, dropped["dropped"].as_array().unwrap().len()), (0, 1));

    assert_eq!(notes.cli(&["drop"]).0, 2);
    assert_eq!(notes.cli(&["replay"]).0, 2);
    let (code, text) = notes.cli(&["drop", "4711"]);
    assert!(code == 1 && text.contains("there is no entry 4711"), "{code} {text}");
    let (code, text) = notes.cli(&["list", "--table", "public.others"]);
    assert!(code == 0 && text.contains("nothing is in quarantine"), "{code} {text}");

    notes.restart().await;
    notes.quarantined(&["3"]).await;
    let document = |id: &str| notes.destination().get(id).unwrap().unwrap();
    assert_eq!(document("7")["text"], "poison");
    assert_eq!(document("8")["text"], "good 8", "dropped: nothing becomes of it");
}

/// What is emptied has no document of an older generation any more, and its entries need no room of the new one's.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_settles_what_older_generations_had_before_anything_is_read() {
    let map = "on_failure = \"quarantine\"";
    let mut notes = Notes::new(300, map, &format!("{TO_SQLITE}[backfill]\nchunk_size = 20\n")).await;
    notes.start().await;
    notes.execute("update public.notes set text = 'poison' where id = 290").await;
    notes.quarantined(&["290"]).await;
    let asked = |arguments: &[&str]| {
        let asked = notes.scene.host.run(&[&["backfill"], arguments].concat()).unwrap();
        assert!(asked.status.success(), "{asked:?}");
    };
    asked(&["rate", "5"]);
    asked(&["request", "notes", "--purge"]);
    notes.quarantined(&[]).await;
    assert_eq!(notes.scene.mapping("notes")["built"], 1, "while it is read");
    asked(&["rate", "none"]);
    notes.is_built(2).await;
    notes.quarantined(&["290"]).await;
    assert_eq!(notes.entries()[0]["generation"], 2);
    notes.settled_but(&[(290, None)], false).await;
}

/// A new version rebuilds the mapping: every row is read again, and what was in quarantine is over with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_settles_what_older_generations_had_in_quarantine() {
    let mut notes = Notes::built(500, "").await;
    notes.execute("update public.notes set text = 'poison' where id in (3, 7, 8)").await;
    notes.quarantined(&["3", "7", "8"]).await;
    // It goes while nothing streams that would tell.
    notes.scene.host.kill().unwrap();
    notes.execute("update public.notes set text = 'trap' where id = 9").await;
    notes.configure("on_failure = \"quarantine\"\nversion = \"2\"", TO_SQLITE);
    notes.restart().await;
    notes.is_built(2).await;
    notes.quarantined(&["3", "7", "8", "9"]).await;
    let generations: Vec<_> =
        notes.entries().iter().map(|entry| entry["generation"].as_i64().unwrap()).collect();
    assert_eq!(generations, [2; 4], "read again, and failed again");
    notes.scene.plugin("picky", &mended());
    notes.is_built(3).await;
    notes.quarantined(&[]).await;
    notes.settled(true).await;
    wait_until("the gauge to follow", SOON, async || Ok(notes.scene.mapping("notes")["quarantined"] == 0))
        .await
        .unwrap();
}
