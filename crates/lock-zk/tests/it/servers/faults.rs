//! Connections break, nodes are deleted behind them, and events are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use lock_core::{GuardState, LossReason, Released};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::Direction;
use lock_zk::{ZkLayout, ZkRecipe};
use tokio::time::sleep;

use crate::common::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_grants_a_longer_session_is_not_taken_for_silent_any_sooner() {
    let longer = ZooKeeper::builder().min_session_timeout(LONG * 2);
    let scene = Scene::at(longer.start().await.unwrap().into(), SHORT, |config| config).await;
    let guard = take(&scene.locks, "a").await;
    scene.black_hole(true);
    // Time: too long for a session as it was asked for, and half of what is too long for this one.
    sleep(LONG / 5).await;
    assert_eq!(guard.state(), GuardState::Valid);
    scene.black_hole(false);
    give_back(guard).await;
}

/// While its holder is cut off: one that watches its node, and one that just got the lock and does not watch it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_reconnected_holder_learns_that_its_node_was_deleted() {
    let scene = Scene::with(LASTING, ZkLayout::Curator).await;
    for watched in [true, false] {
        let guard = take(&scene.locks, "a").await;
        if watched {
            until_lock_watches(&scene.server, 1).await;
        }
        scene.cut();
        delete_node(&scene.client, 0).await;
        assert!(guard.is_valid(), "it cannot know");
        scene.proxy.refuse(false);
        // Before its deadline.
        assert_eq!(soon(guard.lost()).await, LossReason::Removed, "{watched}");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        give_back(scene.locks.mutex("a").try_acquire().await.unwrap().unwrap()).await;
    }
}

/// The directory was replaced meanwhile, and its numbers came again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_take_the_node_of_another_for_its_own() {
    let scene = Scene::with(LASTING, ZkLayout::Plain).await;
    let client = &scene.client;
    // The waiter does not watch its own node in such a long queue.
    let before = 40;
    let fill = async |count: usize| {
        mkdir(client, "/locks/a").await;
        for _ in 0..count {
            foreign(client, "lock-").await;
        }
    };
    let delete = async |count: usize| {
        for child in &children(client, "a").await[..count] {
            client.delete(&format!("/locks/a/{child}"), None).await.unwrap();
        }
    };
    fill(before).await;
    let waiter = queue_up(&scene.locks, "a").await;
    settled().await;
    scene.proxy.hold(Direction::ToClient);
    delete(before + 1).await;
    client.delete("/locks/a", None).await.unwrap();
    fill(before + 1).await;
    delete(before).await;
    scene.proxy.deliver();
    until_children(client, "a", 2).await;
    // Another client holds the lock.
    still_wait(&[&waiter]).await;
    delete_node(client, 0).await;
    let guard = come(waiter).await;
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    give_back(guard).await;
}

/// The event that a waiter needs never comes: it has to look for itself, whatever it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_event_is_lost_gets_its_turn() {
    for (recipe, before) in [(ZkRecipe::Queue, 1), (ZkRecipe::Queue, 40), (EPHEMERAL, 1)] {
        let scene = Scene::of(SHORT, |config| config.recipe(recipe)).await;
        let holder = take(&scene.other, "a").await;
        let mut others = Vec::new();
        for number in 1..before {
            let other = scene.connect().await;
            others.push(acquiring(other.mutex("a")));
            until_children(&scene.client, "a", number + 1).await;
        }
        let waiter = acquiring(scene.locks.mutex("a"));
        sleep(SHORT / 2).await; // Time: its watches are set, and it does not look again for a session timeout.
        assert!(!waiter.is_finished());
        scene.proxy.reset_counters();
        scene.proxy.lose_pushes(true);
        for other in others.drain(..).rev() {
            other.abort();
        }
        give_back(holder).await;
        let guard = come(waiter).await;
        assert!(scene.proxy.pushes() > 0, "{recipe:?} {before}: no event was lost");
        scene.proxy.lose_pushes(false);
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
}

/// What a waiter costs while nothing moves: a listing in each session timeout, beside the heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_look_costs_one_request_in_a_session_timeout() {
    let waits_with = async |recipe| {
        let scene = Scene::of(SHORT, |config| config.recipe(recipe)).await;
        let holder = take(&scene.other, "a").await;
        let (waiter, timeouts) = (acquiring(scene.locks.mutex("a")), 4);
        sleep(SHORT / 2).await; // Time: its watches are set.
        let looks = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&looks);
        scene.proxy.cut_when(move |request| {
            counter.fetch_add(u64::from(!is_check(request)), Ordering::SeqCst);
            false
        });
        sleep(SHORT * timeouts).await; // Time: what is asked in it is counted.
        let count = looks.load(Ordering::SeqCst);
        scene.proxy.heal();
        assert!((1..=u64::from(timeouts)).contains(&count), "{recipe:?}: {count} requests");
        give_back(hand_over(holder, waiter).await).await;
    };
    join_all(RECIPES.map(waits_with)).await;
}
