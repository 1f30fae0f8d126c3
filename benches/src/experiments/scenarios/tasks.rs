//! `tasks`: the tasks of one process contend for one lock, and release it at once.
//!
//! The floor is one pair of bare commands after the other: the rate if each task had to ask the server. Lock and floor
//! take turns in slices of time, as a thousand tasks cannot take turns by the operation.

use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::data::median::median;
use crate::experiments::parts::task_crowd::{Crowd, MOST_TENURES, RAMP, take_turns};
use crate::experiments::prelude::*;

pub(crate) static THIS: Experiment = Experiment {
    name: "tasks",
    about: "many tasks of one process contend for one lock, and release it at once",
    in_quick: true,
    fits: BackendName::bears_load,
    settings,
    metrics: &[metric("pairs_per_s", "1/s", "acquire + release")
        .meaning("more is better")
        .floor("floor", "floor, the bare commands one pair after the other")
        .targets(&[many(REDIS), many(REDLOCK), many(ZK)])],
    takes: |plan| slice(plan) * (plan.rounds + 1) * 3,
    rows: Some(|bench, target| Box::pin(measure(bench, target))),
    ..EXPERIMENT
};

/// Far fewer round trips than pairs.
const fn many(by: &'static str) -> OurTarget {
    at_least(by, 10.0, "pairs/s against one after the other")
        .at(|plan| unless(plan.tasks >= 1000, plan.tasks, "tasks"))
}

fn settings(plan: &Plan) -> String {
    let Plan { tasks, rounds, .. } = plan;
    let [slice, ramp] = [slice(plan), RAMP].map(time);
    format!(
        "tasks: {tasks} of one process, on one connection to the backend
         duration: the median of {rounds} slices of {slice}, in turn with as many of the floor; the first {ramp} of a slice do not count
         hold: none: released as soon as it is acquired
         floor: that of uncontended, one pair after the other, in one task
         runtime: multi_thread with 2 workers, for ours and the floor
         verdict: over the first {MOST_TENURES} holds of every task in a slice"
    )
}

/// How long the tasks contend before and after an equally long slice of the floor.
fn slice(plan: &Plan) -> Duration {
    plan.by_mode(Duration::from_millis(120), Duration::from_millis(300))
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let locks = connect(target).await?;
    let lock = bench.lock("tasks");
    let floor = Bare::connect(target, locks.capabilities().lease, &format!("{lock}-floor")).await?;
    let mutexes = (0..bench.plan.tasks).map(|task| locks.mutex(bench.lock_of(&lock, task))).collect();
    let crowd = Crowd { mutexes, lock };
    // On a worker thread of the runtime, as the tasks of a service.
    let turns =
        AbortOnDropHandle::new(tokio::spawn(take_turns(crowd, floor, bench.plan.rounds, slice(&bench.plan))))
            .await??;
    locks.close().await?;
    let (ours, floor): (Vec<f64>, Vec<f64>) = turns.rates.iter().copied().unzip();
    let row = Row::of("pairs_per_s", median(ours)).with_floor(median(floor)).with_rounds(turns.rates);
    Ok(vec![Measured { events: turns.events, ..Measured::of(target.name(), vec![row]) }])
}
