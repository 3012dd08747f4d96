//! Anabranch streams every committed change of a Postgres database, branches off to backfill rows that
//! already exist, and merges the two through transforms that its users write as WebAssembly components.
pub mod model;
pub mod pgoutput;
pub mod plugin;
