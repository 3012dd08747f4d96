//! Waiting for backfills: a loop over [`progress`], woken by notifications and by time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{postgres, postgres::Purpose, state::CHANNEL};

use super::{Control, ControlError, Goal, Standing, Verdict, picture::is_older, progress::progress};

/// How often is looked, where nobody tells.
const POLL: Duration = Duration::from_secs(1);

/// How long the first look may take at the least.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// How the waiting ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// All that was meant is built, or cancelled.
    Complete(Standing),
    /// Something fails, with its last error.
    Failed(Standing, String),
    /// The time is up; nothing is known where it was too short for one look.
    TimedOut(Option<Standing>),
}

impl Control {
    /// Waits until a goal is reached, for so long at the most, and tells how far it is: at every look, and at
    /// once at the first. Changes nothing, so it may be dropped and begun again. The server may restart
    /// meanwhile, and the state schema be made or upgraded.
    ///
    /// # Errors
    /// A target cannot be meant, or the server refuses.
    pub async fn wait(
        &mut self,
        goal: &Goal,
        limit: Option<Duration>,
        mut tell: impl FnMut(&Standing),
    ) -> Result<Waited, ControlError> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        // So that a short limit, too, gets one answer.
        let first = Instant::now() + FIRST_LOOK;
        let mut listening = false;
        let mut last = None;
        loop {
            let look = self.look(goal, &mut listening);
            let looked = match until {
                Some(until) if last.is_none() => timeout_at(until.max(first), look).await,
                Some(until) => timeout_at(until, look).await,
                None => Ok(look.await),
            };
            let Ok(looked) = looked else { return Ok(Waited::TimedOut(last)) };
            let standing = looked?;
            tell(&standing);
            match &standing.verdict {
                Verdict::Complete => return Ok(Waited::Complete(standing)),
                Verdict::Failed(error) => {
                    let error = error.clone();
                    return Ok(Waited::Failed(standing, error));
                }
                Verdict::Waiting => last = Some(standing),
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(Waited::TimedOut(last));
            }
            self.next_look(until, listening).await;
        }
    }

    /// How far it is. A connection that is lost is made again; that may take a while, which is said.
    async fn look(&mut self, goal: &Goal, listening: &mut bool) -> Result<Standing, ControlError> {
        if self.client.is_closed() {
            *listening = false;
            match self.connect.connect(Purpose::State).await {
                Ok(client) => self.client = client,
                Err(error) if error.is_retryable() => return Ok(Standing::waiting(error.to_string())),
                Err(error) => return Err(error.into()),
            }
        }
        let looked = match self.listen(listening).await {
            Ok(()) => self.status().await,
            Err(error) => Err(error),
        };
        match looked {
            Ok(picture) => progress(picture.as_ref(), goal),
            // The hosts of the release before still run.
            Err(error) if is_older(&error) || error.is_passing() => Ok(Standing::waiting(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Listens where it can: a standby cannot.
    async fn listen(&mut self, listening: &mut bool) -> Result<(), ControlError> {
        if *listening {
            return Ok(());
        }
        match self.client.batch_execute(&format!("listen {CHANNEL}")).await {
            Ok(()) => *listening = true,
            Err(error) if self.client.is_closed() => return Err(postgres::Error::from(error).into()),
            Err(_) => {}
        }
        Ok(())
    }

    /// Until somebody tells, or it is time to look again.
    async fn next_look(&mut self, until: Option<Instant>, listening: bool) {
        let pause = until.map_or(POLL, |until| POLL.min(until.saturating_duration_since(Instant::now())));
        if listening && timeout(pause, self.client.notification()).await.is_ok_and(|told| told.is_some()) {
            return;
        }
        if !listening || self.client.is_closed() {
            sleep(pause).await;
        }
    }
}
