//! `held`: what many held locks cost their process in memory and renewals, and what the renewals cost the servers.

use crate::data::plan::PATIENCE_PER_LOCK;
use crate::experiments::prelude::*;
use crate::rig::backends::postgres;
use crate::rig::worker::held_locks::RIVALS;

pub(crate) static THIS: Experiment = Experiment {
    name: "held",
    about: "one process holds many locks at once; their memory and renewals",
    // Stores that swap renew each lock by a write of its own.
    fits: |backend| !backend.swaps(),
    settings,
    metrics: &[
        metric("bytes_per_lock", "B", "memory/lock").targets(&[
            at_most(REDIS, 1.2 * KB, "client memory per lock").value().at(MANY),
            at_most(ZK, 2.0 * KB, "client memory per lock").value().at(MANY),
        ]),
        metric("renew_cpu_percent", "%", "renewal, client").targets(&[at_most(
            ZK,
            5.0,
            "at rest, of one core",
        )
        .value()]),
        metric("server_cpu_percent", "%", "server"),
        metric("both_cpu_percent", "%", "both, one core").targets(&[
            at_most(REDIS, 25.0, "renewal, client and server, of one core").value().at(MANY),
            at_most(POSTGRES, 5.0, "renewal, client and server, of one core").value().at(FEW),
        ]),
        metric("sessions", "", "sessions").targets(&[at_most(POSTGRES, 5.0, "sessions").value().at(FEW)]),
        metric("lost", "", "lost").targets(&[
            at_most(REDIS, 0.0, "locks lost").value().at(WATCHED),
            at_most(POSTGRES, 0.0, "locks lost").value().at(FEW),
        ]),
        metric("acquire_all", "ms", "acquire all"),
    ],
    takes: |plan| plan.held + PATIENCE_PER_LOCK * plan.held_locks as u32,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let (locks, held) = (plan.held_locks, time(plan.held));
    format!(
        "locks: {locks}, in a separate process
         lease: the default: a ttl of 30 s, renewed every 10 s; zk: the session
         memory: growth of the anonymous resident memory of that process, per lock
         renewal: CPU time of that process, and of the servers, over {held}, in percent of one core
         sessions: postgres: those of all clients of locks, while the locks are held
         lost: locks whose guards reported a loss meanwhile
         verdict: another client tries to acquire {RIVALS} of the locks, whose history is checked"
    )
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let plan = &bench.plan;
    let lock = bench.lock("held");
    let task = Task::Many { count: plan.held_locks, watch: plan.held, servers: target.processes() };
    let job = Job { rival: bench.lock_of(&lock, "rival"), ..Job::new(target.url(), &lock, 0, task) };
    let worker = WorkerHandle::start_one(job).await?;
    let cost = worker.cost(plan.patience).await?;
    let sessions = match target.backend() {
        BackendName::Postgres => Some(postgres::sessions_of_locks(target.url()).await?),
        _ => None,
    };
    worker.send(Order::Go).await?;
    let events = worker.events(plan.patience).await?;
    let mut rows = vec![
        Row::of("bytes_per_lock", cost.bytes_per_lock),
        Row::of("renew_cpu_percent", cost.client_percent),
    ];
    if let Some(percent) = cost.servers_percent {
        rows.push(Row::of("server_cpu_percent", percent));
        rows.push(Row::of("both_cpu_percent", cost.client_percent + percent));
    }
    rows.extend(sessions.map(|sessions| Row::of("sessions", sessions as f64)));
    rows.push(Row::of("lost", cost.lost as f64));
    rows.push(Row::of("acquire_all", cost.acquire_all.as_secs_f64() * 1e3));
    let complaints = match cost.lost {
        0 => Vec::new(),
        lost => vec![format!("{lost} of {} locks were lost", plan.held_locks)],
    };
    Ok(vec![Measured { events, complaints, ..Measured::of(target.name(), rows) }])
}

const MANY: Size = |plan| unless(plan.held_locks >= 100_000, plan.held_locks, "locks");
const FEW: Size = |plan| unless(plan.held_locks == 10_000, plan.held_locks, "locks");
/// Also when their renewal is measured for five minutes.
const WATCHED: Size = |plan| {
    let (locks, held_s) = (plan.held_locks, plan.held.as_secs());
    unless(locks >= 100_000 && held_s >= 300, format!("{locks} locks, {held_s}"), "s")
};
const KB: f64 = 1024.0;
