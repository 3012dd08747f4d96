use std::sync::Arc;

use super::*;
use crate::{
    model::{Cell, ChangeBatch, Column, EntityName, Lsn, Operation, Relation, ReplicaIdentity, ValueType},
    pgoutput::{
        message::{Decoder, OldKind},
        testing::{Msg, Val, encode, text},
    },
};

mod golden;
mod oracle;

/// A cell with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Null,
    Unchanged,
    Unknown,
    Text(Vec<u8>),
}

fn seen(text: &str) -> Seen {
    Seen::Text(text.as_bytes().to_vec())
}

/// A change with everything it points to: commit, sequence, operation, table, column names, new, old.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    commit_lsn: Lsn,
    sequence: u32,
    operation: Operation,
    table: String,
    columns: Vec<String>,
    new: Option<Vec<Seen>>,
    old: Option<Vec<Seen>>,
}

fn events(batch: &ChangeBatch) -> Vec<Event> {
    let cells = |span| {
        let row = batch.row(span);
        let cell = |(at, cell): (usize, &Cell)| match cell {
            Cell::Null => Seen::Null,
            Cell::Unchanged => Seen::Unchanged,
            Cell::Unknown => Seen::Unknown,
            Cell::Text { .. } => Seen::Text(row.text(at).unwrap().to_vec()),
        };
        row.cells.iter().enumerate().map(cell).collect()
    };
    let event = |change: &crate::model::Change| Event {
        commit_lsn: batch.transaction(change).commit_lsn,
        sequence: change.sequence,
        operation: change.operation,
        table: batch.relation(change).name.to_string(),
        columns: batch.relation(change).columns.iter().map(|column| column.name.clone()).collect(),
        new: change.new.map(cells),
        old: change.old.map(cells),
    };
    batch.changes.iter().map(event).collect()
}

/// Completes a relation without a catalogue.
fn resolve(raw: &RawRelation) -> Arc<Relation> {
    let column = |column: &RawColumn| Column {
        name: column.name.clone(),
        type_oid: column.type_oid,
        value_type: ValueType::Text,
        identity: column.identity,
    };
    Arc::new(Relation {
        oid: raw.oid,
        name: raw.name.clone(),
        replica_identity: raw.replica_identity,
        columns: raw.columns.iter().map(column).collect(),
        key: vec![0],
    })
}

fn feed(assembler: &mut Assembler, message: &Msg) -> Result<Handled, AssembleError> {
    let bytes = encode(message);
    let handled = assembler.handle(Decoder::new().decode(&bytes).unwrap())?;
    if let Handled::Relation(raw) = &handled {
        if raw.name.table.starts_with("ignored") {
            assembler.define_ignored(raw.oid);
        } else {
            assembler.define(resolve(raw))?;
        }
    }
    Ok(handled)
}

fn feed_all(assembler: &mut Assembler, messages: &[Msg]) {
    for message in messages {
        feed(assembler, message).unwrap();
    }
}

/// Columns whose names begin with `k` are the identity.
fn relation(oid: u32, name: &str, identity: ReplicaIdentity, columns: &[&str]) -> Msg {
    let full = identity == ReplicaIdentity::Full;
    let column = |name: &&str| (full || name.starts_with('k'), (*name).to_owned(), 25, -1);
    let columns = columns.iter().map(column).collect();
    Msg::Relation(None, oid, "public".into(), name.into(), identity, columns)
}

fn begin(lsn: u64) -> Msg {
    Msg::Begin(lsn, 5_000, 70 + u32::try_from(lsn).unwrap())
}

fn commit(lsn: u64) -> Msg {
    Msg::Commit(lsn, lsn + 1, 5_000)
}

fn insert(oid: u32, values: &[&str]) -> Msg {
    Msg::Insert(None, oid, values.iter().map(|value| text(value)).collect())
}

/// An assembler with a table of a key and two columns, in an open transaction.
fn opened(identity: ReplicaIdentity) -> Assembler {
    let mut assembler = Assembler::new();
    feed_all(&mut assembler, &[begin(100), relation(1, "t", identity, &["k", "a", "b"])]);
    assembler
}

