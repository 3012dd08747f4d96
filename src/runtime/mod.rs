//! What runs: the only room that spawns tasks.

pub mod telemetry;
