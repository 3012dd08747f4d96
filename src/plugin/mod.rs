//! The guest: WebAssembly components that turn rows into documents, and such that deliver documents.
//!
//! [`PluginHost`] loads components ([`artifact`] gives the verdict from their import and export names before
//! anything is instantiated), [`Transform::call`] sends changes through them, and [`SinkGuest::deliver`] documents. Each call has limits on time,
//! memory, output and log lines; after a trap, a passed deadline or a cancelled call the instance is thrown
//! away.
//!
//! Guarantees: a guest can harm nothing but its own calls; what it answers is validated before anybody else
//! sees it (one outcome for each change, documents are JSON, no id twice in one outcome); every error names the
//! plugin, and a fault the entity and the positions too.
//! Must never: grant a guest what the configuration does not, trust a guest's bytes, or name generated bindings
//! outside of `abi`.

mod abi;
pub mod artifact;
pub mod build;
mod cache;
mod describe;
mod engine;
mod fault;
pub mod grants;
mod guest;
mod host;
mod inspect;
mod json;
mod limits;
mod load;
pub mod new;
mod pool;
mod sink;
pub(crate) mod tls;
mod transform;
pub mod watch;

pub use engine::{GuestLimits, HostSettings, PluginHost};
pub use fault::{FaultKind, PluginFault};
pub use host::services;
pub use inspect::{Asked, Inspection};
pub use load::{Plugin, PluginError, Scanned};
pub use pool::Instances;
pub use sink::{SinkConfig, SinkGuest};
pub use transform::Transform;
