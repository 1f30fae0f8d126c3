//! The loop of a client that contends for a lock.

use std::time::Duration;

use lock_testkit::now_ns;
use tokio::time::{sleep, timeout};

pub(crate) use super::log::GRACE;
use super::log::patiently;
use crate::data::{EventLog, Failure, Outcome, TimedHold, Window};
use crate::rig::measured_lock::MeasuredLock;

/// Acquires, holds and releases the lock until the window is over. Fails when the lock is not granted for long after it.
pub(crate) async fn contend<L: MeasuredLock>(
    lock: &L,
    log: &mut EventLog,
    window: Window,
    hold: Duration,
) -> Outcome<()> {
    while !window.left().is_zero() {
        let patience = window.left() + PATIENCE;
        let called_ns = now_ns();
        log.acquire_called_at(called_ns);
        let Ok(held) = timeout(patience, patiently(window.left() + GRACE, lock.acquire())).await else {
            return Err(Failure::new(format!("the lock was not granted for {patience:?}: it is stuck")));
        };
        let (held, acquired_ns) = (held?, now_ns());
        let grant = L::grant_info(&held);
        if !hold.is_zero() {
            sleep(hold).await;
        }
        let release_called_ns = now_ns();
        let released = lock.release(held).await?;
        // Recorded after the release: every microsecond before it would delay the hand-over.
        log.held(&TimedHold {
            called_ns,
            acquired_ns,
            grant,
            release_called_ns,
            released_ns: now_ns(),
            released,
        });
    }
    Ok(())
}

/// Longer than the parent waits: what it says is that nothing was reported.
const PATIENCE: Duration = Duration::from_secs(20);
