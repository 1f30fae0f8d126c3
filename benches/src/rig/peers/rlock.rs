//! rlock: one server, renewed, no timeout by default.

use lock_testkit::history::ReleaseOutcome;
use rlock::async_lock::{RLock, RLockGuard};

use super::Library;
use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

#[derive(Debug)]
pub(crate) struct Rlock {
    manager: RLock,
    key: String,
}

impl Library for Rlock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self { manager: RLock::new(url).await?, key: name.to_owned() })
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Ok(Self { manager: self.manager.clone(), key: name.to_owned() })
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
