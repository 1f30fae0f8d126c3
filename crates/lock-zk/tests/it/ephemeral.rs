//! The recipe of one fixed node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use lock_core::{ErrorKind, GuardState, Holder, LockOptions, Locks, LossReason, Released, TokenBlock};
use lock_testkit::proxy::{Direction, Then, opcode, zk_opcode};
use lock_testkit::{FaultProxy, ZooKeeper, cancel_after};
use lock_zk::zookeeper_client::{Acls, CreateMode};
use lock_zk::{ZkConfig, ZkRecipe, ZkWait};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const WAYS: [ZkWait; 2] = [ZkWait::Watch, ZkWait::Poll];

async fn locks_on(server: &ZooKeeper, by: ZkWait) -> Locks {
    config(server).recipe(ZkRecipe::Ephemeral(by)).connect().await.unwrap()
}

async fn locks_through(proxy: &FaultProxy, by: ZkWait) -> Locks {
    through(proxy).recipe(ZkRecipe::Ephemeral(by)).connect().await.unwrap()
}

/// No client has left a node or a watch.
async fn must_be_clean(server: &ZooKeeper) {
    let is_clean = async || {
        let nodes = server.mntr().await.unwrap().remove("zk_ephemerals_count");
        nodes.as_deref() == Some("0") && lock_watches(server).await == 0
    };
    until("nodes or watches are left", is_clean).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_is_the_lock() {
    let server = server().await;
    let client = client(&server).await;
    let (one, two) = (locks_on(&server, ZkWait::Watch).await, locks_on(&server, ZkWait::Poll).await);
    let mutex = one.mutex_with("a", LockOptions::new().label("nightly")).unwrap();
    let guard = mutex.acquire().await.unwrap();
    let stat = client.check_stat("/locks/a").await.unwrap().unwrap();
    assert!(stat.ephemeral_owner != 0 && guard.token().get() == TokenBlock::SIZE * stat.czxid.unsigned_abs());
    let before = client.check_stat("/locks").await.unwrap().unwrap();
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    assert_eq!(
        client.check_stat("/locks").await.unwrap().unwrap(),
        before,
        "a try that fails writes nothing"
    );
    let start = Instant::now();
    let patience = Duration::from_millis(200);
    assert!(two.mutex("a").try_acquire_for(patience).await.unwrap().is_none());
    assert!(start.elapsed() >= patience && start.elapsed() < SOON / 2, "{:?}", start.elapsed());
    let state = two.inspect("a").await.unwrap();
    let Some(Holder::Known(owner)) = state.holder() else { panic!("{state:?}") };
    assert_eq!((owner.label.as_deref(), state.token), (Some("nightly"), Some(guard.token())));

    assert!(two.request_revocation("a").await.unwrap());
    timeout(SOON, guard.revoke_requested()).await.unwrap();
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    assert!(two.break_lock("a").await.unwrap());
    assert_eq!(guard.lost().await, LossReason::Removed);
    let next = two.mutex("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    give_back(next).await;
    assert!(!two.break_lock("a").await.unwrap() && !two.request_revocation("a").await.unwrap());

    let refused = one.rw("a").read().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("one node"), "{refused}");
    assert_eq!(one.semaphore("a", 2).acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(!one.capabilities().fifo && !one.capabilities().counts_waiters);
    must_be_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_never_overlap_and_tokens_grow() {
    let server = server().await;
    let (inside, tokens) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
    let mut tasks = Vec::new();
    for at in 0..6 {
        let locks = locks_on(&server, WAYS[at % 2]).await;
        let (inside, tokens) = (Arc::clone(&inside), Arc::clone(&tokens));
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = locks.mutex("a").acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                tokens.lock().unwrap().push(guard.token());
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                give_back(guard).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let tokens = std::mem::take(&mut *tokens.lock().unwrap());
    assert!(tokens.is_sorted() && tokens.iter().collect::<BTreeSet<_>>().len() == 60, "{tokens:?}");
    must_be_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_are_notified_of_a_release() {
    let (server, mut notified) = (server().await, Vec::new());
    for count in [2, 8] {
        let proxy = proxy(&server);
        let guard = locks_on(&server, ZkWait::Watch).await.mutex("a").acquire().await.unwrap();
        let mut waiters = Vec::new();
        for _ in 0..count {
            let locks = locks_through(&proxy, ZkWait::Watch).await;
            let mutex = locks.mutex("a");
            waiters.push(tokio::spawn(async move {
                let guard = mutex.acquire().await;
                sleep(4 * SETTLED).await;
                drop((guard, locks));
            }));
        }
        sleep(2 * SETTLED).await;
        proxy.reset_counters();
        give_back(guard).await;
        sleep(2 * SETTLED).await;
        notified.push(proxy.pushes());
        waiters.iter().for_each(JoinHandle::abort);
    }
    assert_eq!(notified, [2, 8], "that is the herd");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_creation_is_lost() {
    for by in WAYS {
        let server = server().await;
        let proxy = proxy(&server);
        let locks = locks_through(&proxy, by).await;
        let other = locks_on(&server, by).await;
        give_back(locks.mutex("a").acquire().await.unwrap()).await;
        for held in [false, true] {
            for fault in 0..4 {
                // Where it is held, the creation is one of a waiter.
                let guard = if held { Some(other.mutex("a").acquire().await.unwrap()) } else { None };
                let waiter = held.then(|| wait(&locks));
                sleep(SETTLED).await;
                proxy.reset_counters();
                match fault {
                    0 => proxy.cut_when(zk_opcode(opcode::CREATE2)),
                    1 => proxy.swallow_when(zk_opcode(opcode::CREATE2), Then::Reset),
                    2 => proxy.swallow_when(zk_opcode(opcode::CREATE2), Then::Fin),
                    _ => proxy.swallow_when(zk_opcode(opcode::CREATE2), Then::Hang),
                }
                drop(guard);
                let guard = soon(waiter.unwrap_or_else(|| wait(&locks))).await;
                assert_eq!(proxy.fired(), 1, "{by:?} {fault}");
                assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "{by:?} {fault}");
                assert_eq!(other.inspect("a").await.unwrap().token, Some(guard.token()));
                give_back(guard).await;
                must_be_clean(&server).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_creation_is_rolled_back() {
    let server = server().await;
    for by in WAYS {
        let (locks, other) = (locks_on(&server, by).await, locks_on(&server, by).await);
        for polls in 0..12 {
            drop(cancel_after(polls, locks.mutex("a").acquire()).await);
            give_back(timeout(SOON, other.mutex("a").acquire()).await.unwrap().unwrap()).await;
        }
        // And while somebody holds it.
        let guard = other.mutex("a").acquire().await.unwrap();
        for polls in 0..12 {
            let patience = Duration::from_millis(30);
            drop(cancel_after(polls, locks.mutex("a").try_acquire_for(patience)).await);
        }
        give_back(guard).await;
        give_back(timeout(SOON, locks.mutex("a").acquire()).await.unwrap().unwrap()).await;
    }
    must_be_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_died_is_followed() {
    let server = server().await;
    for by in WAYS {
        let proxy = proxy(&server);
        let short = ZkConfig::new(proxy.addr().to_string()).session_timeout(SHORT);
        let dying = opened(&short.recipe(ZkRecipe::Ephemeral(by))).await;
        let guard = dying.mutex("a").acquire().await.unwrap();
        let waiter = wait(&locks_on(&server, by).await);
        sleep(SETTLED).await;
        assert!(!waiter.is_finished());
        proxy.refuse(true);
        proxy.rst();
        let lost = timeout(SOON, guard.lost()).await.expect("its session ends");
        assert!(matches!(lost, LossReason::DeadlinePassed | LossReason::SessionEnded), "{lost}");
        let next = soon(waiter).await;
        assert!(next.token() > guard.token());
        give_back(next).await;
        drop(guard);
    }
}

/// At its end a lock is deleted, and the holder that learns of the end releases it: two deletions of one name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_just_after_the_end_of_a_lock_leaves_the_next_holder_alone() {
    let server = server().await;
    let late = Duration::from_millis(300);
    for released in [true, false] {
        let proxy = proxy(&server);
        let (one, two) = (locks_through(&proxy, ZkWait::Watch).await, locks_on(&server, ZkWait::Watch).await);
        let hold = LockOptions::new().max_hold(Duration::from_secs(1));
        let guard = one.mutex_with("a", hold).unwrap().acquire().await.unwrap();
        let waiter = wait(&two);
        sleep(SETTLED).await;
        proxy.delay(Direction::ToServer, late);
        assert_eq!(guard.lost().await, LossReason::MaxHold);
        sleep(late / 3).await;
        if released {
            assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        } else {
            drop(guard);
        }
        let next = soon(waiter).await;
        sleep(4 * late).await;
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid, "released: {released}");
        give_back(next).await;
    }
    must_be_clean(&server).await;
}

/// The name is still there when the holder is heard again, but the node is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_broken_behind_the_back_of_its_holder() {
    let server = server().await;
    for waits in [true, false] {
        let proxy = proxy(&server);
        let (one, two) = (locks_through(&proxy, ZkWait::Watch).await, locks_on(&server, ZkWait::Watch).await);
        let guard = one.mutex("a").acquire().await.unwrap();
        sleep(SETTLED).await;
        proxy.refuse(true);
        proxy.rst();
        assert!(two.break_lock("a").await.unwrap());
        let next = two.mutex("a").try_acquire().await.unwrap().unwrap();
        if waits {
            proxy.refuse(false);
            let lost = timeout(SOON, guard.lost()).await.expect("it is notified");
            assert_eq!(lost, LossReason::Removed, "not later with its session");
            assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        } else {
            while guard.state() == GuardState::Valid {
                sleep(Duration::from_millis(5)).await;
            }
            let release = tokio::spawn(guard.release());
            sleep(SETTLED).await;
            proxy.refuse(false);
            assert_eq!(timeout(SOON, release).await.unwrap().unwrap().unwrap(), Released::AlreadyLost);
        }
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        give_back(next).await;
    }
    must_be_clean(&server).await;
}

/// Its connection is up and its lock valid, when the node is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_a_break_spares_the_next_holder() {
    let server = server().await;
    for hears_late in [true, false] {
        let proxy = proxy(&server);
        let (one, two) = (locks_through(&proxy, ZkWait::Watch).await, locks_on(&server, ZkWait::Watch).await);
        let guard = one.mutex("a").acquire().await.unwrap();
        if hears_late {
            proxy.hold(Direction::ToClient);
        }
        assert!(two.break_lock("a").await.unwrap());
        let next = two.mutex("a").try_acquire().await.unwrap().unwrap();
        assert!(!hears_late || guard.state() == GuardState::Valid);
        let release = tokio::spawn(guard.release());
        if hears_late {
            until("nothing was asked", async || proxy.queued(Direction::ToClient) > 0).await;
            sleep(SETTLED).await;
            proxy.deliver();
        }
        assert_eq!(timeout(SOON, release).await.unwrap().unwrap().unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        give_back(next).await;
    }
    must_be_clean(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_of_that_name_are_not_taken() {
    let server = server().await;
    let client = client(&server).await;
    let (one, queued) = (locks_on(&server, ZkWait::Watch).await, connect(&server).await);
    // The directory of a queue.
    let guard = queued.mutex("a").acquire().await.unwrap();
    assert!(one.mutex("a").try_acquire().await.unwrap().is_none());
    let waiter = wait(&one);
    sleep(SETTLED).await;
    assert!(!waiter.is_finished());
    give_back(guard).await;
    client.delete("/locks/a", None).await.unwrap();
    let guard = soon(waiter).await;
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
    let waiter = wait(&one);
    sleep(SETTLED).await;
    client.delete("/locks/a", None).await.unwrap();
    give_back(soon(waiter).await).await;
}
