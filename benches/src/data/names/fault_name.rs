//! The faults of the fault table, and the defects that prove that it shows them.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{BackendName, write_name};

/// A fault of the table, whose rows are in `fault_table`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultName {
    /// The holder is stopped by SIGSTOP until another client has the lock.
    ClientPaused,
    /// The holder is killed by SIGKILL.
    ClientKilled,
    /// Everything between the holder and the servers is lost.
    ClientCutOff,
    /// Everything that the holder sends is lost.
    RequestsLost,
    /// Everything that is sent to the holder is lost.
    AnswersLost,
    /// The replies to the next requests of all clients are lost.
    RepliesSwallowed,
    /// The lock is granted, the reply arrives late, and the holder is cut off after it.
    ReplyLate,
    /// All connections are reset.
    ConnectionsReset,
    /// An administrator ends all connections of clients.
    ConnectionsEnded,
    /// The same, and others take all connections that the server allows.
    NoConnectionLeft,
    /// Servers are stopped by SIGSTOP; a minority where there are several.
    ServerPaused,
    /// Servers are killed by SIGKILL and restarted with their data; a minority where there are several.
    RestartWithData,
    /// All servers are killed by SIGKILL and restarted with their data, one after the other.
    RollingRestart,
    /// The disk of the server is full.
    DiskFull,
    /// A server is killed by SIGKILL and restarted without its data.
    RestartWithoutData,
    /// A majority of the servers is stopped by SIGSTOP.
    MajorityPaused,
    /// The leader is cut off from the other servers, and not from its clients.
    LeaderCutOff,
    /// The master or leader is killed; a replica is promoted that lacks the lock.
    Failover,
    /// The same with a standby that has every write which was confirmed.
    SynchronousFailover,
    /// The key ends early on a minority of the servers.
    KeyEndedOnMinority,
    /// The key ends early on a majority of the servers, or the node is deleted.
    KeyEnded,
    /// A server executes FLUSHALL.
    Flushall,
}

/// A deliberate defect of the lock or of the store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultDefect {
    /// A release deletes the lock of whoever holds it.
    NaiveRelease,
    /// The validity counts from the answer.
    NoElapsedTime,
    /// Restarted masters vote at once.
    NoQuarantine,
    /// The store does not compare tokens.
    NoFencingCheck,
    /// A client keeps the lock for ever; in `contended` and in the fault table.
    NeverReleases,
}

impl FaultName {
    /// The fault in words.
    pub(crate) const fn title(self) -> &'static str {
        self.row().title
    }

    /// Its name with that of a backend, which is that of the expectation in a record.
    pub(crate) fn name_on(self, backend: BackendName) -> String {
        format!("{self} on {backend}")
    }
}

/// By its name on the command line.
impl fmt::Display for FaultName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

impl fmt::Display for FaultDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}
