//! What is measured: one scenario, one file.

pub(crate) mod contended;
mod crash;
mod degraded;
pub(crate) mod held;
mod herd;
mod peers;
mod tasks;
mod uncontended;

use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_testkit::history::Event;
use polylock::Locks;
use tokio::time::timeout;

use crate::backends::Target;
use crate::failure::{Failure, Outcome};
use crate::options::{BackendName, Options, ScenarioName};
use crate::results::{Mode, Row};

/// One run: its name and its measures.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    /// Part of every lock name, so that runs on one server do not meet and their traces can be found.
    pub(crate) run: String,
    /// How long, how often, how many.
    pub(crate) plan: Plan,
    /// False when every contender gets a lock of its own, to prove that the harness notices.
    pub(crate) exclusion: bool,
}

/// How long, how often and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The time before numbers count: servers and branch predictors warm up, connections are made.
    pub(crate) warm_up: Duration,
    /// How long `uncontended` measures, floor included, and `degraded` each of its two states.
    pub(crate) uncontended: Duration,
    /// So many operations are enough.
    pub(crate) most_operations: u64,
    /// How long `contended` measures.
    pub(crate) contended: Duration,
    /// How long `contended` counts requests.
    pub(crate) counted: Duration,
    /// How many processes fight.
    pub(crate) processes: u32,
    /// How many tasks of one process fight.
    pub(crate) tasks: u32,
    /// For how long they do at a time, and as long the floor.
    pub(crate) task_slice: Duration,
    /// How many such slices are measured.
    pub(crate) task_slices: u32,
    /// How often `crash` kills so many holders at a time.
    pub(crate) crash_rounds: usize,
    /// How many holders `crash` kills in a round.
    pub(crate) crash_holders: usize,
    /// The ttl or session timeout in `crash`.
    pub(crate) crash_lease: Duration,
    /// How many locks `held` holds.
    pub(crate) held_locks: usize,
    /// For how long `held` watches them being renewed.
    pub(crate) held: Duration,
    /// What has not ended by then is stuck.
    pub(crate) patience: Duration,
}

/// What a scenario has to say about one backend, or one peer.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Its name.
    pub(crate) backend: &'static str,
    /// The numbers.
    pub(crate) rows: Vec<Row>,
    /// Everything that the clients did to the locks.
    pub(crate) events: Vec<Event>,
    /// Facts about this backend that belong to the settings, by name.
    pub(crate) notes: Vec<(&'static str, String)>,
    /// What went wrong, although there are numbers.
    pub(crate) complaints: Vec<String>,
}

impl Plan {
    /// The plan of a run with these options.
    pub(crate) fn of(options: &Options) -> Self {
        let plan = Self::new(if options.quick { Mode::Quick } else { Mode::Full });
        let held = options.watch.unwrap_or(plan.held);
        let held_locks = options.locks.map_or(plan.held_locks, |locks| locks as usize);
        Self {
            processes: options.processes.unwrap_or(plan.processes),
            tasks: options.tasks.unwrap_or(plan.tasks),
            held_locks,
            held,
            patience: plan.patience + held + PATIENCE_PER_LOCK * held_locks as u32,
            ..plan
        }
    }

    /// The plan of a run without further options.
    pub(crate) const fn new(mode: Mode) -> Self {
        let common = Self {
            warm_up: Duration::from_millis(250),
            uncontended: Duration::from_millis(1500),
            most_operations: 30_000,
            contended: Duration::from_secs(2),
            counted: Duration::from_millis(700),
            processes: 8,
            tasks: 1000,
            task_slice: Duration::from_millis(250),
            task_slices: 2,
            crash_rounds: 1,
            crash_holders: 3,
            crash_lease: Duration::from_secs(1),
            held_locks: 10_000,
            held: Duration::from_secs(30),
            patience: Duration::from_secs(120),
        };
        match mode {
            Mode::Quick => common,
            Mode::Full => Self {
                warm_up: Duration::from_secs(1),
                uncontended: Duration::from_secs(15),
                most_operations: 100_000,
                contended: Duration::from_secs(12),
                counted: Duration::from_secs(4),
                processes: 20,
                task_slice: Duration::from_secs(1),
                task_slices: 5,
                crash_rounds: 3,
                ..common
            },
        }
    }
}

