//! What the WebAssembly border costs: `product-search` as a component against the same work in plain Rust, both
//! from the borrowed text of Postgres to JSON documents, in turn in one run. `cargo bench --bench border`;
//! `-- --json` prints one line for programs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, unreachable_pub)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anabranch::{
    model::{ChangeBatch, ValueType},
    pgoutput::{Encoder, JsonEncoder, encode_value},
    plugin::HostSettings,
};

#[allow(dead_code)]
#[path = "../tests/plugin/guests.rs"]
mod guests;
#[allow(dead_code)]
#[path = "../tests/plugin/rows.rs"]
mod rows;

const ROUNDS: usize = 21;
const ROWS_A_ROUND: usize = 20_000;

/// What the guest does, as one would write it for speed inside of the host.
fn native(batch: &ChangeBatch, selection: &[u32], out: &mut Vec<u8>, spans: &mut Vec<(usize, usize)>) {
    let tags = ValueType::Array(Box::new(ValueType::Text), b',');
    out.clear();
    spans.clear();
    for &at in selection {
        let row = batch.row(batch.changes[at as usize].new.unwrap());
        let text = |column| row.text(column).map(|text| std::str::from_utf8(text).unwrap());
        if text(8) != Some("t") {
            continue;
        }
        let start = out.len();
        out.extend_from_slice(b"{\"title\":");
        JsonEncoder::new(out).string(text(2).unwrap_or_default());
        out.extend_from_slice(b",\"text\":");
        JsonEncoder::new(out).string(text(3).unwrap_or_default());
        out.extend_from_slice(b",\"price\":");
        out.extend_from_slice(text(5).unwrap_or("null").as_bytes());
        out.extend_from_slice(b",\"tags\":");
        encode_value(&tags, row.text(9).unwrap_or(b"{}"), &mut JsonEncoder::new(out)).unwrap();
        out.extend_from_slice(b",\"attributes\":");
        encode_value(&ValueType::Json, row.text(10).unwrap_or(b"null"), &mut JsonEncoder::new(out)).unwrap();
        out.push(b'}');
        spans.push((start, out.len() - start));
    }
}

/// Time that this thread has spent on a processor: the kernel's own count, so that other work on the machine does
/// not matter. Where there is none, time by the clock.
fn now(start: Instant) -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let spent = spent.and_then(|text| text.split(' ').next()?.parse().ok());
    spent.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

fn per_row(times: &mut [Duration], rows: usize) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6 / rows as f64
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let plugin = guests::load(&guests::host(HostSettings::default()), &guests::guest("product-search", &[]));
    let transform = guests::at_work(&plugin, &[]);
    let begin = Instant::now();
    let mut lines = Vec::new();
    for size in [1000, 100, 10, 1] {
        let mut batch = rows::batch(&rows::products());
        (0..size).for_each(|id| rows::product(&mut batch, id, true));
        let selection = rows::all(&batch);
        let calls = ROWS_A_ROUND / size;
        let (mut guest, mut host) = (Vec::new(), Vec::new());
        let (mut out, mut spans) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = now(begin);
            for _ in 0..calls {
                black_box(transform.call(&batch, &selection).await.unwrap());
            }
            guest.push(now(begin) - start);
            let start = now(begin);
            for _ in 0..calls {
                native(black_box(&batch), &selection, &mut out, &mut spans);
                black_box((&out, &spans));
            }
            host.push(now(begin) - start);
        }
        let (guest, host) = (per_row(&mut guest, calls * size), per_row(&mut host, calls * size));
        lines.push((size, guest, host));
    }
    for (size, guest, host) in &lines {
        if !json {
            println!(
                "batch {size:>4}: wasm {guest:.3} µs a row, native {host:.3}, border {:.3}",
                guest - host
            );
        }
    }
    if json {
        let (_, guest, host) = lines[0];
        let measured = serde_json::json!({
            "border_us_per_row": guest - host, "wasm_us_per_row": guest, "native_us_per_row": host
        });
        println!("{measured}");
    }
}
