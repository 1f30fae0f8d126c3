//! A request is lost, with its answer or without: what it asked for is done once.

use lock_core::{GuardState, LossReason};
use lock_testkit::proxy::{FaultProxy, Then, opcode, zk_opcode};
use lock_zk::{ZkLayout, ZkRecipe};

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
