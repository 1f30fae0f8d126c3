//! The seam between scenarios and locks: ours, those of peers, and the bare hand-over.

use std::future::Future;

use lock_testkit::history::ReleaseOutcome;
use lock_testkit::now_ns;
use polylock::{ErrorKind, Guard, Mutex};

use crate::data::events::outcome;
use crate::data::{EventLog, GrantInfo, Outcome, TimedHold};

/// A lock that a scenario acquires and releases over and over.
pub(crate) trait MeasuredLock: Sync {
    type Held: Send;

    fn acquire(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome<ReleaseOutcome>> + Send;

    /// The token and deadline of the grant, where the lock has them.
    fn grant_info(_held: &Self::Held) -> GrantInfo {
        GrantInfo::default()
    }
}

impl MeasuredLock for Mutex {
    type Held = Guard;

    async fn acquire(&self) -> Outcome<Guard> {
        Ok(Self::acquire(self).await?)
    }

    async fn release(&self, held: Guard) -> Outcome<ReleaseOutcome> {
        Ok(outcome(held.release().await?))
    }

    fn grant_info(held: &Guard) -> GrantInfo {
        GrantInfo::of(held)
    }
}

pub(crate) async fn hold_once<L: MeasuredLock>(lock: &L) -> Outcome<TimedHold> {
    let called_ns = now_ns();
    let held = lock.acquire().await?;
    let (acquired_ns, grant) = (now_ns(), L::grant_info(&held));
    let release_called_ns = now_ns();
    let released = lock.release(held).await?;
    let released_ns = now_ns();
    Ok(TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released })
}

/// Has a rival try to acquire a lock that another client holds.
pub(crate) async fn challenge(rival: &Mutex, log: &mut EventLog) -> Outcome<()> {
    log.acquire_called();
    match rival.try_acquire().await {
        Ok(None) => log.refused(),
        // A client of the old store alone, in a migration.
        Err(error) if error.kind() == ErrorKind::Moved => log.refused(),
        Err(error) => return Err(error.into()),
        Ok(Some(stolen)) => {
            log.acquired(&stolen);
            log.release_called();
            log.released(stolen.release().await?);
        }
    }
    Ok(())
}
