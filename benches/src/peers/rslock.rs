//! rslock: Redlock, also with one server.

use std::time::Duration;

use lock_testkit::history::ReleaseOutcome;
use rslock::{LockGuard, LockManager};

use crate::contender::Contender;
use crate::failure::Outcome;

/// Its manager, and the key.
#[derive(Debug)]
pub(crate) struct Rslock {
    manager: LockManager,
    key: String,
}

impl Rslock {
    /// It connects when it is used for the first time.
    pub(crate) fn new(urls: Vec<String>, key: &str) -> Self {
        Self { manager: LockManager::new(urls), key: key.to_owned() }
    }
}

impl Contender for Rslock {
    type Held = LockGuard;

    async fn acquire(&self) -> Outcome<LockGuard> {
        // It begins again after the three attempts that it makes by default.
        Ok(self.manager.acquire(self.key.as_str(), TTL).await?)
    }

    async fn release(&self, held: LockGuard) -> Outcome<ReleaseOutcome> {
        // It does not say what it found.
        held.release().await;
        Ok(ReleaseOutcome::Unknown)
    }
}

/// It has no default, and is not renewed: far longer than any hold.
const TTL: Duration = Duration::from_secs(10);
