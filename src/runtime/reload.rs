//! The plugins of the directory: loaded at start, and again whenever their content changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::Config,
    model::Description,
    plugin::{Plugin, PluginHost, watch::DirectoryWatch},
};

/// The plugins that could be loaded, by name, and what is wrong with the others.
#[derive(Clone, Debug, Default)]
pub struct PluginSet {
    /// The plugins that work.
    pub plugins: BTreeMap<String, Plugin>,
    /// One sentence for each file that does not.
    pub problems: Vec<String>,
    /// The plugin of each file.
    files: BTreeMap<PathBuf, String>,
    /// Plugins of sinks whose files are gone. They are kept, because what they made is in the sinks, and nothing is
    /// delivered by them.
    gone: BTreeSet<String>,
}

impl PluginSet {
    /// Loads every plugin of the configured directory. What does not load is one of [`PluginSet::problems`]; what
    /// its file had `before` stays, so that a file that is being copied, or is no plugin, takes nothing away.
    pub async fn load(host: &PluginHost, config: &Config, before: Option<&Self>) -> Self {
        let mut set = Self::default();
        for (path, plugin) in host.scan(&config.plugins.dir).await {
            let plugin = match plugin {
                Ok(plugin) => Some(plugin),
                Err(error) => {
                    set.problems.push(error.to_string());
                    before.and_then(|before| before.of_file(&path)).cloned()
                }
            };
            if let Some(plugin) = plugin {
                let name = plugin.revision().name.clone();
                set.files.insert(path, name.clone());
                set.plugins.insert(name, plugin);
            }
        }
        for sink in config.sinks.keys() {
            let Some(name) = config.sink_plugin(sink) else { continue };
            let kept = before.and_then(|before| before.plugins.get(name));
            if let Some(kept) = kept.filter(|_| !set.plugins.contains_key(name)) {
                set.plugins.insert(name.to_owned(), kept.clone());
                set.gone.insert(name.to_owned());
            }
        }
        set
    }

    /// The plugin that runs a sink; none where there is none, or its file is gone.
    pub(super) fn sink_plugin(&self, name: &str) -> Option<&Plugin> {
        self.plugins.get(name).filter(|_| !self.gone.contains(name))
    }

    /// The same set with another revision of a sink's plugin, or without it being there.
    pub(super) fn with_sink_plugin(&self, plugin: &Plugin, gone: bool) -> Self {
        let mut set = self.clone();
        let name = plugin.revision().name.clone();
        if gone {
            set.gone.insert(name.clone());
        }
        set.plugins.insert(name, plugin.clone());
        set
    }

    fn of_file(&self, path: &Path) -> Option<&Plugin> {
        self.plugins.get(self.files.get(path)?)
    }

    /// What the plugins say of themselves.
    #[must_use]
    pub fn descriptions(&self) -> Vec<Description> {
        self.plugins.values().map(|plugin| (**plugin.description()).clone()).collect()
    }
}

/// How often the directory is looked at where events do not come (network file systems).
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Loads the directory again whenever its content changes, and tells. Runs until `shutdown` is cancelled.
pub(super) async fn watch(
    host: PluginHost,
    config: Arc<Config>,
    mut before: Arc<PluginSet>,
    changed: mpsc::Sender<Arc<PluginSet>>,
    shutdown: CancellationToken,
) {
    let watching = async {
        let dir = config.plugins.dir.display();
        let mut watcher = match DirectoryWatch::start(&config.plugins.dir, POLL_INTERVAL) {
            Ok(watcher) => watcher,
            Err(error) => {
                warn!(%dir, %error, "the plugin directory cannot be watched; restart to load changes");
                return;
            }
        };
        loop {
            watcher.changed().await;
            let set = Arc::new(PluginSet::load(&host, &config, Some(&before)).await);
            before = Arc::clone(&set);
            for problem in &set.problems {
                warn!("a plugin was not taken up, what ran before goes on: {problem}");
            }
            info!(%dir, plugins = set.plugins.len(), "the plugin directory changed");
            if changed.send(set).await.is_err() {
                return;
            }
        }
    };
    shutdown.run_until_cancelled(watching).await;
}
