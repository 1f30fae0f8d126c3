//! How long last tokens are kept.

use std::time::Duration;

use lock_core::{Clock, ErrorKind, Token};
use lock_redis::RedisConfig;
use lock_testkit::{RedisServer, come, give_back, take, until};

use crate::common::{TOKENS, client};

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

/// A bound of its clock that is hours old is too far behind it: last tokens may be forgotten that are larger.
#[tokio::test]
async fn a_client_that_was_idle_for_hours_asks_the_server_for_the_time_first() {
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
    let guard = take(&locks, "a").await;
    let time = server.call(&["TIME"]).await;
    let seconds: u64 = time.array().unwrap()[0].text().unwrap().parse().unwrap();
    assert!(guard.token().get() <= (seconds + 1) * 1_000_000, "{:?} at {seconds} s", guard.token());
    give_back(guard).await;
}

#[test]
fn less_than_an_hour_is_refused() {
    let error = RedisConfig::from_url("redis://h?token_ttl=59m").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("shorter than an hour"), "{error}");
}
