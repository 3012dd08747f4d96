//! How this process is, as far as it knows: what probes and people are told.
//!
//! The supervisor, the term and the pump say what they are at; [`State`] keeps it, and its verdicts are functions of
//! it and of the time alone. Guarantees that whoever asks waits for nobody: the state is locked for moments, never
//! across an await. Must never hold a secret, or of a row more than the key that an error names.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::postgres::SlotWal;

use super::survey::{MappingState, Survey};

/// How old the last beat may be. The pump goes round every 50 ms; it may have to ask the catalogue on its way, and a
/// link that is dead then is given up after 13 s, with the leader's lock. Twice that is no hiccup any more.
pub(super) const BEAT_LIMIT: Duration = Duration::from_secs(30);

/// What the process is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// No term has led yet.
    Starting,
    /// Another host leads; this one waits for the lock.
    Standby,
    /// It has the lock.
    Leading,
    /// Nobody is to stream, until somebody says so.
    Suspended,
    /// A term has ended, and the next one does not lead yet.
    BetweenTerms,
    /// The same, and the next one will come no further: somebody has to change what is in the way.
    Stuck,
    /// It was told to stop.
    Stopping,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Leading => "leading",
            Self::Suspended => "suspended",
            Self::BetweenTerms => "between terms",
            Self::Stuck => "stuck",
            Self::Stopping => "stopping",
        }
    }
}

/// How well it does its duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// Nothing is wrong that it knows of.
    Ok,
    /// It does its duty, but for a part.
    Degraded,
    /// It does nothing that it is for.
    Down,
}

impl Level {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

/// What is known; times are since the process began.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) role: Role,
    /// Since when.
    pub(super) since: Duration,
    beat: Duration,
    /// The pump goes round: it is the one to beat.
    pumping: bool,
    /// Whether this process has the lock.
    pub(super) leads: bool,
    /// The number of the last term that led.
    pub(super) term: Option<i64>,
    /// What the last term ended with, and when.
    pub(super) error: Option<(String, Duration)>,
    /// When the next term begins.
    pub(super) next: Option<Duration>,
    /// What it waits for before it can stream.
    pub(super) waits: Option<String>,
    /// What the pump saw.
    pub(super) survey: Option<Arc<Survey>>,
    /// The slot as the server showed it, and when.
    pub(super) slot: Option<(SlotWal, Duration)>,
}

impl Default for State {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self {
            role: Role::Starting,
            since: zero,
            beat: zero,
            pumping: false,
            leads: false,
            term: None,
            error: None,
            next: None,
            waits: None,
            survey: None,
            slot: None,
        }
    }
}

impl State {
    fn enter(&mut self, role: Role, now: Duration) {
        // Whatever comes while it stops, it stops.
        if self.role != role && self.role != Role::Stopping {
            (self.role, self.since) = (role, now);
        }
    }

    /// The loop went round: the pump's while it pumps, else the supervisor's.
    pub(super) fn beats(&mut self, pump: bool, now: Duration) {
        if pump == self.pumping {
            self.beat = self.beat.max(now);
        }
    }

    pub(super) fn pumps(&mut self, pumping: bool, now: Duration) {
        (self.pumping, self.beat) = (pumping, self.beat.max(now));
    }

    pub(super) fn term_begins(&mut self, now: Duration) {
        self.next = None;
        let led = self.term.is_some() || self.error.is_some();
        self.enter(if led { Role::BetweenTerms } else { Role::Starting }, now);
    }

    pub(super) fn stands_by(&mut self, now: Duration) {
        self.slot = None;
        self.enter(Role::Standby, now);
    }

    pub(super) fn is_suspended(&mut self, now: Duration) {
        self.enter(Role::Suspended, now);
    }

    pub(super) fn has_lock(&mut self, now: Duration) {
        self.leads = true;
        self.enter(Role::Leading, now);
    }

    /// A term ended: with an error, and the next one begins after a pause; or in good order.
    pub(super) fn term_ended(&mut self, error: Option<(String, Duration)>, now: Duration) {
        (self.leads, self.survey, self.waits) = (false, None, None);
        self.pumps(false, now);
        self.enter(Role::BetweenTerms, now);
        if let Some((error, pause)) = error {
            (self.error, self.next) = (Some((one_line(&error), now)), Some(now + pause));
        }
    }

    /// The term that ended came to what no other will get past.
    pub(super) fn is_stuck(&mut self, now: Duration) {
        self.enter(Role::Stuck, now);
    }

    pub(super) fn stops(&mut self, now: Duration) {
        self.enter(Role::Stopping, now);
    }

    /// Whether the process' own loop goes round.
    ///
    /// # Errors
    /// A line: since when not.
    pub(super) fn live(&self, now: Duration) -> Result<(), String> {
        let age = now.saturating_sub(self.beat);
        if age <= BEAT_LIMIT {
            return Ok(());
        }
        let whose = if self.pumping { "stream" } else { "supervisor" };
        Err(format!(
            "the loop of the {whose} has not come round for {} s (the limit is {} s)",
            age.as_secs(),
            BEAT_LIMIT.as_secs()
        ))
    }

