//! Batches of documents, for tests of sinks.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use anabranch::model::{DocumentEntry, DocumentOperation, Documents, Lsn, Operation, Origin};

/// A batch under construction; its commit is `1/10` at 2024-01-31 12:00:00.5 UTC unless told otherwise.
pub struct Batch {
    pub documents: Documents,
    destination: String,
    lsn: u64,
}

impl Batch {
    pub fn new() -> Self {
        Self {
            documents: Documents::new("public.products", Origin::Stream, 3),
            destination: "products".to_owned(),
            lsn: 0x1_0000_0010,
        }
    }

    /// Where the following documents go.
    pub fn to(mut self, destination: &str) -> Self {
        self.destination = destination.to_owned();
        self
    }

    /// The commit of the following documents.
    pub fn at(mut self, lsn: u64) -> Self {
        self.lsn = lsn;
        self
    }

    pub fn upsert(self, id: &str, body: &str) -> Self {
        self.push(DocumentOperation::Upsert, id, body.as_bytes())
    }

    pub fn delete(self, id: &str) -> Self {
        self.push(DocumentOperation::Delete, id, b"")
    }

    /// `count` documents `{"n":N}` with the ids `first ..`.
    pub fn numbers(mut self, first: usize, count: usize) -> Self {
        for n in first..first + count {
            self = self.upsert(&n.to_string(), &format!("{{\"n\":{n}}}"));
        }
        self
    }

    pub fn push(mut self, operation: DocumentOperation, id: &str, body: &[u8]) -> Self {
        let batch = &mut self.documents;
        let destination = batch.destination(&self.destination);
        let (id, body) = (batch.push_bytes(id.as_bytes()), batch.push_bytes(body));
        let change = u32::try_from(batch.entries.len()).unwrap();
        batch.entries.push(DocumentEntry {
            operation,
            destination,
            id,
            body,
            change,
            source: Operation::Update,
            commit_lsn: Lsn(self.lsn),
            commit_time: 1_706_702_400_500_000,
        });
        self
    }

    pub fn build(self) -> Documents {
        self.documents
    }
}
