//! A quarantine that is full, what is told of it, and what must not be in it.

use testkit::wait_until;

use super::{
    notes::{Notes, TO_SQLITE, mended},
    scene::SOON,
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
    notes.cli(&["drop", "--all"]);
    wait_until("the health to follow", SOON, async || {
        let health: serde_json::Value = serde_json::from_str(&get("/healthz").await)?;
        Ok(health["status"] == "ok" && health["mappings"][0]["quarantined"] == 0)
    })
    .await
    .unwrap();
}
