//! The faults: a row for each, with what it does, on which backends the fault table and the soak run it, and what may break.
//!
//! Tests compare the rows with `docs/SAFETY.md`.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use lock_testkit::proxy::Direction::{self, ToClient, ToServer};
use polylock::ErrorKind::{self, Closed, Denied, Exhausted, InvalidConfig};
use serde::{Deserialize, Serialize};

use super::names::{BackendName, Site, write_name};

/// A fault of the fault table, of the soak, or of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) effect: Effect,
    pub(crate) hits: Hits,
    pub(crate) title: &'static str,
    flags: &'static [Flag],
    /// In the table, in the order of the backends.
    cells: Option<[Cell; COLUMNS]>,
    /// Where the soak has it.
    on: &'static [Site],
    /// Who may lose a lock by it in the soak.
    pub(crate) losses: Losses,
    /// How long it lasts in the soak, by the lease.
    span: fn(Duration) -> Range<Duration>,
    /// What clients may report beside an outage.
    pub(crate) explains: Option<ErrorKind>,
    /// Its name in the soak and what it does there, if they differ.
    there: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flag {
    /// It belongs to a quick run of the table.
    InQuick,
    /// Servers fail by it, but no majority of them.
    FailsServers,
    /// It does not end before the lease: then a longer lease ends long after what happens.
    HasLongLease,
    /// The soak has it only when asked for.
    IsExtreme,
}

/// What happens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Processes of clients are stopped by SIGSTOP, and go on later.
    Stop,
    /// They are killed by SIGKILL.
    Kill,
    /// The same, and those that replace them fork.
    Fork,
    /// The thread of a runtime computes.
    Compute,
    /// Clients close their locks.
    Close,
    /// Many tasks of a client acquire a lock each.
    Crowd,
    /// What is sent in these directions is lost. None: in one or both, as the dice say.
    CutOff(&'static [Direction]),
    /// What open connections carry is lost.
    Silence,
    SwallowReplies,
    DelayReply,
    Reset,
    EndSessions,
    TakeConnections,
    /// Servers are stopped by SIGSTOP, and go on later.
    Freeze,
    /// Servers are killed by SIGKILL and restarted.
    Restart(Data),
    FillDisk,
    FillMemory,
    CutLeaderOff,
    /// A replica is promoted that has all writes, or lacks the last ones.
    FailOver(Data),
    EndKeys,
    Flush,
    RunScript,
    Renegotiate,
    ChangePassword,
    ChangeCertificate,
    /// Another session of PostgreSQL does one of these, or one of MariaDB what it can of them.
    Disturb(&'static [Disturbance]),
    Forge,
}

/// What servers do with their data when they are killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Data {
    /// They have it again after a restart. ZooKeeper and PostgreSQL always do.
    Kept,
    /// Redis has nothing after a restart.
    Lost,
}

/// What another session of PostgreSQL does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Disturbance {
    TableLock(&'static str),
    Cancels { without_standby: bool },
    ReadOnly,
    Isolation(&'static str),
    FullVacuum,
    ForgedNotifications,
}

/// What a fault hits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hits {
    /// In the table the holder, in the soak some workers.
    Clients,
    /// Some servers, fewer than a quorum.
    Minority,
    /// A quorum.
    Majority,
    /// In the soak some servers or all of them, in the table all.
    Several,
    /// All servers at once.
    All,
    /// One server after the other.
    EachInTurn,
    /// One server that the grant needed.
    Needed,
    /// The leader, the master or the primary.
    Leader,
}

