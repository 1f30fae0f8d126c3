//! What the server pushes to the first waiter: that the lock is free, whoever freed it. And what is found out without pushes.

use std::time::Duration;

use lock_core::{Locks, Released};
use lock_testkit::{RedisServer, acquiring, come, give_back, hand_over, queue_up, soon, take, until};
use tokio::time::Instant;

use crate::common::{KEY, Link, Relay, client, connect, nothing_is_left, queue_is, url_without};

/// Waiters look by themselves too, this much later at the soonest.
// Time: nothing else shows whether a message came.
const PUSHED: Duration = Duration::from_millis(600);

/// What happens to a lock that a client of another library holds, and how many milliseconds later it is free by that.
const FOREIGN: &[(&[&str], u64)] = &[
    (&["DEL", KEY], 0),
    (&["UNLINK", KEY], 0),
    (&["FLUSHALL"], 0),
    (&["EXPIRE", KEY, "0"], 0),
    (&["RENAME", KEY, "elsewhere"], 0),
    (&["SET", KEY, "other", "XX", "PX", "150"], 150),
    (&["SET", KEY, "other", "PX", "150"], 150),
    (&["PEXPIRE", KEY, "150"], 150),
    (&["EVAL", "return redis.call('DEL', KEYS[1])", "1", KEY], 0),
];

/// Demands that this takes less time in one of some runs: noise only makes them longer.
async fn is_pushed(what: &str, most: Duration, mut run: impl AsyncFnMut() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..8 {
        took.push(run().await);
        if took.last() < Some(&most) {
            return;
        }
    }
    panic!("{what} was found out after {took:?}");
}

/// How long after this the lock of another client takes until a waiter has it.
async fn foreign(redis: &RedisServer, locks: &Locks, ttl: &[&str], action: &[&str]) -> Duration {
    redis.call(&[&["SET", KEY, "theirs"], ttl].concat()).await;
    let waiter = queue_up(locks, "a").await;
    let done = Instant::now();
    redis.call(action).await;
    let guard = come(waiter).await;
    let took = done.elapsed();
    give_back(guard).await;
    took
}

