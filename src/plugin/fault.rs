//! Why a call into a guest failed.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    grants::Ungranted,
    limits::{LimitError, size},
};
use crate::model::{Failure, FailureClass, Lsn, Revision};

/// A call failed as a whole: there are no outcomes.
///
/// Failures that concern one change only are not faults but outcomes
/// ([`Outcome::Failed`](crate::model::Outcome)).
#[derive(Clone, Debug)]
pub struct PluginFault(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    revision: Arc<Revision>,
    entity: Arc<str>,
    lsn: (Lsn, Lsn),
    positions: (usize, usize),
    kind: FaultKind,
    /// Whether it may have waited for others.
    waits: bool,
}

/// What went wrong.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FaultKind {
    /// The guest crashed: unreachable code (a panic), a bad memory access, a division by zero.
    #[error("it crashed: {0}")]
    Trap(String),
    /// The guest recursed too deep.
    #[error("it used up its stack, of which there are 512 KiB (fixed): recurse less deep ({0})")]
    Stack(String),
    /// The call took too long.
    #[error("it did not answer within {0:?} (`[plugins] call_deadline`): make it faster, or raise that")]
    Deadline(Duration),
    /// The guest wanted too much memory.
    #[error(transparent)]
    Memory(#[from] LimitError),
    /// The reply is too large.
    #[error("it answered with {}, the limit is {} (`[plugins] max_output`): emit less, or raise it", size(*.bytes), size(*.limit))]
    OutputTooLarge {
        /// How large it is.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The reply has too many documents.
    #[error(
        "it answered with more than {limit} documents in one call, a hundred times what one change may have (`[plugins] \
         max_documents`): emit fewer, or raise it"
    )]
    TooManyDocuments {
        /// The limit.
        limit: usize,
    },
    /// Not one outcome for each change.
    #[error("it answered {changes} changes with {outcomes} outcomes; there must be one for each, in order")]
    OutcomeCount {
        /// How many changes were sent.
        changes: usize,
        /// How many outcomes came back.
        outcomes: usize,
    },
    /// Not one result for each document.
    #[error("it answered {documents} documents with {results} results; there must be one for each, in order")]
    ResultCount {
        /// How many documents were sent.
        documents: usize,
        /// How many results came back.
        results: usize,
    },
    /// The reply is not of the shape of the payload page.
    #[error("its reply cannot be read, at byte {at}: {problem}; see wit/v1/payload-{encoding}.md")]
    BadReply {
        /// Where.
        at: usize,
        /// What is wrong.
        problem: String,
        /// `msgpack` or `json`.
        encoding: &'static str,
    },
    /// The guest itself failed the batch.
    #[error("it failed the batch: {0}")]
    Guest(Failure),
    /// What it wrote could not be kept.
    #[error("what it wrote could not be kept: {0}")]
    State(Failure),
    /// The guest reads a column that the table lacks.
    #[error(
        "it reads the column `{column}`, which the table does not have: the table has {table}. Rename it in one of them"
    )]
    MissingColumn {
        /// The column.
        column: String,
        /// The columns that there are.
        table: String,
    },
    /// It asks for what it is not granted.
    #[error("it {0}")]
    Ungranted(Ungranted),
    /// It fails for so many changes that none of them is to blame.
    #[error(
        "it fails for more than {culprits} changes of one batch, each alone, or takes too long to fail: the plugin is \
         taken to be at fault and not the rows, and none is put into quarantine. The last: {last}"
    )]
    Everywhere {
        /// How many had failed before.
        culprits: usize,
        /// What the last failed with.
        last: String,
    },
    /// No instance could be made.
    #[error("no instance of it could be made: {0}")]
    Instantiate(String),
}

