//! Where documents go: one trait, one file a kind.
//!
//! A sink takes batches of documents in order and answers when they are durable, never before: the slot is
//! confirmed on its word (see `docs/sinks.md` for what each kind can promise). It classifies what goes
//! wrong ([`FailureClass`]) and leaves waiting, retrying and quarantine to its caller. It must never skip a
//! document without naming it in [`Rejected`], and never show a secret.
//!
//! Layer 2: imports `model` only, but for the sink that is a plugin. Sinks start no tasks that outlive a call; what blocks runs on the
//! runtime's blocking threads.
//!
//! - I want to add a kind → a file here, a variant in [`SinkSettings`], a line in [`build`], a section in
//!   `docs/sinks.md`.

mod http;
mod jsonl;
mod null;
mod plugin;
mod render;
mod settings;
mod sqlite;

pub use http::HttpSink;
pub use jsonl::JsonlSink;
pub use null::NullSink;
pub use plugin::{PluginSink, PluginSinkSettings};
pub use settings::{HttpSettings, JsonlSettings, SinkSettings, SqliteSettings};
pub use sqlite::SqliteSink;

use crate::model::{DocumentOperation, DocumentView, Documents, Failure, FailureClass, Place};

/// Takes documents and keeps them.
///
/// One sink object may serve several mappings at once: every method can be called concurrently, and the
/// calls of one mapping come one after another. A call that its caller drops half-way (a timeout, a
/// shutdown) must neither tear a document nor be carried out after a later call.
#[async_trait::async_trait]
pub trait Sink: Send + Sync + std::fmt::Debug {
    /// The kind's word, as in the config: `sqlite`.
    fn kind(&self) -> &'static str;

    /// What it can do beyond delivering.
    fn capabilities(&self) -> Capabilities;

    /// Verifies and prepares (creates the file, the tables, the client). Idempotent; called before the first
    /// delivery and again after a fatal failure.
    async fn open(&self) -> Result<(), Failure>;

    /// Delivers in order and returns when everything is durable, but for the entries that it lists as
    /// rejected, in ascending order.
    ///
    /// Where [`Capabilities::progress`] is set, `progress` becomes durable together with the documents, or
    /// neither does; documents may be none. It is not stored when an entry was rejected, since it speaks for
    /// all of them. Other sinks ignore it.
    ///
    /// # Errors
    /// Nothing is known to be accepted. Class retry: the same batch may work later. Class poison: the batch
    /// as a whole was refused, split it. Class fatal: nothing will work until somebody mends something.
    async fn deliver(
        &self,
        documents: &Documents,
        progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure>;

    /// Removes every document of a destination. Only called where [`Capabilities::purge`] is set. `progress` as
    /// in [`Sink::deliver`].
    async fn purge(&self, destination: &str, progress: Option<&Progress>) -> Result<(), Failure>;

    /// The token that was last stored under `key`. Only called where [`Capabilities::progress`] is set.
    async fn progress(&self, _key: &str) -> Result<Option<String>, Failure> {
        Ok(None)
    }

    /// Whether there is a place for the documents of a destination, empty or not. Only called where
    /// [`Capabilities::progress`] is set.
    async fn has_destination(&self, _destination: &str) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Makes an empty place for a destination beside what its readers see; one that is there is emptied. Gives whether they
    /// see anything. Only called where [`Capabilities::generations`] is set; [`Documents::beside`] names it from then on.
    async fn begin(&self, _destination: &str, _place: &Place) -> Result<bool, Failure> {
        Err(no_generations(self.kind()))
    }

    /// Readers see this place under the destination, in one step, and all others of the destination go. Idempotent.
    async fn switch(&self, _destination: &str, _place: &Place) -> Result<(), Failure> {
        Err(no_generations(self.kind()))
    }

    /// Removes a place, unless readers see it. Idempotent.
    async fn abandon(&self, _destination: &str, _place: &Place) -> Result<(), Failure> {
        Err(no_generations(self.kind()))
    }

    /// Flushes and closes; called once, on shutdown.
    async fn close(&self) -> Result<(), Failure>;
}

/// What a sink can do beyond delivering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it can empty a destination.
    pub purge: bool,
    /// Whether it stores a [`Progress`] in the same transaction as documents, and hands it back.
    pub progress: bool,
    /// Whether it can build a destination beside what readers see, and switch them.
    pub generations: bool,
}

