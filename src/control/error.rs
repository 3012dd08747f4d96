//! What can go wrong when an installation is operated.

use crate::{postgres, state::StateError};

/// What was asked for was not done.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It cannot be done as it was asked for.
    #[error("{0}")]
    Usage(String),
    /// The database.
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    /// The state schema.
    #[error(transparent)]
    State(#[from] StateError),
}

impl ControlError {
    /// Whether the same may succeed a moment later, on a connection that may have to be made again.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Usage(_) => false,
            Self::Postgres(error) => error.is_retryable(),
            Self::State(StateError::Query { source, .. }) => {
                source.is_closed()
                    || source.code().is_none_or(|code| {
                        ["08", "40", "53", "57"].iter().any(|class| code.code().starts_with(class))
                    })
            }
            Self::State(_) => false,
        }
    }
}
