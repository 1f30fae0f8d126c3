//! Many locks held by one process, and what they cost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lock_testkit::history::Event;
use polylock::{Guard, Locks, Released};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::Job;
use crate::data::{EventLog, Outcome};
use crate::rig::cpu_time;
use crate::rig::measured_lock::challenge;
use crate::rig::memory;

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct HeldLocksCost {
    pub(crate) bytes_per_lock: f64,
    pub(crate) client_percent: f64,
    /// CPU time of the servers, if they are ours.
    pub(crate) servers_percent: Option<f64>,
    pub(crate) lost: usize,
    pub(crate) acquire_all: Duration,
}

#[derive(Debug)]
pub(crate) struct HeldLocks {
    guards: Vec<Guard>,
    /// Of the locks that a rival will try to acquire, by number. The others prove nothing.
    logs: BTreeMap<usize, EventLog>,
    rivals: Vec<EventLog>,
    bytes: u64,
    acquire_all: Duration,
}

impl HeldLocks {
    /// Acquires `count` locks.
    pub(crate) async fn acquire(locks: &Locks, job: &Job, count: usize) -> Outcome<Self> {
        // Buffers and pools exist after the warm-up, so that later growth belongs to the locks. The warm-up locks are held
        // until it is measured, lest their memory be reused.
        let warm_up = acquire_all(locks, &format!("{}-warm-up", job.lock), count.min(WARM_UP)).await?;
        sleep(SETTLE).await;
        let before = memory::of_this_process()?;
        let began = Instant::now();
        let guards = acquire_all(locks, &job.lock, count).await?;
        let acquire_all = began.elapsed();
        sleep(SETTLE).await;
        let bytes = memory::of_this_process()?.saturating_sub(before);
        release_all(warm_up).await?;

        // Recorded after measuring: the history must not count as memory of the locks.
        let mut logs = BTreeMap::new();
        for (number, guard) in guards.iter().enumerate().step_by((count / RIVALS).max(1)) {
            let mut log = EventLog::new(job.process, 0, &numbered(&job.recorded_as, number));
            log.acquire_called();
            log.acquired(guard);
            logs.insert(number, log);
        }
        Ok(Self { guards, logs, rivals: Vec::new(), bytes, acquire_all })
    }

    /// Measures what their renewal costs this process and the servers.
    pub(crate) async fn measure(&self, span: Duration, servers: &[u32]) -> Outcome<HeldLocksCost> {
        let (began, resident_before) = (Instant::now(), memory::of_this_process()?);
        let before = (cpu_time::of_this_process()?, cpu_time::of(servers)?);
        sleep(span).await;
        let after = (cpu_time::of_this_process()?, cpu_time::of(servers)?);
        let elapsed = began.elapsed();
        let percent = |before, after: Duration| {
            after.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64() * 100.0
        };
        Ok(HeldLocksCost {
            // Renewals allocate as well.
            bytes_per_lock: (self.bytes + memory::of_this_process()?.saturating_sub(resident_before)) as f64
                / self.guards.len().max(1) as f64,
            client_percent: percent(before.0, after.0),
            servers_percent: (!servers.is_empty()).then(|| percent(before.1, after.1)),
            lost: self.guards.iter().filter(|guard| !guard.is_valid()).count(),
            acquire_all: self.acquire_all,
        })
    }

    /// Has another client try to acquire some of them. It must fail.
    pub(crate) async fn challenge(&mut self, job: &Job) -> Outcome<()> {
        let rival = Locks::connect(&job.url).await?;
        for &number in self.logs.keys() {
            let mut log = EventLog::new(job.process, 1, &numbered(&job.recorded_as, number));
            challenge(&rival.mutex(numbered(&job.rival, number)), &mut log).await?;
            self.rivals.push(log);
        }
        Ok(rival.close().await?)
    }

    pub(crate) async fn release(mut self) -> Outcome<Vec<Event>> {
        // All locks are unused from here on, long before the last one is released.
        self.logs.values_mut().for_each(EventLog::release_called);
        let released = release_all(self.guards).await?;
        for (&number, log) in &mut self.logs {
            log.released(released[number]);
        }
        Ok(self.logs.into_values().chain(self.rivals).flat_map(EventLog::into_events).collect())
    }
}

async fn acquire_all(locks: &Locks, prefix: &str, count: usize) -> Outcome<Vec<Guard>> {
    let acquire = |number| async move { locks.mutex(numbered(prefix, number)).acquire().await };
    Ok(stream::iter(0..count).map(acquire).buffered(AT_ONCE).try_collect().await?)
}

/// Releases all locks; the outcomes are in the order of the guards.
async fn release_all(guards: Vec<Guard>) -> Outcome<Vec<Released>> {
    Ok(stream::iter(guards).map(Guard::release).buffered(AT_ONCE).try_collect().await?)
}

fn numbered(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number}")
}

const AT_ONCE: usize = 64;
const WARM_UP: usize = 500;
/// For background work of the acquisitions to end.
const SETTLE: Duration = Duration::from_millis(500);
/// How many of the locks a rival tries to acquire.
pub(crate) const RIVALS: usize = 100;