    /// What it does for its duty.
    ///
    /// # Errors
    /// A line: why it does nothing.
    pub(super) fn ready(&self, now: Duration) -> Result<&'static str, String> {
        self.live(now)?;
        match self.role {
            Role::Leading if self.pumping => Ok("leads and streams"),
            Role::Leading => Err(match &self.waits {
                Some(waits) => format!("leads, and does not stream yet: {waits}"),
                None => "leads, and does not stream yet".to_owned(),
            }),
            Role::Standby => Ok("stands by: another host leads"),
            Role::Suspended => Ok("suspended: nobody streams until `anabranch resume`"),
            Role::Stopping => Err("stopping".to_owned()),
            Role::Starting | Role::BetweenTerms | Role::Stuck => Err(self.why_idle(now)),
        }
    }

    fn why_idle(&self, now: Duration) -> String {
        let next = match self.next {
            Some(next) => format!("next attempt in {:.1} s", next.saturating_sub(now).as_secs_f64()),
            None => "a new term begins".to_owned(),
        };
        match &self.error {
            Some((error, _)) => format!("the term ended: {error}; {next}"),
            None if self.role == Role::Starting => "starting".to_owned(),
            None => next,
        }
    }

    /// How well it does its duty, and each reason why not better.
    pub(super) fn level(&self, now: Duration) -> (Level, Vec<String>) {
        if let Err(reason) = self.ready(now) {
            return (Level::Down, vec![reason]);
        }
        let mut reasons = Vec::new();
        if self.role == Role::Suspended {
            reasons.push("the installation is suspended".to_owned());
        }
        if let Some(survey) = &self.survey {
            let bad = survey.mappings.iter().filter(|mapping| mapping.state != MappingState::Running);
            reasons
                .extend(bad.map(|mapping| format!("mapping {} is {}", mapping.name, mapping.state.as_str())));
            let kept = survey.mappings.iter().filter(|mapping| mapping.quarantined > 0);
            reasons.extend(kept.map(|mapping| {
                let (rows, name) = (mapping.quarantined, &mapping.name);
                format!("mapping {name} has {rows} row{} in quarantine", if rows == 1 { "" } else { "s" })
            }));
            if survey.silence > survey.silence_limit / 2 {
                reasons.push(format!(
                    "Postgres has sent nothing for {} s, although it was asked for a sign of life",
                    survey.silence.as_secs()
                ));
            }
            let failing = survey.runs.iter().filter(|run| run.attempts > 0);
            reasons.extend(failing.map(|run| format!("a backfill of {} fails", run.entity)));
        }
        if let Some((slot, _)) = &self.slot
            && slot.is_lost()
        {
            reasons.push("the slot is lost: the server has given it up".to_owned());
        } else if let Some((slot, _)) = &self.slot
            && slot.past_half()
        {
            reasons.push(format!(
                "the server keeps {} bytes of WAL for the slot ({})",
                slot.retained,
                slot.status_word()
            ));
        }
        (if reasons.is_empty() { Level::Ok } else { Level::Degraded }, reasons)
    }

    /// WAL that is written and not confirmed, as far as the server has told.
    pub(super) fn lag_bytes(&self) -> Option<u64> {
        let survey = self.survey.as_ref()?;
        let sampled = self.slot.as_ref().map(|(slot, _)| slot.end).unwrap_or_default();
        Some(sampled.max(survey.wal_end).0.saturating_sub(survey.confirmed.0))
    }
}

/// Text for a line of its own.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The state, shared by those who say and those who ask.
#[derive(Debug)]
pub(super) struct Health {
    began: Instant,
    state: Mutex<State>,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something.
    pub(super) fn note(&self, change: impl FnOnce(&mut State, Duration)) {
        change(&mut self.lock(), self.began.elapsed());
    }

    /// What is known now, and the time.
    pub(super) fn look(&self) -> (State, Duration) {
        let state = self.lock().clone();
        (state, self.began.elapsed())
    }

    /// The pump goes round from now on, until what is returned is dropped.
    pub(super) fn pumping(self: &Arc<Self>) -> Pumping {
        self.note(|state, now| state.pumps(true, now));
        Pumping(Arc::clone(self))
    }
}

/// See [`Health::pumping`].
#[derive(Debug)]
pub(super) struct Pumping(Arc<Health>);

impl Drop for Pumping {
    fn drop(&mut self) {
        self.0.note(|state, now| state.pumps(false, now));
    }
}

/// Beats for everything but the pump, and notes when the process is told to stop. To be awaited in the task of what
/// it beats for; never resolves.
pub(super) async fn keep(
    health: &Health,
    shutdown: &tokio_util::sync::CancellationToken,
) -> std::convert::Infallible {
    let mut ticker = tokio::time::interval(Duration::from_secs(1));
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticker.tick() => health.note(|state, now| state.beats(false, now)),
            () = shutdown.cancelled() => break,
        }
    }
    health.note(State::stops);
    loop {
        ticker.tick().await;
        health.note(|state, now| state.beats(false, now));
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
