//! Golden bytes of both payload pages (`tests/golden/payload`), and replies of every kind.

use std::{fs, path::Path, sync::Arc};

use super::{Answers, Projection, ReplyLimits, ReplyProblem, Request, read_reply};
use crate::model::{
    Cell, Change, ChangeBatch, Column, Encoding, EntityName, FailureClass, Lsn, Operation, Origin, Outcome,
    Outcomes, Relation, ReplicaIdentity, RowSpan, TransactionInfo, ValueType,
};

const BOTH: [(Encoding, &str); 2] = [(Encoding::Msgpack, "msgpack"), (Encoding::Json, "json")];

/// `None`: unchanged; `Some(None)`: NULL.
type Text<'a> = Option<Option<&'a str>>;

fn push_row(batch: &mut ChangeBatch, row: &[Text<'_>]) -> RowSpan {
    let first = u32::try_from(batch.cells.len()).unwrap();
    for cell in row {
        batch.cells.push(match cell {
            None => Cell::Unchanged,
            Some(None) => Cell::Null,
            Some(Some(text)) => {
                let start = u32::try_from(batch.bytes.len()).unwrap();
                batch.bytes.extend_from_slice(text.as_bytes());
                Cell::Text { start, len: u32::try_from(text.len()).unwrap() }
            }
        });
    }
    RowSpan { first, count: u32::try_from(row.len()).unwrap() }
}

fn relation() -> Arc<Relation> {
    let columns = [
        ("id", ValueType::Integer),
        ("name", ValueType::Text),
        ("note", ValueType::Text),
        ("price", ValueType::Numeric),
        ("data", ValueType::Json),
        ("raw", ValueType::Bytea),
        ("tags", ValueType::Array(Box::new(ValueType::Text), b',')),
        ("ratio", ValueType::Float),
    ];
    let column = |(name, value_type): &(&str, ValueType)| Column {
        name: (*name).to_owned(),
        type_oid: 25,
        value_type: value_type.clone(),
        identity: *name == "id",
    };
    Arc::new(Relation {
        oid: 16384,
        name: EntityName::new("public", "products"),
        replica_identity: ReplicaIdentity::Full,
        columns: columns.iter().map(column).collect(),
        key: vec![0],
    })
}

/// An insert, an update that leaves the large note alone (NULL, empty and absent side by side), a delete.
fn golden_batch() -> ChangeBatch {
    let mut batch = ChangeBatch::new(Origin::Stream);
    let relation = batch.intern(&relation());
    for (xid, lsn) in [(700, 0x16_B374_D848), (701, u64::MAX)] {
        let (commit_lsn, end_lsn) = (Lsn(lsn), Lsn(lsn.wrapping_add(48)));
        batch.transactions.push(TransactionInfo {
            xid,
            commit_lsn,
            end_lsn,
            commit_time: 1_767_225_600_000_001,
        });
    }
    let some = |text| Some(Some(text));
    let full = [
        some("7"),
        some("Kettle \"Uno\""),
        some("large"),
        some("19.90"),
        some("{\"a\": 1.50,\n \"b\": \"\\ud800\"}"),
        some("\\x00ff"),
        some("{a,NULL,\"b c\"}"),
        some("NaN"),
    ];
    let kept = [some("7"), some(""), None, Some(None), some("null"), some("\\x"), some("{}"), some("0.1")];
    let (first, second, third) =
        (push_row(&mut batch, &full), push_row(&mut batch, &kept), push_row(&mut batch, &full));
    let change = |operation, transaction, sequence, new, old| Change {
        operation,
        relation,
        transaction,
        sequence,
        new,
        old,
    };
    batch.changes = vec![
        change(Operation::Insert, 0, 0, Some(first), None),
        change(Operation::Update, 0, 1, Some(second), Some(first)),
        change(Operation::Delete, 1, 0, None, Some(third)),
    ];
    batch
}

fn encode(encoding: Encoding, batch: &ChangeBatch, declared: Option<&[String]>) -> Vec<u8> {
    encode_with(encoding, batch, declared, &[])
}

fn encode_with(
    encoding: Encoding,
    batch: &ChangeBatch,
    declared: Option<&[String]>,
    raw: &[String],
) -> Vec<u8> {
    let projection = Projection::new(&batch.relations[0], declared, raw).unwrap();
    let (mut out, mut id) = (vec![1, 2, 3], Vec::new());
    let mut request =
        Request::begin(encoding, &batch.relations[0], &projection, batch.origin, &mut out, &mut id);
    for change in &batch.changes {
        request.push(batch, change, &projection).unwrap();
    }
    request.finish();
    out
}

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n");
    lines.collect()
}

