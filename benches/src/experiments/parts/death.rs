//! A holder that dies while another client waits for its lock.

use std::fmt;
use std::future::ready;
use std::time::Duration;

use futures_util::future::join;
use lock_testkit::history::{Event, EventKind};
use lock_testkit::proxy::Direction;
use lock_testkit::{FaultProxy, ZooKeeper, now_ns};
use polylock::{LockOptions, Locks};
use rand::Rng;
use tokio::time::{sleep, timeout};

use crate::experiments::prelude::*;
use crate::rig::measured_lock::hold_through;
use crate::rig::peers::missing;

/// What followed the end of a holder.
pub(crate) struct Takeover {
    /// From the end until the waiter has the lock; nothing if it had it before, an overlap that the events show.
    pub(crate) gap: Option<Duration>,
    /// How long a lock outlives its holder.
    pub(crate) lease: Duration,
    pub(crate) events: Vec<Event>,
}

impl Takeover {
    fn new(ended_ns: u64, lease: Duration, mut holder: Vec<Event>, waiter: Vec<Event>) -> Outcome<Self> {
        let granted = waiter.iter().find(|event| matches!(event.kind, EventKind::Acquired { .. }));
        let granted_ns = granted.ok_or_else(|| Failure::new("the waiter reported no grant"))?.at_ns;
        holder.extend(waiter);
        Ok(Self { gap: granted_ns.checked_sub(ended_ns).map(Duration::from_nanos), lease, events: holder })
    }

    fn gap(&self) -> Outcome<Duration> {
        self.gap.ok_or_else(|| Failure::new("the waiter had the lock before its holder ended"))
    }
}

/// The URL for locks that outlive their holder by this time.
pub(crate) fn with_lease(backend: BackendName, url: &str, lease: Duration) -> String {
    let option = if backend == BackendName::Zk { "session_timeout" } else { "ttl" };
    url::with_option(url, option, &format!("{}ms", lease.as_millis()))
}

/// Ends a process that holds the lock while another one waits for it.
pub(crate) async fn death(backend: BackendName, holder: Job, waiter: Job, end: End) -> Outcome<Takeover> {
    let proxies =
        if end.is_of_the_network() { Some(Proxies::start(backend, &holder.url).await?) } else { None };
    let url = proxies.as_ref().map_or_else(|| holder.url.clone(), |proxies| proxies.url(&holder.url));
    let (process, recorded_as) = (holder.process, holder.recorded_as.clone());
    let holder = WorkerHandle::start_one(Job { url, ..holder }).await?;
    let (mut held, lease) = (holder.events(PATIENCE).await?, holder.lease);
    let waiter = WorkerHandle::start_one(waiter).await?;
    waiter.send(Order::Go).await?;
    sleep(alive(lease)).await;

    let ended_ns = now_ns();
    end.happens(&holder, proxies.as_ref().map_or(&[], Proxies::all)).await?;
    let mut log = EventLog::new(process, 0, &recorded_as);
    log.died(ended_ns);
    held.extend(log.into_events());
    Takeover::new(ended_ns, lease, held, waiter.events(lease * 3 + PATIENCE).await?)
}

/// Forgets a guard, as the memory backend has no process to kill.
pub(crate) async fn forget(
    bench: &Bench,
    target: &Target,
    lock: &str,
    number: u32,
    lease: Duration,
) -> Outcome<Takeover> {
    // Separate connections: the holder's one still counts its forgotten guard.
    let (holder, waiter) = (Locks::connect(target.url()).await?, Locks::connect(target.url()).await?);
    let (holding, waiting) = (number * 2, number * 2 + 1);
    let mut log = EventLog::new(holding, 0, lock);
    let mutex = holder.mutex_with(bench.lock_of(lock, holding), LockOptions::new().fixed_ttl(lease))?;
    log.acquire_called();
    let guard = mutex.acquire().await?;
    log.acquired(&guard);
    let died_ns = now_ns();
    log.died(died_ns);
    std::mem::forget(guard);

    let mut waited = EventLog::new(waiting, 0, lock);
    hold_through(&waiter.mutex(bench.lock_of(lock, waiting)), &mut waited, ready(Ok(()))).await?;
    Takeover::new(died_ns, lease, log.into_events(), waited.into_events())
}

