//! The servers that faults are injected into.

use std::fmt;

use clap::ValueEnum;

use super::write_name;

/// Servers of one backend, by their name in the soak.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Site {
    /// One Redis server.
    Redis,
    /// One Redis server, over TLS.
    RedisTls,
    /// A Redis master with a replica, behind three sentinels.
    Sentinel,
    /// Five independent Redis servers.
    Redlock,
    /// Three ZooKeeper servers.
    Zk,
    /// One PostgreSQL server.
    Postgres,
    /// Three members of etcd.
    Etcd,
    /// One MariaDB server.
    Mysql,
    /// Three ZooKeeper servers with proxies between them. Their elections take longer.
    #[value(skip)]
    LinkedZk,
    /// Three members of etcd with proxies between them.
    #[value(skip)]
    LinkedEtcd,
    /// One PostgreSQL server whose disk can be filled.
    #[value(skip)]
    SmallDisk,
    /// A PostgreSQL primary with an asynchronous standby.
    #[value(skip)]
    Standby,
    /// The same with a synchronous one.
    #[value(skip)]
    SynchronousStandby,
    /// One MariaDB server whose disk can be filled.
    #[value(skip)]
    MysqlSmallDisk,
    /// A MariaDB primary with an asynchronous replica.
    #[value(skip)]
    MysqlReplica,
    /// The same with a semi-synchronous one.
    #[value(skip)]
    MysqlSemiSynchronous,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}
