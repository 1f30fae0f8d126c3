//! The bugs of other lock libraries, by the numbers of docs/BUGS.md. What other tests prove is not repeated here.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::{ErrorKind, GuardState, LockOptions, LossReason, Outcome, Released};
use lock_testkit::proxy::Direction;
use lock_testkit::{cancel_after, come, give_back, until};
use tokio::time::{Instant, sleep, timeout};

use crate::common::Link;

const PATIENCE: Duration = Duration::from_secs(20);
const KEY: &str = "lock:a";

impl Link {
    async fn pttl(&self) -> i64 {
        self.redis.call(&["PTTL", KEY]).await.int().unwrap()
    }

    async fn info(&self, section: &str) -> String {
        self.redis.call(&["INFO", section]).await.text().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b01_no_renewal_outlives_the_release() {
    let link = Link::with("ttl=3s").await;
    link.proxy.delay(Direction::ToServer, Duration::from_millis(15));
    // Renewed every second: before, during and after one that is on its way.
    for held in [980, 990, 1_000, 1_010, 1_020] {
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        sleep(Duration::from_millis(held)).await;
        give_back(guard).await;
        link.proxy.reset_counters();
        link.redis.call(&["SET", KEY, "theirs", "PX", "10000"]).await;
        sleep(Duration::from_millis(1_100)).await;
        assert_eq!(link.holder().await, "theirs");
        assert!(link.pttl().await <= 9_800, "released after {held} ms, and still renewed");
        assert_eq!(link.proxy.requests(), 0, "released after {held} ms, and still renewed");
        link.redis.call(&["DEL", KEY]).await;
    }
}

#[tokio::test]
async fn b02_renewal_revives_no_lost_lock() {
    let link = Link::with("ttl=3s").await;
    for next in [None, Some("theirs")] {
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        match next {
            None => link.redis.call(&["DEL", KEY]).await,
            Some(value) => link.redis.call(&["SET", KEY, value, "PX", "10000"]).await,
        };
        assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), LossReason::Removed);
        link.proxy.reset_counters();
        sleep(Duration::from_millis(1_200)).await;
        assert_eq!(link.proxy.requests(), 0, "renewed after it was lost");
        assert_eq!(link.holder().await, next.unwrap_or_default());
        let error = guard.extend(Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        // Not even when the key is its own again.
        link.redis.call(&["SET", KEY, &guard.owner().to_string(), "PX", "500"]).await;
        assert!(matches!(guard.state(), GuardState::Lost(_)));
        drop(guard);
        link.redis.call(&["DEL", KEY]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b02_a_lock_that_was_deleted_is_noticed_within_a_third_of_its_ttl() {
    const TTL: Duration = Duration::from_secs(3);
    const NOISE: Duration = Duration::from_millis(800);
    let link = Link::with("ttl=3s").await;
    // Just after it was taken, before and after a renewal, and between two.
    let offsets = [0, 300, 850, 950, 1050, 1500, 1950, 2500].map(Duration::from_millis);
    let deleted = offsets.into_iter().enumerate().map(async |(number, offset)| {
        let guard = link.locks.mutex(format!("a{number}")).acquire().await.unwrap();
        sleep(offset).await;
        link.redis.call(&["DEL", &format!("lock:a{number}")]).await;
        let gone = Instant::now();
        let lost = timeout(PATIENCE, guard.lost()).await.unwrap();
        (offset, lost, gone.elapsed())
    });
    for (offset, lost, took) in join_all(deleted).await {
        assert_eq!(lost, LossReason::Removed, "deleted after {offset:?}");
        assert!(took <= TTL / 3 + NOISE, "deleted after {offset:?}, and noticed after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b03_a_release_does_not_race_an_extension() {
    let link = Link::with("ttl=20s&command_timeout=10s").await;
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    link.proxy.hold(Direction::ToServer);
    assert!(cancel_after(1, guard.extend(Duration::from_secs(60))).await.is_none());
    until("no extension was sent", async || link.proxy.queued(Direction::ToServer) != 0).await;
    let extension = link.proxy.queued(Direction::ToServer);
    let releasing = tokio::spawn(guard.release());
    sleep(Duration::from_millis(200)).await;
    assert_eq!(link.proxy.queued(Direction::ToServer), extension, "released beside an extension");
    link.proxy.deliver();
    assert_eq!(timeout(PATIENCE, releasing).await.unwrap().unwrap().unwrap(), Released::Released);
    assert_eq!(link.holder().await, "");
}

#[tokio::test]
async fn b07_a_lock_that_came_too_late_is_none() {
    let link = Link::with("ttl=300ms&command_timeout=5s").await;
    link.proxy.delay(Direction::ToClient, Duration::from_millis(350));
    let error = link.locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Applied));
    link.proxy.heal();
    link.no_key_is_left().await;
    // And so when it is handed over.
    let long = LockOptions::new().ttl(Duration::from_secs(10));
    let guard = link.locks.mutex_with("a", long).unwrap().acquire().await.unwrap();
    let heir = tokio::spawn({
        let mutex = link.locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_millis(200)));
        async move {
            let guard = mutex.unwrap().acquire().await;
            guard.map(|guard| guard.is_valid())
        }
    });
    sleep(Duration::from_millis(50)).await;
    link.proxy.delay(Direction::ToClient, Duration::from_millis(250));
    drop(guard);
    sleep(Duration::from_millis(400)).await;
    link.proxy.heal();
    let valid = come(heir).await;
    assert!(valid.is_err() || valid.is_ok_and(|valid| valid), "it got a lock that had ended");
    link.no_key_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b13_waiting_for_many_locks_takes_one_subscription() {
    const LOCKS: usize = 50;
    for wait in ["queue", "notify"] {
        let link = Link::with(&format!("ttl=10s&wait={wait}")).await;
        for number in 0..LOCKS {
            link.redis.call(&["SET", &format!("lock:{number}"), "theirs"]).await;
        }
        let waiters: Vec<_> = (0..LOCKS)
            .map(|number| {
                let mutex = link.locks.mutex(number.to_string());
                tokio::spawn(async move { mutex.acquire().await.unwrap().release().await.unwrap() })
            })
            .collect();
        sleep(Duration::from_millis(300)).await;
        assert_eq!(link.proxy.connections(), 2, "{wait}: one for commands, and one that is pushed to");
        if wait == "queue" {
            let channels = link.redis.call(&["PUBSUB", "CHANNELS", "*"]).await;
            assert_eq!(channels.array().unwrap().len(), 1, "one inbox for all locks");
        }
        link.redis.call(&["FLUSHALL"]).await;
        for waiter in waiters {
            come(waiter).await;
        }
    }
}

/// Nothing waits for replicas, and nothing blocks.
#[tokio::test(flavor = "multi_thread")]
async fn b16_b25_no_command_blocks_the_shared_connection() {
    let link = Link::with("ttl=300ms").await;
    link.redis.call(&["SET", KEY, "theirs"]).await;
    let waiter = tokio::spawn({
        let mutex = link.locks.mutex("a");
        async move { mutex.acquire().await.unwrap().release().await.unwrap() }
    });
    sleep(Duration::from_millis(100)).await;
    // Others go on while one waits.
    let started = Instant::now();
    for _ in 0..20 {
        link.locks.mutex("b").acquire().await.unwrap().release().await.unwrap();
    }
    let took = started.elapsed();
    assert!(took < Duration::from_millis(900), "behind a command that blocks: {took:?}");
    assert!(link.info("clients").await.contains("blocked_clients:0"));
    let guard = link.locks.mutex("c").acquire().await.unwrap();
    sleep(Duration::from_millis(150)).await;
    guard.release().await.unwrap();
    link.redis.call(&["DEL", KEY]).await;
    come(waiter).await;

    let stats = link.info("commandstats").await;
    let used: BTreeSet<_> = stats.lines().filter_map(|line| line.split([':', '_']).nth(1)).collect();
    assert!(used.contains("evalsha"), "{used:?}");
    for blocks in ["wait", "waitaof", "blpop", "brpop", "blmove", "bzpopmin", "xread", "keys", "watch"] {
        assert!(!used.contains(blocks), "{blocks} was called");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_a_dropped_future_takes_no_answer_of_another() {
    let link = Link::with("ttl=20s").await;
    let dropping = tokio::spawn({
        let locks = link.locks.clone();
        async move {
            for k in (0..4).cycle().take(400) {
                let mutex = locks.mutex(format!("dropped-{k}"));
                drop(cancel_after(k, mutex.acquire()).await);
                drop(cancel_after(k, locks.inspect("dropped")).await);
            }
        }
    });
    let (mut last, started) = (None, Instant::now());
    while !dropping.is_finished() {
        assert!(started.elapsed() < PATIENCE, "an answer was lost");
        let guard = link.locks.mutex("a").acquire().await.unwrap();
        assert!(Some(guard.token()) > last, "the answer to another request");
        last = Some(guard.token());
        assert_eq!(link.holder().await, guard.owner().to_string());
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
    dropping.await.unwrap();
}

#[tokio::test]
async fn b24_a_ttl_is_in_milliseconds() {
    let link = Link::with("ttl=1500ms").await;
    let guard = link.locks.mutex("a").acquire().await.unwrap();
    assert!((1_001..=1_500).contains(&link.pttl().await));
    guard.extend(Duration::from_millis(2_500)).await.unwrap();
    assert!((2_001..=2_500).contains(&link.pttl().await));
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_micros(99_999)] {
        let refused = link.locks.mutex_with("b", LockOptions::new().ttl(ttl)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
        assert_eq!(guard.extend(ttl).await.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
}
