//! Documents that a sink does not take.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use testkit::wait_until;

use super::{
    kills::rolls_back,
    notes::Notes,
    receiver::{Received, Receiver, Reply},
    scene::SOON,
};

fn hook(receiver: &Receiver) -> String {
    format!("[sink.out]\nkind = \"http\"\nurl = \"{}\"\n", receiver.url("/{destination}"))
}

/// The last word on each id of what a receiver took.
fn taken(receiver: &Receiver, refuses: impl Fn(&Value) -> bool) -> std::collections::BTreeMap<String, Value> {
    let mut taken = std::collections::BTreeMap::new();
    for received in receiver.received() {
        for document in received.json()["documents"].as_array().unwrap() {
            let id = document["id"].as_str().unwrap().to_owned();
            match document["op"].as_str().unwrap() {
                _ if refuses(document) => {}
                "upsert" => drop(taken.insert(id, document["document"]["text"].clone())),
                _ => drop(taken.remove(&id)),
            }
        }
    }
    taken
}

fn is_bad(document: &Value) -> bool {
    document["document"]["text"].as_str().is_some_and(|text| text.starts_with("bad"))
}

/// Lists the bad documents as rejected, as its protocol has it.
fn lists(received: &Received) -> Reply {
    let documents = received.json()["documents"].as_array().unwrap().clone();
    let bad = documents.iter().enumerate().filter(|(_, document)| is_bad(document));
    let rejected: Vec<Value> = bad.map(|(index, _)| json!({"index": index, "message": "too bad"})).collect();
    Reply::with_body(200, &json!({ "rejected": rejected }).to_string())
}

/// Refuses the whole request for one of them.
fn refuses(received: &Received) -> Reply {
    let documents = received.json()["documents"].as_array().unwrap().clone();
    if documents.iter().any(is_bad) { Reply::with_body(422, "too bad") } else { Reply::status(200) }
}

#[tokio::test(flavor = "multi_thread")]
async fn c012_c076_one_document_that_a_receiver_rejects_is_kept_and_the_others_are_delivered() {
    for script in [lists as fn(&Received) -> Reply, refuses] {
        let receiver = Receiver::start(move |received, _| script(received)).await;
        let mut notes = Notes::new(10, "on_failure = \"quarantine\"", &hook(&receiver)).await;
        notes.execute("update public.notes set text = 'bad from the start' where id = 4").await;
        notes.start().await;
        notes.quarantined(&["4"]).await;
        notes
            .execute(
                "begin; insert into public.notes select n, 'live ' || n from generate_series(11, 20) as n; \
                 update public.notes set text = 'bad one' where id = 17; \
                 update public.notes set id = 30, text = 'bad and moved' where id = 2; commit",
            )
            .await;
        let after = notes.position().await;
        notes.quarantined(&["17", "30", "4"]).await;
        notes.passed(&after).await;
        let expected = || {
            let mut expected: Vec<String> =
                (1..=20_i64).filter(|id| ![2, 4].contains(id)).map(|id| id.to_string()).collect();
            expected.sort();
            expected
        };
        wait_until("the others to arrive", SOON, async || {
            let ids: Vec<String> = taken(&receiver, is_bad).into_keys().collect();
            anyhow::ensure!(ids == expected(), "{ids:?}");
            Ok(true)
        })
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));

        let entries = notes.entries();
        let entry = entries.iter().find(|entry| entry["key"] == "30").unwrap();
        assert_eq!((entry["stage"].as_str(), entry["sink"].as_str()), (Some("delivery"), Some("out")));
        assert!(entry["reason"].as_str().unwrap().contains("too bad"), "{entry}");
        let (_, shown) = notes.json(&["show", &entry["id"].to_string()]);
        let shown = &shown["entries"][0];
        assert_eq!(shown["document"]["id"], "30");
        assert!(shown["document"]["body"].as_str().unwrap().contains("bad and moved"), "{shown}");
        assert_eq!(shown["payload"]["new"]["text"], "bad and moved");

        // Good again: the entries are over.
        notes.execute("update public.notes set text = 'mended' where id in (4, 17, 30)").await;
        notes.quarantined(&[]).await;
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

/// Two documents of a change, neither of which is taken: one entry, told once, with the first of them.
#[tokio::test(flavor = "multi_thread")]
async fn several_rejected_documents_of_one_change_are_one_entry() {
    let receiver = Receiver::start(move |received, _| lists(received)).await;
    let mut notes = Notes::new(3, "on_failure = \"quarantine\"", &hook(&receiver)).await;
    notes.start().await;
    notes.execute("update public.notes set text = 'bad-both' where id = 2").await;
    notes.quarantined(&["2"]).await;
    let after = notes.position().await;
    notes.passed(&after).await;
    let [entry] = notes.entries().try_into().unwrap();
    let (_, shown) = notes.json(&["show", &entry["id"].to_string()]);
    assert_eq!(shown["entries"][0]["document"]["destination"], "notes", "{shown}");
    let told = notes.scene.host.log();
    assert_eq!(told.matches("a row was put into quarantine").count(), 1, "{told}");
}

