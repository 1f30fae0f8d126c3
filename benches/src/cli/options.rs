//! The command line of `cargo xtask compare`, and of what else this program does.

pub(crate) mod faults;
pub(crate) mod soak;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use polylock::backend::LockUrl;

use self::faults::FaultOptions;
use self::soak::SoakOptions;
use crate::data::{BackendName, Mode, Plan};
use crate::experiments::claim::Claim;
use crate::experiments::experiment::Experiment;
use crate::experiments::faults::FaultTable;
use crate::experiments::list::EXPERIMENTS;
use crate::rig::Wanted;
use crate::rig::backends::is_missing;

/// Measures the lock backends against each other on real servers, and checks that they exclude.
///
/// Starts its own servers on free ports, runs every scenario against every backend, prints the results, writes
/// results.json, report.html and report.md, and cleans up. Exits with 1 when a lock failed to exclude or a scenario failed, and with
/// 130 when interrupted.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask compare", bin_name = "cargo xtask compare", version)]
pub(crate) struct Options {
    /// What this process does in a run.
    #[command(subcommand)]
    pub(crate) role: Option<Role>,

    /// Take less than a minute instead of many, without the scenarios `crash`, `peers`, `herd`, `crowded`, `held`, `degraded`,
    /// `migration` and `command`, and without etcd, MySQL, SQLite and S3 unless they are named
    #[arg(long)]
    pub(crate) quick: bool,

    /// Only this backend; can be given several times
    #[arg(long = "backend", value_name = "NAME")]
    backends: Vec<BackendName>,

    /// Only this scenario; can be given several times
    #[arg(long = "scenario", value_name = "NAME", value_parser = PossibleValuesParser::new(scenarios()))]
    scenarios: Vec<String>,

    /// Only this claim, by its number, with the scenarios that it needs; can be given several times
    #[arg(long = "claim", value_name = "N", value_parser = claim)]
    claims: Vec<u8>,

    /// Three ZooKeeper servers instead of one
    #[arg(long)]
    pub(crate) ensemble: bool,

    /// Use a running server, such as redis=redis://host:6379; can be given several times
    #[arg(long = "url", value_name = "NAME=URL")]
    urls: Vec<ServerUrl>,

    /// Number of processes that contend for the lock in `contended` and `peers` [default: 20, 8 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=64))]
    processes: Option<u32>,

    /// Number of tasks of one process that contend for the lock in `tasks` [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: Option<u32>,

    /// Number of locks that `held` holds [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    locks: Option<u32>,

    /// How long `held` measures their renewal, such as 5m [default: 11s]
    #[arg(long, value_name = "TIME", value_parser = watch)]
    watch: Option<Duration>,

    /// Print all tables, and what the servers' doctors find, instead of one screen
    #[arg(long)]
    pub(crate) verbose: bool,

    /// Keep the cores from halting, with loops of the lowest priority: less noise, and hand-overs without the wake-up
    /// latency of a halted core
    #[arg(long)]
    pub(crate) awake: bool,

    /// The folder for results.json and the reports [default: target/compare, target/faults with --faults]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Measure each scenario this often; the numbers are medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,

    /// Write the reports of an earlier run again, from its results.json, and measure nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) faults: FaultOptions,

    /// Gives every client a lock of its own, to prove that the harness detects missing exclusion.
    #[arg(long, hide = true)]
    pub(crate) without_exclusion: bool,
}

/// What this process is for.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Role {
    /// Executes the orders that the parent process writes to standard input.
    #[command(hide = true)]
    Worker,
    /// Has processes use locks while they and the servers are killed, frozen and cut off, and checks their histories.
    ///
    /// Starts its own servers and twelve processes for each backend, and injects one fault after the other, chosen by a
    /// seed. Exits with 1 when two guards of one lock were valid at the same time, when fencing tokens did not grow, when
    /// a lock was free for longer than its lease and two seconds after the end of a fault, or when a process got stuck.
    /// Ctrl-C ends it early: the history up to then is checked. The memory backend is left out: its locks are local to
    /// one process.
    #[command(hide = true, override_usage = "cargo xtask soak [OPTIONS]")]
    Soak(SoakOptions),
}

/// A running server to use.
#[derive(Clone)]
struct ServerUrl {
    backend: BackendName,
    url: String,
}

impl Options {
    /// How long the run takes.
    pub(crate) const fn mode(&self) -> Mode {
        if self.quick { Mode::Quick } else { Mode::Full }
    }

    /// The size of the run.
    pub(crate) fn plan(&self) -> Plan {
        let plan = Plan::new(self.mode());
        let held_locks = self.locks.map_or(plan.held_locks, |locks| locks as usize);
        let processes = self.processes.unwrap_or(plan.processes);
        let tasks = self.tasks.unwrap_or(plan.tasks);
        Plan { processes, tasks, ..plan.holding(held_locks, self.watch.unwrap_or(plan.held)) }
    }

