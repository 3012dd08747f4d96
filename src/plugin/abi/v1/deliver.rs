//! Batches for sinks, and their results, in both encodings (`wit/v1/payload-*.md`, "deliver").
//!
//! Bodies pass byte for byte: embedded as they are in JSON, framed by their length in MessagePack.

use std::{borrow::Cow, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    reply::{ReplyProblem, guest_failure},
    reply_json::{RawClass, offset},
    reply_msgpack::Reader,
};
use crate::{
    model::{DocumentOperation, Documents, Encoding, Failure, FailureClass, Lsn, Place},
    pgoutput::text::{Encoder as _, JsonEncoder, MsgpackEncoder},
};

/// What became of one document.
pub(in crate::plugin) type DeliveryResult = Result<(), Failure>;

/// Bytes of one document beside its id and body, about.
const AROUND: usize = 64;

/// Writes a request with some documents of a batch into `out`, which is emptied. The batch's documents are all
/// usable: each names a destination, and has a body if it is an upsert. Where they go to a place, all of them are for the
/// destination that is built there.
pub(in crate::plugin) fn write(
    encoding: Encoding,
    documents: &Documents,
    selection: &[usize],
    place: Option<&Place>,
    out: &mut Vec<u8>,
) {
    out.clear();
    let bodies = selection.iter().filter_map(|&index| documents.entries.get(index));
    out.reserve(bodies.map(|entry| (entry.id.1 + entry.body.1) as usize + AROUND).sum());
    match encoding {
        Encoding::Json => write_json(documents, selection, place, out),
        Encoding::Msgpack => write_msgpack(documents, selection, place, out),
    }
}

fn word(operation: DocumentOperation) -> &'static str {
    match operation {
        DocumentOperation::Upsert => "upsert",
        DocumentOperation::Delete => "delete",
    }
}

fn write_json(documents: &Documents, selection: &[usize], place: Option<&Place>, out: &mut Vec<u8>) {
    let mut json = JsonEncoder::new(out);
    json.out.extend_from_slice(b"{\"v\":1,\"entity\":");
    json.string(&documents.entity);
    json.out.extend_from_slice(b",\"origin\":");
    json.string(documents.origin.as_str());
    json.out.extend_from_slice(b",\"generation\":");
    json.integer(documents.generation);
    if let Some(place) = place {
        json.out.extend_from_slice(b",\"place\":");
        json.string(place.as_str());
    }
    json.out.extend_from_slice(b",\"destinations\":[");
    for (index, destination) in documents.destinations.iter().enumerate() {
        json.separate(index);
        json.string(destination);
    }
    json.out.extend_from_slice(b"],\"documents\":[");
    for (index, view) in selection.iter().filter_map(|&index| documents.view(index)).enumerate() {
        json.separate(index);
        json.out.push(b'[');
        json.string(word(view.operation));
        json.out.push(b',');
        json.string(view.id);
        json.out.push(b',');
        json.integer(i64::from(view.entry.destination));
        json.out.push(b',');
        match view.operation {
            DocumentOperation::Upsert => json.out.extend_from_slice(view.body.as_bytes()),
            DocumentOperation::Delete => json.null(),
        }
        json.out.push(b',');
        json.string(&view.entry.commit_lsn.to_string());
        json.out.push(b',');
        json.integer(view.entry.commit_time);
        json.out.extend_from_slice(b",{}]");
    }
    json.out.extend_from_slice(b"]}");
}

