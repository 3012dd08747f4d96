use std::collections::HashMap;

use super::*;
use crate::{
    model::{Lsn, ReplicaIdentity, Xid},
    pgoutput::{
        Assembler, Decoder, Handled,
        testing::{Msg, encode, text},
        transaction::{Committed, MARKER_PREFIX},
    },
};

mod oracle;
mod stage;

use stage::Stage;

const TOP: Xid = 700;

fn start(xid: Xid, first: bool) -> Msg {
    Msg::StreamStart(xid, first)
}

fn commit(xid: Xid) -> Msg {
    Msg::StreamCommit(xid, 100, 110, 5_000)
}

fn abort(xid: Xid, subxid: Xid) -> Msg {
    Msg::StreamAbort(xid, subxid, None)
}

fn relation(xid: Xid) -> Msg {
    let column = (true, "k".to_owned(), 25, -1);
    Msg::Relation(Some(xid), 9, "public".into(), "t".into(), ReplicaIdentity::Default, vec![column])
}

fn insert(xid: Xid, value: &str) -> Msg {
    Msg::Insert(Some(xid), 9, vec![text(value)])
}

/// The values of the only column, as far as they were committed.
fn values(stage: &mut Stage) -> Vec<String> {
    stage.events().into_iter().map(|event| event.row.unwrap().remove(0)).collect()
}

#[test]
fn a_transaction_is_given_out_at_its_commit_and_not_before() {
    let mut stage = Stage::new(1 << 20);
    stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a"), Msg::StreamStop]);
    assert!(values(&mut stage).is_empty());
    // Another one, between the blocks.
    let plain = [Msg::Begin(50, 5_000, 701), Msg::Commit(50, 60, 5_000)];
    stage.feed(&plain);
    assert_eq!(stage.committed.remove(0).info.end_lsn, Lsn(60));
    stage.feed(&[start(TOP, false), insert(TOP, "b"), Msg::StreamStop]);
    assert!(values(&mut stage).is_empty());
    stage.feed(&[commit(TOP)]);
    assert_eq!(values(&mut stage), ["a", "b"]);
    let Committed { info, changes, .. } = stage.committed.remove(0);
    assert_eq!((info.xid, info.commit_lsn, info.end_lsn, info.commit_time), (TOP, Lsn(100), Lsn(110), 5_000));
    assert_eq!((changes, stage.spool.usage()), (2, SpoolUsage::default()));
}

#[test]
fn what_a_savepoint_wrote_goes_with_it_and_with_its_children() {
    for limit in [1 << 20, 0] {
        let mut stage = Stage::new(limit);
        stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a")]);
        // 702 was released into 701, which is rolled back; the server names both, the inner one first.
        stage.feed(&[insert(701, "b"), insert(702, "c"), insert(701, "d"), Msg::StreamStop]);
        stage.feed(&[abort(TOP, 702), abort(TOP, 701)]);
        stage.feed(&[start(TOP, false), relation(TOP), insert(TOP, "e"), insert(703, "f"), Msg::StreamStop]);
        // One of which nothing was streamed.
        stage.feed(&[abort(TOP, 704), commit(TOP)]);
        assert_eq!(values(&mut stage), ["a", "e", "f"], "{limit}");
    }
}

#[test]
fn a_transaction_that_is_rolled_back_leaves_nothing() {
    let mut stage = Stage::new(0);
    stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a"), insert(701, "b"), Msg::StreamStop]);
    assert_eq!(stage.files.len(), 1);
    stage.feed(&[abort(TOP, 701), abort(TOP, TOP)]);
    assert!(stage.files.is_empty() && values(&mut stage).is_empty());
    assert_eq!(stage.spool.usage(), SpoolUsage::default());
    // Nor does one that is not known.
    stage.feed(&[abort(801, 801), abort(801, 802)]);
}

