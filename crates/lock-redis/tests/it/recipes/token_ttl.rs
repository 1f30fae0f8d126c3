//! How long last tokens are kept.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, ErrorKind, Locks, Token};
use lock_redis::redis::IntoConnectionInfo as _;
use lock_redis::{RedisConfig, StreamDial};
use lock_testkit::simulation::in_virtual_time;
use lock_testkit::{FakeRedis, RedisServer, come, give_back, queue_up, take, until};
use tokio::time::sleep;

use crate::common::{KEY, TOKENS, client};

const HOUR: i64 = 3_600_000;

/// What is left of the keys that remember tokens, in ms.
async fn left(server: &RedisServer) -> Vec<i64> {
    let mut all = Vec::new();
    for pattern in ["polylock:tokens*", "polylock:fence*"] {
        for key in server.call(&["KEYS", pattern]).await.array().unwrap() {
            all.push(server.call(&["PTTL", key.text().unwrap()]).await.int().unwrap());
        }
    }
    all
}

/// Every way to a token leaves one that is kept for the hour.
async fn are_kept_for_an_hour(server: &RedisServer, count: usize, by: &str) {
    let left = left(server).await;
    assert!(left.len() == count && left.iter().all(|left| (1..=HOUR).contains(left)), "{by}: {left:?}");
    server.call(&["FLUSHALL"]).await;
}

#[tokio::test]
async fn every_way_to_a_token_keeps_it_as_long_as_it_should() {
    let server = RedisServer::start().await.unwrap();
    for wait in ["queue", "notify"] {
        let locks = client(&server, &format!("token_ttl=1h&wait={wait}")).await;
        // By a script, by plain commands with a first release, and by plain commands alone.
        for name in ["a", "a", "a", "b", "c"] {
            give_back(take(&locks, name).await).await;
        }
        are_kept_for_an_hour(&server, 3, wait).await;

        give_back(locks.rw("a").read().await.unwrap()).await;
        give_back(locks.semaphore("b", 2).acquire().await.unwrap()).await;
        let mut writer = locks.rw("c").write().await.unwrap();
        writer.downgrade().await.unwrap();
        give_back(writer).await;
        let guard = take(&locks, "d").await;
        guard.raise_token(Token::new(guard.token().get() + 16)).await.unwrap();
        guard.extend(Duration::from_secs(20)).await.unwrap();
        give_back(guard).await;
        are_kept_for_an_hour(&server, 4, wait).await;

        // From process to process, and from task to task on other terms.
        let guard = take(&locks, "a").await;
        let other = client(&server, "token_ttl=1h").await;
        let waiters = [other.mutex("a"), locks.mutex("a")]
            .map(|mutex| tokio::spawn(async move { give_back(mutex.acquire().await.unwrap()).await }));
        until("both wait", async || locks.inspect("a").await.unwrap().waiters == 2).await;
        give_back(guard).await;
        for waiter in waiters {
            come(waiter).await;
        }
        are_kept_for_an_hour(&server, 1, wait).await;
    }
    let legacy = client(&server, "token_ttl=1h&recipe=setnx-timestamp").await;
    give_back(take(&legacy, "a").await).await;
    are_kept_for_an_hour(&server, 2, "setnx-timestamp").await;
}

/// As with a weekly job, and the usual week. By the release the key might be gone, with the token in it.
#[tokio::test]
async fn a_claim_keeps_a_token_that_is_about_to_expire() {
    let server = RedisServer::start().await.unwrap();
    let locks = client(&server, "token_ttl=1h").await;
    for _ in 0..2 {
        give_back(take(&locks, "another").await).await;
    }
    server.call(&["FLUSHALL"]).await;
    server.call(&["ZADD", TOKENS, "16", "last"]).await;
    server.call(&["PEXPIRE", TOKENS, "5000"]).await;
    let guard = take(&locks, "a").await;
    let lasts = left(&server).await;
    assert!(lasts.len() == 1 && lasts[0] > HOUR / 3, "{lasts:?}");
    give_back(guard).await;
}

#[tokio::test]
async fn a_long_ttl_keeps_it_longer() {
    let server = RedisServer::start().await.unwrap();
    let guard = take(&client(&server, "token_ttl=1h&ttl=2m").await, "a").await;
    let left = left(&server).await;
    assert!(left.len() == 1 && (HOUR..=12_000_000).contains(&left[0]), "{left:?}");
    give_back(guard).await;
}

