//! What `docs/SAFETY.md` promises of each fault on each backend. A test compares both.

use crate::data::{BackendName, FaultName};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) enum Cell {
    Expected(Expectation),
    NoMeaning(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Expectation {
    pub(super) promise: Promise,
    /// For how long nobody may get the lock.
    pub(super) outage: OutageLimit,
    pub(super) sentence: &'static str,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Promise {
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
pub(super) enum OutageLimit {
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

impl OutageLimit {
    /// The limit, for a fault that lasted for this time.
    pub(super) fn of(self, fault: Duration, lease: Duration) -> Duration {
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

pub(super) fn name(fault: FaultName, backend: BackendName) -> String {
    format!("{fault} on {backend}")
}

pub(super) fn of(fault: FaultName, backend: BackendName) -> Cell {
    match backend {
        BackendName::Memory => memory(fault),
        BackendName::Redis => redis(fault),
        BackendName::Redlock => redlock(fault),
        BackendName::Zk => zk(fault),
        BackendName::Postgres => postgres(fault),
    }
}

fn memory(fault: FaultName) -> Cell {
    use FaultName as F;
    match fault {
        F::ClientPaused => expect(Promise::Exclusion, OutageLimit::FaultAndLease, MEMORY),
        F::ClientKilled => expect(Promise::Exclusion, OutageLimit::Moment, MEMORY),
        F::ClientCutOff
        | F::RequestsLost
        | F::AnswersLost
        | F::RepliesSwallowed
        | F::ReplyLate
        | F::ConnectionsReset
        | F::ConnectionsEnded
        | F::NoConnectionLeft => Cell::NoMeaning("no connection"),
        _ => Cell::NoMeaning("no server"),
    }
}

fn redis(fault: FaultName) -> Cell {
    use FaultName as F;
    match fault {
        F::ClientPaused => expect(Promise::ExclusionButPaused, OutageLimit::Lease, PAUSE),
        F::ClientKilled => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "After a holder died, the lock is free within its ttl.",
        ),
        F::ClientCutOff | F::RequestsLost | F::AnswersLost | F::RepliesSwallowed => {
            expect(Promise::Exclusion, OutageLimit::Lease, REDIS_OUTAGE)
        }
        F::ReplyLate => expect(Promise::Exclusion, OutageLimit::Lease, COUNTED),
        F::ConnectionsReset => expect(Promise::Exclusion, OutageLimit::Lease, REDIS_OUTAGE),
        F::ServerPaused | F::RestartWithData => {
            expect(Promise::Exclusion, OutageLimit::FaultAndLease, REDIS_OUTAGE)
        }
        F::RestartWithoutData => expect(
            Promise::TwoValid,
            OutageLimit::Moment,
            "the lock is free while its holder is still valid: **two valid guards**, for the rest of the ttl",
        ),
        F::ConnectionsEnded => Cell::NoMeaning(LIKE_A_RESET),
        F::NoConnectionLeft | F::DiskFull => Cell::NoMeaning(NOT_RUN),
        F::RollingRestart => Cell::NoMeaning("one server: see *restart with data*"),
        F::MajorityPaused => Cell::NoMeaning("one server: see *server paused*"),
        F::LeaderCutOff => Cell::NoMeaning("no leader"),
        F::Failover => expect(
            Promise::TwoValid,
            OutageLimit::FaultAndLease,
            "failover to a replica that had not received the write | the same.",
        ),
        F::SynchronousFailover => Cell::NoMeaning("replicas are asynchronous"),
        F::KeyEndedOnMinority => Cell::NoMeaning("one server: see *key ended early*"),
        F::KeyEnded | F::Flushall => expect(
            Promise::TwoValid,
            OutageLimit::Moment,
            "`FLUSHALL`, `FLUSHDB`, `DEL`, `SWAPDB` | the same as a restart without data; the holder finds out at its next renewal or `verify`",
        ),
    }
}

fn redlock(fault: FaultName) -> Cell {
    use FaultName as F;
    match fault {
        F::ClientPaused => expect(Promise::ExclusionButPaused, OutageLimit::Lease, PAUSE),
        F::ClientKilled => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "A holder that died blocks others for its ttl at most, as long as a majority of masters answers.",
        ),
        F::ClientCutOff
        | F::RequestsLost
        | F::AnswersLost
        | F::RepliesSwallowed
        | F::ConnectionsReset
        | F::ServerPaused
        | F::RestartWithData => expect(Promise::Exclusion, OutageLimit::Lease, REDLOCK_EXCLUSION),
        F::RollingRestart => expect(
            Promise::Exclusion,
            OutageLimit::Moment,
            "So a lock is kept while all masters restart one after the other, each within a third of its ttl:",
        ),
        F::ReplyLate => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "So the time that the masters took to answer is subtracted, and a client that slept through its ttl finds its \
             guard lost.",
        ),
        F::RestartWithoutData => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "It does not vote until it has run for the longest ttl of all clients: it is in quarantine.",
        ),
        F::MajorityPaused => expect(
            Promise::Exclusion,
            OutageLimit::FaultAndLease,
            "while a majority is away; after a holder died, for its ttl",
        ),
        F::LeaderCutOff => Cell::NoMeaning("no leader"),
        F::ConnectionsEnded => Cell::NoMeaning(LIKE_A_RESET),
        F::NoConnectionLeft | F::DiskFull => Cell::NoMeaning(NOT_RUN),
        F::Failover | F::SynchronousFailover => Cell::NoMeaning("no replicas: see *restart without data*"),
        F::KeyEndedOnMinority => expect(
            Promise::Exclusion,
            OutageLimit::Moment,
            "A key that was granted and is then gone lets the next client have that vote as well.",
        ),
        F::KeyEnded => expect(Promise::TwoValid, OutageLimit::Lease, REDLOCK_FORGETS),
        F::Flushall => {
            expect(Promise::TwoValid, OutageLimit::Lease, "One such master of five can be enough:")
        }
    }
}

fn zk(fault: FaultName) -> Cell {
    use FaultName as F;
    match fault {
        F::ClientPaused => expect(Promise::ExclusionButPaused, OutageLimit::Lease, PAUSE),
        F::ClientKilled | F::ClientCutOff | F::RequestsLost | F::RepliesSwallowed => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "A holder that does not answer for a session timeout loses them, whether it is alive or not.",
        ),
        F::AnswersLost => expect(
            Promise::Exclusion,
            OutageLimit::TwoLeases,
            "**A client that gets no answers is still heard.**",
        ),
        F::ReplyLate => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "A guard counts its validity from when a request was *sent*, on a clock that also runs while the machine sleeps.",
        ),
        F::ConnectionsReset => expect(Promise::Exclusion, OutageLimit::Moment, ZK_EXCLUSION),
        F::ServerPaused | F::RestartWithData | F::RollingRestart | F::RestartWithoutData | F::Failover => {
            expect(Promise::Exclusion, OutageLimit::Lease, ZK_EXCLUSION)
        }
        F::MajorityPaused => expect(
            Promise::Exclusion,
            OutageLimit::FaultAndLease,
            "while a majority is away; after a holder died, for its session timeout",
        ),
        F::LeaderCutOff => expect(
            Promise::Exclusion,
            OutageLimit::FaultAndElection,
            "So only what a quorum has written to its log counts.",
        ),
        F::ConnectionsEnded => Cell::NoMeaning(LIKE_A_RESET),
        F::NoConnectionLeft | F::DiskFull => Cell::NoMeaning(NOT_RUN),
        F::SynchronousFailover => Cell::NoMeaning("a quorum has every write: see *failover*"),
        F::KeyEndedOnMinority => Cell::NoMeaning("a quorum decides: see *key ended early*"),
        F::KeyEnded => expect(
            Promise::MaybeTwoValid,
            OutageLimit::Moment,
            "The holder learns of it within a network delay (`guard.lost()`), but not before the next holder gets the lock.",
        ),
        F::Flushall => Cell::NoMeaning("no such command"),
    }
}

