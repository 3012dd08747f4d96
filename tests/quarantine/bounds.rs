//! A quarantine that is full, what is told of it, and what must not be in it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use testkit::wait_until;

use super::{
    notes::{Notes, TO_SQLITE, mended},
    receiver::{Receiver, Reply},
    scene::{SOON, hostile},
    web::Web,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_quarantine_halts_the_mapping_and_names_its_setting() {
    let notes = Notes::built(20, "quarantine_limit = 3").await;
    notes.execute("update public.notes set text = 'poison' where id in (1, 2, 3)").await;
    notes.quarantined(&["1", "2", "3"]).await;
    // What is in it already needs no room.
    notes.execute("update public.notes set text = 'poison again' where id = 2").await;
    wait_until("the newer change", SOON, async || Ok(notes.entries()[1]["attempts"] == 2)).await.unwrap();
    notes.execute("update public.notes set text = 'poison' where id = 4").await;
    let after = notes.position().await;
    let error = notes.fails_with("quarantine_limit").await;
    assert!(error.contains("room for 3 rows") && error.contains("quarantine-full"), "{error}");
    notes.quarantined(&["1", "2", "3"]).await;
    assert!(notes.held_before(&after).await);
    // Room is made, and the mapping goes on by itself.
    assert_eq!(notes.cli(&["drop", "--key", "1"]).0, 0);
    notes.quarantined(&["2", "3", "4"]).await;
    notes.passed(&after).await;
    // A version that works needs no room at all.
    notes.execute("update public.notes set text = 'poison' where id = 5").await;
    notes.fails_with("quarantine_limit").await;
    notes.scene.plugin("picky", &mended());
    notes.quarantined(&[]).await;
    notes.settled(true).await;
}

/// The change that would end an entry is transformed, and its document not delivered: the entry stays for as long.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_stays_until_the_change_that_ends_it_was_accepted() {
    let open = Arc::new(AtomicBool::new(true));
    let opened = Arc::clone(&open);
    let receiver =
        Receiver::start(move |_, _| Reply::status(if opened.load(Ordering::Relaxed) { 200 } else { 503 }))
            .await;
    let sink = format!("[sink.out]\nkind = \"http\"\nurl = \"{}\"\n", receiver.url("/{destination}"));
    let mut notes = Notes::new(3, "on_failure = \"quarantine\"", &sink).await;
    notes.start().await;
    notes.execute("update public.notes set text = 'poison' where id = 3").await;
    notes.quarantined(&["3"]).await;
    open.store(false, Ordering::Relaxed);
    notes.execute("update public.notes set text = 'better' where id = 3").await;
    let after = notes.position().await;
    notes.fails_with("503").await;
    assert_eq!(notes.keys().await, ["3"], "its document is older than the source still");
    assert!(notes.held_before(&after).await);
    open.store(true, Ordering::Relaxed);
    notes.quarantined(&[]).await;
    notes.passed(&after).await;
}

