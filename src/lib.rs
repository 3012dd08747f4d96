//! Anabranch streams every committed change of a Postgres database, branches off to backfill rows that
//! already exist, and merges the two through transforms that its users write as WebAssembly components.
pub mod author;
pub mod backfill;
pub mod cli;
pub mod config;
pub mod control;
pub mod model;
pub mod pgoutput;
pub mod pipeline;
pub mod plugin;
pub mod postgres;
pub mod runtime;
pub mod sink;
pub mod state;