    /// The servers of the selected backends.
    pub(crate) fn servers(&self) -> Vec<Wanted<'_>> {
        let wanted = |backend| Wanted { backend, url: self.url(backend), ensemble: self.ensemble };
        self.backends().into_iter().map(wanted).collect()
    }

    /// The fault table of the run.
    pub(crate) fn fault_table(&self) -> FaultTable {
        FaultTable {
            backends: self.columns().into_iter().filter(|&backend| !self.leaves_out(backend)).collect(),
            faults: self.faults.faults(self.quick),
            seed: self.faults.seed,
            broken: self.faults.broken,
            folder: self.folder(),
        }
    }

    /// The selected columns of the fault table.
    pub(crate) fn columns(&self) -> Vec<BackendName> {
        chosen(&self.backends, if self.quick { &BackendName::IN_QUICK } else { &BackendName::IN_TABLE })
    }

    /// The selected backends, in the order of the results.
    pub(crate) fn backends(&self) -> Vec<BackendName> {
        chosen(
            &self.backends,
            if self.quick { &BackendName::IN_QUICK } else { BackendName::value_variants() },
        )
    }

    /// Whether it was asked for by its name.
    fn names(&self, backend: BackendName) -> bool {
        self.backends.contains(&backend) || self.url(backend).is_some()
    }

    /// Whether it is left out, as its server is not installed.
    pub(crate) fn leaves_out(&self, backend: BackendName) -> bool {
        !self.names(backend) && is_missing(backend)
    }

    /// The experiments whose rows are measured, in the order of the results: the selected ones, and those that the selected claims
    /// need.
    pub(crate) fn experiments(&self) -> Vec<&'static Experiment> {
        let is_chosen = |one: &Experiment| self.scenarios.iter().any(|name| name == one.name);
        let is_needed =
            |one: &Experiment| self.claims().iter().any(|(_, claim)| claim.needs.contains(&one.name));
        let is_wanted = |one: &Experiment| {
            let fits = !self.quick || one.in_quick;
            match (&self.scenarios[..], &self.claims[..]) {
                ([], []) => fits,
                (_, []) => is_chosen(one),
                _ => is_chosen(one) || fits && is_needed(one),
            }
        };
        EXPERIMENTS.iter().copied().filter(|one| one.rows.is_some() && is_wanted(one)).collect()
    }

    /// The selected claims, in the order of their numbers.
    pub(crate) fn claims(&self) -> Vec<(&'static Experiment, &'static Claim)> {
        let is_wanted = |claim: &Claim| match (&self.claims[..], &self.scenarios[..]) {
            ([], []) => !self.quick || claim.in_quick,
            (ids, _) => ids.contains(&claim.id),
        };
        let all = EXPERIMENTS.iter().filter_map(|experiment| Some((*experiment, experiment.claim.as_ref()?)));
        let mut wanted: Vec<_> = all.filter(|(_, claim)| is_wanted(claim)).collect();
        wanted.sort_by_key(|(_, claim)| claim.id);
        wanted
    }

    /// The URL of the running servers to use for this backend, if any.
    fn url(&self, backend: BackendName) -> Option<&str> {
        self.urls.iter().rev().find(|server| server.backend == backend).map(|server| server.url.as_str())
    }

    /// Whether the fault table is part of the run: in full runs of everything.
    pub(crate) fn has_fault_table(&self) -> bool {
        !self.quick && self.scenarios.is_empty() && self.claims.is_empty() && self.urls.is_empty()
    }

    /// The folder for results.json and the reports.
    pub(crate) fn folder(&self) -> PathBuf {
        let name = if self.faults.wanted { "faults" } else { "compare" };
        self.out.clone().unwrap_or_else(|| target_folder(name))
    }
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) =
            text.split_once('=').ok_or("must be NAME=URL, such as redis=redis://127.0.0.1:6379")?;
        let backend = BackendName::from_str(name, false)?;
        if backend == BackendName::Memory {
            return Err("the memory backend has no server".into());
        }
        let scheme = LockUrl::parse(url).map_err(|error| error.to_string())?.scheme;
        if scheme != backend.as_str() {
            return Err(format!("the URL of {backend} must start with {backend}://, not with {scheme}://"));
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

/// A parser of these values, by names of their own.
fn named<T: Copy + Send + Sync + 'static>(
    values: impl IntoIterator<Item = T>,
    name: fn(T) -> PossibleValue,
) -> impl TypedValueParser<Value = T> {
    let named: Vec<_> = values.into_iter().map(|value| (name(value), value)).collect();
    let names = PossibleValuesParser::new(named.iter().map(|(name, _)| name.clone()));
    names.map(move |wanted| {
        let found = named.iter().find(|(name, _)| name.matches(&wanted, false));
        found.expect("the parser has accepted it").1
    })
}

