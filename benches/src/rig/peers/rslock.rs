//! rslock: Redlock, also with one server.

use std::time::Duration;

use lock_testkit::history::ReleaseOutcome;
use rslock::{LockGuard, LockManager};

use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

#[derive(Debug)]
pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
}

impl Rslock {
    /// Connects on first use.
    pub(crate) fn new(urls: Vec<String>, key: &str) -> Self {
        Self { manager: LockManager::new(urls), key: key.to_owned() }
    }

    /// The lock of another key, over the same connections.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { manager: self.manager.clone(), key: key.to_owned() }
    }
}

impl MeasuredLock for Rslock {
    type Held = LockGuard;

    async fn acquire(&self) -> Outcome<LockGuard> {
        // Despite its default of three attempts it waits for the lock.
        Ok(self.manager.acquire(self.key.as_str(), TTL).await?)
    }

    async fn release(&self, held: LockGuard) -> Outcome<ReleaseOutcome> {
        // Its release returns no outcome.
        held.release().await;
        Ok(ReleaseOutcome::Unknown)
    }
}

/// Far longer than any hold: rslock has no default and does not renew.
const TTL: Duration = Duration::from_secs(10);