/// The only change of a transaction.
fn single(identity: ReplicaIdentity, message: Msg) -> Event {
    let mut assembler = opened(identity);
    feed_all(&mut assembler, &[message, commit(100)]);
    let mut events = events(&assembler.take());
    assert_eq!(events.len(), 1);
    events.remove(0)
}

#[test]
fn small_transactions_coalesce() {
    let mut assembler = opened(ReplicaIdentity::Default);
    feed_all(&mut assembler, &[insert(1, &["1", "x", "y"]), insert(1, &["2", "x", "y"]), commit(100)]);
    feed_all(&mut assembler, &[begin(200), insert(1, &["3", "x", "y"])]);
    let committed = Committed {
        info: TransactionInfo { xid: 270, commit_lsn: Lsn(200), end_lsn: Lsn(201), commit_time: 5_000 },
        changes: 1,
        ignored: 0,
        markers: vec![],
    };
    assert_eq!(feed(&mut assembler, &commit(200)), Ok(Handled::Committed(committed.clone())));
    let batch = assembler.take();
    assert!(batch.ends_at_commit && assembler.is_empty());
    assert_eq!(batch.transactions.last(), Some(&committed.info));
    let places: Vec<_> = batch.changes.iter().map(|change| (change.transaction, change.sequence)).collect();
    assert_eq!(places, [(0, 0), (0, 1), (1, 0)]);
    assert_eq!(batch.relations.len(), 1);
}

#[test]
fn a_large_transaction_is_taken_in_pages() {
    let mut assembler = opened(ReplicaIdentity::Default);
    feed_all(&mut assembler, &[insert(1, &["1", "", ""]), insert(1, &["2", "", ""])]);
    let page = assembler.take();
    assert!(!page.ends_at_commit);
    assert_eq!((page.transactions[0].commit_lsn, page.transactions[0].end_lsn), (Lsn(100), Lsn::ZERO));
    feed_all(&mut assembler, &[insert(1, &["3", "", ""])]);
    let page = assembler.take();
    assert_eq!((page.changes[0].sequence, page.ends_at_commit), (2, false));
    // Nothing more came, yet the end must be told.
    feed_all(&mut assembler, &[commit(100)]);
    assert!(!assembler.is_empty());
    let page = assembler.take();
    assert_eq!((page.changes.len(), page.transactions[0].end_lsn, page.ends_at_commit), (0, Lsn(101), true));
    assert_eq!(assembler.take().transactions, []);
}

#[test]
fn empty_and_ignored_transactions_move_the_position_and_nothing_else() {
    let mut assembler = Assembler::new();
    feed_all(&mut assembler, &[begin(100), commit(100), begin(200)]);
    feed_all(&mut assembler, &[relation(9, "ignored", ReplicaIdentity::Default, &["k"]), insert(9, &["1"])]);
    feed_all(&mut assembler, &[Msg::Truncate(None, false, false, vec![9]), commit(200)]);
    assert!(assembler.is_empty() && assembler.size() == 0);
    assert_eq!(assembler.position(), Lsn(201));
}

#[test]
fn c014_null_empty_and_unchanged_stay_apart() {
    let new = vec![text("1"), Val::Null, Val::Unchanged];
    let event = single(ReplicaIdentity::Default, Msg::Update(None, 1, None, new));
    assert_eq!(event.new, Some(vec![seen("1"), Seen::Null, Seen::Unchanged]));
    assert_eq!(event.old, None);
    let event = single(ReplicaIdentity::Default, insert(1, &["1", "", "x"]));
    assert_eq!(event.new, Some(vec![seen("1"), seen(""), seen("x")]));
}

#[test]
fn an_unchanged_value_is_taken_from_the_full_old_row() {
    let old = vec![text("1"), Val::Null, text("large")];
    let new = vec![text("1"), text("set"), Val::Unchanged];
    let mut assembler = opened(ReplicaIdentity::Full);
    feed_all(&mut assembler, &[Msg::Update(None, 1, Some((OldKind::Full, old)), new), commit(100)]);
    let batch = assembler.take();
    let event = events(&batch).remove(0);
    assert_eq!(event.new, Some(vec![seen("1"), seen("set"), seen("large")]));
    let (new, old) = (batch.changes[0].new.unwrap(), batch.changes[0].old.unwrap());
    assert_eq!(batch.row(new).cells[2], batch.row(old).cells[2], "the same span");
}

