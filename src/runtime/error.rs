//! Why a term, or the whole run, ended.

use std::time::Duration;

use crate::{
    config::ConfigError,
    model::{EntityName, Xid},
    pgoutput::{AssembleError, DecodeError, FrameError},
    postgres::{self, ErrorKind},
    state::StateError,
};

use super::spool::SpoolFault;

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
    /// A large transaction that is not committed yet could not be kept, or not be read back.
    #[error(transparent)]
    Spool(#[from] SpoolFault),
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
    /// A session says nothing.
    #[error("Postgres did not answer within {} s when it was asked for {what}: the link is dead, or somebody has locked \
         what it has to look at", .limit.as_secs())]
    NoAnswer {
        /// What it was asked for.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A commit is in the WAL, and nobody sees it.
    #[error(
        "transaction {xid} may have altered the table {entity}, is in the WAL, and was not visible within {} s: its commit waits \
         for a synchronous standby, as it seems (see synchronous_standby_names and pg_stat_activity); what its rows mean \
         is known only then, and nothing behind it is delivered before", .limit.as_secs()
    )]
    Unseen {
        /// The table.
        entity: EntityName,
        /// The transaction.
        xid: Xid,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A connection leads to another server than the others of the term.
    #[error(
        "a connection led to another server than the term began on ({before} before, {now} now): a failover is under \
         way, or several servers answer at one address; a new term looks again"
    )]
    Moved {
        /// System identifier and timeline.
        before: String,
        /// System identifier and timeline.
        now: String,
    },
    /// The server has an earlier timeline than was read before.
    #[error(
        "the server is on timeline {now}, and timeline {before} of the same cluster was read before: a former primary \
         still runs and answers here, or a backup was restored; end the former primary, or, to go on with what is \
         there, start this host again"
    )]
    FormerPrimary {
        /// The server's timeline.
        now: i32,
        /// The one that was read.
        before: i32,
    },
    /// The slot is not the one that the term began with.
    #[error(
        "the slot {slot} was taken away, moved or made anew as the stream was to begin: a new term looks again"
    )]
    AnotherSlot {
        /// The slot.
        slot: String,
    },
    /// The server comes to a change that it can never send.
    #[error(
        "THE STREAM IS STUCK at {}: the server cannot put the change there into a message, for the row{} is too large \
         for it ({source}); nothing behind it can be streamed, and trying again does not help. Make the value smaller \
         in the table (less than half a gigabyte of bytea, than a gigabyte of text), then run `anabranch suspend` and \
         `anabranch resume`: the slot is made anew behind it, and every mapped table is backfilled again",
        .at.map_or_else(|| "an unknown position".to_owned(), |at| at.to_string()),
        .entity.as_ref().map_or_else(String::new, |entity| format!(" (of {entity}, the table that the stream described last)"))
    )]
    Stuck {
        /// The change.
        at: Option<crate::model::Lsn>,
        /// The table that was described last, which most likely is the row's.
        entity: Option<EntityName>,
        /// The server's words.
        source: Box<postgres::Error>,
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
    /// Why reading the slot again does not help, and the next term has to give it up: the walsender has come to changes
    /// that were written while the publication did not exist (SQLSTATE 42704), or the server has given it up itself.
    pub(super) fn gives_up(&self, publication: &str) -> Option<String> {
        let undecodable = || {
            format!(
                "the slot has changes from when the publication {publication} did not exist, which nobody can decode"
            )
        };
        let error = match self {
            Self::Postgres(error) => error,
            // It may have passed over such.
            Self::Altered { .. } => return Some(undecodable()),
            _ => return None,
        };
        if error.kind() == ErrorKind::SlotLost {
            return Some(error.to_string());
        }
        // Who looks a publication up, for the message is in the server's language; only ours is asked for.
        let missing = error.routine() == Some("get_publication_oid")
            || error.to_string().contains(&format!("publication \"{publication}\""));
        (error.sqlstate() == Some("42704") && missing).then(undecodable)
    }

    /// Whether only somebody can help who changes what is in the way.
    pub(super) fn is_stuck(&self) -> bool {
        matches!(self, Self::Stuck { .. })
    }

    /// Whether trying again by itself may help, without anybody mending anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // The next term makes a new slot.
            Self::Postgres(error) => {
                error.is_retryable() || matches!(error.kind(), ErrorKind::SlotLost | ErrorKind::SlotMissing)
            }
            Self::State(error) => matches!(error, StateError::Query { .. }),
            Self::Suspension(error) => error.is_passing(),
            Self::LeadershipLost { .. }
            | Self::Silent { .. }
            | Self::NoAnswer { .. }
            | Self::Unseen { .. }
            | Self::Moved { .. }
            | Self::AnotherSlot { .. }
            | Self::Altered { .. }
            | Self::Recreated { .. }
            | Self::HalfMade { .. }
            | Self::Unpublished { .. } => true,
            Self::Frame(_) | Self::Decode(_) | Self::Assemble(_) | Self::Spool(_) => true,
            Self::Config(_)
            | Self::Preflight { .. }
            | Self::NothingToRun { .. }
            | Self::Stored { .. }
            | Self::FormerPrimary { .. }
            | Self::Stuck { .. } => false,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::Lsn, postgres::Error};

    #[test]
    fn c058_a_slot_of_no_use_is_given_up_and_nobody_has_to_mend_it() {
        let lost = TermError::from(
            Error::server("55000", "can no longer access it", None).with_kind(ErrorKind::SlotLost),
        );
        assert!(lost.is_transient() && lost.gives_up("shop").is_some());
        let missing = TermError::from(
            Error::server("42704", "it is not there", None).with_kind(ErrorKind::SlotMissing),
        );
        assert!(missing.is_transient() && missing.gives_up("shop").is_none());
        let undecodable =
            TermError::from(Error::server("42704", "publication \"shop\" does not exist", None));
        assert!(undecodable.gives_up("shop").is_some() && undecodable.gives_up("sho").is_none());
        // In the words of Postgres 15 with `lc_messages` at `de_DE`.
        let german = Error::server("42704", "Publikation »shop« existiert nicht", None)
            .by_routine(Some("get_publication_oid"));
        assert!(TermError::from(german).gives_up("shop").is_some());
        let other =
            TermError::from(Error::server("55000", "logical decoding requires wal_level >= logical", None));
        assert!(!other.is_transient() && other.gives_up("shop").is_none());
    }

    #[test]
    fn c017_the_stuck_state_says_where_what_and_what_to_do() {
        let source = Error::server("XX000", "invalid memory alloc request size 1200000003", None);
        let entity = Some(EntityName::new("public", "files"));
        let stuck = TermError::Stuck { at: Some(Lsn(0x1_0000_00A0)), entity, source: Box::new(source) };
        let text = stuck.to_string();
        assert!(stuck.is_stuck() && !stuck.is_transient());
        for part in ["STUCK at 1/A0:", "public.files", "size 1200000003", "`anabranch suspend`"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
