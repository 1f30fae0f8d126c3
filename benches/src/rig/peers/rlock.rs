//! rlock: one server, renewed, no timeout by default.

use lock_testkit::history::ReleaseOutcome;
use rlock::async_lock::{RLock, RLockGuard};

use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

#[derive(Debug)]
pub(crate) struct Rlock {
    manager: RLock,
    key: String,
}

impl Rlock {
    pub(crate) async fn connect(url: &str, key: &str) -> Outcome<Self> {
        Ok(Self { manager: RLock::new(url).await?, key: key.to_owned() })
    }

    /// The lock of another key, over the same connection.
    pub(crate) fn with_key(&self, key: &str) -> Self {
        Self { manager: self.manager.clone(), key: key.to_owned() }
    }
}

impl MeasuredLock for Rlock {
    type Held = RLockGuard;

    async fn acquire(&self) -> Outcome<RLockGuard> {
        Ok(self.manager.acquire_mutex(&self.key).await?)
    }

    async fn release(&self, mut held: RLockGuard) -> Outcome<ReleaseOutcome> {
        held.release().await?;
        Ok(ReleaseOutcome::Released)
    }
}