fn write_msgpack(documents: &Documents, selection: &[usize], place: Option<&Place>, out: &mut Vec<u8>) {
    let mut pack = MsgpackEncoder::new(out);
    pack.map_header(if place.is_some() { 7 } else { 6 });
    pack.string("v");
    pack.integer(1);
    pack.string("entity");
    pack.string(&documents.entity);
    pack.string("origin");
    pack.string(documents.origin.as_str());
    pack.string("generation");
    pack.integer(documents.generation);
    if let Some(place) = place {
        pack.string("place");
        pack.string(place.as_str());
    }
    pack.string("destinations");
    pack.array_header(documents.destinations.len());
    documents.destinations.iter().for_each(|destination| pack.string(destination));
    pack.string("documents");
    pack.array_header(selection.len());
    for view in selection.iter().filter_map(|&index| documents.view(index)) {
        pack.array_header(7);
        pack.string(word(view.operation));
        pack.string(view.id);
        pack.integer(i64::from(view.entry.destination));
        match view.operation {
            DocumentOperation::Upsert => bin(view.body.as_bytes(), pack.out),
            DocumentOperation::Delete => pack.null(),
        }
        unsigned(view.entry.commit_lsn, &mut pack);
        pack.integer(view.entry.commit_time);
        pack.map_header(0);
    }
}

fn unsigned(lsn: Lsn, pack: &mut MsgpackEncoder<'_>) {
    match i64::try_from(lsn.0) {
        Ok(small) => pack.integer(small),
        Err(_) => {
            pack.out.push(0xcf);
            pack.out.extend_from_slice(&lsn.0.to_be_bytes());
        }
    }
}

fn bin(bytes: &[u8], out: &mut Vec<u8>) {
    // A document is never as large as that: spans have 32 bits.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) => out.extend_from_slice(&[0xc4, length]),
        (_, Ok(length)) => {
            out.push(0xc5);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(0xc6);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Reads the results of so many documents.
pub(in crate::plugin) fn read(
    encoding: Encoding,
    reply: &[u8],
    expected: usize,
) -> Result<Vec<DeliveryResult>, ReplyProblem> {
    let results = match encoding {
        Encoding::Json => read_json(reply, expected)?,
        Encoding::Msgpack => read_msgpack(reply, expected)?,
    };
    if results.len() == expected { Ok(results) } else { Err(ReplyProblem::Count { outcomes: results.len() }) }
}

fn failed(class: FailureClass, code: &str, message: &str, retry_after_ms: Option<u64>) -> DeliveryResult {
    let mut failure = guest_failure(class, code, message);
    failure.retry_after = retry_after_ms.filter(|_| class == FailureClass::Retry).map(Duration::from_millis);
    Err(failure)
}

fn read_msgpack(reply: &[u8], expected: usize) -> Result<Vec<DeliveryResult>, ReplyProblem> {
    let mut reader = Reader::new(reply);
    let count = reader.array()?;
    if count != expected {
        return Err(ReplyProblem::Count { outcomes: count });
    }
    let mut results = Vec::with_capacity(count);
    for _ in 0..count {
        let start = reader.at;
        let len = reader.array()?;
        if len == 0 {
            return Err(ReplyProblem::at(start, "a result is an array that begins with its tag"));
        }
        let (result, read) = match (reader.small()?, len) {
            (0, _) => (Ok(()), 1),
            (1, 4..) => {
                let class = reader.class()?;
                let (code, message) = (reader.text()?, reader.text()?);
                let after = if len > 4 && !reader.take_nil() { Some(reader.small()?) } else { None };
                let read = if len > 4 { 5 } else { 4 };
                (failed(class, code, message, after), read)
            }
            _ => return Err(ReplyProblem::at(start, "no result has this tag and length")),
        };
        for _ in read..len {
            reader.skip()?;
        }
        results.push(result);
    }
    if reader.at < reply.len() {
        return Err(ReplyProblem::at(reader.at, "something follows the results"));
    }
    Ok(results)
}

fn read_json(reply: &[u8], expected: usize) -> Result<Vec<DeliveryResult>, ReplyProblem> {
    let text = simdutf8::compat::from_utf8(reply)
        .map_err(|error| ReplyProblem::at(error.valid_up_to(), "not UTF-8"))?;
    let mut results = Results { given: Vec::with_capacity(expected), expected };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_seq(&mut results).and_then(|()| deserializer.end());
    if results.given.len() > expected {
        return Err(ReplyProblem::Count { outcomes: results.given.len() });
    }
    read.map_err(|error| ReplyProblem::at(offset(text, &error), error.to_string()))?;
    Ok(results.given)
}

/// The list of results. One more than expected is enough to know that there are too many.
struct Results {
    given: Vec<DeliveryResult>,
    expected: usize,
}

impl<'t> Visitor<'t> for &mut Results {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of results")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(result) = items.next_element_seed(OneResult)? {
            self.given.push(result);
            if self.given.len() > self.expected {
                return Err(A::Error::custom("too many results"));
            }
        }
        Ok(())
    }
}

