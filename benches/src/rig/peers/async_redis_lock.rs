//! async-redis-lock: one server, renewed, gives up after a second by default.

use async_redis_lock::{Error, Lock, Locker};
use lock_testkit::history::ReleaseOutcome;

use super::Library;
use crate::data::Outcome;
use crate::rig::measured_lock::MeasuredLock;

pub(crate) struct AsyncRedisLock {
    locker: Locker,
    key: String,
}

impl Library for AsyncRedisLock {
    async fn open(url: &str, name: &str) -> Outcome<Self> {
        Ok(Self { locker: Locker::from_redis_url(url).await?, key: name.to_owned() })
    }

    fn with_name(&self, name: &str) -> Outcome<Self> {
        Ok(Self { locker: self.locker.clone(), key: name.to_owned() })
    }
}

impl MeasuredLock for AsyncRedisLock {
    type Held = Lock;

    async fn acquire(&self) -> Outcome<Lock> {
        loop {
            match self.locker.acquire(self.key.as_str()).await {
                Err(Error::Timeout) => {}
                answer => return Ok(answer?),
            }
        }
    }

    async fn release(&self, held: Lock) -> Outcome<ReleaseOutcome> {
        match held.release().await {
            Err(Error::IdNotFound) => Ok(ReleaseOutcome::AlreadyLost),
            answer => Ok(answer.map(|()| ReleaseOutcome::Released)?),
        }
    }
}