#[test]
fn c032_a_null_in_an_old_row_is_never_validated() {
    let old = vec![Val::Null, Val::Null, text("x")];
    let event = single(ReplicaIdentity::Full, Msg::Delete(None, 1, OldKind::Full, old));
    assert_eq!(event.old, Some(vec![Seen::Null, Seen::Null, seen("x")]));
    assert_eq!((event.operation, event.new), (Operation::Delete, None));
}

#[test]
fn c033_columns_outside_the_identity_are_unknown_in_old_rows() {
    let old = || vec![text("1"), Val::Null, Val::Null];
    let event = single(ReplicaIdentity::Index, Msg::Delete(None, 1, OldKind::Key, old()));
    assert_eq!(event.old, Some(vec![seen("1"), Seen::Unknown, Seen::Unknown]));
    let new = vec![text("2"), Val::Null, Val::Unchanged];
    let event = single(ReplicaIdentity::Default, Msg::Update(None, 1, Some((OldKind::Key, old())), new));
    assert_eq!(event.old, Some(vec![seen("1"), Seen::Unknown, Seen::Unknown]));
    assert_eq!(event.new, Some(vec![seen("2"), Seen::Null, Seen::Unchanged]));
}

#[test]
fn c042_each_row_follows_the_relation_valid_for_it() {
    let mut assembler = opened(ReplicaIdentity::Default);
    feed_all(&mut assembler, &[insert(1, &["1", "x", "y"]), commit(100), begin(200)]);
    feed_all(&mut assembler, &[relation(1, "t", ReplicaIdentity::Default, &["k", "a", "b", "c"])]);
    feed_all(&mut assembler, &[insert(1, &["2", "x", "y", "z"])]);
    feed_all(&mut assembler, &[relation(1, "t", ReplicaIdentity::Default, &["k", "b", "c"])]);
    feed_all(&mut assembler, &[insert(1, &["3", "y", "z"]), commit(200)]);
    let batch = assembler.take();
    let columns: Vec<_> = events(&batch).into_iter().map(|event| event.columns.join(" ")).collect();
    assert_eq!(columns, ["k a b", "k a b c", "k b c"]);
    assert_eq!(batch.relations.len(), 3);
}

#[test]
fn c044_no_relation_message_is_needed_and_a_repeated_one_changes_nothing() {
    let mut assembler = opened(ReplicaIdentity::Default);
    feed_all(&mut assembler, &[insert(1, &["1", "x", "y"]), commit(100)]);
    let before = assembler.take();
    feed_all(&mut assembler, &[begin(200), insert(1, &["2", "x", "y"])]);
    feed_all(&mut assembler, &[relation(1, "t", ReplicaIdentity::Default, &["k", "a", "b"])]);
    feed_all(&mut assembler, &[insert(1, &["3", "x", "y"]), commit(200)]);
    let batch = assembler.take();
    assert_eq!(batch.relations.len(), 1);
    assert!(Arc::ptr_eq(&batch.relations[0], &before.relations[0]));
}

#[test]
fn c050_messages_of_others_are_passed_over_and_positions_move() {
    let logical = |transactional, prefix: &[u8], content: &[u8]| {
        Msg::Logical(None, transactional, 7, prefix.to_vec(), content.to_vec())
    };
    let mut assembler = Assembler::new();
    let large = vec![b'y'; 1_000_000];
    feed_all(&mut assembler, &[logical(false, b"x", &large), logical(false, b"anabranch", b"heartbeat")]);
    feed_all(&mut assembler, &[begin(100), logical(true, b"x", &large), logical(true, b"\xff", b"\xff\x00")]);
    feed_all(&mut assembler, &[logical(true, b"anabranch", b"low"), logical(true, b"anabranch", &large)]);
    feed_all(&mut assembler, &[logical(false, b"anabranch", b"no"), logical(true, b"anabranch", b"\xff{")]);
    let Ok(Handled::Committed(committed)) = feed(&mut assembler, &commit(100)) else { panic!("no commit") };
    assert_eq!(committed.markers, [b"low".to_vec(), b"\xff{".to_vec()]);
    assert_eq!((assembler.position(), assembler.is_empty()), (Lsn(101), true));
}

