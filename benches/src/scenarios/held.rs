//! `held`: what many locks cost the process that holds them, memory and the renewal in the background, and what the
//! renewal costs the servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use lock_testkit::Event;
use polylock::{Guard, Locks, Released};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Bench, Measured, Plan, time};
use crate::backends::Target;
use crate::crew::{Hand, unexpected};
use crate::diary::Diary;
use crate::failure::{Failure, Outcome};
use crate::processor;
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
            format!(
                "processor time of that process, and of the servers, over {}, in percent of one core",
                time(plan.held)
            ),
        ),
        ("lost", "locks that their guards gave up meanwhile".into()),
        ("verdict", format!("another client tries to take {RIVALS} of the locks; the history is theirs")),
    ]
}

/// Runs it.
pub(super) async fn run(bench: &Bench, target: &Target) -> Outcome<Measured> {
    let plan = &bench.plan;
    let lock = bench.lock("held");
    let task = Task::Many { count: plan.held_locks, watch: plan.held, servers: target.processes() };
    let job = Job { rival: bench.lock_of(&lock, "rival"), ..Job::new(target.url(), &lock, 0, task) };
    let mut hands = Hand::hire([job]).await?;
    let hand = hands.pop().ok_or_else(|| Failure::new("no worker came"))?;
    let cost = match hand.hear(plan.patience).await? {
        News::Cost(cost) => cost,
        other => return Err(unexpected(&other)),
    };
    hand.order(Order::Go).await?;
    let events = hand.events(plan.patience).await?;
    let row = |metric, unit, value| Row::new("held", target.name(), metric, unit, value);
    let mut rows = vec![
        row("bytes_per_lock", "B", cost.bytes_per_lock),
        row("renew_cpu_percent", "%", cost.client_percent),
    ];
    if let Some(percent) = cost.servers_percent {
        rows.push(row("server_cpu_percent", "%", percent));
        rows.push(row("both_cpu_percent", "%", cost.client_percent + percent));
    }
    rows.push(row("lost", "", cost.lost as f64));
    rows.push(row("acquire_all", "ms", cost.acquire_all.as_secs_f64() * 1e3));
    let complaints = match cost.lost {
        0 => Vec::new(),
        lost => vec![format!("{lost} of {} locks were lost", plan.held_locks)],
    };
    Ok(Measured { backend: target.name(), rows, events, complaints, ..Measured::default() })
}

/// What many locks cost.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Cost {
    /// Memory of the process.
    bytes_per_lock: f64,
    /// Processor time of the process.
    client_percent: f64,
    /// That of the servers, if they are ours.
    servers_percent: Option<f64>,
    /// How many locks were lost.
    lost: usize,
    /// How long it took to acquire all of them.
    acquire_all: Duration,
}

/// Many locks that are held.
#[derive(Debug)]
pub(crate) struct Held {
    guards: Vec<Guard>,
    /// Of those that somebody else will try to take, by their number. The others can prove nothing.
    diaries: BTreeMap<usize, Diary>,
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
        // Buffers, pools and lazy things are there afterwards; what grows from here on is the locks'. These stay until
        // that is known: their memory must not be used again.
        let warm_up = take(locks, &format!("{}-warm-up", job.lock), count.min(WARM_UP)).await?;
        sleep(SETTLE).await;
        let before = resident()?;
        let began = Instant::now();
        let guards = take(locks, &job.lock, count).await?;
        let acquire_all = began.elapsed();
        sleep(SETTLE).await;
        let bytes = resident()?.saturating_sub(before);
        release(warm_up).await?;

        // Noted when all are there: the history must not be counted as the locks' memory.
        let mut diaries = BTreeMap::new();
        for (number, guard) in guards.iter().enumerate().step_by((count / RIVALS).max(1)) {
            let mut diary = Diary::new(job.process, 0, &numbered(&job.recorded_as, number));
            diary.acquire_called();
            diary.acquired(guard);
            diaries.insert(number, diary);
        }
        Ok(Self { guards, diaries, rivals: Vec::new(), bytes, acquire_all })
    }

    /// Watches them being renewed, and what that takes of this process and of the servers.
    ///
    /// # Errors
    ///
    /// When the processes of the servers are not there.
    pub(crate) async fn watch(&self, span: Duration, servers: &[u32]) -> Outcome<Cost> {
        let (began, resident_before) = (Instant::now(), resident()?);
        let before = (processor::of_this_process(), processor::of(servers)?);
        sleep(span).await;
        let after = (processor::of_this_process(), processor::of(servers)?);
        let elapsed = began.elapsed();
        let percent = |before, after: Duration| {
            after.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64() * 100.0
        };
        Ok(Cost {
            // Renewals take memory as well.
            bytes_per_lock: (self.bytes + resident()?.saturating_sub(resident_before)) as f64
                / self.guards.len().max(1) as f64,
            client_percent: percent(before.0, after.0),
            servers_percent: (!servers.is_empty()).then(|| percent(before.1, after.1)),
            lost: self.guards.iter().filter(|guard| !guard.is_valid()).count(),
            acquire_all: self.acquire_all,
        })
    }

    /// Lets another client try some of them; it must get none.
    ///
    /// # Errors
    ///
    /// When the servers do not answer.
    pub(crate) async fn challenge(&mut self, job: &Job) -> Outcome<()> {
        let rival = Locks::connect(&job.url).await?;
        for &number in self.diaries.keys() {
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
    /// When the servers do not answer.
    pub(crate) async fn release(mut self) -> Outcome<Vec<Event>> {
        // They all stop being used here, which is long before the last one is released.
        self.diaries.values_mut().for_each(Diary::release_called);
        let released = release(self.guards).await?;
        for (&number, diary) in &mut self.diaries {
            diary.released(released[number]);
        }
        Ok(self.diaries.into_values().chain(self.rivals).flat_map(Diary::into_events).collect())
    }
}

async fn take(locks: &Locks, prefix: &str, count: usize) -> Outcome<Vec<Guard>> {
    let acquire = |number| async move { locks.mutex(numbered(prefix, number)).acquire().await };
    Ok(stream::iter(0..count).map(acquire).buffered(AT_ONCE).try_collect().await?)
}

/// In their order.
async fn release(guards: Vec<Guard>) -> Outcome<Vec<Released>> {
    Ok(stream::iter(guards).map(Guard::release).buffered(AT_ONCE).try_collect().await?)
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

/// So many requests are on their way at once.
const AT_ONCE: usize = 64;
const WARM_UP: usize = 500;
/// Background work of the acquisitions ends.
const SETTLE: Duration = Duration::from_millis(500);
/// So many of the locks are tried by another client.
const RIVALS: usize = 100;
