//! Generated bindings, and the few lines that touch them. The only place of this repository where unsafe code
//! is allowed: the generated code has some (docs/decisions/0001-unsafe-in-generated-bindings.md).

use wasmtime::{
    Store,
    component::{Component, HasSelf, InstancePre, Linker},
};

use crate::{
    model::{Failure, FailureClass},
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

/// A transform, ready to be instantiated.
pub(in crate::plugin) type Exports = transform::TransformPluginPre<GuestState>;
/// A sink whose exports have the right shape.
pub(in crate::plugin) type SinkShape = sink::SinkPluginPre<GuestState>;

/// Checks the shape of a transform's exports.
pub(in crate::plugin) fn prepare(instance: InstancePre<GuestState>) -> wasmtime::Result<Exports> {
    Exports::new(instance)
}

/// Checks the shape of a sink's exports.
pub(in crate::plugin) fn prepare_sink(instance: InstancePre<GuestState>) -> wasmtime::Result<SinkShape> {
    SinkShape::new(instance)
}

/// An instance of a transform.
pub(in crate::plugin) struct Instance(transform::TransformPlugin);

impl Instance {
    pub(in crate::plugin) async fn new(
        store: &mut Store<GuestState>,
        exports: &Exports,
    ) -> wasmtime::Result<Self> {
        exports.instantiate_async(store).await.map(Self)
    }

    /// One call. The outer error is a trap; the store is dead then.
    pub(in crate::plugin) async fn transform(
        &self,
        store: &mut Store<GuestState>,
        batch: &[u8],
    ) -> wasmtime::Result<Result<Vec<u8>, Failure>> {
        let reply = self.0.anabranch_plugin_transform().call_transform(store, batch).await?;
        Ok(reply.map_err(|failure| {
            let class = match failure.class {
                types::FailureClass::Retry => FailureClass::Retry,
                types::FailureClass::Poison => FailureClass::Poison,
                types::FailureClass::Fatal => FailureClass::Fatal,
            };
            super::reply::guest_failure(class, &failure.code, &failure.message)
        }))
    }
}
