use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::pgoutput::testing::{Msg, Val, encode, text};

/// Decodes one message, inside a streamed block or not.
fn decode(bytes: &[u8], in_stream: bool) -> Result<Message<'_>, DecodeError> {
    let mut decoder = Decoder::new();
    if in_stream {
        decoder.decode(b"S\0\0\0\x01\x01").unwrap();
    }
    decoder.decode(bytes)
}

fn value() -> impl Strategy<Value = Val> {
    prop_oneof![
        Just(Val::Null),
        Just(Val::Unchanged),
        vec(any::<u8>(), 0..12).prop_map(Val::Text),
        vec(any::<u8>(), 0..4).prop_map(Val::Binary),
    ]
}

fn tuple() -> impl Strategy<Value = Vec<Val>> {
    vec(value(), 0..6)
}

fn kind() -> impl Strategy<Value = OldKind> {
    prop_oneof![Just(OldKind::Key), Just(OldKind::Full)]
}

fn identity() -> impl Strategy<Value = ReplicaIdentity> {
    use ReplicaIdentity::{Default, Full, Index, Nothing};
    prop_oneof![Just(Default), Just(Full), Just(Index), Just(Nothing)]
}

fn time() -> impl Strategy<Value = i64> {
    -1_i64 << 50..1_i64 << 55
}

/// Any message, and whether it is one of a streamed block.
fn message() -> impl Strategy<Value = (Msg, bool)> {
    let bytes = || vec(1_u8..=255, 0..8);
    let name = "[^\\x00]{0,8}";
    let column = (any::<bool>(), name, any::<u32>(), any::<i32>());
    let plain = prop_oneof![
        (any::<u64>(), time(), any::<u32>()).prop_map(|(a, b, c)| Msg::Begin(a, b, c)),
        (any::<u64>(), any::<u64>(), time()).prop_map(|(a, b, c)| Msg::Commit(a, b, c)),
        (any::<u64>(), bytes()).prop_map(|(a, b)| Msg::Origin(a, b)),
        (any::<u32>(), any::<bool>()).prop_map(|(a, b)| Msg::StreamStart(a, b)),
        Just(Msg::StreamStop),
        (any::<u32>(), any::<u64>(), any::<u64>(), time())
            .prop_map(|(a, b, c, d)| Msg::StreamCommit(a, b, c, d)),
        (any::<u32>(), any::<u32>(), option::of((any::<u64>(), time())))
            .prop_map(|(a, b, c)| Msg::StreamAbort(a, b, c)),
    ];
    let with_xid = |xid: Option<u32>| {
        prop_oneof![
            (any::<u32>(), name, name, identity(), vec(column, 0..5))
                .prop_map(move |(a, b, c, d, e)| Msg::Relation(xid, a, b, c, d, e)),
            (any::<u32>(), name, name).prop_map(move |(a, b, c)| Msg::Type(xid, a, b, c)),
            (any::<u32>(), tuple()).prop_map(move |(a, b)| Msg::Insert(xid, a, b)),
            (any::<u32>(), option::of((kind(), tuple())), tuple())
                .prop_map(move |(a, b, c)| Msg::Update(xid, a, b, c)),
            (any::<u32>(), kind(), tuple()).prop_map(move |(a, b, c)| Msg::Delete(xid, a, b, c)),
            (any::<bool>(), any::<bool>(), vec(any::<u32>(), 0..4))
                .prop_map(move |(a, b, c)| Msg::Truncate(xid, a, b, c)),
            (any::<bool>(), any::<u64>(), bytes(), vec(any::<u8>(), 0..16))
                .prop_map(move |(a, b, c, d)| Msg::Logical(xid, a, b, c, d)),
        ]
    };
    prop_oneof![
        plain.prop_map(|message| (message, false)),
        with_xid(None).prop_map(|message| (message, false)),
        with_xid(Some(0xFFEE_0001)).prop_map(|message| (message, true)),
    ]
}

