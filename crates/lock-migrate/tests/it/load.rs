//! Many locks and waiters on both stores, and one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use lock_core::{Guard, Locks};
use lock_migrate::{MigrationConfig, Rung};
use lock_testkit::{PATIENCE, come, give_back, take, until};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::common::{LEASE, Servers, redis, zk};
use crate::faults::Side;

/// How many locks are asked for at once: on a busy machine, servers do not answer all in time.
const AT_ONCE: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: thousands of locks"]
async fn two_thousand_locks_outlast_a_reset_of_all_connections() {
    let servers = Servers::start().await;
    let (to_redis, to_zk) = (servers.proxy(Side::Old), servers.proxy(Side::New));
    for rung in [Rung::Dual, Rung::Move] {
        let (redis, zk) = (redis(to_redis.addr(), LEASE).await, zk(to_zk.addr(), LEASE).await);
        let locks = Locks::new(MigrationConfig::new("shop").rung(rung).open(redis, zk).await.unwrap());
        let acquire = async |at: usize| locks.mutex(format!("{rung}/{at}")).acquire().await.unwrap();
        let acquired = stream::iter(0..2_000).map(acquire).buffered(AT_ONCE).collect();
        let guards: Vec<Guard> = timeout(4 * PATIENCE, acquired).await.unwrap();
        to_redis.rst();
        to_zk.rst();
        // Time: what is not renewed over other connections ends.
        sleep(Duration::from_secs(LEASE + 2)).await;
        assert!(guards.iter().all(Guard::is_valid), "{rung}");
        let released = stream::iter(guards).map(give_back).buffered(AT_ONCE).collect::<Vec<_>>();
        timeout(4 * PATIENCE, released).await.unwrap();
        locks.close().await.unwrap();
    }
    // Only the tombstones are left.
    let keys = servers.redis.call(&["EVAL", "return #redis.call('KEYS', 'lock:*')", "0"]).await;
    assert_eq!(keys.int(), Some(2_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_waiters_outlast_a_frozen_redis() {
    let servers = Servers::start().await;
    for rung in [Rung::Old, Rung::Dual, Rung::Move] {
        let (one, two) = (servers.on(rung).await, servers.on(rung).await);
        let (inside, name) = (Arc::new(AtomicUsize::new(0)), rung.name());
        let first = take(&one, name).await;
        let waiters = (0..40).map(|at| {
            let mutex = if at % 2 == 0 { one.mutex(name) } else { two.mutex(name) };
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                yield_now().await;
                assert!(guard.is_valid());
                inside.fetch_sub(1, Ordering::SeqCst);
                let _ = guard.release().await;
            })
        });
        let waiters: Vec<_> = waiters.collect();
        // Of client two, one waits at the server.
        until("they wait", async || one.inspect(name).await.is_ok_and(|seen| seen.waiters > 20)).await;
        servers.redis.stop();
        // Time: the release is in vain.
        let _ = timeout(Duration::from_secs(1), first.release()).await;
        // Time: the waiters notice that the server does not answer.
        sleep(Duration::from_secs(4)).await;
        servers.redis.cont();
        join_all(waiters.into_iter().map(come)).await;
        one.close().await.unwrap();
        two.close().await.unwrap();
    }
}
