//! The recipe of one fixed node, where it differs from others: the conformance suite has what it promises as they do
//! (`zk-ephemeral`).

use std::time::Duration;

use lock_core::{ErrorKind, GuardState, Holder, LockOptions, LossReason, Released, TokenBlock};
use lock_testkit::proxy::Direction;
use lock_zk::zookeeper_client::{Acls, CreateMode};
use tokio::time::sleep;

use crate::common::*;

async fn scene() -> Scene {
    Scene::of(TIMEOUT, |config| config.recipe(EPHEMERAL)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_is_the_lock() {
    let scene = scene().await;
    let (one, two) = (&scene.locks, &scene.other);
    let stat = async |path| scene.client.check_stat(path).await.unwrap().unwrap();
    let guard = take(one, "a").await;
    let node = stat("/locks/a").await;
    assert!(node.ephemeral_owner != 0 && guard.token().get() == TokenBlock::SIZE * node.czxid.unsigned_abs());
    let before = stat("/locks").await;
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(stat("/locks").await, before, "a try that fails writes nothing");
    give_back(guard).await;

    let refused = one.rw("a").read().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("one node"), "{refused}");
    assert_eq!(one.semaphore("a", 2).acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_are_notified_of_a_release() {
    let scene = scene().await;
    for count in [2, 8] {
        let (proxy, guard) = (proxy(&scene.server), take(&scene.other, "a").await);
        until_lock_watches(&scene.server, 1).await;
        let mut waiters = Vec::new();
        for _ in 0..count {
            waiters.push(opened(&through(&proxy).recipe(EPHEMERAL)).await);
        }
        let waiters: Vec<_> = waiters.iter().map(|locks| acquiring(locks.mutex("a"))).collect();
        until_lock_watches(&scene.server, 1 + count).await;
        proxy.reset_counters();
        give_back(guard).await;
        until("all are notified: that is the herd", async || proxy.pushes() >= count as u64).await;
        for waiter in waiters {
            waiter.abort();
        }
        until_lock_watches(&scene.server, 0).await;
    }
}

/// At its end a lock is deleted, and the holder that learns of the end releases it: two deletions of one name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_just_after_the_end_of_a_lock_leaves_the_next_holder_alone() {
    // Time: the deletions of the holder arrive late.
    let late = Duration::from_millis(300);
    for released in [true, false] {
        let scene = scene().await;
        let hold = LockOptions::new().max_hold(2 * late);
        let guard = scene.locks.mutex_with("a", hold).unwrap().acquire().await.unwrap();
        let waiter = acquiring(scene.other.mutex("a"));
        settled().await;
        scene.proxy.delay(Direction::ToServer, late);
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        sleep(late / 3).await; // Time: the first deletion is on its way.
        if released {
            assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        } else {
            drop(guard);
        }
        let next = come(waiter).await;
        sleep(4 * late).await; // Time: the second one would have arrived.
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "released: {released}");
        give_back(next).await;
    }
}

/// The name is still there when the holder is heard again, but the node is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_broken_behind_the_back_of_its_holder() {
    for waits in [true, false] {
        let scene = scene().await;
        let guard = take(&scene.locks, "a").await;
        settled().await;
        scene.cut();
        assert!(scene.other.break_lock("a").await.unwrap());
        let next = take(&scene.other, "a").await;
        if waits {
            scene.proxy.refuse(false);
            assert_eq!(soon(guard.lost()).await, LossReason::Removed, "not later with its session");
            assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        } else {
            until("it is suspect", async || guard.state() != GuardState::Valid).await;
            let release = tokio::spawn(guard.release());
            still_wait(&[&release]).await;
            scene.proxy.refuse(false);
            assert_eq!(come(release).await.unwrap(), Released::AlreadyLost);
        }
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        give_back(next).await;
    }
}

/// Its connection is up and its lock valid, when the node is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_a_break_spares_the_next_holder() {
    for hears_late in [true, false] {
        let scene = scene().await;
        let guard = take(&scene.locks, "a").await;
        if hears_late {
            scene.proxy.hold(Direction::ToClient);
        }
        assert!(scene.other.break_lock("a").await.unwrap());
        let next = take(&scene.other, "a").await;
        assert!(!hears_late || guard.state() == GuardState::Valid);
        let release = tokio::spawn(guard.release());
        if hears_late {
            until("it is asked", async || scene.proxy.queued(Direction::ToClient) > 0).await;
            settled().await;
            scene.proxy.deliver();
        }
        assert_eq!(come(release).await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        give_back(next).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_of_that_name_are_not_taken() {
    let scene = scene().await;
    let (one, client, queued) = (&scene.locks, &scene.client, scene.connect().await);
    // The directory of a queue.
    let guard = take(&queued, "a").await;
    assert!(one.mutex("a").try_acquire().await.unwrap().is_none());
    let waiter = acquiring(one.mutex("a"));
    still_wait(&[&waiter]).await;
    give_back(guard).await;
    client.delete("/locks/a", None).await.unwrap();
    let guard = come(waiter).await;
    // And the other way round.
    let refused = queued.mutex("a").acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    give_back(guard).await;
    // A node of another library is a holder like any other.
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create("/locks/a", b"10.0.0.7", &options).await.unwrap();
    assert!(one.mutex("a").try_acquire().await.unwrap().is_none());
    let state = one.inspect("a").await.unwrap();
    assert_eq!(state.holder(), Some(&Holder::Foreign("node a with data \"10.0.0.7\"".into())));
    let waiter = acquiring(one.mutex("a"));
    still_wait(&[&waiter]).await;
    client.delete("/locks/a", None).await.unwrap();
    give_back(come(waiter).await).await;
}
