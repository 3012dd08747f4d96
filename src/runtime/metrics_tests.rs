use super::*;

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&Arc::new(Health::new())))
}

fn lines(metrics: &Metrics, of: &str) -> Vec<String> {
    let text = metrics.encode().unwrap();
    assert!(text.ends_with("# EOF\n"));
    text.lines().filter(|line| !line.starts_with('#') && line.contains(of)).map(str::to_owned).collect()
}

#[test]
fn values_of_labels_are_escaped() {
    let metrics = metrics();
    metrics.mapping("shop.\"Order\\Items\"\n", "out").delivered(3);
    let expected =
        "anabranch_documents_delivered_total{mapping=\"shop.\\\"Order\\\\Items\\\"\\n\",sink=\"out\"} 3";
    assert_eq!(lines(&metrics, "documents_delivered"), [expected]);
}

#[test]
fn c099_series_go_with_their_mapping_and_their_table() {
    let metrics = metrics();
    let empty = metrics.encode().unwrap().lines().count();
    for round in 0..50 {
        let name = format!("m{round}");
        let table = format!("public.t{round}");
        metrics.know([(name.as_str(), "out", table.clone())]);
        let lane = metrics.mapping(&name, "out");
        lane.delivered(1);
        lane.tried(Stage::Transform, Duration::from_millis(1), None);
        lane.tried(Stage::Deliver, Duration::from_millis(1), None);
        CLASSES
            .into_iter()
            .for_each(|class| lane.tried(Stage::Deliver, Duration::from_millis(1), Some(class)));
        CLASSES
            .into_iter()
            .for_each(|class| lane.tried(Stage::Transform, Duration::from_millis(1), Some(class)));
        let now = Report { rows: 5, reading_ms: 3, ..Report::default() };
        metrics.run_moved(&table, &Report::default(), &now);
        metrics.run_completed(&table);
        metrics.rows_reread(&table, 2);
    }
    assert_eq!(lines(&metrics, "documents_delivered").len(), 1, "of fifty");
    assert_eq!(
        lines(&metrics, "backfill_rows_total"),
        ["anabranch_backfill_rows_total{entity=\"public.t49\"} 5"]
    );
    metrics.know([]);
    assert_eq!(metrics.encode().unwrap().lines().count(), empty);
}

#[test]
fn a_run_counts_what_it_has_done_since_it_was_looked_at() {
    let metrics = metrics();
    let stored = Report { rows: 100, chunks: 2, reading_ms: 7000, ..Report::default() };
    let later = Report { rows: 130, chunks: 3, dropped: 4, reading_ms: 7500, ..stored.clone() };
    metrics.run_moved("public.t", &stored, &later);
    metrics.run_moved("public.t", &later, &Report { rows: 131, reading_ms: 7499, ..later.clone() });
    let value = |name: &str| {
        let line = lines(&metrics, name).pop().unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!((value("backfill_rows_total"), value("backfill_chunks_total")), (31.0, 1.0));
    assert_eq!((value("backfill_overtaken_rows_total"), value("stage=\"reading\"")), (4.0, 0.5));
}

#[test]
fn attempts_are_told_apart_by_outcome_and_class() {
    let metrics = metrics();
    let lane = metrics.mapping("m", "out");
    lane.tried(Stage::Transform, Duration::from_millis(3), None);
    lane.tried(Stage::Deliver, Duration::from_millis(700), Some(FailureClass::Retry));
    let count = lines(&metrics, "_count");
    assert!(
        count.contains(
            &"anabranch_transform_seconds_count{mapping=\"m\",sink=\"out\",outcome=\"ok\"} 1".into()
        )
    );
    assert!(count.contains(
        &"anabranch_delivery_seconds_count{mapping=\"m\",sink=\"out\",outcome=\"failed\"} 1".into()
    ));
    assert_eq!(
        lines(&metrics, "failures_total"),
        ["anabranch_failures_total{mapping=\"m\",sink=\"out\",stage=\"delivery\",class=\"retry\"} 1"]
    );
}
