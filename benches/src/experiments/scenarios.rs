//! The scenarios, one file each. `contention`, `request_count` and `side_by_side` have what several of them do.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::bench::{Bench, Measured};
use super::{
    client_death, command, contended, held, herd, migration, minority, peers, tasks, throughput, uncontended,
};
use crate::data::plan::PATIENCE_PER_LOCK;
use crate::data::{BackendName, Outcome, Peer, Plan, ScenarioName};
use crate::rig::{Target, stuck};

pub(crate) fn settings(plan: &Plan, scenarios: &[ScenarioName]) -> Vec<(String, String)> {
    let about = |scenario| match scenario {
        ScenarioName::Uncontended => uncontended::settings(plan),
        ScenarioName::Contended => contended::settings(plan),
        ScenarioName::Tasks => tasks::settings(plan),
        ScenarioName::Throughput => throughput::settings(plan),
        ScenarioName::Crash => client_death::settings(plan),
        ScenarioName::Peers => peers::settings(plan),
        ScenarioName::Herd => herd::settings(plan),
        ScenarioName::Held => held::settings(plan),
        ScenarioName::Degraded => minority::settings(plan),
        ScenarioName::Migration => migration::settings(plan),
        ScenarioName::Command => command::settings(plan),
    };
    let named = |scenario: &ScenarioName| {
        let scenario = *scenario;
        about(scenario).into_iter().map(move |(name, value)| (format!("{scenario}.{name}"), value))
    };
    scenarios.iter().flat_map(named).collect()
}

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
        ScenarioName::Crash => Box::pin(alone(client_death::run(bench, target))),
        ScenarioName::Peers => Box::pin(peers::run(bench, target)),
        ScenarioName::Herd => Box::pin(herd::run(bench, target)),
        ScenarioName::Held => Box::pin(alone(held::run(bench, target))),
        ScenarioName::Degraded => Box::pin(minority::run(bench, target)),
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

/// About how long a scenario takes on one backend, for the time left.
pub(crate) fn expected(scenario: ScenarioName, plan: &Plan) -> Duration {
    match scenario {
        ScenarioName::Uncontended => plan.warm_up * 2 + plan.uncontended,
        ScenarioName::Contended => plan.warm_up + plan.contended * 2 + plan.counted,
        ScenarioName::Tasks => plan.task_slice * (plan.rounds + 1) * 3,
        ScenarioName::Throughput => throughput::expected(plan),
        ScenarioName::Command => COMMAND * plan.commands,
        ScenarioName::Crash => plan.crash_lease * 4 * plan.crash_rounds as u32,
        ScenarioName::Peers => (plan.warm_up + plan.contended) * 6,
        ScenarioName::Herd => Duration::from_secs(10),
        ScenarioName::Held => plan.held + PATIENCE_PER_LOCK * plan.held_locks as u32,
        ScenarioName::Degraded => (plan.warm_up + plan.uncontended) * 2,
        ScenarioName::Migration => {
            plan.warm_up + plan.uncontended + START + PATIENCE_PER_LOCK * plan.moved_names as u32
        }
    }
}

async fn alone(measuring: impl Future<Output = Outcome<Measured>>) -> Outcome<Vec<Measured>> {
    measuring.await.map(|measured| vec![measured])
}

/// To run a command with the lock, and once without.
const COMMAND: Duration = Duration::from_millis(40);
/// To start two servers, and connect to them.
const START: Duration = Duration::from_secs(5);
