//! Who waits for the memory of all instances: it is had in turn, by who holds none meanwhile, as soon as another gives it
//! back.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use anabranch::{
    model::{ChangeBatch, Outcome, Outcomes},
    plugin::{HostSettings, Plugin, PluginFault, PluginHost, Transform, grants::Grants},
};
use testkit::wait_until;
use tokio::{sync::Semaphore, task::JoinHandle};

use crate::{
    guests::{at_work, capable, host, hostile, load, short},
    http::{ask, grant},
    receiver::{Receiver, Reply},
    rows::notes,
};

const SOON: Duration = Duration::from_secs(20);

/// Longer than a test takes: nothing ends of itself.
fn patient(total_memory: usize) -> HostSettings {
    HostSettings { total_memory, call_deadline: Duration::from_secs(60), ..short() }
}

fn small() -> ChangeBatch {
    notes(&[("1", "a")])
}

/// For which an instance has to grow.
fn large() -> ChangeBatch {
    notes(&[("1", &"x".repeat(512 << 10))])
}

fn skips(plugin: &Plugin) -> Transform {
    at_work(plugin, &[("behave", "skip")])
}

/// What an instance has after a small call, and after a large one.
async fn sizes() -> (usize, usize) {
    let mut sizes = Vec::new();
    for batch in [small(), large()] {
        let host = host(short());
        let transform = skips(&load(&host, &hostile()));
        transform.call(&batch, &[0]).await.unwrap();
        sizes.push(host.memory());
    }
    assert!(sizes[0] < sizes[1] && sizes[1] < 2 * sizes[0], "{sizes:?}");
    (sizes[0], sizes[1])
}

/// Takes the memory of one instance until it is aborted.
async fn busy(host: &PluginHost, one: usize) -> JoinHandle<()> {
    let before = host.memory();
    let at_length = at_work(&load(host, &hostile()), &[("behave", "loop")]);
    let busy = tokio::spawn(async move { drop(at_length.call(&small(), &[0]).await) });
    wait_until("its memory", SOON, async || Ok(host.memory() != before && host.memory() >= one))
        .await
        .unwrap();
    busy
}

/// Goes on with a call for so long that it waits, if it does.
async fn waits<T: std::fmt::Debug>(call: &mut (impl Future<Output = T> + Unpin), why: &str) {
    let early = tokio::time::timeout(Duration::from_millis(300), call).await;
    assert!(early.is_err(), "{why}: {early:?}");
}

async fn skipped(call: impl Future<Output = Result<Outcomes, PluginFault>>) {
    let called = tokio::time::timeout(SOON, call).await.expect("no end of it");
    assert_eq!(called.unwrap_or_else(|fault| panic!("{fault}")).outcomes, [Outcome::Skip]);
}

/// A call that finds the memory used up waits for that of another, and is no failure of anything. As much is kept for it as
/// its plugin had once, and what it does not need of that goes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_the_memory_of_another() {
    let (one, more) = sizes().await;
    let host = host(patient(more));
    let quick = skips(&load(&host, &hostile()));
    quick.call(&large(), &[0]).await.unwrap();
    assert_eq!(host.memory(), more);
    let busy = busy(&host, one).await;
    let batch = small();
    let mut waiting = Box::pin(quick.call(&batch, &[0]));
    waits(&mut waiting, "there is memory for one").await;
    // Its instance goes with it.
    busy.abort();
    skipped(waiting).await;
    assert_eq!(host.memory(), one, "and no more");
}

/// Otherwise who needs much would wait for as long as others come who need little.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_has_memory_before_who_came_first() {
    let (one, more) = sizes().await;
    let host = host(patient(2 * one + (more - one) / 2));
    let busy = busy(&host, one).await;
    let (first, later) = (skips(&load(&host, &hostile())), skips(&load(&host, &hostile())));
    let (much, little) = (large(), small());
    let mut first = Box::pin(first.call(&much, &[0]));
    waits(&mut first, "there is less than it needs").await;
    let mut later = Box::pin(later.call(&little, &[0]));
    waits(&mut later, "there is as much, but it is not its turn").await;
    busy.abort();
    tokio::join!(skipped(first), skipped(later));
}

/// With its instance it would wait for itself.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_takes_no_instance_that_another_call_has_left() {
    let (one, more) = sizes().await;
    let host = host(HostSettings { instances: 1, ..patient(2 * one + (more - one) / 2) });
    let busy = busy(&host, one).await;
    let plugin = load(&host, &hostile());
    // Two, so that one of them always comes before who calls again.
    let others: Vec<_> = (0..2)
        .map(|_| {
            let transform = skips(&plugin);
            tokio::spawn(async move { while transform.call(&small(), &[0]).await.is_ok() {} })
        })
        .collect();
    wait_until("an instance of theirs", SOON, async || Ok(plugin.peak_memory() > 0)).await.unwrap();
    let (transform, batch) = (skips(&plugin), large());
    let mut waiting = Box::pin(transform.call(&batch, &[0]));
    waits(&mut waiting, "it has less than it needs").await;
    busy.abort();
    skipped(waiting).await;
    others.into_iter().for_each(|other| other.abort());
}

/// An instance that nobody uses keeps nothing from who waits.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_has_the_memory_of_a_call_that_went_well() {
    let goes_on = Arc::new(Semaphore::new(0));
    let until = Arc::clone(&goes_on);
    let server = Receiver::start(move |request, _| match request.target.as_str() {
        "/slow" => Reply::Held(Arc::clone(&until)),
        _ => Reply::with_body(200, "hello"),
    })
    .await;
    let within = |total_memory: usize| {
        let grants = Grants { http: Some(grant(&[&server.url("")])), ..Grants::default() };
        let grants = BTreeMap::from([("capable".to_owned(), grants)]);
        load(&host(HostSettings { grants, ..patient(total_memory) }), &capable(&["http"]))
    };
    let one = {
        let plugin = within(usize::MAX);
        ask(&plugin, "get", &server.url("/")).await;
        plugin.peak_memory()
    };
    let plugin = within(one + one / 2);
    let slow = tokio::spawn({
        let (plugin, url) = (plugin.clone(), server.url("/slow"));
        async move { ask(&plugin, "get", &url).await }
    });
    wait_until("the request", SOON, async || Ok(server.received().len() > 1)).await.unwrap();
    let url = server.url("/");
    let mut waiting = Box::pin(ask(&plugin, "get", &url));
    waits(&mut waiting, "there is memory for one").await;
    goes_on.add_permits(1);
    assert_eq!(slow.await.unwrap()["status"], 200);
    let answer = tokio::time::timeout(SOON, waiting).await.expect("the memory of the other");
    assert_eq!(answer["status"], 200);
}