/// The key moves, the new document arrives, and the old one stays: its row is in quarantine until it goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_delete_of_a_moved_key_is_in_quarantine_until_the_document_is_gone() {
    let mended = Arc::new(AtomicBool::new(false));
    let takes = Arc::clone(&mended);
    let receiver = Receiver::start(move |received, _| {
        let documents = received.json()["documents"].as_array().unwrap().clone();
        let refused = |document: &Value| document["op"] == "delete" && document["id"] == "7";
        let refused = documents.iter().enumerate().filter(|(_, document)| refused(document));
        let rejected: Vec<Value> =
            refused.map(|(index, _)| json!({"index": index, "message": "kept"})).collect();
        let rejected = if takes.load(Ordering::Relaxed) { Vec::new() } else { rejected };
        Reply::with_body(200, &json!({ "rejected": rejected }).to_string())
    })
    .await;
    let mut notes = Notes::new(10, "on_failure = \"quarantine\"", &hook(&receiver)).await;
    notes.start().await;
    notes.execute("update public.notes set id = 107, text = 'moved' where id = 7").await;
    let after = notes.position().await;
    notes.passed(&after).await;
    assert_eq!(notes.keys().await, ["7"]);
    let [entry] = notes.entries().try_into().unwrap();
    assert_eq!((entry["stage"].as_str(), entry["operation"].as_str()), (Some("delivery"), Some("update")));
    let (_, shown) = notes.json(&["show", &entry["id"].to_string()]);
    let shown = &shown["entries"][0];
    assert!(shown["document"]["id"] == "7" && shown["document"]["body"].is_null(), "{shown}");
    assert!(taken(&receiver, |_| false).contains_key("107"));

    // A replay finds that the row is gone, and deletes its document.
    mended.store(true, Ordering::Relaxed);
    let (code, replayed) = notes.json(&["replay", "--all", "--wait", "--timeout", "60s"]);
    assert_eq!((code, &replayed["waited"]["accepted"]), (0, &1.into()), "{replayed}");
    notes.quarantined(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_refuses_everything_halts_the_mapping_and_floods_nothing() {
    let open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&open);
    let receiver = Receiver::start(move |_, _| match opened.load(Ordering::Relaxed) {
        true => Reply::status(200),
        false => Reply::with_body(422, "I take nothing"),
    })
    .await;
    let mut notes = Notes::new(300, "on_failure = \"quarantine\"", &hook(&receiver)).await;
    notes.scene.host.start().unwrap();
    let error = notes.fails_with("it is taken to be at fault and not the rows").await;
    assert!(error.contains("I take nothing") && error.contains("quarantine_in_a_row"), "{error}");
    assert!(notes.keys().await.is_empty());
    open.store(true, Ordering::Relaxed);
    notes.is_built(1).await;
    assert_eq!(taken(&receiver, |_| false).len(), 300);
    assert!(notes.keys().await.is_empty());
}

/// The sink keeps its progress with the documents: an entry is there before the token is past its change.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_constraint_keeps_its_progress_past_what_it_rejects() {
    let mut notes = Notes::built(20, "").await;
    notes.damage(
        "create trigger check_insert before insert on notes when new.document like '%u0000%' \
         begin select raise(abort, 'no such character here'); end; \
         create trigger check_update before update on notes when new.document like '%u0000%' \
         begin select raise(abort, 'no such character here'); end; \
         create table writes (id text); \
         create trigger log_update after update on notes begin insert into writes values (new.id); end;",
    );
    let place = notes.scene.host.path("out.db");
    let of_the_file = |query: &str| {
        let file = rusqlite::Connection::open(&place).unwrap();
        file.query_row(query, [], |row| row.get::<_, String>(0)).unwrap()
    };
    let token = || of_the_file("select group_concat(token) from _anabranch_progress");
    // Positions cannot be saved: what is streamed again is for the token to know.
    let holder = notes.scene.database.connect().await.unwrap();
    holder.batch_execute("begin; lock table anabranch.installation in share mode").await.unwrap();
    let first = token();
    notes
        .execute(
            "begin; update public.notes set text = E'fine' where id between 1 and 5; \
             update public.notes set text = '\\u0000' where id = 7; \
             update public.notes set text = 'fine' where id = 8; commit",
        )
        .await;
    let after = notes.position().await;
    notes.quarantined(&["7"]).await;
    notes.settled_but(&[(7, Some("good 7"))], false).await;
    wait_until("the token to move past the row", SOON, async || Ok(token() != first))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    notes.scene.host.kill().unwrap();
    assert!(notes.held_before(&after).await);
    rolls_back(&notes.scene, &holder).await;
    let before = of_the_file("select cast(count(*) as text) from writes");
    assert_eq!(before, "6");
    notes.restart().await;
    notes.execute("update public.notes set text = 'fine too' where id = 20").await;
    notes.settled_but(&[(7, Some("good 7"))], false).await;
    // The file was ahead of what was saved: what is in quarantine is read again.
    wait_until("the row to be read again", SOON, async || {
        let [entry] = notes.entries().try_into().unwrap();
        assert_eq!(entry["code"], "sqlite-constraint");
        Ok((entry["operation"].as_str(), entry["attempts"].as_i64()) == (Some("read"), Some(2)))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    assert_eq!(of_the_file("select cast(count(*) as text) from writes"), "7", "nothing is delivered twice");
    let [entry] = notes.entries().try_into().unwrap();
    let (_, shown) = notes.json(&["show", &entry["id"].to_string()]);
    assert_eq!(shown["entries"][0]["payload"]["new"]["text"], "\\u0000", "kept as it came");
}
