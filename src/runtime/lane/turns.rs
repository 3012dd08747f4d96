//! Whose turn it is, where a transform keeps something from one call to the next.
//!
//! Guarantees that such a transform is called for a piece of work only once all pieces before it are through, however
//! many of them are transformed at once by another revision, and not while one of them is held, because it may be
//! transformed again. Others never wait here.

use std::sync::Arc;

use tokio::sync::watch;

/// The turns of one lane.
#[derive(Debug)]
pub(super) struct Turns {
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Pieces of work that are through.
    through: u64,
    /// Of these, those that may be transformed again.
    held: usize,
}

impl State {
    fn is(self, number: u64) -> bool {
        self.through >= number && self.held == 0
    }
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: watch::Sender::new(State::default()) })
    }

    /// Another piece of work is through.
    pub(super) fn next(&self) {
        self.state.send_modify(|state| state.through += 1);
    }

    /// The piece of work that is through next may be transformed again until this is dropped.
    pub(super) fn hold(self: &Arc<Self>) -> Hold {
        self.state.send_modify(|state| state.held += 1);
        Hold { turns: Arc::clone(self) }
    }

    /// Whether it is the turn of the piece with this number; it stays so until that is through.
    pub(super) fn is(&self, number: u64) -> bool {
        self.state.borrow().is(number)
    }

    /// Waits for the turn of the piece with this number, counted from 0.
    pub(super) async fn wait(&self, number: u64) {
        // The sender is ours: it is not gone.
        let _ = self.state.subscribe().wait_for(|state| state.is(number)).await;
    }
}

/// See [`Turns::hold`].
#[derive(Debug)]
pub(super) struct Hold {
    turns: Arc<Turns>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.turns.state.send_modify(|state| state.held = state.held.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_turn_comes_when_all_before_are_through_and_none_is_held() {
        let turns = Turns::new();
        assert!(turns.is(0) && !turns.is(1));
        // Three are under way; the last two have to be called in order.
        let (mut second, mut third) = (Box::pin(turns.wait(1)), Box::pin(turns.wait(2)));
        assert!(second.as_mut().now_or_never().is_none());
        let hold = turns.hold();
        turns.next();
        assert!(!turns.is(1), "the first may be transformed again");
        assert!(second.as_mut().now_or_never().is_none());
        drop(hold);
        assert!(turns.is(1) && !turns.is(2));
        assert!(second.as_mut().now_or_never().is_some());
        assert!(third.as_mut().now_or_never().is_none());
        turns.next();
        assert!(third.as_mut().now_or_never().is_some());
    }
}
