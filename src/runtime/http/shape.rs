//! The JSON shape of `/healthz`, which the page shows, too.

use std::time::Duration;

use serde::Serialize;

use crate::{
    model::FailureClass,
    runtime::{
        health::{Level, Role, State},
        survey::{MappingView, RunSight, Survey, age_seconds},
    },
};

/// How the process is.
#[derive(Debug, Serialize)]
pub(super) struct HealthShape {
    pub(super) installation: String,
    pub(super) version: &'static str,
    pub(super) status: Level,
    /// Why it is no better.
    pub(super) reasons: Vec<String>,
    pub(super) alive: bool,
    pub(super) ready: bool,
    /// `starting`, `standby`, `leading`, `suspended`, `between terms` or `stopping`.
    pub(super) role: &'static str,
    /// For how long.
    pub(super) role_seconds: f64,
    /// Since the process began.
    pub(super) uptime_seconds: f64,
    /// The number of the last term that this process led.
    pub(super) term: Option<i64>,
    /// What the last term that broke ended with.
    pub(super) last_error: Option<ErrorShape>,
    /// Until the next term begins.
    pub(super) next_attempt_seconds: Option<f64>,
    /// Null while it does not pump.
    pub(super) stream: Option<StreamShape>,
    /// The slot as the server showed it; null where nobody looked.
    pub(super) slot: Option<SlotShape>,
    pub(super) mappings: Vec<MappingShape>,
    /// Runs that are not complete.
    pub(super) backfills: Vec<RunShape>,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorShape {
    pub(super) message: String,
    pub(super) seconds_ago: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct StreamShape {
    pub(super) position: String,
    pub(super) confirmed: String,
    pub(super) lag_bytes: Option<u64>,
    pub(super) lag_seconds: f64,
    pub(super) silence_seconds: f64,
    /// Large transactions that are not committed yet; null where they are not asked for before.
    pub(super) spool: Option<SpoolShape>,
}

#[derive(Debug, Serialize)]
pub(super) struct SpoolShape {
    pub(super) transactions: usize,
    pub(super) memory_bytes: usize,
    pub(super) disk_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct SlotShape {
    pub(super) wal_status: String,
    pub(super) retained_bytes: u64,
    /// Null without a limit.
    pub(super) remaining_bytes: Option<u64>,
    pub(super) seconds_ago: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct MappingShape {
    pub(super) name: String,
    pub(super) entity: String,
    pub(super) sink: String,
    /// `running`, `failing`, `let go`, `held` or `refused`.
    pub(super) state: &'static str,
    pub(super) generation: i64,
    pub(super) built: i64,
    pub(super) attempts: u32,
    pub(super) last_error: Option<FailureShape>,
    /// A newer revision of the transform that is not taken up, and why.
    pub(super) held_revision: Option<String>,
    pub(super) queued_bytes: usize,
    /// Rows in quarantine.
    pub(super) quarantined: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FailureShape {
    /// `retry`, `poison` or `fatal`; null where nothing was tried.
    pub(super) class: Option<&'static str>,
    pub(super) code: String,
    pub(super) message: String,
}

#[derive(Debug, Serialize)]
pub(super) struct RunShape {
    pub(super) entity: String,
    pub(super) run: String,
    /// Whether it reads some rows only.
    pub(super) scoped: bool,
    pub(super) stage: &'static str,
    pub(super) rows: u64,
    pub(super) chunks: u64,
    /// About how much of it is done.
    pub(super) percent: Option<f64>,
    pub(super) attempts: u32,
}

impl HealthShape {
    pub(super) fn new(installation: &str, state: &State, now: Duration) -> Self {
        let (status, reasons) = state.level(now);
        let ago = |then: Duration| seconds(now.saturating_sub(then));
        let survey = state.survey.as_deref();
        Self {
            installation: installation.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            status,
            reasons,
            alive: state.live(now).is_ok(),
            ready: state.ready(now).is_ok(),
            role: state.role.as_str(),
            role_seconds: ago(state.since),
            uptime_seconds: seconds(now),
            term: state.term,
            last_error: state
                .error
                .as_ref()
                .map(|(message, at)| ErrorShape { message: message.clone(), seconds_ago: ago(*at) }),
            next_attempt_seconds: state
                .next
                .filter(|_| state.role == Role::BetweenTerms)
                .map(|next| seconds(next.saturating_sub(now))),
            stream: survey.map(|survey| StreamShape::new(survey, state.lag_bytes())),
            slot: state.slot.as_ref().map(|(slot, at)| SlotShape {
                wal_status: slot.status_word().to_owned(),
                retained_bytes: slot.retained,
                remaining_bytes: slot.remaining,
                seconds_ago: ago(*at),
            }),
            mappings: survey.map(|survey| survey.mappings.iter().map(mapping).collect()).unwrap_or_default(),
            backfills: survey.map(|survey| survey.runs.iter().map(run).collect()).unwrap_or_default(),
        }
    }
}

impl StreamShape {
    fn new(survey: &Survey, lag_bytes: Option<u64>) -> Self {
        Self {
            position: survey.position.to_string(),
            confirmed: survey.confirmed.to_string(),
            lag_bytes,
            lag_seconds: survey.oldest.map_or(0.0, age_seconds),
            silence_seconds: seconds(survey.silence),
            spool: survey.spool.map(|spool| SpoolShape {
                transactions: spool.transactions,
                memory_bytes: spool.memory,
                disk_bytes: spool.disk,
            }),
        }
    }
}

fn mapping(view: &MappingView) -> MappingShape {
    MappingShape {
        name: view.name.clone(),
        entity: view.entity.clone(),
        sink: view.sink.clone(),
        state: view.state.as_str(),
        generation: view.generation,
        built: view.built,
        attempts: view.attempts,
        last_error: view.error.as_ref().map(|told| FailureShape {
            class: told.class.map(FailureClass::as_str),
            code: told.code.clone(),
            message: told.message.clone(),
        }),
        held_revision: view.held.clone(),
        queued_bytes: view.queued_bytes,
        quarantined: view.quarantined,
    }
}

fn run(run: &RunSight) -> RunShape {
    RunShape {
        entity: run.entity.clone(),
        run: run.run.clone(),
        scoped: run.scoped,
        stage: run.stage.as_str(),
        rows: run.rows,
        chunks: run.chunks,
        percent: run.share.map(|share| (share * 1000.0).round() / 10.0),
        attempts: run.attempts,
    }
}

/// Milliseconds are enough.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
