//! What the WebAssembly border costs: `product-search` as a component, and the same with batches in JSON, against
//! the same work in plain Rust, all from the borrowed text of Postgres to JSON documents, in turn in one run.
//! `cargo bench --bench border`; `-- --json` prints one line for programs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, unreachable_pub)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anabranch::{
    model::{ChangeBatch, ValueType},
    pgoutput::{Encoder, JsonEncoder, encode_value},
    plugin::{HostSettings, Transform},
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

fn per_row(times: &mut [Duration], rows: usize) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6 / rows as f64
}

/// Microseconds a row, by what ran.
struct Measured {
    size: usize,
    msgpack: f64,
    json: f64,
    native: f64,
}

async fn measure(size: usize, msgpack: &Transform, json: &Transform) -> Measured {
    let mut batch = rows::batch(&rows::products());
    (0..size).for_each(|id| rows::product(&mut batch, id, true));
    let selection = rows::all(&batch);
    let calls = ROWS_A_ROUND / size;
    let (mut msgpacks, mut jsons, mut natives) = (Vec::new(), Vec::new(), Vec::new());
    let (mut out, mut spans) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (transform, times) in [(msgpack, &mut msgpacks), (json, &mut jsons)] {
            let start = Instant::now();
            for _ in 0..calls {
                black_box(transform.call(&batch, &selection).await.unwrap());
            }
            times.push(start.elapsed());
        }
        let start = Instant::now();
        for _ in 0..calls {
            native(black_box(&batch), &selection, &mut out, &mut spans);
            black_box((&out, &spans));
        }
        natives.push(start.elapsed());
    }
    let rows = calls * size;
    Measured {
        size,
        msgpack: per_row(&mut msgpacks, rows),
        json: per_row(&mut jsons, rows),
        native: per_row(&mut natives, rows),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let host = guests::host(HostSettings::default());
    let msgpack = guests::load(&host, &guests::guest("product-search", &[]));
    let json = guests::load(&host, &guests::guest("fixtures/search-json", &[]));
    let (msgpack, json) = (guests::at_work(&msgpack, &[]), guests::at_work(&json, &[]));
    let mut found = Vec::new();
    for size in [1000, 100, 10, 1] {
        let measured = measure(size, &msgpack, &json).await;
        if !as_json {
            let Measured { size, msgpack, json, native } = measured;
            println!(
                "batch {size:>4}: native {native:.3} µs a row; wasm with msgpack {msgpack:.3}, border {:.3}; \
                 wasm with json {json:.3}, border {:.3}",
                msgpack - native,
                json - native,
            );
        }
        found.push(measured);
    }
    if as_json {
        let Measured { msgpack, json, native, .. } = found[0];
        let measured = serde_json::json!({
            "border_us_per_row": msgpack - native,
            "border_us_per_row_json": json - native,
            "wasm_us_per_row": msgpack,
            "wasm_us_per_row_json": json,
            "native_us_per_row": native,
        });
        println!("{measured}");
    }
}
