//! Peers: the locks of other libraries, used as their documentation shows, with their default delays.
//!
//! None of them has fencing tokens, so that their histories are checked by wall time alone.

mod async_redis_lock;
mod distkit;
mod installed;
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
pub(crate) use self::subprocess::{JVM_FLAGS, Subprocess};
pub(crate) use self::zookeeper_client::DriverLock;
use crate::cli::options::BackendName;

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
    /// <https://redis.readthedocs.io>
    RedisPy,
    /// <https://redisson.pro>: `RLock`
    Redisson,
    /// <https://redisson.pro>: `RFairLock`
    RedissonFair,
    /// <https://github.com/go-redsync/redsync>, on one master
    Redsync,
    /// <https://github.com/go-redsync/redsync>, on five masters
    RedsyncFive,
    /// <https://github.com/brainix/pottery>, on five masters
    Pottery,
    /// <https://github.com/mike-marcacci/node-redlock>, on five masters
    NodeRedlock,
    /// <https://docs.rs/zookeeper-client>
    LockClient,
    /// <https://curator.apache.org>
    Curator,
    /// <https://kazoo.readthedocs.io>
    Kazoo,
    /// <https://etcd.io>, on a server of its own: what one would take instead of ZooKeeper
    Etcd,
}

impl Peer {
    /// All peers, in the order of the results.
    pub(crate) const ALL: &[Self] = &[
        Self::Rslock,
        Self::Rlock,
        Self::AsyncRedisLock,
        Self::Distkit,
        Self::RedisPy,
        Self::Redisson,
        Self::RedissonFair,
        Self::Redsync,
        Self::Pottery,
        Self::NodeRedlock,
        Self::RedsyncFive,
        Self::LockClient,
        Self::Curator,
        Self::Kazoo,
        Self::Etcd,
    ];

    /// The peers that are measured beside this backend.
    pub(crate) fn of(backend: BackendName) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |peer| peer.backend() == backend)
    }

    /// The backend that it is measured beside.
    const fn backend(self) -> BackendName {
        match self {
            Self::Rslock
            | Self::Rlock
            | Self::AsyncRedisLock
            | Self::Distkit
            | Self::RedisPy
            | Self::Redisson
            | Self::RedissonFair
            | Self::Redsync => BackendName::Redis,
            Self::Pottery | Self::NodeRedlock | Self::RedsyncFive => BackendName::Redlock,
            Self::LockClient | Self::Curator | Self::Kazoo | Self::Etcd => BackendName::Zk,
        }
    }

    /// Whether its locks are on ZooKeeper.
    pub(crate) fn is_on_zookeeper(self) -> bool {
        self.backend() == BackendName::Zk && self != Self::Etcd
    }

    /// The name of the library.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rslock => "rslock",
            Self::Rlock => "rlock",
            Self::AsyncRedisLock => "async-redis-lock",
            Self::Distkit => "distkit",
            Self::RedisPy => "redis-py",
            Self::Redisson => "redisson",
            Self::RedissonFair => "redisson-fair",
            Self::Redsync => "redsync",
            Self::Pottery => "pottery",
            Self::NodeRedlock => "node-redlock",
            Self::RedsyncFive => "redsync-five",
            Self::LockClient => "lock-client",
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
            Self::Etcd => "etcd",
        }
    }

    /// The largest number of processes that contend: fewer where some need a runtime of their own.
    pub(crate) const fn most_processes(self) -> u32 {
        match self {
            Self::Rslock | Self::Rlock | Self::AsyncRedisLock | Self::Distkit | Self::LockClient => u32::MAX,
            _ => HEAVY_PROCESSES,
        }
    }

    /// Why it cannot be measured, if its packages are not installed.
    pub(crate) fn missing(self) -> Option<String> {
        installed::missing(match self {
            Self::Rslock | Self::Rlock | Self::AsyncRedisLock | Self::Distkit | Self::LockClient => {
                return None;
            }
            Self::RedisPy | Self::Pottery | Self::Kazoo => "python",
            Self::NodeRedlock => "node",
            Self::Curator => "java",
            Self::Redisson | Self::RedissonFair => "redisson",
            Self::Etcd if !installed::has_program("etcd") => return Some("etcd is not installed".into()),
            Self::Redsync | Self::RedsyncFive | Self::Etcd => "go",
        })
    }

    /// The peer with this name in the results.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|peer| peer.as_str() == name)
    }

    /// How it waits, for the report.
    pub(crate) const fn waiting(self) -> &'static str {
        match self {
            Self::Rslock => "polls after 0 to 200 ms",
            Self::Rlock | Self::AsyncRedisLock => "polls every 100 ms",
            Self::Distkit => "polls every 50 ms",
            Self::RedisPy => "Lock, in Python processes: polls every 100 ms",
            Self::Redisson => {
                "RLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: notified of a release by a \
                 message to every process"
            }
            Self::RedissonFair => {
                "RFairLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: a queue, a message to \
                 the next process"
            }
            Self::Redsync | Self::RedsyncFive => {
                "in Go processes with a pool of up to 10 connections for each core: polls after 50 to 250 ms, 32 times, then \
                 begins again"
            }
            Self::Pottery => "Redlock, in Python processes: polls after 0 to 200 ms",
            Self::NodeRedlock => "in Node processes: polls after 100 to 300 ms, ten times, then begins again",
            Self::LockClient => "the lock of the driver zookeeper-client: watches, then lists again",
            Self::Curator => {
                "InterProcessMutex, in Java processes with one session: watches, then lists again"
            }
            Self::Kazoo => "Lock, in Python processes: watches, then lists again",
            Self::Etcd => {
                "concurrency.Mutex, in Go processes, on one etcd server without fsync beside ZooKeeper: watches the key before \
                 its own, whose end it sees, then reads once"
            }
        }
    }
}

/// How many Java, Python, Node or Go processes two cores bear.
const HEAVY_PROCESSES: u32 = 8;
/// The session timeout of peers without a default.
const SESSION: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_find_their_peer() {
        for &peer in Peer::ALL {
            assert_eq!(Peer::named(peer.as_str()), Some(peer));
        }
        assert_eq!(Peer::named("redis"), None);
    }
}
