//! What goes into one request: which documents, and the JSON around them.

use std::io::{self, Write as _};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest as _, Sha256};

use super::progress::Key;
use crate::{
    model::Documents,
    sink::{Rejected, render, usable},
};

/// What the JSON around a document takes, besides its id and body: an estimate from above.
const AROUND: usize = 128;
/// As long as every id: `msg_` and 32 hex digits.
const ID_PLACE: &[u8] = b"msg_00000000000000000000000000000000";
const ID_AT: usize = b"{\"id\":\"".len();

/// Documents of one destination that travel together, as indexes into the batch; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    destination: usize,
    indexes: Vec<usize>,
}

impl Part {
    /// How many documents it has.
    pub(super) fn len(&self) -> usize {
        self.indexes.len()
    }

    /// The index in the batch of its document number `at`.
    pub(super) fn index(&self, at: usize) -> Option<usize> {
        self.indexes.get(at).copied()
    }

    /// The destination of all its documents.
    pub(super) fn destination<'a>(&self, documents: &'a Documents) -> &'a str {
        documents.destinations.get(self.destination).map_or("", String::as_str)
    }

    /// Two parts in its place, or the index of its only document.
    pub(super) fn halves(mut self) -> Result<(Self, Self), usize> {
        if let [only] = self.indexes[..] {
            return Err(only);
        }
        let second = self.indexes.split_off(self.indexes.len() / 2);
        let destination = self.destination;
        Ok((self, Self { destination, indexes: second }))
    }
}

/// Cuts a batch into parts within the limits. Documents of a destination keep their order; a document that
/// is over the limit by itself goes alone. Those that cannot be sent at all go to `rejected`.
pub(super) fn cut(
    documents: &Documents,
    rejected: &mut Vec<Rejected>,
    max_documents: usize,
    max_bytes: usize,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    // By destination: its open part and that part's size.
    let mut open: Vec<Option<(usize, usize)>> = vec![None; documents.destinations.len()];
    for index in 0..documents.len() {
        let document = match usable(documents, index) {
            Ok(document) => document,
            Err(refused) => {
                rejected.push(refused);
                continue;
            }
        };
        let size = document.id.len() + document.body.len() + AROUND;
        let destination = document.entry.destination as usize;
        match open[destination] {
            Some((at, taken)) if parts[at].len() < max_documents && taken + size <= max_bytes => {
                parts[at].indexes.push(index);
                open[destination] = Some((at, taken + size));
            }
            _ => {
                open[destination] = Some((parts.len(), size));
                parts.push(Part { destination, indexes: vec![index] });
            }
        }
    }
    parts
}

/// The JSON of one request.
pub(super) struct Envelope {
    bytes: Vec<u8>,
    key: Key,
}

impl Envelope {
    /// Writes the envelope of a part, with a place for the id.
    pub(super) fn render(documents: &Documents, part: &Part) -> Self {
        let mut out = Vec::new();
        out.extend_from_slice(b"{\"id\":\"");
        out.extend_from_slice(ID_PLACE);
        out.extend_from_slice(b"\",\"entity\":");
        render::push_string(&mut out, &documents.entity);
        out.extend_from_slice(b",\"destination\":");
        render::push_string(&mut out, part.destination(documents));
        let (origin, generation) = (documents.origin.as_str(), documents.generation);
        render::push_text(&mut out, format_args!(",\"origin\":\"{origin}\",\"generation\":{generation}"));
        out.extend_from_slice(b",\"documents\":[");
        for (at, document) in part.indexes.iter().filter_map(|&index| documents.view(index)).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            let operation = render::operation(document.operation);
            render::push_text(&mut out, format_args!("{{\"op\":\"{operation}\",\"id\":"));
            render::push_string(&mut out, document.id);
            render::push_position(&mut out, &document);
            render::push_body(&mut out, &document);
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
        // The place in the batch belongs to the key: a batch may have the same document twice.
        let mut hash = Sha256::new();
        hash.update(part.indexes.first().copied().unwrap_or_default().to_be_bytes());
        hash.update(&out);
        Self { bytes: out, key: hash.finalize().into() }
    }

