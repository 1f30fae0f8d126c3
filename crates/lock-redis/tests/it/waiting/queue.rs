//! The queue on a real server: who is passed over, who costs time, and who keeps its place.

use std::ops::Range;
use std::time::Duration;

use lock_core::{ErrorKind, Locks, Token};
use lock_redis::redis::Client;
use lock_redis::redis::aio::PubSub;
use lock_testkit::redis::Reply;
use lock_testkit::{RedisServer, acquiring, come, give_back, hand_over, queue_up, soon, take, until};
use tokio::time::Instant;

use crate::common::{QUEUE, client, connect, nothing_is_left, queue_is, queued, url_without};

/// How long a lock is kept for a waiter that was granted it.
// Time: it is what a waiter that hangs costs.
const GRACE: Duration = Duration::from_secs(1);

async fn start() -> RedisServer {
    RedisServer::start().await.unwrap()
}

/// A client whose leases are longer than the tests are patient: a lock that nobody hands over is seen.
async fn lasting(redis: &RedisServer) -> Locks {
    client(redis, "ttl=60s").await
}

async fn without(redis: &RedisServer, rights: &[&str]) -> Locks {
    connect(&format!("{}?ttl=60s", url_without(redis, rights).await)).await
}

/// Waiters of a process that listens and does nothing.
async fn silent_waiters(redis: &RedisServer, mode: &str, numbers: Range<usize>) -> PubSub {
    let mut ears = Client::open(redis.url()).unwrap().get_async_pubsub().await.unwrap();
    ears.subscribe("polylock:inbox:old").await.unwrap();
    let entry =
        |number| format!("{number:032x}:{number:032x} {mode} 1000 604800000 18 polylock:inbox:old {{}}");
    let entries: Vec<_> = numbers.map(entry).collect();
    let push = ["RPUSH", QUEUE].into_iter().chain(entries.iter().map(String::as_str));
    redis.call(&push.collect::<Vec<_>>()).await;
    ears
}

// ---- Waiters that do not answer ----

