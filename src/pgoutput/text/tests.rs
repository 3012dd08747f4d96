use std::fmt::Write as _;

use proptest::{collection::vec, option, prelude::*};
use serde_json::Value as Json;

use super::*;
use crate::pgoutput::builtin_value_type;

fn array(element: ValueType) -> ValueType {
    ValueType::Array(Box::new(element), b',')
}

fn json(value_type: &ValueType, text: &str) -> Result<String, ValueError> {
    let mut out = b"before".to_vec();
    let result = encode_value(value_type, text.as_bytes(), &mut JsonEncoder::new(&mut out));
    let text = String::from_utf8(out.split_off(6)).unwrap();
    assert!(result.is_ok() || text.is_empty(), "an error leaves nothing behind");
    result.map(|()| text)
}

fn msgpack(value_type: &ValueType, text: &str) -> Result<Vec<u8>, ValueError> {
    let mut out = b"before".to_vec();
    let result = encode_value(value_type, text.as_bytes(), &mut MsgpackEncoder::new(&mut out));
    let bytes = out.split_off(6);
    assert!(result.is_ok() || bytes.is_empty(), "an error leaves nothing behind");
    result.map(|()| bytes)
}

/// MessagePack in a readable form: JSON with `bin:…`, `json:…` and floats told apart by `f`.
fn show(bytes: &[u8]) -> String {
    let mut rest = bytes;
    let mut out = String::new();
    show_one(&mut rest, &mut out);
    assert!(rest.is_empty(), "bytes behind the value");
    out
}

fn show_one(rest: &mut &[u8], out: &mut String) {
    use rmp::{Marker, decode};
    let take = |rest: &mut &[u8], length: usize| {
        let (taken, after) = rest.split_at(length);
        *rest = after;
        taken.to_vec()
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match Marker::from_u8(rest[0]) {
        Marker::Null => {
            decode::read_nil(rest).unwrap();
            out.push_str("nil");
        }
        Marker::True | Marker::False => write!(out, "{}", decode::read_bool(rest).unwrap()).unwrap(),
        Marker::F64 => write!(out, "f{:?}", decode::read_f64(rest).unwrap()).unwrap(),
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
            let length = decode::read_str_len(rest).unwrap() as usize;
            write!(out, "{:?}", text(take(rest, length))).unwrap();
        }
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let length = decode::read_bin_len(rest).unwrap() as usize;
            write!(out, "bin:{}", take(rest, length).escape_ascii()).unwrap();
        }
        Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
            let meta = decode::read_ext_meta(rest).unwrap();
            assert_eq!(meta.typeid.cast_unsigned(), JSON_EXTENSION);
            write!(out, "json:{}", text(take(rest, meta.size as usize))).unwrap();
        }
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
            let count = decode::read_array_len(rest).unwrap();
            out.push('[');
            for at in 0..count {
                out.push_str(if at > 0 { "," } else { "" });
                show_one(rest, out);
            }
            out.push(']');
        }
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
            let count = decode::read_map_len(rest).unwrap();
            out.push('{');
            for at in 0..count {
                out.push_str(if at > 0 { "," } else { "" });
                show_one(rest, out);
                out.push(':');
                show_one(rest, out);
            }
            out.push('}');
        }
        _ => write!(out, "{}", decode::read_int::<i64, _>(rest).unwrap()).unwrap(),
    }
}

/// One row of the table: the same value in both encodings.
fn row(value_type: &ValueType, text: &str, in_json: &str, in_msgpack: &str) {
    assert_eq!(json(value_type, text).as_deref(), Ok(in_json), "{text}");
    assert_eq!(msgpack(value_type, text).map(|bytes| show(&bytes)).as_deref(), Ok(in_msgpack), "{text}");
}

/// A value that is the same string in both.
fn string(value_type: &ValueType, text: &str, expected: &str) {
    let quoted = format!("{expected:?}");
    row(value_type, text, &quoted, &quoted);
}

fn refused(value_type: &ValueType, texts: &[&str]) {
    for text in texts {
        assert!(json(value_type, text).is_err(), "{value_type:?} {text}");
        assert!(msgpack(value_type, text).is_err(), "{value_type:?} {text}");
    }
}

