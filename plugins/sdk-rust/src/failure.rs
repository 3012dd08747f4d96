//! Failures by class.

use std::{fmt, time::Duration};

/// What can be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// It may work later: the host tries again with backoff.
    Retry,
    /// This change can never work; others can.
    Poison,
    /// Nothing can work as things are configured or written.
    Fatal,
}

impl FailureClass {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Poison => "poison",
            Self::Fatal => "fatal",
        }
    }
}

/// Why a change could not be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What can be done about it.
    pub class: FailureClass,
    /// A short stable word for programs, such as `bad-currency`.
    pub code: String,
    /// For people: what is wrong and what to do. Never a secret.
    pub message: String,
    /// How long the other side asked us to wait. Only the results of a sink carry it to the host.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// It may work later.
    pub fn retry(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: FailureClass::Retry, code: code.into(), message: message.into(), retry_after: None }
    }

    /// This change can never work.
    pub fn poison(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: FailureClass::Poison, code: code.into(), message: message.into(), retry_after: None }
    }

    /// Nothing can work.
    pub fn fatal(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: FailureClass::Fatal, code: code.into(), message: message.into(), retry_after: None }
    }

    /// The same, after which a retry is welcome when this has passed.
    #[must_use]
    pub fn after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.message, self.code, self.class.as_str())
    }
}

impl std::error::Error for Failure {}

impl From<crate::bindings::anabranch::plugin::types::Failure> for Failure {
    fn from(failure: crate::bindings::anabranch::plugin::types::Failure) -> Self {
        use crate::bindings::anabranch::plugin::types::FailureClass as Class;
        let class = match failure.class {
            Class::Retry => FailureClass::Retry,
            Class::Poison => FailureClass::Poison,
            Class::Fatal => FailureClass::Fatal,
        };
        Self { class, code: failure.code, message: failure.message, retry_after: None }
    }
}

impl From<Failure> for crate::bindings::anabranch::plugin::types::Failure {
    fn from(failure: Failure) -> Self {
        use crate::bindings::anabranch::plugin::types::FailureClass as Class;
        let class = match failure.class {
            FailureClass::Retry => Class::Retry,
            FailureClass::Poison => Class::Poison,
            FailureClass::Fatal => Class::Fatal,
        };
        Self { class, code: failure.code, message: failure.message }
    }
}