fn name_of<T: ValueEnum>(value: T) -> PossibleValue {
    value.to_possible_value().expect("no variant is skipped")
}

fn chosen<T: Copy + Ord>(wanted: &[T], by_default: &[T]) -> Vec<T> {
    let mut chosen = if wanted.is_empty() { by_default.to_vec() } else { wanted.to_vec() };
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// The experiments that measure rows.
fn scenarios() -> impl Iterator<Item = PossibleValue> {
    let with_rows = EXPERIMENTS.iter().filter(|one| one.rows.is_some());
    with_rows.map(|one| PossibleValue::new(one.name).help(one.about))
}

fn claim(text: &str) -> Result<u8, String> {
    let mut ids = EXPERIMENTS.iter().filter_map(|one| one.claim).map(|claim| claim.id);
    ids.find(|id| id.to_string() == text).ok_or_else(|| "there is no claim of this number".to_owned())
}

fn watch(text: &str) -> Result<Duration, String> {
    in_range(humantime::parse_duration(text).map_err(|error| error.to_string())?)
}

fn in_range(span: Duration) -> Result<Duration, String> {
    let range = SHORTEST_WATCH..=LONGEST_WATCH;
    range.contains(&span).then_some(span).ok_or_else(|| "must be between one second and one day".into())
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "must be a number of minutes, such as 10 or 0.5")?;
    in_range(Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())?)
}

/// A folder below the workspace's target directory when cargo started this process, else below the current directory.
fn target_folder(name: &str) -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = package.and_then(|package| package.parent().map(PathBuf::from)).unwrap_or_default();
    root.join("target").join(name)
}

const SHORTEST_WATCH: Duration = Duration::from_secs(1);
const LONGEST_WATCH: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::data::{Fault, Site};

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
        assert_eq!((all.backends().len(), parse("--quick").unwrap().backends().len()), (9, 5));
        assert_eq!(all.experiments().len(), 12);
        assert_eq!((all.claims().len(), parse("--quick").unwrap().claims().len()), (15, 7));
        assert_eq!(parse("--quick").unwrap().experiments().len(), 4);
        let some = parse("--quick --scenario held --scenario crash --backend zk --backend memory").unwrap();
        let names: Vec<_> = some.experiments().iter().map(|one| one.name).collect();
        assert_eq!(names, ["crash", "held"]);
        assert!(some.claims().is_empty());
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
    fn repeats_are_at_least_one() {
        assert_eq!(parse("").unwrap().repeat, 1);
        assert_eq!(parse("--repeat 5").unwrap().repeat, 5);
        assert!(parse("--repeat 0").is_err());
    }

    #[test]
    fn a_soak_can_be_repeated() {
        let soak = |line: &str| match parse(line).unwrap().role {
            Some(Role::Soak(options)) => options,
            other => panic!("{other:?}"),
        };
        let all = soak("soak");
        assert_eq!((all.minutes, all.seed, all.backends().len()), (Duration::from_secs(600), None, 8));
        assert_eq!(
            all.faults(Site::Sentinel),
            [
                Fault::ClientPaused,
                Fault::ClientKilled,
                Fault::Fork,
                Fault::BusyThread,
                Fault::Close,
                Fault::Crowd,
                Fault::ConnectionsReset,
                Fault::SynchronousFailover,
                Fault::BusyScript,
                Fault::Password,
                Fault::ForgedNotifications,
            ]
        );
        for (backend, kind) in [
            (Site::Redlock, Fault::SynchronousFailover),
            (Site::Redlock, Fault::Renegotiation),
            (Site::Zk, Fault::FullMemory),
            (Site::Redis, Fault::Certificate),
            (Site::Redlock, Fault::Blackout),
            (Site::Postgres, Fault::Password),
            (Site::Zk, Fault::ConnectionsEnded),
            (Site::Redis, Fault::TableLock),
        ] {
            assert!(!all.faults(backend).contains(&kind), "{kind} of {backend}");
        }
        let abrupt = soak("soak --fault abrupt-failover");
        assert_eq!(abrupt.faults(Site::Sentinel), [Fault::Failover]);
        let line = "--minutes 0.5 --backend zk --fault black-hole --fault kill";
        let some = soak(&format!("soak {line} --seed 7"));
        assert_eq!((some.repeated(Site::Zk), some.seed), (line.to_owned(), Some(7)));
        assert_eq!(some.faults(Site::Redis), [Fault::ClientKilled, Fault::BlackHole]);
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
        for bad in ["redis://h:1", "redis=zk://h:1", "memory=memory://", "consul=consul://h", "redis=h:1"] {
            assert!(parse(&format!("--url {bad}")).is_err(), "{bad}");
        }
    }
}
