//! What a transform answered, many answers to a buffer.

use super::Failure;

/// A transform's answer to one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// These documents: `first .. first + count` of [`Outcomes::documents`].
    Emit {
        /// The first document.
        first: u32,
        /// How many.
        count: u32,
    },
    /// The row has no document: the one under its id is removed.
    Delete,
    /// The destination stays as it is.
    Skip,
    /// The change could not be processed.
    Failed(Failure),
}

/// A document that a transform emitted: spans (start, length) into [`Outcomes::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmittedDocument {
    /// Its own id, UTF-8; otherwise the change's document id.
    pub id: Option<(u32, u32)>,
    /// Its own destination, UTF-8; otherwise the mapping's.
    pub destination: Option<(u32, u32)>,
    /// Its body: JSON text, validated.
    pub body: (u32, u32),
}

/// One outcome for each change of a call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// What the spans point into.
    pub bytes: Vec<u8>,
    /// All documents of all outcomes.
    pub documents: Vec<EmittedDocument>,
    /// The outcomes.
    pub outcomes: Vec<Outcome>,
}

/// How far [`Outcomes`] reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    outcomes: usize,
    documents: usize,
    bytes: usize,
}

impl Outcomes {
    /// How far they reach now.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let (outcomes, documents, bytes) = (self.outcomes.len(), self.documents.len(), self.bytes.len());
        Extent { outcomes, documents, bytes }
    }

    /// Takes back what came since they reached so far.
    pub fn cut_back(&mut self, to: Extent) {
        self.outcomes.truncate(to.outcomes);
        self.documents.truncate(to.documents);
        self.bytes.truncate(to.bytes);
    }

    /// The bytes of a span.
    #[must_use]
    pub fn slice(&self, (start, len): (u32, u32)) -> &[u8] {
        self.bytes.get(start as usize..start as usize + len as usize).unwrap_or_default()
    }
}
