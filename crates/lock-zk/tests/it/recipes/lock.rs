//! The lock on a server that behaves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use lock_core::{ErrorKind, GuardState, LockOptions, LossReason, Released};
use lock_testkit::proxy::{Direction, opcode, zk_opcode};
use tokio::time::{sleep, timeout};

use crate::common::*;

/// Where the directory may not be written: another node is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_queue_is_listed_without_waiting_for_the_creation() {
    let scene = Scene::with(LASTING, Default::default()).await;
    mkdir(&scene.client, "/locks/a/config").await;
    give_back(take(&scene.locks, "a").await).await;
    let sent = Arc::new(Mutex::new(Vec::new()));
    scene.proxy.cut_when({
        let (sent, codes) = (Arc::clone(&sent), [opcode::CREATE2, opcode::MULTI, opcode::GET_CHILDREN2]);
        move |request: &[u8]| {
            let is = |code: &&i32| zk_opcode(**code)(request) && !is_check(request);
            sent.lock().unwrap().extend(codes.iter().filter(is).copied());
            false
        }
    });
    scene.proxy.hold(Direction::ToClient);
    let acquisition = acquiring(scene.locks.mutex("a"));
    let both = [opcode::CREATE2, opcode::GET_CHILDREN2];
    until("both are sent", async || *sent.lock().unwrap() == both).await;
    assert!(!acquisition.is_finished());
    scene.proxy.deliver();
    give_back(come(acquisition).await).await;
    assert_eq!(children(&scene.client, "a").await, ["config"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_try_on_a_held_lock_writes_nothing() {
    let scene = Scene::new().await;
    let (client, locks, other) = (&scene.client, &scene.locks, &scene.other);
    let guard = take(locks, "a").await;
    let before = client.check_stat("/locks/a").await.unwrap().unwrap();
    assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("a").try_acquire_for(Duration::ZERO).await.unwrap().is_none());
    let after = client.check_stat("/locks/a").await.unwrap().unwrap();
    assert_eq!((before.cversion, before.pzxid), (after.cversion, after.pzxid));
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_waiter_that_gives_up_does_not_let_the_next_one_in_and_leaves_no_watch() {
    let scene = Scene::new().await;
    let third = scene.connect().await;
    let guard = take(&scene.locks, "a").await;
    let (second, third) = (queue_up(&scene.other, "a").await, queue_up(&third, "a").await);
    second.abort();
    until_children(&scene.client, "a", 2).await;
    still_wait(&[&third]).await;
    give_back(hand_over(guard, third).await).await;
    until_lock_watches(&scene.server, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_acquisition_that_is_not_polled_keeps_nobody_out() {
    for recipe in RECIPES {
        let scene = Scene::of(TIMEOUT, |config| config.recipe(recipe)).await;
        let first = scene.locks.mutex("a");
        // Makes the directory.
        give_back(take(&scene.other, "a").await).await;
        // Sent, and granted. A busy machine may have the answer within the first poll.
        let mut unpolled = loop {
            let mut acquiring = Box::pin(first.acquire());
            match acquiring.as_mut().now_or_never() {
                Some(guard) => give_back(guard.unwrap()).await,
                None => break acquiring,
            }
        };
        let guard = take(&scene.other, "a").await;
        // Time: it is polled until it has started over, and waits.
        assert!(timeout(Duration::from_millis(100), &mut unpolled).await.is_err());
        give_back(guard).await;
        // Granted once more, and not polled.
        give_back(take(&scene.other, "a").await).await;
        let guard = soon(unpolled).await.unwrap();
        assert!(guard.is_valid() && scene.other.mutex("a").try_acquire().await.unwrap().is_none());
        give_back(guard).await;
        until_children(&scene.client, "a", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_queue_without_an_order_is_refused() {
    let scene = Scene::new().await;
    let (client, locks) = (&scene.client, &scene.locks);
    mkdir(client, "/locks/a").await;
    for name in ["x-2147483647", "x--2147483648"] {
        fixed(client, name).await;
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{name}");
        assert!(error.to_string().contains("/locks/a") && error.to_string().contains(name), "{error}");
        until_children(client, "a", 1).await;
        delete_node(client, 0).await;
        give_back(take(locks, "a").await).await;
    }
}

/// A node that no lock created, with the number of the own node: it is waited for as any contender ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_foreign_node_with_our_number_is_waited_for() {
    let scene = Scene::new().await;
    let (client, locks) = (&scene.client, &scene.locks);
    mkdir(client, "/locks/a").await;
    // Each creation counts, so that ours gets the number 3, and 7; as its name would sort before ours, and behind.
    for twin in ["!-0000000003", "~-0000000007"] {
        let others = ["x-0000000009", "y-0000000009"];
        for name in [twin, others[0], others[1]] {
            fixed(client, name).await;
        }
        let waiter = acquiring(locks.mutex("a"));
        until_children(client, "a", 4).await;
        let number = &twin[twin.len() - 10..];
        let same = children(client, "a").await.into_iter().filter(|name| name.ends_with(number));
        assert_eq!(same.count(), 2, "ours has another number");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        still_wait(&[&waiter]).await;
        client.delete(&format!("/locks/a/{twin}"), None).await.unwrap();
        let guard = come(waiter).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        for name in others {
            client.delete(&format!("/locks/a/{name}"), None).await.unwrap();
        }
        give_back(guard).await;
    }
}

/// The end of a fixed ttl is kept also when the server can be reached only later: by a deletion, not by the end of the
/// session.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_fixed_ttl_ends_while_the_server_is_silent() {
    for recipe in RECIPES {
        let scene = Scene::of(LONG, |config| config.recipe(recipe)).await;
        let kept = take(&scene.locks, "kept").await;
        let mutex = scene.locks.mutex_with("a", LockOptions::new().fixed_ttl(LONG)).unwrap();
        let guard = mutex.acquire().await.unwrap();
        // Time: the server is silent for the end of the ttl, and not for as long as the session lasts.
        sleep(LONG * 7 / 8).await;
        scene.cut();
        assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
        assert!(scene.other.mutex("a").try_acquire().await.unwrap().is_none(), "the server does not know");
        scene.proxy.refuse(false);
        let next = take(&scene.other, "a").await;
        assert!(next.token() > guard.token());
        assert_eq!(kept.verify().await.unwrap(), GuardState::Valid, "{recipe:?}: the session ended");
        assert_eq!(guard.extend(LONG).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        for guard in [next, kept] {
            give_back(guard).await;
        }
    }
}
