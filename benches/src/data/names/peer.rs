//! The peers: libraries whose locks are measured beside ours.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::BackendName::{self, Etcd, Mysql, Postgres, Redis, Redlock, Zk};

macro_rules! peers {
    ($(#[doc = $doc:literal] $peer:ident: $name:expr, $backend:expr, $packages:expr, $waiting:expr;)+) => {
        /// A library with a lock, in the order of the results.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) enum Peer {
            $(#[doc = $doc] $peer,)+
        }

        const ROWS: &[PeerRow] =
            &[$(PeerRow { name: $name, backend: $backend, packages: $packages, waiting: $waiting },)+];
    };
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

peers! {
    /// <https://docs.rs/rslock>
    Rslock: "rslock", Redis, None, "polls after 0 to 200 ms";
    /// <https://docs.rs/rlock>
    Rlock: "rlock", Redis, None, "polls every 100 ms";
    /// <https://docs.rs/async-redis-lock>
    AsyncRedisLock: "async-redis-lock", Redis, None, "polls every 100 ms";
    /// <https://docs.rs/distkit>
    Distkit: "distkit", Redis, None, "polls every 50 ms";
    /// <https://redis.readthedocs.io>
    RedisPy: "redis-py", Redis, PYTHON, "Lock, in Python processes: polls every 100 ms";
    /// <https://redisson.pro>: `RLock`
    Redisson: "redisson", Redis, Some("redisson"),
        "RLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: notified of a release by a \
        message to every process";
    /// <https://redisson.pro>: `RFairLock`
    RedissonFair: "redisson-fair", Redis, Some("redisson"),
        "RFairLock, in Java processes with 2 threads, 2 of Netty and a pool of 2 connections: a queue, a message to \
        the next process";
    /// <https://github.com/go-redsync/redsync>, on one master
    Redsync: "redsync", Redis, GO, REDSYNC;
    /// <https://github.com/brainix/pottery>, on five masters
    Pottery: "pottery", Redlock, PYTHON, "Redlock, in Python processes: polls after 0 to 200 ms";
    /// <https://github.com/mike-marcacci/node-redlock>, on five masters
    NodeRedlock: "node-redlock", Redlock, Some("node"),
        "in Node processes: polls after 100 to 300 ms, ten times, then begins again";
    /// <https://github.com/go-redsync/redsync>, on five masters
    RedsyncFive: "redsync-five", Redlock, GO, REDSYNC;
    /// <https://docs.rs/zookeeper-client>
    LockClient: "lock-client", Zk, None, "the lock of the driver zookeeper-client: watches, then lists again";
    /// <https://curator.apache.org>
    Curator: "curator", Zk, Some("java"), "InterProcessMutex, in Java processes with one session: watches, then lists again";
    /// <https://kazoo.readthedocs.io>
    Kazoo: "kazoo", Zk, PYTHON, "Lock, in Python processes: watches, then lists again";
    /// <https://docs.rs/sqlx>: `PgAdvisoryLock`
    Sqlx: "sqlx", Postgres, None,
        "PgAdvisoryLock, with a pool of as many connections as ours: the server wakes the next waiter, each held lock and \
        each waiter has a connection";
    /// <https://docs.rs/etcd-client>: the lock of the server
    EtcdLock: "etcd-lock", Etcd, None,
        "etcd's own lock, as etcd-client asks for it, by the client of ours: the server watches the key before its own";
    /// <https://etcd.io>: `concurrency.Mutex`
    EtcdConcurrency: "etcd-concurrency", Etcd, GO,
        "concurrency.Mutex, in Go processes: watches the key before its own, whose end it sees, then reads once";
    /// <https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html>
    GetLock: "get-lock", Mysql, None,
        "GET_LOCK and RELEASE_LOCK by sqlx: each held lock and each waiter has a session, and nothing is on a disk";
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

    const fn row(self) -> &'static PeerRow {
        &ROWS[self as usize]
    }
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