/// Which does not say for how long the lock is held.
#[tokio::test]
async fn a_raised_token_of_a_long_ttl_is_kept_as_long_as_before() {
    let server = RedisServer::start().await.unwrap();
    for (recipe, keys) in [("set-nx-px", 1), ("setnx-timestamp", 2)] {
        let locks = client(&server, &format!("token_ttl=1h&ttl=2m&recipe={recipe}")).await;
        let guard = take(&locks, "a").await;
        guard.raise_token(Token::new(guard.token().get() + 16)).await.unwrap();
        let left = left(&server).await;
        assert!(left.len() == keys && left.iter().all(|left| *left > 2 * HOUR), "{recipe}: {left:?}");
        give_back(guard).await;
        server.call(&["FLUSHALL"]).await;
    }
}

/// As after a restart without data, or a failover to a replica that lacks the last second: what the client knows is of a key that is gone.
#[tokio::test]
async fn a_token_after_a_loss_is_kept_as_long_as_before() {
    let server = RedisServer::start().await.unwrap();
    let locks = client(&server, "token_ttl=1h").await;
    for lost in [&["FLUSHALL"][..], &["DEL", TOKENS], &["SWAPDB", "0", "1"]] {
        for _ in 0..3 {
            give_back(take(&locks, "a").await).await;
        }
        server.call(lost).await;
        let guard = take(&locks, "a").await;
        let held = left(&server).await;
        assert!(held.len() == 1 && (1..=HOUR).contains(&held[0]), "{lost:?}: {held:?}");
        give_back(guard).await;
        are_kept_for_an_hour(&server, 1, lost[0]).await;
    }
}

/// Who waits for the lock has it also when the last token is lost, and the one that claims it is not before its turn.
#[tokio::test]
async fn a_queue_without_a_last_token_is_a_queue() {
    let server = RedisServer::start().await.unwrap();
    let locks = client(&server, "token_ttl=1h&ttl=60s").await;
    for _ in 0..3 {
        give_back(take(&locks, "a").await).await;
    }
    let holder = take(&client(&server, "ttl=60s").await, "a").await;
    let waiter = queue_up(&client(&server, "ttl=60s").await, "a").await;
    server.call(&["DEL", TOKENS, KEY]).await;
    assert!(locks.mutex("a").try_acquire().await.unwrap().is_none_or(|_| waiter.is_finished()));
    drop(holder);
    give_back(come(waiter).await).await;
}

/// All clocks are right.
#[test]
fn tokens_grow_in_virtual_time_after_a_loss_however_long_a_client_has_not_claimed() {
    in_virtual_time(1, async {
        let redis = FakeRedis::new();
        let (first, second) = (in_memory(&redis).await, in_memory(&redis).await);
        // From now on it knows that scripts work.
        give_back(take(&second, "b").await).await;
        for idle in [0, 5, 50 * 60] {
            // Time: it is virtual.
            sleep(Duration::from_secs(idle)).await;
            // What this one knows of the clock is fresh.
            give_back(take(&first, "c").await).await;
            let guard = take(&first, "a").await;
            let token = guard.token();
            give_back(guard).await;
            // Time: it is virtual.
            sleep(Duration::from_millis(10)).await;
            drop(redis.command(&["DEL", TOKENS]));
            let guard = take(&second, "a").await;
            assert!(guard.token() > token, "after {idle} s: {:?}, after {token:?}", guard.token());
            give_back(guard).await;
        }
    });
}

async fn in_memory(redis: &FakeRedis) -> Locks {
    let link = redis.link("client", 1);
    let dial = StreamDial::new(Duration::from_secs(5), move || link.connect());
    let address = "redis://simulated".into_connection_info().unwrap();
    RedisConfig::new(address).dial(Arc::new(dial)).clock(Clock::tokio()).connect().await.unwrap()
}

/// A bound of its clock that is hours old is too far behind it.
#[tokio::test]
async fn a_client_that_was_idle_for_hours_proposes_no_token() {
    let server = RedisServer::start().await.unwrap();
    let config = RedisConfig::from_url(&format!("{}?token_ttl=1h", server.url())).unwrap();
    let locks = config.clock(Clock::tokio()).connect().await.unwrap();
    for _ in 0..2 {
        give_back(take(&locks, "a").await).await;
    }
    // The clock of the server stays where it is: a token that is computed from the old bound is hours ahead of it.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2 * 3600)).await;
    tokio::time::resume();
    let asked = server.calls_of("time").await;
    let guard = take(&locks, "a").await;
    let time = server.call(&["TIME"]).await;
    let seconds: u64 = time.array().unwrap()[0].text().unwrap().parse().unwrap();
    assert!(guard.token().get() <= (seconds + 1) * 1_000_000, "{:?} at {seconds} s", guard.token());
    give_back(guard).await;
    // The script looks at the clock too.
    assert!(server.calls_of("time").await >= asked + 3, "the next claim knows the time again");
}

#[test]
fn less_than_an_hour_is_refused() {
    let error = RedisConfig::from_url("redis://h?token_ttl=59m").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("shorter than an hour"), "{error}");
}
