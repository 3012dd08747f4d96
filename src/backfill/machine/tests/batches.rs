//! What the machine reads off batches of the stream.

use crate::model::{
    Cell, Change, ChangeBatch, Column, Operation, Origin, Relation, ReplicaIdentity, RowSpan,
    TransactionInfo, ValueType,
};

use super::*;

fn relation() -> Arc<Relation> {
    let column = |name: &str| Column {
        name: name.into(),
        type_oid: 25,
        value_type: ValueType::Text,
        identity: name == "id",
    };
    Arc::new(Relation {
        oid: 1,
        name: EntityName::new("public", "t1"),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![column("id"), column("v")],
        key: vec![0],
    })
}

fn batch(changes: &[(Operation, Option<&str>, Option<&str>)]) -> ChangeBatch {
    let mut batch = ChangeBatch::new(Origin::Stream);
    let relation = batch.intern(&relation());
    batch.transactions.push(TransactionInfo {
        xid: 50,
        commit_lsn: Lsn(100),
        end_lsn: Lsn(105),
        commit_time: 0,
    });
    for (sequence, (operation, old, new)) in (0..).zip(changes) {
        let mut push = |id: &str| {
            let start = batch.bytes.len() as u32;
            batch.bytes.extend_from_slice(id.as_bytes());
            let first = batch.cells.len() as u32;
            let id = if id == "?" { Cell::Unchanged } else { Cell::Text { start, len: id.len() as u32 } };
            batch.cells.extend([id, Cell::Null]);
            RowSpan { first, count: 2 }
        };
        let (old, new) = (old.map(&mut push), new.map(&mut push));
        batch.changes.push(Change { operation: *operation, relation, transaction: 0, sequence, new, old });
    }
    batch
}

fn dropped_after(changes: &[(Operation, Option<&str>, Option<&str>)]) -> Option<Vec<u32>> {
    let page = PageSettings { most: 100, ..settings().page };
    let mut bench = Bench::with(Settings { page, ..settings() });
    let request = only_read(&bench.machine.add(Bench::spec(1)));
    bench.machine.apply(&batch(changes));
    let out = bench.read(&request, "50:50:", &[1, 2, 3, 4]);
    emissions(&out).into_iter().next().map(|emission| emission.dropped)
}

#[test]
fn batches_move_the_confirmable_position() {
    let mut bench = Bench::new();
    bench.machine.apply(&batch(&[]));
    assert_eq!(bench.machine.confirmable(), Lsn(105), "nothing that a chunk could miss");
    bench.machine.apply(&batch(&[(Operation::Insert, None, Some("1"))]));
    assert_eq!(bench.machine.confirmable(), Lsn(100));
}

#[test]
fn batches_touch_old_and_new_keys() {
    use Operation::{Delete, Insert, Truncate, Update};
    assert_eq!(dropped_after(&[(Insert, None, Some("9")), (Update, None, Some("2"))]), Some(vec![1]));
    assert_eq!(dropped_after(&[(Update, Some("3"), Some("9")), (Delete, Some("4"), None)]), Some(vec![2, 3]));
    assert_eq!(dropped_after(&[(Truncate, None, None)]), Some(vec![0, 1, 2, 3]));
    assert_eq!(dropped_after(&[(Update, Some("1"), Some("?"))]), Some(vec![0]));
    assert_eq!(dropped_after(&[(Update, None, Some("?"))]), None, "an unknown key: read again");
    assert_eq!(
        Keys::of_batch(&batch(&[(Operation::Read, None, Some("7"))])).unwrap().get(0),
        Some(&b"7"[..])
    );
    assert_eq!(Keys::of_batch(&batch(&[(Operation::Read, None, Some("?"))])), None);
}
