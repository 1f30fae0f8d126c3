//! What a look at a lock shows, and requests to its holders to release it.

use lock_core::{ErrorKind, GuardState, LockMode, LockState, Token};

use crate::common::*;
use crate::recipes::modes::Way;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_the_first_waiters_are_shown_in_the_order_of_their_nodes() {
    let scene = Scene::new().await;
    mkdir(&scene.client, "/locks/a").await;
    let mut nodes = Vec::new();
    for number in 0..200 {
        nodes.push(foreign(&scene.client, if number < 70 { "read-" } else { "permit-3-" }).await);
    }
    let state = scene.locks.inspect("a").await.unwrap();
    let holders = state.holders.iter().map(|holder| holder.holder.to_string());
    let shown: Vec<_> = holders.chain(state.queue.iter().map(|waiter| waiter.waiter.to_string())).collect();
    let names = nodes.iter().map(|path| path.replace("/locks/a/", "node "));
    assert_eq!(shown, names.take(70 + LockState::MAX_QUEUE).collect::<Vec<_>>(), "{state}");
    assert_eq!((state.queue.len(), state.waiters), (LockState::MAX_QUEUE, 130), "{state}");
    assert!(state.holders.iter().all(|holder| holder.mode == LockMode::Shared), "{state}");
    assert!(state.queue.iter().all(|waiter| waiter.mode.to_string() == "one of 3 permits"), "{state}");
    assert!(state.queue.iter().all(|waiter| waiter.since.is_some()), "{state}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_locks_are_listed_and_nothing_else() {
    let scene = Scene::new().await;
    let locks = &scene.locks;
    assert_eq!(locks.list("").await.unwrap(), [], "there is no directory yet");
    let guard = take(locks, "a/b").await;
    guard.raise_token(Token::new(1 << 40)).await.unwrap();
    for other in ["/locks/not%2a", "/locks/x y"] {
        mkdir(&scene.client, other).await;
    }
    let names = locks.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/b"]);
    // By the token as it was, and as it is shown since.
    assert!(!locks.break_lock_if("a/b", guard.token()).await.unwrap());
    let shown = locks.inspect("a/b").await.unwrap().holders[0].token.unwrap();
    assert!(shown > guard.token() && locks.break_lock_if("a/b", shown).await.unwrap());
    soon(guard.lost()).await;
    let root = opened(&config(&scene.server).dir("/")).await;
    let guard = take(&root, "zookeeper").await;
    let names = root.list("").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["locks", "zookeeper"]);
    give_back(guard).await;
}

/// A revocation request of another library overwrites the data of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_the_right_token_of_a_downgraded_reader_or_none() {
    let scene = Scene::new().await;
    let (locks, client) = (&scene.locks, &scene.client);
    let ask = async || client.set_data(&node(client, 0).await, b"__REVOKE__", None).await.unwrap();
    let seen = async || {
        let state = locks.inspect("a").await.unwrap();
        (state.holders[0].mode, state.holders[0].asked, state.token)
    };
    for asked_first in [false, true] {
        let mut guard = Way::Write.take(locks).await;
        let (mode, asked, token) = seen().await;
        assert!(asked.is_some() && (mode, token) == (LockMode::Exclusive, Some(guard.token())));
        settled().await;
        if asked_first {
            ask().await;
            assert_eq!(seen().await, (mode, asked, token), "a writer has one node");
        }
        guard.downgrade().await.unwrap();
        if !asked_first {
            assert_eq!(seen().await, (LockMode::Shared, asked, token), "it is the same hold");
            ask().await;
        }
        assert_eq!(seen().await, (LockMode::Shared, None, None), "{asked_first}");
        assert_eq!((Some(guard.token()), guard.verify().await.unwrap()), (token, GuardState::Valid));
        // A reader whose token is unknown cannot be distinguished from another one.
        let error = locks.break_lock_if("a", guard.token()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
    let mut guard = Way::Write.take(locks).await;
    guard.downgrade().await.unwrap();
    assert!(locks.break_lock_if("a", guard.token()).await.unwrap(), "its node says what it was");
    soon(guard.lost()).await;
    // A reader from the start says so.
    let guard = Way::Read.take(locks).await;
    let (_, asked, token) = seen().await;
    assert!(asked.is_some() && token == Some(guard.token()));
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_release_are_those_of_curator() {
    let scene = Scene::new().await;
    let (one, two, client) = (&scene.locks, &scene.other, &scene.client);
    let guard = take(one, "a").await;
    let waiter = queue_up(two, "a").await;
    settled().await;
    // Another change of the data is no revocation request.
    client.set_data(&node(client, 0).await, b"REVOKE", None).await.unwrap();
    settled().await;
    assert!(!guard.is_revoke_requested() && guard.is_valid());
    // As Curator's `Revoker` asks, also of a waiter: it knows when it holds the lock.
    for at in [0, 1] {
        client.set_data(&node(client, at).await, b"__REVOKE__", None).await.unwrap();
    }
    soon(guard.revoke_requested()).await;
    let guard = hand_over(guard, waiter).await;
    soon(guard.revoke_requested()).await;
    give_back(guard).await;
    // Before the holder watches its node.
    let early = take(one, "a").await;
    assert!(two.request_revocation("a").await.unwrap());
    soon(early.revoke_requested()).await;
    give_back(early).await;
    // As Curator's holders expect.
    let theirs = foreign(client, "lock-").await;
    assert!(two.request_revocation("a").await.unwrap());
    assert_eq!(client.get_data(&theirs).await.unwrap().0, b"__REVOKE__");
}
