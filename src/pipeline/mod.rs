//! From changes to documents: who gets which change, what becomes of the answers, what may be confirmed, and
//! when a failure is tried again.
//!
//! Layer 1: pure decisions without I/O, time or tasks. `runtime` carries them out.

mod documents;
mod ledger;
mod retry;
mod route;

pub use documents::{ChangeFailure, DocumentRules, assemble, guest_selection};
pub use ledger::{LaneId, Ledger, WorkId};
pub use retry::{Backoff, NextAttempt, RetryPolicy};
pub use route::{Segment, Selection, Subscriptions, segments};
