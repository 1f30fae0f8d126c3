//! Ghosts: places in the line that no acquisition stands behind any more, while their process still listens.
//!
//! A master that hung lines up a waiter long after it gave up. When it is called, its process lets the next one go at once.

use std::time::Duration;

use lock_core::Locks;
use lock_redlock::RedlockConfig;
use lock_testkit::redis::Reply;
use lock_testkit::{RedisFive, RedisServer};
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const LINE: &str = "polylock:line:{lock:a}";
const GHOSTS: u32 = 40;

async fn connect(five: &RedisFive) -> Locks {
    // A master that a busy machine makes slow is not given up.
    let url = format!("{}?ttl=20s&master_timeout=10s&connect_timeout=20s", five.url());
    RedlockConfig::from_url(&url).unwrap().connect().await.unwrap()
}

async fn command(redis: &RedisServer, words: &[&str]) -> Reply {
    let reply = redis.command(words).await.unwrap();
    assert!(!reply.is_error(), "{words:?}: {reply:?}");
    reply
}

async fn inbox(redis: &RedisServer) -> Option<String> {
    let channels = command(redis, &["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await;
    channels.array()?.first()?.text().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_for_waiters_that_have_left_cost_nothing() {
    let five = RedisFive::start().await.unwrap();
    let (holder, client) = (connect(&five).await, connect(&five).await);
    let mut took = Vec::new();
    for round in 0..6 {
        let guard = timeout(PATIENCE, holder.mutex("a").acquire()).await.unwrap().unwrap();
        let mutex = client.mutex("a");
        let waiter = tokio::spawn(async move { (mutex.acquire().await.unwrap(), Instant::now()) });
        for master in five.servers() {
            let began = Instant::now();
            while command(master, &["ZCARD", LINE]).await.int() != Some(1) {
                assert!(began.elapsed() < PATIENCE, "nobody lines up");
                sleep(Duration::from_millis(5)).await;
            }
            let inbox = inbox(master).await.unwrap();
            for number in 0..GHOSTS {
                let ghost = format!("{round:016x}{number:016x} {inbox}");
                command(master, &["ZADD", LINE, &number.to_string(), &ghost]).await;
            }
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, came) = timeout(PATIENCE, waiter).await.unwrap().unwrap();
        took.push(came.saturating_duration_since(released));
        guard.release().await.unwrap();
        for master in five.servers() {
            command(master, &["DEL", LINE]).await;
        }
    }
    println!("a hand-over over {GHOSTS} ghosts: {took:?}");
    took.sort_unstable();
    // Without the ghosts it is a few milliseconds; a turn is kept for 100 ms, and then nobody is called.
    assert!(took[took.len() / 2] < Duration::from_millis(90), "{took:?}");
}
