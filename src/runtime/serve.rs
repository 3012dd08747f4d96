//! What the guests of a mapping are served with, for one term.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    config::Config,
    plugin::{Plugin, grants::Capability, services::Services},
    postgres::ConnectSettings,
};

use super::{enrich::Enricher, keep::Keeper, numbers::Numbers};

/// Makes them. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Server {
    settings: ConnectSettings,
    /// Whom plugins ask as, where they have a role of their own.
    askers: Arc<BTreeMap<String, ConnectSettings>>,
    keeper: Arc<Keeper>,
    numbers: Numbers,
    enrichers: Arc<Mutex<BTreeMap<String, Enricher>>>,
}

impl Server {
    pub(super) fn new(settings: &ConnectSettings, config: &Config, term: i64, numbers: Numbers) -> Self {
        let keeper = Keeper::new(settings.clone(), &config.source.slot, term);
        let own = |name: &String| Some((name.clone(), config.plugins.of(name).query_connect?));
        let askers = Arc::new(config.plugins.named.keys().filter_map(own).collect());
        Self { settings: settings.clone(), askers, keeper, numbers, enrichers: Arc::default() }
    }

    /// What the guests of a mapping's generation are served with; whether it goes on with what the one before kept.
    pub(super) fn of(&self, mapping: &str, generation: i64, inherits: bool, plugin: &Plugin) -> Services {
        let asks = |capability| plugin.asks().contains(&capability) && plugin.ungranted().is_none();
        let name = plugin.revision().name.as_str();
        Services {
            queries: asks(Capability::Query).then(|| Arc::new(self.enricher(name)) as _),
            state: asks(Capability::State).then(|| self.keeper.of(mapping, generation, inherits)),
            meter: Some(self.numbers.of(mapping, name)),
        }
    }

    fn enricher(&self, name: &str) -> Enricher {
        let mut enrichers = self.enrichers.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || Enricher::new(self.askers.get(name).unwrap_or(&self.settings).clone());
        enrichers.entry(name.to_owned()).or_insert_with(made).clone()
    }
}