#[test]
fn messages_of_others_are_left_out_and_ours_are_kept() {
    let mut stage = Stage::new(1 << 20);
    let message =
        |prefix: &[u8], content: &[u8]| Msg::Logical(Some(TOP), true, 7, prefix.to_vec(), content.to_vec());
    stage.feed(&[start(TOP, true), message(b"other", &[7; 100_000]), message(MARKER_PREFIX, b"low")]);
    stage.feed(&[Msg::Type(Some(TOP), 5, "public".into(), "mood".into()), Msg::Origin(1, b"far".to_vec())]);
    assert!(stage.spool.usage().memory < 1_000);
    stage.feed(&[Msg::StreamStop, commit(TOP)]);
    assert_eq!(stage.committed.remove(0).markers, [b"low".to_vec()]);
}

#[test]
fn a_description_that_is_merely_repeated_is_not_looked_up_again() {
    let mut stage = Stage::new(1 << 20);
    stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a"), Msg::StreamStop, abort(TOP, 701)]);
    stage.feed(&[start(TOP, false), relation(TOP), insert(TOP, "b"), Msg::StreamStop, commit(TOP)]);
    assert_eq!((stage.described, values(&mut stage).len()), (1, 2));
}

#[test]
fn rows_that_come_whole_follow_the_newest_description_and_not_the_one_of_a_replay() {
    let described = |xid, name: &str| {
        let column = (true, name.to_owned(), 25, -1);
        Msg::Relation(xid, 9, "public".into(), "t".into(), ReplicaIdentity::Default, vec![column])
    };
    let row = |value: &str| Msg::Insert(None, 9, vec![text(value)]);
    let whole = |lsn, messages: &[Msg]| {
        let mut all = vec![Msg::Begin(lsn, 5_000, 800)];
        all.extend_from_slice(messages);
        all.push(Msg::Commit(lsn, lsn + 1, 5_000));
        all
    };
    for limit in [1 << 20, 0] {
        let mut stage = Stage::new(limit);
        stage.feed(&[start(TOP, true), described(Some(TOP), "old"), insert(TOP, "a"), Msg::StreamStop]);
        stage.feed(&whole(50, &[described(None, "new"), row("b")]));
        stage.feed(&[commit(TOP)]);
        // The server has described it before, and does not again.
        stage.feed(&whole(150, &[row("c")]));
        let columns: Vec<_> = stage.events().into_iter().map(|event| event.columns.concat()).collect();
        assert_eq!(
            (columns, stage.described),
            (["new", "old", "new"].map(str::to_owned).to_vec(), 3),
            "{limit}"
        );
    }
}

#[test]
fn messages_out_of_order_are_errors() {
    let cases: [(&[Msg], &str); 9] = [
        (&[Msg::StreamStop], "without a Stream Start"),
        (&[commit(TOP)], "without a Stream Start"),
        (&[start(TOP, false)], "which did not come"),
        (&[start(TOP, true), start(701, true)], "inside a block"),
        (&[start(TOP, true), Msg::StreamStop, start(TOP, true)], "the first, again"),
        (&[start(TOP, true), commit(TOP)], "inside a block"),
        (&[start(TOP, true), abort(TOP, TOP)], "inside a block"),
        (&[start(TOP, true), Msg::Begin(1, 2, 3)], "inside a block"),
        (&[start(TOP, true), Msg::Commit(1, 2, 3)], "inside a block"),
    ];
    for (messages, problem) in cases {
        let mut stage = Stage::new(1 << 20);
        let (last, before) = messages.split_last().unwrap();
        stage.feed(before);
        let error = stage.try_feed(last).unwrap_err().to_string();
        assert!(error.contains(problem), "{messages:?}: {error}");
    }
}

#[test]
fn memory_is_bounded_and_the_largest_goes_first() {
    let limit = 4096;
    let mut stage = Stage::new(limit);
    for (at, xid) in (700..710).enumerate() {
        stage.feed(&[start(xid, true), relation(xid), insert(xid, "x"), Msg::StreamStop]);
        for _ in 0..at * 20 {
            stage.feed(&[start(xid, false), insert(xid, &"y".repeat(100)), Msg::StreamStop]);
            // Besides the places of pages, of which four at the most are in memory.
            let (usage, pages) = (stage.spool.usage(), stage.writes + 4);
            assert!(usage.memory <= limit + 64 * pages, "{usage:?}, {pages} pages");
        }
    }
    assert_eq!(stage.spool.usage().transactions, 10);
    assert!(!stage.files.contains_key(&700) && stage.files.contains_key(&709));
}

