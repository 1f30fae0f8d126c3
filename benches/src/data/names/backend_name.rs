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
}

impl BackendName {
    /// The name in the results.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Zk => "zk",
            Self::Postgres => "postgres",
        }
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