struct OneResult;

impl<'t> DeserializeSeed<'t> for OneResult {
    type Value = DeliveryResult;

    fn deserialize<D: Deserializer<'t>>(self, deserializer: D) -> Result<DeliveryResult, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[derive(Deserialize)]
struct RawFailed<'t> {
    class: RawClass,
    #[serde(borrow)]
    code: Cow<'t, str>,
    #[serde(borrow)]
    message: Cow<'t, str>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

impl<'t> Visitor<'t> for OneResult {
    type Value = DeliveryResult;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"accepted\" or {\"failed\":{…}}")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<DeliveryResult, E> {
        if word == "accepted" {
            return Ok(Ok(()));
        }
        Err(E::invalid_value(serde::de::Unexpected::Str(word), &self))
    }

    fn visit_map<A: MapAccess<'t>>(self, mut entries: A) -> Result<DeliveryResult, A::Error> {
        let key: Option<Cow<'t, str>> = entries.next_key()?;
        if key.as_deref() != Some("failed") {
            return Err(A::Error::custom("a result is \"accepted\" or {\"failed\":{…}}"));
        }
        let RawFailed { class, code, message, retry_after_ms } = entries.next_value()?;
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(failed(class.into(), &code, &message, retry_after_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::golden, *};
    use crate::model::{DocumentEntry, Operation, Origin};

    const BOTH: [Encoding; 2] = [Encoding::Json, Encoding::Msgpack];

    /// Two destinations, a body with raw line breaks and a lone surrogate, a delete, the last position there is.
    fn batch() -> Documents {
        let mut documents = Documents::new("public.products", Origin::Stream, 3);
        for (operation, destination, id, body, lsn) in [
            (
                DocumentOperation::Upsert,
                "products",
                "7",
                "{\"a\": 1.50,\n \"b\": \"\\ud800\"}",
                0x16_B374_D848,
            ),
            (DocumentOperation::Delete, "products", "8 \"Uno\"", "", u64::MAX),
            (DocumentOperation::Upsert, "all", "é", "null", 0),
        ] {
            let destination = documents.destination(destination);
            let (id, body) = (documents.push_bytes(id.as_bytes()), documents.push_bytes(body.as_bytes()));
            documents.entries.push(DocumentEntry {
                operation,
                destination,
                id,
                body,
                change: 0,
                source: Operation::Insert,
                commit_lsn: Lsn(lsn),
                commit_time: 1_767_225_600_000_001,
            });
        }
        documents
    }

    #[test]
    fn requests_are_as_the_pages_have_them() {
        let batch = batch();
        let mut out = vec![1, 2, 3];
        write(Encoding::Json, &batch, &[0, 1, 2], None, &mut out);
        golden("deliver.json", &out);
        let json: serde_json::Value = serde_json::from_slice(&out.clone()).unwrap_or_default();
        // A lone surrogate is JSON, and no text: that reader cannot have it.
        assert!(json.is_null());
        write(Encoding::Json, &batch, &[1, 2], None, &mut out);
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            json["documents"][1],
            serde_json::json!(["upsert", "é", 1, null, "0/0", 1_767_225_600_000_001_i64, {}])
        );
        write(Encoding::Msgpack, &batch, &[0, 1, 2], None, &mut out);
        golden("deliver.msgpack.hex", &out);
        let place = Place::new(3, 0x5f2c_81d0);
        write(Encoding::Json, &batch, &[0, 1], Some(&place), &mut out);
        golden("deliver-place.json", &out);
        write(Encoding::Msgpack, &batch, &[0, 1], Some(&place), &mut out);
        golden("deliver-place.msgpack.hex", &out);
    }

