//! A sink as lanes see it: opened before its first delivery, and again after a fatal failure.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Mutex;
use tracing::info;

use crate::{
    config::Config,
    model::{Documents, Failure, FailureClass, Place},
    plugin::Plugin,
    sink::{Capabilities, PluginSink, Progress, Rejected, Sink, SinkSettings},
};

use super::reload::PluginSet;

/// One configured sink, shared by the lanes that deliver to it.
#[derive(Debug)]
pub(super) struct Outlet {
    /// Another one once its plugin changed. A call that has begun ends with the one that it began with.
    current: RwLock<Arc<Current>>,
}

/// What documents go to now.
#[derive(Debug)]
struct Current {
    sink: Arc<dyn Sink>,
    /// The plugin that it is, where it is one and that is there.
    plugin: Option<Plugin>,
    opened: AtomicBool,
    opening: Mutex<()>,
}

/// All sinks, by name.
pub(super) type Outlets = BTreeMap<String, Arc<Outlet>>;

/// Gives sinks that are plugins the revisions of a set, or takes a plugin away that is gone.
pub(super) fn fit(outlets: &Outlets, config: &Config, plugins: &PluginSet) {
    for (name, outlet) in outlets {
        let Some(SinkSettings::Plugin(settings)) = config.sinks.get(name) else { continue };
        let plugin = plugins.plugins.get(&settings.plugin);
        let is_same = match (outlet.plugin(), plugin) {
            (Some(before), Some(now)) => before.revision() == now.revision(),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            continue;
        }
        let sink = match plugin {
            Some(plugin) => {
                info!(sink = name, plugin = %plugin.revision(), "is run by this plugin from now on");
                PluginSink::new(name, settings, plugin)
            }
            None => PluginSink::without_plugin(name, settings),
        };
        outlet.replace(Current::new(Arc::new(sink), plugin.cloned()));
    }
}

impl Outlet {
    pub(super) fn new(sink: Arc<dyn Sink>) -> Self {
        Self { current: RwLock::new(Arc::new(Current::new(sink, None))) }
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, current: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
    }

    /// The plugin that it is, where it is one and that is there.
    pub(super) fn plugin(&self) -> Option<Plugin> {
        self.current().plugin.clone()
    }

    pub(super) fn kind(&self) -> &'static str {
        self.current().sink.kind()
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.current().sink.capabilities()
    }

    pub(super) async fn deliver(
        &self,
        documents: &Documents,
        progress: Option<&Progress>,
    ) -> Result<Vec<Rejected>, Failure> {
        let current = self.current();
        current.open().await?;
        let delivered = current.sink.deliver(documents, progress).await;
        delivered.inspect_err(|failure| current.note(failure))
    }

    pub(super) async fn purge(&self, destination: &str, progress: Option<&Progress>) -> Result<(), Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.purge(destination, progress).await.inspect_err(|failure| current.note(failure))
    }

    /// Makes an empty place for a destination; whether readers see anything under it. This and the two that follow only
    /// where the sink can.
    pub(super) async fn begin(&self, destination: &str, place: &Place) -> Result<bool, Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.begin(destination, place).await.inspect_err(|failure| current.note(failure))
    }

    /// Readers see this place from now on.
    pub(super) async fn switch(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.switch(destination, place).await.inspect_err(|failure| current.note(failure))
    }

    /// Removes a place, unless readers see it.
    pub(super) async fn abandon(&self, destination: &str, place: &Place) -> Result<(), Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.abandon(destination, place).await.inspect_err(|failure| current.note(failure))
    }

    /// The token that is stored under `key`. Only where the sink can.
    pub(super) async fn progress(&self, key: &str) -> Result<Option<String>, Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.progress(key).await.inspect_err(|failure| current.note(failure))
    }

    /// Whether the sink has a place for the documents of a destination. Only where it can tell.
    pub(super) async fn has_destination(&self, destination: &str) -> Result<bool, Failure> {
        let current = self.current();
        current.open().await?;
        current.sink.has_destination(destination).await.inspect_err(|failure| current.note(failure))
    }

    pub(super) async fn close(&self) -> Result<(), Failure> {
        self.current().sink.close().await
    }
}

