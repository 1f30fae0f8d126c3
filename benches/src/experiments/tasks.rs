//! `tasks`: the tasks of one process contend for one lock, and release it at once.
//!
//! The floor is one pair of bare commands after the other: the rate if each task had to ask the server. Lock and floor
//! take turns in slices of time, as a thousand tasks cannot take turns by the operation.

use std::pin::pin;
use std::time::{Duration, Instant};

use lock_testkit::history::Event;
use lock_testkit::now_ns;
use polylock::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::bench::{Bench, Measured, connect, time};
use super::experiment::{EXPERIMENT, Experiment, metric};
use super::target::{REDIS, REDLOCK, Size, Target as OurTarget, ZK, ratio};
use crate::data::events::outcome;
use crate::data::median::median;
use crate::data::{EventLog, GrantInfo, Outcome, Plan, Row, TimedHold, Window};
use crate::rig::{Bare, Floor, Target};

pub(super) static THIS: Experiment = Experiment {
    name: "tasks",
    about: "many tasks of one process contend for one lock, and release it at once",
    in_quick: true,
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
    ratio(by, "pairs/s against one after the other").at_least(10.0).at(Size::Tasks(1000))
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
    plan.by_mode(Duration::from_millis(120), Duration::from_millis(500))
}

async fn measure(bench: &Bench, target: &Target) -> Outcome<Vec<Measured>> {
    let locks = connect(target).await?;
    let lock = bench.lock("tasks");
    let floor = Bare::connect(target, locks.capabilities().lease, &format!("{lock}-floor")).await?;
    let mutexes = (0..bench.plan.tasks).map(|task| locks.mutex(bench.lock_of(&lock, task))).collect();
    let crowd = Crowd { mutexes, lock };
    // On a worker thread of the runtime, as the tasks of a service.
    let turns = AbortOnDropHandle::new(tokio::spawn(take_turns(crowd, floor, bench.plan))).await??;
    locks.close().await?;
    let (ours, floor): (Vec<f64>, Vec<f64>) = turns.rates.iter().copied().unzip();
    let row = Row::of("pairs_per_s", median(ours)).with_floor(median(floor)).with_rounds(turns.rates);
    Ok(vec![Measured { events: turns.events, ..Measured::of(target.name(), vec![row]) }])
}

/// The pairs per second of both in each round, and the history.
#[derive(Default)]
struct Turns {
    rates: Vec<(f64, f64)>,
    events: Vec<Event>,
}

async fn take_turns(crowd: Crowd, mut floor: impl Floor, plan: Plan) -> Outcome<Turns> {
    let mut turns = Turns::default();
    // The first round warms up.
    for round in 0..=plan.rounds {
        let bare = one_by_one(&mut floor, slice(&plan)).await?;
        let (ours, mut events) = crowd.contend(slice(&plan)).await?;
        turns.events.append(&mut events);
        if round > 0 {
            turns.rates.push((ours, bare));
        }
        // Cancelled requests are rolled back in the background.
        sleep(SETTLE).await;
    }
    floor.clean().await?;
    Ok(turns)
}

async fn one_by_one(floor: &mut impl Floor, span: Duration) -> Outcome<f64> {
    let (began, mut pairs) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        floor.acquire().await?;
        floor.release().await?;
        pairs += 1;
    }
    Ok(pairs as f64 / began.elapsed().as_secs_f64())
}

struct Crowd {
    mutexes: Vec<Mutex>,
    /// The name of the lock in the history.
    lock: String,
}

impl Crowd {
    async fn contend(&self, span: Duration) -> Outcome<(f64, Vec<Event>)> {
        let window = Window::after(span, RAMP);
        let over = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (number, mutex) in (0..).zip(&self.mutexes) {
            let (mutex, over) = (mutex.clone(), over.clone());
            tasks.spawn(async move { (number, contend(&mutex, window, &over).await) });
        }
        window.ends().await;
        over.cancel();
        let (mut pairs, mut events) = (0_u64, Vec::new());
        while let Some(done) = tasks.join_next().await {
            let (number, done) = done?;
            let (counted, holds) = done?;
            pairs += counted;
            let mut log = EventLog::new(0, number, &self.lock);
            holds.iter().for_each(|hold| log.hold(hold));
            events.append(&mut log.into_events());
        }
        Ok((pairs as f64 / span.as_secs_f64(), events))
    }
}

/// The loop of one task. Returns how many pairs it completed in the window, and the first of its holds.
async fn contend(mutex: &Mutex, window: Window, over: &CancellationToken) -> Outcome<(u64, Vec<TimedHold>)> {
    let mut over = pin!(over.cancelled());
    let (mut pairs, mut holds) = (0, Vec::with_capacity(MOST_TENURES));
    loop {
        let called_ns = now_ns();
        let guard = tokio::select! {
            biased;
            () = &mut over => return Ok((pairs, holds)),
            guard = mutex.acquire() => guard?,
        };
        let acquired_ns = now_ns();
        let grant = GrantInfo::of(&guard);
        let release_called_ns = now_ns();
        let released = outcome(guard.release().await?);
        let released_ns = now_ns();
        pairs += u64::from(window.contains(released_ns));
        if holds.len() < MOST_TENURES {
            holds.push(TimedHold { called_ns, acquired_ns, grant, release_called_ns, released_ns, released });
        }
    }
}

/// Until all tasks contend.
const RAMP: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_millis(50);
/// A longer history of a lock that takes a microsecond would fill the memory.
const MOST_TENURES: usize = 30;
