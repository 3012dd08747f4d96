//! Calls of a sink: from documents to what became of each.
//!
//! Guarantees: documents reach the guest in their order, one call after the other; an instance is told its settings
//! before its first delivery; there is one result for each document, or a failure of the whole. After a fault, a
//! cancelled call or a failure that is fatal the instance is thrown away. Must never put a setting into an error.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;

use super::{
    Plugin,
    abi::v1::{
        PlaceCall, ReplyProblem,
        deliver::{self, DeliveryResult},
    },
    fault::FaultKind,
    host::config::Settings,
    limits::LimitError,
    pool::{Lease, Places},
};
use crate::model::{
    DocumentOperation, Documents, Encoding, Failure, FailureClass, Lsn, Place, Redactor, Revision,
};

/// Buffers above this size are not kept.
const KEEP: usize = 4 << 20;

/// The settings of one sink, as its plugin gets them: one JSON object. Holds secrets, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// For `open`.
    json: Arc<str>,
    /// For the interface `config`: texts as they are, everything else as JSON text. Under the empty key, which no
    /// setting has, stands `json`, so that an instance only ever serves equal ones.
    values: Settings,
    /// What of them is not to be told.
    secrets: Redactor,
}

impl SinkConfig {
    /// Takes the settings of a sink.
    #[must_use]
    pub fn new(settings: &BTreeMap<String, Value>) -> Self {
        let json = serde_json::to_string(settings).unwrap_or_else(|_| "{}".to_owned());
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut values: BTreeMap<_, _> =
            settings.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        values.insert(String::new(), json.clone());
        let mut texts = Vec::new();
        settings.values().for_each(|value| push_texts(value, &mut texts));
        Self { json: json.into(), values: Arc::new(values), secrets: Redactor::new(texts) }
    }

    /// Whether the texts are the same, however deep: numbers and switches say how something is done, as a rule, and
    /// texts where.
    pub(crate) fn says_the_same_as(&self, other: &Self) -> bool {
        texts_of(&self.json) == texts_of(&other.json)
    }
}

/// Settings without their numbers and switches.
fn texts_of(json: &str) -> Value {
    fn is_said(value: &Value) -> bool {
        !matches!(value, Value::Number(_) | Value::Bool(_) | Value::Null)
    }
    fn kept(value: Value) -> Value {
        match value {
            Value::Object(values) => {
                let said = values.into_iter().filter(|(_, value)| is_said(value));
                Value::Object(said.map(|(key, value)| (key, kept(value))).collect())
            }
            Value::Array(values) => Value::Array(values.into_iter().filter(is_said).map(kept).collect()),
            other => other,
        }
    }
    kept(serde_json::from_str(json).unwrap_or_default())
}

/// All texts of a setting, however deep in arrays and tables.
fn push_texts<'a>(value: &'a Value, texts: &mut Vec<&'a String>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(values) => values.iter().for_each(|value| push_texts(value, texts)),
        Value::Object(values) => values.values().for_each(|value| push_texts(value, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl fmt::Debug for SinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys().filter(|key| !key.is_empty())).finish()
    }
}

/// A sink plugin at work, with the settings of one sink. Calls may run at the same time.
#[derive(Debug)]
pub struct SinkGuest {
    plugin: Plugin,
    /// `sink NAME`: what stands in logs and errors where nothing of an entity is done.
    place: Arc<str>,
    settings: SinkConfig,
    /// Its own: while it waits for its server, another sink of the same plugin does not wait for it.
    places: Arc<Places>,
    /// The entity of the last batch, as guests' log lines have it.
    entity: Mutex<Arc<str>>,
    buffers: Mutex<Vec<Vec<u8>>>,
    /// The memory that the last call came to, where that was more than was left; else 0. Set by `ended`, taken by `lease`.
    need: AtomicUsize,
}

impl SinkGuest {
    pub(super) fn new(plugin: Plugin, name: &str, settings: SinkConfig) -> Self {
        let place: Arc<str> = Arc::from(format!("sink {name}"));
        let (places, entity) = (plugin.pool().places_of_a_sink(), Mutex::new(Arc::clone(&place)));
        let (buffers, need) = (Mutex::default(), AtomicUsize::new(0));
        Self { plugin, place, settings, places, entity, buffers, need }
    }

