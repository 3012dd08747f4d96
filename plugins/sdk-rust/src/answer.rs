//! What a transform answers, and how it is written.

use serde::Serialize;

use crate::{Failure, FailureClass, json, msgpack::write};

/// One document, with its own id and destination where it names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document<D> {
    /// Its id; otherwise the change's document id.
    pub id: Option<String>,
    /// Where it lands; otherwise the mapping's destination.
    pub destination: Option<String>,
    /// What it says.
    pub body: D,
}

impl<D> Document<D> {
    /// A document under the change's document id.
    pub fn new(body: D) -> Self {
        Self { id: None, destination: None, body }
    }

    /// The same with an id of its own.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same with a destination of its own.
    #[must_use]
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }
}

/// The answer to one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<D> {
    /// The row's one document.
    Emit(D),
    /// Several documents, or some with ids of their own. None at all means delete.
    EmitAll(Vec<Document<D>>),
    /// The row has no document: the one under its id is removed.
    Delete,
    /// The destination stays as it is.
    Skip,
}

/// What a transform may return.
pub trait IntoAnswer {
    /// Writes it as one outcome.
    fn write(self, out: &mut Outcomes);
}

impl<D: Serialize> IntoAnswer for Option<D> {
    #[inline]
    fn write(self, out: &mut Outcomes) {
        match self {
            Some(document) => out.emit(&document),
            None => out.delete(),
        }
    }
}

impl<D: Serialize> IntoAnswer for Vec<Document<D>> {
    fn write(self, out: &mut Outcomes) {
        if self.is_empty() { out.delete() } else { out.emit_all(&self) }
    }
}

impl<D: Serialize> IntoAnswer for Answer<D> {
    fn write(self, out: &mut Outcomes) {
        match self {
            Self::Emit(document) => out.emit(&document),
            Self::EmitAll(documents) => documents.write(out),
            Self::Delete => out.delete(),
            Self::Skip => out.skip(),
        }
    }
}

/// The outcomes of a batch, written one after the other.
#[derive(Debug)]
pub struct Outcomes {
    bytes: Vec<u8>,
}

impl Outcomes {
    pub(crate) fn new(count: usize, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        write::array(&mut bytes, count);
        Self { bytes }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// The row's one document.
    #[inline]
    pub fn emit<D: Serialize + ?Sized>(&mut self, document: &D) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0x92, 0x00, 0x91]);
        if let Err(error) = self.document(None, None, document) {
            self.unwritable(start, &error);
        }
    }

    /// Several documents; at least one.
    pub fn emit_all<D: Serialize>(&mut self, documents: &[Document<D>]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0x92, 0x00]);
        write::array(&mut self.bytes, documents.len());
        for Document { id, destination, body } in documents {
            if let Err(error) = self.document(id.as_deref(), destination.as_deref(), body) {
                return self.unwritable(start, &error);
            }
        }
    }

    #[inline]
    fn document<D: Serialize + ?Sized>(
        &mut self,
        id: Option<&str>,
        destination: Option<&str>,
        body: &D,
    ) -> Result<(), json::Unwritable> {
        self.bytes.push(0x93);
        write::optional_str(&mut self.bytes, id);
        write::optional_str(&mut self.bytes, destination);
        let mut result = Ok(());
        write::bin(&mut self.bytes, |out| result = json::write(body, out));
        result
    }

    fn unwritable(&mut self, start: usize, error: &json::Unwritable) {
        self.bytes.truncate(start);
        self.failed(&Failure::poison("document", format!("the document cannot be written as JSON: {error}")));
    }

    /// The row has no document.
    pub fn delete(&mut self) {
        self.bytes.extend_from_slice(&[0x91, 0x01]);
    }

    /// The destination stays as it is.
    pub fn skip(&mut self) {
        self.bytes.extend_from_slice(&[0x91, 0x02]);
    }

    /// The change could not be processed.
    pub fn failed(&mut self, failure: &Failure) {
        self.bytes.extend_from_slice(&[0x94, 0x03]);
        let class: FailureClass = failure.class;
        write::str(&mut self.bytes, class.as_str());
        write::str(&mut self.bytes, &failure.code);
        write::str(&mut self.bytes, &failure.message);
    }
}
