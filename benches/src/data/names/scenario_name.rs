//! The scenarios.

use std::fmt;

use clap::ValueEnum;

use super::write_name;

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

/// By its name on the command line and in the results.
impl fmt::Display for ScenarioName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}
