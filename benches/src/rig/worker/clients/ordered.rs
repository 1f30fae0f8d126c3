//! The clients of one fault: one holds the lock for long, the others want it all the time. Every holder writes to the resource.

use std::time::Duration;

use lock_testkit::history::{EventKind, Mode};
use polylock::{Locks, Mutex};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::Client;
use crate::data::{Defect, Outcome};
use crate::rig::worker::log::{GRACE, patiently};

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientRole {
    /// Holds it until the order to release it, or until it is lost. Then it is a waiter. The first one.
    Holder,
    /// Waits for it, holds it for a moment, and waits for it again.
    Waiter,
    /// The same, but tries again and again instead of waiting.
    Poller,
}

pub(super) struct OrderedClient {
    client: Client,
    role: ClientRole,
    mutex: Mutex,
    locks: Locks,
}

impl OrderedClient {
    pub(super) fn new(client: Client, role: ClientRole, locks: &Locks, lock: &str) -> Self {
        Self { client, role, mutex: locks.mutex(lock), locks: locks.clone() }
    }

    pub(super) async fn run(self) -> Outcome<()> {
        let signals = &self.client.signals;
        let mut first = self.role == ClientRole::Holder;
        if first {
            signals.hold.cancelled().await;
        } else {
            signals.contend.cancelled().await;
        }
        while !signals.end.is_cancelled() {
            let was_served = self.once(first).await?;
            if was_served {
                // A poller would get nothing while two waiters queue again and again.
                break;
            }
            first &= !signals.release.is_cancelled();
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Acquires the lock, holds and releases it. `long`: until the order to release it. Whether it was granted after that
    /// order.
    async fn once(&self, long: bool) -> Outcome<bool> {
        let Self { client, role, mutex, .. } = self;
        let signals = &client.signals;
        client.note(EventKind::AcquireCalled)?;
        client.does("asks");
        let asking = async {
            match role {
                ClientRole::Poller => mutex.try_acquire().await,
                ClientRole::Holder | ClientRole::Waiter => patiently(GRACE, mutex.acquire()).await.map(Some),
            }
        };
        let asked = tokio::select! {
            biased;
            () = signals.end.cancelled() => {
                client.note(EventKind::AcquireUnknown)?;
                return Ok(false);
            }
            asked = asking => asked,
        };
        let Some(guard) = client.asked(asked).await? else { return Ok(false) };
        let was_served = signals.release.is_cancelled();
        // Also when its task is aborted.
        let stopped = StopNote(client);
        client.does("holds");
        let end = async {
            match (long, client.broken) {
                (true, _) => signals.release.cancelled().await,
                (false, Some(Defect::NeverReleases)) => signals.end.cancelled().await,
                // A late release of another client has to come meanwhile.
                (false, Some(Defect::NaiveRelease)) => sleep(LONG_HOLD).await,
                _ => sleep(SHORT_HOLD).await,
            }
        };
        client.hold(&guard, Mode::Exclusive, (true, false), end).await?;
        drop(stopped);
        if client.broken == Some(Defect::NaiveRelease) {
            // The defect: it does not matter whether it works.
            let _ = self.locks.break_lock(&client.lock).await;
        }
        client.does("releases");
        tokio::select! {
            released = guard.release() => client.released(released)?,
            () = signals.end.cancelled() => {}
        }
        Ok(was_served)
    }
}

/// Notes on drop that the client stops to use the lock.
struct StopNote<'a>(&'a Client);

impl Drop for StopNote<'_> {
    fn drop(&mut self) {
        // Without a parent there is no history.
        let _ = self.0.note(EventKind::ReleaseCalled);
    }
}

/// Long enough that a lock which is taken away is granted again meanwhile.
const SHORT_HOLD: Duration = Duration::from_millis(150);
const LONG_HOLD: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);
