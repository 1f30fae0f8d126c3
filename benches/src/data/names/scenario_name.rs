//! The scenarios.

use std::fmt;

use clap::ValueEnum;

/// A scenario, by its name in the results.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum ScenarioName {
    /// One client acquires and releases a free lock.
    Uncontended,
    /// Processes contend for one lock.
    Contended,
    /// Tasks of one process contend for one lock.
    Tasks,
    /// Tasks use locks with names of their own, in one process and in several.
    Throughput,
    /// The holder is killed.
    Crash,
    /// The same with the locks of other libraries.
    Peers,
    /// Many processes wait for one lock: the cost of a release.
    Herd,
    /// Many locks held at once.
    Held,
    /// One of the masters does not answer.
    Degraded,
    /// Each rung of the way from Redis to ZooKeeper.
    Migration,
    /// The command `polylock run`.
    Command,
}

impl ScenarioName {
    /// The name in the results.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Tasks => "tasks",
            Self::Throughput => "throughput",
            Self::Crash => "crash",
            Self::Peers => "peers",
            Self::Herd => "herd",
            Self::Held => "held",
            Self::Degraded => "degraded",
            Self::Migration => "migration",
            Self::Command => "command",
        }
    }
}

impl fmt::Display for ScenarioName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