#[test]
fn truncate_is_one_change_for_each_listed_table_in_order() {
    let mut assembler = opened(ReplicaIdentity::Default);
    feed_all(&mut assembler, &[relation(2, "u", ReplicaIdentity::Default, &["k"])]);
    feed_all(&mut assembler, &[relation(3, "ignored", ReplicaIdentity::Default, &["k"])]);
    feed_all(
        &mut assembler,
        &[Msg::Truncate(None, true, true, vec![2, 3, 1]), insert(2, &["1"]), commit(100)],
    );
    let events: Vec<_> = events(&assembler.take())
        .into_iter()
        .map(|event| (event.operation, event.table, event.sequence))
        .collect();
    let expected = [
        (Operation::Truncate, "public.u".to_owned(), 0),
        (Operation::Truncate, "public.t".to_owned(), 2),
        (Operation::Insert, "public.u".to_owned(), 3),
    ];
    assert_eq!(events, expected);
}

#[test]
fn streamed_messages_are_refused_by_name() {
    let mut assembler = Assembler::new();
    let error = feed(&mut assembler, &Msg::StreamStart(77, true)).unwrap_err();
    assert_eq!(error, AssembleError::Streamed { message: "Stream Start", xid: 77 });
    let mut decoder = Decoder::new();
    decoder.decode(&encode(&Msg::StreamStart(77, true))).unwrap();
    let bytes = encode(&Msg::Insert(Some(78), 1, vec![]));
    let error = Assembler::new().handle(decoder.decode(&bytes).unwrap()).unwrap_err();
    assert_eq!(error, AssembleError::Streamed { message: "Insert", xid: 78 });
}

#[test]
fn messages_out_of_order_are_refused() {
    for messages in [
        vec![commit(1)],
        vec![insert(1, &["1"])],
        vec![begin(1), begin(2)],
        vec![Msg::Truncate(None, false, false, vec![1])],
        vec![Msg::Logical(None, true, 1, b"anabranch".to_vec(), vec![])],
        vec![begin(1), commit(2)],
        vec![begin(1), insert(1, &["1"])],
    ] {
        let mut assembler = Assembler::new();
        let (last, before) = messages.split_last().unwrap();
        feed_all(&mut assembler, before);
        assert!(feed(&mut assembler, last).is_err(), "{messages:?}");
    }
}

#[test]
fn rows_that_do_not_fit_name_their_table() {
    let error = feed(&mut opened(ReplicaIdentity::Default), &insert(1, &["1", "2"])).unwrap_err();
    let expected = AssembleError::Columns { table: "public.t".into(), xid: 170, expected: 3, found: 2 };
    assert_eq!(error, expected);
    let binary = Msg::Insert(None, 1, vec![text("1"), Val::Binary(vec![0]), Val::Null]);
    let error = feed(&mut opened(ReplicaIdentity::Default), &binary).unwrap_err();
    let expected = AssembleError::Binary { table: "public.t".into(), column: "a".into(), xid: 170 };
    assert_eq!(error, expected);
}

#[test]
fn a_relation_must_be_defined_as_it_was_described() {
    let mut assembler = opened(ReplicaIdentity::Default);
    let bytes = encode(&relation(1, "t", ReplicaIdentity::Default, &["k", "a"]));
    let Ok(Handled::Relation(raw)) = assembler.handle(Decoder::new().decode(&bytes).unwrap()) else {
        panic!("no relation")
    };
    assert_eq!(raw.name, EntityName::new("public", "t"));
    assert_eq!((raw.columns[0].identity, raw.columns[1].identity), (true, false));
    let bytes = encode(&insert(1, &["1", "2"]));
    let error = assembler.handle(Decoder::new().decode(&bytes).unwrap()).unwrap_err();
    assert_eq!(error, AssembleError::Undefined { message: "Insert", xid: 170, table: "public.t".into() });
    let mut wrong = (*resolve(&raw)).clone();
    wrong.columns.pop();
    assert!(matches!(assembler.define(Arc::new(wrong)), Err(AssembleError::Definition { .. })));
}
