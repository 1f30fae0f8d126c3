//! The lock goes from task to task of one process.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::{Guard, GuardState, LockOptions, LossReason, Released, Token};
use lock_testkit::proxy::{Direction, Then, redis_command};
use lock_testkit::{acquiring, come, give_back, hand_over, is_renewed, queue_up, soon, take, until};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

use crate::common::{KEY, Link, connect, holder, queue_is};

async fn start() -> Link {
    // Time: some requests are not answered.
    Link::with("ttl=60s&command_timeout=400ms").await
}

/// A task that waits behind the holder.
async fn heir(link: &Link, options: LockOptions) -> JoinHandle<Guard> {
    let heir = acquiring(link.locks.mutex_with("a", options).unwrap());
    until("it waits", async || link.locks.inspect("a").await.unwrap().waiters == 1).await;
    heir
}

/// The options of a task to which only the server hands over.
fn heir_of_its_own(number: usize) -> LockOptions {
    LockOptions::new().label(format!("heir {number}"))
}

/// Tasks that want the lock, in this order, and report when they have it: on the same terms, or each with a label of its own.
async fn tasks(link: &Link, count: usize, labelled: bool, sender: &UnboundedSender<(usize, Token)>) {
    for number in 0..count {
        let options = if labelled { heir_of_its_own(number) } else { LockOptions::new() };
        let (mutex, sender) = (link.locks.mutex_with("a", options).unwrap(), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            sender.send((number, guard.token())).unwrap();
            give_back(guard).await;
        });
        until("it waits", async || link.locks.inspect("a").await.unwrap().waiters > number).await;
    }
}

/// Sixteen tasks have the lock in a row, without a request or for one each. A busy machine may end a series by its time.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_take_turns_at_one_request_each_or_none() {
    const TASKS: usize = 40;
    for (labelled, each) in [(false, 0), (true, TASKS - TASKS / 16)] {
        // Half of what it costs without: a release, a claim of three commands, and a notification. The harness judges it exactly.
        let wanted = (each + TASKS * 3 / 2) as u64;
        let mut least = u64::MAX;
        for _ in 0..20 {
            least = least.min(requests_for_tasks(TASKS, labelled).await);
            if least <= wanted {
                break;
            }
        }
        assert!(least <= wanted, "labelled {labelled}: {least} requests, and not {wanted}");
        assert!(least > each as u64, "labelled {labelled}: only {least}: a series never ended");
    }
}