fn postgres(fault: FaultName) -> Cell {
    use FaultName as F;
    match fault {
        F::ClientPaused => expect(Promise::ExclusionButPaused, OutageLimit::Lease, PAUSE),
        F::ClientKilled => expect(
            Promise::Exclusion,
            OutageLimit::Lease,
            "while the primary is away; after a holder died, for its ttl",
        ),
        F::ClientCutOff | F::RequestsLost | F::AnswersLost | F::RepliesSwallowed => {
            expect(Promise::Exclusion, OutageLimit::Lease, POSTGRES_EXCLUSION)
        }
        F::ReplyLate => expect(Promise::Exclusion, OutageLimit::Lease, COUNTED),
        F::ConnectionsReset | F::ConnectionsEnded => {
            expect(Promise::Exclusion, OutageLimit::Lease, POSTGRES_EXCLUSION)
        }
        F::NoConnectionLeft | F::ServerPaused => {
            expect(Promise::Exclusion, OutageLimit::FaultAndLease, POSTGRES_EXCLUSION)
        }
        F::RestartWithData => expect(
            Promise::Exclusion,
            OutageLimit::FaultAndLease,
            "A killed or restarted server loses nothing that it has granted (`sync=on`).",
        ),
        F::DiskFull => expect(Promise::Exclusion, OutageLimit::FaultAndLease, POSTGRES_EXCLUSION),
        F::Failover => expect(
            Promise::TwoValid,
            OutageLimit::FaultAndLease,
            "failover to an asynchronous standby | grants and renewals of the last moments may be lost: **two valid guards**; fenced data is \
             safe on the new primary",
        ),
        F::SynchronousFailover => expect(
            Promise::Exclusion,
            OutageLimit::FaultAndLease,
            "**A failover to a synchronous standby loses nothing**: a grant is confirmed only when the standby has it.",
        ),
        F::KeyEnded => expect(
            Promise::TwoValid,
            OutageLimit::Lease,
            "the server's clock steps forward | leases end early: two valid guards; fenced data is safe",
        ),
        F::RestartWithoutData => Cell::NoMeaning("see *failover*"),
        F::RollingRestart => Cell::NoMeaning("one server: see *restart with data*"),
        F::MajorityPaused => Cell::NoMeaning("one server: see *server paused*"),
        F::LeaderCutOff => Cell::NoMeaning("no leader"),
        F::KeyEndedOnMinority => Cell::NoMeaning("one server: see *key ended early*"),
        F::Flushall => Cell::NoMeaning("no such command"),
    }
}

