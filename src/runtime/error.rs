//! Why a term, or the whole run, ended.

use std::time::Duration;

use crate::{
    config::ConfigError,
    model::EntityName,
    pgoutput::{AssembleError, DecodeError, FrameError},
    postgres,
    state::StateError,
};

/// A leadership ended, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TermError {
    /// The source, or the connection to it.
    #[error(transparent)]
    Postgres(#[from] postgres::Error),
    /// The state schema.
    #[error(transparent)]
    State(#[from] StateError),
    /// What arrived is no replication frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What arrived is no pgoutput message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// What arrived makes no sense in its place.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The config and the plugins do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The source is not ready for us.
    #[error("the source is not ready:\n{}", .findings.join("\n"))]
    Preflight {
        /// What is wrong and the statement that mends it.
        findings: Vec<String>,
    },
    /// No mapping can run.
    #[error("no mapping can run:\n{}", .reasons.join("\n"))]
    NothingToRun {
        /// Why, a line for each.
        reasons: Vec<String>,
    },
    /// A suspension cannot be settled.
    #[error(transparent)]
    Suspension(#[from] crate::control::ControlError),
    /// The leader's session is gone; another host may lead now.
    #[error("the leader's session ended ({reason}): this term is over")]
    LeadershipLost {
        /// What was heard of it.
        reason: String,
    },
    /// The walsender says nothing.
    #[error(
        "Postgres has sent nothing for {limit:?}, although it was asked for a sign of life: the link is dead"
    )]
    Silent {
        /// `[source] silence_limit`.
        limit: Duration,
    },
    /// A stored value cannot be read.
    #[error("the stored state of {what} cannot be read: {problem}; was it changed by hand?")]
    Stored {
        /// What it belongs to.
        what: String,
        /// Why not.
        problem: String,
    },
    /// Somebody is making the slot.
    #[error("the slot {slot} is still being made, by another process: it is looked at again")]
    HalfMade {
        /// The slot.
        slot: String,
    },
    /// The publication was taken away while the slot was made.
    #[error("the publication {publication} was dropped or made anew meanwhile: a new term takes it up")]
    Unpublished {
        /// The publication.
        publication: String,
    },
    /// The publication was altered as a whole, on a server that leaves out in silence what it cannot decode.
    #[error(
        "the publication {publication} was renamed or altered: from Postgres 18 on, what was changed while it had \
         another name is left out of the stream in silence"
    )]
    Altered {
        /// The publication.
        publication: String,
    },
    /// A table was dropped and made again.
    #[error("the table {entity} was dropped and created again: a new term takes it up")]
    Recreated {
        /// The table.
        entity: EntityName,
    },
}

impl TermError {
    /// Whether the walsender has come to changes that it cannot decode: they were written while the publication did
    /// not exist (SQLSTATE 42704), and reading them again does not help. Or may have passed over such.
    pub(super) fn is_undecodable(&self, publication: &str) -> bool {
        let Self::Postgres(error) = self else { return matches!(self, Self::Altered { .. }) };
        error.sqlstate() == Some("42704") && error.to_string().contains(&format!("\"{publication}\""))
    }

    /// Whether trying again by itself may help, without anybody mending anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Postgres(error) => error.is_retryable(),
            Self::State(error) => matches!(error, StateError::Query { .. }),
            Self::Suspension(error) => error.is_passing(),
            Self::LeadershipLost { .. }
            | Self::Silent { .. }
            | Self::Altered { .. }
            | Self::Recreated { .. }
            | Self::HalfMade { .. }
            | Self::Unpublished { .. } => true,
            Self::Frame(_) | Self::Decode(_) | Self::Assemble(_) => true,
            Self::Config(_) | Self::Preflight { .. } | Self::NothingToRun { .. } | Self::Stored { .. } => {
                false
            }
        }
    }
}

/// The host could not start, or gave up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The plugin host.
    #[error(transparent)]
    Plugin(#[from] crate::plugin::PluginError),
    /// A plugin that cannot be loaded.
    #[error("{}", .0.join("\n"))]
    Plugins(Vec<String>),
    /// A sink that cannot work as configured.
    #[error("sink `{name}`: {failure}")]
    Sink {
        /// Its name.
        name: String,
        /// Why.
        failure: crate::model::Failure,
    },
    /// The operations endpoint cannot listen.
    #[error(
        "cannot listen on {address} for HTTP: {source}; is another process there, such as another `anabranch run`? \
         Name another address with `[http] listen` or --http"
    )]
    Listen {
        /// `[http] listen`.
        address: std::net::SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// No threads for backfills.
    #[error("cannot start the threads of backfills: {0}")]
    Threads(std::io::Error),
    /// The first term could not begin, and trying again would not help.
    #[error(transparent)]
    Term(#[from] TermError),
}

impl RunError {
    /// Whether the config, rather than the world, is to blame. A plugin that cannot be loaded is not the
    /// config's fault, and `check` says the same.
    #[must_use]
    pub fn is_config(&self) -> bool {
        matches!(self, Self::Sink { .. } | Self::Term(TermError::Config(_)))
    }
}
