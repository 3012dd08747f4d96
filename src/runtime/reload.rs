//! The plugins of the directory: loaded at start, and again whenever their content changes.

use std::{
    collections::BTreeMap,
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
    plugin::{Plugin, PluginError, PluginHost, watch::DirectoryWatch},
};

/// The plugins that could be loaded, by name, and what is wrong with the others.
#[derive(Clone, Debug, Default)]
pub struct PluginSet {
    /// The plugins that work.
    pub plugins: BTreeMap<String, Plugin>,
    /// One sentence for each file that does not.
    pub problems: Vec<String>,
    /// The plugins whose file was removed while this process ran: their mappings stop, and go on once it is back.
    removed: BTreeMap<String, Plugin>,
    /// Revisions that are not taken up, by the plugin's name: they ask for more than is granted, and what ran before goes
    /// on. A sentence for each.
    pub held: BTreeMap<String, String>,
    /// The plugin of each file.
    files: BTreeMap<PathBuf, String>,
}

impl PluginSet {
    /// Loads every plugin of the configured directory. What does not load is one of [`PluginSet::problems`]; what
    /// its file had `before` stays, so that a file that is being copied, or is no plugin, takes nothing away. A directory
    /// that cannot be listed takes nothing away either. A file that is gone does.
    pub async fn load(host: &PluginHost, config: &Config, before: Option<&Self>) -> Self {
        let mut set = Self::default();
        for (path, plugin) in host.scan(&config.plugins.dir).await {
            if let (Err(error @ PluginError::Directory { .. }), Some(before)) = (&plugin, before) {
                return Self { problems: vec![error.to_string()], ..before.clone() };
            }
            let plugin = match plugin {
                Ok(plugin) => Some(set.take_or_hold(plugin, before)),
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
        if let Some(before) = before {
            let known = before.plugins.iter().chain(&before.removed);
            let removed = known.filter(|(name, _)| !set.plugins.contains_key(*name));
            set.removed = removed.map(|(name, plugin)| (name.clone(), plugin.clone())).collect();
        }
        set
    }

    /// The same set with another revision of a plugin; of one that is removed, in its place among those.
    pub(super) fn with(&self, plugin: &Plugin) -> Self {
        let (mut set, name) = (self.clone(), plugin.revision().name.clone());
        let place = if set.removed.contains_key(&name) { &mut set.removed } else { &mut set.plugins };
        place.insert(name, plugin.clone());
        set
    }

    /// A plugin by its name, whether its file is still there or not.
    pub(super) fn named(&self, name: &str) -> Option<&Plugin> {
        self.plugins.get(name).or_else(|| self.removed.get(name))
    }

    /// Why the mappings of a plugin are stopped, if its file was removed.
    pub(super) fn why_stopped(&self, name: &str) -> Option<String> {
        let plugin = self.removed.get(name)?;
        Some(format!(
            "{} was removed: {} is not there any more. Put it back, and the mapping goes on where it was; to give \
             the mapping up, take it out of the config and restart",
            plugin.revision(),
            plugin.path().display(),
        ))
    }

    /// The plugin, or the revision of it that is at work, where that may go on and this may not run.
    fn take_or_hold(&mut self, plugin: Plugin, before: Option<&Self>) -> Plugin {
        let name = plugin.revision().name.as_str();
        let at_work =
            before.and_then(|before| before.plugins.get(name)).filter(|old| old.ungranted().is_none());
        let (Some(ungranted), Some(old)) = (plugin.ungranted(), at_work) else { return plugin };
        let sentence = format!(
            "{} asks for {} in addition, which the config does not grant: it is held, and {} goes on; add {} and restart",
            plugin.revision(),
            ungranted.words(),
            old.revision().version,
            ungranted.toml().replace('\n', " "),
        );
        self.problems.push(sentence.clone());
        self.held.insert(name.to_owned(), sentence);
        old.clone()
    }

    fn of_file(&self, path: &Path) -> Option<&Plugin> {
        self.plugins.get(self.files.get(path)?)
    }

    /// What the plugins say of themselves, those whose file was removed among them.
    #[must_use]
    pub fn descriptions(&self) -> Vec<Description> {
        let known = self.plugins.values().chain(self.removed.values());
        known.map(|plugin| (**plugin.description()).clone()).collect()
    }
}

/// The plugins at work, and those that are to come instead.
///
/// Who takes a set up says so in [`Reloads::at_work`], at once: whatever ends a term then, the next one begins with what
/// ran, and not with what the last one began with.
pub(super) struct Reloads {
    /// What runs. Where a mapping that runs refuses another revision, it is the one that it keeps, whatever the file is now.
    pub(super) at_work: Arc<PluginSet>,
    changed: mpsc::Receiver<Arc<PluginSet>>,
}

impl Reloads {
    pub(super) fn new(at_work: Arc<PluginSet>, changed: mpsc::Receiver<Arc<PluginSet>>) -> Self {
        Self { at_work, changed }
    }

    /// The directory as it is after a change; none once nobody watches it. May be cancelled, and loses nothing.
    pub(super) async fn next(&mut self) -> Option<Arc<PluginSet>> {
        self.changed.recv().await
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
            for problem in &set.problems {
                warn!("a plugin was not taken up, what ran before goes on: {problem}");
            }
            for plugin in set.removed.keys().filter(|name| !before.removed.contains_key(*name)) {
                warn!(%dir, plugin, "a plugin was removed: its mappings stop until it is back");
            }
            before = Arc::clone(&set);
            info!(%dir, plugins = set.plugins.len(), "the plugin directory changed");
            if changed.send(set).await.is_err() {
                return;
            }
        }
    };
    shutdown.run_until_cancelled(watching).await;
}
