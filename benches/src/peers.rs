//! Peers: the locks of other libraries, used as their documentation shows, with their default delays.
//!
//! None of them has fencing tokens, so that their histories are checked by wall time alone.

mod async_redis_lock;
mod distkit;
mod rlock;
mod rslock;
mod subprocess;
mod zookeeper_client;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::async_redis_lock::AsyncRedisLock;
pub(crate) use self::distkit::Distkit;
pub(crate) use self::rlock::Rlock;
pub(crate) use self::rslock::Rslock;
pub(crate) use self::subprocess::Subprocess;
pub(crate) use self::zookeeper_client::DriverLock;
use crate::options::BackendName;

/// A library with a lock.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// <https://docs.rs/rslock>
    Rslock,
    /// <https://docs.rs/rlock>
    Rlock,
    /// <https://docs.rs/async-redis-lock>
    AsyncRedisLock,
    /// <https://docs.rs/distkit>
    Distkit,
    /// <https://docs.rs/zookeeper-client>
    LockClient,
    /// <https://curator.apache.org>
    Curator,
    /// <https://kazoo.readthedocs.io>
    Kazoo,
}

impl Peer {
    /// All peers, in the order of the results.
    pub(crate) const ALL: [Self; 7] = [
        Self::Rslock,
        Self::Rlock,
        Self::AsyncRedisLock,
        Self::Distkit,
        Self::LockClient,
        Self::Curator,
        Self::Kazoo,
    ];

    /// The peers that lock on the servers of this backend.
    pub(crate) fn of(backend: BackendName) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |peer| peer.backend() == backend)
    }

    const fn backend(self) -> BackendName {
        match self {
            Self::Rslock | Self::Rlock | Self::AsyncRedisLock | Self::Distkit => BackendName::Redis,
            Self::LockClient | Self::Curator | Self::Kazoo => BackendName::Zk,
        }
    }

    /// The name of the library.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rslock => "rslock",
            Self::Rlock => "rlock",
            Self::AsyncRedisLock => "async-redis-lock",
            Self::Distkit => "distkit",
            Self::LockClient => "lock-client",
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
        }
    }

    /// How it waits, for the report.
    pub(crate) const fn waiting(self) -> &'static str {
        match self {
            Self::Rslock => "polls after 0 to 200 ms",
            Self::Rlock | Self::AsyncRedisLock => "polls every 100 ms",
            Self::Distkit => "polls every 50 ms",
            Self::LockClient => "the lock of the driver zookeeper-client: watches, then lists again",
            Self::Curator => "InterProcessMutex, in Java processes: watches, then lists again",
            Self::Kazoo => "Lock, in Python processes: watches, then lists again",
        }
    }
}

/// The session timeout of peers without a default.
const SESSION: Duration = Duration::from_secs(10);
