//! The worker: this binary as a process of its own, one contender of a scenario.
//!
//! It gets a [`Job`] as its first line on standard input, further [`Order`]s on the next ones, and writes [`News`] to
//! standard output, all as JSON lines. It ends when its standard input does, when its parent dies, or when it is
//! killed. What it is to do never stands on its command line, where everybody could read the password of a URL.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lock_testkit::Event;
use polylock::backend::{Backend, LockUrl};
use polylock::{Locks, Redlock, RedlockConfig, Votes};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use crate::address;
use crate::contender::Contender;
use crate::diary::Diary;
use crate::failure::{Failure, Outcome};
use crate::peers::{AsyncRedisLock, Distkit, DriverLock, Peer, Program, Rlock, Rslock};
use crate::probe::Probe;
use crate::relay::Relay;
use crate::scenarios::contended::{self, Window};
use crate::scenarios::held;
use crate::soak::worker as soak;

/// What a worker is there for.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    /// The backend.
    pub(crate) url: String,
    /// The name of the lock.
    pub(crate) lock: String,
    /// The name by which a rival in the same process knows it.
    pub(crate) rival: String,
    /// The name of the lock in the history.
    pub(crate) recorded_as: String,
    /// The number of the worker in the history.
    pub(crate) process: u32,
    /// What to do with the lock.
    pub(crate) task: Task,
}

impl Job {
    /// With one lock, known by its name to everybody.
    pub(crate) fn new(url: &str, lock: &str, process: u32, task: Task) -> Self {
        let [url, lock, recorded_as] = [url, lock, lock].map(str::to_owned);
        Self { url, lock, rival: String::new(), recorded_as, process, task }
    }
}

/// What a worker does with the lock.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Take it and give it back, over and over, within the window that the order names.
    Contend {
        /// How long to hold it.
        hold: Duration,
        /// Whose lock it is, when it is not ours.
        peer: Option<Peer>,
    },
    /// Take the turn and pass it on by the bare requests, within the window that the order names.
    Relay {
        /// How long to have it.
        hold: Duration,
        /// How many take turns.
        of: u32,
    },
    /// Leave it alone, and measure empty round trips within the window that the order names.
    Probe,
    /// Take it and keep it until killed.
    Hold,
    /// Take it as soon as it is free, and give it back.
    Wait,
    /// Use locks of all kinds, whatever happens to the servers, until the parent says otherwise.
    Soak(soak::Task),
    /// Take many locks, each with a number after its name, and keep them.
    Many {
        /// How many.
        count: usize,
        /// For how long to watch the renewals.
        watch: Duration,
        /// The processes of the servers, as far as they are ours.
        servers: Vec<u32>,
    },
}

/// What the parent says later on.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Begin now; of a soak: come to an end.
    Go,
    /// Contend, or measure, within this window.
    Contend(Window),
}

/// What a worker tells.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum News {
    /// Connected.
    Ready {
        /// How long a lock outlives its holder here: the ttl or the session timeout.
        lease: Duration,
    },
    /// Done, or holding: what has happened so far.
    Events(Vec<Event>),
    /// How long empty round trips took, in nanoseconds.
    RoundTrips(Vec<u64>),
    /// Behind the events of one who contended for a quorum: how the votes went.
    Votes {
        /// Locks that it won.
        won: u64,
        /// Of those, at the first try.
        won_at_once: u64,
        /// Votes that nobody won.
        split: u64,
    },
    /// What did not come to an end in a soak.
    Stuck(Vec<String>),
    /// What many locks cost.
    Cost(held::Cost),
    /// It cannot go on.
    Failed(String),
}

