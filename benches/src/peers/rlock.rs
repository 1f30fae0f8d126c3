//! rlock: one server, renewed, no timeout by default.

use lock_testkit::history::ReleaseOutcome;
use rlock::async_lock::{RLock, RLockGuard};

use crate::contender::Contender;
use crate::failure::Outcome;

/// Its manager, and the key.
#[derive(Debug)]
pub(crate) struct Rlock {
    manager: RLock,
    key: String,
}

impl Rlock {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When the server does not let us in.
    pub(crate) async fn connect(url: &str, key: &str) -> Outcome<Self> {
        Ok(Self { manager: RLock::new(url).await?, key: key.to_owned() })
    }
}

impl Contender for Rlock {
    type Held = RLockGuard;

    async fn acquire(&self) -> Outcome<RLockGuard> {
        Ok(self.manager.acquire_mutex(&self.key).await?)
    }

    async fn release(&self, mut held: RLockGuard) -> Outcome<ReleaseOutcome> {
        held.release().await?;
        Ok(ReleaseOutcome::Released)
    }
}
