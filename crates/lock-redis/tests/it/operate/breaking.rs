//! Breaking locks: a request that is carried out late breaks no later holder.

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LockOptions, LossReason, Outcome};
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{give_back, soon, take, until};

use crate::common::{Link, RECIPES, client, connect, url_without};

#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_is_carried_out_late_leaves_the_next_holder_its_lock() {
    for recipe in RECIPES {
        // Time: it is given up.
        let link = Link::with(&format!("ttl=30s&command_timeout=2s&{recipe}")).await;
        let direct = client(&link.redis, &format!("ttl=30s&{recipe}")).await;
        let broken = take(&direct, "a").await;
        // The lock is looked at; the request that breaks it is on its way for long.
        link.proxy.hold_after(redis_command("EVALSHA"));
        let error = soon(link.locks.break_lock("a")).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
        assert!(link.proxy.queued(Direction::ToServer) > 0);
        give_back(broken).await;
        let next = take(&direct, "a").await;
        let before = link.redis.calls_of("evalsha").await;
        link.proxy.deliver();
        until("it is carried out", async || link.redis.calls_of("evalsha").await > before).await;
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "{recipe}: another holder was broken");
        give_back(next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_answer_was_lost_is_sent_again_and_breaks_what_was_seen() {
    let link = Link::with("ttl=30s&command_timeout=10s").await;
    let direct = link.direct().await;
    for lost in [1, 2] {
        let broken = take(&direct, "a").await;
        link.proxy.cut_after_request(lost);
        assert!(link.locks.break_lock("a").await.unwrap(), "the answer to request {lost} was lost");
        assert!(!direct.inspect("a").await.unwrap().is_held());
        assert_eq!(broken.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_at_least_for_a_time_is_broken_by_its_token() {
    for recipe in RECIPES {
        let link = Link::with(recipe).await;
        let options = LockOptions::new().hold_at_least(Duration::from_secs(60));
        let guard = soon(link.locks.mutex_with("a", options).unwrap().acquire()).await.unwrap();
        let token = guard.token();
        give_back(guard).await;
        let seen = link.locks.inspect("a").await.unwrap();
        assert_eq!(seen.holders[0].token, Some(token), "{recipe}");
        assert!(link.locks.break_lock_if("a", token).await.unwrap(), "{recipe}");
        assert!(!link.locks.inspect("a").await.unwrap().is_held(), "{recipe}");
    }
}

/// A further sharer, or the confirmation of a grant, is no other holder: what is told has to be what is so.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_was_lost_is_not_taken_for_done_as_the_value_has_changed() {
    let link = Link::with("ttl=30s&command_timeout=10s").await;
    let direct = link.direct().await;
    let first = direct.rw("a").read().await.unwrap();
    // The lock is looked at; the request that breaks it is lost on its way, and is sent again.
    link.proxy.hold_after(redis_command("EVALSHA"));
    let locks = link.locks.clone();
    let breaking = tokio::spawn(async move { locks.break_lock("a").await });
    until("it is on its way", async || link.proxy.queued(Direction::ToServer) > 0).await;
    let second = client(&link.redis, "ttl=60s").await.rw("a").read().await.unwrap();
    link.proxy.black_hole(Direction::ToServer, true);
    link.proxy.deliver();
    until("it is lost", async || link.proxy.queued(Direction::ToServer) == 0).await;
    link.proxy.black_hole(Direction::ToServer, false);
    assert!(soon(breaking).await.unwrap().unwrap());
    for guard in [first, second] {
        assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    }
}

/// What is refused halfway has been applied halfway.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_says_that_nothing_was_applied_only_if_that_is_so() {
    let redis = lock_testkit::RedisServer::start().await.unwrap();
    let locks = connect(&format!("{}?ttl=60s", url_without(&redis, &[]).await)).await;
    let refuse =
        async |command: &str| drop(redis.call(&["ACL", "SETUSER", "worker", "+@all", command]).await);

    let guard = take(&locks, "a").await;
    refuse("-lrange").await;
    let error = locks.break_lock("a").await.unwrap_err();
    assert!(!redis.has_key("lock:a").await);
    assert_ne!(error.outcome(), Outcome::NotApplied, "the lock is broken: {error}");
    drop(guard);

    refuse("+lrange").await;
    let reader = locks.rw("a").read().await.unwrap();
    refuse("-lrange").await;
    let error = reader.release().await.unwrap_err();
    assert!(!redis.has_key("lock:a").await);
    assert_ne!(error.outcome(), Outcome::NotApplied, "the share is released: {error}");

    refuse("+lrange").await;
    let reader = locks.rw("a").read().await.unwrap();
    refuse("-set").await;
    // Time: the share is shortened.
    let error = reader.extend(Duration::from_secs(4)).await.unwrap_err();
    let scores = redis.call(&["ZRANGE", "polylock:holders:{lock:a}", "0", "-1", "WITHSCORES"]).await;
    let ends: i64 = scores.array().unwrap()[1].text().unwrap().parse().unwrap();
    let time = redis.call(&["TIME"]).await;
    let now: i64 = time.array().unwrap()[0].text().unwrap().parse().unwrap();
    assert!(ends / 1000 <= now + 5, "it is shorter on the server");
    assert_ne!(error.outcome(), Outcome::NotApplied, "{error}");
    // Time: it is not valid for longer than the server keeps it.
    assert!(reader.remaining() <= Duration::from_secs(4), "{:?}", reader.remaining());
}
