//! A sink as lanes see it: opened before its first delivery, and again after a fatal failure.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Mutex;

use crate::{
    model::{Documents, Failure, FailureClass},
    sink::{Capabilities, Rejected, Sink},
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

    pub(super) async fn deliver(&self, documents: &Documents) -> Result<Vec<Rejected>, Failure> {
        self.open().await?;
        let delivered = self.sink.deliver(documents).await;
        delivered.inspect_err(|failure| self.note(failure))
    }

    pub(super) async fn purge(&self, destination: &str) -> Result<(), Failure> {
        self.open().await?;
        self.sink.purge(destination).await.inspect_err(|failure| self.note(failure))
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
