//! What happens to a batch between the source and a sink, as state machines without I/O.
//!
//! Layer 1: synchronous, no clock, no runtime. Machines take an event and return what to do; somebody
//! else waits, sends and stores.

pub mod retry;
pub mod rollout;
