//! The backends.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A backend, by its name in the results, which is its URL scheme.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BackendName {
    /// Locks inside one process.
    Memory,
    /// One Redis server.
    Redis,
    /// Five independent Redis servers.
    Redlock,
    /// ZooKeeper.
    Zk,
    /// One PostgreSQL server.
    Postgres,
    /// One etcd server.
    Etcd,
    /// One MariaDB server, or MySQL by `--url`.
    Mysql,
    /// A SQLite file.
    Sqlite,
    /// A bucket of moto, which answers as S3 does, one request at a time; or another one by `--url`.
    S3,
}

impl BackendName {
    /// Those of a quick run. The others are measured in full runs, and when they are asked for.
    pub(crate) const IN_QUICK: [Self; 5] =
        [Self::Memory, Self::Redis, Self::Redlock, Self::Zk, Self::Postgres];
    /// The columns of the fault table.
    pub(crate) const IN_TABLE: [Self; 7] =
        [Self::Memory, Self::Redis, Self::Redlock, Self::Zk, Self::Postgres, Self::Etcd, Self::Mysql];

    /// The name in the results.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Zk => "zk",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
            Self::S3 => "s3",
        }
    }

    /// What it is in prose.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "Redis",
            Self::Redlock => "Redlock",
            Self::Zk => "ZooKeeper",
            Self::Postgres => "PostgreSQL",
            Self::Etcd => "etcd",
            Self::Mysql => "MariaDB",
            Self::Sqlite => "SQLite",
            Self::S3 => "S3",
        }
    }

    /// Whether it is a store that compares and swaps, and knows nothing of locks.
    pub(crate) const fn swaps(self) -> bool {
        matches!(self, Self::Etcd | Self::Mysql | Self::Sqlite | Self::S3)
    }

    /// Whether it bears more than one client at a time.
    pub(crate) const fn bears_load(self) -> bool {
        !matches!(self, Self::S3)
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
