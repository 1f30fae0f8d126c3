//! Turns to use a connection of the pool.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Between two attempts to open one more session at a server that had no room for it.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// As many turns as the pool has connections; fewer while the server has no room for so many sessions: a full server is a full pool.
#[derive(Debug)]
pub(crate) struct Turns {
    free: Arc<Semaphore>,
    missing: Mutex<Missing>,
}

#[derive(Debug)]
struct Missing {
    turns: usize,
    /// When the next one is tried.
    next: Instant,
}

impl Turns {
    pub(crate) fn new(turns: usize) -> Self {
        let missing = Mutex::new(Missing { turns: 0, next: Instant::now() });
        Self { free: Arc::new(Semaphore::new(turns)), missing }
    }

    /// The next turn, in the order of the callers. `None` once they are closed.
    pub(crate) async fn next(&self) -> Option<OwnedSemaphorePermit> {
        self.grow();
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    /// A turn that nobody else waits for.
    pub(crate) fn at_once(&self) -> Option<OwnedSemaphorePermit> {
        self.grow();
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// The server has no room for a session in this turn. Another turn has one that is open.
    pub(crate) fn has_no_room(&self, turn: OwnedSemaphorePermit) {
        turn.forget();
        let mut missing = self.missing();
        missing.turns += 1;
        missing.next = Instant::now() + TRY_EVERY;
    }

    /// A session was opened: there may be room for another one.
    pub(crate) fn has_room(&self) {
        self.missing().next = Instant::now();
    }

    pub(crate) fn close(&self) {
        self.free.close();
    }

    fn grow(&self) {
        let mut missing = self.missing();
        let now = Instant::now();
        if missing.turns > 0 && missing.next <= now {
            missing.turns -= 1;
            missing.next = now + TRY_EVERY;
            self.free.add_permits(1);
        }
    }

    fn missing(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_without_room_comes_back_later() {
        let turns = Turns::new(2);
        let (open, failed) = (turns.next().await.unwrap(), turns.next().await.unwrap());
        turns.has_no_room(failed);
        drop(open);
        let open = turns.at_once().unwrap();
        assert!(turns.at_once().is_none());
        advance(TRY_EVERY).await;
        turns.has_no_room(turns.at_once().unwrap());
        assert!(turns.at_once().is_none());
        // A session has ended, and another one was opened.
        turns.has_room();
        assert!(turns.at_once().is_some());
        drop(open);
        turns.close();
        assert!(turns.next().await.is_none());
    }
}