proptest! {
    #[test]
    fn messages_round_trip((message, in_stream) in message()) {
        let bytes = encode(&message);
        prop_assert_eq!(Msg::from(decode(&bytes, in_stream).unwrap()), message);
    }

    #[test]
    fn truncated_and_extended_messages_are_errors((message, in_stream) in message()) {
        let mut bytes = encode(&message);
        for length in 0..bytes.len() {
            let decoded = decode(&bytes[..length], in_stream).map(Msg::from);
            // An abort without position and time is a message of its own (protocol 2).
            if !matches!(decoded, Ok(Msg::StreamAbort(_, _, None)) if length == 9) {
                let error = decoded.expect_err("a truncated message");
                prop_assert!(error.offset <= length && error.length == length);
            }
        }
        bytes.push(b'n');
        prop_assert!(decode(&bytes, in_stream).is_err());
    }

    #[test]
    fn any_bytes_give_a_message_or_an_error(
        kind in prop_oneof![any::<u8>(), proptest::sample::select(b"BCORYIUDTMSEcA".to_vec())],
        mut bytes in vec(prop_oneof![any::<u8>(), 0_u8..3, Just(b'N'), Just(b't')], 0..80),
        in_stream: bool,
    ) {
        bytes.insert(0, kind);
        if let Ok(message) = decode(&bytes, in_stream) {
            prop_assert_eq!(encode(&Msg::from(message)).len(), bytes.len());
        }
    }
}

#[test]
fn c014_null_empty_and_unchanged_are_three_values() {
    let message = Msg::Insert(None, 7, vec![Val::Null, text(""), Val::Unchanged]);
    let bytes = encode(&message);
    let Ok(Message::Insert { new, .. }) = decode(&bytes, false) else { panic!("not an insert") };
    let values: Vec<_> = new.values().collect();
    assert_eq!(values, [Value::Null, Value::Text(b""), Value::Unchanged]);
}

#[test]
fn errors_name_message_and_place() {
    let bytes = encode(&Msg::Insert(None, 7, vec![text("abc"), Val::Null]));
    let error = decode(&bytes[..11], false).unwrap_err();
    assert_eq!((error.kind, error.offset, error.length), (b'I', 8, 11));
    assert!(
        error.to_string().starts_with("pgoutput message Insert is malformed at byte 8 of 11: "),
        "{error}"
    );
    let error = decode(b"Z", false).unwrap_err().to_string();
    assert!(error.contains("0x5a") && error.contains("its kind is unknown"), "{error}");
    let error = decode(b"", false).unwrap_err().to_string();
    assert!(error.contains("it is empty"), "{error}");
}

#[test]
fn a_length_near_the_limit_does_not_overflow() {
    for length in [u32::MAX, i32::MAX.cast_unsigned()] {
        let mut bytes = b"I\0\0\0\x01N\0\x01t".to_vec();
        bytes.extend(length.to_be_bytes());
        assert!(decode(&bytes, false).is_err());
        let mut bytes = b"T".to_vec();
        bytes.extend(length.to_be_bytes());
        bytes.push(0);
        assert!(decode(&bytes, false).is_err());
    }
}

#[test]
fn the_decoder_remembers_streamed_blocks() {
    let mut decoder = Decoder::new();
    let plain = encode(&Msg::Insert(None, 7, vec![Val::Null]));
    let streamed = encode(&Msg::Insert(Some(900), 7, vec![Val::Null]));
    assert!(matches!(decoder.decode(&plain), Ok(Message::Insert { xid: None, .. })));
    decoder.decode(&encode(&Msg::StreamStart(899, true))).unwrap();
    assert!(matches!(decoder.decode(&streamed), Ok(Message::Insert { xid: Some(900), .. })));
    decoder.decode(&encode(&Msg::StreamStop)).unwrap();
    assert!(matches!(decoder.decode(&plain), Ok(Message::Insert { xid: None, .. })));
}