/// Who may lose a lock by a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Losses {
    /// Any worker.
    Any,
    /// Those that are killed. A loss of others has another reason.
    OfTheKilled,
    /// Nobody at these sites, but for the thread that computes; anybody at others.
    NoneOn(&'static [Site]),
    /// Any worker, and the servers forget it: two may hold a lock.
    Unnoticed,
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

use Disturbance::{Cancels, FullVacuum, Isolation, ReadOnly, TableLock};
use Effect::{
    ChangeCertificate, ChangePassword, Close, Compute, Crowd, CutLeaderOff, CutOff, DelayReply, Disturb,
    EndKeys, EndSessions, FailOver, FillDisk, FillMemory, Flush, Forge, Fork, Freeze, Kill, Renegotiate,
    Reset, Restart, RunScript, Silence, Stop, SwallowReplies, TakeConnections,
};
use Flag::{FailsServers, HasLongLease, InQuick, IsExtreme};
use Hits::{All, Clients, EachInTurn, Leader, Majority, Minority, Needed, Several};
use Losses::{Any, NoneOn, OfTheKilled, Unnoticed};
use OutageLimit::{FaultAndElection, FaultAndLease, Lease, Moment, TwoLeases};

macro_rules! faults {
    ($($(#[$doc:meta])+ $name:ident: $row:expr;)+) => {
        /// A fault. Its name is that on the command line and in records.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) enum Fault {
            $($(#[$doc])+ $name,)+
        }

        static ROWS: &[Row] = &[$($row,)+];
    };
}

// The table has the cells of memory, Redis, Redlock, ZooKeeper, PostgreSQL, etcd and MariaDB.
faults! {
    /// The holder is stopped by SIGSTOP until another client has the lock.
    ClientPaused: row(Stop, Clients).in_table("client paused", [
        holds(FaultAndLease, MEMORY), PAUSED, PAUSED, PAUSED, PAUSED, PAUSED, PAUSED,
    ])
        .in_soak(ALL, Any, |lease| lease..2 * lease)
        .there("pause", "A worker is stopped by SIGSTOP for longer than its lease")
        .which(&[InQuick]);
    /// The holder is killed by SIGKILL.
    ClientKilled: row(Kill, Clients).in_table("client killed", [
        holds(Moment, MEMORY),
        holds(Lease, "After a holder died, the lock is free within its ttl."),
        holds(Lease, "A holder that died blocks others for its ttl at most, as long as a majority of masters answers."),
        holds(Lease, ZK_SESSION),
        holds(Lease, "while the primary is away; after a holder died, for its ttl"),
        holds(Lease, SWAPS_CRASH),
        holds(Lease, SWAPS_CRASH),
    ])
        .in_soak(ALL, OfTheKilled, at_once)
        .there("kill", "Some workers are killed by SIGKILL and replaced")
        .which(&[InQuick]);
    /// Some workers are killed, and replaced by ones that fork before they connect.
    Fork: row(Fork, Clients).in_soak(ALL, OfTheKilled, at_once);
    /// A thread of a worker computes for longer than two leases: nothing else runs on its runtime meanwhile.
    BusyThread: row(Compute, Clients).in_soak(ALL, NoneOn(ALL), |lease| 2 * lease + 3 * S..3 * lease + 3 * S);
    /// A worker closes its locks, whatever its clients do, and connects again.
    Close: row(Close, Clients).in_soak(ALL, Any, at_once).explains(Closed);
    /// A worker has many tasks at once, each with a lock of its own.
    Crowd: row(Crowd, Clients).in_soak(ALL, Any, at_once);
    /// Everything between the holder and the servers is lost.
    ClientCutOff: row(CutOff(BOTH), Clients).in_table("client cut off", [
        NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
        holds(Lease, SWAPS), holds(Lease, SWAPS),
    ]).which(&[InQuick]);
    /// Everything that the holder sends is lost.
    RequestsLost: row(CutOff(&[ToServer]), Clients).in_table("client's requests lost", [
        NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
        holds(Lease, SWAPS), holds(Lease, SWAPS),
    ]);
    /// Everything that is sent to the holder is lost.
    AnswersLost: row(CutOff(&[ToClient]), Clients).in_table("answers to the client lost", [
        NO_CONNECTION,
        holds(Lease, REDIS),
        holds(Lease, REDLOCK),
        holds(TwoLeases, "**A client that gets no answers is still heard.**"),
        holds(Lease, POSTGRES),
        holds(Lease, SWAPS),
        holds(Lease, SWAPS),
    ]);
    /// Everything that is sent to or by servers is lost.
    BlackHole: row(CutOff(&[]), Minority).in_soak(PROXIED, Any, outage);
    /// What the open connections to servers carry is lost from then on, without an end; new connections work.
    Silence: row(Silence, Several).in_table("open connections silent", [
        NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK), holds(Lease, POSTGRES),
        holds(Lease, SWAPS), holds(Lease, SWAPS),
    ]).in_soak(PROXIED, Any, at_once);
    /// The replies to the next requests of all clients are lost.
    RepliesSwallowed: row(SwallowReplies, All).in_table("replies swallowed", [
        NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK_SESSION), holds(Lease, POSTGRES),
        holds(Lease, SWAPS), holds(Lease, SWAPS),
    ]);
    /// The lock is granted, the reply arrives late, and the holder is cut off after it.
    ReplyLate: row(DelayReply, Clients).in_table("reply late, then cut off", [
        NO_CONNECTION,
        holds(Lease, COUNTED),
        holds(Lease, "So the time that the masters took to answer is subtracted, and a client that slept through its ttl \
                      finds its guard lost."),
        holds(Lease, "A guard counts its validity from when a request was *sent*, on a clock that also runs while the \
                      machine sleeps."),
        holds(Lease, COUNTED),
        holds(Lease, COUNTED),
        holds(Lease, COUNTED),
    ]).which(&[InQuick]);
    /// All connections are reset.
    ConnectionsReset: row(Reset, Several).in_table("connections reset", [
        NO_CONNECTION, holds(Lease, REDIS), holds(Lease, REDLOCK), holds(Moment, ZK), holds(Lease, POSTGRES),
        holds(Lease, SWAPS), holds(Lease, SWAPS),
    ])
        .in_soak(ALL, Any, at_once)
        .there("reset", "All connections to servers are reset")
        .which(&[InQuick]);
    /// An administrator ends all connections of clients.
    ConnectionsEnded: row(EndSessions, All).in_table("connections ended by the server", [
        NO_CONNECTION, LIKE_A_RESET, LIKE_A_RESET, LIKE_A_RESET, holds(Lease, POSTGRES),
        LIKE_A_RESET, holds(Lease, SWAPS),
    ])
        .in_soak(DATABASES, NoneOn(DATABASES), at_once)
        .there("end-sessions", "An administrator ends all sessions of clients");
    /// The same, and others take all connections that the server allows.
    NoConnectionLeft: row(TakeConnections, All).in_table("no connection left", [
        NO_CONNECTION, NOT_RUN, NOT_RUN, NOT_RUN, holds(FaultAndLease, POSTGRES),
        none("no such limit"), holds(FaultAndLease, SWAPS),
    ]);
    /// Servers are stopped by SIGSTOP; a minority where there are several.
    ServerPaused: row(Freeze, Minority).in_table("server paused", [
        NO_SERVER, holds(FaultAndLease, REDIS), holds(Lease, REDLOCK), holds(Lease, ZK), holds(FaultAndLease, POSTGRES),
        holds(Lease, ETCD), holds(FaultAndLease, SWAPS),
    ])
        .in_soak(PROXIED, Any, outage)
        .there("freeze", "Servers are stopped by SIGSTOP")
        .which(&[FailsServers]);
    /// Servers are killed by SIGKILL and restarted with their data; a minority where there are several.
    RestartWithData: row(Restart(Data::Kept), Minority).in_table("restart with data", [
        NO_SERVER,
        holds(FaultAndLease, REDIS),
        holds(Lease, REDLOCK),
        holds(Lease, ZK),
        holds(FaultAndLease, "A killed or restarted server loses nothing that it has granted (`sync=on`)."),
        holds(Lease, ETCD),
        holds(FaultAndLease, MYSQL),
    ])
        .in_soak(PROXIED, Any, |lease| Duration::ZERO..lease)
        .there("restart", "Servers are killed by SIGKILL and restarted with their data")
        .which(&[FailsServers]);
    /// All servers are killed by SIGKILL and restarted with their data, one after the other.
    RollingRestart: row(Restart(Data::Kept), EachInTurn).in_table("rolling restart with data", [
        NO_SERVER,
        none("one server: see *restart with data*"),
        holds(Moment, "So a lock is kept while all masters restart one after the other, each within a third of its ttl:"),
        holds(Lease, ZK),
        none("one server: see *restart with data*"),
        holds(Lease, ETCD),
        none("one server: see *restart with data*"),
    ])
        .in_soak(QUORUM, NoneOn(&[Site::Redlock]), at_once)
        .there("rolling-restart", "The same for all servers, one after the other, each after the recovery from the one before");
    /// The disk of the server is full.
    DiskFull: row(FillDisk, All).in_table("disk full", [
        NO_SERVER, NOT_RUN, NOT_RUN, NOT_RUN, holds(FaultAndLease, POSTGRES),
        holds(FaultAndLease, "etcd: a store that is full refuses renewals, so all locks are lost."),
        holds(FaultAndLease, SWAPS),
    ]);
    /// The server takes no writes: its transactions are read-only.
    ReadOnly: row(Disturb(&[ReadOnly]), All).in_table("read-only", [
        NO_SERVER, NOT_RUN, NOT_RUN, NOT_RUN,
        holds(FaultAndLease, POSTGRES),
        none("no such state"),
        holds(FaultAndLease, "A server with `read_only` is refused at connect, and stops the sessions of users without SUPER"),
    ]).in_soak(DATABASES, Any, some_time);
    /// Servers may use no more memory: they refuse what needs some.
    FullMemory: row(FillMemory, Several).in_soak(FILLED, NoneOn(ALL), |lease| 2 * lease..3 * lease).explains(Exhausted);
    /// A server is killed by SIGKILL and restarted without its data.
    RestartWithoutData: row(Restart(Data::Lost), Needed).in_table("restart without data", [
        NO_SERVER,
        two_valid(Moment, "the lock is free while its holder is still valid: **two valid guards**, for the rest of the ttl"),
        holds(Lease, "It does not vote until the longest ttl of all clients has passed: it is in quarantine."),
        holds(Lease, ZK),
        none("see *failover*"),
        none("it does not start"),
        two_valid(FaultAndLease, MYSQL_LACKS),
    ]).which(&[InQuick, FailsServers, HasLongLease]);
    /// A majority of the servers is stopped by SIGSTOP.
    MajorityPaused: row(Freeze, Majority).in_table("majority paused", [
        NO_SERVER,
        none("one server: see *server paused*"),
        holds(FaultAndLease, "while a majority is away; after a holder died, for its ttl"),
        holds(FaultAndLease, "while a majority is away; after a holder died, for its session timeout"),
        none("one server: see *server paused*"),
        holds(FaultAndLease, SWAPS_AWAY),
        none("one server: see *server paused*"),
    ]);
    /// All servers are stopped by SIGSTOP, not only a minority. Only when asked for.
    Blackout: row(Freeze, All)
        .in_soak(QUORUM, Any, outage)
        .which(&[IsExtreme]);
    /// The leader is cut off from the other servers, and not from its clients.
    LeaderCutOff: row(CutLeaderOff, Leader).in_table("leader cut off", [
        NO_SERVER,
        NO_LEADER,
        NO_LEADER,
        holds(FaultAndElection, "So only what a quorum has written to its log counts."),
        NO_LEADER,
        holds(Lease, ETCD),
        NO_LEADER,
    ]).which(&[FailsServers]);
    /// The master or leader is killed; a replica is promoted that lacks the lock.
    Failover: row(FailOver(Data::Lost), Leader).in_table("failover", [
        NO_SERVER,
        two_valid(FaultAndLease, "failover to a replica that had not received the write | the same."),
        none("no replicas: see *restart without data*"),
        holds(Lease, ZK),
        two_valid(FaultAndLease, "failover to an asynchronous standby | grants and renewals of the last moments may be lost: \
                                  **two valid guards**; fenced data is safe on the new primary"),
        holds(Lease, ETCD),
        two_valid(FaultAndLease, MYSQL_LACKS),
    ])
        .in_soak(&[Site::Sentinel], Unnoticed, at_once)
        .there("abrupt-failover", "Sentinels promote the replica, but the old master's last writes are lost, so that no lock can promise exclusion. Only when \
            asked for; overlaps are counted and do not fail the run")
        .which(&[FailsServers, HasLongLease, IsExtreme]);
    /// The same with a standby that has every write which was confirmed.
    SynchronousFailover: row(FailOver(Data::Kept), Leader).in_table("failover, synchronous", [
        NO_SERVER,
        none("replicas are asynchronous"),
        none("no replicas: see *restart without data*"),
        none("a quorum has every write: see *failover*"),
        holds(FaultAndLease, "**A failover to a synchronous standby loses nothing**: a grant is confirmed only when the \
                              standby has it."),
        none("a quorum has every write: see *failover*"),
        holds(FaultAndLease, "A failover of MySQL to a replica that has every commit which was confirmed loses nothing."),
    ])
        .in_soak(&[Site::Sentinel], Any, at_once)
        .there("failover", "Sentinels promote the replica, which has every write")
        .which(&[HasLongLease]);
    /// The key ends early on a minority of the servers.
    KeyEndedOnMinority: row(EndKeys, Minority).in_table("key ended on a minority", [
        NO_SERVER,
        none("one server: see *key ended early*"),
        holds(Moment, "A key that was granted and is then gone lets the next client have that vote as well."),
        none("a quorum decides: see *key ended early*"),
        none("one server: see *key ended early*"),
        none("a quorum decides: see *key ended early*"),
        none("one server: see *key ended early*"),
    ]).which(&[HasLongLease]);
    /// The key ends early on a majority of the servers, or the node is deleted.
    KeyEnded: row(EndKeys, Majority).in_table("key ended early", [
        NO_SERVER,
        two_valid(Moment, REDIS_FORGETS),
        two_valid(Lease, "**A master that forgets a key breaks the lock.**"),
        expect(Promise::MaybeTwoValid, Moment, "The holder learns of it within a network delay (`guard.lost()`), but not \
                                                before the next holder gets the lock."),
        two_valid(Lease, "the server's clock steps forward | leases end early: two valid guards; fenced data is safe"),
        two_valid(Moment, SWAPS_LOSES),
        two_valid(Moment, SWAPS_LOSES),
    ]).which(&[InQuick, HasLongLease]);
    /// A server executes FLUSHALL.
    Flushall: row(Flush, Needed).in_table("`FLUSHALL`", [
        NO_SERVER,
        two_valid(Moment, REDIS_FORGETS),
        two_valid(Lease, "One such master of five can be enough:"),
        none("no such command"),
        none("no such command"),
        none("no such command"),
        none("no such command"),
    ]).which(&[HasLongLease]);
    /// The clock of a server steps forward.
    ClockStep: row(EndKeys, Majority).in_table("server's clock steps", [
        NO_SERVER,
        LIKE_A_KEY_THAT_ENDS,
        LIKE_A_KEY_THAT_ENDS,
        NO_CLOCK,
        LIKE_A_KEY_THAT_ENDS,
        NO_CLOCK,
        NO_CLOCK,
    ]);
    /// A script runs on a server, which answers BUSY meanwhile; then on the next one.
    BusyScript: row(RunScript, EachInTurn).in_soak(REDIS_SITES, NoneOn(&[Site::Redlock]), |lease| S..lease + 2 * S);
    /// A server is restarted with a lower limit of the session timeout; later its clients are cut off, and it is restarted
    /// with the old one.
    Renegotiation: row(Renegotiate, Minority).in_soak(&[Site::Zk], Any, |lease| lease + 3 * S..lease + 3 * S);
    /// All servers demand another password, and close the connections of clients; the file that clients read follows later.
    Password: row(ChangePassword, All).in_soak(SECRET, Any, some_time).explains(Denied);
    /// The server is restarted with certificates of another authority; the files that clients read follow later.
    Certificate: row(ChangeCertificate, All).in_soak(&[Site::RedisTls], Any, some_time).explains(InvalidConfig);
    /// Another session has a table of the locks for itself.
    TableLock: row(Disturb(&[TableLock("lock"), TableLock("lease"), TableLock("waiter")]), All)
        .in_soak(POSTGRES_ALONE, Any, some_time);
    /// A superuser cancels what the sessions of clients do, again and again; at times no standby confirms their commits.
    CancelledWaits: row(Disturb(&[Cancels { without_standby: true }, Cancels { without_standby: false }]), All)
        .in_soak(POSTGRES_ALONE, Any, some_time);
    /// All sessions of clients are ended, and new ones have another level of isolation by default; later the same back.
    IsolationLevel: row(Disturb(&[Isolation("serializable"), Isolation("repeatable read")]), All)
        .in_soak(POSTGRES_ALONE, NoneOn(POSTGRES_ALONE), some_time);
    /// The tables of the locks are rewritten by VACUUM FULL.
    FullVacuum: row(Disturb(&[FullVacuum]), All).in_soak(POSTGRES_ALONE, NoneOn(POSTGRES_ALONE), at_once);
    /// Another client notifies all clients of grants and changes that do not exist.
    ForgedNotifications: row(Forge, All).in_soak(NOTIFIED, NoneOn(NOTIFIED), some_time);
}

impl Fault {
    pub(crate) fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The faults of the table, in its order.
    pub(crate) fn of_table() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|fault| fault.row().cells.is_some())
    }

    /// The faults of the soak.
    pub(crate) fn of_soak() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|fault| !fault.row().on.is_empty())
    }

    /// The fault in words.
    pub(crate) fn title(self) -> &'static str {
        self.row().title
    }

    /// What is promised of it on this backend.
    pub(crate) fn on(self, backend: BackendName) -> Cell {
        self.row().cells.and_then(|cells| cells.get(backend as usize).copied()).unwrap_or(NOT_RUN)
    }

    /// Its name with that of a backend, which is that of the expectation in a record.
    pub(crate) fn name_on(self, backend: BackendName) -> String {
        format!("{self} on {backend}")
    }

    /// Its name in the soak, with what it does there.
    pub(crate) fn in_soak(self) -> PossibleValue {
        let named = self.row().there.map(|(name, help)| PossibleValue::new(name).help(help));
        named.or_else(|| self.to_possible_value()).expect("no variant is skipped")
    }

    pub(crate) fn soak_name(self) -> String {
        self.in_soak().get_name().to_owned()
    }
}

