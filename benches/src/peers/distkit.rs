//! distkit: one server, renewed, waits without a limit by default.

use std::sync::Arc;

use distkit::DistkitRedisKey;
use distkit::lock::{LockGuardState, LockOptions, Mutex, MutexGuard};
use lock_testkit::history::ReleaseOutcome;
use redis::Client;

use crate::failure::Outcome;
use crate::measured_lock::MeasuredLock;

/// The lock of distkit.
#[derive(Debug)]
pub(crate) struct Distkit {
    mutex: Arc<Mutex>,
}

impl Distkit {
    /// Connects.
    pub(crate) async fn connect(url: &str, key: &str) -> Outcome<Self> {
        let connection = Client::open(url)?.get_connection_manager().await?;
        let key = DistkitRedisKey::try_from(key.to_owned())?;
        Ok(Self { mutex: Mutex::new(LockOptions::new(key, connection)) })
    }
}

impl MeasuredLock for Distkit {
    type Held = MutexGuard;

    async fn acquire(&self) -> Outcome<MutexGuard> {
        Ok(self.mutex.lock().await?)
    }

    async fn release(&self, held: MutexGuard) -> Outcome<ReleaseOutcome> {
        Ok(match held.release().await? {
            LockGuardState::Released => ReleaseOutcome::Released,
            LockGuardState::Lost => ReleaseOutcome::AlreadyLost,
            LockGuardState::Acquired => ReleaseOutcome::Unknown,
        })
    }
}
