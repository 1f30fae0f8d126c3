//! A request is lost, with its answer or without: what it asked for is done once.

use std::time::Duration;

use futures_util::{FutureExt, poll};
use lock_core::{Error, ErrorKind, GuardState, LossReason, Outcome, Released};
use lock_testkit::proxy::{FaultProxy, Then, opcode, zk_opcode};
use lock_zk::zookeeper_client::Permission;
use lock_zk::{ZkLayout, ZkRecipe};
use tokio::time::{sleep, timeout};

use crate::common::*;

/// Whether the lock is held when it is asked for makes a difference where a waiter has no node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_creation_is_lost() {
    let queues = LAYOUTS.map(|layout| (layout, ZkRecipe::Queue, false));
    let fixed = [false, true].map(|held| (ZkLayout::Curator, EPHEMERAL, held));
    for (layout, recipe, held) in queues.into_iter().chain(fixed) {
        let scene = Scene::of(TIMEOUT, |config| config.layout(layout).recipe(recipe)).await;
        give_back(take(&scene.locks, "a").await).await;
        for loss in LOSSES {
            let holder = if held { Some(take(&scene.other, "a").await) } else { None };
            lose(&scene.proxy, loss, enters());
            let acquisition = acquiring(scene.locks.mutex("a"));
            if let Some(holder) = holder {
                still_wait(&[&acquisition]).await;
                give_back(holder).await;
            }
            let guard = come(acquisition).await;
            assert_eq!(scene.proxy.fired(), 1, "{layout:?} {recipe:?} {loss:?}");
            assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
            assert!(children(&scene.client, "a").await.len() <= 1, "{layout:?} {loss:?}");
            assert_eq!(scene.other.inspect("a").await.unwrap().token, Some(guard.token()));
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_dropped_creation_is_lost() {
    for layout in LAYOUTS {
        let scene = Scene::with(TIMEOUT, layout).await;
        give_back(take(&scene.locks, "a").await).await;
        lose(&scene.proxy, Some(Then::Hang), enters());
        let acquisition = acquiring(scene.locks.mutex("a"));
        until("it is lost", async || scene.proxy.fired() == 1).await;
        acquisition.abort();
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_release_is_lost() {
    for layout in [ZkLayout::Curator, ZkLayout::Plain] {
        let scene = Scene::with(LONG, layout).await;
        for then in [Then::Reset, Then::Fin, Then::Hang] {
            let guard = take(&scene.locks, "a").await;
            lose(&scene.proxy, Some(then), zk_opcode(opcode::DELETE));
            give_back(guard).await;
            assert_eq!(scene.proxy.fired(), 1, "{layout:?} {then:?}");
            scene.is_clean().await;
        }
        // The request is lost as well.
        for end in [FaultProxy::rst, FaultProxy::fin] {
            let guard = take(&scene.locks, "a").await;
            end(&scene.proxy);
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_break_is_lost_and_only_one_is_broken() {
    let scene = Scene::with(LONG, ZkLayout::Curator).await;
    let (guard, third) = (take(&scene.other, "a").await, scene.connect().await);
    let waiter = queue_up(&third, "a").await;
    lose(&scene.proxy, Some(Then::Reset), zk_opcode(opcode::DELETE));
    assert!(scene.locks.break_lock("a").await.unwrap());
    assert_eq!(guard.lost().await, LossReason::Removed);
    let next = come(waiter).await;
    lose(&scene.proxy, Some(Then::Hang), zk_opcode(opcode::DELETE));
    assert!(next.is_valid() && scene.locks.break_lock("a").await.unwrap());
    assert_eq!((next.lost().await, scene.proxy.fired()), (LossReason::Removed, 1));
    assert!(!scene.locks.break_lock("a").await.unwrap());
}

/// The caller is busy with another branch of its `select!` loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_is_lost_while_nobody_polls() {
    for layout in [ZkLayout::Curator, ZkLayout::Plain] {
        let scene = Scene::with(LASTING, layout).await;
        let lost = async || {
            settled().await;
            scene.proxy.heal();
        };
        let mut release = Box::pin(take(&scene.locks, "a").await.release());
        scene.black_hole(true);
        assert!(poll!(&mut release).is_pending());
        lost().await;
        scene.is_clean().await;
        assert_eq!(soon(release).await.unwrap(), Released::Released);

        let holder = take(&scene.other, "a").await;
        let mutex = scene.locks.mutex("a");
        // Time: its end is the subject.
        let patience = Duration::from_secs(1);
        let mut waiting = Box::pin(mutex.try_acquire_for(patience).fuse());
        until("it has queued up", async || {
            assert!(timeout(patience / 20, &mut waiting).await.is_err());
            children(&scene.client, "a").await.len() == 2
        })
        .await;
        // It sets its watches.
        assert!(timeout(patience / 10, &mut waiting).await.is_err());
        scene.black_hole(true);
        // Time: its patience ends while nobody polls it.
        sleep(patience).await;
        // Its patience ends, and it gives up.
        assert!(poll!(&mut waiting).is_pending());
        lost().await;
        until_children(&scene.client, "a", 1).await;
        give_back(holder).await;
        drop(waiting);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_refusal_after_what_may_have_been_applied_says_so() {
    let scene = Scene::with(LASTING, ZkLayout::Curator).await;
    give_back(take(&scene.locks, "a").await).await;
    let is_in_doubt = |error: Error| {
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Denied, Outcome::Unknown), "{error}");
    };
    // The node is created, and cannot be found.
    allow(&scene, Permission::CREATE | Permission::WRITE | Permission::DELETE).await;
    lose(&scene.proxy, Some(Then::Reset), enters());
    is_in_doubt(soon(scene.locks.mutex("a").acquire()).await.unwrap_err());
    allow(&scene, Permission::ALL).await;
    scene.is_clean().await;
    // It is created, and can neither be seen nor deleted.
    allow(&scene, Permission::CREATE).await;
    is_in_doubt(soon(scene.locks.mutex("a").acquire()).await.unwrap_err());
    allow(&scene, Permission::ALL).await;
    scene.is_clean().await;

    let mut writer = scene.locks.rw("a").write().await.unwrap();
    allow(&scene, Permission::CREATE | Permission::WRITE | Permission::READ).await;
    lose(&scene.proxy, Some(Then::Reset), transacts());
    is_in_doubt(soon(writer.downgrade()).await.unwrap_err());
    lose(&scene.proxy, Some(Then::Reset), zk_opcode(opcode::DELETE));
    is_in_doubt(soon(scene.locks.break_lock("a")).await.unwrap_err());
    allow(&scene, Permission::ALL).await;
    give_back(writer).await;
    scene.is_clean().await;
}
