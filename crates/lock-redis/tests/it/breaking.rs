//! Breaking locks: a request that is carried out late breaks no later holder.

use lock_core::{ErrorKind, GuardState, LossReason, Outcome};
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{give_back, soon, take, until};

use crate::common::{Link, RECIPES, client};

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
