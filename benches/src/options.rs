//! The command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use polylock::backend::LockUrl;
use serde::{Deserialize, Serialize};

/// Measures the lock backends against each other on real servers, and checks that they exclude.
///
/// Starts servers of its own on free ports, runs every scenario against every backend, prints one table, writes
/// results.json and report.html, and leaves nothing behind. Exits with 1 when a lock failed to exclude or something
/// could not be measured, and with 130 when it was interrupted.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask compare", bin_name = "cargo xtask compare", version)]
pub(crate) struct Options {
    /// What this process does in a run.
    #[command(subcommand)]
    pub(crate) role: Option<Role>,

    /// End within 40 seconds instead of some minutes, without the scenarios `peers`, `herd`, `held` and `degraded`
    #[arg(long)]
    pub(crate) quick: bool,

    /// Only this backend; can be given several times
    #[arg(long = "backend", value_name = "NAME")]
    backends: Vec<BackendName>,

    /// Only this scenario; can be given several times
    #[arg(long = "scenario", value_name = "NAME")]
    scenarios: Vec<ScenarioName>,

    /// Three ZooKeeper servers instead of one
    #[arg(long)]
    pub(crate) ensemble: bool,

    /// A server that already runs, such as redis=redis://host:6379; can be given several times
    #[arg(long = "url", value_name = "NAME=URL")]
    urls: Vec<ServerUrl>,

    /// How many processes fight for the lock in `contended` and `peers` [default: 20, 8 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) processes: Option<u32>,

    /// How many tasks of one process fight for the lock in `tasks` [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) tasks: Option<u32>,

    /// How many locks `held` holds [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) locks: Option<u32>,

    /// For how long `held` watches them, such as 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = watch)]
    pub(crate) watch: Option<Duration>,

    /// Keep the cores from halting meanwhile, with loops of the lowest priority: less noise, and hand-overs without the
    /// time that a sleeping core takes to wake
    #[arg(long)]
    pub(crate) awake: bool,

    /// The folder for results.json and report.html [default: target/compare]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,

    /// Gives every contender a lock of its own, to prove that the harness notices.
    #[arg(long, hide = true)]
    pub(crate) without_exclusion: bool,
}

/// What a process does in a run.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Role {
    /// Does what the parent says on standard input.
    #[command(hide = true)]
    Worker,
    /// Lets processes use locks while they and the servers are killed, frozen and cut off, and judges what they saw.
    ///
    /// Starts servers of its own, twelve processes for each backend, and one fault after the other, chosen by a seed. Exits
    /// with 1 when two guards of one lock were valid at the same time, when fencing tokens did not grow, when a lock was
    /// not granted for longer than its lease and two seconds after a fault had ended, or when a process got stuck. Ctrl-C ends
    /// it early: what was done by then is judged. The memory backend is left out: its locks are those of one process.
    #[command(hide = true, override_usage = "cargo xtask soak [OPTIONS]")]
    Soak(SoakOptions),
}

/// The options of a soak.
#[derive(Args, Clone, Debug)]
pub(crate) struct SoakOptions {
    /// For how long, each backend
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
    pub(crate) out: Option<PathBuf>,

    /// Uses a lock that is broken in this way, to prove that the judge notices
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

/// What an operator can do to processes and servers.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultKind {
    /// Some workers are killed by SIGKILL; others take their place.
    Kill,
    /// A worker is stopped by SIGSTOP for longer than its lease.
    Pause,
    /// Servers are stopped by SIGSTOP.
    Freeze,
    /// All connections to servers are reset.
    Reset,
    /// Whatever is sent to servers, or by them, vanishes.
    BlackHole,
    /// Servers are killed by SIGKILL, and started again with their data.
    Restart,
    /// All servers are stopped by SIGSTOP, not only a minority. Only when asked for.
    Blackout,
    /// Sentinels promote the replica, which has all that was written.
    Failover,
    /// The same without a pause: what the old master was told last is lost, and no lock promises to exclude then. Only when
    /// asked for; overlaps are counted, and fail nothing.
    AbruptFailover,
}

/// What can be wrong with a lock.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Defect {
    /// Every process has locks of its own.
    EveryProcessAlone,
    /// Tokens become smaller.
    TokensShrink,
    /// A release leaves the lock for another minute.
    NeverReleases,
}

