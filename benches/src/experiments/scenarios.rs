//! The scenarios, one file each. `contention`, `request_count` and `side_by_side` have what several of them do.

use std::fmt::Display;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_testkit::history::Event;
use polylock::Locks;

use super::{
    command, contended, crash, degraded, held, herd, migration, peers, tasks, throughput, uncontended,
};

use crate::cli::options::faults::FaultDefect;
use crate::cli::options::{BackendName, ScenarioName};
use crate::data::failure::Outcome;
use crate::data::plan::Plan;
use crate::data::results::Row;
use crate::rig::backends::Target;
use crate::rig::peers::Peer;
use crate::rig::stuck;

/// What all scenarios of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Bench {
    /// The name of the run, part of every lock name: runs do not meet on a server, and what they leave can be found.
    pub(crate) run: String,
    pub(crate) plan: Plan,
    /// False when every client gets a lock of its own, to prove that the harness detects missing exclusion.
    pub(crate) exclusion: bool,
    /// A deliberate defect of the lock or the store, in what injects faults.
    pub(crate) broken: Option<FaultDefect>,
}

/// What a scenario measured of one backend or peer.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The name of the backend or peer.
    pub(crate) backend: &'static str,
    /// The numbers.
    pub(crate) rows: Vec<Row>,
    /// The history of the locks.
    pub(crate) events: Vec<Event>,
    /// Additions to the settings of the report, by name.
    pub(crate) notes: Vec<(&'static str, String)>,
    /// Failures that left some numbers.
    pub(crate) complaints: Vec<String>,
}

impl Bench {
    /// The name of a lock of this run.
    pub(crate) fn lock(&self, scenario: &str) -> String {
        format!("{}-{scenario}", self.run)
    }

    /// The name that a client uses for that lock.
    pub(crate) fn lock_of(&self, lock: &str, client: impl Display) -> String {
        if self.exclusion { lock.to_owned() } else { format!("{lock}-{client}") }
    }

    /// The settings of these scenarios, for the report.
    pub(crate) fn settings(&self, scenarios: &[ScenarioName]) -> Vec<(String, String)> {
        let plan = &self.plan;
        let about = |scenario| match scenario {
            ScenarioName::Uncontended => uncontended::settings(plan),
            ScenarioName::Contended => contended::settings(plan),
            ScenarioName::Tasks => tasks::settings(plan),
            ScenarioName::Throughput => throughput::settings(plan),
            ScenarioName::Crash => crash::settings(plan),
            ScenarioName::Peers => peers::settings(plan),
            ScenarioName::Herd => herd::settings(plan),
            ScenarioName::Held => held::settings(plan),
            ScenarioName::Degraded => degraded::settings(plan),
            ScenarioName::Migration => migration::settings(plan),
            ScenarioName::Command => command::settings(plan),
        };
        let named = |scenario: &ScenarioName| {
            let scenario = *scenario;
            about(scenario).into_iter().map(move |(name, value)| (format!("{scenario}.{name}"), value))
        };
        scenarios.iter().flat_map(named).collect()
    }
}

/// Whether this scenario can run on this backend.
pub(crate) fn fits(scenario: ScenarioName, backend: BackendName) -> bool {
    match scenario {
        ScenarioName::Peers => Peer::of(backend).next().is_some(),
        // A migration has a Redis server of its own.
        ScenarioName::Herd | ScenarioName::Migration => backend == BackendName::Zk,
        ScenarioName::Degraded => backend == BackendName::Redlock,
        // A lock of its own in the memory of a process takes no time worth a load.
        ScenarioName::Throughput => backend != BackendName::Memory,
        ScenarioName::Command => backend == BackendName::Redis,
        _ => true,
    }
}

/// Runs a scenario on a backend, with its peers where the scenario has them. Broken exclusion is no error here: it shows in
/// the events.
///
/// When the future is dropped, its processes are killed and its tasks end.
pub(crate) async fn run(scenario: ScenarioName, bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let measuring: BoxFuture<'_, _> = match scenario {
        ScenarioName::Uncontended => Box::pin(alone(uncontended::run(bench, target))),
        ScenarioName::Contended => Box::pin(alone(contended::run(bench, target))),
        ScenarioName::Tasks => Box::pin(alone(tasks::run(bench, target))),
        ScenarioName::Throughput => Box::pin(alone(throughput::run(bench, target))),
        ScenarioName::Crash => Box::pin(alone(crash::run(bench, target))),
        ScenarioName::Peers => Box::pin(peers::run(bench, target)),
        ScenarioName::Herd => Box::pin(herd::run(bench, target)),
        ScenarioName::Held => Box::pin(alone(held::run(bench, target))),
        ScenarioName::Degraded => Box::pin(degraded::run(bench, target)),
        ScenarioName::Migration => Box::pin(migration::run(bench)),
        ScenarioName::Command => Box::pin(alone(command::run(bench, target))),
    };
    let parts = match scenario {
        ScenarioName::Peers => 1 + Peer::of(target.backend()).count(),
        ScenarioName::Throughput => bench.plan.loads.len(),
        _ => 1,
    };
    let patience = bench.plan.patience * parts as u32;
    stuck::within(&format!("{scenario} on {}", target.name()), patience, measuring).await
}

async fn alone(measuring: impl Future<Output = Outcome<Measured>>) -> Outcome<Vec<Measured>> {
    measuring.await.map(|measured| vec![measured])
}

/// A new connection to the backend.
pub(super) async fn connect(target: &Target) -> Outcome<Locks> {
    Ok(Locks::connect(target.url()).await?)
}

/// `1.5 s`, `250 ms`.
pub(super) fn time(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs_f64())
    }
}
