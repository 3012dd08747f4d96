//! What Postgres 15 really sent; see `message/golden/README.md`.

use super::*;
use crate::pgoutput::message::Message;

const PLAIN: &str = include_str!("../../message/golden/postgres15.hex");
const STREAMED: &str = include_str!("../../message/golden/postgres15-streamed.hex");

fn bytes(line: &str) -> Vec<u8> {
    let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// `insert t id=1 a=~ b= | …`: `~` is NULL, `=` unchanged, `?` unknown; long values by their length.
fn line(event: &Event) -> String {
    let cell = |cell: &Seen| match cell {
        Seen::Null => "~".to_owned(),
        Seen::Unchanged => "=".to_owned(),
        Seen::Unknown => "?".to_owned(),
        Seen::Text(text) if text.len() > 40 => format!("<{}>", text.len()),
        Seen::Text(text) => String::from_utf8(text.clone()).unwrap(),
    };
    let row = |cells: &Vec<Seen>| {
        let pairs = event.columns.iter().zip(cells).map(|(name, value)| format!(" {name}={}", cell(value)));
        pairs.collect::<String>()
    };
    let new = event.new.as_ref().map(row).unwrap_or_default();
    let old = event.old.as_ref().map(row).map(|old| format!(" |{old}")).unwrap_or_default();
    format!("{} {}{new}{old}", event.operation.as_str(), event.table.trim_start_matches("public."))
}

#[test]
fn a_real_stream_is_assembled() {
    let mut decoder = Decoder::new();
    let mut assembler = Assembler::new();
    let mut markers = Vec::new();
    for line in PLAIN.lines() {
        let bytes = bytes(line);
        let message = decoder.decode(&bytes).unwrap();
        assert_eq!(encode(&Msg::from(message)), bytes, "the tests' encoder writes what the server writes");
        match assembler.handle(message).unwrap() {
            Handled::Relation(raw) => assembler.define(resolve(&raw)).unwrap(),
            Handled::Committed(committed) => markers.extend(committed.markers),
            Handled::Nothing => {}
        }
    }
    let batch = assembler.take();
    assert!(batch.ends_at_commit && !assembler.in_transaction());
    assert_eq!(batch.transactions.last().map(|info| info.end_lsn), Some(assembler.position()));
    assert_eq!(markers, [b"low".to_vec()]);
    let lines: Vec<_> = events(&batch).iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "insert t id=1 a=~ b=",
            "insert t id=2 a=x b=y",
            "update t id=1 a=z b=",
            "update t id=3 a=x b=y | id=2 a=? b=?",
            "delete t | id=1 a=? b=?",
            "insert f id=1 a=a big=<2100>",
            "update f id=1 a=b big=<2100> | id=1 a=a big=<2100>",
            "delete f | id=1 a=b big=<2100>",
            "insert w x=1 y=y z=7",
            "update w x=1 y=y z=8 | x=? y=? z=7",
            "delete w | x=? y=? z=8",
            "insert dom id=1 h=\"a\"=>NULL, \"b\"=>\"\" m=happy n=7000.00 ts=2024-01-31 12:00:00+00 \
             j={\"a\": 1e400} bx={(1,1),(0,0);NULL}",
            "insert t id=10 a=p b=q",
            "insert t id=11 a=p b=q c=6",
            "insert t id=12 b=q c=7",
            "insert t id=13 b=q c=8",
            "truncate t",
            "truncate f",
        ]
    );
}

#[test]
fn a_real_streamed_transaction_is_decoded() {
    let mut decoder = Decoder::new();
    let mut kinds = String::new();
    for line in STREAMED.lines() {
        let bytes = bytes(line);
        let message = decoder.decode(&bytes).unwrap();
        assert_eq!(encode(&Msg::from(message)), bytes);
        kinds.push(match message {
            Message::Insert { xid: Some(_), .. } => 'I',
            Message::Relation(relation) if relation.xid.is_some() => 'R',
            Message::StreamStart { .. } => '<',
            Message::StreamStop => '>',
            Message::StreamAbort { .. } => 'A',
            Message::StreamCommit { .. } => 'c',
            _ => '!',
        });
    }
    while kinds.contains("II") {
        kinds = kinds.replace("II", "I");
    }
    assert_eq!(kinds, "<RI>A<RI>c");
}
