//! The faults of a soak, and the table of what the soak does with each.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use polylock::ErrorKind::{self, Closed, Denied, Exhausted, InvalidConfig};
use serde::{Deserialize, Serialize};

use super::SoakBackend::{self, Postgres, Redis, RedisTls, Redlock, Sentinel, Zk};
use super::write_name;

/// The kinds of faults that a soak injects.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// Some workers are killed by SIGKILL and replaced.
    Kill,
    /// A worker is stopped by SIGSTOP for longer than its lease.
    Pause,
    /// A thread of a worker computes for longer than two leases: nothing else runs on its runtime meanwhile.
    BusyThread,
    /// Some workers are killed, and replaced by ones that fork before they connect.
    Fork,
    /// All connections to servers are reset.
    Reset,
    /// An administrator ends all sessions of clients.
    EndSessions,
    /// What the open connections to servers carry is lost from then on, without an end; new connections work.
    Silence,
    /// Everything that is sent to or by servers is lost.
    BlackHole,
    /// Servers are stopped by SIGSTOP.
    Freeze,
    /// All servers are stopped by SIGSTOP, not only a minority. Only when asked for.
    Blackout,
    /// Servers are killed by SIGKILL and restarted with their data.
    Restart,
    /// The same for all servers, one after the other, each after the recovery from the one before.
    RollingRestart,
    /// Sentinels promote the replica, which has every write.
    Failover,
    /// The same, but the old master's last writes are lost, so that no lock can promise exclusion. Only when asked for;
    /// overlaps are counted and do not fail the run.
    AbruptFailover,
    /// A server is restarted with a lower limit of the session timeout; later its clients are cut off, and it is restarted
    /// with the old one.
    Renegotiation,
    /// Servers may use no more memory: they refuse what needs some.
    FullMemory,
    /// A script runs on a server, which answers BUSY meanwhile; then on the next one.
    BusyScript,
    /// All servers demand another password, and close the connections of clients; the file that clients read follows later.
    Password,
    /// The server is restarted with certificates of another authority; the files that clients read follow later.
    Certificate,
    /// Another session has a table of the locks for itself.
    TableLock,
    /// A superuser cancels what the sessions of clients do, again and again; at times no standby confirms their commits.
    CancelledWaits,
    /// Transactions are read-only.
    ReadOnly,
    /// All sessions of clients are ended, and new ones have another level of isolation by default; later the same back.
    IsolationLevel,
    /// The tables of the locks are rewritten by VACUUM FULL.
    FullVacuum,
    /// Another client notifies all clients of grants and changes that do not exist.
    ForgedNotifications,
    /// A worker closes its locks, whatever its clients do, and connects again.
    Close,
    /// A worker has many tasks at once, each with a lock of its own.
    Crowd,
}

/// What a soak does with a kind of fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultRow {
    /// The backends that it can befall.
    on: &'static [SoakBackend],
    /// What it hits.
    pub(crate) hits: Hits,
    /// Who may lose a lock by it.
    pub(crate) losses: Losses,
    /// How long it lasts, by the lease.
    span: fn(Duration) -> Range<Duration>,
    /// Whether it happens only when asked for.
    is_extreme: bool,
    /// What clients may report beside an outage.
    pub(crate) explains: Option<ErrorKind>,
}

/// What a fault hits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hits {
    /// Workers.
    Workers,
    /// Some servers, fewer than a quorum.
    Minority,
    /// Some servers, or all of them.
    Several,
    /// All servers at once.
    All,
    /// One server after the other.
    EachInTurn,
}

/// Who may lose a lock by a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Losses {
    /// Any worker.
    Any,
    /// Those that are killed. A loss of others has another reason.
    OfTheKilled,
    /// Nobody on these backends, but for the thread that computes; anybody on others.
    NoneOn(&'static [SoakBackend]),
    /// Any worker, and the servers forget it: two may hold a lock.
    Unnoticed,
}

