//! The backends of a soak, and the defects that prove that it finds them.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::write_name;

/// A backend of a soak.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum SoakBackend {
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
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SoakDefect {
    /// Every process locks other names.
    EveryProcessAlone,
    /// Fencing tokens decrease.
    TokensShrink,
    /// Released locks stay held for another minute.
    NeverReleases,
    /// Locks are not renewed.
    NeverRenews,
}

impl fmt::Display for SoakBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}
