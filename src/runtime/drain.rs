//! How a pump ends: what is in hand is delivered and confirmed, within a limit, and its lanes end.

use std::time::{Duration, Instant};

use tracing::warn;

use super::{
    error::TermError,
    intake::Connection,
    lane::LaneHandle,
    metrics::FlushReason,
    pump::{Pump, TICK},
};

/// How long a drain waits for what was delivered to become visible; what does not is streamed again.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

impl Pump {
    /// Delivers and confirms what is in hand; gives up at the limit.
    pub(super) async fn drain(&mut self, connection: &mut Connection) -> Result<(), TermError> {
        if !connection.assembler.in_transaction() {
            self.flush(connection, FlushReason::Drain);
        }
        let began = Instant::now();
        let limit = tokio::time::sleep(self.settings.drain_limit);
        tokio::pin!(limit);
        let mut ticker = tokio::time::interval(TICK);
        loop {
            let waiting =
                self.lanes.iter().any(|(&id, lane)| lane.works() && self.ledger.outstanding(id) > 0);
            let settled = self.machine.limbo().is_empty() || began.elapsed() > SETTLE_LIMIT;
            if !waiting && settled && self.confirmable() > self.saving.noted {
                self.save_positions();
            }
            self.confirm(connection);
            if !waiting && settled && self.secured >= self.saving.noted {
                break;
            }
            tokio::select! {
                Some(event) = self.lane_events.recv() => self.on_lane_event(event),
                Some(event) = self.scribe.events.recv() => self.on_scribe_event(event)?,
                _ = ticker.tick() => {
                    self.ask_probe();
                    self.observe(connection);
                }
                () = &mut limit => {
                    warn!("the drain took too long: what was not accepted will be delivered again");
                    break;
                }
            }
        }
        self.confirm(connection);
        Ok(())
    }

    /// Ends every lane.
    pub(super) async fn join_lanes(&mut self) {
        for (_, lane) in std::mem::take(&mut self.lanes) {
            if let Some(handle) = lane.handle {
                LaneHandle::join(handle).await;
            }
        }
    }
}
