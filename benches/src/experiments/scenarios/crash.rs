//! `crash`: the holder is killed by SIGKILL; the time until another client has the lock.

use std::time::Duration;

use futures_util::future::try_join_all;

use crate::data::median::median;
use crate::experiments::parts::death::{End, death, forget, millis, with_lease};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "crash",
    about: "the holder is killed with SIGKILL; the time until a waiting process holds the lock",
    fits: BackendName::bears_load,
    settings,
    metrics: &[metric("takeover", "ms", "take-over")
        .meaning("a ttl runs from the last renewal, so that it may take less")
        .floor("ttl", "ttl or session timeout")],
    takes: |plan| LEASE * 4 * rounds(plan),
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

fn settings(plan: &Plan) -> String {
    let (lease, crashes) = (time(LEASE), rounds(plan) * HOLDERS);
    format!(
        "lease: a ttl or session timeout of {lease}, renewed until the crash
         rounds: the median of {crashes} crashes, {HOLDERS} at a time, each at a random time between two renewals
         memory: a guard with a fixed ttl is forgotten, as there is no process to kill"
    )
}

fn rounds(plan: &Plan) -> u32 {
    plan.by_mode(1, 2)
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let mut takeovers = Vec::new();
    for round in 0..rounds(&bench.plan) {
        let crashes = (round * HOLDERS..(round + 1) * HOLDERS).map(|number| async move {
            let lock = bench.lock(&format!("crash-{number}"));
            if target.backend() == BackendName::Memory {
                return forget(bench, target, &lock, number, LEASE).await;
            }
            let url = with_lease(target.backend(), target.url(), LEASE);
            let job = |process, task| Job {
                lock: bench.lock_of(&lock, process),
                ..Job::new(&url, &lock, process, task)
            };
            // A death ends all holds of a process: its number is unique in the experiment.
            let [holder, waiter] = [job(number * 2, Task::Hold), job(number * 2 + 1, Task::Wait)];
            death(target.backend(), holder, waiter, End::Killed).await
        });
        takeovers.extend(try_join_all(crashes).await?);
    }
    let floor = takeovers.first().map_or(LEASE, |takeover| takeover.lease);
    let gaps_ms: Vec<f64> =
        takeovers.iter().map(|takeover| millis(takeover.gap.unwrap_or_default())).collect();
    let [first, last] = [f64::min, f64::max].map(|of| gaps_ms.iter().copied().reduce(of).unwrap_or_default());
    let row = Row::of("takeover", median(gaps_ms)).with_floor(millis(floor));
    let events = takeovers.into_iter().flat_map(|takeover| takeover.events).collect();
    let notes = vec![("range", format!("{first:.0} to {last:.0} ms"))];
    Ok(vec![Measured { events, notes, ..Measured::of(target.name(), vec![row]) }])
}

/// How many holders are killed in a round.
const HOLDERS: u32 = 3;
const LEASE: Duration = Duration::from_secs(1);
