//! Clients that wait for one lock, and what they cost the servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use polylock::{Guard, Locks};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::experiments::prelude::*;

/// Clients that wait for one lock, each with connections of its own, which go through counting proxies.
pub(crate) struct Crowd {
    counters: Proxies,
    /// Our own servers.
    servers: Vec<u32>,
    holder: Locks,
    guard: Guard,
    clients: JoinSet<Outcome<()>>,
    connected: Vec<Locks>,
    waiters: usize,
    /// What the servers used before anybody waited.
    memory: u64,
    grants: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingCost {
    /// While nothing happens, per waiter and second.
    pub(crate) idle: Cost,
    /// While the lock goes from one waiter to the next, per grant.
    pub(crate) grant: Cost,
    pub(crate) between_grants: Duration,
    /// Memory of our own servers, per waiter.
    pub(crate) server_bytes: f64,
}

/// Requests and what comes with them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) requests: f64,
    /// Pushes and watch events.
    pub(crate) notifications: f64,
    pub(crate) bytes: f64,
    /// CPU time of our own servers.
    pub(crate) server_us: Option<f64>,
}

impl Crowd {
    /// Acquires the lock, and lets this many clients wait for it: each with connections of its own up to a thousand, more as
    /// tasks of these.
    pub(crate) async fn gather(target: &Target, url: &str, lock: &str, waiters: usize) -> Outcome<Self> {
        let counters = Proxies::start(target.backend(), url).await?;
        let servers = target.processes();
        let memory = memory::of(&servers)?;
        let holder = Locks::connect(url).await?;
        let guard = holder.mutex(lock).acquire().await?;
        let counted = counters.url(url);
        let connect = |_| async { Locks::connect(&counted).await };
        let connected: Vec<Locks> = stream::iter(0..waiters.min(MOST_CONNECTIONS))
            .map(connect)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let grants = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for locks in connected.iter().cycle().take(waiters) {
            clients.spawn(wait_in_turn(locks.clone(), lock.to_owned(), Arc::clone(&grants)));
        }
        // Until all wait, and none is about to send the requests of a beginner.
        sleep(SETTLE + SETTLE_PER_WAITER * waiters as u32).await;
        Ok(Self { counters, servers, holder, guard, clients, connected, waiters, memory, grants })
    }

    /// Measures for this long while nothing happens, and as long while the lock is handed over.
    pub(crate) async fn measure(mut self, span: Duration) -> Outcome<WaitingCost> {
        let server_bytes =
            memory::of(&self.servers)?.saturating_sub(self.memory) as f64 / self.waiters as f64;
        let before = totals(&self.counters, &self.servers)?;
        let began = Instant::now();
        sleep(span).await;
        let idle = totals(&self.counters, &self.servers)?
            .since(before, self.waiters as f64 * began.elapsed().as_secs_f64());
        self.guard.release().await?;
        // The first hand-over wakes up what has slept.
        sleep(span / 10).await;
        let (before, granted, began) =
            (totals(&self.counters, &self.servers)?, self.grants.load(Ordering::SeqCst), Instant::now());
        sleep(span).await;
        let (after, handing_over) = (totals(&self.counters, &self.servers)?, began.elapsed());
        let grants = self.grants.load(Ordering::SeqCst) - granted;
        let grant = after.since(before, grants.max(1) as f64);
        while let Some(ended) = self.clients.try_join_next() {
            ended??;
        }
        self.clients.shutdown().await;
        // Each takes back what it was waiting for: the next crowd finds idle servers.
        let all = self.connected.into_iter().chain([self.holder]);
        stream::iter(all.map(|locks| async move { locks.close().await }))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        if grants == 0 {
            return Err(Failure::new("no waiter was granted the lock after its release"));
        }
        let between_grants = handing_over.div_f64(grants as f64);
        Ok(WaitingCost { idle, grant, between_grants, server_bytes })
    }
}

fn totals(counters: &Proxies, servers: &[u32]) -> Outcome<Totals> {
    let server = (!servers.is_empty()).then(|| cpu_time::of(servers)).transpose()?;
    Ok(Totals { counts: counters.counts(), server })
}

/// What the proxies and the servers have counted so far.
#[derive(Clone, Copy)]
struct Totals {
    counts: Counts,
    server: Option<Duration>,
}

impl Totals {
    /// The difference to earlier totals, for one of so many units.
    fn since(self, before: Self, units: f64) -> Cost {
        let (counts, server) = (self.counts.since(before.counts), self.server.zip(before.server));
        Cost {
            requests: counts.requests as f64 / units,
            notifications: counts.notifications as f64 / units,
            bytes: counts.bytes as f64 / units,
            server_us: server.map(|(after, before)| after.saturating_sub(before).as_secs_f64() * 1e6 / units),
        }
    }
}

/// Waits for the lock, releases it at once, and waits again.
async fn wait_in_turn(locks: Locks, lock: String, grants: Arc<AtomicU64>) -> Outcome<()> {
    let mutex = locks.mutex(lock);
    loop {
        let guard = mutex.acquire().await?;
        grants.fetch_add(1, Ordering::SeqCst);
        guard.release().await?;
    }
}

/// More would be more files than a process may open.
const MOST_CONNECTIONS: usize = 1000;
/// How many clients connect at a time.
const AT_ONCE: usize = 32;
const SETTLE: Duration = Duration::from_millis(300);
const SETTLE_PER_WAITER: Duration = Duration::from_millis(3);