    #[test]
    fn bodies_of_every_length_are_framed() {
        for (length, header) in
            [(255, vec![0xc4, 255]), (256, vec![0xc5, 1, 0]), (65_536, vec![0xc6, 0, 1, 0, 0])]
        {
            let mut out = Vec::new();
            bin(&vec![b'1'; length], &mut out);
            assert_eq!(out[..header.len()], header);
            assert_eq!(out.len(), header.len() + length);
        }
    }

    #[test]
    fn results_are_read_in_order() {
        let json = br#" ["accepted", {"failed":{"class":"retry","code":"busy","message":"later","retry_after_ms":1500,"more":1}},
            {"failed":{"class":"poison","code":"bad\n","message":"never"},"more":{}}] "#;
        let pack = b"\x93\x91\x00\x95\x01\xa5retry\xa4busy\xa5later\xcd\x05\xdc\x96\x01\xa6poison\xa4bad\n\xa5never\xc0\x81\xa1x\x91\x01";
        for (encoding, reply) in [(Encoding::Json, &json[..]), (Encoding::Msgpack, &pack[..])] {
            let results = read(encoding, reply, 3).unwrap();
            assert_eq!(results[0], Ok(()));
            let retry = results[1].as_ref().unwrap_err();
            assert_eq!((retry.class, retry.code.as_str()), (FailureClass::Retry, "busy"));
            assert_eq!(retry.retry_after, Some(Duration::from_millis(1500)));
            let poison = results[2].as_ref().unwrap_err();
            assert_eq!((poison.class, poison.code.as_str()), (FailureClass::Poison, "bad\\n"));
            assert_eq!(poison.retry_after, None);
        }
    }

    #[test]
    fn c087_a_wrong_count_is_told() {
        for encoding in BOTH {
            let reply: &[u8] = match encoding {
                Encoding::Json => br#"["accepted","accepted"]"#,
                Encoding::Msgpack => b"\x92\x91\x00\x91\x00",
            };
            assert_eq!(read(encoding, reply, 3), Err(ReplyProblem::Count { outcomes: 2 }), "{encoding:?}");
            assert_eq!(read(encoding, reply, 1), Err(ReplyProblem::Count { outcomes: 2 }), "{encoding:?}");
        }
    }

    #[test]
    fn nonsense_is_told_with_its_place() {
        for reply in [
            "",
            "{}",
            "[1]",
            "[\"fine\"]",
            "[{}]",
            "[{\"failed\":{\"class\":\"odd\",\"code\":\"\",\"message\":\"\"}}]",
            "[\"accepted\"] x",
        ] {
            let problem = read(Encoding::Json, reply.as_bytes(), 1);
            assert!(matches!(problem, Err(ReplyProblem::Malformed { .. })), "{reply}: {problem:?}");
        }
        for reply in [
            &b""[..],
            b"\xc0",
            b"\x91",
            b"\x91\x90",
            b"\x91\x91\x02",
            b"\x91\x93\x01\xa5retry\xa1x",
            b"\x91\x94\x01\xa3odd\xa1x\xa1x",
            b"\x91\x91\x00\x00",
            b"\x91\x92\x00\xdf\xff\xff\xff\xff",
            b"\xdd\x00\x00\x00\x01",
        ] {
            let problem = read(Encoding::Msgpack, reply, 1);
            assert!(matches!(problem, Err(ReplyProblem::Malformed { .. })), "{reply:?}: {problem:?}");
        }
    }
}