    /// The plugin.
    #[must_use]
    pub fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// The plugin's name, version and bytes.
    #[must_use]
    pub fn revision(&self) -> &Arc<Revision> {
        self.plugin.revision()
    }

    /// Opens an instance, so that settings that cannot work are known before there are documents.
    ///
    /// # Errors
    /// What the guest says of its settings, or why it could not be asked.
    pub async fn open(&self) -> Result<(), Failure> {
        self.lease().await?.give_back();
        Ok(())
    }

    /// Delivers the documents at `selection` (indexes into the batch, ascending), in order and in as many calls as
    /// they take, to a place of their destination or to what readers see. Gives those that can never be delivered, by
    /// their index, ascending; all others are accepted. May be cancelled: the instance that was running is thrown away.
    ///
    /// # Errors
    /// Nothing is known to be accepted. Of class poison: one of the documents may be the cause, and a smaller batch
    /// may work.
    pub async fn deliver(
        &self,
        documents: &Documents,
        selection: &[usize],
        place: Option<&Place>,
    ) -> Result<Vec<(usize, Failure)>, Failure> {
        let mut rejected = Vec::new();
        let mut buffer =
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let mut rest = selection;
        while !rest.is_empty() {
            let (these, others) = rest.split_at(self.of_one_call(documents, rest));
            deliver::write(self.encoding(), documents, these, place, &mut buffer);
            let results = self.call(documents, these, &buffer).await?;
            for (&index, result) in these.iter().zip(results) {
                match result {
                    Ok(()) => {}
                    Err(failure) if failure.class == FailureClass::Poison => {
                        rejected.push((index, self.named(failure)));
                    }
                    // All that comes behind it is sent again together with it.
                    Err(failure) => return Err(self.of_document(failure, documents, index)),
                }
            }
            rest = others;
        }
        if buffer.capacity() <= KEEP {
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
        Ok(rejected)
    }

    /// Empties a destination. Only where [`Plugin::purges`] says that it can.
    ///
    /// # Errors
    /// It could not, or it cannot at all.
    pub async fn purge(&self, destination: &str) -> Result<(), Failure> {
        let mut lease = self.lease().await?;
        let deadline = self.plugin.settings().call_deadline;
        let purged = self.ended(lease.guest.purge(&self.place, destination, deadline).await);
        match purged.map_err(|kind| self.failed(&self.place, None, &kind))? {
            Ok(()) => {
                lease.give_back();
                Ok(())
            }
            Err(failure) => {
                self.keep(lease, &failure);
                Err(self.failed(&self.place, None, &FaultKind::Guest(failure)))
            }
        }
    }

    /// Makes an empty place for a destination beside what readers see, and gives whether they see anything. Only where
    /// [`Plugin::has_generations`] says that it can.
    ///
    /// # Errors
    /// It could not, or it cannot at all.
    pub async fn begin(&self, destination: &str, place: &Place) -> Result<bool, Failure> {
        self.place(PlaceCall::Begin, destination, place).await
    }

    /// Readers see this place from now on. As [`SinkGuest::begin`].
    ///
    /// # Errors
    /// As there.
    pub async fn switch(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        self.place(PlaceCall::Switch, destination, place).await.map(drop)
    }

    /// Removes a place, unless readers see it. As [`SinkGuest::begin`].
    ///
    /// # Errors
    /// As there.
    pub async fn abandon(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        self.place(PlaceCall::Abandon, destination, place).await.map(drop)
    }

    async fn place(&self, call: PlaceCall, destination: &str, place: &Place) -> Result<bool, Failure> {
        let mut lease = self.lease().await?;
        let deadline = self.plugin.settings().call_deadline;
        let done = lease.guest.place(&self.place, call, (destination, place.as_str()), deadline).await;
        match self.ended(done).map_err(|kind| self.failed(&self.place, None, &kind))? {
            Ok(answer) => {
                lease.give_back();
                Ok(answer)
            }
            Err(failure) => {
                self.keep(lease, &failure);
                Err(self.failed(&self.place, None, &FaultKind::Guest(failure)))
            }
        }
    }

    fn encoding(&self) -> Encoding {
        self.plugin.description().encoding
    }

    /// How many documents one call takes, at least one.
    fn of_one_call(&self, documents: &Documents, selection: &[usize]) -> usize {
        let settings = self.plugin.settings();
        let mut bytes = 0;
        let fits = |index: &&usize| {
            let entry = &documents.entries[**index];
            bytes += (entry.id.1 + entry.body.1) as usize;
            bytes <= settings.batch_bytes
        };
        let most = selection.iter().take(settings.batch_changes);
        most.take_while(fits).count().max(1)
    }

    /// An instance that knows its settings.
    async fn lease(&self) -> Result<Lease<'_>, Failure> {
        let place = &self.place;
        // What came to more memory than was left comes again, and waits for its turn to have it.
        let need = self.need.swap(0, Ordering::Relaxed);
        let leased = self.plugin.pool().lease_of(&self.places, &self.settings.values, need).await;
        let mut lease = self.ended(leased).map_err(|kind| self.failed(place, None, &kind))?;
        let deadline = self.plugin.settings().call_deadline;
        let opened = lease.guest.open(place, &self.settings.json, deadline).await;
        let opened = self.ended(opened).map_err(|kind| self.failed(place, None, &kind))?;
        opened.map_err(|failure| {
            let failure = self.settings.secrets.clean_failure(failure);
            let class = failure.class;
            let message =
                format!("plugin {} in {place} cannot be opened: {}", self.revision(), failure.message);
            Failure { message, class, ..failure }
        })?;
        Ok(lease)
    }