async fn requests_for_tasks(count: usize, labelled: bool) -> u64 {
    let link = start().await;
    let guard = take(&link.locks, "a").await;
    let (sender, mut turns) = mpsc::unbounded_channel();
    tasks(&link, count, labelled, &sender).await;
    link.proxy.reset_counters();
    let mut last = guard.token();
    give_back(guard).await;
    for expected in 0..count {
        let (number, token) = soon(turns.recv()).await.unwrap();
        assert_eq!(number, expected);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    link.nothing_is_left().await;
    link.proxy.requests()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_waits_for_sixteen_tasks_at_most() {
    for labelled in [false, true] {
        let (link, (sender, mut turns)) = (start().await, mpsc::unbounded_channel());
        let guard = take(&link.locks, "a").await;
        tasks(&link, 50, labelled, &sender).await;
        let (mutex, of_other) = (link.direct().await.mutex("a"), sender);
        let waiter = tokio::spawn(async move {
            for _ in 0..2 {
                let guard = mutex.acquire().await.unwrap();
                of_other.send((usize::MAX, guard.token())).unwrap();
                give_back(guard).await;
            }
        });
        queue_is(&link.redis, 1).await;
        give_back(guard).await;
        let (mut rows, mut row, mut last) = (Vec::new(), 1, Token::new(0));
        while let Some((number, token)) = soon(turns.recv()).await {
            assert!(token > last, "{token} after {last}");
            last = token;
            row += 1;
            if number == usize::MAX {
                rows.push(row - 1);
                row = 0;
            }
        }
        come(waiter).await;
        // The second time, it may come late: the tasks that it found done do not count.
        assert!((2..=16).contains(&rows[0]) && rows.len() == 2, "{rows:?}");
        link.nothing_is_left().await;
    }
}

/// What the store keeps while the lock goes from task to task: one lease, and the token of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_passed_on_is_the_same_lock_for_the_server() {
    let link = start().await;
    let guard = take(&link.locks, "a").await;
    let (token, owner) = (guard.token(), guard.owner());
    let next = heir(&link, LockOptions::new()).await;
    link.proxy.reset_counters();
    let guard = hand_over(guard, next).await;
    assert_eq!(link.proxy.requests(), 0);
    assert_eq!((guard.token().get(), guard.owner()), (token.get() + 1, owner));
    assert_eq!(link.locks.inspect("a").await.unwrap().holders[0].token, Some(token));
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);

    // A holder that changes the lease, or the tokens, keeps it to itself.
    let next = heir(&link, LockOptions::new()).await;
    guard.extend(Duration::from_secs(50)).await.unwrap();
    let guard = hand_over(guard, next).await;
    assert_ne!(guard.owner(), owner);
    let (next, owner, floor) =
        (heir(&link, LockOptions::new()).await, guard.owner(), guard.token().get() + 9);
    guard.raise_token(Token::new(floor)).await.unwrap();
    let guard = hand_over(guard, next).await;
    assert_ne!(guard.owner(), owner);
    assert!(guard.token().get() > floor);

    // Who breaks it breaks the lease of them all. A series ends by its time, too, so this is the first hand-over of one.
    give_back(guard).await;
    let guard = take(&link.locks, "a").await;
    let next = heir(&link, LockOptions::new()).await;
    let shown = link.locks.inspect("a").await.unwrap().holders[0].token.unwrap();
    let guard = hand_over(guard, next).await;
    assert!(link.locks.break_lock_if("a", shown).await.unwrap());
    assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    link.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_local_hand_overs_every_task_asks_the_server() {
    let link = Link::with("ttl=60s&local_handovers=0").await;
    let guard = take(&link.locks, "a").await;
    let next = heir(&link, LockOptions::new()).await;
    link.proxy.reset_counters();
    let guard = hand_over(guard, next).await;
    assert!(link.proxy.requests() >= 2, "a release and an acquisition");

    let next = heir(&link, LockOptions::new()).await;
    let other = queue_up(&link.direct().await, "a").await;
    let guard = hand_over(guard, other).await;
    assert!(!next.is_finished());
    give_back(hand_over(guard, next).await).await;
    link.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_is_handed_over_as_well() {
    for (options, requests) in [(LockOptions::new(), 0), (heir_of_its_own(0), 1)] {
        let link = start().await;
        let guard = take(&link.locks, "a").await;
        let next = heir(&link, options).await;
        link.proxy.reset_counters();
        drop(guard);
        let guard = come(next).await;
        assert_eq!(link.proxy.requests(), requests);
        assert_eq!(holder(&link.redis).await, guard.owner().to_string());
        give_back(guard).await;
        link.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_without_an_answer_ends_right() {
    for fault in ["hang", "reset", "cut"] {
        let link = start().await;
        let guard = take(&link.locks, "a").await;
        let next = heir(&link, heir_of_its_own(0)).await;
        let token = guard.token();
        match fault {
            "hang" => link.proxy.swallow_when(redis_command("EVALSHA"), Then::Hang),
            "reset" => link.proxy.swallow_when(redis_command("EVALSHA"), Then::Reset),
            _ => link.proxy.cut_when(redis_command("EVALSHA")),
        }
        // Whether it is known at once or in the background, it has been released.
        let _ = guard.release().await;
        assert_eq!(link.proxy.fired(), 1, "{fault}");
        let guard = come(next).await;
        assert!(guard.token() > token, "{fault}");
        // What cleans up, until the queue of requests is empty, does not hit the holder.
        link.locks.inspect("b").await.unwrap();
        assert_eq!(holder(&link.redis).await, guard.owner().to_string(), "{fault}: two hold the lock");
        give_back(guard).await;
        link.nothing_is_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lock_is_not_handed_over() {
    let link = start().await;
    let guard = take(&link.locks, "a").await;
    let next = heir(&link, heir_of_its_own(0)).await;
    link.redis.call(&["SET", KEY, "theirs", "PX", "60000"]).await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    queue_is(&link.redis, 1).await;
    assert!(!next.is_finished());
    assert_eq!(holder(&link.redis).await, "theirs");
    link.redis.call(&["DEL", KEY]).await;
    give_back(come(next).await).await;
    link.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_the_heir_count() {
    let link = start().await;
    let pttl = async || link.redis.call(&["PTTL", KEY]).await.int().unwrap();
    // Time: that it ends is the point.
    let short = Duration::from_millis(700);

    let next = (take(&link.locks, "a").await, heir(&link, LockOptions::new().fixed_ttl(short)).await);
    link.proxy.reset_counters();
    let guard = hand_over(next.0, next.1).await;
    assert!((1..=700).contains(&pttl().await));
    assert_eq!(soon(guard.lost()).await, LossReason::DeadlinePassed);
    assert_eq!(link.proxy.requests(), 1, "handed over, and never renewed");
    drop(guard);
    link.nothing_is_left().await;

    let next = (take(&link.locks, "a").await, heir(&link, LockOptions::new().max_hold(short)).await);
    let guard = hand_over(next.0, next.1).await;
    assert_eq!(soon(guard.lost()).await, LossReason::MaxHold);
    drop(guard);
    link.nothing_is_left().await;

    // And those of the holder do not.
    let fixed = link.locks.mutex_with("a", LockOptions::new().fixed_ttl(Duration::from_secs(10))).unwrap();
    let guard = soon(fixed.acquire()).await.unwrap();
    let next = heir(&link, LockOptions::new().ttl(Duration::from_secs(60)).label("heir")).await;
    let guard = hand_over(guard, next).await;
    assert!((50_000..=60_000).contains(&pttl().await));
    let state = link.locks.inspect("a").await.unwrap();
    assert!(state.holder().unwrap().to_string().contains("heir"));
    give_back(guard).await;
}

/// The release waits for a renewal that is under way, and is given up then.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_after_a_release_that_was_dropped_during_a_renewal_is_renewed() {
    let link = start().await;
    let locks = connect(&format!("redis://{}?ttl=6s", link.proxy.addr())).await;
    let guard = take(&locks, "a").await;
    link.proxy.hold(Direction::ToServer);
    until("a renewal is on its way", async || link.proxy.queued(Direction::ToServer) > 0).await;
    // Another label: else the task would get it without a request.
    let next = acquiring(locks.mutex_with("a", LockOptions::new().label("heir")).unwrap());
    assert!(pin!(guard.release()).now_or_never().is_none());
    link.proxy.heal();
    let guard = come(next).await;
    for _ in 0..3 {
        is_renewed(&guard).await;
    }
    give_back(guard).await;
    link.nothing_is_left().await;
}