impl Bench {
    /// The name of a lock of this run.
    pub(crate) fn lock(&self, scenario: &str) -> String {
        format!("{}-{scenario}", self.run)
    }

    /// The name by which a contender knows that lock.
    pub(crate) fn lock_of(&self, lock: &str, contender: impl std::fmt::Display) -> String {
        if self.exclusion { lock.to_owned() } else { format!("{lock}-{contender}") }
    }

    /// What was set, for the report.
    pub(crate) fn settings(&self, scenarios: &[ScenarioName]) -> Vec<(String, String)> {
        let plan = &self.plan;
        let about = |scenario| match scenario {
            ScenarioName::Uncontended => uncontended::settings(plan),
            ScenarioName::Contended => contended::settings(plan),
            ScenarioName::Tasks => tasks::settings(plan),
            ScenarioName::Crash => crash::settings(plan),
            ScenarioName::Peers => peers::settings(plan),
            ScenarioName::Herd => herd::settings(plan),
            ScenarioName::Held => held::settings(plan),
            ScenarioName::Degraded => degraded::settings(plan),
        };
        let named = |scenario: &ScenarioName| {
            let scenario = *scenario;
            about(scenario).into_iter().map(move |(name, value)| (format!("{scenario}.{name}"), value))
        };
        scenarios.iter().flat_map(named).collect()
    }
}

/// Whether this scenario can be run on this backend.
pub(crate) fn fits(scenario: ScenarioName, backend: BackendName) -> bool {
    match scenario {
        ScenarioName::Peers => matches!(backend, BackendName::Redis | BackendName::Zk),
        ScenarioName::Herd => backend == BackendName::Zk,
        ScenarioName::Degraded => backend == BackendName::Redlock,
        _ => true,
    }
}

/// Runs a scenario on a backend. There is more to say than of the backend alone when peers take part.
///
/// # Errors
///
/// When it could not be measured. Broken exclusion is not an error here: it is in the events.
///
/// # Cancel safety
///
/// When the future is dropped, its processes are killed and its tasks end.
pub(crate) async fn run(scenario: ScenarioName, bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let measuring: BoxFuture<'_, _> = match scenario {
        ScenarioName::Uncontended => Box::pin(alone(uncontended::run(bench, target))),
        ScenarioName::Contended => Box::pin(alone(contended::run(bench, target))),
        ScenarioName::Tasks => Box::pin(alone(tasks::run(bench, target))),
        ScenarioName::Crash => Box::pin(alone(crash::run(bench, target))),
        ScenarioName::Peers => Box::pin(peers::run(bench, target)),
        ScenarioName::Herd => Box::pin(herd::run(bench, target)),
        ScenarioName::Held => Box::pin(alone(held::run(bench, target))),
        ScenarioName::Degraded => Box::pin(degraded::run(bench, target)),
    };
    let patience = bench.plan.patience;
    let measured = timeout(patience, measuring).await;
    measured.unwrap_or_else(|_| Err(Failure::new(format!("stuck: no end after {patience:?}"))))
}

async fn alone(measuring: impl Future<Output = Outcome<Measured>>) -> Outcome<Vec<Measured>> {
    measuring.await.map(|measured| vec![measured])
}

/// A connection of its own to the backend.
async fn connect(target: &Target) -> Outcome<Locks> {
    Ok(Locks::connect(target.url()).await?)
}

/// As people write it: `1.5 s`, `250 ms`.
fn time(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs_f64())
    }
}

/// Acquired and released, on a slow machine.
const PATIENCE_PER_LOCK: Duration = Duration::from_millis(3);