    async fn call(
        &self,
        documents: &Documents,
        selection: &[usize],
        request: &[u8],
    ) -> Result<Vec<DeliveryResult>, Failure> {
        let position = |index: usize| documents.entries[index].commit_lsn;
        let first = selection.first().map_or(Lsn::ZERO, |&index| position(index));
        let last = selection.last().map_or(first, |&index| position(index));
        let positions = Some((first, last));
        let entity = self.entity(&documents.entity);
        let failed = |kind: FaultKind| self.failed(&entity, positions, &kind);
        let mut lease = self.lease().await?;
        let deadline = self.plugin.settings().call_deadline;
        let reply = lease.guest.deliver(&entity, first, request, deadline).await;
        let reply = match self.ended(reply).map_err(failed)? {
            Ok(reply) => reply,
            Err(failure) => {
                self.keep(lease, &failure);
                return Err(failed(FaultKind::Guest(failure)));
            }
        };
        let limit = self.plugin.settings().max_output;
        if reply.len() > limit {
            return Err(failed(FaultKind::OutputTooLarge { bytes: reply.len(), limit }));
        }
        let results = deliver::read(self.encoding(), &reply, selection.len())
            .map_err(|problem| failed(self.reply_fault(problem, selection.len(), limit)))?;
        if results.iter().any(|result| matches!(result, Err(failure) if failure.class == FailureClass::Fatal))
        {
            drop(lease);
        } else {
            lease.give_back();
        }
        Ok(results)
    }

    /// What something that an instance was to do has come to. Where that was more memory than was left, the next lease
    /// waits for it.
    fn ended<T>(&self, done: Result<T, FaultKind>) -> Result<T, FaultKind> {
        if let Err(FaultKind::Memory(LimitError::Total { own, .. })) = &done {
            self.need.store(*own, Ordering::Relaxed);
        }
        done
    }

    /// An instance that failed in good order serves again, unless it has to be opened again first.
    fn keep(&self, lease: Lease<'_>, failure: &Failure) {
        if failure.class != FailureClass::Fatal {
            lease.give_back();
        }
    }

    fn entity(&self, name: &str) -> Arc<str> {
        let mut known = self.entity.lock().unwrap_or_else(PoisonError::into_inner);
        if **known != *name {
            *known = Arc::from(name);
        }
        Arc::clone(&known)
    }

    fn reply_fault(&self, problem: ReplyProblem, documents: usize, limit: usize) -> FaultKind {
        let encoding = match self.encoding() {
            Encoding::Msgpack => "msgpack",
            Encoding::Json => "json",
        };
        match problem {
            ReplyProblem::Malformed { at, problem } => FaultKind::BadReply { at, problem, encoding },
            ReplyProblem::Count { outcomes } => FaultKind::ResultCount { documents, results: outcomes },
            ReplyProblem::Documents { limit } => FaultKind::TooManyDocuments { limit },
            ReplyProblem::TooLarge { bytes } => FaultKind::OutputTooLarge { bytes, limit },
        }
    }

