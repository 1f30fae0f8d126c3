//! The fault table: a row for each fault, with what `docs/SAFETY.md` promises of it on each backend. Tests compare both.

use std::time::Duration;

use super::names::{BackendName, FaultName};

/// A fault, and what is promised of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultRow {
    pub(crate) title: &'static str,
    /// Whether it belongs to a quick run.
    pub(crate) in_quick: bool,
    /// Whether servers fail by it, but no majority of them.
    pub(crate) fails_servers: bool,
    /// Whether it does not end before the lease: then a longer lease ends long after what happens.
    pub(crate) has_long_lease: bool,
    /// In the order of the backends.
    cells: [Cell; 5],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell {
    Expected(Expectation),
    NoMeaning(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation {
    pub(crate) promise: Promise,
    /// For how long nobody may get the lock.
    pub(crate) outage: OutageLimit,
    pub(crate) sentence: &'static str,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Promise {
    /// No two guards are valid at once.
    Exclusion,
    /// The same, but the holder does not see that it was paused: it holds beyond its lease by wall time.
    ExclusionButPaused,
    TwoValid,
    /// Two guards may be valid at once, for a moment that a run may not see.
    MaybeTwoValid,
}

/// For how long nobody may get the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OutageLimit {
    /// Not for longer than it takes to connect again.
    Moment,
    /// As long as a lock outlives its holder.
    Lease,
    /// As long as a client tries to keep a lock alone, and the lock outlives it.
    TwoLeases,
    /// As long as the fault lasts, with the election that follows, and a lease.
    FaultAndLease,
    /// The same, and an election that fails once.
    FaultAndElection,
}

use OutageLimit::{FaultAndElection, FaultAndLease, Lease, Moment, TwoLeases};

impl FaultName {
    /// The row of the table: memory, Redis, Redlock, ZooKeeper and PostgreSQL.
    #[rustfmt::skip]
    pub(crate) const fn row(self) -> FaultRow {
        match self {
            Self::ClientPaused => row("client paused", [
                holds(FaultAndLease, MEMORY), PAUSED, PAUSED, PAUSED, PAUSED,
            ]).in_quick(),
            Self::ClientKilled => row("client killed", [
                holds(Moment, MEMORY),
                holds(Lease, "After a holder died, the lock is free within its ttl."),
                holds(Lease, "A holder that died blocks others for its ttl at most, as long as a majority of masters answers."),
                holds(Lease, ZK_SESSION),
                holds(Lease, "while the primary is away; after a holder died, for its ttl"),
            ]).in_quick(),
            Self::ClientCutOff => row("client cut off", [
                NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
            ]).in_quick(),
            Self::RequestsLost => row("client's requests lost", [
                NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
            ]),
            Self::AnswersLost => row("answers to the client lost", [
                NO_CONNECTION,
                holds(Lease, REDIS),
                holds(Lease, REDLOCK),
                holds(TwoLeases, "**A client that gets no answers is still heard.**"),
                holds(Lease, POSTGRES),
            ]),
            Self::RepliesSwallowed => row("replies swallowed", [
                NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
            ]),
            Self::ReplyLate => row("reply late, then cut off", [
                NO_CONNECTION,
                holds(Lease, COUNTED),
                holds(Lease, "So the time that the masters took to answer is subtracted, and a client that slept through its ttl \
                              finds its guard lost."),
                holds(Lease, "A guard counts its validity from when a request was *sent*, on a clock that also runs while the \
                              machine sleeps."),
                holds(Lease, COUNTED),
            ]).in_quick(),
            Self::ConnectionsReset => row("connections reset", [
                NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Moment, ZK), holds(Lease, POSTGRES),
            ]).in_quick(),
            Self::ConnectionsEnded => row("connections ended by the server", [
                NO_CONNECTION, LIKE_A_RESET, LIKE_A_RESET, LIKE_A_RESET, holds(Lease, POSTGRES),
            ]),
            Self::NoConnectionLeft => row("no connection left", [
                NO_CONNECTION, NOT_RUN, NOT_RUN, NOT_RUN, holds(FaultAndLease, POSTGRES),
            ]),
            Self::ServerPaused => row("server paused", [
                NO_SERVER, holds(FaultAndLease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK), holds(FaultAndLease, POSTGRES),
            ]).fails_servers(),
            Self::RestartWithData => row("restart with data", [
                NO_SERVER,
                holds(FaultAndLease, REDIS),
                holds(Lease, REDLOCK),
                holds(Lease, ZK),
                holds(FaultAndLease, "A killed or restarted server loses nothing that it has granted (`sync=on`)."),
            ]).fails_servers(),
            Self::RollingRestart => row("rolling restart with data", [
                NO_SERVER,
                none("one server: see *restart with data*"),
                holds(Moment, "So a lock is kept while all masters restart one after the other, each within a third of its ttl:"),
                holds(Lease, ZK),
                none("one server: see *restart with data*"),
            ]),
            Self::DiskFull => row("disk full", [
                NO_SERVER, NOT_RUN, NOT_RUN, NOT_RUN, holds(FaultAndLease, POSTGRES),
            ]),
            Self::RestartWithoutData => row("restart without data", [
                NO_SERVER,
                two_valid(Moment, "the lock is free while its holder is still valid: **two valid guards**, for the rest of the ttl"),
                holds(Lease, "It does not vote until it has run for the longest ttl of all clients: it is in quarantine."),
                holds(Lease, ZK),
                none("see *failover*"),
            ]).in_quick().fails_servers().with_long_lease(),
            Self::MajorityPaused => row("majority paused", [
                NO_SERVER,
                none("one server: see *server paused*"),
                holds(FaultAndLease, "while a majority is away; after a holder died, for its ttl"),
                holds(FaultAndLease, "while a majority is away; after a holder died, for its session timeout"),
                none("one server: see *server paused*"),
            ]),
            Self::LeaderCutOff => row("leader cut off", [
                NO_SERVER,
                NO_LEADER,
                NO_LEADER,
                holds(FaultAndElection, "So only what a quorum has written to its log counts."),
                NO_LEADER,
            ]).fails_servers(),
            Self::Failover => row("failover", [
                NO_SERVER,
                two_valid(FaultAndLease, "failover to a replica that had not received the write | the same."),
                none("no replicas: see *restart without data*"),
                holds(Lease, ZK),
                two_valid(FaultAndLease, "failover to an asynchronous standby | grants and renewals of the last moments may be lost: \
                                          **two valid guards**; fenced data is safe on the new primary"),
            ]).fails_servers().with_long_lease(),
            Self::SynchronousFailover => row("failover, synchronous", [
                NO_SERVER,
                none("replicas are asynchronous"),
                none("no replicas: see *restart without data*"),
                none("a quorum has every write: see *failover*"),
                holds(FaultAndLease, "**A failover to a synchronous standby loses nothing**: a grant is confirmed only when the \
                                      standby has it."),
            ]).with_long_lease(),
            Self::KeyEndedOnMinority => row("key ended on a minority", [
                NO_SERVER,
                none("one server: see *key ended early*"),
                holds(Moment, "A key that was granted and is then gone lets the next client have that vote as well."),
                none("a quorum decides: see *key ended early*"),
                none("one server: see *key ended early*"),
            ]).with_long_lease(),
            Self::KeyEnded => row("key ended early", [
                NO_SERVER,
                two_valid(Moment, REDIS_FORGETS),
                two_valid(Lease, "**A master that forgets a key breaks the lock.**"),
                expect(Promise::MaybeTwoValid, Moment, "The holder learns of it within a network delay (`guard.lost()`), but not \
                                                        before the next holder gets the lock."),
                two_valid(Lease, "the server's clock steps forward | leases end early: two valid guards; fenced data is safe"),
            ]).in_quick().with_long_lease(),
            Self::Flushall => row("`FLUSHALL`", [
                NO_SERVER,
                two_valid(Moment, REDIS_FORGETS),
                two_valid(Lease, "One such master of five can be enough:"),
                none("no such command"),
                none("no such command"),
            ]).with_long_lease(),
        }
    }

    /// What is promised of it on this backend.
    pub(crate) const fn on(self, backend: BackendName) -> Cell {
        self.row().cells[backend as usize]
    }
}

