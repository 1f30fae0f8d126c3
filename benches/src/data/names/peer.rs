//! The peers: libraries whose locks are measured beside ours.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::BackendName::{self, Etcd, Mysql, Postgres, Redis, Redlock, Zk};

/// A library with a lock, in the order of the results.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
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
    /// <https://github.com/brainix/pottery>, on five masters
    Pottery,
    /// <https://github.com/mike-marcacci/node-redlock>, on five masters
    NodeRedlock,
    /// <https://github.com/go-redsync/redsync>, on five masters
    RedsyncFive,
    /// <https://docs.rs/zookeeper-client>
    LockClient,
    /// <https://curator.apache.org>
    Curator,
    /// <https://kazoo.readthedocs.io>
    Kazoo,
    /// <https://docs.rs/sqlx>: `PgAdvisoryLock`
    Sqlx,
    /// <https://docs.rs/etcd-client>: the lock of the server
    EtcdLock,
    /// <https://etcd.io>: `concurrency.Mutex`
    EtcdConcurrency,
    /// <https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html>
    GetLock,
}

/// What is known about a library.
struct PeerRow {
    name: &'static str,
    /// The backend that it is measured beside.
    backend: BackendName,
    /// The packages that it needs, which `cargo xtask setup` installs; none in Rust.
    packages: Option<&'static str>,
    /// How it waits.
    waiting: &'static str,
}

impl Peer {
    /// All peers, in the order of the results.
    pub(crate) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The peers that are measured beside this backend.
    pub(crate) fn of(backend: BackendName) -> impl Iterator<Item = Self> {
        Self::all().iter().copied().filter(move |peer| peer.row().backend == backend)
    }

    /// The peer with this name in the results.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::all().iter().copied().find(|peer| peer.as_str() == name)
    }

    /// The name of the library.
    pub(crate) const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Whether its locks are on ZooKeeper.
    pub(crate) fn is_on_zookeeper(self) -> bool {
        self.row().backend == Zk
    }

    /// The largest number of processes that contend: fewer where each needs a runtime of its own.
    pub(crate) const fn most_processes(self) -> u32 {
        if self.row().packages.is_none() { u32::MAX } else { HEAVY_PROCESSES }
    }

    /// The packages of another language that it needs, if any.
    pub(crate) const fn packages(self) -> Option<&'static str> {
        self.row().packages
    }

    /// How it waits, for the report.
    pub(crate) const fn waiting(self) -> &'static str {
        self.row().waiting
    }

    const fn row(self) -> PeerRow {
        match self {
            Self::Rslock => peer("rslock", Redis, None, "polls after 0 to 200 ms"),
            Self::Rlock => peer("rlock", Redis, None, "polls every 100 ms"),
            Self::AsyncRedisLock => peer("async-redis-lock", Redis, None, "polls every 100 ms"),
            Self::Distkit => peer("distkit", Redis, None, "polls every 50 ms"),
            Self::RedisPy => peer("redis-py", Redis, PYTHON, "Lock, in Python processes: polls every 100 ms"),
            Self::Redisson => peer(
                "redisson",
                Redis,
                Some("redisson"),
                "RLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: notified of a release by a \
                 message to every process",
            ),
            Self::RedissonFair => peer(
                "redisson-fair",
                Redis,
                Some("redisson"),
                "RFairLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: a queue, a message to \
                 the next process",
            ),
            Self::Redsync => peer("redsync", Redis, GO, REDSYNC),
            Self::Pottery => {
                peer("pottery", Redlock, PYTHON, "Redlock, in Python processes: polls after 0 to 200 ms")
            }
            Self::NodeRedlock => peer(
                "node-redlock",
                Redlock,
                Some("node"),
                "in Node processes: polls after 100 to 300 ms, ten times, then begins again",
            ),
            Self::RedsyncFive => peer("redsync-five", Redlock, GO, REDSYNC),
            Self::LockClient => peer(
                "lock-client",
                Zk,
                None,
                "the lock of the driver zookeeper-client: watches, then lists again",
            ),
            Self::Curator => peer(
                "curator",
                Zk,
                Some("java"),
                "InterProcessMutex, in Java processes with one session: watches, then lists again",
            ),
            Self::Kazoo => peer("kazoo", Zk, PYTHON, "Lock, in Python processes: watches, then lists again"),
            Self::Sqlx => peer(
                "sqlx",
                Postgres,
                None,
                "PgAdvisoryLock, with a pool of as many connections as ours: the server wakes the next waiter, each held lock and \
                 each waiter has a connection",
            ),
            Self::EtcdLock => peer(
                "etcd-lock",
                Etcd,
                None,
                "etcd's own lock, as etcd-client asks for it, by the client of ours: the server watches the key before its own",
            ),
            Self::EtcdConcurrency => peer(
                "etcd-concurrency",
                Etcd,
                GO,
                "concurrency.Mutex, in Go processes: watches the key before its own, whose end it sees, then reads once",
            ),
            Self::GetLock => peer(
                "get-lock",
                Mysql,
                None,
                "GET_LOCK and RELEASE_LOCK by sqlx: each held lock and each waiter has a session, and nothing is on a disk",
            ),
        }
    }
}

const fn peer(
    name: &'static str,
    backend: BackendName,
    packages: Option<&'static str>,
    waiting: &'static str,
) -> PeerRow {
    PeerRow { name, backend, packages, waiting }
}

const PYTHON: Option<&str> = Some("python");
const GO: Option<&str> = Some("go");
const REDSYNC: &str = "in Go processes with a pool of up to 10 connections for each core: polls after 50 to 250 ms, 32 times, \
                       then begins again";
/// How many Java, Python, Node or Go processes two cores bear.
const HEAVY_PROCESSES: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_find_their_peer() {
        for &peer in Peer::all() {
            assert_eq!(Peer::named(peer.as_str()), Some(peer));
        }
        assert_eq!(Peer::named("redis"), None);
    }
}
