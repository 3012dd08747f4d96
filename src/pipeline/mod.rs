//! From changes to documents: who gets which change, what becomes of the answers, what may be confirmed, when
//! a failure is tried again, and what a change of versions asks for.
//!
//! Layer 1: pure decisions without I/O, time or tasks. `runtime` carries them out.

mod anew;
mod bisection;
mod documents;
mod ledger;
mod payload;
mod places;
mod quarantine;
mod retry;
mod rollout;
mod route;
mod toast;

pub use anew::{as_read, left_as_it_is};
pub use bisection::{Bisection, BisectionLimits, Found, TooMany};
pub use documents::{ChangeFailure, DocumentRules, assemble, assemble_around, guest_selection};
pub use ledger::{LaneId, Ledger, WorkId};
pub use payload::{Payload, beginning, payload};
pub use places::{Ability, Places, Placing, Standing};
pub use quarantine::{InARow, LaneOrder, OpenRows};
pub use retry::{Backoff, NextAttempt, RetryPolicy};
pub use rollout::{
    Conflict, Decision, Difference, Identity, Inputs, PluginStamp, RolloutPolicy, Route, Step, Stored,
    Wanted, compare,
};
pub use route::{Segment, Selection, Subscriptions, segments};
pub use toast::{complete, incomplete};
