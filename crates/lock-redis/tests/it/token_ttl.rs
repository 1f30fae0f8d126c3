//! How long last tokens are kept.

use std::time::Duration;

use lock_core::{Clock, ErrorKind, Locks, Token};
use lock_redis::RedisConfig;
use lock_testkit::RedisServer;

const HOUR: i64 = 3_600_000;

async fn connect(server: &RedisServer, options: &str) -> Locks {
    let url = format!("{}?token_ttl=1h&{options}", server.url());
    RedisConfig::from_url(&url).unwrap().connect().await.unwrap()
}

/// What is left of the keys that remember tokens, in ms.
async fn left(server: &RedisServer) -> Vec<i64> {
    let mut all = Vec::new();
    for pattern in ["polylock:tokens*", "polylock:fence*"] {
        let keys = server.command(&["KEYS", pattern]).await.unwrap();
        for key in keys.array().unwrap() {
            let left = server.command(&["PTTL", key.text().unwrap()]).await.unwrap();
            all.push(left.int().unwrap());
        }
    }
    all
}

/// Every way to a token leaves one that is kept for the hour.
async fn are_kept_for_an_hour(server: &RedisServer, count: usize, by: &str) {
    let left = left(server).await;
    assert!(left.len() == count && left.iter().all(|left| (1..=HOUR).contains(left)), "{by}: {left:?}");
    server.command(&["FLUSHALL"]).await.unwrap();
}

#[tokio::test]
async fn every_way_to_a_token_keeps_it_as_long_as_it_should() {
    let server = RedisServer::start().await.unwrap();
    for wait in ["queue", "notify"] {
        let locks = connect(&server, &format!("wait={wait}")).await;
        // By a script, by plain commands with a first release, and by plain commands alone.
        for by in ["a script", "a claim", "another claim"] {
            locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
            assert_eq!(
                left(&server).await.iter().filter(|left| (1..=HOUR).contains(*left)).count(),
                1,
                "{by}"
            );
        }
        for name in ["b", "c"] {
            locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
        }
        are_kept_for_an_hour(&server, 3, wait).await;

        locks.rw("a").read().await.unwrap().release().await.unwrap();
        locks.semaphore("b", 2).acquire().await.unwrap().release().await.unwrap();
        let mut writer = locks.rw("c").write().await.unwrap();
        writer.downgrade().await.unwrap();
        writer.release().await.unwrap();
        let guard = locks.mutex("d").acquire().await.unwrap();
        let floor = Token::new(guard.token().get() + 16);
        guard.raise_token(floor).await.unwrap();
        guard.extend(Duration::from_secs(20)).await.unwrap();
        guard.release().await.unwrap();
        are_kept_for_an_hour(&server, 4, wait).await;

        // From process to process, and from task to task on other terms.
        let (other, guard) = (connect(&server, "").await, locks.mutex("a").acquire().await.unwrap());
        let waiters = [other.mutex("a"), locks.mutex("a")];
        let waiting =
            waiters.map(|mutex| tokio::spawn(async move { mutex.acquire().await.unwrap().release().await }));
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.release().await.unwrap();
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
        are_kept_for_an_hour(&server, 1, wait).await;
    }
    let legacy = connect(&server, "recipe=setnx-timestamp").await;
    legacy.mutex("a").acquire().await.unwrap().release().await.unwrap();
    are_kept_for_an_hour(&server, 2, "setnx-timestamp").await;
}

/// As with a weekly job, and the usual week. By the release the key might be gone, with the token in it.
#[tokio::test]
async fn a_claim_keeps_a_token_that_is_about_to_expire() {
    let server = RedisServer::start().await.unwrap();
    let locks = connect(&server, "").await;
    for _ in 0..2 {
        locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
    }
    server.command(&["FLUSHALL"]).await.unwrap();
    let tokens = "polylock:tokens:{lock:a}";
    server.command(&["ZADD", tokens, "16", "last"]).await.unwrap();
    server.command(&["PEXPIRE", tokens, "2000"]).await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let lasts = left(&server).await;
    assert!(lasts.len() == 1 && lasts[0] > HOUR / 3, "{lasts:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_long_ttl_keeps_it_longer() {
    let server = RedisServer::start().await.unwrap();
    let locks = connect(&server, "ttl=2m").await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    let left = left(&server).await;
    assert!(left.len() == 1 && (HOUR..=12_000_000).contains(&left[0]), "{left:?}");
    guard.release().await.unwrap();
}

/// A bound of its clock that is hours old is too far behind it: last tokens may be forgotten that are larger.
#[tokio::test]
async fn a_client_that_was_idle_for_hours_asks_the_server_for_the_time_first() {
    let server = RedisServer::start().await.unwrap();
    let config = RedisConfig::from_url(&format!("{}?token_ttl=1h", server.url())).unwrap();
    let locks = config.clock(Clock::tokio()).connect().await.unwrap();
    for _ in 0..2 {
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    }
    // The clock of the server stays where it is: a token that is computed from the old bound is hours ahead of it.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2 * 3600)).await;
    tokio::time::resume();
    let guard = locks.mutex("a").acquire().await.unwrap();
    let time = server.command(&["TIME"]).await.unwrap();
    let seconds: u64 = time.array().unwrap()[0].text().unwrap().parse().unwrap();
    assert!(guard.token().get() <= (seconds + 1) * 1_000_000, "{:?} at {seconds} s", guard.token());
    guard.release().await.unwrap();
}

#[test]
fn less_than_an_hour_is_refused() {
    let error = RedisConfig::from_url("redis://h?token_ttl=59m").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("shorter than an hour"), "{error}");
}
