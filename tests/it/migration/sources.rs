//! Locks move from every kind of Redis, by URL: sentinels, a cluster, the recipe of timestamps, and a quorum of masters.

use lock_testkit::{PATIENCE, RedisCluster, RedisFive, RedisSentinel, RedisServer, give_back, take, until};
use polylock::migrate::{FinishTerms, Gate, Progress};
use polylock::{ErrorKind, Locks, Rung, Token};

use crate::common::Stores;

const NAME: &str = "orders/42";

/// Both stores of one migration.
async fn stores<Redis: Sync>(redis: Redis, url: String) -> Stores<Redis> {
    let ttl = if url.contains('?') { "&ttl=5s" } else { "?ttl=5s" };
    Stores::with(redis, format!("{url}{ttl}")).await
}

impl<Redis: Sync> Stores<Redis> {
    /// Each of these rungs excludes each, and tokens grow from one to the next.
    async fn mix(&self, rungs: &[Rung]) -> Token {
        let mut last = None;
        for &first in rungs {
            for &second in rungs {
                let (one, two) = (self.process(Some(first)).await, self.process(Some(second)).await);
                let guard = take(&one, NAME).await;
                assert!(last < Some(guard.token()), "{first} after another one: {last:?} {}", guard.token());
                assert!(two.mutex(NAME).try_acquire().await.unwrap().is_none(), "{second} beside {first}");
                last = Some(guard.token());
                give_back(guard).await;
                one.close().await.unwrap();
                two.close().await.unwrap();
            }
        }
        last.unwrap()
    }

    /// The servers that the URL does not name keep the migration from its end.
    async fn ends_without(&self, named: &[RedisServer], others: &[RedisServer]) {
        let (operator, locks) = (self.operator().await, self.process(None).await);
        operator.set(Rung::Move, "*").await.unwrap();
        let others: Vec<_> = others.iter().map(|server| (server, server.addr().to_string())).collect();
        until("the process has registered all servers", async || {
            let status = operator.brief_status().await.unwrap();
            let members = status.sessions.iter().filter_map(|session| session.member.as_ref());
            let knows_all =
                members.map(|member| others.iter().all(|(_, at)| member.old_servers.contains(at)));
            status.unfollowed().is_empty() && knows_all.eq([true])
        })
        .await;
        named.iter().for_each(RedisServer::kill);
        let (operator, gone) = (self.operator().await, FinishTerms::new().source_is_gone());
        let Gate::Blocked(obstacles) = operator.finish(&gone, silent).await.unwrap() else {
            panic!("the others answer");
        };
        for (server, at) in &others {
            assert!(obstacles.iter().any(|obstacle| obstacle.what.contains(at)), "{at}: {obstacles:?}");
            server.kill();
        }
        let is_gone =
            async |terms: &FinishTerms| operator.obstacles_to_finish(terms).await.unwrap().is_empty();
        until("it is gone", async || is_gone(&gone).await).await;
        locks.close().await.unwrap();
        until("the process has left", async || operator.brief_status().await.unwrap().sessions.is_empty())
            .await;
        let obstacles = operator.obstacles_to_finish(&gone).await.unwrap();
        assert!(obstacles[0].advice.contains("--servers"), "{obstacles:?}");
        let gone = gone.servers(others.iter().map(|(_, at)| at));
        assert!(is_gone(&gone).await);
        passed(operator.finish(&gone, silent).await.unwrap());
    }

    /// Up to the rung `move`, and back.
    async fn walk(&self) {
        let last = self.mix(&[Rung::Old, Rung::Shadow, Rung::Dual, Rung::Move]).await;
        let (operator, locks) = (self.operator().await, self.process(None).await);
        let redis = Locks::connect(&self.from).await.unwrap();
        let error = redis.mutex(NAME).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Moved, "{error}");
        passed(operator.back(PATIENCE, silent).await.unwrap());
        passed(operator.clean(None, silent).await.unwrap());
        for locks in [&redis, &locks] {
            let guard = take(locks, NAME).await;
            assert!(guard.token() > last, "{} after {last}", guard.token());
            give_back(guard).await;
        }
    }
}

fn passed(gate: Gate) {
    assert!(matches!(gate, Gate::Passed(_)), "{gate:?}");
}

const fn silent(_: Progress) {}

#[tokio::test]
#[ignore = "full: sentinels"]
async fn from_behind_sentinels() {
    let redis = RedisSentinel::start().await.unwrap();
    let url = redis.url();
    stores(redis, url).await.walk().await;
}

#[tokio::test]
#[ignore = "full: sentinels"]
async fn a_master_is_not_gone_with_its_sentinels() {
    let redis = RedisSentinel::start().await.unwrap();
    let url = redis.url();
    let stores = stores(redis, url).await;
    stores.ends_without(stores.redis.sentinels(), stores.redis.servers()).await;
}

#[tokio::test]
#[ignore = "full: a cluster"]
async fn a_cluster_is_not_gone_with_the_servers_of_its_url() {
    let redis = RedisCluster::start().await.unwrap();
    let url = format!("redis+cluster://{}", redis.masters()[0].addr());
    let stores = stores(redis, url).await;
    let (named, others) = stores.redis.masters().split_at(1);
    stores.ends_without(named, others).await;
}

#[tokio::test]
#[ignore = "full: a cluster"]
async fn from_a_cluster() {
    let redis = RedisCluster::start().await.unwrap();
    let url = redis.url();
    stores(redis, url).await.walk().await;
}

#[tokio::test]
#[ignore = "full: the way back takes long"]
async fn from_the_recipe_of_timestamps() {
    let redis = RedisServer::start().await.unwrap();
    let url = format!("{}?recipe=setnx-timestamp", redis.url());
    stores(redis, url).await.walk().await;
}

#[tokio::test]
#[ignore = "full: five masters"]
async fn from_a_quorum_of_masters_without_tombstones() {
    let redis = RedisFive::start().await.unwrap();
    let url = redis.url();
    let stores = stores(redis, url).await;
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
    stores.redis.servers().iter().for_each(RedisServer::kill);
    let gone = FinishTerms::new().source_is_gone();
    until("it is gone", async || operator.obstacles_to_finish(&gone).await.unwrap().is_empty()).await;
    passed(operator.finish(&gone, silent).await.unwrap());
    let guard = take(&locks, NAME).await;
    assert!(guard.token() > last, "{} after {last}", guard.token());
    give_back(guard).await;
}
