//! Many tasks of one process, each with a lock of its own that it acquires and releases as fast as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use polylock::Locks;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::orders::{Orders, send};
use super::{Job, WorkerReport};
use crate::data::{Failure, Latency, Outcome, Peer, Window};
use crate::rig::cpu_time;
use crate::rig::floor::{BareConnections, Floor};
use crate::rig::measured_lock::{InTurn, MeasuredLock};
use crate::rig::peers::{AsyncRedisLock, Distkit, DriverLock, Library, Rlock, Rslock, Sqlx};
use crate::rig::url;

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Subject {
    Ours,
    /// None: the bare commands.
    Floor,
    /// The bare commands of a lock with fencing tokens.
    MintingFloor,
    Peer(Peer),
}

/// What the tasks of one process did in a window.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Slice {
    pub(crate) pairs: u64,
    pub(crate) span: Duration,
    pub(crate) cpu: Duration,
    /// The times of the pairs, as [`Latency::counts`] has them.
    pub(crate) times: Vec<(u64, u64)>,
}

/// Uses so many locks in the windows of the orders, and cleans up at the first order that has none.
pub(super) async fn serve(job: &Job, subject: Subject, tasks: u32, orders: &mut Orders) -> Outcome<()> {
    let url = job.url.as_str();
    let names: Vec<String> = (0..tasks).map(|task| format!("{}-{}-{task}", job.lock, job.process)).collect();
    match subject {
        Subject::Ours => {
            let locks = Locks::connect(url).await?;
            let mutexes = names.iter().map(|name| locks.mutex(name)).collect();
            use_locks(mutexes, orders).await?;
            locks.close().await?;
        }
        Subject::Floor => {
            let connections = BareConnections::open(url, LEASE).await?;
            let floors = names.iter().map(|name| connections.floor(name, LEASE));
            take_orders(try_join_all(floors).await?, orders).await?;
        }
        Subject::MintingFloor => {
            let connections = BareConnections::open(url, LEASE).await?;
            let floors = names.iter().map(|name| connections.minting_floor(name, LEASE));
            take_orders(try_join_all(floors).await?, orders).await?;
        }
        Subject::Peer(Peer::Rslock) => use_library::<Rslock>(job, &names, orders).await?,
        Subject::Peer(Peer::Rlock) => use_library::<Rlock>(job, &names, orders).await?,
        Subject::Peer(Peer::AsyncRedisLock) => use_library::<AsyncRedisLock>(job, &names, orders).await?,
        Subject::Peer(Peer::Distkit) => use_library::<Distkit>(job, &names, orders).await?,
        Subject::Peer(Peer::LockClient) => use_library::<DriverLock>(job, &names, orders).await?,
        Subject::Peer(Peer::Sqlx) => use_library::<Sqlx>(job, &names, orders).await?,
        Subject::Peer(peer) => {
            return Err(Failure::new(format!("{} is no library of Rust", peer.as_str())));
        }
    }
    send(&WorkerReport::Events(Vec::new()))
}

/// As the documentation of libraries shows: one client for a process.
async fn use_library<L: Library>(job: &Job, names: &[String], orders: &mut Orders) -> Outcome<()> {
    let one = L::open(url::without_options(&job.url), &job.lock).await?;
    let locks: Outcome<Vec<_>> = names.iter().map(|name| one.with_name(name)).collect();
    use_locks(locks?, orders).await
}

async fn use_locks<L: MeasuredLock + Send + 'static>(locks: Vec<L>, orders: &mut Orders) -> Outcome<()> {
    take_orders(locks.into_iter().map(InTurn::new).collect(), orders).await
}

async fn take_orders<L: Floor + 'static>(mut locks: Vec<L>, orders: &mut Orders) -> Outcome<()> {
    // The first use of a name may cost more, such as a directory.
    try_join_all(locks.iter_mut().map(|lock| async {
        lock.acquire().await?;
        lock.release().await?;
        lock.settle().await
    }))
    .await?;
    send(&WorkerReport::Ready { lease: LEASE })?;
    while let Some(window) = orders.window().await? {
        let slice;
        (slice, locks) = use_in(window, locks).await?;
        send(&WorkerReport::Slice(slice))?;
    }
    try_join_all(locks.into_iter().map(Floor::clean)).await?;
    Ok(())
}