impl Current {
    fn new(sink: Arc<dyn Sink>, plugin: Option<Plugin>) -> Self {
        Self { sink, plugin, opened: AtomicBool::new(false), opening: Mutex::new(()) }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::model::Origin;

    /// Takes nothing before it is opened, and notes how often it was.
    #[derive(Debug, Default)]
    struct Counting {
        opened: AtomicUsize,
        /// How what it is asked next ends.
        fails: std::sync::Mutex<Option<FailureClass>>,
    }

    impl Counting {
        fn asked(&self) -> Result<(), Failure> {
            assert!(self.opened.load(Ordering::Relaxed) > 0, "it is not open");
            match self.fails.lock().unwrap().take() {
                Some(class) => Err(Failure::new(class, "asked", "it was asked to fail")),
                None => Ok(()),
            }
        }
    }

    #[async_trait::async_trait]
    impl Sink for Counting {
        fn kind(&self) -> &'static str {
            "counting"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::default()
        }

        async fn open(&self) -> Result<(), Failure> {
            self.opened.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn deliver(&self, _: &Documents, _: Option<&Progress>) -> Result<Vec<Rejected>, Failure> {
            self.asked().map(|()| Vec::new())
        }

        async fn purge(&self, _: &str, _: Option<&Progress>) -> Result<(), Failure> {
            self.asked()
        }

        async fn progress(&self, _: &str) -> Result<Option<String>, Failure> {
            self.asked().map(|()| None)
        }

        async fn has_destination(&self, _: &str) -> Result<bool, Failure> {
            self.asked().map(|()| true)
        }

        async fn begin(&self, _: &str, _: &Place) -> Result<bool, Failure> {
            self.asked().map(|()| true)
        }

        async fn switch(&self, _: &str, _: &Place) -> Result<(), Failure> {
            self.asked()
        }

        async fn abandon(&self, _: &str, _: &Place) -> Result<(), Failure> {
            self.asked()
        }

        async fn close(&self) -> Result<(), Failure> {
            Ok(())
        }
    }

    /// Asks for everything that a sink can be asked for, one after the other.
    async fn ask(outlet: &Outlet, what: usize) -> Option<Result<(), Failure>> {
        let place = Place::new(1, 1);
        Some(match what {
            0 => outlet.deliver(&Documents::new("public.t", Origin::Stream, 1), None).await.map(drop),
            1 => outlet.purge("d", None).await,
            2 => outlet.progress("k").await.map(drop),
            3 => outlet.has_destination("d").await.map(drop),
            4 => outlet.begin("d", &place).await.map(drop),
            5 => outlet.switch("d", &place).await,
            6 => outlet.abandon("d", &place).await,
            _ => return None,
        })
    }

    #[tokio::test]
    async fn a_sink_is_opened_before_anything_is_asked_of_it_and_again_once_it_failed_for_good() {
        for what in 0.. {
            let sink = Arc::new(Counting::default());
            let outlet = Outlet::new(Arc::clone(&sink) as Arc<dyn Sink>);
            let opened = || sink.opened.load(Ordering::Relaxed);
            match ask(&outlet, what).await {
                None => return assert_eq!((what, opened()), (7, 0)),
                Some(asked) => asked.unwrap(),
            }
            assert_eq!(opened(), 1, "{what}");
            for (class, again) in
                [(FailureClass::Retry, 1), (FailureClass::Poison, 1), (FailureClass::Fatal, 2)]
            {
                *sink.fails.lock().unwrap() = Some(class);
                assert_eq!(ask(&outlet, what).await.unwrap().unwrap_err().class, class);
                ask(&outlet, what).await.unwrap().unwrap();
                assert_eq!(opened(), again, "{what} after {class:?}");
            }
        }
    }
}
