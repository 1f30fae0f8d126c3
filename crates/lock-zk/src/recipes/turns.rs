//! How many acquisitions send the requests of their beginning at a time, and how many nodes are deleted.
//!
//! Heartbeats go over the same connection, and wait behind what was sent before: a crowd of acquisitions or of releases would cost the
//! session, and with it the locks that it has. What has no turn yet has sent nothing, and leaves nothing when it is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The turns of one session.
#[derive(Debug)]
pub(crate) struct Turns {
    room: Arc<Semaphore>,
    /// How many were waited for and taken.
    taken: AtomicU64,
}

/// Held until the answers are there.
#[derive(Debug)]
pub(crate) struct Turn(#[allow(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

impl Turns {
    /// Waits for a turn, in the order of the calls; no longer once none was taken for this time. Those that have one may be paused,
    /// as in a `select!` loop.
    pub(crate) async fn next(&self, patience: Duration) -> Turn {
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(turn) => Turn(Some(turn)),
            // Boxed, to keep the future of an acquisition small.
            Err(_) => Turn(Box::pin(self.wait(patience)).await),
        }
    }

    async fn wait(&self, patience: Duration) -> Option<OwnedSemaphorePermit> {
        let mut turn = pin!(Arc::clone(&self.room).acquire_owned());
        loop {
            let taken = self.taken.load(Ordering::Relaxed);
            if let Ok(turn) = timeout(patience, turn.as_mut()).await {
                self.taken.fetch_add(1, Ordering::Relaxed);
                return turn.ok();
            }
            if self.taken.load(Ordering::Relaxed) == taken {
                return None;
            }
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(AT_ONCE)), taken: AtomicU64::new(0) }
    }
}

/// Few enough that a slow server answers them in a fraction of a session timeout.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn turns_are_waited_for_while_others_are_taken_and_not_for_those_that_are_paused() {
        let turns = Turns::default();
        let mut held: Vec<_> =
            (0..AT_ONCE).map(|_| turns.next(PATIENCE).now_or_never().expect("there is room")).collect();
        let mut waits = pin!(turns.next(PATIENCE));
        assert!(waits.as_mut().now_or_never().is_none());
        held.pop();
        let turn = waits.now_or_never().expect("a turn is free");
        assert!(turn.0.is_some());
        held.push(turn);
        // Each of them takes longer than the patience of all.
        let began = Instant::now();
        let mut crowd = pin!(join_all((0..10).map(async |_| {
            let turn = turns.next(PATIENCE).await;
            tokio::time::sleep(PATIENCE / 2).await;
            turn.0.is_some()
        })));
        assert!(crowd.as_mut().now_or_never().is_none());
        held.pop();
        assert_eq!(crowd.await, [true; 10]);
        assert!(began.elapsed() >= 5 * PATIENCE);
        while held.len() < AT_ONCE {
            held.push(turns.next(PATIENCE).now_or_never().expect("they are given back"));
        }
        assert!(turns.next(PATIENCE).await.0.is_none(), "it goes on without");
    }
}
