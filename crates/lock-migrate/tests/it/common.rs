//! What all modules need: servers of both stores, processes on the rungs, and the operator.

use std::net::SocketAddr;
use std::sync::Arc;

use lock_core::backend::Backend;
use lock_core::migration::Tombstone;
use lock_core::{Error, ErrorKind, Locks};
use lock_migrate::{Migration, MigrationConfig, Operator, Rung};
use lock_redis::{Redis, RedisConfig};
use lock_testkit::redis::RedisOptions;
use lock_testkit::{RedisServer, ZooKeeper, give_back, soon, take, until};
use lock_zk::{Zk, ZkConfig};

/// Of leases and sessions that a busy machine keeps: in seconds.
pub(crate) const LEASE: u64 = 10;

/// The servers of both stores.
pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    pub(crate) zk: ZooKeeper,
}

impl Servers {
    pub(crate) async fn start() -> Self {
        Self::with(RedisServer::builder()).await
    }

    pub(crate) async fn with(redis: RedisOptions) -> Self {
        let (redis, zk) = tokio::join!(redis.start(), ZooKeeper::start());
        Self { redis: redis.unwrap(), zk: zk.unwrap() }
    }

    pub(crate) async fn redis(&self) -> Arc<dyn Backend> {
        redis(self.redis.addr(), LEASE).await
    }

    pub(crate) async fn zk(&self) -> Arc<dyn Backend> {
        zk(self.zk.addr(), LEASE).await
    }

    /// A client of the old store alone, and one of the new store.
    pub(crate) async fn apart(&self) -> (Locks, Locks) {
        (Locks::from_dyn(self.redis().await), Locks::from_dyn(self.zk().await))
    }

    /// A process that follows the record.
    pub(crate) async fn process(&self) -> Locks {
        Locks::new(self.open(MigrationConfig::new("shop")).await)
    }

    /// A process on this rung.
    pub(crate) async fn on(&self, rung: Rung) -> Locks {
        Locks::new(self.open(MigrationConfig::new("shop").rung(rung)).await)
    }

    pub(crate) async fn open(&self, config: MigrationConfig) -> Migration {
        config.open(self.redis().await, self.zk().await).await.unwrap()
    }

    pub(crate) async fn operator(&self) -> Operator {
        Operator::connect("shop", self.redis().await, self.zk().await).await.unwrap()
    }

    pub(crate) async fn value(&self, name: &str) -> Option<String> {
        let value = self.redis.call(&["GET", &format!("lock:{name}")]).await;
        value.text().map(ToOwned::to_owned)
    }

    pub(crate) async fn is_moved(&self, name: &str) -> bool {
        self.value(name).await.is_some_and(|value| Tombstone::is_one(&value))
    }
}

pub(crate) async fn redis(addr: SocketAddr, lease: u64) -> Arc<dyn Backend> {
    let config = RedisConfig::from_url(&format!("redis://{addr}?ttl={lease}s")).unwrap();
    Arc::new(at_last(async || Redis::connect(config.clone()).await).await)
}

pub(crate) async fn zk(addr: SocketAddr, lease: u64) -> Arc<dyn Backend> {
    let config =
        ZkConfig::from_url(&format!("zk://{addr}?session=private&session_timeout={lease}s")).unwrap();
    Arc::new(at_last(async || Zk::connect(config.clone()).await).await)
}

/// On a busy machine a session may end before it is used.
#[allow(clippy::future_not_send, reason = "a test awaits it in its own task")]
pub(crate) async fn at_last<T>(attempt: impl AsyncFn() -> Result<T, Error>) -> T {
    soon(async {
        loop {
            match attempt().await {
                Ok(done) => return done,
                Err(error) if error.kind() == ErrorKind::Unavailable => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

/// Acquires a lock that is free or will be, and gives it back.
pub(crate) async fn pass(locks: &Locks, name: &str) -> lock_core::Token {
    let guard = take(locks, name).await;
    let token = guard.token();
    give_back(guard).await;
    token
}

pub(crate) async fn is_busy(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_acquire().await.unwrap().is_none()
}

/// Waits until so many sessions have seen the present record.
pub(crate) async fn until_followed(operator: &Operator, sessions: usize) {
    until("the sessions follow", async || {
        let status = operator.status().await.unwrap();
        let members = status.sessions.iter().filter_map(|session| session.member.as_ref());
        members.filter(|member| member.record == status.version).count() == sessions
    })
    .await;
}
