//! `crash`: the holder is killed by SIGKILL while another process waits; how long until that one holds the lock?

use std::time::Duration;

use futures_util::future::try_join_all;
use lock_testkit::history::Event;
use lock_testkit::history::EventKind;
use lock_testkit::now_ns;
use polylock::{LockOptions, Locks};
use rand::Rng;
use tokio::time::sleep;

use super::{Bench, Measured, Plan, time};
use crate::address;
use crate::backends::Target;
use crate::crew::Hand;
use crate::diary::Diary;
use crate::failure::{Failure, Outcome};
use crate::options::BackendName;
use crate::results::Row;
use crate::worker::{Job, Order, Task};

/// What is set.
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
        ("memory", "no process to kill: a guard with a fixed ttl is forgotten".into()),
    ]
}

/// Runs it.
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
        _ => String::from("one round"),
    };
    Ok(Measured {
        backend: target.name(),
        rows: vec![row],
        events: takeovers.into_iter().flat_map(|takeover| takeover.events).collect(),
        notes: vec![("range", range)],
        ..Measured::default()
    })
}

/// What one crash gave.
struct Takeover {
    gap_ns: u64,
    lease: Duration,
    events: Vec<Event>,
}

impl Takeover {
    /// From the death to the next grant. One before the death is an overlap: the events tell about it.
    fn new(died_ns: u64, lease: Duration, holder: Diary, waiter: Vec<Event>) -> Outcome<Self> {
        let granted = waiter.iter().find(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let granted_ns = granted.ok_or_else(|| Failure::new("the waiter tells of no grant"))?.at_ns;
        let mut events = holder.into_events();
        events.extend(waiter);
        Ok(Self { gap_ns: granted_ns.saturating_sub(died_ns), lease, events })
    }
}

/// A real process, really killed.
async fn kill(bench: &Bench, target: &Target, lock: &str, number: u32) -> Outcome<Takeover> {
    let lease = format!("{}ms", bench.plan.crash_lease.as_millis());
    let option = if target.backend() == BackendName::Zk { "session_timeout" } else { "ttl" };
    let url = address::with_option(target.url(), option, &lease);
    let job =
        |process, task| Job { lock: bench.lock_of(lock, process), ..Job::new(&url, lock, process, task) };
    // Numbers of processes are those of the whole scenario: a death concerns all locks of a process.
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let holder = Hand::hire_one(job(holding, Task::Hold)).await?;
    let held = holder.events(PATIENCE).await?;
    let lease = holder.lease;
    let waiter = Hand::hire_one(job(waiting, Task::Wait)).await?;
    waiter.order(Order::Go).await?;
    sleep(alive(lease)).await;

    let died_ns = now_ns();
    holder.kill();
    let mut diary = Diary::new(holding, 0, lock);
    diary.died(died_ns);
    let waited = waiter.events(lease * 3 + PATIENCE).await?;
    let mut takeover = Takeover::new(died_ns, lease, diary, waited)?;
    takeover.events.extend(held);
    Ok(takeover)
}

/// The nearest thing to a crash inside one process: nobody will ever release this guard.
async fn forget(bench: &Bench, target: &Target, lock: &str, number: u32) -> Outcome<Takeover> {
    let lease = bench.plan.crash_lease;
    // Connections of their own: the holder's one keeps the place of its forgotten guard.
    let (holder, waiter) = (Locks::connect(target.url()).await?, Locks::connect(target.url()).await?);
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let mut diary = Diary::new(holding, 0, lock);
    let mutex = holder.mutex_with(bench.lock_of(lock, holding), LockOptions::new().fixed_ttl(lease))?;
    diary.acquire_called();
    let guard = mutex.acquire().await?;
    diary.acquired(&guard);
    let died_ns = now_ns();
    diary.died(died_ns);
    std::mem::forget(guard);

    let mut waited = Diary::new(waiting, 0, lock);
    waited.acquire_called();
    let guard = waiter.mutex(bench.lock_of(lock, waiting)).acquire().await?;
    waited.acquired(&guard);
    waited.release_called();
    waited.released(guard.release().await?);
    Takeover::new(died_ns, lease, diary, waited.into_events())
}

/// Longer than the lease, so that it must have been renewed, up to some moment between two renewals.
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

/// How long a worker may take for what is not being measured.
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
