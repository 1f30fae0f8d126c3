//! Many locks and waiters on both stores, and one fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use lock_core::backend::Backend;
use lock_core::{Guard, Locks};
use lock_migrate::{MigrationConfig, Rung};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::proxy::{FaultProxy, Protocol};
use lock_testkit::{RedisServer, ZooKeeper, until};
use lock_zk::{Zk, ZkConfig};
use tokio::time::{sleep, timeout};

/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many locks are asked for at once.
const AT_ONCE: usize = 100;

struct Servers {
    redis: RedisServer,
    to_redis: FaultProxy,
    to_zk: FaultProxy,
    _zk: ZooKeeper,
}

impl Servers {
    async fn start() -> Self {
        let (redis, zk) = tokio::join!(RedisServer::start(), ZooKeeper::start());
        let (redis, zk) = (redis.unwrap(), zk.unwrap());
        let to_redis = FaultProxy::start(redis.addr(), Protocol::Redis).unwrap();
        let to_zk = FaultProxy::start(zk.addr(), Protocol::ZooKeeper).unwrap();
        Self { redis, to_redis, to_zk, _zk: zk }
    }

    async fn on(&self, rung: Rung) -> Locks {
        let redis = format!("redis://{}?ttl=10s", self.to_redis.addr());
        let zk = format!("zk://{}?session_timeout=10s&session=private", self.to_zk.addr());
        let redis: Arc<dyn Backend> =
            Arc::new(Redis::connect(RedisConfig::from_url(&redis).unwrap()).await.unwrap());
        let zk: Arc<dyn Backend> = Arc::new(Zk::connect(ZkConfig::from_url(&zk).unwrap()).await.unwrap());
        Locks::new(MigrationConfig::new("shop").rung(rung).open(redis, zk).await.unwrap())
    }

    async fn keys(&self) -> i64 {
        let words = ["EVAL", "return #redis.call('KEYS', 'lock:*')", "0"];
        self.redis.command(&words).await.unwrap().int().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: thousands of locks"]
async fn two_thousand_locks_outlast_a_reset_of_all_connections() {
    let servers = Servers::start().await;
    for rung in [Rung::Dual, Rung::Move] {
        let locks = servers.on(rung).await;
        let acquire = async |at: usize| locks.mutex(format!("{rung}/{at}")).acquire().await.unwrap();
        // On a busy machine, servers do not answer all at once in time.
        let acquired = stream::iter(0..2_000).map(acquire).buffered(AT_ONCE).collect();
        let guards: Vec<Guard> = timeout(PATIENCE, acquired).await.unwrap();
        servers.to_redis.rst();
        servers.to_zk.rst();
        sleep(Duration::from_secs(12)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "{rung}");
        let released = stream::iter(guards).map(Guard::release).buffered(AT_ONCE).collect();
        let released: Vec<_> = timeout(PATIENCE, released).await.unwrap();
        for released in released {
            assert_eq!(released.unwrap(), lock_core::Released::Released, "{rung}");
        }
        locks.close().await.unwrap();
    }
    // Only the tombstones are left.
    assert_eq!(servers.keys().await, 2_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_waiters_outlast_a_frozen_redis() {
    let servers = Servers::start().await;
    for rung in [Rung::Old, Rung::Dual, Rung::Move] {
        let (one, two) = (servers.on(rung).await, servers.on(rung).await);
        let name = rung.name();
        let (inside, turns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let first = one.mutex(name).acquire().await.unwrap();
        let waiters = (0..40).map(|at| {
            let locks = if at % 2 == 0 { one.clone() } else { two.clone() };
            let (inside, turns) = (Arc::clone(&inside), Arc::clone(&turns));
            tokio::spawn(async move {
                let guard = locks.mutex(name).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                sleep(Duration::from_millis(2)).await;
                assert!(guard.is_valid());
                inside.fetch_sub(1, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
                let _ = guard.release().await;
            })
        });
        let waiters: Vec<_> = waiters.collect();
        // Of client two, one waits at the server.
        until("they wait", async || one.inspect(name).await.is_ok_and(|seen| seen.waiters > 20)).await;
        servers.redis.stop();
        sleep(Duration::from_secs(1)).await;
        let _ = timeout(Duration::from_millis(500), first.release()).await;
        sleep(Duration::from_secs(4)).await;
        servers.redis.cont();
        for waiter in waiters {
            timeout(PATIENCE, waiter).await.expect("every waiter gets its turn").unwrap();
        }
        assert_eq!(turns.load(Ordering::SeqCst), 40, "{rung}");
        one.close().await.unwrap();
        two.close().await.unwrap();
    }
}