/// A backend, by the name that it has in the results and as a URL scheme.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum BackendName {
    /// Locks inside one process.
    Memory,
    /// One Redis server.
    Redis,
    /// Five independent Redis servers.
    Redlock,
    /// ZooKeeper.
    Zk,
}

/// A scenario, by the name that it has in the results.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum ScenarioName {
    /// Acquire and release, nobody else wants the lock.
    Uncontended,
    /// Processes fight for one lock.
    Contended,
    /// Tasks of one process fight for one lock.
    Tasks,
    /// The holder is killed.
    Crash,
    /// The same fight with the locks of other libraries.
    Peers,
    /// Many processes wait for one lock: what a release costs.
    Herd,
    /// Many locks held at once.
    Held,
    /// One of the masters does not answer.
    Degraded,
}

/// A server that already runs.
#[derive(Clone)]
struct ServerUrl {
    backend: BackendName,
    url: String,
}

impl Options {
    /// The backends that take part, in the order of the results.
    pub(crate) fn backends(&self) -> Vec<BackendName> {
        chosen(&self.backends, BackendName::value_variants())
    }

    /// The scenarios that run, in the order of the results.
    pub(crate) fn scenarios(&self) -> Vec<ScenarioName> {
        let all = ScenarioName::value_variants();
        let by_default = if self.quick { &all[..IN_QUICK] } else { all };
        chosen(&self.scenarios, by_default)
    }

    /// Where the servers of this backend already run, if they do.
    pub(crate) fn url(&self, backend: BackendName) -> Option<&str> {
        self.urls.iter().rev().find(|server| server.backend == backend).map(|server| server.url.as_str())
    }
}

impl SoakOptions {
    /// The backends that take part, in their order.
    pub(crate) fn backends(&self) -> Vec<SoakBackend> {
        chosen(&self.backends, SoakBackend::value_variants())
    }

    /// The faults that may happen to this backend.
    pub(crate) fn faults(&self, backend: SoakBackend) -> Vec<FaultKind> {
        let all = FaultKind::value_variants().iter().copied();
        let by_default: Vec<_> = all.filter(|kind| !kind.is_extreme()).collect();
        let wanted = chosen(&self.faults, &by_default);
        wanted.into_iter().filter(|kind| kind.befalls(backend)).collect()
    }

    /// The options that repeat the run on one backend, beside its seed.
    pub(crate) fn repeated(&self, backend: SoakBackend) -> String {
        let mut line = format!("--minutes {} --backend {backend}", self.minutes.as_secs_f64() / 60.0);
        for fault in &self.faults {
            line.push_str(&format!(" --fault {fault}"));
        }
        line
    }
}

impl FaultKind {
    /// Behind sentinels the clients find the servers by themselves, past all proxies; and a master that is gone for half
    /// a second is replaced by a replica that may lack the last locks, of which nothing is promised.
    fn befalls(self, backend: SoakBackend) -> bool {
        match self {
            Self::Kill | Self::Pause | Self::Reset => true,
            Self::Freeze | Self::BlackHole | Self::Restart => backend != SoakBackend::Sentinel,
            Self::Blackout => matches!(backend, SoakBackend::Redlock | SoakBackend::Zk),
            Self::Failover | Self::AbruptFailover => backend == SoakBackend::Sentinel,
        }
    }

    /// Whether it comes to pass only when it is asked for.
    fn is_extreme(self) -> bool {
        matches!(self, Self::Blackout | Self::AbruptFailover)
    }

    /// Whether servers may forget what they were told.
    pub(crate) fn loses_data(self) -> bool {
        self == Self::AbruptFailover
    }
}

impl fmt::Display for SoakBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().expect("none is skipped").get_name())
    }
}

impl BackendName {
    /// The name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Zk => "zk",
        }
    }
}