/// How a holder ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Killed,
    Disconnected,
    CutOff,
    Exited,
}

impl End {
    pub(crate) const ALL: [Self; 4] = [Self::Killed, Self::Disconnected, Self::CutOff, Self::Exited];
    /// Those in which the client does not release the lock.
    pub(crate) const DEATHS: [Self; 3] = [Self::Killed, Self::Disconnected, Self::CutOff];

    pub(crate) const fn metric(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Disconnected => "disconnected",
            Self::CutOff => "cut_off",
            Self::Exited => "exited",
        }
    }

    /// Whether proxies make it happen.
    const fn is_of_the_network(self) -> bool {
        matches!(self, Self::Disconnected | Self::CutOff)
    }

    /// Ends the holder, which is connected by these proxies.
    async fn happens(self, holder: &WorkerHandle, proxies: &[FaultProxy]) -> Outcome<()> {
        match self {
            Self::Killed => holder.kill(),
            Self::Disconnected => proxies.iter().for_each(|proxy| {
                proxy.refuse(true);
                proxy.fin();
            }),
            Self::CutOff => {
                for direction in [Direction::ToServer, Direction::ToClient] {
                    proxies.iter().for_each(|proxy| proxy.black_hole(direction, true));
                }
            }
            Self::Exited => holder.send(Order::Go).await?,
        }
        Ok(())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Killed => "is killed",
            Self::Disconnected => "loses its connections",
            Self::CutOff => "is cut off",
            Self::Exited => "exits",
        })
    }
}

/// The time from the end of a holder with exactly this lease until a process that waits has the lock.
pub(crate) async fn gap_after(
    end: End,
    backend: BackendName,
    url: &str,
    lock: &str,
    lease: Duration,
) -> Outcome<Duration> {
    let url = with_lease(backend, url, lease);
    let [holder, waiter] =
        [(0, Task::Hold), (1, Task::Wait)].map(|(of, task)| Job::new(&url, lock, of, task));
    let takeover = death(backend, holder, waiter, end).await?;
    if takeover.lease != lease {
        return Err(Failure::new(format!("its lease is {:?}, not {lease:?}", takeover.lease)));
    }
    takeover.gap()
}

/// The time from the SIGKILL of a holder until another process has the lock.
pub(crate) async fn death_of_peer(peer: Peer, lease: Duration) -> Outcome<Duration> {
    if let Some(why) = missing(peer) {
        return Err(Failure::new(why));
    }
    // The peers ask for longer sessions, and this server grants none.
    let server = ZooKeeper::builder().max_session_timeout(lease).start().await?;
    let url = server.url();
    let start = || Subprocess::of(peer, &url, PEER_LOCK);
    let (mut holder, mut waiter) = (start().await?, start().await?);
    let mut log = EventLog::new(0, 0, PEER_LOCK);
    let holding = holder.contend(now_ns() + ONCE_NS, FOR_EVER_NS, &mut log);
    if timeout(alive(lease), holding).await.is_ok() {
        return Err(Failure::new("the holder has ended"));
    }
    let mut log = EventLog::new(1, 0, PEER_LOCK);
    let waiting = timeout(lease * 3 + PATIENCE, waiter.contend(now_ns() + ONCE_NS, 0, &mut log));
    let death = async {
        sleep(alive(lease)).await;
        let at_ns = now_ns();
        // Dropping it kills the process.
        drop(holder);
        at_ns
    };
    let (waited, ended_ns) = join(waiting, death).await;
    waited.map_err(|_| Failure::new("the waiter did not get the lock"))??;
    Takeover::new(ended_ns, lease, Vec::new(), log.into_events())?.gap()
}

/// Long enough for a renewal, and until a random time between two of them.
fn alive(lease: Duration) -> Duration {
    lease.mul_f64(1.2 + rand::rng().random_range(0.0..0.34))
}

pub(crate) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

const PEER_LOCK: &str = "/death";
/// A program that gets the lock later acquires it only once.
const ONCE_NS: u64 = 1_000_000_000;
const FOR_EVER_NS: u64 = 3_600_000_000_000;
/// The timeout of a worker for what is not measured.
const PATIENCE: Duration = Duration::from_secs(10);
