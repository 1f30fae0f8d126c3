//! The command line of `cargo xtask soak`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{chosen, minutes, target_folder};

/// The options of a soak.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakOptions {
    /// Minutes for each backend
    #[arg(long, value_name = "N", default_value = "10", value_parser = minutes)]
    pub(crate) minutes: Duration,

    /// Only this backend; can be given several times
    #[arg(long = "backend", value_name = "NAME")]
    backends: Vec<SoakBackend>,

    /// Chooses the faults and what the processes do [default: another one each time]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,

    /// Only faults of this kind; can be given several times
    #[arg(long = "fault", value_name = "KIND")]
    faults: Vec<FaultKind>,

    /// The folder for the histories [default: target/soak]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Uses a lock with this defect, to prove that the checks find it
    #[arg(long, value_name = "DEFECT", hide = true)]
    pub(crate) broken: Option<Defect>,
}

/// A backend of a soak.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum SoakBackend {
    /// One Redis server.
    Redis,
    /// A Redis master with a replica, behind three sentinels.
    Sentinel,
    /// Five independent Redis servers.
    Redlock,
    /// Three ZooKeeper servers.
    Zk,
}

/// The kinds of faults that a soak injects.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// Some workers are killed by SIGKILL and replaced.
    Kill,
    /// A worker is stopped by SIGSTOP for longer than its lease.
    Pause,
    /// Servers are stopped by SIGSTOP.
    Freeze,
    /// All connections to servers are reset.
    Reset,
    /// Everything that is sent to or by servers is lost.
    BlackHole,
    /// Servers are killed by SIGKILL and restarted with their data.
    Restart,
    /// Servers may use no more memory: they refuse what needs some.
    FullMemory,
    /// A server is restarted with a lower limit of the session timeout; later its clients are cut off, and it is restarted
    /// with the old one.
    Renegotiation,
    /// A thread of a worker computes for longer than two leases: nothing else runs on its runtime meanwhile.
    BusyThread,
    /// Some workers are killed, and replaced by ones that fork before they connect.
    Fork,
    /// All servers are stopped by SIGSTOP, not only a minority. Only when asked for.
    Blackout,
    /// Sentinels promote the replica, which has every write.
    Failover,
    /// The same, but the old master's last writes are lost, so that no lock can promise exclusion. Only when asked for;
    /// overlaps are counted and do not fail the run.
    AbruptFailover,
}

/// A deliberate defect of the lock.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Defect {
    /// Every process locks other names.
    EveryProcessAlone,
    /// Fencing tokens decrease.
    TokensShrink,
    /// Released locks stay held for another minute.
    NeverReleases,
    /// Locks are not renewed.
    NeverRenews,
}

impl SoakOptions {
    /// The selected backends, in the order of declaration.
    pub(crate) fn backends(&self) -> Vec<SoakBackend> {
        chosen(&self.backends, SoakBackend::value_variants())
    }

    /// The faults to inject into this backend.
    pub(crate) fn faults(&self, backend: SoakBackend) -> Vec<FaultKind> {
        let all = FaultKind::value_variants().iter().copied();
        let by_default: Vec<_> = all.filter(|kind| !kind.is_extreme()).collect();
        let wanted = chosen(&self.faults, &by_default);
        wanted.into_iter().filter(|kind| kind.befalls(backend)).collect()
    }

    /// The folder for the histories.
    pub(crate) fn folder(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| target_folder("soak"))
    }

    /// The options that repeat the run on one backend, without its seed.
    pub(crate) fn repeated(&self, backend: SoakBackend) -> String {
        let mut line = format!("--minutes {} --backend {backend}", self.minutes.as_secs_f64() / 60.0);
        for fault in &self.faults {
            line.push_str(&format!(" --fault {fault}"));
        }
        line
    }
}

impl FaultKind {
    /// Behind sentinels clients discover the servers themselves, past all proxies.
    fn befalls(self, backend: SoakBackend) -> bool {
        match self {
            Self::Kill | Self::Pause | Self::Reset | Self::BusyThread | Self::Fork => true,
            Self::Freeze | Self::BlackHole | Self::Restart => backend != SoakBackend::Sentinel,
            Self::FullMemory => matches!(backend, SoakBackend::Redis | SoakBackend::Redlock),
            Self::Renegotiation => backend == SoakBackend::Zk,
            Self::Blackout => matches!(backend, SoakBackend::Redlock | SoakBackend::Zk),
            Self::Failover | Self::AbruptFailover => backend == SoakBackend::Sentinel,
        }
    }

    /// Whether it happens only when asked for.
    fn is_extreme(self) -> bool {
        matches!(self, Self::Blackout | Self::AbruptFailover)
    }

    /// Whether it takes the locks of no process but those that it kills.
    pub(crate) fn is_of_workers(self) -> bool {
        matches!(self, Self::Kill | Self::Fork)
    }

    /// Whether no worker may lose a lock by it, but to the thread that computes.
    pub(crate) fn keeps_locks(self) -> bool {
        matches!(self, Self::FullMemory | Self::BusyThread)
    }

    /// Whether servers may lose writes that they acknowledged.
    pub(crate) fn loses_data(self) -> bool {
        self == Self::AbruptFailover
    }
}

impl fmt::Display for SoakBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}