impl FaultKind {
    /// A short stable word for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Trap(_) => "plugin-trap",
            Self::Stack(_) => "plugin-stack",
            Self::Deadline(_) => "plugin-deadline",
            Self::Memory(LimitError::Total { .. }) => "plugin-total-memory",
            Self::Memory(_) => "plugin-memory",
            Self::OutputTooLarge { .. } => "plugin-output",
            Self::TooManyDocuments { .. } => "plugin-too-many-documents",
            Self::OutcomeCount { .. } => "plugin-outcome-count",
            Self::ResultCount { .. } => "plugin-result-count",
            Self::BadReply { .. } => "plugin-reply",
            Self::Guest(failure) | Self::State(failure) => &failure.code,
            Self::MissingColumn { .. } => "plugin-column",
            Self::Ungranted(_) => "plugin-ungranted",
            Self::Everywhere { .. } => "plugin-fails-often",
            Self::Instantiate(_) => "plugin-instantiate",
        }
    }
}

impl PluginFault {
    pub(super) fn new(
        revision: Arc<Revision>,
        entity: Arc<str>,
        lsn: (Lsn, Lsn),
        positions: (usize, usize),
        kind: FaultKind,
    ) -> Self {
        Self(Box::new(Details { revision, entity, lsn, positions, kind, waits: false }))
    }

    /// The same of a plugin that may have waited for others: what it did not do in time may work later.
    pub(super) fn waiting(mut self, waits: bool) -> Self {
        self.0.waits = waits;
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &FaultKind {
        &self.0.kind
    }

    /// Positions in the selection, from and to (excluded), of the changes that were in the failing call. The
    /// other changes of the selection are not to blame.
    #[must_use]
    pub fn positions(&self) -> std::ops::Range<usize> {
        self.0.positions.0..self.0.positions.1
    }

    /// Whether it may be the machine's rather than the guest's: it is a matter of time.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        matches!(self.kind(), FaultKind::Deadline(_))
    }

    /// The same as a fault of the plugin as a whole, after `culprits` changes were to blame.
    #[must_use]
    pub fn of_the_plugin(mut self, culprits: usize) -> Self {
        let last = self.0.kind.to_string();
        self.0.kind = FaultKind::Everywhere { culprits, last };
        self
    }

    /// Whether one change of several may be the cause, so that a smaller batch may work: split
    /// [`PluginFault::positions`] until the culprit is alone.
    #[must_use]
    pub fn may_be_one_change(&self) -> bool {
        let several = self.positions().len() > 1;
        several
            && match self.kind() {
                FaultKind::Guest(failure) => failure.class == FailureClass::Poison,
                FaultKind::State(failure) => failure.class == FailureClass::Poison,
                FaultKind::MissingColumn { .. }
                | FaultKind::Instantiate(_)
                | FaultKind::Ungranted(_)
                | FaultKind::Everywhere { .. }
                | FaultKind::Memory(LimitError::Total { .. }) => false,
                _ => true,
            }
    }

    /// What can be done about it.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        match self.kind() {
            FaultKind::Guest(failure) | FaultKind::State(failure) => failure.class,
            FaultKind::MissingColumn { .. } | FaultKind::Ungranted(_) | FaultKind::Everywhere { .. } => {
                FailureClass::Fatal
            }
            FaultKind::Instantiate(_) | FaultKind::Memory(LimitError::Total { .. }) => FailureClass::Retry,
            FaultKind::Deadline(_) if self.0.waits => FailureClass::Retry,
            _ => FailureClass::Poison,
        }
    }

    /// A short stable word for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        self.kind().code()
    }

    /// The same as a [`Failure`], for the policies that all failures share.
    #[must_use]
    pub fn to_failure(&self) -> Failure {
        Failure::new(self.class(), self.code(), self.to_string())
    }
}

impl fmt::Display for PluginFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { revision, entity, lsn: (first, last), kind, .. } = &*self.0;
        write!(f, "plugin {revision} on {entity} at LSN {first}")?;
        if first != last {
            write!(f, " to {last}")?;
        }
        write!(f, ": {kind}")
    }
}

impl std::error::Error for PluginFault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.kind)
    }
}
