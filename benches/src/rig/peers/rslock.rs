//! rslock: Redlock, also with one server.

use std::time::Duration;

use lock_testkit::history::ReleaseOutcome;
use rslock::{LockGuard, LockManager};

use super::Library;
use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;
use crate::rig::url;

#[derive(Debug)]
pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
}

impl Rslock {
    /// Connects to these masters on first use.
    pub(crate) fn new(urls: Vec<String>, key: &str) -> Self {
        Self { manager: LockManager::new(urls), key: key.to_owned() }
    }
}

impl Library for Rslock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self::new(url::each(url), name))
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Ok(Self { manager: self.manager.clone(), key: name.to_owned() })
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
