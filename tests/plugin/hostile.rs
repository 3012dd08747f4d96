//! Guests that loop, allocate, crash, flood and lie: each harms its own call, within its limits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anabranch::{
    model::{FailureClass, Outcome},
    plugin::{FaultKind, HostSettings, PluginFault},
};

use crate::{
    guests::{at_work, host, hostile, listen, load, short, told},
    rows::{all, notes},
};

async fn fault(behave: &str) -> PluginFault {
    let plugin = load(&host(short()), &hostile());
    let batch = notes(&[("1", "a"), ("2", "b"), ("3", "c")]);
    match at_work(&plugin, &[("behave", behave)]).call(&batch, &all(&batch)).await {
        Err(fault) => fault,
        Ok(outcomes) => panic!("{behave}: {outcomes:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c082_every_crash_is_told_and_the_next_call_works() {
    let plugin = load(&host(short()), &hostile());
    for behave in ["trap", "stack", "bounds", "loop", "allocate"] {
        let transform = at_work(&plugin, &[("behave", behave), ("only", "boom")]);
        let batch = notes(&[("1", "fine"), ("2", "boom"), ("3", "fine")]);
        for _ in 0..2 {
            assert_eq!(transform.call(&batch, &[0]).await.unwrap().outcomes, [Outcome::Skip], "{behave}");
            let called = tokio::time::timeout(Duration::from_secs(60), transform.call(&batch, &[1])).await;
            let fault = called.unwrap_or_else(|_| panic!("{behave}: the call does not end")).unwrap_err();
            let text = fault.to_string();
            assert!(text.starts_with("plugin hostile 1.0.0 on public.products at LSN 0/1010: "), "{text}");
            assert_eq!((fault.class(), fault.may_be_one_change()), (FailureClass::Poison, false), "{text}");
            assert_eq!(transform.call(&batch, &[2]).await.unwrap().outcomes, [Outcome::Skip], "{behave}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_told_apart() {
    for (behave, is_kind) in [
        (
            "trap",
            (|kind| matches!(kind, FaultKind::Trap(text) if text.contains("unreachable"))) as fn(&_) -> bool,
        ),
        ("bounds", |kind| matches!(kind, FaultKind::Trap(_))),
        ("stack", |kind| matches!(kind, FaultKind::Stack(_))),
        ("loop", |kind| matches!(kind, FaultKind::Deadline(_))),
        ("allocate", |kind| matches!(kind, FaultKind::Memory(_))),
        ("huge", |kind| matches!(kind, FaultKind::OutputTooLarge { .. } | FaultKind::Memory(_))),
        ("too-few", |kind| matches!(kind, FaultKind::OutcomeCount { changes: 3, outcomes: 2 })),
        ("too-many", |kind| matches!(kind, FaultKind::OutcomeCount { changes: 3, outcomes: 4 })),
        ("not-json", |kind| matches!(kind, FaultKind::BadReply { .. })),
        ("not-utf8", |kind| matches!(kind, FaultKind::BadReply { .. })),
        ("empty", |kind| matches!(kind, FaultKind::BadReply { .. })),
        ("unknown-outcome", |kind| matches!(kind, FaultKind::BadReply { .. })),
        ("no-document", |kind| matches!(kind, FaultKind::BadReply { .. })),
        ("retry", |kind| matches!(kind, FaultKind::Guest(failure) if failure.class == FailureClass::Retry)),
        ("poison", |kind| matches!(kind, FaultKind::Guest(failure) if failure.class == FailureClass::Poison)),
        ("fatal", |kind| matches!(kind, FaultKind::Guest(failure) if failure.class == FailureClass::Fatal)),
    ] {
        let fault = fault(behave).await;
        assert!(is_kind(fault.kind()), "{behave}: {fault:?}");
        let text = fault.to_string();
        assert!(
            text.starts_with("plugin hostile 1.0.0 on public.products at LSN 0/1000 to 0/1020: "),
            "{text}"
        );
        let splits = !matches!(behave, "retry" | "fatal");
        assert_eq!(fault.may_be_one_change(), splits, "{behave}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c092_bad_outcomes_fail_their_own_change() {
    let plugin = load(&host(short()), &hostile());
    let batch = notes(&[("1", "a"), ("2", "b")]);
    for (behave, code) in [
        ("no-documents", "plugin-no-documents"),
        ("same-id", "plugin-same-id"),
        ("deep", "plugin-invalid-document"),
        ("fail-each", "asked"),
    ] {
        let outcomes = at_work(&plugin, &[("behave", behave)]).call(&batch, &all(&batch)).await.unwrap();
        for outcome in &outcomes.outcomes {
            assert!(
                matches!(outcome, Outcome::Failed(failure) if failure.code == code),
                "{behave}: {outcome:?}"
            );
        }
        assert!(outcomes.documents.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c084_too_many_documents_are_refused() {
    let plugin = load(
        &host(HostSettings {
            max_output: 16 << 20,
            memory: 64 << 20,
            call_deadline: Duration::from_secs(60),
            ..short()
        }),
        &hostile(),
    );
    let batch = notes(&[("1", "a")]);
    let outcomes = at_work(&plugin, &[("behave", "many")]).call(&batch, &[0]).await.unwrap();
    let [Outcome::Failed(failure)] = outcomes.outcomes.as_slice() else { panic!("{:?}", outcomes.outcomes) };
    assert_eq!(failure.code, "plugin-too-many-documents");
}

/// One worker thread: a looping guest must not keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_looping_guest_holds_up_nobody_else() {
    let host = host(HostSettings { call_deadline: Duration::from_secs(2), ..short() });
    let plugin = load(&host, &hostile());
    let looping = at_work(&plugin, &[("behave", "loop")]);
    let good = at_work(&plugin, &[]);
    let batch = Arc::new(notes(&[("1", "a")]));
    let ticks = Arc::new(AtomicU64::new(0));
    let heart = tokio::spawn({
        let ticks = Arc::clone(&ticks);
        async move {
            let mut every = tokio::time::interval(Duration::from_millis(20));
            loop {
                every.tick().await;
                ticks.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let started = Instant::now();
    let stuck = tokio::spawn({
        let batch = Arc::clone(&batch);
        async move { looping.call(&batch, &[0]).await.unwrap_err() }
    });
    let (mut calls, mut seen) = (0, 0);
    loop {
        // Afterwards they would be made up for.
        let now = ticks.load(Ordering::Relaxed);
        if stuck.is_finished() {
            break;
        }
        seen = now;
        good.call(&batch, &[0]).await.unwrap();
        calls += 1;
        tokio::task::yield_now().await;
    }
    let fault = stuck.await.unwrap();
    assert!(matches!(fault.kind(), FaultKind::Deadline(_)), "{fault}");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert!(calls >= 3, "other calls went on: {calls}");
    assert!(seen >= 3, "timers went on: {seen}");
    heart.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn c082_a_cancelled_call_leaves_nothing_broken() {
    let host = host(HostSettings { call_deadline: Duration::from_secs(30), instances: 1, ..short() });
    let plugin = load(&host, &hostile());
    let batch = notes(&[("1", "boom"), ("2", "fine")]);
    let transform = at_work(&plugin, &[("behave", "loop"), ("only", "boom")]);
    for _ in 0..3 {
        let cancelled = tokio::time::timeout(Duration::from_millis(100), transform.call(&batch, &[0])).await;
        assert!(cancelled.is_err());
        assert_eq!(transform.call(&batch, &[1]).await.unwrap().outcomes, [Outcome::Skip]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c085_leaks_go_with_their_instance() {
    // Each call leaks 64 KiB of the 16 MiB: without recycling, call 250 or so fails.
    let settings = HostSettings { recycle_after_calls: 100, instances: 1, ..short() };
    let plugin = load(&host(settings), &hostile());
    let transform = at_work(&plugin, &[("behave", "leak")]);
    let batch = notes(&[("1", "a")]);
    for call in 0..600 {
        let outcomes = transform.call(&batch, &[0]).await;
        assert!(outcomes.is_ok(), "call {call}: {outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_culprit_is_found_alone() {
    let plugin = load(&host(short()), &hostile());
    let rows: Vec<(String, &str)> = (0..100)
        .map(|at| (at.to_string(), if at == 37 || at == 38 || at == 99 { "boom" } else { "fine" }))
        .collect();
    let rows: Vec<_> = rows.iter().map(|(id, note)| (id.as_str(), *note)).collect();
    let batch = notes(&rows);
    let selection = all(&batch);
    let transform = at_work(&plugin, &[("behave", "trap"), ("only", "boom")]);
    let fault = transform.call(&batch, &selection).await.unwrap_err();
    assert_eq!(fault.positions(), 0..100);
    let outcomes = transform.call_isolating(&batch, &selection).await.unwrap().outcomes;
    assert_eq!(outcomes.len(), 100);
    for (at, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Outcome::Failed(failure) => {
                assert!([37, 38, 99].contains(&at), "{at}");
                let lsn = format!("LSN 0/{:X}:", 0x1000 + 16 * at);
                assert!(failure.code == "plugin-trap" && failure.message.contains(&lsn), "{failure}");
            }
            other => assert!(*other == Outcome::Skip && ![37, 38, 99].contains(&at), "{at} {other:?}"),
        }
    }
    // One that fails them all is not taken for a hundred culprits.
    let broken = at_work(&plugin, &[("behave", "trap")]);
    assert!(broken.call_isolating(&batch, &selection).await.is_err());
}

#[tokio::test]
async fn c086_log_lines_are_limited_and_escaped() {
    listen();
    let host = host(HostSettings { call_deadline: Duration::from_secs(20), ..short() });
    let plugin = load(&host, &hostile());
    let batch = notes(&[("1", "a")]);
    at_work(&plugin, &[("behave", "forge")]).call(&batch, &[0]).await.unwrap();
    at_work(&plugin, &[("behave", "flood")]).call(&batch, &[0]).await.unwrap();
    drop(plugin);
    let text = told();
    assert!(text.len() < 200_000, "{} bytes", text.len());
    let forged = text.lines().find(|line| line.contains("forged")).unwrap();
    assert!(
        forged.contains("WARN") && forged.contains("fine\\n") && forged.contains("\\u{1b}[31mred"),
        "{forged}"
    );
    for field in ["plugin=\"hostile\"", "version=\"1.0.0\"", "entity=\"public.products\"", "lsn=0/1000"] {
        assert!(forged.contains(field), "{forged}");
    }
    let flood = text.lines().filter(|line| line.contains(" line ")).count();
    assert!(flood <= 2_000, "{flood} lines of a flood of 100 000");
    assert!(text.contains("dropped="), "what was dropped is told");
}
