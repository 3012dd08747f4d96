//! A connection's messages, each behind its length in two bytes: decoded, assembled into transactions, encoded for
//! guests.
//!
//! Invariants: a decoded message is written back to a message that means the same; every cell of a batch is inside of
//! it; a batch that ends at a commit has whole transactions; memory follows the input.
#![no_main]

use std::sync::Arc;

use anabranch::{
    model::{self, Change, ChangeBatch, Column, Relation, RowSpan, ValueType},
    pgoutput::{
        self, Assembler, Decoder, Handled, JsonEncoder, MsgpackEncoder, RawRelation, builtin_value_type,
        encode_cell,
    },
};
use anabranch_fuzz::bounded;
use libfuzzer_sys::fuzz_target;

#[path = "../../src/pgoutput/testing.rs"]
#[allow(dead_code, unreachable_pub, reason = "the unit tests use all of it")]
mod testing;

/// A batch has up to 1 MiB of room each for its bytes, cells and changes.
const BASE: usize = 8 << 20;

fn messages(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        input = rest;
        Some(message)
    })
}

fn completed(raw: &RawRelation) -> Arc<Relation> {
    let columns = raw.columns.iter().map(|column| Column {
        name: column.name.clone(),
        type_oid: column.type_oid,
        value_type: builtin_value_type(column.type_oid).unwrap_or(ValueType::Text),
        identity: column.identity,
    });
    Arc::new(Relation {
        oid: raw.oid,
        name: raw.name.clone(),
        replica_identity: raw.replica_identity,
        columns: columns.collect(),
        key: if raw.columns.is_empty() { Vec::new() } else { vec![0] },
    })
}

fn check_row(batch: &ChangeBatch, change: &Change, span: RowSpan, out: &mut Vec<u8>) {
    let relation = batch.relation(change);
    let row = batch.row(span);
    assert_eq!(row.cells.len(), relation.columns.len());
    for (at, column) in relation.columns.iter().enumerate() {
        let text = row.text(at);
        out.clear();
        let json = encode_cell(&column.value_type, text, &mut JsonEncoder::new(out)).is_ok();
        out.clear();
        let msgpack = encode_cell(&column.value_type, text, &mut MsgpackEncoder::new(out)).is_ok();
        assert_eq!(json, msgpack);
    }
}

fn check(batch: &ChangeBatch) {
    let mut out = Vec::new();
    for change in &batch.changes {
        let transaction = batch.transaction(change);
        assert!(!batch.ends_at_commit || batch.transactions.contains(transaction));
        for span in [change.new, change.old].into_iter().flatten() {
            check_row(batch, change, span, &mut out);
        }
    }
}

fn run(input: &[u8]) {
    let (mut decoder, mut assembler) = (Decoder::new(), Assembler::new());
    for (number, bytes) in messages(input).enumerate() {
        let mut again = decoder.clone();
        let Ok(message) = decoder.decode(bytes) else { continue };
        let owned = testing::Msg::from(message);
        let encoded = testing::encode(&owned);
        assert_eq!(again.decode(&encoded).map(testing::Msg::from), Ok(owned));
        match assembler.handle(message) {
            Err(_) => break,
            Ok(Handled::Relation(raw)) if raw.oid % 7 == 0 => assembler.define_ignored(raw.oid),
            Ok(Handled::Relation(raw)) => {
                if assembler.define(completed(&raw)).is_err() {
                    break;
                }
            }
            Ok(Handled::Committed(committed)) => {
                assert_eq!(assembler.position(), committed.info.end_lsn);
                check(&assembler.take());
            }
            Ok(Handled::Nothing) if number % 16 == 15 => check(&assembler.take()),
            Ok(Handled::Nothing) => {}
        }
    }
    check(&assembler.take());
}

fuzz_target!(|input: &[u8]| bounded(input.len(), BASE, 64, || run(input)));
