//! Measures a lock and its floor by turns, operation by operation, so that noise of the machine affects both.

use std::time::Instant;

use lock_testkit::history::Event;
use lock_testkit::now_ns;
use polylock::{Locks, Mutex};
use tokio_util::task::AbortOnDropHandle;

use crate::data::median::median;
use crate::experiments::prelude::*;
use crate::rig::measured_lock::{challenge, hold_once, hold_through};

/// A client of the lock, and a rival that challenges it now and then.
#[derive(Debug)]
pub(crate) struct MeasuredClient {
    mutex: Mutex,
    rival: Mutex,
    lock: String,
    holds: Vec<TimedHold>,
    logs: [EventLog; 2],
    /// The latencies of this round.
    pub(crate) times: Times,
}

impl MeasuredClient {
    /// A client of `locks`, and a rival on another connection.
    pub(crate) fn new(locks: &Locks, rival: &Locks, bench: &Bench, lock: &str) -> Self {
        Self {
            mutex: locks.mutex(lock),
            rival: rival.mutex(bench.lock_of(lock, "rival")),
            lock: lock.to_owned(),
            holds: Vec::new(),
            logs: [EventLog::new(0, 0, lock), EventLog::new(0, 1, lock)],
            times: Times::new(),
        }
    }

    /// Acquires and releases once; `counts` says whether the times are recorded.
    pub(crate) async fn operate(&mut self, counts: bool) -> Outcome<TimedHold> {
        let hold = hold_once(&self.mutex).await?;
        self.holds.push(hold);
        if counts {
            self.times.record(hold.acquire_ns(), hold.release_ns());
        }
        Ok(hold)
    }

    /// Has the rival try to acquire the lock while the client holds it.
    pub(crate) async fn challenge(&mut self) -> Outcome<()> {
        let [ours, theirs] = &mut self.logs;
        hold_through(&self.mutex, ours, challenge(&self.rival, theirs)).await
    }

    /// The history of the lock.
    pub(crate) fn into_events(self) -> Vec<Event> {
        let mut log = EventLog::new(0, 0, &self.lock);
        self.holds.iter().for_each(|hold| log.hold(hold));
        let mut events = log.into_events();
        events.extend(self.logs.into_iter().flat_map(EventLog::into_events));
        events
    }
}

/// What was measured by turns.
pub(crate) struct Measurement {
    pub(crate) client: MeasuredClient,
    pub(crate) times: Compared,
    /// The median of the differences between an operation and that of the floor right after it.
    pub(crate) added_us: f64,
}

/// Measures on a worker thread of the runtime, as the tasks of a service.
pub(crate) async fn side_by_side(
    client: MeasuredClient,
    floor: impl Floor + 'static,
    plan: Plan,
) -> Outcome<Measurement> {
    AbortOnDropHandle::new(tokio::spawn(take_turns(client, floor, plan))).await?
}

async fn take_turns(mut client: MeasuredClient, mut floor: impl Floor, plan: Plan) -> Outcome<Measurement> {
    let (mut rounds, mut added_us) = (Vec::new(), Vec::new());
    for round in 0..=plan.rounds {
        let counts = round > 0;
        let span = if counts { plan.uncontended / plan.rounds } else { plan.warm_up };
        let most = plan.most_operations / u64::from(plan.rounds);
        let (end, mut done, mut floor_times) = (Instant::now() + span, 0, Times::new());
        client.times = Times::new();
        while Instant::now() < end && done < most {
            // The operation after a challenge is not counted: background work of the challenge disturbs it.
            let challenged = done % CHALLENGE_EVERY == 0;
            let counts = counts && !challenged;
            if challenged {
                client.challenge().await?;
            }
            done += 1;
            let ours = client.operate(counts).await?;

            let called_ns = now_ns();
            floor.acquire().await?;
            let acquired_ns = now_ns();
            let release_called_ns = now_ns();
            floor.release().await?;
            let released_ns = now_ns();
            if counts {
                let (acquire_ns, release_ns) = (acquired_ns - called_ns, released_ns - release_called_ns);
                floor_times.record(acquire_ns, release_ns);
                added_us.push((ours.took_ns() as f64 - (acquire_ns + release_ns) as f64) / 1e3);
            }
        }
        if counts {
            rounds.push([client.times.clone(), floor_times]);
        }
    }
    floor.clean().await?;
    Ok(Measurement { client, times: Compared::of(rounds), added_us: median(added_us) })
}

pub(crate) const CHALLENGE_EVERY: u64 = 128;
