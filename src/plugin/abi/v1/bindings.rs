//! Generated bindings, and the few lines that touch them. The only place of this repository where unsafe code
//! is allowed: the generated code has some (docs/decisions/0001-unsafe-in-generated-bindings.md).

use wasmtime::{
    Store,
    component::{Component, HasSelf, InstancePre, Linker},
};
use wasmtime_wasi::{
    clocks::{WasiClocks, WasiClocksCtxView},
    p2::bindings::clocks::monotonic_clock,
};

use crate::{
    model::{Failure, FailureClass, PluginKind, QueryStatement},
    plugin::{
        grants::Capability,
        guest::GuestState,
        host::{
            call::Number,
            log::{Level, Line},
            services::Labels,
        },
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

/// The same.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod switching {
    wasmtime::component::bindgen!({
        inline: "
            package anabranch:host;
            world switching {
                export anabranch:plugin/generations@1.0.0;
            }
        ",
        path: "wit/v1",
        world: "anabranch:host/switching",
        exports: { default: async },
        ownership: Borrowing { duplicate_if_necessary: true },
        with: {
            "anabranch:plugin/types@1.0.0": super::transform::anabranch::plugin::types,
        },
    });
}

/// What may be granted.
#[allow(unsafe_code, missing_docs, unreachable_pub, clippy::all, clippy::expect_used, clippy::unwrap_used)]
#[allow(clippy::cast_possible_truncation, clippy::panic)]
mod capabilities {
    wasmtime::component::bindgen!({
        inline: "
            package anabranch:host;
            world capabilities {
                import anabranch:plugin/query@1.0.0;
                import anabranch:plugin/state@1.0.0;
                import anabranch:plugin/metrics@1.0.0;
            }
        ",
        path: "wit/v1",
        world: "anabranch:host/capabilities",
        imports: {
            "anabranch:plugin/query@1.0.0": async,
            "anabranch:plugin/state@1.0.0": async,
        },
        with: { "anabranch:plugin/types@1.0.0": super::transform::anabranch::plugin::types },
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

use capabilities::anabranch::plugin::{metrics, query, state};
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
        if self.lines_left == 0 {
            return self.log.drop_line();
        }
        self.lines_left -= 1;
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

impl From<Failure> for types::Failure {
    fn from(failure: Failure) -> Self {
        let class = match failure.class {
            FailureClass::Retry => types::FailureClass::Retry,
            FailureClass::Poison => types::FailureClass::Poison,
            FailureClass::Fatal => types::FailureClass::Fatal,
        };
        Self { class, code: failure.code, message: failure.message }
    }
}

impl query::Host for GuestState {
    async fn query(&mut self, statements: Vec<query::Statement>) -> Result<Vec<u8>, types::Failure> {
        let statement =
            |query::Statement { sql, parameters }: query::Statement| QueryStatement { sql, parameters };
        let statements = statements.into_iter().map(statement).collect();
        let answer = self.granted.query(&self.call, statements).await;
        answer.map_err(|failure| self.told(Capability::Query, failure))
    }
}

impl state::Host for GuestState {
    async fn get(&mut self, keys: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, types::Failure> {
        let values = self.granted.state_get(&self.call, keys).await;
        values.map_err(|failure| self.told(Capability::State, failure))
    }

    async fn set(&mut self, key: String, value: Vec<u8>) -> Result<(), types::Failure> {
        let set = self.granted.state_set(&mut self.call, key, Some(value));
        set.map_err(|failure| self.told(Capability::State, failure))
    }

    async fn delete(&mut self, key: String) -> Result<(), types::Failure> {
        let set = self.granted.state_set(&mut self.call, key, None);
        set.map_err(|failure| self.told(Capability::State, failure))
    }

    async fn keys(
        &mut self,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, types::Failure> {
        let keys = self.granted.state_keys(&self.call, &prefix, after.as_deref(), limit as usize).await;
        keys.map_err(|failure| self.told(Capability::State, failure))
    }
}

fn labels(labels: Vec<metrics::Label>) -> Labels {
    labels.into_iter().map(|metrics::Label { name, value }| (name, value)).collect()
}

impl metrics::Host for GuestState {
    fn count(&mut self, name: String, given: Vec<metrics::Label>, by: u64) -> Result<(), types::Failure> {
        let done = self.granted.measure(&self.call, &name, labels(given), Number::Count(by));
        done.map_err(|failure| self.told(Capability::Metrics, failure))
    }

    fn gauge(&mut self, name: String, given: Vec<metrics::Label>, value: f64) -> Result<(), types::Failure> {
        let done = self.granted.measure(&self.call, &name, labels(given), Number::Gauge(value));
        done.map_err(|failure| self.told(Capability::Metrics, failure))
    }
}

impl GuestState {
    /// Tells the log of what a guest was refused, and the guest why.
    fn told(&self, capability: Capability, failure: Failure) -> types::Failure {
        // What may work later was not refused.
        if let Some(meter) =
            self.call.services.meter.as_ref().filter(|_| failure.class != FailureClass::Retry)
        {
            meter.refused(capability);
        }
        if let Some(revision) = &self.revision {
            let message = &format!("{capability} was refused or failed: {failure}");
            let line = Line { revision, entity: &self.entity, lsn: self.lsn, level: Level::Warn, message };
            self.log.write(line);
        }
        failure.into()
    }
}

/// Offers what every guest gets.
pub(in crate::plugin) fn add_always(linker: &mut Linker<GuestState>) -> wasmtime::Result<()> {
    transform::TransformPlugin::add_to_linker::<_, HasSelf<_>>(linker, |state| state)
}

/// Offers a capability, to who is granted it.
pub(in crate::plugin) fn add_capability(
    linker: &mut Linker<GuestState>,
    capability: Capability,
) -> wasmtime::Result<()> {
    match capability {
        Capability::Http => {
            wasmtime_wasi_io::add_to_linker_async(linker)?;
            monotonic_clock::add_to_linker::<_, WasiClocks>(linker, |state: &mut GuestState| {
                WasiClocksCtxView { ctx: &mut state.clocks, table: &mut state.handles }
            })?;
            wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)
        }
        Capability::Query => query::add_to_linker::<_, HasSelf<_>>(linker, |state| state),
        Capability::State => state::add_to_linker::<_, HasSelf<_>>(linker, |state| state),
        Capability::Metrics => metrics::add_to_linker::<_, HasSelf<_>>(linker, |state| state),
    }
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
    Sink { sink: sink::SinkPluginPre<GuestState>, optional: Optional },
}

/// What a sink exports of what it need not: it is in its names.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::plugin) struct Optional {
    /// It can empty a destination.
    pub(in crate::plugin) purge: bool,
    /// It can build one beside what readers see.
    pub(in crate::plugin) generations: bool,
}

/// Checks the shape of a plugin's exports.
pub(in crate::plugin) fn prepare(
    instance: InstancePre<GuestState>,
    kind: PluginKind,
    optional: Optional,
) -> wasmtime::Result<Exports> {
    match kind {
        PluginKind::Transform => transform::TransformPluginPre::new(instance).map(Exports::Transform),
        PluginKind::Sink => {
            if optional.purge {
                purging::PurgingPre::new(instance.clone())?;
            }
            if optional.generations {
                switching::SwitchingPre::new(instance.clone())?;
            }
            Ok(Exports::Sink { sink: sink::SinkPluginPre::new(instance)?, optional })
        }
    }
}

/// An instance of a plugin.
pub(in crate::plugin) enum Instance {
    Transform(transform::TransformPlugin),
    Sink {
        sink: sink::SinkPlugin,
        purge: Option<purging::Purging>,
        generations: Option<switching::Switching>,
    },
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
            Exports::Sink { sink: exports, optional } => {
                let instance = exports.instance_pre().instantiate_async(&mut *store).await?;
                let purge =
                    optional.purge.then(|| purging::Purging::new(&mut *store, &instance)).transpose()?;
                let generations = optional.generations;
                let generations =
                    generations.then(|| switching::Switching::new(&mut *store, &instance)).transpose()?;
                Ok(Self::Sink { sink: sink::SinkPlugin::new(store, &instance)?, purge, generations })
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

    /// Does something with a place; of `begin`, whether readers see anything.
    pub(in crate::plugin) async fn place(
        &self,
        store: &mut Store<GuestState>,
        call: PlaceCall,
        destination: &str,
        place: &str,
    ) -> Called<bool> {
        let Self::Sink { generations: Some(guest), .. } = self else {
            return Err(wasmtime::Error::msg("it exports no `generations`"));
        };
        let guest = guest.anabranch_plugin_generations();
        let done = match call {
            PlaceCall::Begin => guest.call_begin(store, destination, place).await?,
            PlaceCall::Switch => guest.call_switch(store, destination, place).await?.map(|()| true),
            PlaceCall::Abandon => guest.call_abandon(store, destination, place).await?.map(|()| true),
        };
        Ok(done.map_err(failure))
    }
}

/// A function of `generations`.
#[derive(Clone, Copy, Debug)]
pub(in crate::plugin) enum PlaceCall {
    Begin,
    Switch,
    Abandon,
}

fn failure(failure: types::Failure) -> Failure {
    let class = match failure.class {
        types::FailureClass::Retry => FailureClass::Retry,
        types::FailureClass::Poison => FailureClass::Poison,
        types::FailureClass::Fatal => FailureClass::Fatal,
    };
    super::reply::guest_failure(class, &failure.code, &failure.message)
}
