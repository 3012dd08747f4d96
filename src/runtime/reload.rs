//! The plugins of the directory: loaded at start, and again whenever their content changes.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{
    config::Config,
    model::Description,
    plugin::{Plugin, PluginHost},
};

/// The plugins that could be loaded, by name, and what is wrong with the others.
#[derive(Clone, Debug, Default)]
pub struct PluginSet {
    /// The plugins that work.
    pub plugins: BTreeMap<String, Plugin>,
    /// One sentence for each file that does not.
    pub problems: Vec<String>,
}

impl PluginSet {
    /// Loads every plugin of the configured directory. Never fails as a whole.
    pub async fn load(host: &PluginHost, config: &Config) -> Self {
        let mut set = Self::default();
        for (path, loaded) in host.scan(&config.plugins.dir).await {
            match loaded {
                Ok(plugin) => {
                    set.plugins.insert(plugin.revision().name.clone(), plugin);
                }
                Err(error) => set.problems.push(format!("{}: {error}", path.display())),
            }
        }
        set
    }

    /// What the plugins say of themselves.
    #[must_use]
    pub fn descriptions(&self) -> Vec<Description> {
        self.plugins.values().map(|plugin| plugin.description().clone()).collect()
    }
}

/// Loads the directory again whenever its content changes, and tells. Runs until `shutdown` is cancelled.
pub async fn watch(
    host: PluginHost,
    config: Arc<Config>,
    changed: mpsc::Sender<Arc<PluginSet>>,
    shutdown: tokio_util::sync::CancellationToken,
) {
    let watching = async {
        let dir: PathBuf = config.plugins.dir.clone();
        let mut changes = match crate::plugin::watch::DirectoryWatch::start(&dir, POLL_INTERVAL) {
            Ok(changes) => changes,
            Err(error) => {
                warn!(dir = %dir.display(), %error, "the plugin directory cannot be watched; restart to load changes");
                return;
            }
        };
        while changes.changed().await {
            let set = PluginSet::load(&host, &config).await;
            for problem in &set.problems {
                warn!("a plugin was not taken up, what ran before goes on: {problem}");
            }
            info!(plugins = set.plugins.len(), "the plugin directory changed");
            if changed.send(Arc::new(set)).await.is_err() {
                return;
            }
        }
    };
    shutdown.run_until_cancelled(watching).await;
}

/// How often the directory is looked at where events do not come (network file systems).
const POLL_INTERVAL: Duration = Duration::from_secs(2);
