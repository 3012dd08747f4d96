//! The sink that is written as a WebAssembly component.
//!
//! Passes documents to the plugin and its results back. The plugin may be gone (its file was deleted while it ran):
//! then every call is a failure that says so. Keeps no progress: what a guest stores is the guest's business.
//!
//! While a destination is built beside what its readers see, live documents go there first and to what readers see then,
//! so that readers never see less once they are switched. What only the old place does not take holds nothing up: it
//! goes with the switch.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;
use tracing::warn;

use super::{Capabilities, Progress, Rejected, Sink, usable};
use crate::{
    model::{Beside, Documents, Failure, FailureClass, Place},
    pipeline::{Bisection, BisectionLimits, Found, TooMany},
    plugin::{Plugin, SinkConfig, SinkGuest},
};

/// `kind = "plugin"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSinkSettings {
    /// The plugin's name.
    pub plugin: String,
    /// What it is told when it is opened.
    config: SinkConfig,
}

impl PluginSinkSettings {
    /// A plugin with settings of its own, which may hold secrets.
    pub fn new(plugin: impl Into<String>, config: &BTreeMap<String, Value>) -> Self {
        Self { plugin: plugin.into(), config: SinkConfig::new(config) }
    }

    /// Whether both may lead to one place: they are the same plugin, and differ in numbers and switches alone.
    #[must_use]
    pub fn may_be_one_with(&self, other: &Self) -> bool {
        self.plugin == other.plugin && self.config.says_the_same_as(&other.config)
    }
}

/// A sink plugin behind the trait.
#[derive(Debug)]
pub struct PluginSink {
    name: String,
    settings: PluginSinkSettings,
    guest: Option<SinkGuest>,
    /// The places of which was told that what readers see does not take their documents.
    told: Mutex<Vec<Place>>,
}

impl PluginSink {
    /// The sink of a name, run by a plugin that was loaded.
    #[must_use]
    pub fn new(name: &str, settings: &PluginSinkSettings, plugin: &Plugin) -> Self {
        let guest = plugin.sink(name, settings.config.clone());
        Self { name: name.to_owned(), settings: settings.clone(), guest: Some(guest), told: Mutex::default() }
    }

    /// The same while its plugin is not there.
    #[must_use]
    pub fn without_plugin(name: &str, settings: &PluginSinkSettings) -> Self {
        Self { name: name.to_owned(), settings: settings.clone(), guest: None, told: Mutex::default() }
    }

    fn guest(&self) -> Result<&SinkGuest, Failure> {
        let Self { name, settings, guest, .. } = self;
        guest.as_ref().ok_or_else(|| {
            let message = format!(
                "sink `{name}`: its plugin `{}` is not in the directory of plugins any more: put its file back, or \
                 take the sink and its mappings out of the config",
                settings.plugin
            );
            Failure::new(FailureClass::Fatal, "sink-plugin-missing", message)
        })
    }

    /// Delivers while a destination is built beside what its readers see.
    async fn deliver_beside(
        &self,
        guest: &SinkGuest,
        documents: &Documents,
        sent: &[usize],
        beside: &Beside,
    ) -> Result<Vec<(usize, Failure)>, Failure> {
        let built =
            |index: &usize| documents.view(*index).is_some_and(|view| view.destination == beside.destination);
        let (own, others): (Vec<usize>, Vec<usize>) = sent.iter().partition(|index| built(index));
        let mut rejected = match &beside.place {
            Some(place) => guest.deliver(documents, &own, Some(place)).await?,
            None => Vec::new(),
        };
        let shown = if beside.shown { sent } else { &others };
        let refused = match &beside.place {
            Some(_) => in_parts(guest, documents, shown).await?,
            None => guest.deliver(documents, shown, None).await?,
        };
        let (passed_over, more): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|(index, _)| beside.place.is_some() && built(index));
        let taken = |(index, _): &&(usize, Failure)| !rejected.iter().any(|(other, _)| other == index);
        if let (Some(place), Some((index, first))) = (&beside.place, passed_over.iter().find(taken)) {
            self.tell_passed_over(documents, *index, place, first);
        }
        rejected.extend(more);
        Ok(rejected)
    }

    /// Once a place: what readers see goes with the switch.
    fn tell_passed_over(&self, documents: &Documents, index: usize, place: &Place, failure: &Failure) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.contains(place) {
            return;
        }
        // A few mappings build at a time.
        if told.len() >= 64 {
            told.clear();
        }
        told.push(place.clone());
        let id = documents.view(index).map_or("", |view| view.id);
        warn!(
            sink = self.name,
            entity = documents.entity,
            generation = place.generation(),
            %place,
            "what readers see does not take document {id:?} of the generation that is being built: until they are switched \
             they see this one and others like it as they were before. {failure}",
        );
    }
}

/// Delivers to what readers see, in smaller batches where one is refused as a whole, until those that it does not take
/// are alone, however many: they are passed over.
async fn in_parts(
    guest: &SinkGuest,
    documents: &Documents,
    sent: &[usize],
) -> Result<Vec<(usize, Failure)>, Failure> {
    let every = BisectionLimits { culprits: usize::MAX, slow: usize::MAX };
    let (mut refused, mut search) = (Vec::new(), Bisection::new(sent.len(), every));
    while let Some(range) = search.next_range() {
        match guest.deliver(documents, &sent[range.clone()], None).await {
            Ok(more) => {
                refused.extend(more);
                search.worked(range.end);
            }
            Err(failure) if failure.class == FailureClass::Poison => match search.failed(range.end, false) {
                Ok(Found::More) => {}
                Ok(Found::Culprit(at)) => refused.push((sent[at], failure)),
                Err(TooMany { .. }) => return Err(failure),
            },
            Err(failure) => return Err(failure),
        }
    }
    Ok(refused)
}

#[async_trait::async_trait]
impl Sink for PluginSink {
    fn kind(&self) -> &'static str {
        "plugin"
    }

    fn capabilities(&self) -> Capabilities {
        // A missing plugin is to fail, not to be passed over as one that cannot.
        let purge = self.guest.as_ref().is_none_or(|guest| guest.plugin().purges());
        let generations = self.guest.as_ref().is_none_or(|guest| guest.plugin().has_generations());
        Capabilities { purge, generations, ..Capabilities::default() }
    }

    async fn open(&self) -> Result<(), Failure> {
        self.guest()?.open().await
    }

    async fn deliver(
        &self,
        documents: &Documents,
        _progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        let guest = self.guest()?;
        let mut rejected = Vec::new();
        let mut sent = Vec::with_capacity(documents.len());
        for index in 0..documents.len() {
            match usable(documents, index) {
                Ok(_) => sent.push(index),
                Err(unusable) => rejected.push(unusable),
            }
        }
        let failed = match documents.beside.as_deref() {
            None => guest.deliver(documents, &sent, None).await?,
            Some(beside) => self.deliver_beside(guest, documents, &sent, beside).await?,
        };
        rejected.extend(failed.into_iter().map(|(index, failure)| Rejected { index, failure }));
        rejected.sort_by_key(|rejected| rejected.index);
        Ok(rejected)
    }

    async fn purge(&self, destination: &str, _progress: Option<&Progress>) -> Result<(), Failure> {
        self.guest()?.purge(destination).await
    }

    async fn begin(&self, destination: &str, place: &Place) -> Result<bool, Failure> {
        self.guest()?.begin(destination, place).await
    }

    async fn switch(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        self.guest()?.switch(destination, place).await
    }

    async fn abandon(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        self.guest()?.abandon(destination, place).await
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}
