//! The gate to `new`: what closes it, and which tokens come after it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, ErrorKind, Locks, Token};
use lock_migrate::{FinishTerms, MigrationConfig, Operator, Phase, Rung};
use lock_redis::RedisConfig;
use lock_testkit::proxy::redis_command;
use lock_testkit::{PATIENCE, come, give_back, queue_up, take, until};
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::common::{LEASE, Servers, pass, redis};
use crate::faults::Side;
use crate::operator::{blocked, goes_to, passed, refused, silent, with_processes};

impl Servers {
    /// The old store, as this user with his name for a password.
    fn redis_as(&self, user: &str) -> Arc<dyn Backend> {
        let url = self.redis.url().replace("redis://", &format!("redis://{user}:{user}@"));
        Arc::clone(RedisConfig::from_url(&format!("{url}?ttl=5s")).unwrap().connect_lazy().unwrap().backend())
    }

    async fn acl(&self, words: &str) {
        let words: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(words.split(' ')).collect();
        self.redis.call(&words).await;
    }
}

/// Waits until neither the operator nor a process reaches the old store.
async fn until_gone(operator: &Operator) {
    let gone = FinishTerms::new().source_is_gone();
    until("it is gone", async || operator.obstacles_to_finish(&gone).await.unwrap().is_empty()).await;
}

#[tokio::test]
async fn the_seal_needs_a_closed_store_and_ended_leases() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    refused(operator.set(Rung::New, "*"), "finish").await;
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("some names are on old"), "{reasons}");
    goes_to(&operator, Rung::Move, 1).await;
    let gone = FinishTerms::new().source_is_gone();
    let reasons = blocked(operator.finish(&gone, silent).await.unwrap());
    assert!(reasons.contains("is not gone"), "{reasons}");

    pass(&locks, "moved").await;
    let (redis, zk) = servers.apart().await;
    let largest = pass(&redis, "other").await.max(pass(&zk, "another").await);
    servers.redis.kill();
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("--gone"), "{reasons}");
    until_gone(&operator).await;
    // Time: leases may still live.
    let (began, longest) = (Instant::now(), Duration::from_secs(3));
    let record = passed(operator.finish(&gone.longest_ttl(longest), silent).await.unwrap());
    assert!(began.elapsed() >= longest);
    assert_eq!((record.phase, record.lowest()), (Phase::Sealed, Rung::New));
    assert!(record.floor > largest.get());
    // Without Redis, on the rung new: processes that run, and those that start.
    let pinned = MigrationConfig::new("shop").rung(Rung::New);
    let lazy = RedisConfig::from_url(&servers.redis.url()).unwrap().connect_lazy().unwrap();
    let started = pinned.open(Arc::clone(lazy.backend()), servers.zk().await).await.unwrap();
    for locks in [&locks, &Locks::new(started)] {
        for name in ["other", "another", "moved"] {
            assert!(pass(locks, name).await.get() > record.floor);
        }
    }
    refused(operator.back(PATIENCE, silent), "sealed").await;
    refused(operator.set(Rung::Old, "*"), "sealed").await;
}

