//! A slot that another client has, and a slot that has to be given up: what a term does before it reads one.
//!
//! Guarantees that a leader waits for the slot in growing pauses, says whom it waits for, and goes on by itself once the
//! slot is free. Must never end a session of somebody else.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    pipeline::RetryPolicy,
    postgres::{Client, Holder, SlotState, find_slot, slot_user},
};

use super::{error::TermError, term::Context};

/// Between two looks at a slot that somebody has.
const PAUSE: RetryPolicy = RetryPolicy::doubling(Duration::from_millis(500), Duration::from_secs(5));
/// Between two words about a wait that goes on.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The slot, once nobody streams from it; the inner is none where there is no slot. None when it was told to stop.
///
/// # Errors
/// What the server reports.
pub(super) async fn free(
    context: &Context,
    control: &Client,
    shutdown: &CancellationToken,
) -> Result<Option<Option<SlotState>>, TermError> {
    let name = context.config.source.slot.as_str();
    let mut tries = 0;
    let mut told: Option<Instant> = None;
    loop {
        let slot = find_slot(control, name).await?;
        if slot.as_ref().is_none_or(|slot| slot.active_pid.is_none()) {
            if told.is_some() {
                info!(slot = name, "the slot is free now");
            }
            context.health.note(|state, _| state.waits = None);
            return Ok(Some(slot));
        }
        if let Some(holder) = slot_user(control, name).await? {
            let reason = words(name, &holder);
            if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
                told = Some(Instant::now());
                warn!(slot = name, pid = holder.pid, "{reason}");
            }
            context.health.note(|state, _| state.waits = Some(reason));
        }
        tries += 1;
        // Half of it for certain, so that it is never asked for at full speed.
        let random = 0.5 + rand::random::<f64>() / 2.0;
        let pause = tokio::time::sleep(PAUSE.delay(tries, random, None));
        if shutdown.run_until_cancelled(pause).await.is_none() {
            return Ok(None);
        }
    }
}

fn words(name: &str, holder: &Holder) -> String {
    format!(
        "waiting for the slot {name}, which another client has: {holder}; stop that client, or end it: select \
         pg_terminate_backend({})",
        holder.pid
    )
}

/// A slot that the stream has shown to be of no use, though the catalogue does not: told to the next term.
#[derive(Debug, Default)]
pub(super) struct GivenUp(Mutex<Option<String>>);

impl GivenUp {
    pub(super) fn because(&self, reason: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
