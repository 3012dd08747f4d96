//! The sink that is written as a WebAssembly component.
//!
//! Passes documents to the plugin and its results back. The plugin may be gone (its file was deleted while it ran):
//! then every call is a failure that says so. Keeps no progress: what a guest stores is the guest's business.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Capabilities, Progress, Rejected, Sink, usable};
use crate::{
    model::{Documents, Failure, FailureClass},
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
}

/// A sink plugin behind the trait.
#[derive(Debug)]
pub struct PluginSink {
    name: String,
    settings: PluginSinkSettings,
    guest: Option<SinkGuest>,
}

impl PluginSink {
    /// The sink of a name, run by a plugin that was loaded.
    #[must_use]
    pub fn new(name: &str, settings: &PluginSinkSettings, plugin: &Plugin) -> Self {
        let guest = plugin.sink(name, settings.config.clone());
        Self { name: name.to_owned(), settings: settings.clone(), guest: Some(guest) }
    }

    /// The same while its plugin is not there.
    #[must_use]
    pub fn without_plugin(name: &str, settings: &PluginSinkSettings) -> Self {
        Self { name: name.to_owned(), settings: settings.clone(), guest: None }
    }

    fn guest(&self) -> Result<&SinkGuest, Failure> {
        let Self { name, settings, guest } = self;
        guest.as_ref().ok_or_else(|| {
            let message = format!(
                "sink `{name}`: its plugin `{}` is not in the directory of plugins any more: put its file back, or \
                 take the sink and its mappings out of the config",
                settings.plugin
            );
            Failure::new(FailureClass::Fatal, "sink-plugin-missing", message)
        })
    }
}

#[async_trait::async_trait]
impl Sink for PluginSink {
    fn kind(&self) -> &'static str {
        "plugin"
    }

    fn capabilities(&self) -> Capabilities {
        // A missing plugin is to fail, not to be passed over as one that cannot.
        let purge = self.guest.as_ref().is_none_or(|guest| guest.plugin().purges());
        Capabilities { purge, ..Capabilities::default() }
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
        let failed = guest.deliver(documents, &sent).await?;
        rejected.extend(failed.into_iter().map(|(index, failure)| Rejected { index, failure }));
        rejected.sort_by_key(|rejected| rejected.index);
        Ok(rejected)
    }

    async fn purge(&self, destination: &str, _progress: Option<&Progress>) -> Result<(), Failure> {
        self.guest()?.purge(destination).await
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}
