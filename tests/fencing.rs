//! A leader that was asleep while another took over: it neither streams, nor writes, nor delivers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/receiver.rs"]
mod receiver;
mod scene;

use std::time::{Duration, Instant};

use receiver::{Receiver, Reply};
use scene::{BINARY, SOON, Scene, products};
use testkit::{Host, wait_until};

fn sink(url: &str) -> String {
    format!("[sink.out]\nkind = \"http\"\nurl = \"{url}\"\n")
}

/// The server processes of the installation's hosts, by what they are for.
async fn sessions(scene: &Scene, purpose: &str) -> Vec<i32> {
    let query =
        "select pid from pg_stat_activity where datname = current_database() and application_name like $1";
    let name = format!("%/{purpose}");
    scene.client.query(query, &[&name]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// How often a host has delivered, by the path that it delivers to.
fn deliveries(receiver: &Receiver, path: &str) -> usize {
    receiver.received().iter().filter(|request| request.target == path).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn c063_a_leader_that_was_asleep_neither_writes_nor_delivers() {
    let mut scene = Scene::new(20, 1).await;
    // So long that only its end frees the slot from a host that does not answer.
    let patient =
        format!("alter role postgres in database {} set wal_sender_timeout = '10min'", scene.database.name);
    scene.client.batch_execute(&patient).await.unwrap();
    // The first host is refused, so that it has something in hand to try again at any time.
    let receiver =
        Receiver::start(|request, _| Reply::status(if request.target == "/first" { 503 } else { 200 })).await;
    let mut second = Host::new(BINARY).unwrap();
    // A name of its own is usual.
    second.env("PGAPPNAME", "the second");
    scene.config(&sink(&receiver.url("/first")));
    scene.config_of(&second, &sink(&receiver.url("/second")));
    scene.plugin("product-search", &products());
    tokio::task::block_in_place(|| second.plugin("product-search", &products())).unwrap();
    scene.host.start().unwrap();
    wait_until("the first to try twice", SOON, async || Ok(deliveries(&receiver, "/first") > 1))
        .await
        .unwrap();
    second.start().unwrap();
    second.wait_log(0, "waiting for the lead", SOON).await.unwrap();

    scene.host.signal("STOP").unwrap();
    let stopped = Instant::now();
    let (state, stream) = (sessions(&scene, "state").await, sessions(&scene, "stream").await);
    assert_eq!((state.len(), stream.len()), (1, 1));
    assert_eq!((state.len(), stream.len()), (1, 1));
    let lock = scene.leader().await.unwrap();
    scene.client.execute("select pg_terminate_backend($1)", &[&lock]).await.unwrap();
    second.wait_log(0, "streaming", Duration::from_secs(30)).await.unwrap();
    wait_until("the second to deliver", SOON, async || Ok(deliveries(&receiver, "/second") > 0))
        .await
        .unwrap();
    let now = (sessions(&scene, "state").await, sessions(&scene, "stream").await);
    assert!(now.0.iter().all(|pid| !state.contains(pid)), "its state session was ended: {state:?}, {now:?}");
    assert!(now.1.iter().all(|pid| !stream.contains(pid)), "and its walsender: {stream:?}, {now:?}");
    let lease = Duration::from_secs(9);
    wait_until("the time that a leader may act without asking", SOON, async || Ok(stopped.elapsed() > lease))
        .await
        .unwrap();

    let before = deliveries(&receiver, "/first");
    let from = scene.host.log_length();
    scene.host.signal("CONT").unwrap();
    scene.host.wait_log(from, "the term ended", SOON).await.unwrap();
    scene.host.wait_log(from, "waiting for the lead", SOON).await.unwrap();
    assert_eq!(deliveries(&receiver, "/first"), before, "what it had in hand is not its own any more");
    assert_eq!(sessions(&scene, "stream").await, now.1, "the second goes on");
}