/// Compares with a golden file; `ANABRANCH_BLESS=1` writes it.
pub(super) fn golden(name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/payload").join(name);
    let text =
        if name.ends_with(".hex") { hex(bytes) } else { format!("{}\n", String::from_utf8_lossy(bytes)) };
    if std::env::var_os("ANABRANCH_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text, "{name}");
}

#[test]
fn requests_are_as_the_pages_have_them() {
    let batch = golden_batch();
    golden("request.json", &encode(Encoding::Json, &batch, None));
    golden("request.msgpack.hex", &encode(Encoding::Msgpack, &batch, None));
    let declared = ["name".to_owned(), "note".to_owned()];
    golden("request-two-columns.json", &encode(Encoding::Json, &batch, Some(&declared)));
    golden("request-two-columns.msgpack.hex", &encode(Encoding::Msgpack, &batch, Some(&declared)));
}

#[test]
fn c014_null_empty_and_absent_are_three_things() {
    let declared = ["name".to_owned(), "note".to_owned(), "price".to_owned()];
    let json: serde_json::Value =
        serde_json::from_slice(&encode(Encoding::Json, &golden_batch(), Some(&declared))).unwrap();
    let update = &json["changes"][1];
    assert_eq!(update[2], serde_json::json!(["", null, null]), "empty, absent, NULL");
    assert_eq!(update[7], serde_json::json!([[1], []]), "only the note was not sent");
    assert_eq!(json["changes"][0][7], serde_json::Value::Null);
}

#[test]
fn a_raw_column_is_a_string_of_its_json() {
    let batch = golden_batch();
    let columns = &batch.relations[0].columns;
    let names: Vec<_> = columns.iter().map(|column| column.name.clone()).collect();
    let read = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let raw = read(&encode_with(Encoding::Json, &batch, None, &names));
    let insert = raw["changes"][0][2].as_array().unwrap();
    assert_eq!(insert[0], "7", "digits");
    assert_eq!(insert[1], "\"Kettle \\\"Uno\\\"\"", "a text is a JSON string in a string");
    assert_eq!(insert[4], "{\"a\": 1.50,\n \"b\": \"\\ud800\"}", "json as it is");
    assert_eq!(insert[6], "[\"a\",null,\"b c\"]");
    let update = raw["changes"][1][2].as_array().unwrap();
    assert_eq!(
        (&update[3], &update[4]),
        (&serde_json::Value::Null, &serde_json::json!("null")),
        "NULL is not null"
    );
    let one = read(&encode_with(Encoding::Json, &batch, None, &names[4..5]));
    assert_eq!(one["changes"][0][2][4], insert[4]);
    assert_eq!(one["changes"][0][2][0], 7, "the others are as ever");
    assert_eq!(Projection::new(&relation(), None, &["colour".to_owned()]), Err("colour".to_owned()));
}

#[test]
fn a_missing_column_is_named() {
    let declared = ["id".to_owned(), "colour".to_owned()];
    assert_eq!(Projection::new(&relation(), Some(&declared), &[]), Err("colour".to_owned()));
}

#[test]
fn a_value_that_cannot_be_read_leaves_the_request_as_it_was() {
    let mut batch = golden_batch();
    let Cell::Text { start, .. } = batch.cells[0] else { unreachable!() };
    batch.bytes[start as usize] = b'x';
    for (encoding, _) in BOTH {
        let projection = Projection::new(&batch.relations[0], None, &[]).unwrap();
        let (mut out, mut id) = (Vec::new(), Vec::new());
        let mut request =
            Request::begin(encoding, &batch.relations[0], &projection, batch.origin, &mut out, &mut id);
        let before = request.len();
        let error = request.push(&batch, &batch.changes[0], &projection).unwrap_err();
        assert_eq!((error.column.as_str(), request.len(), request.count()), ("id", before, 0));
    }
}

fn read_with(
    encoding: Encoding,
    reply: &[u8],
    expected: usize,
    host: Vec<(u32, Outcome)>,
) -> Result<Outcomes, ReplyProblem> {
    let mut outcomes = Outcomes::default();
    let limits = ReplyLimits { bytes: 1 << 20, documents: 3 };
    let mut answers = Answers::new(&mut outcomes, limits, expected, host);
    read_reply(encoding, reply.to_vec(), &mut answers)?;
    Ok(outcomes)
}

/// MessagePack of JSON-like test data: arrays, small integers, nil, text; `"b:…"` is a bin.
fn pack(value: &serde_json::Value, out: &mut Vec<u8>) {
    match value {
        serde_json::Value::Null => out.push(0xc0),
        serde_json::Value::Number(number) => out.push(u8::try_from(number.as_u64().unwrap()).unwrap()),
        serde_json::Value::Array(items) => {
            out.push(0xdc);
            out.extend_from_slice(&u16::try_from(items.len()).unwrap().to_be_bytes());
            items.iter().for_each(|item| pack(item, out));
        }
        serde_json::Value::String(text) => {
            let (marker, text) = text.strip_prefix("b:").map_or((0xda, text.as_str()), |text| (0xc5, text));
            out.push(marker);
            out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        other => panic!("{other}"),
    }
}

/// The same reply in both encodings.
fn both(msgpack: serde_json::Value, json: &str) -> [(Encoding, Vec<u8>); 2] {
    let mut packed = Vec::new();
    pack(&msgpack, &mut packed);
    [(Encoding::Msgpack, packed), (Encoding::Json, json.as_bytes().to_vec())]
}

fn texts(outcomes: &Outcomes) -> Vec<(Option<String>, Option<String>, String)> {
    let text = |span| String::from_utf8(outcomes.slice(span).to_vec()).unwrap();
    outcomes.documents.iter().map(|d| (d.id.map(text), d.destination.map(text), text(d.body))).collect()
}

#[test]
fn every_outcome_is_read() {
    let replies = both(
        serde_json::json!([
            [0, [[null, null, "b:{\"a\": 1.0}"]]],
            [1],
            [2],
            [3, "retry", "later", "not\nnow"],
            [0, [["a\u{e9}\"", "d", "b:[]"], ["b", null, "1"]]]
        ]),
        r#" [{"emit":[{"document": {"a": 1.0} }]},"delete","skip",
            {"failed":{"class":"retry","code":"later","message":"not\nnow"}},
            {"emit":[{"id":"aé\"","destination":"d","document":[]},{"document":1,"id":"b","destination":null}]}]"#,
    );
    for (encoding, reply) in replies {
        let outcomes = read_with(encoding, &reply, 5, vec![]).unwrap();
        let owned = |text: &str| Some(text.to_owned());
        let expected = [
            (None, None, "{\"a\": 1.0}".to_owned()),
            (owned("aé\""), owned("d"), "[]".to_owned()),
            (owned("b"), None, "1".to_owned()),
        ];
        assert_eq!(texts(&outcomes), expected, "{encoding:?}");
        assert_eq!(outcomes.outcomes[0], Outcome::Emit { first: 0, count: 1 });
        assert_eq!(outcomes.outcomes[1..3], [Outcome::Delete, Outcome::Skip]);
        assert_eq!(outcomes.outcomes[4], Outcome::Emit { first: 1, count: 2 });
        let Outcome::Failed(failure) = &outcomes.outcomes[3] else { panic!("{encoding:?}") };
        assert_eq!((failure.class, failure.message.as_str()), (FailureClass::Retry, "not\\nnow"));
    }
}

#[test]
fn the_hosts_own_answers_stand_in_their_places() {
    let host = vec![(0, Outcome::Delete), (1, Outcome::Skip), (1, Outcome::Delete), (2, Outcome::Skip)];
    for (encoding, reply) in both(serde_json::json!([[2], [1]]), r#"["skip","delete"]"#) {
        let outcomes = read_with(encoding, &reply, 2, host.clone()).unwrap().outcomes;
        use Outcome::{Delete, Skip};
        assert_eq!(outcomes, [Delete, Skip, Skip, Delete, Delete, Skip], "{encoding:?}");
    }
}

#[test]
fn replies_are_appended_with_their_spans() {
    for (encoding, reply) in both(
        serde_json::json!([[0, [["a\"", null, "b:1"], ["b", null, "b:2"]]]]),
        r#"[{"emit":[{"id":"a\"","document":1},{"id":"b","document":2}]}]"#,
    ) {
        let mut outcomes = Outcomes::default();
        for _ in 0..3 {
            let limits = ReplyLimits { bytes: 1 << 20, documents: 3 };
            let mut answers = Answers::new(&mut outcomes, limits, 1, vec![]);
            read_reply(encoding, reply.clone(), &mut answers).unwrap();
        }
        let ids: Vec<_> = texts(&outcomes).into_iter().map(|(id, _, body)| (id.unwrap(), body)).collect();
        let pair = [("a\"".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        assert_eq!(ids, [pair.clone(), pair.clone(), pair].concat(), "{encoding:?}");
        assert_eq!(outcomes.outcomes[2], Outcome::Emit { first: 4, count: 2 });
    }
}

#[test]
fn c092_a_wrong_number_of_outcomes_is_refused() {
    for (encoding, reply) in both(serde_json::json!([[2], [2]]), r#"["skip","skip"]"#) {
        for expected in [0, 1, 3] {
            let problem = read_with(encoding, &reply, expected, vec![]).unwrap_err();
            assert!(matches!(problem, ReplyProblem::Count { .. }), "{encoding:?} {expected} {problem:?}");
        }
    }
}

#[test]
fn c092_a_bad_outcome_fails_its_own_change() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let replies = both(
        serde_json::json!([
            [0, []],
            [0, [["a", null, "b:1"], ["a", null, "b:2"]]],
            [0, [[null, null, format!("b:{deep}")]]],
            [0, [["a", "x", "b:1"], ["a", "y", "b:2"]]],
            [0, [["", null, "b:1"]]],
            [0, [["a", null, "1"], ["b", null, "1"], ["c", null, "1"], ["d", null, "1"]]],
            [0, [[null, null, "1"], [null, null, "1"]]]
        ]),
        &format!(
            r#"[{{"emit":[]}},{{"emit":[{{"id":"a","document":1}},{{"id":"\u0061","document":2}}]}},
            {{"emit":[{{"document":{deep}}}]}},
            {{"emit":[{{"id":"a","destination":"x","document":1}},{{"id":"a","destination":"y","document":2}}]}},
            {{"emit":[{{"id":"","document":1}}]}},
            {{"emit":[{{"id":"a","document":1}},{{"id":"b","document":1}},{{"id":"c","document":1}},{{"id":"d","document":1}}]}},
            {{"emit":[{{"document":1}},{{"document":1}}]}}]"#
        ),
    );
    for (encoding, reply) in replies {
        let outcomes = read_with(encoding, &reply, 7, vec![]).unwrap();
        let codes: Vec<_> = outcomes
            .outcomes
            .iter()
            .map(|outcome| match outcome {
                Outcome::Failed(failure) => failure.code.as_str(),
                Outcome::Emit { .. } => "emit",
                _ => "other",
            })
            .collect();
        let expected = [
            "plugin-no-documents",
            "plugin-same-id",
            "plugin-invalid-document",
            "emit",
            "plugin-empty-id",
            "plugin-too-many-documents",
            "plugin-same-id",
        ];
        assert_eq!(codes, expected, "{encoding:?}");
        assert_eq!(outcomes.documents.len(), 2, "nothing of the bad ones is left");
    }
}

#[test]
fn c092_in_msgpack_an_invalid_document_spoils_no_other() {
    let mut reply = Vec::new();
    pack(&serde_json::json!([[0, [[null, null, "b:{\"a\""]]], [0, [[null, null, "b:{}"]]]]), &mut reply);
    let outcomes = read_with(Encoding::Msgpack, &reply, 2, vec![]).unwrap();
    assert!(
        matches!(&outcomes.outcomes[0], Outcome::Failed(failure) if failure.code == "plugin-invalid-document")
    );
    assert_eq!(outcomes.outcomes[1], Outcome::Emit { first: 0, count: 1 });
}

#[test]
fn c092_malformed_replies_are_refused_with_their_place() {
    let json: [&[u8]; 12] = [
        b"",
        b"{}",
        b"[",
        b"[\"skip\"] x",
        b"[\"upsert\"]",
        b"[{}]",
        b"[{\"emit\":{}}]",
        b"[{\"emit\":[{}]}]",
        b"[{\"emit\":[{\"document\":1,\"dest\":\"x\"}]}]",
        b"[\"\xff\"]",
        b"[{\"failed\":{\"class\":\"x\"}}]",
        b"[null]",
    ];
    let msgpack: [&[u8]; 10] = [
        b"",
        b"\xc0",
        b"\x91",
        b"\x91\x91",
        b"\x91\x90",
        b"\x91\x91\x05",
        b"\x91\x91\x02\x00",
        b"\x91\x92\x00\x91\x92\xc0\xc0",
        b"\x91\x92\x00\x91\x93\xc0\xc0\xc0",
        b"\x91\x92\x00\x91\x93\xc0\xc0\xc6\xff\xff\xff\xff",
    ];
    let all = json.map(|reply| (Encoding::Json, reply)).into_iter();
    for (encoding, reply) in all.chain(msgpack.map(|reply| (Encoding::Msgpack, reply))) {
        let problem = read_with(encoding, reply, 1, vec![]).unwrap_err();
        assert!(matches!(problem, ReplyProblem::Malformed { .. }), "{encoding:?} {reply:?} {problem:?}");
    }
    let large = vec![b' '; (1 << 20) + 1];
    assert_eq!(
        read_with(Encoding::Json, &large, 0, vec![]).unwrap_err(),
        ReplyProblem::TooLarge { bytes: large.len() }
    );
}

proptest::proptest! {
    #[test]
    fn no_reply_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64), count in 0usize..4) {
        for (encoding, _) in BOTH {
            let _ = read_with(encoding, &bytes, count, vec![]);
        }
    }

    #[test]
    fn no_mutated_reply_makes_it_panic(at in 0usize..40, byte in proptest::num::u8::ANY) {
        for (encoding, mut reply) in both(
            serde_json::json!([[0, [["a", null, "b:{}"]]], [3, "poison", "c", "m"]]),
            r#"[{"emit":[{"id":"a","document":{}}]},{"failed":{"class":"poison","code":"c","message":"m"}}]"#,
        ) {
            if let Some(place) = reply.get_mut(at) {
                *place = byte;
            }
            let _ = read_with(encoding, &reply, 2, vec![]);
        }
    }
}
