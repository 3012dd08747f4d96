//! Documents on their way to a sink, many to a buffer.

use std::sync::Arc;

use super::{Beside, Lsn, Operation, Origin};

/// What a sink is to do with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DocumentOperation {
    /// Put the body under the id, whether one was there or not.
    Upsert,
    /// Remove the id, whether one was there or not.
    Delete,
}

/// One entry of [`Documents`]: spans into its bytes, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentEntry {
    /// Upsert or delete.
    pub operation: DocumentOperation,
    /// Index into [`Documents::destinations`].
    pub destination: u32,
    /// The id's span: start and length.
    pub id: (u32, u32),
    /// The body's span; empty for a delete.
    pub body: (u32, u32),
    /// The change that it came from, as an index into the batch of changes.
    pub change: u32,
    /// The row event that made it.
    pub source: Operation,
    /// The commit that made it.
    pub commit_lsn: Lsn,
    /// When that was: microseconds since 1970-01-01 UTC.
    pub commit_time: i64,
}

/// Documents of one mapping, in commit order. Several entries may have the same id: the last one wins.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The entity whose rows made them, as `schema.table`.
    pub entity: String,
    /// The branch that they came by.
    pub origin: Origin,
    /// The generation of the mapping that made them.
    pub generation: i64,
    /// Where those for the mapping's own destination go; none: to what readers see.
    pub beside: Option<Arc<Beside>>,
    /// Ids (UTF-8) and bodies (JSON text, validated).
    pub bytes: Vec<u8>,
    /// The destinations that entries name.
    pub destinations: Vec<String>,
    /// The entries, in order.
    pub entries: Vec<DocumentEntry>,
}

/// One document, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentView<'a> {
    /// Upsert or delete.
    pub operation: DocumentOperation,
    /// Where in the sink.
    pub destination: &'a str,
    /// The document id.
    pub id: &'a str,
    /// JSON text; empty for a delete.
    pub body: &'a str,
    /// Where it came from.
    pub entry: &'a DocumentEntry,
}

impl Documents {
    /// No documents yet.
    pub fn new(entity: impl Into<String>, origin: Origin, generation: i64) -> Self {
        Self {
            entity: entity.into(),
            origin,
            generation,
            beside: None,
            bytes: Vec::new(),
            destinations: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// The index of a destination, which is added where it is new.
    pub fn destination(&mut self, name: &str) -> u32 {
        let found = self.destinations.iter().position(|known| known == name);
        let index = found.unwrap_or_else(|| {
            self.destinations.push(name.to_owned());
            self.destinations.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Appends bytes and gives their span.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> (u32, u32) {
        let span = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        (span(start), span(bytes.len()))
    }

    /// Appends all documents of `more`, behind those that are here.
    pub fn append(&mut self, more: &Self) {
        let offset = self.push_bytes(&more.bytes).0;
        let destinations: Vec<u32> = more.destinations.iter().map(|name| self.destination(name)).collect();
        let moved = |entry: &DocumentEntry| DocumentEntry {
            destination: destinations.get(entry.destination as usize).copied().unwrap_or(u32::MAX),
            id: (entry.id.0 + offset, entry.id.1),
            body: (entry.body.0 + offset, entry.body.1),
            ..*entry
        };
        self.entries.extend(more.entries.iter().map(moved));
    }

    /// The documents at these indexes, on their own.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let mut part = Self::new(self.entity.as_str(), self.origin, self.generation);
        part.beside.clone_from(&self.beside);
        part.destinations.clone_from(&self.destinations);
        for entry in self.entries.get(range).unwrap_or_default() {
            let bytes = |(start, len): (u32, u32)| {
                self.bytes.get(start as usize..start as usize + len as usize).unwrap_or_default()
            };
            let (id, body) = (part.push_bytes(bytes(entry.id)), part.push_bytes(bytes(entry.body)));
            part.entries.push(DocumentEntry { id, body, ..*entry });
        }
        part
    }

    fn text(&self, (start, len): (u32, u32)) -> &str {
        let bytes = self.bytes.get(start as usize..start as usize + len as usize);
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// One document.
    #[must_use]
    pub fn view(&self, index: usize) -> Option<DocumentView<'_>> {
        let entry = self.entries.get(index)?;
        Some(DocumentView {
            operation: entry.operation,
            destination: self.destinations.get(entry.destination as usize)?,
            id: self.text(entry.id),
            body: self.text(entry.body),
            entry,
        })
    }

    /// All documents, in order.
    pub fn iter(&self) -> impl Iterator<Item = DocumentView<'_>> {
        (0..self.entries.len()).filter_map(|index| self.view(index))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
impl Documents {
    /// For unit tests: an insert's upsert, committed at LSN 1.
    pub(crate) fn upsert(&mut self, destination: &str, id: &str, body: &str) {
        let destination = self.destination(destination);
        let (id, body) = (self.push_bytes(id.as_bytes()), self.push_bytes(body.as_bytes()));
        self.entries.push(DocumentEntry {
            operation: DocumentOperation::Upsert,
            destination,
            id,
            body,
            change: 0,
            source: Operation::Insert,
            commit_lsn: Lsn(1),
            commit_time: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(destination: &str, id: &str, body: &str) -> Documents {
        let mut documents = Documents::new("public.t", Origin::Stream, 1);
        documents.upsert(destination, id, body);
        documents
    }

    #[test]
    fn appended_documents_keep_their_texts_and_destinations() {
        let mut all = one("a", "1", "{}");
        all.append(&one("b", "two", "[2]"));
        all.append(&one("a", "3", "3"));
        let seen: Vec<_> = all.iter().map(|view| (view.destination, view.id, view.body)).collect();
        assert_eq!(seen, [("a", "1", "{}"), ("b", "two", "[2]"), ("a", "3", "3")]);
        let part = all.part(1..3);
        let seen: Vec<_> = part.iter().map(|view| (view.destination, view.id, view.body)).collect();
        assert_eq!(seen, [("b", "two", "[2]"), ("a", "3", "3")]);
        assert_eq!(part.bytes.len(), 8, "only what belongs to it");
    }
}
