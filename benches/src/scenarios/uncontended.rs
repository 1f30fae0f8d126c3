//! `uncontended`: one client acquires and releases, nobody else wants the lock.
//!
//! Ours and the floor take turns, operation by operation, in one task of one runtime, each on connections of its own,
//! so that whatever the machine does meanwhile happens to both.

use std::time::Instant;

use lock_testkit::now_ns;
use polylock::backend::LeaseKind;
use polylock::{Locks, Mutex};
use tokio_util::task::AbortOnDropHandle;

use super::{Bench, Measured, Plan, connect, time};
use crate::backends::Target;
use crate::diary::{Diary, Tenure, until_ns};
use crate::failure::{Failure, Outcome};
use crate::floor::{BareMutex, BareRedis, BareRedlock, BareZk, Floor};
use crate::latency::Latency;
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
        ("floor_zk", "create ephemeral sequential + get children, then delete, in one session".into()),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let locks = connect(target).await?;
    let rival = connect(target).await?;
    let lock = bench.lock("uncontended");
    let lane = Lane::new(&locks, &rival, bench, &lock);
    let (url, key) = (target.url(), format!("{lock}-floor"));
    let plan = bench.plan;
    let measured = match (target.backend(), locks.capabilities().lease) {
        (BackendName::Memory, _) => side_by_side(lane, BareMutex::default(), plan).await?,
        (BackendName::Redis, LeaseKind::Ttl { default: ttl, .. }) => {
            let host = crate::address::hosts(url).first().copied().unwrap_or_default();
            side_by_side(lane, BareRedis::connect(url, host, &key, ttl).await?, plan).await?
        }
        (BackendName::Redlock, LeaseKind::Ttl { default: ttl, .. }) => {
            side_by_side(lane, BareRedlock::connect(url, &key, ttl).await?, plan).await?
        }
        (BackendName::Zk, LeaseKind::Session { timeout }) => {
            side_by_side(lane, BareZk::connect(url, &key, timeout).await?, plan).await?
        }
        (backend, lease) => {
            return Err(Failure::new(format!("no floor for {backend} with leases of the kind {lease:?}")));
        }
    };
    let SideBySide { lane, floor } = measured;
    let mut rows = lane.latency.rows("uncontended", target.name(), &floor);
    rows.push(Row::new("uncontended", target.name(), "ops", "1/s", lane.latency.per_second()));
    rival.close().await?;
    locks.close().await?;
    Ok(Measured { rows, events: lane.into_events(), notes: Vec::new() })
}

/// One client with its lock, and a rival that now and then proves that the lock is one.
#[derive(Debug)]
pub(super) struct Lane {
    mutex: Mutex,
    rival: Mutex,
    lock: String,
    tenures: Vec<Tenure>,
    diaries: [Diary; 2],
    /// What acquire and release took together.
    pub(super) latency: Latency,
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
            latency: Latency::new(),
        }
    }

    /// Acquires and releases once; `counts` says whether that is part of the measurement.
    pub(super) async fn operate(&mut self, counts: bool) -> Outcome<()> {
        let called_ns = now_ns();
        let guard = self.mutex.acquire().await?;
        let acquired_ns = now_ns();
        let (token, until_ns) = (guard.token().get(), until_ns(&guard));
        let release_called_ns = now_ns();
        let released = guard.release().await?;
        let released_ns = now_ns();
        self.tenures.push(Tenure {
            called_ns,
            acquired_ns,
            token,
            until_ns,
            release_called_ns,
            released_ns,
            released,
        });
        if counts {
            self.latency.record((acquired_ns - called_ns) + (released_ns - release_called_ns));
        }
        Ok(())
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
    floor: Latency,
}

/// Measures on a worker of the runtime, where the tasks of a service are. What the lane measured before is forgotten.
pub(super) async fn side_by_side(lane: Lane, floor: impl Floor + 'static, plan: Plan) -> Outcome<SideBySide> {
    AbortOnDropHandle::new(tokio::spawn(take_turns(lane, floor, plan))).await?
}

async fn take_turns(mut lane: Lane, mut floor: impl Floor, plan: Plan) -> Outcome<SideBySide> {
    lane.latency = Latency::new();
    let mut floor_latency = Latency::new();
    for (span, counts) in [(plan.warm_up, false), (plan.uncontended, true)] {
        let (end, mut done) = (Instant::now() + span, 0);
        while Instant::now() < end && done < plan.most_operations {
            if done % CHALLENGE_EVERY == 0 {
                lane.challenge().await?;
            }
            done += 1;
            lane.operate(counts).await?;

            let called_ns = now_ns();
            floor.acquire().await?;
            let acquired_ns = now_ns();
            let release_called_ns = now_ns();
            floor.release().await?;
            let released_ns = now_ns();
            if counts {
                floor_latency.record((acquired_ns - called_ns) + (released_ns - release_called_ns));
            }
        }
    }
    floor.clean().await?;
    Ok(SideBySide { lane, floor: floor_latency })
}

const CHALLENGE_EVERY: u64 = 128;