/// Subscribers to a pattern count among the receivers of a message.
#[tokio::test]
async fn dead_waiters_are_skipped_even_with_a_subscriber_to_all_channels() {
    let redis = start().await;
    let mut ears = Client::open(redis.url()).unwrap().get_async_pubsub().await.unwrap();
    ears.psubscribe("*").await.unwrap();
    let guard = take(&lasting(&redis).await, "a").await;
    // Together, their grace would be longer than a test is patient.
    for number in 0..40 {
        let entry = format!("{number:032x}:{number:032x} x 1000 604800000 19 polylock:inbox:dead {{}}");
        redis.call(&["RPUSH", QUEUE, &entry]).await;
    }
    let waiter = acquiring(lasting(&redis).await.mutex("a"));
    queue_is(&redis, 41).await;
    give_back(hand_over(guard, waiter).await).await;
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_waiter_at_the_head_costs_its_grace() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let redis = start().await;
    let holder = lasting(&redis).await;
    // One that sees the grace end, and one that has to know when it does.
    for next in [lasting(&redis).await, without(&redis, &["-client|tracking"]).await] {
        let guard = take(&holder, "a").await;
        let _stopped = silent_waiters(&redis, "x", 0..1).await;
        let waiter = acquiring(next.mutex("a"));
        queue_is(&redis, 2).await;
        let released = Instant::now();
        give_back(hand_over(guard, waiter).await).await;
        // Its clock is that of the server.
        assert!(released.elapsed() >= GRACE.mul_f64(0.95), "{:?}: it was not waited for", released.elapsed());
        nothing_is_left(&redis).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_the_right_to_publish_leaves_the_queue_unchanged() {
    let redis = start().await;
    let holder = take(&without(&redis, &["-publish"]).await, "a").await;
    let first = queue_up(&lasting(&redis).await, "a").await;
    let second = queue_up(&lasting(&redis).await, "a").await;
    let guard = hand_over(holder, first).await;
    assert_eq!(queued(&redis).await, 1, "the second keeps its place");
    give_back(hand_over(guard, second).await).await;
    nothing_is_left(&redis).await;
}

// ---- Waiters that keep their places ----

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_places_when_the_push_connection_is_cut() {
    let redis = start().await;
    let mut guard = take(&lasting(&redis).await, "a").await;
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(queue_up(&lasting(&redis).await, "a").await);
    }
    let listening =
        async || redis.call(&["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await.array().unwrap().len();
    for _ in 0..3 {
        assert_eq!(redis.call(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.int(), Some(3));
        until("they subscribe again", async || listening().await == 3).await;
    }
    assert_eq!(queued(&redis).await, 3);
    let mut last = Token::new(0);
    for waiter in waiters {
        guard = hand_over(guard, waiter).await;
        assert!(guard.token() > last, "out of order");
        last = guard.token();
    }
    give_back(guard).await;
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_places_while_the_server_refuses_writes() {
    if RedisServer::lacks("refusal of the writes of scripts while replicas are missing", (7, 0)) {
        return;
    }
    let redis = start().await;
    let guard = take(&lasting(&redis).await, "a").await;
    let first = queue_up(&lasting(&redis).await, "a").await;
    let second = queue_up(&lasting(&redis).await, "a").await;
    let owners = async || {
        let entries = redis.call(&["LRANGE", QUEUE, "0", "-1"]).await;
        let owner = |entry: &Reply| entry.text().unwrap().split(':').next().unwrap().to_owned();
        entries.array().unwrap().iter().map(owner).collect::<Vec<_>>()
    };
    let places = owners().await;
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    until("something is refused", async || {
        redis.text(&["INFO", "errorstats"]).await.contains("errorstat_NOREPLICAS")
    })
    .await;
    redis.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let asked = redis.calls_of("evalsha").await;
    until("both ask again", async || redis.calls_of("evalsha").await >= asked + 4).await;
    assert_eq!(owners().await, places, "a place was given up");
    give_back(hand_over(hand_over(guard, first).await, second).await).await;
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_goes_on_over_a_restart_of_the_server() {
    let redis = RedisServer::builder().appendonly(true).start().await.unwrap();
    let guard = take(&lasting(&redis).await, "a").await;
    let waiter = queue_up(&lasting(&redis).await, "a").await;
    redis.restart().await.unwrap();
    assert!(lasting(&redis).await.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(guard.is_valid() && !waiter.is_finished());
    let token = guard.token();
    let guard = hand_over(guard, waiter).await;
    assert!(guard.token() > token);
    give_back(guard).await;
    nothing_is_left(&redis).await;
}

// ---- Shares ----

#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_was_granted_by_half_is_taken_back() {
    let redis = start().await;
    let reader = without(&redis, &["-pexpireat"]).await;
    let error = soon(reader.rw("a").try_read()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    nothing_is_left(&redis).await;
}

/// As while a deployment raises the number.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_goes_past_many_waiters_for_a_smaller_number() {
    const OLD: usize = 40;
    let redis = start().await;
    let first = lasting(&redis).await.semaphore("a", 1).acquire().await.unwrap();
    let _ahead = silent_waiters(&redis, "1", 0..OLD).await;
    let (second, third) = (lasting(&redis).await.semaphore("a", 2), lasting(&redis).await.semaphore("a", 2));
    let second = second.try_acquire().await.unwrap().expect("one of two is out");
    let waiter = tokio::spawn(async move { third.acquire().await.unwrap() });
    queue_is(&redis, OLD + 1).await;
    let _behind = silent_waiters(&redis, "1", OLD..9 * OLD).await;
    give_back(second).await;
    // A release does not look so far back: the waiter asks by itself.
    let guard = come(waiter).await;
    assert!(first.is_valid() && guard.is_valid());
    assert_eq!(queued(&redis).await, 9 * OLD);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_for_a_permit_reads_little_of_a_long_queue() {
    let redis = start().await;
    let locks = lasting(&redis).await;
    let _first = locks.semaphore("a", 1).acquire().await.unwrap();
    let reads = async || redis.calls_of("lindex").await + redis.calls_of("lrange").await;
    let (mut waiters, mut old) = (Vec::new(), 0);
    for (more, passes, most) in [(250, true, 20), (750, false, 1)] {
        waiters.push(silent_waiters(&redis, "1", old..old + more).await);
        old += more;
        let before = reads().await;
        let permit = locks.semaphore("a", 2).try_acquire().await.unwrap();
        let reads = reads().await - before;
        assert!(reads <= most, "{reads} reads of a queue of {old}");
        assert_eq!(permit.is_some(), passes, "behind {old}");
        if let Some(permit) = permit {
            give_back(permit).await;
        }
    }
    assert_eq!(queued(&redis).await, old);
}
