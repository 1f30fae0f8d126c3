//! `held`: what many locks cost the process that holds them: memory, and the renewal in the background.

use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lock_testkit::Event;
use polylock::{Guard, Locks};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Bench, Measured, Plan, time};
use crate::backends::Target;
use crate::crew::{Hand, unexpected};
use crate::diary::Diary;
use crate::failure::{Failure, Outcome};
use crate::results::Row;
use crate::worker::{Job, News, Order, Task};

/// What is set.
pub(super) fn settings(plan: &Plan) -> Vec<(&'static str, String)> {
    vec![
        ("locks", format!("{}, in one process of their own", plan.held_locks)),
        ("lease", "the default: a ttl of 30 s, renewed every 10 s; zk: the session".into()),
        ("memory", "growth of the anonymous resident memory of that process, per lock".into()),
        (
            "renewal",
            format!("processor time of that process over {}, in percent of one core", time(plan.held)),
        ),
        ("verdict", format!("another client tries to take {RIVALS} of the locks")),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("held");
    let job = Job {
        url: target.url().to_owned(),
        lock: lock.clone(),
        rival: bench.lock_of(&lock, "rival"),
        recorded_as: lock.clone(),
        process: 0,
        task: Task::Many { count: plan.held_locks, watch: plan.held },
    };
    let mut hands = Hand::hire([job]).await?;
    let hand = hands.pop().ok_or_else(|| Failure::new("no worker came"))?;
    let cost = match hand.hear(plan.held + PATIENCE).await? {
        News::Cost(cost) => cost,
        other => return Err(unexpected(&other)),
    };
    hand.order(Order::Go).await?;
    let events = hand.events(PATIENCE).await?;
    let row = |metric, unit, value| Row::new("held", target.name(), metric, unit, value);
    Ok(Measured {
        rows: vec![
            row("bytes_per_lock", "B", cost.bytes_per_lock),
            row("renew_cpu_percent", "%", cost.renew_cpu_percent),
            row("acquire_all", "ms", cost.acquire_all.as_secs_f64() * 1e3),
        ],
        events,
        notes: Vec::new(),
    })
}

/// What many locks cost.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Cost {
    /// Memory of the process.
    bytes_per_lock: f64,
    /// Processor time of the process.
    renew_cpu_percent: f64,
    /// How long it took to acquire all of them.
    acquire_all: Duration,
}

/// Many locks that are held.
#[derive(Debug)]
pub(crate) struct Held {
    guards: Vec<Guard>,
    diaries: Vec<Diary>,
    rivals: Vec<Diary>,
    bytes: u64,
    acquire_all: Duration,
}

impl Held {
    /// Takes them.
    ///
    /// # Errors
    ///
    /// When one of them cannot be taken.
    pub(crate) async fn take(locks: &Locks, job: &Job, count: usize) -> Outcome<Self> {
        // Buffers, pools and lazy things are there afterwards; what grows from here on is the locks'.
        let warm_up = take(locks, &format!("{}-warm-up", job.lock), count.min(WARM_UP)).await?;
        release(warm_up, &mut []).await?;
        sleep(SETTLE).await;

        let mut diaries: Vec<Diary> = (0..count)
            .map(|number| Diary::new(job.process, 0, &numbered(&job.recorded_as, number)))
            .collect();
        let before = resident()?;
        let began = Instant::now();
        let guards = take(locks, &job.lock, count).await?;
        let acquire_all = began.elapsed();
        sleep(SETTLE).await;
        let bytes = resident()?.saturating_sub(before);

        // Noted when all are there: the history must not be counted as the locks' memory.
        for (diary, guard) in diaries.iter_mut().zip(&guards) {
            diary.acquire_called();
            diary.acquired(guard);
        }
        Ok(Self { guards, diaries, rivals: Vec::new(), bytes, acquire_all })
    }

    /// Watches them being renewed.
    pub(crate) async fn watch(&self, span: Duration) -> Cost {
        let (began, before) = (Instant::now(), processor_time());
        sleep(span).await;
        let spent = processor_time().saturating_sub(before);
        Cost {
            bytes_per_lock: self.bytes as f64 / self.guards.len().max(1) as f64,
            renew_cpu_percent: spent.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0,
            acquire_all: self.acquire_all,
        }
    }

    /// Lets another client try some of them; it must get none.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub(crate) async fn challenge(&mut self, job: &Job) -> Outcome<()> {
        let rival = Locks::connect(&job.url).await?;
        for number in (0..self.guards.len()).step_by((self.guards.len() / RIVALS).max(1)) {
            let mut diary = Diary::new(job.process, 1, &numbered(&job.recorded_as, number));
            diary.acquire_called();
            match rival.mutex(numbered(&job.rival, number)).try_acquire().await? {
                None => diary.refused(),
                Some(stolen) => {
                    diary.acquired(&stolen);
                    diary.release_called();
                    diary.released(stolen.release().await?);
                }
            }
            self.rivals.push(diary);
        }
        Ok(rival.close().await?)
    }

    /// Gives them back, and tells what happened.
    ///
    /// # Errors
    ///
    /// When one of them was lost.
    pub(crate) async fn release(mut self) -> Outcome<Vec<Event>> {
        let lost = self.guards.iter().filter(|guard| !guard.is_valid()).count();
        if lost > 0 {
            return Err(Failure::new(format!("{lost} of {} locks were lost", self.guards.len())));
        }
        release(self.guards, &mut self.diaries).await?;
        Ok(self.diaries.into_iter().chain(self.rivals).flat_map(Diary::into_events).collect())
    }
}

async fn take(locks: &Locks, prefix: &str, count: usize) -> Outcome<Vec<Guard>> {
    let acquire = |number| async move { locks.mutex(numbered(prefix, number)).acquire().await };
    Ok(stream::iter(0..count).map(acquire).buffered(AT_ONCE).try_collect().await?)
}

async fn release(guards: Vec<Guard>, diaries: &mut [Diary]) -> Outcome<()> {
    diaries.iter_mut().for_each(Diary::release_called);
    let done = stream::iter(guards).map(Guard::release).buffered(AT_ONCE).try_collect::<Vec<_>>();
    for (diary, released) in diaries.iter_mut().zip(done.await?) {
        diary.released(released);
    }
    Ok(())
}

fn numbered(prefix: &str, number: usize) -> String {
    format!("{prefix}-{number}")
}

/// The anonymous memory of this process that is resident, in bytes.
fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kilobytes.ok_or_else(|| Failure::new("the kernel does not tell RssAnon"))? * 1024)
}

fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Duration::from_secs(part(spent.tv_sec)) + Duration::from_nanos(part(spent.tv_nsec))
}

/// So many requests are on their way at once.
const AT_ONCE: usize = 64;
const WARM_UP: usize = 500;
/// Background work of the acquisitions ends.
const SETTLE: Duration = Duration::from_millis(500);
/// So many of the locks are tried by another client.
const RIVALS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);