    /// What it carries, and where in its batch.
    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Puts the id in its place.
    pub(super) fn set_id(&mut self, id: &str) {
        debug_assert_eq!(id.len(), ID_PLACE.len());
        self.bytes.splice(ID_AT..ID_AT + ID_PLACE.len(), id.bytes());
    }

    /// The bytes of the body.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Compresses; the same input gives the same bytes.
pub(super) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DocumentEntry, DocumentOperation, Lsn, Operation, Origin};

    fn batch(documents: &[(&str, &str, &str)]) -> Documents {
        let mut batch = Documents::new("public.t", Origin::Stream, 1);
        for (destination, id, body) in documents {
            let destination = batch.destination(destination);
            let (id, body) = (batch.push_bytes(id.as_bytes()), batch.push_bytes(body.as_bytes()));
            let operation = DocumentOperation::Upsert;
            let (source, commit_lsn) = (Operation::Insert, Lsn(0x1_0000_0010));
            let entry = DocumentEntry {
                operation,
                destination,
                id,
                body,
                change: 0,
                source,
                commit_lsn,
                commit_time: 0,
            };
            batch.entries.push(entry);
        }
        batch
    }

    fn indexes(parts: &[Part]) -> Vec<Vec<usize>> {
        parts.iter().map(|part| part.indexes.clone()).collect()
    }

    #[test]
    fn a_batch_is_cut_by_destination_count_and_size() {
        let big = "7".repeat(500);
        let batch = batch(&[
            ("a", "1", "1"),
            ("b", "2", "2"),
            ("a", "3", ""),
            ("a", "4", &big),
            ("a", "5", "5"),
            ("b", "6", "6"),
        ]);
        let mut rejected = Vec::new();
        assert_eq!(indexes(&cut(&batch, &mut rejected, 10, 10_000)), [vec![0, 3, 4], vec![1, 5]]);
        assert_eq!(rejected.len(), 1);
        assert_eq!(rejected[0].index, 2);
        assert_eq!(indexes(&cut(&batch, &mut rejected, 10, 300)), [vec![0], vec![1, 5], vec![3], vec![4]]);
        assert_eq!(
            indexes(&cut(&batch, &mut rejected, 1, 10_000)),
            [vec![0], vec![1], vec![3], vec![4], vec![5]]
        );
        assert_eq!(cut(&batch, &mut rejected, 0, 0).len(), 5, "no limit stops a document from going alone");
    }

    #[test]
    fn parts_halve_down_to_one() {
        let part = Part { destination: 0, indexes: vec![4, 7, 9] };
        let (first, second) = part.halves().unwrap();
        assert_eq!(indexes(&[first.clone(), second]), [vec![4], vec![7, 9]]);
        assert_eq!(first.halves(), Err(4));
    }

    #[test]
    fn the_envelope_is_the_documented_one() {
        let batch = batch(&[("a\"", "é", "{\"n\": 1e400}")]);
        let mut envelope = Envelope::render(&batch, &cut(&batch, &mut Vec::new(), 1, 1)[0]);
        envelope.set_id(&format!("msg_{}", "1".repeat(32)));
        let expected = concat!(
            r#"{"id":"msg_11111111111111111111111111111111","entity":"public.t","destination":"a\"","#,
            r#""origin":"stream","generation":1,"documents":[{"op":"upsert","id":"é","lsn":"1/10","#,
            r#""commit_time":"1970-01-01T00:00:00.000000Z","document":{"n": 1e400}}]}"#
        );
        assert_eq!(String::from_utf8(envelope.into_bytes()).unwrap(), expected);
    }

    #[test]
    fn the_same_document_twice_in_a_batch_is_two_requests() {
        let batch = batch(&[("a", "1", "1"), ("a", "1", "2"), ("a", "1", "1")]);
        let parts = cut(&batch, &mut Vec::new(), 1, 1000);
        assert_ne!(Envelope::render(&batch, &parts[0]).key(), Envelope::render(&batch, &parts[2]).key());
        assert_eq!(Envelope::render(&batch, &parts[0]).key(), Envelope::render(&batch, &parts[0]).key());
    }
}