#[test]
fn bool() {
    row(&ValueType::Bool, "t", "true", "true");
    row(&ValueType::Bool, "f", "false", "false");
    refused(&ValueType::Bool, &["", "true", "T", "1"]);
}

#[test]
fn c004_integers_keep_their_digits() {
    for text in
        ["0", "-1", "32767", "4294967295", "9007199254740993", "9223372036854775807", "-9223372036854775808"]
    {
        row(&ValueType::Integer, text, text, text);
    }
    refused(&ValueType::Integer, &["", "1.0", "abc", "9223372036854775808", " 1"]);
}

#[test]
fn floats() {
    row(&ValueType::Float, "0.1", "0.1", "f0.1");
    row(&ValueType::Float, "1", "1", "f1.0");
    row(&ValueType::Float, "-0", "-0", "f-0.0");
    row(&ValueType::Float, "1e-05", "1e-05", "f1e-5");
    row(&ValueType::Float, "1.7976931348623157e+308", "1.7976931348623157e+308", "f1.7976931348623157e308");
    for word in ["NaN", "Infinity", "-Infinity"] {
        string(&ValueType::Float, word, word);
    }
    refused(&ValueType::Float, &["", "inf", "nan", "1.", ".5", "1e", "0x1", "+1"]);
}

#[test]
fn c003_numerics_are_plain_digits_with_their_scale() {
    let sixty = "1".repeat(60);
    for text in ["7000", "1.10", "0.00000000000000000001", &sixty, "-0.5", "NaN", "Infinity", "-Infinity"] {
        string(&ValueType::Numeric, text, text);
    }
    refused(&ValueType::Numeric, &["", "7E+3", "1.", ".1", "-", "abc"]);
    row(&array(ValueType::Numeric), "{0.1,1.10}", r#"["0.1","1.10"]"#, r#"["0.1","1.10"]"#);
}

#[test]
fn c011_what_is_not_listed_is_text() {
    for text in ["", "happy", "[1,2)", "'a' 'b':1", "(1,\"x y\")", "$1.50", "12:34:56+02", "\u{e9}\u{1f600}"]
    {
        string(&ValueType::Text, text, text);
    }
    let intervals = builtin_value_type(1187).unwrap();
    row(&intervals, "{P1DT2H3M4S,NULL}", r#"["P1DT2H3M4S",null]"#, r#"["P1DT2H3M4S",nil]"#);
}

#[test]
fn strings_are_escaped_in_json() {
    row(&ValueType::Text, "a\"b\\c\u{1}\n", r#""a\"b\\c\u0001\n""#, "\"a\\\"b\\\\c\\u{1}\\n\"");
}

#[test]
fn c013_invalid_utf8_is_an_error() {
    for value_type in [ValueType::Text, ValueType::Json, ValueType::Date, array(ValueType::Text)] {
        let mut out = Vec::new();
        let error = encode_value(&value_type, b"{a\xff}", &mut JsonEncoder::new(&mut out)).unwrap_err();
        assert_eq!((error.problem, error.excerpt.as_str()), ("it is not UTF-8", "{a\\xff}"));
    }
}

#[test]
fn dates_and_times() {
    for text in
        ["2024-01-31", "0001-01-01", "9999-12-31", "10000-01-01", "0044-03-15 BC", "infinity", "-infinity"]
    {
        string(&ValueType::Date, text, text);
    }
    refused(
        &ValueType::Date,
        &["", "31.01.2024", "01/31/2024", "2024-1-31", "2024-01-31 AD", "Infinity", "é"],
    );
    for text in ["12:34:56", "12:34:56.789", "24:00:00"] {
        string(&ValueType::Time, text, text);
    }
    refused(&ValueType::Time, &["", "12:34", "12:34:56.", "12:34:56+02", "12:34:56.1234567"]);
}

#[test]
fn timestamps() {
    let plain = &ValueType::Timestamp;
    string(plain, "2024-01-31 12:34:56.7", "2024-01-31T12:34:56.7");
    string(plain, "0001-01-01 00:00:00", "0001-01-01T00:00:00");
    let zoned = &ValueType::TimestampTz;
    string(zoned, "2024-01-31 12:34:56+00", "2024-01-31T12:34:56Z");
    string(zoned, "9999-12-31 23:59:59.999999+00", "9999-12-31T23:59:59.999999Z");
    for text in ["infinity", "-infinity", "0044-03-15 01:02:03+00 BC", "10000-01-01 00:00:00+00"] {
        string(zoned, text, text);
        let text = text.replace("+00", "");
        string(plain, &text, &text);
    }
    refused(plain, &["", "2024-01-31", "2024-01-31T00:00:00", "2024-01-31 12:34:56+00", "Wed Jan 31"]);
    refused(
        zoned,
        &["2024-01-31 12:34:56", "2024-01-31 12:34:56+02", "2024-01-31 12:34:56+00:30", "2024-01-31 é"],
    );
}

#[test]
fn intervals() {
    for text in ["P1DT2H3M4S", "PT0S", "P1Y-2M", "PT-0.5S", "infinity"] {
        string(&ValueType::Interval, text, text);
    }
    refused(&ValueType::Interval, &["", "P", "1 day", "1-2 3 4:05:06"]);
}

#[test]
fn bytea() {
    row(&ValueType::Bytea, "\\x00ff41", r#""AP9B""#, "bin:\\x00\\xffA");
    row(&ValueType::Bytea, "\\x", r#""""#, "bin:");
    row(&ValueType::Bytea, "\\xABCD", r#""q80=""#, "bin:\\xab\\xcd");
    refused(&ValueType::Bytea, &["", "abc", "\\xa", "\\xzz", "\\x0", "\\000"]);
    row(&array(ValueType::Bytea), r#"{"\\x00","\\x"}"#, r#"["AA==",""]"#, "[bin:\\x00,bin:]");
}

#[test]
fn c004_json_passes_through_raw() {
    let text = "{\"a\": [9007199254740993, 1e400, 1.0],\n \"a\": \"\\u0000\\ud800\"}";
    row(&ValueType::Json, text, text, &format!("json:{text}"));
    row(
        &array(ValueType::Json),
        r#"{"{\"a\": [1, 2]}",NULL,1}"#,
        r#"[{"a": [1, 2]},null,1]"#,
        r#"[json:{"a": [1, 2]},nil,json:1]"#,
    );
    refused(&ValueType::Json, &["", "{", "1 2", "{\"a\":1}}"]);
}

#[test]
fn arrays() {
    let integers = array(ValueType::Integer);
    row(&integers, "{}", "[]", "[]");
    row(&integers, "{1,NULL,-3}", "[1,null,-3]", "[1,nil,-3]");
    row(&integers, "{{1,2},{3,4}}", "[[1,2],[3,4]]", "[[1,2],[3,4]]");
    string(&integers, "[2:3]={1,2}", "[2:3]={1,2}");
    string(&integers, "[2:3][1:2]={{1,2},{3,4}}", "[2:3][1:2]={{1,2},{3,4}}");
    row(&array(ValueType::Bool), "{t,f}", "[true,false]", "[true,false]");
    let text = r#"{"a\"b","c\\d","","NULL",NULL,"x,y"," sp ","{}",plain,"\é"}"#;
    let expected = r#"["a\"b","c\\d","","NULL",null,"x,y"," sp ","{}","plain","é"]"#;
    row(&array(ValueType::Text), text, expected, &expected.replace("null", "nil"));
    let boxes = builtin_value_type(1020).unwrap();
    let expected = r#"["(1,1),(0,0)","(2,2),(1,1)"]"#;
    row(&boxes, "{(1,1),(0,0);(2,2),(1,1)}", expected, expected);
    let times = r#"{"2024-01-31 12:34:56+00"}"#;
    row(&array(ValueType::TimestampTz), times, r#"["2024-01-31T12:34:56Z"]"#, r#"["2024-01-31T12:34:56Z"]"#);
    row(&array(ValueType::Float), "{Infinity,1.5}", r#"["Infinity",1.5]"#, r#"["Infinity",f1.5]"#);
    refused(
        &integers,
        &["", "1", "{", "{1", "{1,}", "{,1}", "{1}x", "{a}", "{1 2}", "{\"1}", "{\"1\\", "{1}}", "[1]"],
    );
    refused(&array(ValueType::Text), &["{a\"b}", "{\"a\"b}", "{a{}", "{{{{{{{1}}}}}}}", "{\"a\\\"}"]);
}

#[test]
fn long_containers_get_long_headers() {
    for count in [15, 16, 65_535, 65_536] {
        let text = format!("{{{}}}", vec!["7"; count].join(","));
        let bytes = msgpack(&array(ValueType::Integer), &text).unwrap();
        let mut rest = &bytes[..];
        assert_eq!(rmp::decode::read_array_len(&mut rest).unwrap() as usize, count);
        assert!(rest.len() == count && rest.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn c009_domains_over_arrays_and_hstore_with_null() {
    let hstore = r#""a"=>NULL, "b"=>"", "c d"=>"x\"y\\z", "NULL"=>"NULL""#;
    let expected = r#"{"a":null,"b":"","c d":"x\"y\\z","NULL":"NULL"}"#;
    row(&ValueType::Hstore, hstore, expected, &expected.replace(":null", ":nil"));
    row(&ValueType::Hstore, "", "{}", "{}");
    row(&array(ValueType::Hstore), r#"{"\"a\"=>\"1\""}"#, r#"[{"a":"1"}]"#, r#"[{"a":"1"}]"#);
    // An array of a domain over an array: its elements are quoted.
    row(&array(array(ValueType::Integer)), r#"{"{1,2}",NULL}"#, "[[1,2],null]", "[[1,2],nil]");
    refused(
        &ValueType::Hstore,
        &["a=>1", "\"a\"", "\"a\"=>", "\"a\"=>null", "\"a\"=>\"1\",", "\"a\"=>\"1\" \"b\"=>\"2\""],
    );
}

#[test]
fn errors_are_bounded_and_name_the_type() {
    let error = json(&array(ValueType::Integer), &format!("{{{}\u{1}}}", "x".repeat(1000))).unwrap_err();
    assert_eq!(error.value_type, "integer[]");
    assert!(error.excerpt.len() < 60 && error.excerpt.ends_with('…'), "{}", error.excerpt);
    let error = json(&ValueType::Bool, "ja\n").unwrap_err().to_string();
    assert_eq!(error, "`ja\\n` cannot be read as bool: it is neither t nor f");
}

#[test]
fn null_is_null() {
    let (mut json, mut msgpack) = (Vec::new(), Vec::new());
    encode_cell(&ValueType::Integer, None, &mut JsonEncoder::new(&mut json)).unwrap();
    encode_cell(&ValueType::Integer, None, &mut MsgpackEncoder::new(&mut msgpack)).unwrap();
    assert_eq!((&json[..], &msgpack[..]), (&b"null"[..], &[0xc0][..]));
}

/// A nested array: text leaves at one depth.
#[derive(Clone, Debug)]
enum Nested {
    Leaf(Option<String>),
    List(Vec<Nested>),
}

fn nested() -> impl Strategy<Value = Nested> {
    let leaf = option::weighted(0.8, "[a-z{}\"\\\\, ;é😀\\n]{0,6}|NULL|null");
    let level = |inner: BoxedStrategy<Nested>| vec(inner, 0..4).prop_map(Nested::List).boxed();
    let one = level(leaf.prop_map(Nested::Leaf).boxed());
    prop_oneof![one.clone(), level(one.clone()), level(level(one))]
}

/// What `array_out` does.
fn literal(value: &Nested) -> String {
    match value {
        Nested::List(items) => format!("{{{}}}", items.iter().map(literal).collect::<Vec<_>>().join(",")),
        Nested::Leaf(None) => "NULL".into(),
        Nested::Leaf(Some(text)) => {
            let special = |c: char| "{}\"\\, \n".contains(c);
            if text.is_empty() || text.eq_ignore_ascii_case("null") || text.contains(special) {
                format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
            } else {
                text.clone()
            }
        }
    }
}

fn as_json(value: &Nested) -> Json {
    match value {
        Nested::List(items) => Json::Array(items.iter().map(as_json).collect()),
        Nested::Leaf(text) => text.clone().map_or(Json::Null, Json::String),
    }
}

fn any_type() -> impl Strategy<Value = ValueType> {
    use ValueType::*;
    let scalar = proptest::sample::select(vec![
        Bool,
        Integer,
        Float,
        Numeric,
        Text,
        Date,
        Time,
        Timestamp,
        TimestampTz,
        Interval,
        Bytea,
        Json,
        Hstore,
    ]);
    prop_oneof![3 => scalar.clone(), 1 => scalar.prop_map(array)]
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..20),
        "[\\[\\]{}\"\\\\,:=>0-9a-fx .\\-+TtNUL]{0,16}".prop_map(String::into_bytes),
        "\\{[0-9tf,\"NUL]{0,12}\\}".prop_map(String::into_bytes),
        "\"a\"=>(\"[a\\\\\"é]{0,4}\"|NULL)(, \"b\"=>NULL)?".prop_map(String::into_bytes),
        "[0-9]{4,5}-[01][0-9]-[0-3][0-9]( [0-9:.]{8}(\\+00)?( BC)?)?".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn arrays_round_trip(value in nested()) {
        let text = literal(&value);
        let encoded = json(&array(ValueType::Text), &text).unwrap();
        prop_assert_eq!(serde_json::from_str::<Json>(&encoded).unwrap(), as_json(&value));
        let shown = show(&msgpack(&array(ValueType::Text), &text).unwrap());
        prop_assert!(shown.starts_with('['));
    }

    #[test]
    fn hstore_round_trips(map in proptest::collection::btree_map(".{0,5}", option::of(".{0,5}"), 0..20)) {
        let quote = |text: &String| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let pair = |(key, value): (&String, &Option<String>)| {
            format!("{}=>{}", quote(key), value.as_ref().map_or("NULL".into(), quote))
        };
        let text = map.iter().map(pair).collect::<Vec<_>>().join(", ");
        let encoded = json(&ValueType::Hstore, &text).unwrap();
        let decoded: std::collections::BTreeMap<String, Option<String>> = serde_json::from_str(&encoded).unwrap();
        prop_assert_eq!(decoded, map);
        show(&msgpack(&ValueType::Hstore, &text).unwrap());
    }

    #[test]
    fn bytea_round_trips(bytes in prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 760..1600)]) {
        let hex: String = bytes.iter().fold("\\x".into(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        use base64::Engine;
        let expected = base64::engine::general_purpose::STANDARD.encode(&bytes);
        prop_assert_eq!(json(&ValueType::Bytea, &hex).unwrap(), format!("\"{expected}\""));
        let packed = msgpack(&ValueType::Bytea, &hex).unwrap();
        let mut rest = &packed[..];
        prop_assert_eq!(rmp::decode::read_bin_len(&mut rest).unwrap() as usize, bytes.len());
        prop_assert_eq!(rest, &bytes[..]);
    }

    #[test]
    fn whatever_is_encoded_parses(value_type in any_type(), text in any_text()) {
        let mut out = Vec::new();
        let in_json = encode_value(&value_type, &text, &mut JsonEncoder::new(&mut out));
        if in_json.is_ok() {
            let parsed: Result<&serde_json::value::RawValue, _> = serde_json::from_slice(&out);
            prop_assert!(parsed.is_ok(), "{:?} {}", value_type, out.escape_ascii());
        } else {
            prop_assert!(out.is_empty());
        }
        let mut out = Vec::new();
        let in_msgpack = encode_value(&value_type, &text, &mut MsgpackEncoder::new(&mut out));
        prop_assert_eq!(&in_msgpack, &in_json, "both encodings refuse the same values");
        if in_msgpack.is_ok() {
            show(&out);
        }
    }

    #[test]
    fn integers_have_the_shortest_form(value: i64, shift in 0_u32..64) {
        let value = value >> shift;
        let mut expected = Vec::new();
        rmp::encode::write_sint(&mut expected, value).unwrap();
        prop_assert_eq!(msgpack(&ValueType::Integer, &value.to_string()).unwrap(), expected);
    }
}