const fn expect(promise: Promise, outage: OutageLimit, sentence: &'static str) -> Cell {
    Cell::Expected(Expectation { promise, outage, sentence })
}

/// An election that fails takes as long (`initLimit`).
const ELECTION: Duration = Duration::from_secs(10);
/// What a busy machine may add to an outage: new connections, processes that have to wait. Shorter than any lease.
const SLACK: Duration = Duration::from_millis(1500);

const MEMORY: &str =
    "**Promised:** exclusion, order of arrival, and tokens that grow, for as long as the process runs.";
const PAUSE: &str = "**A pause is not seen.** A process that stops (garbage collection, a suspended virtual machine, a starved \
                     container) between `is_valid()` and its write, writes after its time.";
const COUNTED: &str = "**Validity is counted from before the request is sent**";
const REDIS_OUTAGE: &str =
    "a restart with data, a network outage, a server that hangs | **no second holder.**";
const REDLOCK_EXCLUSION: &str =
    "No two guards of one lock are valid at the same time, whatever the network does.";
const REDLOCK_FORGETS: &str = "**A master that forgets a key breaks the lock.**";
const POSTGRES_EXCLUSION: &str = "Exclusion and tokens that grow, whatever the network and the clients do.";
const LIKE_A_RESET: &str = "see *connections reset*";
const NOT_RUN: &str = "not run";
const ZK_EXCLUSION: &str =
    "Two guards of one lock are never valid at the same time, but for modes that share it.";
