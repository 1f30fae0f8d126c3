//! Many tasks of one process, each with a lock of its own: pairs of acquire and release per second, and their cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cpu_time;
use crate::failure::{Failure, Outcome};
use crate::floor::Floor;
use crate::latency::Latency;
use crate::measured_lock::MeasuredLock;

/// What many tasks achieved together.
#[derive(Debug)]
pub(super) struct Throughput {
    pub(super) pairs_per_s: f64,
    /// CPU time of this process for a pair.
    pub(super) client_us: f64,
    /// CPU time of our own servers for a pair.
    pub(super) server_us: Option<f64>,
    /// The time of a pair.
    pub(super) latency: Latency,
}

impl Throughput {
    /// Lets a task use each of these locks, as fast as it can. The first part of the time does not count.
    pub(super) async fn measure<L: Floor + 'static>(
        locks: Vec<L>,
        span: Duration,
        servers: &[u32],
    ) -> Outcome<Self> {
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        for lock in locks {
            tasks.spawn(use_lock(lock, Arc::clone(&shared)));
        }
        sleep(span / 4).await;
        shared.counts.store(true, Ordering::Relaxed);
        let before = Totals::now(&shared, servers)?;
        sleep(span).await;
        let after = Totals::now(&shared, servers)?;
        shared.ended.store(true, Ordering::Relaxed);

        let mut latency = Latency::new();
        while let Some(ended) = tasks.join_next().await {
            ended??.into_iter().for_each(|us| latency.record(u64::from(us) * 1000));
        }
        let pairs = (after.pairs - before.pairs) as f64;
        if pairs < 1.0 {
            return Err(Failure::new(format!("no lock was acquired and released within {span:?}")));
        }
        let each =
            |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() * 1e6 / pairs;
        Ok(Self {
            pairs_per_s: pairs / (after.at - before.at).as_secs_f64(),
            client_us: each(before.client, after.client),
            server_us: (!servers.is_empty()).then(|| each(before.server, after.server)),
            latency,
        })
    }
}

/// A lock that is acquired and released in turn, in the place of a floor.
#[derive(Debug)]
pub(super) struct InTurn<L: MeasuredLock> {
    lock: L,
    held: Option<L::Held>,
}

impl<L: MeasuredLock> InTurn<L> {
    /// A lock that is free.
    pub(super) const fn new(lock: L) -> Self {
        Self { lock, held: None }
    }
}

impl<L: MeasuredLock + Send> Floor for InTurn<L> {
    async fn acquire(&mut self) -> Outcome<()> {
        self.held = Some(self.lock.acquire().await?);
        Ok(())
    }

    async fn release(&mut self) -> Outcome<()> {
        if let Some(held) = self.held.take() {
            self.lock.release(held).await?;
        }
        Ok(())
    }

    async fn clean(self) -> Outcome<()> {
        Ok(())
    }
}

/// What the tasks share.
#[derive(Debug, Default)]
struct Shared {
    pairs: AtomicU64,
    /// Whether times are recorded.
    counts: AtomicBool,
    ended: AtomicBool,
}

#[derive(Clone, Copy)]
struct Totals {
    at: Instant,
    pairs: u64,
    client: Duration,
    server: Duration,
}

impl Totals {
    fn now(shared: &Shared, servers: &[u32]) -> Outcome<Self> {
        let (client, server) = (cpu_time::of_this_process(), cpu_time::of(servers)?);
        Ok(Self { at: Instant::now(), pairs: shared.pairs.load(Ordering::Relaxed), client, server })
    }
}

/// The loop of a task. Returns the times of its pairs in microseconds.
async fn use_lock<L: Floor>(mut lock: L, shared: Arc<Shared>) -> Outcome<Vec<u32>> {
    let mut times = Vec::new();
    while !shared.ended.load(Ordering::Relaxed) {
        let began = Instant::now();
        lock.acquire().await?;
        lock.release().await?;
        shared.pairs.fetch_add(1, Ordering::Relaxed);
        if shared.counts.load(Ordering::Relaxed) {
            times.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
    }
    lock.clean().await?;
    Ok(times)
}