/// How far its caller is with what a sink then holds, kept by the sink with the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whose it is; a later token under the same key takes its place.
    pub key: String,
    /// What only the caller understands: JSON text.
    pub token: String,
    /// Whose hand writes it: under the same owner a lower term never writes after a higher one.
    pub fence: Fence,
}

/// The leadership under which something is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Terms of other owners say nothing about each other.
    pub owner: String,
    /// Counts the leaderships.
    pub term: i64,
}

/// A document that a sink did not take, although it took the rest of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Index into [`Documents::entries`].
    pub index: usize,
    /// Why; of class poison.
    pub failure: Failure,
}

impl Rejected {
    fn poison(index: usize, code: &str, message: impl Into<String>) -> Self {
        Self { index, failure: Failure::new(FailureClass::Poison, code, message) }
    }
}

/// Makes the sink that the config calls `name`. Does no I/O. One of kind `plugin` has no plugin yet: make it with
/// [`PluginSink::new`] where there is one.
///
/// # Errors
/// Class fatal: the settings cannot work, such as a URL that is none.
pub fn build(name: &str, settings: &SinkSettings) -> Result<Box<dyn Sink>, Failure> {
    Ok(match settings {
        SinkSettings::Sqlite(settings) => Box::new(SqliteSink::new(name, settings)?),
        SinkSettings::Jsonl(settings) => Box::new(JsonlSink::new(name, settings)),
        SinkSettings::Http(settings) => Box::new(HttpSink::new(name, settings)?),
        SinkSettings::Plugin(settings) => Box::new(PluginSink::without_plugin(name, settings)),
        SinkSettings::Null => Box::new(NullSink::new()),
    })
}

/// The failure of a sink without the capability to purge.
fn no_purge(name: &str, kind: &str) -> Failure {
    let message = format!("sink `{name}`: the kind {kind} cannot empty a destination; do it at the receiver");
    Failure::new(FailureClass::Fatal, "purge-unsupported", message)
}

/// The failure of a sink that builds in place only.
fn no_generations(kind: &str) -> Failure {
    let message = format!("a sink of kind {kind} cannot build a destination beside what readers see");
    Failure::new(FailureClass::Fatal, "generations-unsupported", message)
}

/// A document, unless no sink can store it.
fn usable(documents: &Documents, index: usize) -> Result<DocumentView<'_>, Rejected> {
    let Some(view) = documents.view(index) else {
        return Err(Rejected::poison(index, "document-unusable", "the document names no destination"));
    };
    match view.operation {
        DocumentOperation::Upsert if view.body.is_empty() => Err(Rejected::poison(
            index,
            "document-unusable",
            "the document has no body, or one that is not UTF-8",
        )),
        DocumentOperation::Upsert | DocumentOperation::Delete => Ok(view),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::Secret;

    #[test]
    fn every_kind_can_be_built_and_says_its_word() {
        let kinds = [
            SinkSettings::Sqlite(SqliteSettings::new("a.db")),
            SinkSettings::Jsonl(JsonlSettings::new("-")),
            SinkSettings::Http(HttpSettings::new(Secret::new("https://example.com/hook"))),
            SinkSettings::Plugin(PluginSinkSettings::new("search", &BTreeMap::new())),
            SinkSettings::Null,
        ];
        for settings in kinds {
            let sink = build("x", &settings).unwrap();
            assert_eq!(sink.kind(), settings.kind());
        }
    }
}
