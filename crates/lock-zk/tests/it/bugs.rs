//! The bugs of other lock libraries, by the numbers of docs/BUGS.md. What other tests prove is not repeated here.

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, LockOptions, Outcome, Persistence};
use lock_testkit::proxy::{Direction, Then, opcode, zk_opcode};
use lock_zk::zookeeper_client::{Permission, Stat};
use tokio::time::{sleep, timeout};

use crate::common::*;

/// The only node of the lock `a`.
async fn only_node(scene: &Scene) -> Stat {
    until_children(&scene.client, "a", 1).await;
    scene.client.check_stat(&node(&scene.client, 0).await).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b01_a_waiter_that_fails_leaves_nothing() {
    let scene = Scene::new().await;
    let (first, third) = (take(&scene.other, "a").await, scene.connect().await);
    let second = queue_up(&scene.locks, "a").await;
    let strict = third.mutex_with("a", LockOptions::new().persistence(Persistence::Strict)).unwrap();
    let strict = tokio::spawn(async move { strict.acquire().await });
    until_children(&scene.client, "a", 3).await;
    settled().await;
    // The third wants to look at the queue again as the first goes, and may not.
    allow(&scene, Permission::CREATE | Permission::DELETE).await;
    let second = hand_over(first, second).await;
    assert_eq!(come(strict).await.unwrap_err().kind(), ErrorKind::Denied);
    allow(&scene, Permission::ALL).await;
    until_children(&scene.client, "a", 1).await;
    give_back(second).await;
    scene.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b02_a_release_that_is_refused_goes_on() {
    let scene = Scene::new().await;
    for drops in [false, true] {
        let guard = take(&scene.locks, "a").await;
        allow(&scene, Permission::READ | Permission::CREATE).await;
        if drops {
            drop(guard);
            settled().await;
        } else {
            let error = guard.release().await.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
            let text = "the ACL of /locks/a does not grant the right to delete";
            assert!(error.to_string().contains(text), "{error}");
        }
        assert_eq!(children(&scene.client, "a").await.len(), 1);
        allow(&scene, Permission::ALL).await;
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b05_no_wake_up_is_lost_between_the_look_and_the_watch() {
    // A second look, which would hide it, comes later than its turn.
    let scene = Scene::with(LASTING, Default::default()).await;
    let third = scene.connect().await;
    // Time: the watch is set in steps within this delay.
    scene.proxy.delay(Direction::ToServer, Duration::from_millis(4));
    for step in 0..40 {
        let first = take(&scene.other, "a").await;
        let second = queue_up(&third, "a").await;
        let last = acquiring(scene.locks.mutex("a"));
        until_children(&scene.client, "a", 3).await;
        // Time: it has listed the queue, and is about to watch the nodes ahead.
        sleep(Duration::from_micros(step * 200)).await;
        let second = hand_over(first, second).await;
        give_back(hand_over(second, last).await).await;
    }
    scene.is_clean().await;
}

/// What is left of a failure is looked for among the nodes of its session, which may hold locks of the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn z09_a_failed_acquisition_takes_no_lock_of_its_neighbour() {
    for layout in LAYOUTS {
        let scene = Scene::with(TIMEOUT, layout).await;
        let alike = async || opened(&through(&scene.proxy).layout(layout).private_session(false)).await;
        let (one, two) = (alike().await, alike().await);
        for then in [Then::Reset, Then::Hang] {
            let guard = take(&one, "a").await;
            let own = only_node(&scene).await;
            lose(&scene.proxy, Some(then), enters());
            // Time: long enough for a creation, and given up.
            let failed = timeout(Duration::from_millis(300), two.mutex("a").acquire()).await;
            assert!(failed.is_err(), "{layout:?}: it got a lock that is held");
            assert_eq!(scene.proxy.fired(), 1);
            assert_eq!(only_node(&scene).await.czxid, own.czxid, "{layout:?}");
            assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

/// However many were ahead: the listing is made before the turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn z10_a_hand_over_lists_nothing() {
    let scene = Scene::with(LASTING, Default::default()).await;
    mkdir(&scene.client, "/locks/a").await;
    for ahead in [1, 2, 20] {
        let mut nodes = Vec::new();
        for _ in 0..ahead {
            nodes.push(foreign(&scene.client, "lock-").await);
        }
        let waiter = queue_up(&scene.locks, "a").await;
        settled().await;
        let predecessor = nodes.pop().unwrap();
        for node in nodes {
            scene.client.delete(&node, None).await.unwrap();
        }
        settled().await;
        lose(&scene.proxy, None, zk_opcode(opcode::GET_CHILDREN2));
        scene.client.delete(&predecessor, None).await.unwrap();
        give_back(come(waiter).await).await;
        assert_eq!(scene.proxy.fired(), 0, "the queue was listed again, with {ahead} ahead");
        scene.proxy.heal();
    }
}