impl ScenarioName {
    /// The name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::Tasks => "tasks",
            Self::Crash => "crash",
            Self::Peers => "peers",
            Self::Herd => "herd",
            Self::Held => "held",
            Self::Degraded => "degraded",
        }
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for ScenarioName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) =
            text.split_once('=').ok_or("write it as NAME=URL, such as redis=redis://127.0.0.1:6379")?;
        let backend = BackendName::from_str(name, false)?;
        if backend == BackendName::Memory {
            return Err("the memory backend has no server".into());
        }
        let scheme = LockUrl::parse(url).map_err(|error| error.to_string())?.scheme;
        if scheme != backend.as_str() {
            return Err(format!("the URL of {backend} starts with {backend}://, not with {scheme}://"));
        }
        Ok(Self { backend, url: url.to_owned() })
    }
}

/// Without the password.
impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerUrl").field(&self.backend).finish()
    }
}

fn chosen<T: Copy + Ord>(wanted: &[T], by_default: &[T]) -> Vec<T> {
    let mut chosen = if wanted.is_empty() { by_default.to_vec() } else { wanted.to_vec() };
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn watch(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (SHORTEST_WATCH..=LONGEST_WATCH).contains(&span) {
        return Ok(span);
    }
    Err("between a second and a day, please".into())
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "give a number of minutes, such as 10 or 0.5")?;
    let span = Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?;
    if (SHORTEST_WATCH..=LONGEST_WATCH).contains(&span) {
        return Ok(span);
    }
    Err("between a second and a day, please".into())
}

/// So many scenarios, counted from the first, are part of a quick run.
const IN_QUICK: usize = 4;
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const LONGEST_WATCH: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["compare"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn everything_by_default_and_the_short_ones_in_quick() {
        let all = parse("").unwrap();
        assert_eq!(all.backends().len(), 4);
        assert_eq!(all.scenarios().len(), 8);
        assert_eq!(parse("--quick").unwrap().scenarios().len(), 4);
        let some = parse("--quick --scenario held --scenario crash --backend zk --backend memory").unwrap();
        assert_eq!(some.scenarios(), [ScenarioName::Crash, ScenarioName::Held]);
        assert_eq!(some.backends(), [BackendName::Memory, BackendName::Zk]);
    }

    #[test]
    fn sizes_have_limits() {
        let options = parse("--scenario held --locks 100000 --watch 5m").unwrap();
        assert_eq!((options.locks, options.watch), (Some(100_000), Some(Duration::from_secs(300))));
        for bad in ["--processes 1", "--tasks 0", "--locks 0", "--watch 0s", "--watch 2days", "--watch soon"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_soak_can_be_repeated() {
        let soak = |line: &str| match parse(line).unwrap().role {
            Some(Role::Soak(options)) => options,
            other => panic!("{other:?}"),
        };
        let all = soak("soak");
        assert_eq!((all.minutes, all.seed, all.backends().len()), (Duration::from_secs(600), None, 4));
        assert_eq!(
            all.faults(SoakBackend::Sentinel),
            [FaultKind::Kill, FaultKind::Pause, FaultKind::Reset, FaultKind::Failover]
        );
        assert!(!all.faults(SoakBackend::Redlock).contains(&FaultKind::Failover));
        let abrupt = soak("soak --fault abrupt-failover");
        assert_eq!(abrupt.faults(SoakBackend::Sentinel), [FaultKind::AbruptFailover]);
        let line = "--minutes 0.5 --backend zk --fault black-hole --fault kill";
        let some = soak(&format!("soak {line} --seed 7"));
        assert_eq!((some.repeated(SoakBackend::Zk), some.seed), (line.to_owned(), Some(7)));
        assert_eq!(some.faults(SoakBackend::Redis), [FaultKind::Kill, FaultKind::BlackHole]);
        for bad in ["--minutes 0", "--minutes many", "--backend memory", "--fault flushall", "--seed -1"] {
            assert!(parse(&format!("soak {bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_belong_to_backends() {
        let options = parse("--url redis=redis://:secret@h:1 --url zk=zk://a:1,b:2/app").unwrap();
        assert_eq!(options.url(BackendName::Redis), Some("redis://:secret@h:1"));
        assert_eq!(options.url(BackendName::Zk), Some("zk://a:1,b:2/app"));
        assert_eq!(options.url(BackendName::Redlock), None);
        assert!(!format!("{options:?}").contains("secret"));
        for bad in ["redis://h:1", "redis=zk://h:1", "memory=memory://", "etcd=etcd://h", "redis=h:1"] {
            assert!(parse(&format!("--url {bad}")).is_err(), "{bad}");
        }
    }
}
