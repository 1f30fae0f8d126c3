//! `uncontended`: one client acquires and releases, nobody else wants the lock.
//!
//! Ours and the floor take turns, operation by operation, in one task of one runtime, each on connections of its own,
//! so that whatever the machine does meanwhile happens to both.

use std::time::Instant;

use lock_testkit::now_ns;
use polylock::{Guard, Locks, Mutex};
use tokio_util::task::AbortOnDropHandle;

use super::{Bench, Measured, Plan, connect, time};
use crate::address;
use crate::backends::Target;
use crate::diary::{Claim, Diary, Tenure, outcome};
use crate::failure::Outcome;
use crate::floor::{Bare, Floor, ZK_SESSIONS};
use crate::latency::{Latency, Times};
use crate::options::BackendName;
use crate::results::Row;

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        (
            "duration",
            format!(
                "{} with the floor, or {} operations, after {} of warm-up",
                time(plan.uncontended),
                plan.most_operations,
                time(plan.warm_up)
            ),
        ),
        ("runtime", "multi_thread with 2 workers, for ours and the floor".into()),
        ("interleaving", "one operation of ours, one of the floor, in turn".into()),
        ("operations", "1 / mean latency, as the clock also runs for the floor".into()),
        (
            "verdict",
            format!(
                "every {CHALLENGE_EVERY} operations another client tries to take the lock while it is held"
            ),
        ),
        ("floor_memory", "tokio::sync::Mutex, which has no names, tokens or leases".into()),
        ("floor_redis", "SET NX PX + EVALSHA compare-and-delete on one multiplexed connection".into()),
        ("floor_redlock", "the same on every master in parallel, until a majority has answered".into()),
        (
            "floor_zk",
            format!(
                "create ephemeral sequential + get children at once, then delete; {ZK_SESSIONS} sessions take turns, as \
                 some send both in one packet and some do not"
            ),
        ),
        (
            "with_tokens",
            format!(
                "redis and redlock in turn with the floor that also has each server note a larger token than its last, in \
                 a small script, for {}",
                time(plan.counted)
            ),
        ),
        (
            "one_server",
            format!(
                "redlock in turn with the same lock on the first of its masters, for {}",
                time(plan.counted)
            ),
        ),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let lock = bench.lock("uncontended");
    let lane = Lane::new(&locks, &rival, bench, &lock);
    let floor = Bare::connect(target, locks.capabilities().lease, &format!("{lock}-floor")).await?;
    let SideBySide { mut lane, floor, added_us } = side_by_side(lane, floor, bench.plan).await?;
    // In one run processors that wake up slowly and quickly may take turns, and with them the ratio: what the lock
    // adds stays the same.
    let notes = vec![("added_median", format!("{added_us:.2} us"))];
    let rows = lane.times.rows("uncontended", target.name(), &floor);
    let mut measured = Measured { backend: target.name(), rows, notes, ..Measured::default() };
    if matches!(target.backend(), BackendName::Redis | BackendName::Redlock) {
        let rows;
        (lane, rows) = against_tokens(bench, target, &locks, lane).await?;
        measured.rows.extend(rows);
    }
    if target.backend() == BackendName::Redlock {
        let row;
        (lane, row) = against_one_server(bench, target, lane).await?;
        measured.rows.push(row);
    }
    measured.events = lane.into_events();
    rival.close().await?;
    locks.close().await?;
    Ok(measured)
}

/// What is ours beside the price of a token: the same with a floor that has one too.
async fn against_tokens(
    bench: &Bench,
    target: &Target,
    locks: &Locks,
    lane: Lane,
) -> Outcome<(Lane, [Row; 2])> {
    let floor = Bare::connect_minting(target, locks.capabilities().lease, &bench.lock("tokens")).await?;
    let plan = Plan { uncontended: bench.plan.counted, ..bench.plan };
    let SideBySide { lane, floor, .. } = side_by_side(lane, floor, plan).await?;
    let row = |metric, of: fn(&Times) -> &Latency| {
        Row::new("uncontended", target.name(), metric, "us", of(&lane.times).quantile_us(0.5))
            .with_floor(of(&floor).quantile_us(0.5))
    };
    let rows =
        [row("p50_with_tokens", |times| &times.both), row("acquire_with_tokens", |times| &times.acquire)];
    Ok((lane, rows))
}

/// What the quorum costs: the same with one of its masters.
async fn against_one_server(bench: &Bench, target: &Target, lane: Lane) -> Outcome<(Lane, Row)> {
    let first = address::each(target.url()).into_iter().next().unwrap_or_default();
    let one = OneServer { locks: Locks::connect(&first).await?, lock: bench.lock("one"), guard: None };
    let plan = Plan { uncontended: bench.plan.counted, ..bench.plan };
    let SideBySide { lane, floor, .. } = side_by_side(lane, one, plan).await?;
    let row =
        Row::new("uncontended", target.name(), "p50_one_server", "us", lane.times.both.quantile_us(0.5))
            .with_floor(floor.both.quantile_us(0.5));
    Ok((lane, row))
}

/// Our lock over one server as the floor.
struct OneServer {
    locks: Locks,
    lock: String,
    guard: Option<Guard>,
}