    /// A fault as a failure, with all names.
    fn failed(&self, on: &str, positions: Option<(Lsn, Lsn)>, kind: &FaultKind) -> Failure {
        let (revision, place) = (self.revision(), &self.place);
        let whose =
            if *on == **place { format!("in {place}") } else { format!("in {place}, delivering {on}") };
        let positions = match positions {
            Some((first, last)) if first == last => format!(" at LSN {first}"),
            Some((first, last)) => format!(" at LSN {first} to {last}"),
            None => String::new(),
        };
        // What it says of itself: names of sinks and tables may be settings as well.
        let (said, code) = (self.settings.secrets.clean(kind.to_string()), kind.code().to_owned());
        let code = self.settings.secrets.clean(code);
        let mut failure =
            Failure::new(class(kind), code, format!("plugin {revision} {whose}{positions}: {said}"));
        if let FaultKind::Guest(inner) = kind {
            failure.retry_after = inner.retry_after;
        }
        failure
    }

    /// The failure of one document, whose name its caller adds.
    fn named(&self, failure: Failure) -> Failure {
        let failure = self.settings.secrets.clean_failure(failure);
        let message = format!("plugin {} in {}: {}", self.revision(), self.place, failure.message);
        Failure { message, ..failure }
    }

    /// The failure of one document that holds up its batch.
    fn of_document(&self, failure: Failure, documents: &Documents, index: usize) -> Failure {
        let (revision, place) = (self.revision(), &self.place);
        let failure = self.settings.secrets.clean_failure(failure);
        let Some(view) = documents.view(index) else { return failure };
        let what = match view.operation {
            DocumentOperation::Upsert => "the document",
            DocumentOperation::Delete => "the delete of",
        };
        let message = format!(
            "plugin {revision} in {place}: {what} {:?} of {}: {}",
            view.id, documents.entity, failure.message
        );
        Failure { message, ..failure }
    }
}

/// What can be done about a fault of a sink. Other than a transform it waits for somebody else: what takes too long
/// may be quick the next time. What it does by itself it does again.
fn class(kind: &FaultKind) -> FailureClass {
    match kind {
        FaultKind::Guest(failure) | FaultKind::State(failure) => failure.class,
        FaultKind::Ungranted(_) => FailureClass::Fatal,
        FaultKind::Deadline(_) | FaultKind::Instantiate(_) | FaultKind::Memory(LimitError::Total { .. }) => {
            FailureClass::Retry
        }
        _ => FailureClass::Poison,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c096_settings_are_not_shown() {
        let settings = BTreeMap::from([
            ("password".to_owned(), Value::from("marker-4711")),
            ("most".to_owned(), Value::from(5)),
        ]);
        let config = SinkConfig::new(&settings);
        assert_eq!(format!("{config:?}"), "{\"most\", \"password\"}");
        assert_eq!(&*config.json, "{\"most\":5,\"password\":\"marker-4711\"}");
        assert_eq!(config.values["most"], "5");
        assert_eq!(config.values["password"], "marker-4711");
        let text = BTreeMap::from([("most".to_owned(), Value::from("5"))]);
        let number = BTreeMap::from([("most".to_owned(), Value::from(5))]);
        assert_ne!(SinkConfig::new(&text).values, SinkConfig::new(&number).values, "no instance serves both");
    }

    #[test]
    fn memory_that_others_have_taken_is_no_fault_of_a_document() {
        let total = FaultKind::Memory(LimitError::Total { own: 1, wanted: 2, limit: 1 });
        assert_eq!(class(&total), FailureClass::Retry);
        assert_eq!(
            class(&FaultKind::Memory(LimitError::Memory { wanted: 2, limit: 1 })),
            FailureClass::Poison
        );
    }

    #[test]
    fn c096_settings_are_known_however_deep_they_are() {
        let nested = serde_json::json!([{"token": "marker-4711"}, ["marker-4712"], 5]);
        let settings = BTreeMap::from([("servers".to_owned(), nested)]);
        let clean = SinkConfig::new(&settings).secrets.clean("marker-4711, marker-4712".to_owned());
        assert_eq!(clean, "***, ***");
    }
}
