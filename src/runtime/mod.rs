//! What runs: terms, the pump, lanes and readers; the only room that spawns tasks.
//!
//! I/O and tasks around the machines of `pgoutput`, `backfill` and `pipeline`. A term ([`run`] begins one after
//! the other) owns every task it starts and joins it; the order of changes is kept per mapping; every queue is
//! bounded in bytes.
//!
//! - how a process comes up and goes down → `supervisor`, `shutdown`
//! - which threads what runs on → `background`
//! - one leadership from lock to release → `term`, with `source` and `plan`; none, while it is suspended → `suspended`
//! - whether the source is still the one that was read → `history`; a slot that somebody has → `held`; what is kept for it → `slot_watch`; links that are dead → `answer`
//! - the loop over the stream → `pump`, `intake`, its end `drain`; what is streamed before its commit → `spool`; a plugin that changes → `reload`, `swap`; one mapping → `lane`, `blame`; the backfill → `branch`, `readers`
//! - what operators ask for → `requests`, `asked`; tables that change behind the stream's back → `lookout`
//! - what it tells of itself → `health`, `metrics` with `gauges` and `tally`, `survey`; over HTTP → `http`; logs and
//!   traces → `telemetry`
//! - what is written down → `scribe`; with the documents → `token`, `delivery`, taken up again by `recover`

mod answer;
mod asked;
mod background;
mod blame;
mod branch;
mod delivery;
mod drain;
mod enrich;
mod error;
mod gauges;
mod health;
mod held;
mod history;
mod http;
mod intake;
mod keep;
mod lane;
mod lookout;
mod metrics;
mod numbers;
mod outlet;
mod partitions;
mod placing;
mod plan;
mod pump;
mod readers;
mod recover;
mod relations;
mod reload;
mod requests;
mod reread;
mod scribe;
mod serve;
mod shutdown;
mod slot_watch;
mod source;
mod spool;
mod supervisor;
mod survey;
mod suspended;
mod swap;
mod tally;
pub mod telemetry;
mod term;
mod token;

pub use error::{RunError, TermError};
pub use plan::{WantedMapping, findings, identities, wanted, wanted_identities};
pub use reload::PluginSet;
pub use shutdown::Signals;
pub use spool::{DiskError, SpoolFault};
pub use supervisor::run;
