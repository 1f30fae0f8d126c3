//! The bugs of other lock libraries, by the numbers of docs/BUGS.md. What other tests prove is not repeated here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use lock_core::{ErrorKind, Guard, GuardState, LockOptions, LossReason, Outcome, Persistence, Released};
use lock_testkit::cancel_after;
use lock_testkit::proxy::{Direction, Then, opcode, zk_opcode};
use lock_zk::zookeeper_client::{Acl, AuthId, Permission};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

/// Leaves everybody these rights on the directory of the lock `a`.
async fn allow(scene: &Scene, rights: Permission) {
    let acl = [Acl::new(rights | Permission::ADMIN, AuthId::anyone())];
    scene.client.set_acl("/locks/a", &acl, None).await.unwrap();
}

async fn only_node(scene: &Scene) -> String {
    let children = children(&scene.client, "a").await;
    assert_eq!(children.len(), 1, "{children:?}");
    format!("/locks/a/{}", children[0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b01_a_waiter_that_fails_leaves_nothing() {
    let scene = Scene::new().await;
    let (second, third) = (connect(&scene.server).await, connect(&scene.server).await);
    let first = scene.other.mutex("a").acquire().await.unwrap();
    let second = tokio::spawn(async move { (second.mutex("a").acquire().await, second) });
    until_children(&scene.client, "a", 2).await;
    let strict = third.mutex_with("a", LockOptions::new().persistence(Persistence::Strict)).unwrap();
    let third = tokio::spawn(async move { (strict.acquire().await, third) });
    until_children(&scene.client, "a", 3).await;
    sleep(Duration::from_millis(100)).await;
    // The third wants to look at the queue again as the first goes, and may not.
    allow(&scene, Permission::CREATE | Permission::DELETE).await;
    first.release().await.unwrap();
    let (second, _two) = timeout(PATIENCE, second).await.unwrap().unwrap();
    let (third, _three) = timeout(PATIENCE, third).await.unwrap().unwrap();
    assert_eq!(third.unwrap_err().kind(), ErrorKind::Denied);
    allow(&scene, Permission::ALL).await;
    until_children(&scene.client, "a", 1).await;
    assert_eq!(second.unwrap().release().await.unwrap(), Released::Released);
    scene.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b02_a_release_that_is_refused_goes_on() {
    let scene = Scene::new().await;
    for drops in [false, true] {
        let guard = scene.locks.mutex("a").acquire().await.unwrap();
        allow(&scene, Permission::READ | Permission::CREATE).await;
        if drops {
            drop(guard);
            sleep(Duration::from_millis(100)).await;
        } else {
            let error = guard.release().await.unwrap_err();
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::NotApplied), "{error}");
            assert!(
                error.to_string().contains("the ACL of /locks/a does not grant the right to delete"),
                "{error}"
            );
        }
        assert_eq!(children(&scene.client, "a").await.len(), 1);
        allow(&scene, Permission::ALL).await;
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b03_the_node_of_a_dying_session_is_not_adopted() {
    for layout in LAYOUTS {
        let scene = Scene::with(SHORT, layout).await;
        drop(scene.locks.mutex("a").acquire().await.unwrap());
        scene.is_clean().await;
        scene.proxy.reset_counters();
        scene.proxy.swallow_when(enters(), Then::Hang);
        let mutex = scene.locks.mutex("a");
        let waiter = tokio::spawn(async move {
            loop {
                match mutex.acquire().await {
                    Err(error) if error.is_retryable() => {}
                    outcome => return outcome,
                }
            }
        });
        until_children(&scene.client, "a", 1).await;
        // The answer is lost a moment after others see the node.
        let lost = async {
            while scene.proxy.fired() == 0 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, lost).await.unwrap();
        let old = scene.client.check_stat(&only_node(&scene).await).await.unwrap().unwrap();
        scene.black_hole(true);
        scene.proxy.refuse(true);
        // The session is lost by the deadline of the client, while the server still has its node.
        sleep(SHORT * 4 / 5).await;
        scene.proxy.heal();
        // And the next session has to look for its own.
        scene.proxy.swallow_when(enters(), Then::Reset);
        let guard = timeout(PATIENCE, waiter).await.unwrap().unwrap().unwrap();
        let new = scene.client.check_stat(&only_node(&scene).await).await.unwrap().unwrap();
        assert_ne!(new.ephemeral_owner, old.ephemeral_owner, "{layout:?}");
        assert!(new.czxid > old.czxid, "{layout:?}");
        assert_eq!(scene.locks.inspect("a").await.unwrap().token, Some(guard.token()));
        give_back(guard).await;
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b05_no_wake_up_is_lost_between_the_look_and_the_watch() {
    let scene = Scene::new().await;
    let third = connect(&scene.server).await;
    scene.proxy.delay(Direction::ToServer, Duration::from_millis(4));
    for step in 0..40 {
        let first = scene.other.mutex("a").acquire().await.unwrap();
        let second = {
            let third = third.clone();
            tokio::spawn(async move { third.mutex("a").acquire().await.unwrap() })
        };
        until_children(&scene.client, "a", 2).await;
        let mutex = scene.locks.mutex("a");
        let last = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_children(&scene.client, "a", 3).await;
        // It has listed the queue, and is about to watch the nodes ahead.
        sleep(Duration::from_micros(step * 200)).await;
        first.release().await.unwrap();
        let second = timeout(PATIENCE, second).await.unwrap().unwrap();
        second.release().await.unwrap();
        let last = timeout(PATIENCE, last).await.expect("a wake-up was lost").unwrap();
        last.release().await.unwrap();
    }
    scene.is_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b07_a_mutex_is_used_again_whatever_happened() {
    let scene = Scene::new().await;
    let mutex = scene.locks.mutex("a");
    let works = async || {
        let guard = mutex.acquire().await.unwrap();
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(scene.other.mutex("a").try_acquire().await.unwrap().is_none());
        assert_eq!(children(&scene.client, "a").await.len(), 1);
        guard
    };
    let released = async |guard: Guard| give_back(guard).await;
    released(works().await).await;
    released(works().await).await;
    let theirs = scene.other.mutex("a").acquire().await.unwrap();
    assert!(mutex.try_acquire().await.unwrap().is_none());
    assert!(mutex.try_acquire_for(Duration::from_millis(200)).await.unwrap().is_none());
    assert!(cancel_after(3, mutex.acquire()).await.is_none());
    released(theirs).await;
    let guard = works().await;
    scene.client.delete(&only_node(&scene).await, None).await.unwrap();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), LossReason::Removed);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    drop(works().await);
    released(works().await).await;
    scene.is_clean().await;
}

/// Of one client, and of two that were made alike and so have one session.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b15_waiters_of_one_process_have_nothing_in_common() {
    for layout in LAYOUTS {
        let server = server().await;
        let alike = async || config(&server).layout(layout).private_session(false).connect().await.unwrap();
        let (one, two) = (alike().await, alike().await);
        let guard = one.mutex("a").acquire().await.unwrap();
        for locks in [&one, &two] {
            assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        }
        let inside = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = [&one, &two, &one, &two, &one, &two]
            .into_iter()
            .map(|locks| {
                let (mutex, inside) = (locks.mutex("a"), Arc::clone(&inside));
                tokio::spawn(async move {
                    let guard = mutex.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    sleep(Duration::from_millis(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let token = guard.token();
                    give_back(guard).await;
                    token
                })
            })
            .collect();
        sleep(Duration::from_millis(100)).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "{layout:?}");
        let mut tokens = vec![guard.token()];
        give_back(guard).await;
        for waiter in waiters {
            tokens.push(timeout(PATIENCE, waiter).await.unwrap().unwrap());
        }
        tokens.sort_unstable();
        assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    }
}

/// What is left of a failure is looked for among the nodes of its session, which may hold locks of the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn z09_a_failed_acquisition_takes_no_lock_of_its_neighbour() {
    for layout in LAYOUTS {
        let scene = Scene::with(TIMEOUT, layout).await;
        let alike =
            async || through(&scene.proxy).layout(layout).private_session(false).connect().await.unwrap();
        let (one, two) = (alike().await, alike().await);
        for then in [Then::Reset, Then::Hang] {
            let guard = one.mutex("a").acquire().await.unwrap();
            let node = only_node(&scene).await;
            scene.proxy.reset_counters();
            scene.proxy.swallow_when(enters(), then);
            let failed = timeout(Duration::from_millis(300), two.mutex("a").acquire()).await;
            assert!(failed.is_err(), "{layout:?}: it got a lock that is held");
            assert_eq!(scene.proxy.fired(), 1);
            until_children(&scene.client, "a", 1).await;
            assert_eq!(only_node(&scene).await, node, "{layout:?}");
            assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

/// However many were ahead: the listing is made before the turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn z10_a_hand_over_lists_nothing() {
    let scene = Scene::new().await;
    mkdir(&scene.client, "/locks/a").await;
    for ahead in [1, 2, 20] {
        let mut nodes = Vec::new();
        for _ in 0..ahead {
            nodes.push(foreign(&scene.client, "lock-").await);
        }
        let mutex = scene.locks.mutex("a");
        let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until_children(&scene.client, "a", ahead + 1).await;
        sleep(Duration::from_millis(100)).await;
        let predecessor = nodes.pop().unwrap();
        for node in nodes {
            scene.client.delete(&node, None).await.unwrap();
        }
        sleep(Duration::from_millis(100)).await;
        scene.proxy.reset_counters();
        scene.proxy.cut_when(zk_opcode(opcode::GET_CHILDREN2));
        scene.client.delete(&predecessor, None).await.unwrap();
        let guard = timeout(PATIENCE, waiter).await.unwrap().unwrap();
        assert_eq!(scene.proxy.fired(), 0, "the queue was listed again, with {ahead} ahead");
        give_back(guard).await;
        scene.proxy.heal();
    }
}
