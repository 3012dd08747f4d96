//! A sink as lanes see it: opened before its first delivery, and again after a fatal failure.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Mutex;

use crate::{
    model::{Documents, Failure, FailureClass},
    sink::{Capabilities, Progress, Rejected, Sink},
};

/// One configured sink, shared by the lanes that deliver to it.
#[derive(Debug)]
pub(super) struct Outlet {
    sink: Arc<dyn Sink>,
    opened: AtomicBool,
    opening: Mutex<()>,
}

impl Outlet {
    pub(super) fn new(sink: Arc<dyn Sink>) -> Self {
        Self { sink, opened: AtomicBool::new(false), opening: Mutex::new(()) }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.sink.kind()
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.sink.capabilities()
    }

    pub(super) async fn deliver(
        &self,
        documents: &Documents,
        progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        self.open().await?;
        let delivered = self.sink.deliver(documents, progress).await;
        delivered.inspect_err(|failure| self.note(failure))
    }

    pub(super) async fn purge(&self, destination: &str, progress: Option<&Progress>) -> Result<(), Failure> {
        self.open().await?;
        self.sink.purge(destination, progress).await.inspect_err(|failure| self.note(failure))
    }

    /// The token that is stored under `key`. Only where the sink can.
    pub(super) async fn progress(&self, key: &str) -> Result<Option<String>, Failure> {
        self.open().await?;
        self.sink.progress(key).await.inspect_err(|failure| self.note(failure))
    }

    /// Whether the sink has a place for the documents of a destination. Only where it can tell.
    pub(super) async fn has_destination(&self, destination: &str) -> Result<bool, Failure> {
        self.open().await?;
        self.sink.has_destination(destination).await.inspect_err(|failure| self.note(failure))
    }

    pub(super) async fn close(&self) -> Result<(), Failure> {
        self.sink.close().await
    }

    async fn open(&self) -> Result<(), Failure> {
        if self.opened.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = self.opening.lock().await;
        if !self.opened.load(Ordering::Acquire) {
            self.sink.open().await?;
            self.opened.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn note(&self, failure: &Failure) {
        if failure.class == FailureClass::Fatal {
            self.opened.store(false, Ordering::Release);
        }
    }
}