/// The process of a worker.
pub(crate) fn main() -> ExitCode {
    // One thread: a client of a lock needs no more, and a machine that runs many of them has none to spare.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(work());
            // The thread that reads standard input may be in the middle of it.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // When the parent is gone there is nobody to tell.
            let _ = tell(&News::Failed(failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

async fn work() -> Outcome<()> {
    let mut orders = Orders { lines: BufReader::new(tokio::io::stdin()).lines() };
    let Some(job) = orders.next::<Job>().await? else { return Ok(()) };
    match job.task {
        Task::Probe => probe(&job, &mut orders).await?,
        Task::Soak(ref task) => soak(&job, task, &mut orders).await?,
        Task::Contend { hold, peer: Some(peer) } => contend_as(peer, &job, hold, &mut orders).await?,
        Task::Relay { hold, of } => {
            let relay = Relay::connect(&job.url, &job.lock, job.process, of).await?;
            contend(&relay, &job, hold, &mut orders).await?;
        }
        _ => lock(&job, &mut orders).await?,
    }
    orders.end().await
}

/// Works with a lock of ours.
async fn lock(job: &Job, orders: &mut Orders) -> Outcome<()> {
    let (locks, redlock) = connect(&job.url).await?;
    let lease = locks.capabilities().lease.default_ttl();
    tell(&News::Ready { lease })?;
    let mut diary = Diary::new(job.process, 0, &job.recorded_as);
    let mutex = locks.mutex(&job.lock);
    match job.task {
        Task::Contend { hold, .. } => {
            let Some(window) = orders.window().await? else { return Ok(()) };
            contended::contend(&mutex, &mut diary, window, hold).await?;
            tell(&News::Events(diary.into_events()))?;
            if let Some(redlock) = redlock {
                let Votes { won, won_at_once, split, .. } = redlock.votes();
                tell(&News::Votes { won, won_at_once, split })?;
            }
        }
        Task::Hold => {
            diary.acquire_called();
            let _guard = mutex.acquire().await?;
            diary.acquired(&_guard);
            tell(&News::Events(diary.into_events()))?;
            orders.end().await?;
        }
        Task::Wait => {
            let Some(Order::Go) = orders.next().await? else { return Ok(()) };
            diary.acquire_called();
            let guard = mutex.acquire().await?;
            diary.acquired(&guard);
            diary.release_called();
            diary.released(guard.release().await?);
            tell(&News::Events(diary.into_events()))?;
        }
        Task::Many { count, watch, ref servers } => {
            let mut held = held::Held::take(&locks, job, count).await?;
            tell(&News::Cost(held.watch(watch, servers).await?))?;
            let Some(Order::Go) = orders.next().await? else { return Ok(()) };
            held.challenge(job).await?;
            tell(&News::Events(held.release().await?))?;
        }
        Task::Probe | Task::Relay { .. } | Task::Soak(_) => {}
    }
    Ok(locks.close().await?)
}

/// Redlock is also given as what it is: it counts its votes.
async fn connect(url: &str) -> Outcome<(Locks, Option<Arc<Redlock>>)> {
    if !LockUrl::parse(url)?.scheme.starts_with("redlock") {
        return Ok((Locks::connect(url).await?, None));
    }
    let redlock = Arc::new(Redlock::connect(RedlockConfig::from_url(url)?).await?);
    let backend: Arc<dyn Backend> = Arc::<Redlock>::clone(&redlock);
    Ok((Locks::from(backend), Some(redlock)))
}

async fn contend_as(peer: Peer, job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    let (url, key) = (address::without_options(&job.url), job.lock.as_str());
    match peer {
        Peer::Rslock => contend(&Rslock::new(vec![url.to_owned()], key), job, hold, orders).await,
        Peer::Rlock => contend(&Rlock::connect(url, key).await?, job, hold, orders).await,
        Peer::AsyncRedisLock => contend(&AsyncRedisLock::connect(url, key).await?, job, hold, orders).await,
        Peer::Distkit => contend(&Distkit::connect(url, key).await?, job, hold, orders).await,
        Peer::LockClient => {
            let lock = DriverLock::connect(url, &format!("/{key}")).await?;
            contend(&lock, job, hold, orders).await
        }
        Peer::Curator => direct(Program::curator(url, &format!("/{key}")).await?, job, hold, orders).await,
        Peer::Kazoo => direct(Program::kazoo(url, &format!("/{key}")).await?, job, hold, orders).await,
    }
}

/// Has a program fight.
async fn direct(mut program: Program, job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    tell(&News::Ready { lease: Duration::ZERO })?;
    let Some(window) = orders.window().await? else { return Ok(()) };
    let mut diary = Diary::new(job.process, 0, &job.recorded_as);
    program.contend(window.until_ns(), contended::nanos(hold), &mut diary).await?;
    tell(&News::Events(diary.into_events()))
}

/// Fights with a lock that is not ours.
async fn contend(peer: &impl Contender, job: &Job, hold: Duration, orders: &mut Orders) -> Outcome<()> {
    tell(&News::Ready { lease: Duration::ZERO })?;
    let Some(window) = orders.window().await? else { return Ok(()) };
    let mut diary = Diary::new(job.process, 0, &job.recorded_as);
    contended::contend(peer, &mut diary, window, hold).await?;
    tell(&News::Events(diary.into_events()))
}

async fn soak(job: &Job, task: &soak::Task, orders: &mut Orders) -> Outcome<()> {
    // Before it is connected: servers may be down while it is started.
    tell(&News::Ready { lease: Duration::ZERO })?;
    let end = async {
        // Without a parent there is nobody to say when to end.
        orders.next::<Order>().await.map(drop)
    };
    tell(&News::Stuck(soak::work(job, task, end).await?))
}

async fn probe(job: &Job, orders: &mut Orders) -> Outcome<()> {
    let mut probe = Probe::connect(&job.url).await?;
    tell(&News::Ready { lease: Duration::ZERO })?;
    let Some(window) = orders.window().await? else { return Ok(()) };
    tell(&News::RoundTrips(probe.watch(window).await?))
}

/// The lines of the parent.
struct Orders {
    lines: Lines<BufReader<Stdin>>,
}

impl Orders {
    async fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Outcome<Option<T>> {
        match self.lines.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }

    /// When to contend; `None` when the parent is gone.
    async fn window(&mut self) -> Outcome<Option<Window>> {
        match self.next().await? {
            Some(Order::Contend(window)) => Ok(Some(window)),
            Some(Order::Go) => Err(Failure::new("there was no window in the order")),
            None => Ok(None),
        }
    }

    /// Waits until the parent has nothing more to say.
    async fn end(&mut self) -> Outcome<()> {
        while self.lines.next_line().await?.is_some() {}
        Ok(())
    }
}

fn tell(news: &News) -> Outcome<()> {
    let mut line = serde_json::to_vec(news).map_err(Failure::from)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}
