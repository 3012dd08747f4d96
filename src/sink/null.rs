//! The sink that keeps nothing but counts: for benchmarks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Capabilities, Progress, Rejected, Sink};
use crate::model::{Documents, Failure};

/// Counts documents and forgets them.
#[derive(Debug, Default)]
pub struct NullSink {
    documents: AtomicU64,
    bytes: AtomicU64,
}

impl NullSink {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many documents came.
    #[must_use]
    pub fn documents(&self) -> u64 {
        self.documents.load(Ordering::Relaxed)
    }

    /// How many bytes their ids and bodies had.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Sink for NullSink {
    fn kind(&self) -> &'static str {
        "null"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { purge: true, ..Capabilities::default() }
    }

    async fn open(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn deliver(
        &self,
        documents: &Documents,
        _progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        let count = documents.len() as u64;
        let total = self.documents.fetch_add(count, Ordering::Relaxed) + count;
        self.bytes.fetch_add(documents.bytes.len() as u64, Ordering::Relaxed);
        // With its time this is what benchmarks read.
        tracing::debug!(documents = total, "counted");
        Ok(Vec::new())
    }

    async fn purge(&self, _destination: &str, _progress: Option<&Progress>) -> Result<(), Failure> {
        Ok(())
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Origin;

    #[tokio::test]
    async fn counts() {
        let sink = NullSink::new();
        let mut documents = Documents::new("public.t", Origin::Stream, 1);
        documents.push_bytes(b"12345");
        sink.deliver(&documents, None).await.unwrap();
        assert_eq!((sink.documents(), sink.bytes()), (0, 5));
    }
}
