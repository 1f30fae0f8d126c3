//! Locks move from every kind of Redis, by URL: sentinels, a cluster, the recipe of timestamps, and a quorum of masters.

use std::sync::Arc;
use std::time::Duration;

use lock_testkit::{RedisCluster, RedisFive, RedisSentinel, RedisServer, ZooKeeper, migration_url, until};
use polylock::migrate::{FinishTerms, Gate, Progress};
use polylock::{ErrorKind, Guard, Locks, Operator, Rung, Token};

/// Far more than any of it takes.
const PATIENCE: Duration = Duration::from_secs(30);
const NAME: &str = "orders/42";

/// Both stores of one migration.
struct Stores {
    from: String,
    zk: ZooKeeper,
}

impl Stores {
    async fn new(redis: &str) -> Self {
        let ttl = if redis.contains('?') { "&ttl=3s" } else { "?ttl=3s" };
        Self { from: format!("{redis}{ttl}"), zk: ZooKeeper::start().await.unwrap() }
    }

    fn to(&self) -> String {
        format!("{}?session_timeout=4s&session=private", self.zk.url())
    }

    /// A process that follows the record, or stays on this rung.
    async fn process(&self, rung: Option<Rung>) -> Locks {
        let rung = rung.map(|rung| format!("&rung={rung}")).unwrap_or_default();
        Locks::connect(&migration_url("shop", &self.from, &self.to(), &rung)).await.unwrap()
    }

    async fn operator(&self) -> Operator {
        let store = |url: &str| Arc::clone(Locks::connect_lazy(url).unwrap().backend());
        Operator::connect("shop", store(&self.from), store(&self.to())).await.unwrap()
    }

    async fn redis(&self) -> Locks {
        Locks::connect(&self.from).await.unwrap()
    }

    /// Each of these rungs excludes each, and tokens grow from one to the next.
    async fn mix(&self, rungs: &[Rung]) -> Token {
        let mut last = None;
        for &first in rungs {
            for &second in rungs {
                let (one, two) = (self.process(Some(first)).await, self.process(Some(second)).await);
                let guard = hold(&one, NAME).await;
                assert!(last < Some(guard.token()), "{first} after another one: {last:?} {}", guard.token());
                assert!(two.mutex(NAME).try_acquire().await.unwrap().is_none(), "{second} beside {first}");
                last = Some(guard.token());
                guard.release().await.unwrap();
                one.close().await.unwrap();
                two.close().await.unwrap();
            }
        }
        last.unwrap()
    }

    /// Up to the rung `move`, and back.
    async fn walk(&self) {
        let last = self.mix(&[Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move]).await;
        let (operator, locks, redis) = (self.operator().await, self.process(None).await, self.redis().await);
        let error = redis.mutex(NAME).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
        passed(operator.back(PATIENCE, silent).await.unwrap());
        passed(operator.clean(None, silent).await.unwrap());
        for locks in [&redis, &locks] {
            let guard = hold(locks, NAME).await;
            assert!(guard.token() > last, "{} after {last}", guard.token());
            guard.release().await.unwrap();
        }
    }
}

async fn hold(locks: &Locks, name: &str) -> Guard {
    let guard = locks.mutex(name).try_acquire_for(PATIENCE).await.unwrap();
    guard.unwrap_or_else(|| panic!("{name} is busy"))
}

fn passed(gate: Gate) {
    assert!(matches!(gate, Gate::Passed(_)), "{gate:?}");
}

const fn silent(_: Progress) {}

#[tokio::test]
#[ignore = "full: sentinels"]
async fn from_behind_sentinels() {
    let redis = RedisSentinel::start().await.unwrap();
    Stores::new(&redis.url()).await.walk().await;
}

#[tokio::test]
#[ignore = "full: a cluster"]
async fn from_a_cluster() {
    let redis = RedisCluster::start().await.unwrap();
    Stores::new(&redis.url()).await.walk().await;
}

#[tokio::test]
#[ignore = "full: the way back takes long"]
async fn from_the_recipe_of_timestamps() {
    let redis = RedisServer::start().await.unwrap();
    Stores::new(&format!("{}?recipe=setnx-timestamp", redis.url())).await.walk().await;
}

#[tokio::test]
#[ignore = "full: five masters"]
async fn from_a_quorum_of_masters_without_tombstones() {
    let redis = RedisFive::start().await.unwrap();
    let stores = Stores::new(&redis.url()).await;
    let last = stores.mix(&[Rung::Old, Rung::Dual]).await;
    let (operator, locks) = (stores.operator().await, stores.process(None).await);
    let error = operator.set(Rung::Move, "*").await.unwrap_err();
    assert!(error.to_string().contains("one by one"), "{error}");
    operator.set(Rung::Dual, "*").await.unwrap();
    until("it does not happen", async || operator.brief_status().await.unwrap().unfollowed().is_empty())
        .await;
    assert_eq!(operator.brief_status().await.unwrap().next, Some(Rung::New));
    let Gate::Blocked(obstacles) = operator.finish(&FinishTerms::new(), silent).await.unwrap() else {
        panic!("the masters are open");
    };
    assert!(obstacles.iter().any(|obstacle| obstacle.what.contains("may still acquire")), "{obstacles:?}");
    redis.servers().iter().for_each(RedisServer::kill);
    passed(operator.finish(&FinishTerms::new().source_is_gone(), silent).await.unwrap());
    let guard = hold(&locks, NAME).await;
    assert!(guard.token() > last, "{} after {last}", guard.token());
    guard.release().await.unwrap();
}