const fn row(title: &'static str, cells: [Cell; 5]) -> FaultRow {
    FaultRow { title, in_quick: false, fails_servers: false, has_long_lease: false, cells }
}

impl FaultRow {
    const fn in_quick(self) -> Self {
        Self { in_quick: true, ..self }
    }

    const fn fails_servers(self) -> Self {
        Self { fails_servers: true, ..self }
    }

    const fn with_long_lease(self) -> Self {
        Self { has_long_lease: true, ..self }
    }
}

impl OutageLimit {
    /// The limit, for a fault that lasted for this time.
    pub(crate) fn of(self, fault: Duration, lease: Duration) -> Duration {
        SLACK
            + match self {
                Self::Moment => Duration::ZERO,
                Self::Lease => lease,
                Self::TwoLeases => lease * 2,
                Self::FaultAndLease => fault + lease,
                Self::FaultAndElection => fault + lease + ELECTION,
            }
    }
}

const fn expect(promise: Promise, outage: OutageLimit, sentence: &'static str) -> Cell {
    Cell::Expected(Expectation { promise, outage, sentence })
}

const fn holds(outage: OutageLimit, sentence: &'static str) -> Cell {
    expect(Promise::Exclusion, outage, sentence)
}

const fn two_valid(outage: OutageLimit, sentence: &'static str) -> Cell {
    expect(Promise::TwoValid, outage, sentence)
}

const fn none(why: &'static str) -> Cell {
    Cell::NoMeaning(why)
}

/// An election that fails takes as long (`initLimit`).
const ELECTION: Duration = Duration::from_secs(10);
/// What a busy machine may add to an outage: new connections, processes that have to wait. Shorter than any lease.
const SLACK: Duration = Duration::from_millis(1500);

const PAUSED: Cell = expect(
    Promise::ExclusionButPaused,
    Lease,
    "**A pause is not seen.** A process that stops (garbage collection, a suspended virtual machine, a starved container) between \
     `is_valid()` and its write, writes after its time.",
);
const NO_CONNECTION: Cell = none("no connection");
const NO_SERVER: Cell = none("no server");
const NO_LEADER: Cell = none("no leader");
const LIKE_A_RESET: Cell = none("see *connections reset*");
const NOT_RUN: Cell = none("not run");
const MEMORY: &str =
    "**Promised:** exclusion, order of arrival, and tokens that grow, for as long as the process runs.";
const REDIS: &str = "a restart with data, a network outage, a server that hangs | **no second holder.**";
const REDIS_FORGETS: &str = "`FLUSHALL`, `FLUSHDB`, `DEL`, `SWAPDB` | the same as a restart without data; the holder finds out at its \
                             next renewal or `verify`";
const REDLOCK: &str = "No two guards of one lock are valid at the same time, whatever the network does.";
const ZK: &str = "Two guards of one lock are never valid at the same time, but for modes that share it.";
const ZK_SESSION: &str =
    "A holder that does not answer for a session timeout loses them, whether it is alive or not.";
const POSTGRES: &str = "Exclusion and tokens that grow, whatever the network and the clients do.";
const COUNTED: &str = "**Validity is counted from before the request is sent**";