impl Floor for OneServer {
    async fn acquire(&mut self) -> Outcome<()> {
        self.guard = Some(self.locks.mutex(&self.lock).acquire().await?);
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        if let Some(guard) = self.guard.take() {
            guard.release().await?;
        }
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(self.locks.close().await?)
    }
}

/// One client with its lock, and a rival that now and then proves that the lock is one.
#[derive(Debug)]
pub(super) struct Lane {
    mutex: Mutex,
    rival: Mutex,
    lock: String,
    tenures: Vec<Tenure>,
    diaries: [Diary; 2],
    /// What acquire and release took.
    pub(super) times: Times,
}

impl Lane {
    /// The client of `locks`, and the rival with a connection of its own.
    pub(super) fn new(locks: &Locks, rival: &Locks, bench: &Bench, lock: &str) -> Self {
        Self {
            mutex: locks.mutex(lock),
            rival: rival.mutex(bench.lock_of(lock, "rival")),
            lock: lock.to_owned(),
            tenures: Vec::new(),
            diaries: [Diary::new(0, 0, lock), Diary::new(0, 1, lock)],
            times: Times::new(),
        }
    }

    /// Acquires and releases once, and gives what that took; `counts` says whether it is part of the measurement.
    pub(super) async fn operate(&mut self, counts: bool) -> Outcome<u64> {
        let called_ns = now_ns();
        let guard = self.mutex.acquire().await?;
        let acquired_ns = now_ns();
        let claim = Claim::of(&guard);
        let release_called_ns = now_ns();
        let released = guard.release().await?;
        let released_ns = now_ns();
        self.tenures.push(Tenure {
            called_ns,
            acquired_ns,
            claim,
            release_called_ns,
            released_ns,
            released: outcome(released),
        });
        let (acquire_ns, release_ns) = (acquired_ns - called_ns, released_ns - release_called_ns);
        if counts {
            self.times.record(acquire_ns, release_ns);
        }
        Ok(acquire_ns + release_ns)
    }

    /// Lets the rival try while we hold.
    pub(super) async fn challenge(&mut self) -> Outcome<()> {
        let [ours, theirs] = &mut self.diaries;
        ours.acquire_called();
        let guard = self.mutex.acquire().await?;
        ours.acquired(&guard);
        theirs.acquire_called();
        match self.rival.try_acquire().await? {
            None => theirs.refused(),
            Some(stolen) => {
                theirs.acquired(&stolen);
                theirs.release_called();
                theirs.released(stolen.release().await?);
            }
        }
        ours.release_called();
        ours.released(guard.release().await?);
        Ok(())
    }

    /// Everything that happened to the lock.
    pub(super) fn into_events(self) -> Vec<lock_testkit::Event> {
        let mut diary = Diary::new(0, 0, &self.lock);
        self.tenures.iter().for_each(|tenure| diary.tenure(tenure));
        let mut events = diary.into_events();
        events.extend(self.diaries.into_iter().flat_map(Diary::into_events));
        events
    }
}

/// What both took.
pub(super) struct SideBySide {
    /// Ours, with all that happened.
    pub(super) lane: Lane,
    /// The floor's times.
    floor: Times,
    /// What ours took more than the floor's operation right after it, in the median.
    added_us: f64,
}

/// Measures on a worker of the runtime, where the tasks of a service are. What the lane measured before is forgotten.
pub(super) async fn side_by_side(lane: Lane, floor: impl Floor + 'static, plan: Plan) -> Outcome<SideBySide> {
    AbortOnDropHandle::new(tokio::spawn(take_turns(lane, floor, plan))).await?
}

async fn take_turns(mut lane: Lane, mut floor: impl Floor, plan: Plan) -> Outcome<SideBySide> {
    lane.times = Times::new();
    let (mut floor_times, mut added_ns) = (Times::new(), Vec::new());
    for (span, counts) in [(plan.warm_up, false), (plan.uncontended, true)] {
        let (end, mut done) = (Instant::now() + span, 0);
        while Instant::now() < end && done < plan.most_operations {
            // What comes right after a challenge meets what the challenge has left behind: it is not counted.
            let challenged = done % CHALLENGE_EVERY == 0;
            let counts = counts && !challenged;
            if challenged {
                lane.challenge().await?;
            }
            done += 1;
            let ours_ns = lane.operate(counts).await?;

            let called_ns = now_ns();
            floor.acquire().await?;
            let acquired_ns = now_ns();
            let release_called_ns = now_ns();
            floor.release().await?;
            let released_ns = now_ns();
            if counts {
                let (acquire_ns, release_ns) = (acquired_ns - called_ns, released_ns - release_called_ns);
                floor_times.record(acquire_ns, release_ns);
                added_ns.push(ours_ns as i64 - (acquire_ns + release_ns) as i64);
            }
        }
    }
    floor.clean().await?;
    added_ns.sort_unstable();
    let added_us = added_ns.get(added_ns.len() / 2).map_or(0.0, |&ns| ns as f64 / 1e3);
    Ok(SideBySide { lane, floor: floor_times, added_us })
}

const CHALLENGE_EVERY: u64 = 128;
