//! Waiting for conditions: poll with a growing pause until it holds or the deadline passes. A condition that
//! fails with an error is asked again, and the last error is part of the message when time runs out.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

struct Pace {
    started: Instant,
    deadline: Duration,
    pause: Duration,
    last_error: Option<anyhow::Error>,
}

impl Pace {
    fn new(deadline: Duration) -> Self {
        Self { started: Instant::now(), deadline, pause: FIRST_PAUSE, last_error: None }
    }

    /// `None`: it holds. `Some(pause)`: ask again after it.
    fn judge(&mut self, description: &str, answer: Result<bool>) -> Result<Option<Duration>> {
        match answer {
            Ok(true) => return Ok(None),
            Ok(false) => self.last_error = None,
            Err(error) => self.last_error = Some(error),
        }
        if self.started.elapsed() >= self.deadline {
            match &self.last_error {
                Some(error) => bail!("waited {:?} for {description}; last error: {error:#}", self.deadline),
                None => bail!("waited {:?} for {description}", self.deadline),
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
    let mut pace = Pace::new(deadline);
    loop {
        let answer = condition().await;
        match pace.judge(description, answer)? {
            None => return Ok(()),
            Some(pause) => tokio::time::sleep(pause).await,
        }
    }
}

/// [`wait_until`] for code without a runtime.
pub fn wait_for<F>(description: &str, deadline: Duration, mut condition: F) -> Result<()>
where
    F: FnMut() -> Result<bool>,
{
    let mut pace = Pace::new(deadline);
    loop {
        match pace.judge(description, condition())? {
            None => return Ok(()),
            Some(pause) => std::thread::sleep(pause),
        }
    }
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
