//! The lock of the crate rslock.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use rslock::{Lock, LockError, LockManager};

use super::Peer;

/// A lock manager and what it holds.
pub struct Rslock {
    manager: LockManager,
    name: String,
    lock: Option<Lock>,
}

impl Rslock {
    pub fn new(servers: &[String], name: &str) -> Self {
        let manager = LockManager::new(servers.iter().map(String::as_str).collect());
        Self { manager, name: name.to_owned(), lock: None }
    }

    fn keep(&mut self, answer: Result<Lock, LockError>) -> bool {
        match answer {
            Ok(lock) => {
                self.lock = Some(lock);
                true
            }
            Err(LockError::Unavailable) => false,
            Err(error) => panic!("rslock: {error}"),
        }
    }

    fn lock(&self) -> &Lock {
        self.lock.as_ref().expect("the lock was acquired")
    }
}

#[async_trait]
impl Peer for Rslock {
    async fn acquire_for(&mut self, ttl: Option<Duration>, wait: Duration) -> bool {
        let ttl = ttl.expect("rslock has no lock without a time to live");
        let end = Instant::now() + wait;
        if wait.is_zero() {
            self.manager.set_retry(1, PAUSE);
        }
        loop {
            let answer = self.manager.lock(self.name.as_bytes(), ttl).await;
            if self.keep(answer) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    async fn extend(&mut self, ttl: Duration) -> bool {
        let answer = self.manager.extend(self.lock(), ttl).await;
        self.keep(answer)
    }

    async fn release(&mut self) -> Option<bool> {
        self.manager.unlock(self.lock()).await;
        None
    }
}

// Time: its default.
const PAUSE: Duration = Duration::from_millis(200);
