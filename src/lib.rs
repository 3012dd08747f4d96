//! Anabranch streams every committed change of a Postgres database, branches off to backfill rows that
//! already exist, and merges the two through transforms that its users write as WebAssembly components.
pub mod backfill;
pub mod model;
pub mod pgoutput;
pub mod pipeline;
pub mod postgres;
pub mod sink;
pub mod state;
