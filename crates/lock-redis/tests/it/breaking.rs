//! Breaking locks: a request that is carried out late breaks no later holder.

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, Outcome};
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{give_back, until};
use tokio::time::timeout;

use crate::common::{Link, connect};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_break_that_is_carried_out_late_leaves_the_next_holder_its_lock() {
    for recipe in ["recipe=set-nx-px", "recipe=setnx-timestamp&clock_skew=50ms"] {
        let link = Link::with(&format!("ttl=30s&command_timeout=2s&{recipe}")).await;
        let direct = connect(&format!("{}?ttl=30s&{recipe}", link.redis.url())).await;
        let broken = direct.mutex("a").acquire().await.unwrap();
        // The lock is looked at; the request that breaks it is on its way for long.
        link.proxy.hold_after(redis_command("EVALSHA"));
        let error = timeout(PATIENCE, link.locks.break_lock("a")).await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::Unknown), "{error}");
        assert!(link.proxy.queued(Direction::ToServer) > 0);
        give_back(broken).await;
        let next = direct.mutex("a").acquire().await.unwrap();
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
    let direct = connect(&format!("{}?ttl=30s", link.redis.url())).await;
    for lost in [1, 2] {
        let broken = direct.mutex("a").acquire().await.unwrap();
        link.proxy.cut_after_request(lost);
        assert!(link.locks.break_lock("a").await.unwrap(), "the answer to request {lost} was lost");
        assert!(!direct.inspect("a").await.unwrap().is_held());
        assert_eq!(broken.verify().await.unwrap(), GuardState::Lost(lock_core::LossReason::Removed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken_for_all_who_share_it() {
    let link = Link::with("ttl=30s").await;
    let lock = link.locks.rw("a");
    let readers =
        [lock.read().await.unwrap(), connect(&link.redis.url()).await.rw("a").read().await.unwrap()];
    assert!(link.locks.break_lock("a").await.unwrap());
    let writer = lock.write().await.unwrap();
    for reader in &readers {
        assert_eq!(reader.verify().await.unwrap(), GuardState::Lost(lock_core::LossReason::Removed));
    }
    give_back(writer).await;
    assert!(!link.locks.break_lock("a").await.unwrap(), "it is free");
}
