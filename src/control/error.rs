//! What can go wrong when an installation is operated.

use crate::{postgres, state::StateError};

/// What was asked for was not done.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It cannot be done as it was asked for.
    #[error("{0}")]
    Usage(String),
    /// Somebody streams from the slot who does not lead.
    #[error(
        "server process {pid} streams from the slot {slot}, and no host of this installation does: end it (select \
         pg_terminate_backend({pid})), and suspend again"
    )]
    SlotHeld {
        /// The slot.
        slot: String,
        /// Who has it.
        pid: i32,
    },
    /// What was dropped is there again.
    #[error("{what} was dropped and is there again: somebody makes it anew; suspend again when nobody does")]
    Left {
        /// The slot or the publication.
        what: String,
    },
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
            Self::Usage(_) | Self::Left { .. } => false,
            Self::SlotHeld { .. } => true,
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
