//! The command line of `cargo xtask soak`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::fault_kind::FaultKind;
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
    /// One Redis server, over TLS.
    RedisTls,
    /// A Redis master with a replica, behind three sentinels.
    Sentinel,
    /// Five independent Redis servers.
    Redlock,
    /// Three ZooKeeper servers.
    Zk,
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
        let by_default: Vec<_> = all.filter(|kind| kind.row().is_usual()).collect();
        let wanted = chosen(&self.faults, &by_default);
        wanted.into_iter().filter(|kind| kind.row().befalls(backend)).collect()
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

impl fmt::Display for SoakBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("no variant is skipped").get_name())
    }
}
