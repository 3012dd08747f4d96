//! Generated bindings, and the few lines that touch them. The only place of this repository where unsafe code
//! is allowed: the generated code has some (docs/decisions/0001-unsafe-in-generated-bindings.md).

use wasmtime::{
    Store,
    component::{Component, HasSelf, InstancePre, Linker},
};

use crate::{
    model::{Failure, FailureClass, PluginKind},
    plugin::{
        guest::GuestState,
        host::log::{Level, Line},
    },
};

#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod transform {
    wasmtime::component::bindgen!({
        path: "wit/v1",
        world: "transform-plugin",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod sink {
    wasmtime::component::bindgen!({
        path: "wit/v1",
        world: "sink-plugin",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "anabranch:plugin/types@1.0.0": super::transform::anabranch::plugin::types,
            "anabranch:plugin/log@1.0.0": super::transform::anabranch::plugin::log,
            "anabranch:plugin/config@1.0.0": super::transform::anabranch::plugin::config,
        },
    });
}

/// What a sink may have on top.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod purging {
    wasmtime::component::bindgen!({
        inline: "
            package anabranch:host;
            world purging {
                export anabranch:plugin/purge@1.0.0;
            }
        ",
        path: "wit/v1",
        world: "anabranch:host/purging",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "anabranch:plugin/types@1.0.0": super::transform::anabranch::plugin::types,
        },
    });
}

/// What both worlds have, called without async: at load nothing else runs in the store.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod described {
    wasmtime::component::bindgen!({
        inline: "
            package anabranch:host;
            world described {
                export anabranch:plugin/describe@1.0.0;
            }
        ",
        path: "wit/v1",
        world: "anabranch:host/described",
    });
}

use transform::anabranch::plugin::{config, log, types};

impl log::Host for GuestState {
    fn log(&mut self, level: log::Level, message: String) {
        let level = match level {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug => Level::Debug,
            log::Level::Trace => Level::Trace,
        };
        let Some(revision) = &self.revision else { return };
        let line = Line { revision, entity: &self.entity, lsn: self.lsn, level, message: &message };
        self.log.write(line);
    }
}

impl config::Host for GuestState {
    fn get(&mut self, key: String) -> Option<String> {
        self.settings.get(&key).cloned()
    }
}

impl types::Host for GuestState {}

/// Offers all that is offered.
pub(in crate::plugin) fn add_to_linker(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    transform::TransformPlugin::add_to_linker::<_, HasSelf<_>>(linker, |state| state)
}

/// Calls `describe`, on this thread. The store has its limits set.
pub(in crate::plugin) fn describe(
    store: &mut Store<GuestState>,
    component: &Component,
    linker: &Linker<GuestState>,
) -> wasmtime::Result<String> {
    let instance = described::Described::instantiate(&mut *store, component, linker)?;
    instance.anabranch_plugin_describe().call_describe(store)
}

/// A plugin whose exports have the right shape, ready to be instantiated.
pub(in crate::plugin) enum Exports {
    Transform(transform::TransformPluginPre<GuestState>),
    Sink {
        sink: sink::SinkPluginPre<GuestState>,
        /// Whether it can empty a destination.
        purge: bool,
    },
}

/// Checks the shape of a plugin's exports. Whether a sink exports `purge` is in its names.
pub(in crate::plugin) fn prepare(
    instance: InstancePre<GuestState>,
    kind: PluginKind,
    purge: bool,
) -> wasmtime::Result<Exports> {
    match kind {
        PluginKind::Transform => transform::TransformPluginPre::new(instance).map(Exports::Transform),
        PluginKind::Sink => {
            if purge {
                purging::PurgingPre::new(instance.clone())?;
            }
            Ok(Exports::Sink { sink: sink::SinkPluginPre::new(instance)?, purge })
        }
    }
}

/// An instance of a plugin.
pub(in crate::plugin) enum Instance {
    Transform(transform::TransformPlugin),
    Sink { sink: sink::SinkPlugin, purge: Option<purging::Purging> },
}

/// What a call gives: the outer error is a trap, and the store is dead then.
pub(in crate::plugin) type Called<T> = wasmtime::Result<Result<T, Failure>>;

impl Instance {
    pub(in crate::plugin) async fn new(
        store: &mut Store<GuestState>,
        exports: &Exports,
    ) -> wasmtime::Result<Self> {
        match exports {
            Exports::Transform(exports) => exports.instantiate_async(store).await.map(Self::Transform),
            Exports::Sink { sink: exports, purge } => {
                let instance = exports.instance_pre().instantiate_async(&mut *store).await?;
                let purge = purge.then(|| purging::Purging::new(&mut *store, &instance)).transpose()?;
                Ok(Self::Sink { sink: sink::SinkPlugin::new(store, &instance)?, purge })
            }
        }
    }

    /// Rows to documents.
    pub(in crate::plugin) async fn transform(
        &self,
        store: &mut Store<GuestState>,
        batch: &[u8],
    ) -> Called<Vec<u8>> {
        let Self::Transform(plugin) = self else { return Err(wasmtime::Error::msg("it is no transform")) };
        Ok(plugin.anabranch_plugin_transform().call_transform(store, batch).await?.map_err(failure))
    }

    /// A sink's settings, before anything else.
    pub(in crate::plugin) async fn open(&self, store: &mut Store<GuestState>, settings: &str) -> Called<()> {
        let Self::Sink { sink, .. } = self else { return Err(wasmtime::Error::msg("it is no sink")) };
        Ok(sink.anabranch_plugin_sink().call_open(store, settings).await?.map_err(failure))
    }

    /// Documents to where the sink keeps them.
    pub(in crate::plugin) async fn deliver(
        &self,
        store: &mut Store<GuestState>,
        batch: &[u8],
    ) -> Called<Vec<u8>> {
        let Self::Sink { sink, .. } = self else { return Err(wasmtime::Error::msg("it is no sink")) };
        Ok(sink.anabranch_plugin_sink().call_deliver(store, batch).await?.map_err(failure))
    }

    /// Empties a destination.
    pub(in crate::plugin) async fn purge(
        &self,
        store: &mut Store<GuestState>,
        destination: &str,
    ) -> Called<()> {
        let Self::Sink { purge: Some(purge), .. } = self else {
            return Err(wasmtime::Error::msg("it exports no `purge`"));
        };
        Ok(purge.anabranch_plugin_purge().call_purge(store, destination).await?.map_err(failure))
    }
}

fn failure(failure: types::Failure) -> Failure {
    let class = match failure.class {
        types::FailureClass::Retry => FailureClass::Retry,
        types::FailureClass::Poison => FailureClass::Poison,
        types::FailureClass::Fatal => FailureClass::Fatal,
    };
    super::reply::guest_failure(class, &failure.code, &failure.message)
}
