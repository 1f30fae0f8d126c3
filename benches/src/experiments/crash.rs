//! `crash`: the holder is killed by SIGKILL; the time until a waiting process holds the lock.

use std::time::Duration;

use futures_util::future::try_join_all;
use lock_testkit::history::{Event, EventKind};
use lock_testkit::now_ns;
use polylock::{LockOptions, Locks};
use rand::Rng;
use tokio::time::sleep;

use super::bench::{Bench, Measured, time};
use crate::data::events::EventLog;
use crate::data::failure::{Failure, Outcome};
use crate::data::names::BackendName;
use crate::data::plan::Plan;
use crate::data::results::Row;
use crate::rig::backends::Target;
use crate::rig::url;
use crate::rig::worker::handle::WorkerHandle;
use crate::rig::worker::{Job, Order, Task};

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("lease", format!("a ttl or session timeout of {}, renewed until the crash", time(plan.crash_lease))),
        (
            "rounds",
            format!(
                "the median of {} crashes, {} at a time, each at a random time between two renewals",
                plan.crash_rounds * plan.crash_holders,
                plan.crash_holders
            ),
        ),
        ("memory", "a guard with a fixed ttl is forgotten, as there is no process to kill".into()),
    ]
}

/// Measures one backend.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let mut takeovers = Vec::new();
    for round in 0..plan.crash_rounds {
        let crashes = (0..plan.crash_holders).map(|number| async move {
            let number = (round * plan.crash_holders + number) as u32;
            let lock = bench.lock(&format!("crash-{number}"));
            match target.backend() {
                BackendName::Memory => forget(bench, target, &lock, number).await,
                _ => kill(bench, target, &lock, number).await,
            }
        });
        takeovers.extend(try_join_all(crashes).await?);
    }
    let floor = takeovers.first().map_or(plan.crash_lease, |takeover| takeover.lease);
    let mut gaps_ms: Vec<f64> = takeovers.iter().map(|takeover| takeover.gap_ns as f64 / 1e6).collect();
    gaps_ms.sort_by(f64::total_cmp);
    let row = Row::new("crash", target.name(), "takeover", "ms", median(&gaps_ms))
        .with_floor(floor.as_secs_f64() * 1e3);
    let range = match gaps_ms[..] {
        [first, .., last] => format!("{first:.0} to {last:.0} ms"),
        _ => String::from("one crash"),
    };
    Ok(Measured {
        backend: target.name(),
        rows: vec![row],
        events: takeovers.into_iter().flat_map(|takeover| takeover.events).collect(),
        notes: vec![("range", range)],
        ..Measured::default()
    })
}

/// The outcome of one crash.
struct Takeover {
    gap_ns: u64,
    lease: Duration,
    events: Vec<Event>,
}

impl Takeover {
    /// Measures from the death to the next grant. A grant before the death is an overlap, which the events show.
    fn new(died_ns: u64, lease: Duration, holder: EventLog, waiter: Vec<Event>) -> Outcome<Self> {
        let granted = waiter.iter().find(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let granted_ns = granted.ok_or_else(|| Failure::new("the waiter reported no grant"))?.at_ns;
        let mut events = holder.into_events();
        events.extend(waiter);
        Ok(Self { gap_ns: granted_ns.saturating_sub(died_ns), lease, events })
    }
}

/// Kills a process that holds the lock.
async fn kill(bench: &Bench, target: &Target, lock: &str, number: u32) -> Outcome<Takeover> {
    let lease = format!("{}ms", bench.plan.crash_lease.as_millis());
    let option = if target.backend() == BackendName::Zk { "session_timeout" } else { "ttl" };
    let url = url::with_option(target.url(), option, &lease);
    let job =
        |process, task| Job { lock: bench.lock_of(lock, process), ..Job::new(&url, lock, process, task) };
    // Process numbers are unique in the scenario: a death ends all holds of a process.
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let holder = WorkerHandle::start_one(job(holding, Task::Hold)).await?;
    let held = holder.events(PATIENCE).await?;
    let lease = holder.lease;
    let waiter = WorkerHandle::start_one(job(waiting, Task::Wait)).await?;
    waiter.send(Order::Go).await?;
    sleep(alive(lease)).await;

    let died_ns = now_ns();
    holder.kill();
    let mut log = EventLog::new(holding, 0, lock);
    log.died(died_ns);
    let waited = waiter.events(lease * 3 + PATIENCE).await?;
    let mut takeover = Takeover::new(died_ns, lease, log, waited)?;
    takeover.events.extend(held);
    Ok(takeover)
}

/// Forgets a guard, as the memory backend has no process to kill.
async fn forget(bench: &Bench, target: &Target, lock: &str, number: u32) -> Outcome<Takeover> {
    let lease = bench.plan.crash_lease;
    // Separate connections: the holder's one still counts its forgotten guard.
    let (holder, waiter) = (Locks::connect(target.url()).await?, Locks::connect(target.url()).await?);
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let mut log = EventLog::new(holding, 0, lock);
    let mutex = holder.mutex_with(bench.lock_of(lock, holding), LockOptions::new().fixed_ttl(lease))?;
    log.acquire_called();
    let guard = mutex.acquire().await?;
    log.acquired(&guard);
    let died_ns = now_ns();
    log.died(died_ns);
    std::mem::forget(guard);

    let mut waited = EventLog::new(waiting, 0, lock);
    waited.acquire_called();
    let guard = waiter.mutex(bench.lock_of(lock, waiting)).acquire().await?;
    waited.acquired(&guard);
    waited.release_called();
    waited.released(guard.release().await?);
    Takeover::new(died_ns, lease, log, waited.into_events())
}

/// Longer than the lease, so that it was renewed, and random between two renewals.
fn alive(lease: Duration) -> Duration {
    lease.mul_f64(1.2 + rand::rng().random_range(0.0..0.34))
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// The timeout of a worker for what is not measured.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(&[1.0, 2.0, 9.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[1.0, 2.0, 4.0, 9.0]) - 3.0).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }
}
