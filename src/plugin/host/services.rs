//! What the runtime does for guests: one trait a capability, since this room knows neither the source nor what is kept.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    model::{Failure, QueryRows, QueryStatement, Xid},
    plugin::grants::{Capability, MetricsGrant, QueryGrant, StateGrant},
};

/// Read-only SQL on the source.
#[async_trait]
pub trait Queries: Send + Sync + fmt::Debug {
    /// Runs statements in one snapshot, which sees what these transactions did: one answer for each set of parameters.
    async fn query(
        &self,
        statements: &[QueryStatement],
        sees: &[Xid],
        grant: &QueryGrant,
    ) -> Result<Vec<QueryRows>, Failure>;
}

/// What is written under a key; none removes it.
pub type Writes = BTreeMap<String, Option<Vec<u8>>>;

/// A small store of keys and values, of one mapping and generation.
#[async_trait]
pub trait KeyValues: Send + Sync + fmt::Debug {
    /// Whose it is, for errors.
    fn mapping(&self) -> &str;

    /// The values of some keys, in their order.
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure>;

    /// The keys that begin with a prefix, after a key, in order; at most so many.
    async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Failure>;

    /// Makes writes durable, all or none. What would be more than is granted has the code `state-bytes` or `state-keys`.
    async fn write(&self, writes: Writes, grant: &StateGrant) -> Result<(), Failure>;
}

/// What a number is about: its labels, in order.
pub type Labels = Vec<(String, String)>;

/// Numbers of guests, of one mapping.
pub trait Meter: Send + Sync + fmt::Debug {
    /// Adds to a counter.
    ///
    /// # Errors
    /// It is another kind already, or there are too many series.
    fn count(&self, name: &str, labels: Labels, by: u64, grant: &MetricsGrant) -> Result<(), Failure>;

    /// Sets a gauge.
    ///
    /// # Errors
    /// As [`Meter::count`].
    fn gauge(&self, name: &str, labels: Labels, value: f64, grant: &MetricsGrant) -> Result<(), Failure>;

    /// Something was refused.
    fn refused(&self, capability: Capability);
}

/// What the guests of one mapping are served with; what is none is not there for them.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Read-only SQL.
    pub queries: Option<Arc<dyn Queries>>,
    /// A store.
    pub state: Option<Arc<dyn KeyValues>>,
    /// Numbers.
    pub meter: Option<Arc<dyn Meter>>,
}
