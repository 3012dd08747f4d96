//! Why a plugin or a sink could not do its work.

use std::{fmt, time::Duration};

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// It may work later: try again with backoff.
    Retry,
    /// This change or document can never work; others can.
    Poison,
    /// Nothing can work as things are configured or written.
    Fatal,
}

impl FailureClass {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Poison => "poison",
            Self::Fatal => "fatal",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A classified failure, of a guest or of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What can be done about it.
    pub class: FailureClass,
    /// A short stable word for programs, such as `http-413`.
    pub code: String,
    /// For people: what is wrong and what to do. Never has a secret.
    pub message: String,
    /// How long the other side asked us to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of `class`.
    pub fn new(class: FailureClass, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class, code: code.into(), message: message.into(), retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.message, self.code, self.class)
    }
}

impl std::error::Error for Failure {}
