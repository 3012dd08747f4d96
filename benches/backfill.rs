//! What the merge costs: a live change recorded while a table is backfilled, a chunk judged against what the
//! stream touched, and a batch through the ledger.
//!
//! `cargo bench --bench backfill`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;

use anabranch::{
    backfill::{Keys, Touch, Window},
    model::{Lsn, Snapshot},
    pipeline::{LaneId, Ledger},
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const CHUNK: usize = 5000;
const TOUCHED: usize = 10_000;

fn window() -> Window {
    Window::new(std::iter::empty(), Vec::new(), 64 << 20)
}

fn key(number: usize) -> String {
    (number * 7).to_string()
}

/// One transaction a key, none of them visible to snapshots before id 1000.
fn record(window: &mut Window, keys: &[String]) {
    for (xid, key) in (1000..).zip(keys) {
        window.record(xid, Touch::Key(key.as_bytes()));
    }
}

fn merge(criterion: &mut Criterion) {
    let touched: Vec<String> = (0..TOUCHED).map(key).collect();
    let chunk: Keys = (0..CHUNK).map(|number| number.to_string()).collect();
    let snapshot: Snapshot = "1000:1000:".parse().unwrap();
    let mut group = criterion.benchmark_group("window");
    group.throughput(Throughput::Elements(TOUCHED as u64));
    group.bench_function("a touched key", |bencher| {
        bencher.iter_batched_ref(window, |window| record(window, &touched), BatchSize::LargeInput);
    });
    group.throughput(Throughput::Elements(CHUNK as u64));
    for (name, count) in
        [("a row of a chunk, nothing touched", 0), ("a row of a chunk, 10 000 touched", TOUCHED)]
    {
        let mut window = window();
        record(&mut window, &touched[..count]);
        group.bench_function(name, |bencher| bencher.iter(|| black_box(window.verdict(&snapshot, &chunk))));
    }
    group.finish();
}

fn ledger(criterion: &mut Criterion) {
    let lanes = [LaneId(1), LaneId(2), LaneId(3)];
    let mut ledger = Ledger::new(Lsn(0));
    lanes.iter().for_each(|&lane| ledger.attach(lane, Lsn(0)));
    let mut position = 0;
    criterion.bench_function("ledger: a batch for three lanes, accepted and confirmed", |bencher| {
        bencher.iter(|| {
            position += 8;
            for &lane in &lanes {
                let work = ledger.dispatched(lane);
                ledger.accepted(lane, work);
            }
            ledger.advance(Lsn(position));
            black_box(ledger.confirmable(Lsn(u64::MAX)))
        });
    });
}

criterion_group!(benches, merge, ledger);
criterion_main!(benches);
