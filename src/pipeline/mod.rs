//! From changes to documents: who gets which change, what becomes of the answers, and what may be confirmed.
//!
//! Layer 1: pure decisions without I/O, time or tasks. `runtime` carries them out.

mod documents;
mod ledger;
mod route;

pub use documents::{ChangeFailure, DocumentRules, assemble, guest_selection};
pub use ledger::{LaneId, Ledger, WorkId};
pub use route::{Segment, Selection, Subscriptions, segments};