/// Demands that a waiter is notified of the release of this holder.
pub async fn releases_are_pushed(holder: &Locks, next: &Locks) {
    is_pushed("a release", PUSHED, async || {
        let guard = take(holder, "a").await;
        let waiter = acquiring(next.mutex("a"));
        until("it waits", async || holder.inspect("a").await.unwrap().waiters == 1).await;
        let released = Instant::now();
        let guard = hand_over(guard, waiter).await;
        let took = released.elapsed();
        give_back(guard).await;
        took
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_learns_by_push_what_clients_of_other_make_do() {
    let redis = RedisServer::start().await.unwrap();
    let locks = client(&redis, "ttl=60s").await;
    for ttl in [&[][..], &["PX", "60000"]] {
        for (action, later) in FOREIGN {
            // Time: the key ends that much later.
            let most = PUSHED + Duration::from_millis(*later);
            is_pushed(&format!("{action:?}"), most, async || foreign(&redis, &locks, ttl, action).await)
                .await;
        }
    }
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_learns_by_push_once_it_is_the_first() {
    let redis = RedisServer::start().await.unwrap();
    let (first, second) = (client(&redis, "ttl=60s").await, client(&redis, "ttl=60s").await);
    is_pushed("a release after another waiter left", PUSHED, async || {
        redis.call(&["SET", KEY, "theirs"]).await;
        let (leaver, waiter) = (queue_up(&first, "a").await, queue_up(&second, "a").await);
        leaver.abort();
        queue_is(&redis, 1).await;
        let deleted = Instant::now();
        redis.call(&["DEL", KEY]).await;
        let guard = come(waiter).await;
        let took = deleted.elapsed();
        give_back(guard).await;
        took
    })
    .await;
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tracking_a_foreign_release_is_found_within_the_cap() {
    if RedisServer::lacks("rights to a subcommand alone", (7, 0)) {
        return;
    }
    let redis = RedisServer::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=60s", url_without(&redis, &["-client|tracking"]).await)).await;
    foreign(&redis, &locks, &[], &["DEL", KEY]).await;
    releases_are_pushed(&client(&redis, "ttl=60s").await, &locks).await;
    nothing_is_left(&redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_resp3_a_foreign_release_is_found_within_the_cap() {
    // No ACL forbids HELLO.
    let redis = RedisServer::builder().without_commands(&["HELLO"]).start().await.unwrap();
    let locks = client(&redis, "ttl=60s").await;
    foreign(&redis, &locks, &[], &["DEL", KEY]).await;
    assert!(redis.text(&["INFO", "clients"]).await.contains("tracking_clients:0"));
    releases_are_pushed(&client(&redis, "ttl=60s").await, &locks).await;
    nothing_is_left(&redis).await;
}

/// Waits until there are more requests than of one waiter that is notified: that asks once a second.
async fn polls(redis: &RedisServer) {
    let asked = redis.calls_of("evalsha").await;
    until("a waiter polls", async || redis.calls_of("evalsha").await > asked + 45).await;
}

/// Demands that a waiter of this client polls: it is in no queue.
async fn has_to_poll(redis: &RedisServer, locks: &Locks) {
    let guard = take(&client(redis, "ttl=60s").await, "a").await;
    let waiter = acquiring(locks.mutex("a"));
    polls(redis).await;
    queue_is(redis, 0).await;
    give_back(hand_over(guard, waiter).await).await;
    nothing_is_left(redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_commands_to_notify_waiters_they_poll() {
    let redis = RedisServer::builder().without_commands(&["PUBLISH", "PUBSUB"]).start().await.unwrap();
    has_to_poll(&redis, &client(&redis, "ttl=60s").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_resp3_and_the_right_to_publish_they_poll() {
    let redis = RedisServer::builder().without_commands(&["HELLO"]).start().await.unwrap();
    has_to_poll(&redis, &connect(&url_without(&redis, &["-publish"]).await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_poll_once_the_right_to_publish_is_withdrawn() {
    let redis = RedisServer::start().await.unwrap();
    let guard = take(&client(&redis, "ttl=60s").await, "a").await;
    let waiter = queue_up(&connect(&format!("{}?ttl=60s", url_without(&redis, &[]).await)).await, "a").await;
    redis.call(&["ACL", "SETUSER", "worker", "-@pubsub"]).await;
    // It keeps its place.
    polls(&redis).await;
    queue_is(&redis, 1).await;
    give_back(hand_over(guard, waiter).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_a_shared_lock_do_not_keep_the_first_waiter_awake() {
    let link = Link::with("ttl=60s").await;
    let mut held = Vec::new();
    for _ in 0..8 {
        // Time: renewals have to come often.
        held.push(client(&link.redis, "ttl=600ms").await.rw("a").read().await.unwrap());
    }
    let waiter = queue_up(&link.locks, "a").await;
    link.proxy.reset_counters();
    let (before, began) = (link.redis.calls_of("evalsha").await, Instant::now());
    until("there are many renewals", async || link.redis.calls_of("evalsha").await > before + 100).await;
    let requests = link.proxy.requests();
    // Among those are its looks every second or two.
    assert!(requests <= 15 + 15 * began.elapsed().as_secs(), "{requests} in {:?}", began.elapsed());
    // And yet it learns what no notification reports.
    link.redis.call(&["DEL", KEY]).await;
    give_back(come(waiter).await).await;
    for guard in held {
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
}

/// By whose address another server is reached, as after a failover behind a name: it takes who is not subscribed there for dead.
#[tokio::test(flavor = "multi_thread")]
async fn pushes_follow_the_requests_to_another_server_of_the_same_address() {
    let (old, new) = (RedisServer::start().await.unwrap(), RedisServer::start().await.unwrap());
    let relay = Relay::start(old.addr(), None).await;
    let locks = connect(&format!("{}?ttl=60s", relay.url())).await;
    let guard = take(&client(&old, "ttl=60s").await, "a").await;
    // It listens from now on.
    let waiter = queue_up(&locks, "a").await;
    give_back(hand_over(guard, waiter).await).await;
    let inbox = old.call(&["PUBSUB", "CHANNELS", "polylock:inbox:*"]).await;
    let inbox = inbox.array().unwrap()[0].text().unwrap();

    // A push connection that leads to a replica is of no use, also where the address is that of the master.
    let new_port = new.port().to_string();
    old.call(&["REPLICAOF", "127.0.0.1", &new_port]).await;
    relay.leads_to(&[new.addr(), old.addr(), new.addr()]);
    // As a server closes what is idle: subscribers are spared.
    old.call(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until("it requests something of the new server", async || locks.inspect("a").await.is_ok()).await;
    let guard = take(&client(&new, "ttl=60s").await, "a").await;
    let waiter = acquiring(locks.mutex("a"));
    until("the new server has its inbox", async || {
        new.call(&["PUBSUB", "NUMSUB", inbox]).await.array().unwrap()[1].int() == Some(1)
    })
    .await;
    give_back(hand_over(guard, waiter).await).await;
    releases_are_pushed(&client(&new, "ttl=60s").await, &locks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_message_costs_no_more_than_the_cap() {
    let link = Link::with("ttl=60s").await;
    let guard = take(&link.direct().await, "a").await;
    let (mut deaf, mut behind) =
        (queue_up(&link.locks, "a").await, queue_up(&link.direct().await, "a").await);
    link.proxy.lose_pushes(true);
    give_back(guard).await;
    // The next waiter waits for the grace of the deaf one. The deaf one may happen to ask meanwhile.
    let either = async {
        tokio::select! {
            held = &mut behind => (held.unwrap(), deaf),
            held = &mut deaf => (held.unwrap(), behind),
        }
    };
    let (guard, other) = soon(either).await;
    give_back(hand_over(guard, other).await).await;
    link.nothing_is_left().await;
}
