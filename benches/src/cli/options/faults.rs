//! The options of the fault table, and the names of its faults.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::chosen;

/// The options of the fault table.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FaultOptions {
    /// Run the fault table instead: each fault on each backend, and whether it does what docs/SAFETY.md says; with --quick
    /// a part of it within a minute
    #[arg(long = "faults")]
    pub(crate) wanted: bool,

    /// Only this fault of the table; can be given several times
    #[arg(long = "fault", value_name = "FAULT", requires = "wanted")]
    faults: Vec<FaultName>,

    /// Chooses the moments of the faults and their servers [default: another one each time]
    #[arg(long, value_name = "S", requires = "wanted")]
    pub(crate) seed: Option<u64>,

    /// Write the table into docs/SAFETY.md; only for the whole table
    #[arg(long, requires = "wanted", conflicts_with_all = ["quick", "faults", "backends", "broken"])]
    pub(crate) update_docs: bool,

    /// Judge the history of a fault again
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,

    /// Use a lock or a store with this defect, to prove that the table and the claims show it
    #[arg(long = "break", value_name = "DEFECT")]
    pub(crate) broken: Option<FaultDefect>,
}

/// A fault of the table.
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
    /// Servers are stopped by SIGSTOP; a minority where there are several.
    ServerPaused,
    /// Servers are killed by SIGKILL and restarted with their data; a minority where there are several.
    RestartWithData,
    /// All servers are killed by SIGKILL and restarted with their data, one after the other.
    RollingRestart,
    /// A server is killed by SIGKILL and restarted without its data.
    RestartWithoutData,
    /// A majority of the servers is stopped by SIGSTOP.
    MajorityPaused,
    /// The leader is cut off from the other servers, and not from its clients.
    LeaderCutOff,
    /// The master or leader is killed; a replica is promoted that lacks the lock.
    Failover,
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

impl FaultOptions {
    /// The selected faults, in the order of the table.
    pub(crate) fn faults(&self, quick: bool) -> Vec<FaultName> {
        chosen(&self.faults, if quick { IN_QUICK } else { FaultName::value_variants() })
    }
}

impl FaultName {
    /// The fault in words.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::ClientPaused => "client paused",
            Self::ClientKilled => "client killed",
            Self::ClientCutOff => "client cut off",
            Self::RequestsLost => "client's requests lost",
            Self::AnswersLost => "answers to the client lost",
            Self::RepliesSwallowed => "replies swallowed",
            Self::ReplyLate => "reply late, then cut off",
            Self::ConnectionsReset => "connections reset",
            Self::ServerPaused => "server paused",
            Self::RestartWithData => "restart with data",
            Self::RollingRestart => "rolling restart with data",
            Self::RestartWithoutData => "restart without data",
            Self::MajorityPaused => "majority paused",
            Self::LeaderCutOff => "leader cut off",
            Self::Failover => "failover",
            Self::KeyEndedOnMinority => "key ended on a minority",
            Self::KeyEnded => "key ended early",
            Self::Flushall => "`FLUSHALL`",
        }
    }
}

/// By its name on the command line.
impl fmt::Display for FaultName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}

impl fmt::Display for FaultDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}

/// The faults of a quick run: clients, connections, and data that is lost.
const IN_QUICK: &[FaultName] = &[
    FaultName::ClientPaused,
    FaultName::ClientKilled,
    FaultName::ClientCutOff,
    FaultName::ReplyLate,
    FaultName::ConnectionsReset,
    FaultName::RestartWithoutData,
    FaultName::KeyEnded,
];