/// Good work that waits behind a slow sink together with work that halts is delivered before the halt.
#[tokio::test(flavor = "multi_thread")]
async fn what_came_before_the_work_that_halts_is_delivered() {
    let open = Arc::new(AtomicBool::new(true));
    let opened = Arc::clone(&open);
    let receiver =
        Receiver::start(move |_, _| Reply::status(if opened.load(Ordering::Relaxed) { 200 } else { 503 }))
            .await;
    // A batch has one change, and the second of two has no document: both fit into one delivery.
    let rest = format!(
        "[sink.out]\nkind = \"http\"\nurl = \"{}\"\n[pipeline]\nbatch_rows = 1\n\
         [http]\nlisten = \"127.0.0.1:0\"\n",
        receiver.url("/{destination}")
    );
    let mut notes = Notes::new(3, "on_failure = \"quarantine\"\nquarantine_limit = 1", &rest).await;
    notes.scene.host.start().unwrap();
    let web = Web::of(&mut notes.scene.host, 0).await;
    notes.is_built(1).await;
    notes.execute("insert into public.notes values (11, 'poison')").await;
    notes.quarantined(&["11"]).await;

    open.store(false, Ordering::Relaxed);
    notes.execute("insert into public.notes values (12, 'held up')").await;
    notes.fails_with("503").await;
    let transformed = async || -> f64 {
        let text = web.get("/metrics").await.body;
        let lines = text.lines().filter(|line| line.starts_with("anabranch_transform_seconds_count{"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let before = transformed().await;
    notes.execute("insert into public.notes values (13, 'good')").await;
    notes.execute("insert into public.notes values (14, 'poison')").await;
    wait_until("both to be transformed", SOON, async || Ok(transformed().await >= before + 2.0))
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    open.store(true, Ordering::Relaxed);
    notes.fails_with("quarantine_limit").await;
    wait_until("the good one to arrive", SOON, async || {
        Ok(receiver.ids().iter().flatten().any(|id| id == "13"))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", notes.scene.host.log_tail()));
    assert_eq!(notes.keys().await, ["11"]);
    assert_eq!(notes.cli(&["drop", "--all"]).0, 0);
    notes.quarantined(&["14"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c096_no_secret_gets_in_and_what_is_kept_is_bounded() {
    let mut notes = Notes::new(
        5,
        "on_failure = \"quarantine\"\nquarantine_payload = \"1KiB\"",
        &format!("[plugins.picky]\nconfig = {{ token = \"marker-0123456789\" }}\n{TO_SQLITE}"),
    )
    .await;
    notes.start().await;
    notes.execute("update public.notes set text = 'tell ' || repeat('é', 100000) where id = 3").await;
    notes.quarantined(&["3"]).await;
    let stored = "select q::text from anabranch.quarantine as q";
    let stored = notes.scene.text(stored).await;
    assert!(!stored.contains("marker-") && stored.contains("refused with ***"), "{}", &stored[..400]);
    assert!(stored.len() < 4000, "{} bytes", stored.len());
    let (_, shown) = notes.json(&["show", &notes.entries()[0]["id"].to_string()]);
    let shown = &shown["entries"][0];
    assert_eq!(shown["cut"], serde_json::json!(["text"]));
    let text = shown["payload"]["new"]["text"].as_str().unwrap();
    assert!(text.starts_with("tell é") && text.ends_with("é…"), "{text}");
    assert!(!notes.scene.host.log().contains("marker-"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_a_line_for_each_entry_but_no_flood_of_them() {
    let mut notes = Notes::built(200, "").await;
    notes.execute("update public.notes set text = 'poison ' || id where id <= 90").await;
    wait_until("all to be in quarantine", SOON, async || Ok(notes.keys().await.len() == 90)).await.unwrap();
    notes.scene.host.wait_log(0, "more=80", SOON).await.unwrap();
    let line = |line: &&str| line.contains("a row was put into quarantine");
    assert_eq!(notes.scene.host.log().lines().filter(line).count(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_page_and_metrics_count_the_rows_in_quarantine() {
    let mut notes = Notes::new(
        20,
        "on_failure = \"quarantine\"",
        &format!("{TO_SQLITE}[http]\nlisten = \"127.0.0.1:0\"\n"),
    )
    .await;
    notes.scene.host.start().unwrap();
    let web = Web::of(&mut notes.scene.host, 0).await;
    notes.is_built(1).await;
    let get = async |path: &str| web.get(path).await.body;
    notes.execute("update public.notes set text = 'poison' where id in (2, 3)").await;
    notes.quarantined(&["2", "3"]).await;
    wait_until("the health to tell", SOON, async || {
        let health: serde_json::Value = serde_json::from_str(&get("/healthz").await)?;
        Ok(health["status"] == "degraded"
            && health["mappings"][0]["quarantined"] == 2
            && health["reasons"][0] == "mapping notes has 2 rows in quarantine")
    })
    .await
    .unwrap();
    let metrics = get("/metrics").await;
    for series in [
        "anabranch_mapping_quarantined_rows{mapping=\"notes\",sink=\"out\"} 2",
        "anabranch_quarantined_total{mapping=\"notes\",sink=\"out\",stage=\"transform\"} 2",
    ] {
        assert!(metrics.contains(series), "{series}: {metrics}");
    }
    assert!(get("/").await.contains("in quarantine"));
    let status: serde_json::Value = serde_json::from_str(&get("/api/status").await).unwrap();
    assert_eq!(status["mappings"][0]["quarantined"], 2);
    // What somebody else let go is not counted any more, also not with what comes and goes here.
    let counted = async |rows: u64| {
        wait_until("the number of rows to follow", SOON, async || {
            let health: serde_json::Value = serde_json::from_str(&get("/healthz").await)?;
            anyhow::ensure!(health["mappings"][0]["quarantined"] == rows, "{}", health["mappings"][0]);
            Ok(true)
        })
        .await
        .unwrap();
    };
    notes.cli(&["drop", "--key", "2"]);
    counted(1).await;
    notes
        .execute(
            "begin; update public.notes set text = 'fine' where id = 3; \
             update public.notes set text = 'poison' where id = 4; commit",
        )
        .await;
    let after = notes.position().await;
    notes.quarantined(&["4"]).await;
    notes.passed(&after).await;
    counted(1).await;
    notes.cli(&["drop", "--all"]);
    wait_until("the health to follow", SOON, async || {
        let health: serde_json::Value = serde_json::from_str(&get("/healthz").await)?;
        Ok(health["status"] == "ok" && health["mappings"][0]["quarantined"] == 0)
    })
    .await
    .unwrap();
}

/// A mapping that halts says why, and its settings do not: those of a row, of a whole batch, and of a call.
#[tokio::test(flavor = "multi_thread")]
async fn c096_no_secret_is_told_where_a_mapping_halts() {
    let key = "marker-0123456789";
    let config = format!(
        "[plugins.picky]\nconfig = {{ token = \"{key}\" }}\n\
         [plugins.hostile]\nconfig = {{ behave = \"poison\", key = \"{key}\" }}\n{TO_SQLITE}\
         [[map]]\nname = \"hostile\"\ntable = \"public.notes\"\ntransform = \"hostile\"\nsink = \"out\"\n\
         destination = \"hostile\"\n"
    );
    let mut notes = Notes::new(3, "", &config).await;
    notes.scene.plugin("hostile", &hostile());
    notes.start().await;
    notes.execute("update public.notes set text = 'tell it' where id = 3").await;
    let of_row = notes.fails_with("refused with").await;
    let of_call = notes.scene.error_of("hostile").await;
    assert!(of_row.contains("refused with ***") && of_row.contains("row 3 of public.notes"), "{of_row}");
    assert!(of_call.contains("it was asked to fail, key ***"), "{of_call}");
    let told = notes.scene.host.status().unwrap().to_string() + &notes.scene.host.log();
    assert!(!told.contains("marker-"), "{told}");
}
