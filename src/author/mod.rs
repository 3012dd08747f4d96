//! The author's loop: what a transform makes of rows, compared with what was expected, with what another version makes,
//! and with the clock.
//!
//! Guarantees that rows reach the plugin as `run` sends them and that answers come out as a sink gets them; that
//! documents are compared by what they mean, digit by digit. Decisions (comparing, counting, choosing) are pure; the rest
//! reads and writes the files of golden cases, and calls plugins.
//! Must never: write over an expectation unless it is told to, or take a failure for an answer.

mod answers;
mod diff;
mod document;
mod generate;
mod golden;
mod measure;
mod rows;

pub use answers::{Answer, Step, answers};
pub use diff::{Diff, Example, FailedRow, FieldChanges};
pub use document::{Difference, compare};
pub use generate::generate;
pub use golden::{AuthorError, Case, Mismatch, cases};
pub use measure::{Comparison, Measured, Measurement, Pace, measure};
pub use rows::{Rows, value_type};
