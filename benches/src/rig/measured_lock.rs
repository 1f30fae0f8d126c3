//! The seam between scenarios and locks: ours, those of peers, and the bare hand-over.

use std::future::Future;

use lock_testkit::history::ReleaseOutcome;
use polylock::{Guard, Mutex};

use crate::data::events::{GrantInfo, outcome};
use crate::data::failure::Outcome;

/// A lock that a scenario acquires and releases over and over.
pub(crate) trait MeasuredLock: Sync {
    /// The guard.
    type Held: Send;

    /// Waits for the lock.
    fn acquire(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Releases it.
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