impl FaultKind {
    /// The row of the table.
    pub(crate) fn row(self) -> FaultRow {
        use Hits::{All, EachInTurn, Minority, Several, Workers};
        use Losses::{Any, NoneOn, OfTheKilled, Unnoticed};
        match self {
            Self::Kill => row(ALL, Workers, OfTheKilled, at_once),
            Self::Pause => row(ALL, Workers, Any, |lease| lease..2 * lease),
            // A lock that outlives its lease shows before the end.
            Self::BusyThread => row(ALL, Workers, NoneOn(ALL), |lease| 2 * lease + 3 * S..3 * lease + 3 * S),
            Self::Fork => row(ALL, Workers, OfTheKilled, at_once),
            Self::Reset => row(ALL, Several, Any, at_once),
            Self::EndSessions => row(&[Postgres], All, NoneOn(&[Postgres]), at_once),
            Self::Silence => row(PROXIED, Several, Any, at_once),
            Self::BlackHole => row(PROXIED, Minority, Any, outage),
            Self::Freeze => row(PROXIED, Minority, Any, outage),
            Self::Blackout => row(QUORUM, All, Any, outage).only_when_asked_for(),
            Self::Restart => row(PROXIED, Minority, Any, |lease| Duration::ZERO..lease),
            Self::RollingRestart => row(QUORUM, EachInTurn, NoneOn(&[Redlock]), at_once),
            Self::Failover => row(&[Sentinel], All, Any, at_once),
            Self::AbruptFailover => row(&[Sentinel], All, Unnoticed, at_once).only_when_asked_for(),
            Self::Renegotiation => row(&[Zk], Minority, Any, |lease| lease + 3 * S..lease + 3 * S),
            // Renewals are missed after a lease.
            Self::FullMemory => {
                row(FILLED, Several, NoneOn(ALL), |lease| 2 * lease..3 * lease).explains(Exhausted)
            }
            Self::BusyScript => row(REDIS, EachInTurn, NoneOn(&[Redlock]), |lease| S..lease + 2 * S),
            Self::Password => row(SECRET, All, Any, |lease| S..2 * lease).explains(Denied),
            Self::Certificate => row(&[RedisTls], All, Any, |lease| S..2 * lease).explains(InvalidConfig),
            Self::TableLock | Self::CancelledWaits | Self::ReadOnly => {
                row(&[Postgres], All, Any, |lease| S..2 * lease)
            }
            Self::IsolationLevel => row(&[Postgres], All, NoneOn(&[Postgres]), |lease| S..2 * lease),
            Self::ForgedNotifications => row(NOTIFIED, All, NoneOn(NOTIFIED), |lease| S..2 * lease),
            Self::FullVacuum => row(&[Postgres], All, NoneOn(&[Postgres]), at_once),
            Self::Close => row(ALL, Workers, Any, at_once).explains(Closed),
            Self::Crowd => row(ALL, Workers, Any, at_once),
        }
    }
}

const fn row(
    on: &'static [SoakBackend],
    hits: Hits,
    losses: Losses,
    span: fn(Duration) -> Range<Duration>,
) -> FaultRow {
    FaultRow { on, hits, losses, span, is_extreme: false, explains: None }
}

impl FaultRow {
    const fn only_when_asked_for(self) -> Self {
        Self { is_extreme: true, ..self }
    }

    const fn explains(self, kind: ErrorKind) -> Self {
        Self { explains: Some(kind), ..self }
    }

    /// Whether it can befall this backend.
    pub(crate) fn befalls(&self, backend: SoakBackend) -> bool {
        self.on.contains(&backend)
    }

    /// Whether it happens without being asked for.
    pub(crate) const fn is_usual(&self) -> bool {
        !self.is_extreme
    }

    /// How long it lasts: from the shortest to the longest.
    pub(crate) fn span(&self, lease: Duration) -> Range<Duration> {
        (self.span)(lease)
    }

    /// Whether no worker may lose a lock by it, but for the thread that computes.
    pub(crate) fn keeps_locks(&self, backend: SoakBackend) -> bool {
        matches!(self.losses, Losses::NoneOn(backends) if backends.contains(&backend))
    }
}

fn at_once(_: Duration) -> Range<Duration> {
    Duration::ZERO..Duration::ZERO
}

/// Long enough that requests which a stopped server executes afterwards are older than any lease and client timeout.
fn outage(lease: Duration) -> Range<Duration> {
    S..lease + 5 * S
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

const S: Duration = Duration::from_secs(1);
const ALL: &[SoakBackend] = &[Redis, RedisTls, Sentinel, Redlock, Zk, Postgres];
const REDIS: &[SoakBackend] = &[Redis, RedisTls, Sentinel, Redlock];
/// Waiters are notified by messages that others can send.
const NOTIFIED: &[SoakBackend] = &[Redis, RedisTls, Sentinel, Redlock, Postgres];
/// Behind sentinels clients discover the servers themselves, past all proxies.
const PROXIED: &[SoakBackend] = &[Redis, RedisTls, Redlock, Zk, Postgres];
/// They demand a password.
const SECRET: &[SoakBackend] = &[Redis, RedisTls, Sentinel, Redlock, Zk];
const QUORUM: &[SoakBackend] = &[Redlock, Zk];
const FILLED: &[SoakBackend] = &[Redis, RedisTls, Redlock];
