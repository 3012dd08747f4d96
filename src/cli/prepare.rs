//! What `check` and `plan` have in common: the plugins of the directory, and the mappings that they and the
//! config come to.

use std::path::PathBuf;

use crate::{
    config::{Config, ConfigError, Mappings, resolve_mappings},
    model::Description,
    plugin::{Plugin, PluginError, PluginHost},
};

/// The plugins of the directory, those that cannot be loaded among them.
#[derive(Debug)]
pub(super) struct Plugins {
    pub(super) files: Vec<(PathBuf, Result<Plugin, PluginError>)>,
}

impl Plugins {
    /// Loads every plugin, which compiles those that are not in the cache.
    pub(super) fn load(config: &Config) -> Result<Self, PluginError> {
        let host = PluginHost::new(config.plugins.host_settings())?;
        Ok(Self { files: host.scan_blocking(&config.plugins.dir)? })
    }

    pub(super) fn loaded(&self) -> impl Iterator<Item = &Plugin> {
        self.files.iter().filter_map(|(_, plugin)| plugin.as_ref().ok())
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = &PluginError> {
        self.files.iter().filter_map(|(_, plugin)| plugin.as_ref().err())
    }

    pub(super) fn named(&self, name: &str) -> Option<&Plugin> {
        self.loaded().find(|plugin| plugin.revision().name == name)
    }

    pub(super) fn mappings(&self, config: &Config) -> Result<Mappings, ConfigError> {
        let descriptions: Vec<Description> =
            self.loaded().map(|plugin| (**plugin.description()).clone()).collect();
        resolve_mappings(config, &descriptions)
    }
}
