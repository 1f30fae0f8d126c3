//! distkit: one server, renewed, waits without a limit by default.

use std::sync::Arc;

use distkit::DistkitRedisKey;
use distkit::lock::{LockGuardState, LockOptions, Mutex, MutexGuard};
use lock_testkit::history::ReleaseOutcome;
use redis::Client;
use redis::aio::ConnectionManager;

use super::Library;
use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

pub(crate) struct Distkit {
    mutex: Arc<Mutex>,
    connection: ConnectionManager,
}

impl Library for Distkit {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Self::on(Client::open(url)?.get_connection_manager().await?, name)
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Self::on(self.connection.clone(), name)
    }
}

impl Distkit {
    fn on(connection: ConnectionManager, key: &str) -> Outcome<Self> {
        let key = DistkitRedisKey::try_from(key.to_owned())?;
        Ok(Self { mutex: Mutex::new(LockOptions::new(key, connection.clone())), connection })
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