#[tokio::test]
async fn a_store_that_answers_is_not_gone() {
    let servers = Servers::start().await;
    let (operator, [_locks]) = with_processes(&servers).await;
    goes_to(&operator, Rung::Move, 1).await;
    let gone = FinishTerms::new().source_is_gone();
    // Of a master that nobody reaches: no client may write, but it may become a master again.
    servers.redis.call(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let reasons = blocked(operator.finish(&gone, silent).await.unwrap());
    assert!(reasons.contains("accepts connections"), "{reasons}");
    servers.redis.kill();
    until_gone(&operator).await;
}

#[tokio::test]
async fn a_store_that_a_process_reaches_is_not_gone_nor_one_with_a_replica() {
    let servers = Servers::start().await;
    let (replica, proxy) = (servers.redis.replica().await.unwrap(), servers.proxy(Side::Old));
    // The record names the proxy.
    let from = redis(proxy.addr(), LEASE).await;
    let _first = MigrationConfig::new("shop").open(from, servers.zk().await).await.unwrap();
    // On a runtime that ends, as a framework may have one for what comes before its own.
    let ends = Builder::new_multi_thread().enable_all().build().unwrap();
    let (from, to) = (servers.redis().await, servers.zk().await);
    let second = ends.spawn(MigrationConfig::new("shop").open(from, to)).await.unwrap().unwrap();
    let from = redis(proxy.addr(), LEASE).await;
    let operator = Operator::connect("shop", from, servers.zk().await).await.unwrap();
    goes_to(&operator, Rung::Move, 2).await;
    until("both have registered what they see", async || {
        let sessions = operator.brief_status().await.unwrap().sessions;
        sessions
            .iter()
            .filter_map(|session| session.member.as_ref())
            .all(|member| member.old_servers.len() == 2)
    })
    .await;
    ends.shutdown_background();
    drop(proxy);
    let gone = FinishTerms::new().source_is_gone();
    let reasons = blocked(operator.finish(&gone, silent).await.unwrap());
    for part in ["reached it", &servers.redis.addr().to_string(), &replica.addr().to_string()] {
        assert!(reasons.contains(part), "{part}: {reasons}");
    }
    servers.redis.kill();
    until("only the replica is left", async || {
        let obstacles = operator.obstacles_to_finish(&gone).await.unwrap();
        obstacles.len() == 1 && obstacles[0].what.contains(&replica.addr().to_string())
    })
    .await;
    replica.kill();
    until_gone(&operator).await;
    second.close().await.unwrap();
}

#[tokio::test]
async fn waiters_of_a_closed_store_go_on_with_the_new_one_after_the_seal() {
    let servers = Servers::start().await;
    for user in ["fleet", "operator"] {
        servers.acl(&format!("{user} on >{user} ~* &* +@all")).await;
    }
    let (fleet, zk) = (servers.redis_as("fleet"), servers.zk().await);
    let locks = Locks::new(MigrationConfig::new("shop").open(fleet, zk).await.unwrap());
    let (from, zk) = (servers.redis_as("operator"), servers.zk().await);
    let operator = Operator::connect("shop", from, zk).await.unwrap();
    goes_to(&operator, Rung::Move, 1).await;
    // A token that somebody raised on the old store, far beyond its clock.
    let ahead = pass(&locks, "b").await.get() + 6 * 3_600_000_000;
    servers.redis.call(&["ZADD", "polylock:tokens:{lock:ahead}", &ahead.to_string(), "last"]).await;
    // An old binary that hangs, and what it holds.
    servers.redis.call(&["SET", "lock:a", "somebody", "PX", "12000"]).await;
    let waiter = queue_up(&locks, "a").await;
    let reasons = blocked(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    assert!(reasons.contains("\"fleet\"") && reasons.contains("\"operator\""), "{reasons}");
    servers.acl("fleet resetkeys").await;
    servers.acl("default resetkeys %R~*").await;
    servers.acl("operator resetkeys %R~*").await;
    assert!(!waiter.is_finished());
    let began = Instant::now();
    let record = passed(operator.finish(&FinishTerms::new(), silent).await.unwrap());
    // Time: the old binary may still work.
    assert!(began.elapsed() > Duration::from_secs(4));
    assert!(come(waiter).await.token().get() > record.floor && record.floor > ahead);
}

#[tokio::test]
async fn a_store_that_is_opened_again_during_the_last_steps_is_not_sealed() {
    let servers = Servers::start().await;
    for user in ["fleet", "operator"] {
        servers.acl(&format!("{user} on >{user} ~* &* +@all")).await;
    }
    let (fleet, zk) = (servers.redis_as("fleet"), servers.zk().await);
    let locks = Locks::new(MigrationConfig::new("shop").open(fleet, zk).await.unwrap());
    let (proxy, zk) = (servers.proxy(Side::Old), servers.zk().await);
    let url = format!("redis://operator:operator@{}?ttl=5s", proxy.addr());
    let from = Arc::clone(RedisConfig::from_url(&url).unwrap().connect_lazy().unwrap().backend());
    let operator = Operator::connect("shop", from, zk).await.unwrap();
    goes_to(&operator, Rung::Move, 1).await;
    pass(&locks, "a").await;
    for user in ["fleet", "default", "operator"] {
        servers.acl(&format!("{user} resetkeys %R~*")).await;
    }
    // The walk over the tokens takes long.
    proxy.hold_replies_when(redis_command("TIME"));
    let finishing = tokio::spawn(async move { operator.finish(&FinishTerms::new(), silent).await });
    until("the walk is under way", async || proxy.fired() > 0).await;
    servers.acl("fleet ~*").await;
    proxy.deliver();
    let reasons = blocked(finishing.await.unwrap().unwrap());
    assert!(reasons.contains("\"fleet\""), "{reasons}");
}

#[tokio::test]
async fn tokens_of_a_closed_store_that_cannot_be_read_or_surpassed_refuse_the_seal() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    pass(&locks, "a").await;
    goes_to(&operator, Rung::Move, 1).await;
    servers.redis.call(&["ZADD", "polylock:tokens:{lock:odd}", &i64::MAX.to_string(), "last"]).await;
    servers.acl("default resetkeys %R~*").await;
    refused(operator.finish(&FinishTerms::new(), silent), "no room").await;
    refused(operator.finish(&FinishTerms::new(), silent), "polylock:tokens").await;
    servers.acl("default resetkeys %R~lock:*").await;
    let error = operator.finish(&FinishTerms::new(), silent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("%R~*"), "{error}");
    // With that key gone, it passes.
    servers.acl("default resetkeys ~*").await;
    servers.redis.call(&["DEL", "polylock:tokens:{lock:odd}"]).await;
    servers.acl("default resetkeys %R~*").await;
    passed(operator.finish(&FinishTerms::new(), silent).await.unwrap());
}

#[tokio::test]
async fn the_seal_without_the_old_store_is_above_what_processes_saw_whatever_the_operators_clock_says() {
    // Raised by hand, they are as far ahead of the operator's clock as if that were wrong.
    let ahead = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(6 * 3_600);
    for (rung, leave) in [(Rung::Old, false), (Rung::Dual, true)] {
        let servers = Servers::start().await;
        let (operator, [locks]) = with_processes(&servers).await;
        goes_to(&operator, rung, 1).await;
        let guard = take(&servers.apart().await.0, "a").await;
        guard.raise_token(Token::new(ahead().as_micros() as u64)).await.unwrap();
        give_back(guard).await;
        let seen = pass(&locks, "a").await;
        assert!(u128::from(seen.get()) > ahead().as_micros() - 60_000_000, "{rung}: {seen}");
        goes_to(&operator, Rung::Move, 1).await;
        if leave {
            // Only the new store knows then.
            locks.close().await.unwrap();
        } else {
            until("the process has registered the token", async || {
                let status = operator.brief_status().await.unwrap();
                status.sessions[0].member.as_ref().unwrap().largest_token >= seen.get()
            })
            .await;
        }
        servers.redis.kill();
        until_gone(&operator).await;
        let record = passed(operator.finish(&FinishTerms::new().source_is_gone(), silent).await.unwrap());
        assert!(record.floor > seen.get(), "{rung}: {} is not above {seen}", record.floor);
        if !leave {
            let next = pass(&locks, "a").await;
            assert!(next > seen, "{rung}: {next} after {seen}");
        }
    }
}

#[tokio::test]
async fn tokens_that_are_more_than_a_day_ahead_are_refused() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    // As after many elections.
    let zk = servers.apart().await.1;
    let guard = take(&zk, "a").await;
    let ahead = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(2 * 86_400);
    guard.raise_token(Token::new(ahead.as_micros() as u64)).await.unwrap();
    give_back(guard).await;
    let findings = operator.preflight().await.unwrap();
    let warned =
        findings.iter().any(|finding| finding.to_string().contains("ahead of the old store's clock"));
    assert!(warned, "{findings:?}");
    for rung in [Rung::Dual, Rung::Move] {
        goes_to(&operator, rung, 1).await;
        let error = locks.mutex("b").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.to_string().contains("set old"), "{error}");
        let obstacles = operator.status().await.unwrap().obstacles;
        assert!(obstacles.iter().any(|obstacle| obstacle.to_string().contains("set old")), "{obstacles:?}");
        assert!(!servers.is_moved("b").await);
    }
    // Nothing is left of it on either store.
    locks.backend().settle().await;
    goes_to(&operator, Rung::Old, 1).await;
    pass(&locks, "b").await;
    pass(&zk, "b").await;
    let report = servers.apart().await.0.doctor().await.unwrap();
    assert!(report.to_string().contains("take part in a migration"), "{report}");
}
