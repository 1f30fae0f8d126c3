//! Clients of other libraries for Redis, and the servers that we share with them.

mod redlock_rb;
mod remote;
mod rust;
mod site;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use site::{FIVE, ONE, Site};

/// A client of another library, with one lock at a time.
#[async_trait]
pub trait Peer: Send {
    /// Acquires the lock of this name if it is free within `wait`, and says whether it did. Without a `ttl` the lock
    /// never ends by itself.
    async fn acquire(&mut self, name: &str, ttl: Option<Duration>, wait: Duration) -> bool;

    /// Lets the lock end `ttl` from now, and says whether it was still its own.
    async fn extend(&mut self, ttl: Duration) -> bool;

    /// Whether the last acquire failed because the lock is of a type that the client does not use.
    async fn met_another_type(&mut self) -> bool {
        false
    }

    /// Releases the lock, and says whether it was still its own; `None` when the client does not tell.
    async fn release(&mut self) -> Option<bool>;

    /// Releases the lock whoever holds it, as the client's own call for operators does, and says whether it has such a call.
    async fn reset(&mut self) -> bool {
        false
    }
}

/// What there is to know of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Client {
    RedisPy,
    PythonRedisLock,
    Pottery,
    NodeRedlock,
    RedlockRb,
    Rslock,
    /// `RLock`
    Redisson,
    /// `RFairLock`
    RedissonFair,
    /// No client of a name, but the recipe that many have written down for themselves.
    Setnx,
}

impl Client {
    pub const ALL: [Self; 6] = [
        Self::RedisPy,
        Self::PythonRedisLock,
        Self::Pottery,
        Self::NodeRedlock,
        Self::RedlockRb,
        Self::Rslock,
    ];

    /// Those that know how to share a lock over independent masters.
    pub const REDLOCK: [Self; 4] = [Self::Pottery, Self::NodeRedlock, Self::RedlockRb, Self::Rslock];

    /// Those whose locks are of another type than ours.
    pub const OF_ANOTHER_TYPE: [Self; 2] = [Self::Redisson, Self::RedissonFair];

    /// Those that take locks without a time to live.
    pub const WITHOUT_TTL: [Self; 2] = [Self::RedisPy, Self::PythonRedisLock];

    /// What the client puts before the name to make the key.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::PythonRedisLock => "lock:",
            Self::Pottery => "redlock:",
            _ => "",
        }
    }

    /// One that is ready to take locks.
    pub async fn start(self, site: &Arc<Site>) -> Box<dyn Peer> {
        match self {
            Self::RedlockRb => Box::new(redlock_rb::RedlockRb::new(Arc::clone(site))),
            Self::Rslock => Box::new(rust::Rslock::new(&site.urls().await)),
            _ => Box::new(remote::Remote::new(self, site).await),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::Pottery => "pottery",
            Self::NodeRedlock => "node-redlock",
            Self::RedlockRb => "redlock-rb",
            Self::Rslock => "rslock",
            Self::Redisson => "redisson",
            Self::RedissonFair => "redisson-fair",
            Self::Setnx => "setnx",
        })
    }
}
