//! SIGKILL between the steps: what is locked from outside makes the host wait at the very point.

use testkit::wait_until;
use tokio_postgres::Client;

use super::{
    notes::{Notes, TO_LINES, TO_SQLITE},
    scene::{SOON, Scene},
};

/// Waits until a session of the host waits for a lock that `holder` has.
async fn waits(scene: &Scene, holder: &Client) {
    let pid: i32 = holder.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    wait_until("the host to wait for the lock", SOON, async || {
        let query = "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))";
        Ok(scene.client.query_one(query, &[&pid]).await?.get(0))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

/// Waits until the host has told its position again and again: what it may confirm, it has confirmed.
async fn replied(scene: &Scene) {
    let replies = "select coalesce(max(extract(epoch from reply_time)), 0)::float8 from pg_stat_replication
        where pid = (select active_pid from pg_replication_slots where database = current_database())";
    let first: f64 = scene.client.query_one(replies, &[]).await.unwrap().get(0);
    wait_until("three replies", SOON, async || {
        Ok(scene.client.query_one(replies, &[]).await?.get::<_, f64>(0) > first + 1.2)
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.host.log_tail()));
}

/// Ends what the host was at, which the server would go on with once the lock is free, and frees the lock.
pub async fn rolls_back(scene: &Scene, holder: &Client) {
    let pid: i32 = holder.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    wait_until("what waits for the lock to end", SOON, async || {
        let query = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                     where $1 = any (pg_blocking_pids(pid))";
        Ok(scene.client.query_one(query, &[&pid]).await?.get::<_, i64>(0) == 0)
    })
    .await
    .unwrap();
    holder.batch_execute("rollback").await.unwrap();
}

/// The documents of the file of lines: the last word on each id.
fn lines(notes: &Notes) -> std::collections::BTreeMap<String, String> {
    let text = std::fs::read_to_string(notes.scene.host.path("out.jsonl")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut documents = std::collections::BTreeMap::new();
    for line in whole.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let id = line["id"].as_str().unwrap().to_owned();
        match line["op"].as_str().unwrap() {
            "upsert" => {
                let text = line["document"]["text"].as_str().unwrap_or_default().to_owned();
                documents.insert(id, text);
            }
            _ => drop(documents.remove(&id)),
        }
    }
    documents
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_a_kill_between_the_failure_and_its_record_loses_nothing() {
    for sink in [TO_SQLITE, TO_LINES] {
        let mut notes = Notes::new(20, "on_failure = \"quarantine\"", sink).await;
        notes.start().await;
        let holder = notes.scene.database.connect().await.unwrap();
        holder.batch_execute("begin; lock table anabranch.quarantine in share mode").await.unwrap();
        notes
            .execute(
                "begin; update public.notes set text = 'poison' where id = 7; \
                 update public.notes set text = 'fine' where id = 8; commit",
            )
            .await;
        let after = notes.position().await;
        waits(&notes.scene, &holder).await;
        notes.scene.host.kill().unwrap();
        rolls_back(&notes.scene, &holder).await;
        assert!(notes.keys().await.is_empty(), "it was not recorded");
        assert!(notes.held_before(&after).await, "and not passed");
        notes.restart().await;
        notes.quarantined(&["7"]).await;
        notes.passed(&after).await;
        wait_until("the other change to arrive", SOON, async || {
            Ok(if sink == TO_LINES {
                lines(&notes).get("8").is_some_and(|text| text == "fine")
            } else {
                notes.destination().get("8")?.is_some_and(|document| document["text"] == "fine")
            })
        })
        .await
        .unwrap();
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_a_kill_between_the_record_and_the_confirmation_makes_no_second_entry() {
    for sink in [TO_SQLITE, TO_LINES] {
        let mut notes = Notes::new(20, "on_failure = \"quarantine\"", sink).await;
        notes.start().await;
        // Positions cannot be saved, and so none is confirmed.
        let holder = notes.scene.database.connect().await.unwrap();
        holder.batch_execute("begin; lock table anabranch.installation in share mode").await.unwrap();
        notes.execute("update public.notes set text = 'poison' where id = 7").await;
        let after = notes.position().await;
        notes.quarantined(&["7"]).await;
        let first = notes.entries();
        notes.scene.host.kill().unwrap();
        assert!(notes.held_before(&after).await);
        rolls_back(&notes.scene, &holder).await;
        notes.restart().await;
        notes.execute("update public.notes set text = 'fine' where id = 8").await;
        let end = notes.position().await;
        notes.passed(&end).await;
        let again = notes.entries();
        assert_eq!(again.len(), 1, "{again:?}");
        // The file may be ahead of the schema: then the row was read again, and failed once more.
        let same: &[&str] =
            if sink == TO_LINES { &["id", "first", "lsn", "index"] } else { &["id", "first"] };
        for same in same {
            assert_eq!(first[0][*same], again[0][*same], "{same}");
        }
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}

/// The row's later change is delivered, and its entry cannot be closed: the change is not accepted before it is. The
/// file that keeps its progress has the change, so that it is not streamed again; the row is read again instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_between_the_delivery_and_the_end_of_an_entry_leaves_none_open() {
    for sink in [TO_LINES, TO_SQLITE] {
        let mut notes = Notes::new(20, "on_failure = \"quarantine\"", sink).await;
        notes.start().await;
        let text = async |notes: &Notes| match sink {
            TO_LINES => lines(notes)["7"].clone(),
            _ => notes.destination().get("7").unwrap().unwrap()["text"].as_str().unwrap().to_owned(),
        };
        notes.execute("update public.notes set text = 'poison' where id = 7").await;
        let end = notes.position().await;
        notes.quarantined(&["7"]).await;
        notes.passed(&end).await;
        let holder = notes.scene.database.connect().await.unwrap();
        holder.batch_execute("begin; select from anabranch.quarantine for update").await.unwrap();
        notes.execute("update public.notes set text = 'better' where id = 7").await;
        let after = notes.position().await;
        waits(&notes.scene, &holder).await;
        assert_eq!(text(&notes).await, "better");
        replied(&notes.scene).await;
        notes.scene.host.kill().unwrap();
        rolls_back(&notes.scene, &holder).await;
        notes.quarantined(&["7"]).await;
        assert!(notes.held_before(&after).await);
        notes.restart().await;
        notes.quarantined(&[]).await;
        notes.passed(&after).await;
        assert_eq!(text(&notes).await, "better");
        notes.scene.host.kill().unwrap();
        notes.scene.database.drop_slots().await.unwrap();
    }
}
