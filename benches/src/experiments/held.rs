//! `held`: what many held locks cost their process in memory and renewals, and what the renewals cost the servers.

use super::bench::{Bench, Measured, time};
use crate::data::{BackendName, Failure, Outcome, Plan, Row};
use crate::rig::backends::postgres;
use crate::rig::worker::handle::unexpected;
use crate::rig::worker::held_locks::RIVALS;
use crate::rig::{Job, Order, Target, Task, WorkerHandle, WorkerReport};

pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("locks", format!("{}, in a separate process", plan.held_locks)),
        ("lease", "the default: a ttl of 30 s, renewed every 10 s; zk: the session".into()),
        ("memory", "growth of the anonymous resident memory of that process, per lock".into()),
        (
            "renewal",
            format!(
                "CPU time of that process, and of the servers, over {}, in percent of one core",
                time(plan.held)
            ),
        ),
        ("sessions", "postgres: those of all clients of locks, while the locks are held".into()),
        ("lost", "locks whose guards reported a loss meanwhile".into()),
        (
            "verdict",
            format!("another client tries to acquire {RIVALS} of the locks, whose history is checked"),
        ),
    ]
}

pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("held");
    let task = Task::Many { count: plan.held_locks, watch: plan.held, servers: target.processes() };
    let job = Job { rival: bench.lock_of(&lock, "rival"), ..Job::new(target.url(), &lock, 0, task) };
    let mut workers = WorkerHandle::start_all([job]).await?;
    let worker = workers.pop().ok_or_else(|| Failure::new("no worker was started"))?;
    let cost = match worker.receive(plan.patience).await? {
        WorkerReport::Cost(cost) => cost,
        other => return Err(unexpected(&other)),
    };
    let sessions = match target.backend() {
        BackendName::Postgres => Some(postgres::sessions_of_locks(target.url()).await?),
        _ => None,
    };
    worker.send(Order::Go).await?;
    let events = worker.events(plan.patience).await?;
    let row = |metric, unit, value| Row::new("held", target.name(), metric, unit, value);
    let mut rows = vec![
        row("bytes_per_lock", "B", cost.bytes_per_lock),
        row("renew_cpu_percent", "%", cost.client_percent),
    ];
    if let Some(percent) = cost.servers_percent {
        rows.push(row("server_cpu_percent", "%", percent));
        rows.push(row("both_cpu_percent", "%", cost.client_percent + percent));
    }
    rows.extend(sessions.map(|sessions| row("sessions", "", sessions as f64)));
    rows.push(row("lost", "", cost.lost as f64));
    rows.push(row("acquire_all", "ms", cost.acquire_all.as_secs_f64() * 1e3));
    let complaints = match cost.lost {
        0 => Vec::new(),
        lost => vec![format!("{lost} of {} locks were lost", plan.held_locks)],
    };
    Ok(Measured { backend: target.name(), rows, events, complaints, ..Measured::default() })
}
