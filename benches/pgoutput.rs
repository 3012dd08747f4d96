//! What one row costs: decoding and assembling a stream, encoding values.
//!
//! Rows have 12 columns and about 500 bytes, as in the budgets. `cargo bench --bench pgoutput`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{hint::black_box, sync::Arc};

use anabranch::{
    model::{Column, EntityName, Relation, ReplicaIdentity, ValueType},
    pgoutput::{
        Assembler, Decoder, Handled, JsonEncoder, MsgpackEncoder, RawRelation, builtin_value_type,
        encode_cell,
    },
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ROWS: usize = 1000;

/// Type and text of each column.
fn columns() -> Vec<(u32, Option<String>)> {
    let text = |text: &str| Some(text.to_owned());
    vec![
        (20, text("9007199254740993")),
        (2950, text("7f1d9c3e-8a54-4f0b-9d1c-2b6a1e7c5d10")),
        (25, text("A product with a reasonably long name, in two parts")),
        (25, Some("Lorem ipsum dolor sit amet, consectetur adipiscing elit. ".repeat(3))),
        (1700, text("1249.90")),
        (23, text("42")),
        (16, text("t")),
        (701, text("3.141592653589793")),
        (1184, text("2026-11-29 18:15:02.373182+00")),
        (1114, text("2024-01-31 12:34:56.7")),
        (
            3802,
            text(
                "{\"size\": \"L\", \"tags\": [\"new\", \"sale\"], \"weight\": 1.25, \"stock\": {\"berlin\": 3}}",
            ),
        ),
        (1009, None),
    ]
}

fn relation_message() -> Vec<u8> {
    let mut out = b"R\0\0\x40\0public\0products\0d".to_vec();
    out.extend(u16::try_from(columns().len()).unwrap().to_be_bytes());
    for (at, (oid, _)) in columns().iter().enumerate() {
        out.push(u8::from(at == 0));
        out.extend(format!("column_{at}\0").bytes());
        out.extend(oid.to_be_bytes());
        out.extend((-1_i32).to_be_bytes());
    }
    out
}

fn insert_message() -> Vec<u8> {
    let mut out = b"I\0\0\x40\0N".to_vec();
    out.extend(u16::try_from(columns().len()).unwrap().to_be_bytes());
    for (_, text) in columns() {
        match text {
            None => out.push(b'n'),
            Some(text) => {
                out.push(b't');
                out.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                out.extend(text.bytes());
            }
        }
    }
    out
}

fn begin_message() -> Vec<u8> {
    [&b"B"[..], &[0, 0, 0, 0, 0, 0, 0, 100], &[0; 8], &[0, 0, 0, 7]].concat()
}

fn commit_message() -> Vec<u8> {
    [&b"C\0"[..], &[0, 0, 0, 0, 0, 0, 0, 100], &[0, 0, 0, 0, 0, 0, 0, 108], &[0; 8]].concat()
}

fn resolve(raw: &RawRelation) -> Arc<Relation> {
    let columns = raw.columns.iter().map(|column| Column {
        name: column.name.clone(),
        type_oid: column.type_oid,
        value_type: builtin_value_type(column.type_oid).unwrap_or(ValueType::Text),
        identity: column.identity,
    });
    Arc::new(Relation {
        oid: raw.oid,
        name: EntityName::new("public", "products"),
        replica_identity: raw.replica_identity,
        columns: columns.collect(),
        key: vec![0],
    })
}

/// An assembler that knows the table, and the table.
fn prepared() -> (Assembler, Arc<Relation>) {
    let mut assembler = Assembler::new();
    let message = relation_message();
    let Handled::Relation(raw) = assembler.handle(Decoder::new().decode(&message).unwrap()).unwrap() else {
        unreachable!("a relation message")
    };
    assert_eq!(raw.replica_identity, ReplicaIdentity::Default);
    let relation = resolve(&raw);
    assembler.define(Arc::clone(&relation)).unwrap();
    (assembler, relation)
}

fn stream(criterion: &mut Criterion) {
    let (begin, insert, commit) = (begin_message(), insert_message(), commit_message());
    let mut group = criterion.benchmark_group("stream");
    group.throughput(Throughput::Elements(ROWS as u64));
    for (name, rows) in [("transactions of 1000 rows", ROWS), ("transactions of 1 row", 1)] {
        let (mut assembler, _) = prepared();
        let mut decoder = Decoder::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for _ in 0..ROWS / rows {
                    assembler.handle(decoder.decode(black_box(&begin)).unwrap()).unwrap();
                    for _ in 0..rows {
                        assembler.handle(decoder.decode(black_box(&insert)).unwrap()).unwrap();
                    }
                    black_box(assembler.handle(decoder.decode(black_box(&commit)).unwrap()).unwrap());
                }
                black_box(assembler.take())
            });
        });
    }
    group.finish();
}

fn values(criterion: &mut Criterion) {
    let columns: Vec<_> =
        columns().into_iter().map(|(oid, text)| (builtin_value_type(oid).unwrap(), text)).collect();
    let mut group = criterion.benchmark_group("values");
    group.throughput(Throughput::Elements(1));
    let mut out = Vec::new();
    group.bench_function("a row to msgpack", |bencher| {
        bencher.iter(|| {
            out.clear();
            let mut encoder = MsgpackEncoder::new(&mut out);
            for (value_type, text) in &columns {
                encode_cell(value_type, black_box(text.as_deref().map(str::as_bytes)), &mut encoder).unwrap();
            }
            black_box(out.len())
        });
    });
    group.bench_function("a row to json", |bencher| {
        bencher.iter(|| {
            out.clear();
            let mut encoder = JsonEncoder::new(&mut out);
            for (value_type, text) in &columns {
                encode_cell(value_type, black_box(text.as_deref().map(str::as_bytes)), &mut encoder).unwrap();
            }
            black_box(out.len())
        });
    });
    for (value_type, text) in &columns {
        let Some(text) = text else { continue };
        group.bench_function(format!("{} of {} bytes", value_type.name(), text.len()), |bencher| {
            bencher.iter(|| {
                out.clear();
                encode_cell(value_type, black_box(Some(text.as_bytes())), &mut MsgpackEncoder::new(&mut out))
                    .unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, stream, values);
criterion_main!(benches);