/// By its name on the command line of the table.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_name(self, f)
    }
}

/// Whom it hits.
impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableLock(table) => write!(f, "the table {table}"),
            Self::Cancels { without_standby: false } => f.write_str("all sessions"),
            Self::Cancels { without_standby: true } => f.write_str("all sessions, without a standby"),
            Self::ReadOnly => f.write_str("the server"),
            Self::Isolation(level) => write!(f, "all sessions, {level}"),
            Self::FullVacuum => f.write_str("all tables"),
            Self::ForgedNotifications => f.write_str("all inboxes"),
        }
    }
}

const fn row(effect: Effect, hits: Hits) -> Row {
    Row {
        effect,
        hits,
        title: "",
        flags: &[],
        cells: None,
        on: &[],
        losses: Any,
        span: at_once,
        explains: None,
        there: None,
    }
}

impl Row {
    const fn in_table(self, title: &'static str, cells: [Cell; COLUMNS]) -> Self {
        Self { title, cells: Some(cells), ..self }
    }

    const fn which(self, flags: &'static [Flag]) -> Self {
        Self { flags, ..self }
    }

    const fn in_soak(
        self,
        on: &'static [Site],
        losses: Losses,
        span: fn(Duration) -> Range<Duration>,
    ) -> Self {
        Self { on, losses, span, ..self }
    }