#[test]
fn savepoints_cost_no_writes_of_their_own_however_many_there_are() {
    let limit = 16 << 10;
    let mut stage = Stage::new(limit);
    let savepoints = 4 * u32::try_from(limit).unwrap() / 40;
    stage.feed(&[start(TOP, true), relation(TOP)]);
    for at in 1..=savepoints {
        stage.feed(&[insert(TOP + at, "one"), insert(TOP, "two")]);
    }
    stage.feed(&[Msg::StreamStop]);
    let written: usize = stage.files.values().map(Vec::len).sum();
    assert!(written > limit, "{written}");
    // A page is a quarter of the limit.
    assert!(stage.writes <= written / (limit / 4), "{} writes of {written} bytes", stage.writes);
    assert!(stage.spool.usage().memory > 4 * limit, "they are told, all the same");
    stage.feed(&[abort(TOP, TOP + savepoints), start(TOP, false), relation(TOP), insert(TOP, "last")]);
    stage.feed(&[Msg::StreamStop, commit(TOP)]);
    let values = values(&mut stage);
    assert_eq!(values.len(), 2 * usize::try_from(savepoints).unwrap() - 1);
    assert_eq!(values.last().map(String::as_str), Some("last"));
}

#[test]
fn small_pages_are_written_only_where_there_is_no_whole_one() {
    // A page has 1024 bytes. One that is being filled may take more memory, for what it is going to have.
    let mut stage = Stage::new(4096);
    stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, &"x".repeat(1_000)), Msg::StreamStop]);
    stage.feed(&[start(801, true), relation(801), insert(801, &"y".repeat(700)), insert(801, "y")]);
    stage.feed(&[Msg::StreamStop]);
    for xid in 802..809 {
        stage.feed(&[start(xid, true), relation(xid), insert(xid, &"z".repeat(300)), Msg::StreamStop]);
    }
    assert_eq!(stage.files.keys().collect::<Vec<_>>(), [&TOP]);
}

#[test]
fn a_file_that_is_not_what_was_written_is_an_error_wherever_it_differs() {
    let mut stage = Stage::new(0);
    stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a"), insert(TOP, "b"), Msg::StreamStop]);
    let file = stage.files[&TOP].clone();
    for at in 0..file.len() {
        let mut stage = Stage::new(0);
        stage.feed(&[start(TOP, true), relation(TOP), insert(TOP, "a"), insert(TOP, "b"), Msg::StreamStop]);
        stage.files.get_mut(&TOP).unwrap()[at] ^= 1;
        let error = stage.try_feed(&commit(TOP)).unwrap_err().to_string();
        assert!(error.contains("transaction 700") && error.contains("checksum"), "{error}");
        assert!(stage.committed.is_empty());
    }
    stage.files.get_mut(&TOP).unwrap().pop();
    let error = stage.try_feed(&commit(TOP)).unwrap_err().to_string();
    assert!(error.contains("length differs"), "{error}");
}

#[test]
fn half_a_record_is_an_error() {
    let bytes = [3_u32.to_le_bytes().as_slice(), b"abc", &9_u32.to_le_bytes(), b"ab"].concat();
    let mut page = Page::read(TOP, &Extent::of(0, &bytes), bytes).unwrap();
    assert_eq!(page.next_record().unwrap(), Some(b"abc".as_slice()));
    assert!(matches!(page.next_record(), Err(SpoolError::Damaged { offset: 7, .. })));
}

#[test]
fn what_postgres_15_streamed_is_given_out_without_what_was_rolled_back() {
    const STREAMED: &str = include_str!("../../message/golden/postgres15-streamed.hex");
    for limit in [1 << 20, 2_000, 0] {
        let mut stage = Stage::new(limit);
        for line in STREAMED.lines() {
            let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            stage.take(&bytes).unwrap();
        }
        let values: Vec<_> = values(&mut stage).iter().map(|value| value.parse::<u32>().unwrap()).collect();
        assert_eq!((values.len(), values[..400].is_sorted()), (401, true), "{limit}");
        assert_eq!(stage.committed.len(), 1);
    }
}
