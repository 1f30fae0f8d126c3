//! Who fights for a lock: ours, or that of another crate.

use std::future::Future;

use lock_testkit::history::ReleaseOutcome;
use polylock::{Guard, Mutex};

use crate::diary::{Claim, outcome};
use crate::failure::Outcome;

/// A client that takes one lock and gives it back, over and over.
pub(crate) trait Contender: Sync {
    /// What it has in hand while it holds the lock.
    type Held: Send;

    /// Waits for the lock.
    fn acquire(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Gives it back.
    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome<ReleaseOutcome>> + Send;

    /// What it was told with the lock: nothing, where a crate has neither tokens nor deadlines.
    fn claim(_held: &Self::Held) -> Claim {
        Claim::default()
    }
}

impl Contender for Mutex {
    type Held = Guard;

    async fn acquire(&self) -> Outcome<Guard> {
        Ok(Self::acquire(self).await?)
    }

    async fn release(&self, held: Guard) -> Outcome<ReleaseOutcome> {
        Ok(outcome(held.release().await?))
    }

    fn claim(held: &Guard) -> Claim {
        Claim::of(held)
    }
}