    const fn there(self, name: &'static str, help: &'static str) -> Self {
        Self { there: Some((name, help)), ..self }
    }

    const fn explains(self, kind: ErrorKind) -> Self {
        Self { explains: Some(kind), ..self }
    }

    /// Whether the soak has it at this site.
    pub(crate) fn befalls(&self, site: Site) -> bool {
        self.on.contains(&site)
    }

    pub(crate) fn is(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    /// How long it lasts in the soak: from the shortest to the longest.
    pub(crate) fn span(&self, lease: Duration) -> Range<Duration> {
        (self.span)(lease)
    }

    /// Whether no worker may lose a lock by it, but for the thread that computes.
    pub(crate) fn keeps_locks(&self, site: Site) -> bool {
        matches!(self.losses, NoneOn(sites) if sites.contains(&site))
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

fn at_once(_: Duration) -> Range<Duration> {
    Duration::ZERO..Duration::ZERO
}

fn some_time(lease: Duration) -> Range<Duration> {
    S..2 * lease
}

/// Long enough that requests which a stopped server executes afterwards are older than any lease and client timeout.
fn outage(lease: Duration) -> Range<Duration> {
    S..lease + 5 * S
}

const COLUMNS: usize = BackendName::IN_TABLE.len();
const S: Duration = Duration::from_secs(1);
const BOTH: &[Direction] = &[ToServer, ToClient];
const ALL: &[Site] = &[
    Site::Redis,
    Site::RedisTls,
    Site::Sentinel,
    Site::Redlock,
    Site::Zk,
    Site::Postgres,
    Site::Etcd,
    Site::Mysql,
];
const REDIS_SITES: &[Site] = &[Site::Redis, Site::RedisTls, Site::Sentinel, Site::Redlock];
/// Waiters are notified by messages that others can send.
const NOTIFIED: &[Site] = &[Site::Redis, Site::RedisTls, Site::Sentinel, Site::Redlock, Site::Postgres];
/// Behind sentinels clients discover the servers themselves, past all proxies.
const PROXIED: &[Site] =
    &[Site::Redis, Site::RedisTls, Site::Redlock, Site::Zk, Site::Postgres, Site::Etcd, Site::Mysql];
/// They demand a password.
const SECRET: &[Site] = &[Site::Redis, Site::RedisTls, Site::Sentinel, Site::Redlock, Site::Zk];
const QUORUM: &[Site] = &[Site::Redlock, Site::Zk, Site::Etcd];
const FILLED: &[Site] = &[Site::Redis, Site::RedisTls, Site::Redlock];
const POSTGRES_ALONE: &[Site] = &[Site::Postgres];
const DATABASES: &[Site] = &[Site::Postgres, Site::Mysql];

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
const LIKE_A_KEY_THAT_ENDS: Cell = none("see *key ended early*");
const NO_CLOCK: Cell = none("its clock does not count");
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
const SWAPS: &str = "Exclusion, and tokens that grow. Reads may be stale. A swap may be late by any time, and its answer may be lost: it is \
                     refused, as the version has moved.";
const SWAPS_CRASH: &str =
    "**A crashed holder's lock is free one ttl after somebody has begun to wait for it**";
const SWAPS_AWAY: &str =
    "while the store is away; after a holder died, for its ttl from when somebody begins to wait";
const SWAPS_LOSES: &str = "after the store loses or sets back a value";
const ETCD: &str = "etcd: the loss of a minority of the members, a new leader, and a restart of all lose nothing that was granted.";
const MYSQL: &str = "MySQL and MariaDB: a restart or a crash of the server loses nothing that was granted";
const MYSQL_LACKS: &str = "MySQL and MariaDB: two guards may be valid after a failover to a replica that lacks the last commits \
                           (asynchronous replication, and semi-synchronous after its timeout), after a restore from a backup";
const COUNTED: &str = "**Validity is counted from before the request is sent**";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_fault_is_lost_and_each_has_a_name_of_its_own() {
        let (table, soak) = (Fault::of_table().count(), Fault::of_soak().count());
        assert_eq!((table, soak, ROWS.len()), (25, 27, Fault::value_variants().len()));
        assert_eq!(Fault::of_soak().map(Fault::soak_name).collect::<BTreeSet<_>>().len(), soak);
        assert!(
            Fault::value_variants()
                .iter()
                .all(|fault| fault.row().cells.is_some() || !fault.row().on.is_empty())
        );
    }
}