/// Lets a task use each of these locks. What happens before the window begins does not count.
async fn use_in<L: Floor + 'static>(window: Window, locks: Vec<L>) -> Outcome<(Slice, Vec<L>)> {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    for lock in locks {
        tasks.spawn(use_lock(lock, Arc::clone(&shared)));
    }
    window.begins().await;
    shared.counts.store(true, Ordering::Relaxed);
    let before = Totals::now(&shared)?;
    window.ends().await;
    let after = Totals::now(&shared)?;
    shared.ended.store(true, Ordering::Relaxed);

    let (mut latency, mut locks) = (Latency::new(), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (lock, times) = ended??;
        locks.push(lock);
        times.into_iter().for_each(|ns| latency.record(ns));
    }
    let (pairs, span) = (after.pairs - before.pairs, after.at - before.at);
    let slice = Slice { pairs, span, cpu: after.cpu.saturating_sub(before.cpu), times: latency.counts() };
    Ok((slice, locks))
}

/// The loop of a task. Returns the lock, and the times of its pairs in nanoseconds.
async fn use_lock<L: Floor>(mut lock: L, shared: Arc<Shared>) -> Outcome<(L, Vec<u64>)> {
    let mut times = Vec::new();
    while !shared.ended.load(Ordering::Relaxed) {
        let began = Instant::now();
        lock.acquire().await?;
        lock.release().await?;
        shared.pairs.fetch_add(1, Ordering::Relaxed);
        if shared.counts.load(Ordering::Relaxed) {
            times.push(u64::try_from(began.elapsed().as_nanos())?);
        }
    }
    lock.settle().await?;
    Ok((lock, times))
}

#[derive(Debug, Default)]
struct Shared {
    pairs: AtomicU64,
    counts: AtomicBool,
    ended: AtomicBool,
}

struct Totals {
    at: Instant,
    pairs: u64,
    cpu: Duration,
}

impl Totals {
    fn now(shared: &Shared) -> Outcome<Self> {
        let cpu = cpu_time::of_this_process()?;
        Ok(Self { at: Instant::now(), pairs: shared.pairs.load(Ordering::Relaxed), cpu })
    }
}

/// The ttl or session timeout of the floors.
const LEASE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lock_testkit::history::ReleaseOutcome;

    use super::*;
    use crate::data::GrantInfo;

    /// A lock with these tokens, and this outcome of its releases.
    struct Scripted(Mutex<Vec<u64>>, ReleaseOutcome);

    impl MeasuredLock for Scripted {
        type Held = u64;

        async fn acquire(&self) -> Outcome<u64> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut tokens = self.0.lock().unwrap();
            Ok(tokens.pop().unwrap_or_else(lock_testkit::now_ns))
        }

        async fn release(&self, _: u64) -> Outcome<ReleaseOutcome> {
            Ok(self.1)
        }

        fn grant_info(token: &u64) -> GrantInfo {
            GrantInfo { token: Some(*token), until_ns: None }
        }
    }

    async fn failure(tokens: [u64; 2], released: ReleaseOutcome) -> Option<String> {
        let locks = vec![InTurn::new(Scripted(Mutex::new(tokens.to_vec()), released))];
        let window = Window::after(Duration::from_millis(50), Duration::ZERO);
        use_in(window, locks).await.err().map(|failure| failure.to_string())
    }

    #[tokio::test]
    async fn a_token_that_does_not_grow_and_a_lost_lock_fail() {
        let released = ReleaseOutcome::Released;
        assert_eq!(failure([8, 7], released).await, None);
        let failed = failure([7, 7], released).await.unwrap();
        assert_eq!(failed, "the fencing token Some(7) is not larger than Some(7)");
        let failed = failure([8, 7], ReleaseOutcome::AlreadyLost).await.unwrap();
        assert_eq!(failed, "a lock was lost before its release");
    }

    #[tokio::test]
    async fn only_the_window_counts() {
        let new = || InTurn::new(Scripted(Mutex::default(), ReleaseOutcome::Released));
        let window = Window::after(Duration::from_millis(40), Duration::from_millis(40));
        let (slice, locks) = use_in(window, vec![new(), new()]).await.unwrap();
        assert_eq!(locks.len(), 2);
        // A pair takes more than a millisecond: two tasks complete at most one each for every one.
        assert!(
            slice.pairs > 0 && slice.pairs as f64 <= 2.0 * slice.span.as_secs_f64() * 1e3 + 2.0,
            "{slice:?}"
        );
        let timed: u64 = slice.times.iter().map(|(_, count)| count).sum();
        assert!(timed.abs_diff(slice.pairs) <= 2 * 2, "{slice:?}");
    }
}
