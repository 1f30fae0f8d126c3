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
use crate::data::events::outcome;
use crate::data::{EventLog, GrantInfo, Outcome, Plan, Row, TimedHold, Window};
use crate::rig::{Bare, Floor, Target, stuck};

/// The settings, for the report.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("tasks", format!("{} of one process, on one connection to the backend", plan.tasks)),
        (
            "duration",
            format!(
                "{} slices of {}, in turn with as many of the floor; the first {} of a slice do not count",
                plan.task_slices,
                time(plan.task_slice),
                time(RAMP)
            ),
        ),
        ("hold", "none: released as soon as it is acquired".into()),
        ("floor", "that of uncontended, one pair after the other, in one task".into()),
        ("runtime", "multi_thread with 2 workers, for ours and the floor".into()),
        ("verdict", format!("over the first {MOST_TENURES} holds of every task in a slice")),
    ]
}

/// Measures one backend.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let locks = connect(target).await?;
    let lock = bench.lock("tasks");
    let _watched = stuck::watch(target.url(), &lock);
    let floor = Bare::connect(target, locks.capabilities().lease, &format!("{lock}-floor")).await?;
    let mutexes = (0..bench.plan.tasks).map(|task| locks.mutex(bench.lock_of(&lock, task))).collect();
    let crowd = Crowd { mutexes, lock };
    // On a worker thread of the runtime, as the tasks of a service.
    let turns = AbortOnDropHandle::new(tokio::spawn(take_turns(crowd, floor, bench.plan))).await??;
    locks.close().await?;
    let row = Row::new("tasks", target.name(), "pairs_per_s", "1/s", turns.ours.per_second());
    let rows = vec![row.with_floor(turns.floor.per_second())];
    Ok(Measured { backend: target.name(), rows, events: turns.events, ..Measured::default() })
}

/// The rates of both, and the history.
struct Turns {
    ours: Rate,
    floor: Rate,
    events: Vec<Event>,
}

async fn take_turns(crowd: Crowd, mut floor: impl Floor, plan: Plan) -> Outcome<Turns> {
    let mut turns = Turns { ours: Rate::default(), floor: Rate::default(), events: Vec::new() };
    // The first slice of both warms up.
    for slice in 0..=plan.task_slices {
        let bare = one_by_one(&mut floor, plan.task_slice).await?;
        let (ours, mut events) = crowd.contend(plan.task_slice).await?;
        turns.events.append(&mut events);
        if slice > 0 {
            turns.floor.add(bare);
            turns.ours.add(ours);
        }
        // Cancelled requests are rolled back in the background.
        sleep(SETTLE).await;
    }
    floor.clean().await?;
    Ok(turns)
}

async fn one_by_one(floor: &mut impl Floor, span: Duration) -> Outcome<Rate> {
    let (began, mut pairs) = (Instant::now(), 0);
    while began.elapsed() < span {
        floor.acquire().await?;
        floor.release().await?;
        pairs += 1;
    }
    Ok(Rate { pairs, span: began.elapsed() })
}

/// The contending tasks.
struct Crowd {
    /// A handle for each task.
    mutexes: Vec<Mutex>,
    /// The name of the lock in the history.
    lock: String,
}

impl Crowd {
    /// Has all tasks contend for this long.
    async fn contend(&self, span: Duration) -> Outcome<(Rate, Vec<Event>)> {
        let window = Window::after(span, RAMP);
        let over = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for (number, mutex) in (0..).zip(&self.mutexes) {
            let (mutex, over) = (mutex.clone(), over.clone());
            tasks.spawn(async move { (number, contend(&mutex, window, &over).await) });
        }
        window.ends().await;
        over.cancel();
        let (mut pairs, mut events) = (0, Vec::new());
        while let Some(done) = tasks.join_next().await {
            let (number, done) = done?;
            let (counted, holds) = done?;
            pairs += counted;
            let mut log = EventLog::new(0, number, &self.lock);
            holds.iter().for_each(|hold| log.hold(hold));
            events.append(&mut log.into_events());
        }
        Ok((Rate { pairs, span }, events))
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

/// Pairs of acquire and release per time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    pairs: u64,
    span: Duration,
}

impl Rate {
    fn add(&mut self, other: Self) {
        self.pairs += other.pairs;
        self.span += other.span;
    }

    fn per_second(self) -> f64 {
        if self.span.is_zero() { 0.0 } else { self.pairs as f64 / self.span.as_secs_f64() }
    }
}

/// Until all tasks contend.
const RAMP: Duration = Duration::from_millis(50);
const SETTLE: Duration = Duration::from_millis(50);
/// A longer history of a lock that takes a microsecond would fill the memory.
const MOST_TENURES: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_slices_add_up() {
        let mut rate = Rate::default();
        assert!(rate.per_second().abs() < 1e-9);
        rate.add(Rate { pairs: 100, span: Duration::from_millis(500) });
        rate.add(Rate { pairs: 200, span: Duration::from_millis(1000) });
        assert!((rate.per_second() - 200.0).abs() < 1e-9);
    }
}
