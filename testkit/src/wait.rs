//! Waiting for conditions: poll with a growing pause until it holds or the deadline passes. A condition that
//! fails with an error is asked again, and the last error is part of the message when time runs out.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A loop that asks until it gets a yes: `while pace.again(ask().await).await? {}`. For futures that have to be
/// `Send`, where the closure of [`wait_until`] is in the way.
#[derive(Debug)]
pub struct Pace<'a> {
    description: &'a str,
    started: Instant,
    deadline: Duration,
    pause: Duration,
}

impl<'a> Pace<'a> {
    /// Starts the clock. `description` completes "waited 5s for …".
    pub fn new(description: &'a str, deadline: Duration) -> Self {
        Self { description, started: Instant::now(), deadline, pause: FIRST_PAUSE }
    }

    /// Whether to ask again, after a pause; an error when `answer` is no yes and the deadline has passed.
    pub async fn again(&mut self, answer: Result<bool>) -> Result<bool> {
        let pause = self.judge(answer)?;
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        Ok(pause.is_some())
    }

    /// [`Pace::again`] for code without a runtime.
    pub fn again_blocking(&mut self, answer: Result<bool>) -> Result<bool> {
        let pause = self.judge(answer)?;
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        Ok(pause.is_some())
    }

    /// `None`: it holds. `Some(pause)`: ask again after it.
    fn judge(&mut self, answer: Result<bool>) -> Result<Option<Duration>> {
        if matches!(answer, Ok(true)) {
            return Ok(None);
        }
        if self.started.elapsed() >= self.deadline {
            match answer {
                Err(error) => {
                    bail!("waited {:?} for {}; last error: {error:#}", self.deadline, self.description)
                }
                Ok(_) => bail!("waited {:?} for {}", self.deadline, self.description),
            }
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Ok(Some(pause))
    }
}

/// Waits until `condition` answers true; an error when `deadline` passes first, which names `description`
/// and the condition's last error.
pub async fn wait_until<F>(description: &str, deadline: Duration, mut condition: F) -> Result<()>
where
    F: AsyncFnMut() -> Result<bool>,
{
    let mut pace = Pace::new(description, deadline);
    while pace.again(condition().await).await? {}
    Ok(())
}

/// [`wait_until`] for code without a runtime.
pub fn wait_for<F>(description: &str, deadline: Duration, mut condition: F) -> Result<()>
where
    F: FnMut() -> Result<bool>,
{
    let mut pace = Pace::new(description, deadline);
    while pace.again_blocking(condition())? {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_it_waited_for_and_the_last_error() {
        let error = wait_for("the moon", Duration::from_millis(5), || bail!("cloudy")).unwrap_err();
        assert_eq!(error.to_string(), "waited 5ms for the moon; last error: cloudy");
        let mut asked = 0;
        wait_for("the third answer", Duration::from_secs(5), || {
            asked += 1;
            Ok(asked == 3)
        })
        .unwrap();
        assert_eq!(asked, 3);
    }
}
