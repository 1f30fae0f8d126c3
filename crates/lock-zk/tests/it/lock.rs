//! The lock on a server that behaves.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::FutureExt;
use lock_core::{ErrorKind, GuardState, Holder, LockOptions, Locks, LossReason, Released};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Direction, FaultProxy, opcode, zk_opcode};
use lock_zk::zookeeper_client::{Acls, CreateMode};
use lock_zk::{ZkConfig, ZkLayout, ZkRecipe, ZkWait};
use tokio::sync::Semaphore;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: twenty seconds"]
async fn directories_that_are_not_used_go() {
    let interval = ZooKeeper::builder().property("znode.container.checkIntervalMs", "20");
    let server = Server::from(interval.start().await.unwrap());
    let (locks, client) = (connect(&server).await, client(&server).await);
    let mut last = None;
    // The server removes the directory between any two steps of the client.
    for _ in 0..200 {
        let guard = locks.mutex("a").acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        give_back(guard).await;
    }
    let start = Instant::now();
    while client.check_stat("/locks/a").await.unwrap().is_some() {
        assert!(start.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(client.check_stat("/locks").await.unwrap().is_some());
}

/// Where the directory may not be written: another node is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_queue_is_listed_without_waiting_for_the_creation() {
    let scene = Scene::with(LONG, ZkLayout::Curator).await;
    mkdir(&scene.client, "/locks/a/config").await;
    assert_eq!(scene.locks.mutex("a").acquire().await.unwrap().release().await.unwrap(), Released::Released);
    let sent = Arc::new(Mutex::new(Vec::<i32>::new()));
    scene.proxy.cut_when({
        let (sent, codes) = (Arc::clone(&sent), [opcode::CREATE2, opcode::MULTI, opcode::GET_CHILDREN2]);
        move |request: &[u8]| {
            sent.lock()
                .unwrap()
                .extend(codes.iter().filter(|code| zk_opcode(**code)(request) && !is_check(request)));
            false
        }
    });
    scene.proxy.hold(Direction::ToClient);
    let mutex = scene.locks.mutex("a");
    let acquisition = tokio::spawn(async move { mutex.acquire().await.unwrap() });
    let start = Instant::now();
    while *sent.lock().unwrap() != [opcode::CREATE2, opcode::GET_CHILDREN2] {
        assert!(start.elapsed() < LONG, "{:?}", sent.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(!acquisition.is_finished());
    scene.proxy.deliver();
    assert_eq!(acquisition.await.unwrap().release().await.unwrap(), Released::Released);
    assert_eq!(children(&scene.client, "a").await, ["config"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_try_on_a_held_lock_writes_nothing() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    let before = client.check_stat("/locks/a").await.unwrap().unwrap();
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    assert!(two.mutex("a").try_acquire_for(Duration::ZERO).await.unwrap().is_none());
    let after = client.check_stat("/locks/a").await.unwrap().unwrap();
    assert_eq!((before.cversion, before.pzxid), (after.cversion, after.pzxid));
    guard.release().await.unwrap();
    assert!(two.mutex("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deadline_is_kept_and_leaves_nothing() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    // Wakes up the code paths.
    assert!(two.mutex("a").try_acquire().await.unwrap().is_none());
    let start = Instant::now();
    assert!(two.mutex("a").try_acquire_for(Duration::from_millis(200)).await.unwrap().is_none());
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200) && took < TIMEOUT / 2, "{took:?}");
    // On a busy machine the deletion is answered after the deadline.
    until_children(&client, "a", 1).await;
    // The watches go with the wait, in the background: one of the holder's own is left.
    let start = Instant::now();
    while lock_watches(&server).await > 1 {
        assert!(start.elapsed() < TIMEOUT, "a watch is left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(lock_watches(&server).await, 1);
    guard.release().await.unwrap();
}

/// The first has its lock at once, and is watched a moment later; the second has waited for it, and watched its own
/// node.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_release_disturbs_two_waiters_at_most() {
    let server = server().await;
    let client = client(&server).await;
    let (mut proxies, mut clients) = (Vec::new(), Vec::new());
    for at in 0..7 {
        let proxy = proxy(&server);
        let (locks, go_on) = (through(&proxy).connect().await.unwrap(), Arc::new(Semaphore::new(0)));
        let released = Arc::clone(&go_on);
        let client_of_ours = tokio::spawn(async move {
            let guard = locks.mutex("a").acquire().await.unwrap();
            drop(released.acquire().await.unwrap());
            give_back(guard).await;
            locks
        });
        until_children(&client, "a", at + 1).await;
        proxies.push(proxy);
        clients.push((client_of_ours, go_on));
    }
    for (releaser, (_, go_on)) in clients.iter().enumerate().take(2) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxies.iter().for_each(FaultProxy::reset_counters);
        go_on.add_permits(1);
        until_children(&client, "a", 6 - releaser).await;
        let notified = || proxies.iter().map(FaultProxy::pushes).collect::<Vec<_>>();
        // Whose turn it is, the one behind it, which looks ahead, and the releaser of the end of its own node.
        let expected: Vec<_> =
            (0..proxies.len()).map(|at| u64::from((releaser..releaser + 3).contains(&at))).collect();
        let start = Instant::now();
        while notified() != expected && start.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // No other client is notified a moment later.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(notified(), expected);
    }
    for (client_of_ours, go_on) in clients {
        go_on.add_permits(1);
        client_of_ours.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_waiter_that_gives_up_does_not_let_the_next_one_in() {
    let server = server().await;
    let client = client(&server).await;
    let (one, two, three) = (connect(&server).await, connect(&server).await, connect(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    let second =
        tokio::spawn(async move { two.mutex("a").try_acquire_for(Duration::from_millis(1500)).await });
    until_children(&client, "a", 2).await;
    let third = tokio::spawn(async move { three.mutex("a").acquire().await });
    until_children(&client, "a", 3).await;
    assert!(second.await.unwrap().unwrap().is_none());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!third.is_finished());
    guard.release().await.unwrap();
    assert!(third.await.unwrap().unwrap().is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_acquisition_that_is_not_polled_keeps_nobody_out() {
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch)] {
        let server = server().await;
        let (client, config) = (client(&server).await, config(&server).recipe(recipe));
        let (one, two) = (opened(&config).await, opened(&config).await);
        let (first, second) = (one.mutex("a"), two.mutex("a"));
        // Makes the directory.
        first.acquire().await.unwrap().release().await.unwrap();
        // Sent, and granted. A busy machine may have the answer within the first poll.
        let mut unpolled = loop {
            let mut acquiring = Box::pin(first.acquire());
            match acquiring.as_mut().now_or_never() {
                Some(guard) => give_back(guard.unwrap()).await,
                None => break acquiring,
            }
        };
        let guard = timeout(LONG, second.acquire()).await.unwrap().unwrap();
        // It starts over, and waits.
        assert!(timeout(Duration::from_millis(100), &mut unpolled).await.is_err());
        guard.release().await.unwrap();
        // Granted once more, and not polled.
        timeout(LONG, second.acquire()).await.unwrap().unwrap().release().await.unwrap();
        let guard = timeout(LONG, unpolled).await.unwrap().unwrap();
        assert!(guard.is_valid() && second.try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        until_children(&client, "a", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_operator_deletes_the_node_of_a_waiter() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { (two.mutex("a").acquire().await, two) });
    until_children(&client, "a", 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let old = children(&client, "a").await[1].clone();
    client.delete(&format!("/locks/a/{old}"), None).await.unwrap();
    // It queues again, and does not take the deletion for its turn.
    until_children(&client, "a", 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished());
    assert_ne!(children(&client, "a").await[1], old);
    guard.release().await.unwrap();
    assert!(waiter.await.unwrap().0.unwrap().is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn foreign_clients_exclude_us() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    mkdir(&client, "/locks/a/config").await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for prefix in
        ["_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-", "lock-", "7c9e__lock__", "x-", "a-__READ__"]
    {
        let (_, sequence) =
            client.create(&format!("/locks/a/{prefix}"), b"10.0.0.7", &options).await.unwrap();
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none(), "{prefix}");
        let waiter = {
            let locks = locks.clone();
            tokio::spawn(async move { locks.mutex("a").acquire().await })
        };
        until_children(&client, "a", 3).await;
        let state = locks.inspect("a").await.unwrap();
        let node = format!("{prefix}{sequence}");
        assert_eq!(state.holder(), Some(&Holder::Foreign(format!("node {node} with data \"10.0.0.7\""))));
        client.set_data(&format!("/locks/a/{node}"), b"", None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!waiter.is_finished(), "{prefix}");
        client.delete(&format!("/locks/a/{node}"), None).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_queue_without_an_order_is_refused() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    for name in ["x-2147483647", "x--2147483648"] {
        client.create(&format!("/locks/a/{name}"), b"", &options).await.unwrap();
        let error = locks.mutex("a").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{name}");
        assert!(error.to_string().contains("/locks/a") && error.to_string().contains(name), "{error}");
        until_children(&client, "a", 1).await;
        client.delete(&format!("/locks/a/{name}"), None).await.unwrap();
        let guard = locks.mutex("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// A node that no lock created, with the number of the own node: it is waited for as any contender ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_foreign_node_with_our_number_is_waited_for() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    // Each creation counts, so that ours gets the number 3; as its name would sort before ours, and behind.
    for names in
        [["!-0000000003", "x-0000000009", "y-0000000009"], ["~-0000000007", "x-0000000009", "y-0000000009"]]
    {
        for name in &names {
            client.create(&format!("/locks/a/{name}"), b"", &options).await.unwrap();
        }
        let waiter = queue_up(&locks, &client, 4).await;
        let digits = names[0].len() - 10;
        let twins =
            children(&client, "a").await.into_iter().filter(|name| name.ends_with(&names[0][digits..]));
        assert_eq!(twins.count(), 2, "ours has another number");
        assert!(locks.mutex("a").try_acquire().await.unwrap().is_none());
        assert!(!waiter.is_finished());
        client.delete(&format!("/locks/a/{}", names[0]), None).await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        for name in &names[1..] {
            client.delete(&format!("/locks/a/{name}"), None).await.unwrap();
        }
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn all_layouts_exclude_each_other() {
    let server = server().await;
    let mut all = Vec::new();
    for layout in [ZkLayout::Curator, ZkLayout::Plain, ZkLayout::Kazoo] {
        all.push(config(&server).layout(layout).connect().await.unwrap());
    }
    for holder in &all {
        let guard = holder.mutex("a").acquire().await.unwrap();
        for other in &all {
            let other = Locks::from_dyn(Arc::clone(other.backend()));
            assert!(other.mutex("a").try_acquire().await.unwrap().is_none());
            assert!(other.mutex("a").try_acquire_for(Duration::from_millis(200)).await.unwrap().is_none());
        }
        give_back(guard).await;
    }
}

/// How long a lock outlives a dead holder is the session's to say, and the URL's.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_ttl_below_the_session_timeout_is_refused() {
    let server = server().await;
    let locks = connect(&server).await;
    for options in [LockOptions::new().ttl(SHORT), LockOptions::new().fixed_ttl(SHORT)] {
        let error = locks.mutex_with("a", options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("session_timeout=2000ms"), "{error}");
    }
    let guard = locks.mutex("a").acquire().await.unwrap();
    let error = guard.extend(SHORT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    give_back(guard).await;

    // With the option that the error names.
    let url = format!("{}/?session_timeout=2000ms&session=private", server.url());
    let locks = ZkConfig::from_url(&url).unwrap().connect().await.unwrap();
    let mutex = locks.mutex_with("a", LockOptions::new().ttl(SHORT)).unwrap();
    let guard = mutex.acquire().await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(
        guard.release().await.unwrap(),
        Released::Released,
        "it is kept for as long as the guard lives"
    );
}

/// The end of a fixed ttl is kept also when the server can be reached only later: by a deletion, not by the end of the
/// session.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_fixed_ttl_ends_while_the_server_is_silent() {
    for recipe in [ZkRecipe::Queue, ZkRecipe::Ephemeral(ZkWait::Watch)] {
        let server = server().await;
        let proxy = proxy(&server);
        let locks = opened(&through(&proxy).session_timeout(LONG).recipe(recipe)).await;
        let other = opened(&config(&server).recipe(recipe)).await;
        let kept = locks.mutex("kept").acquire().await.unwrap();
        let mutex = locks.mutex_with("a", LockOptions::new().fixed_ttl(LONG)).unwrap();
        let guard = mutex.acquire().await.unwrap();
        tokio::time::sleep(LONG * 7 / 8).await;
        proxy.refuse(true);
        proxy.rst();
        assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
        assert!(other.mutex("a").try_acquire().await.unwrap().is_none(), "the server does not know");
        proxy.refuse(false);
        let next = timeout(LONG, other.mutex("a").acquire()).await.expect("it is deleted").unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn max_hold_limits_a_fixed_ttl() {
    let server = server().await;
    let locks = connect(&server).await;
    let hold = Duration::from_millis(500);
    let options = LockOptions::new().fixed_ttl(TIMEOUT).max_hold(hold);
    let guard = locks.mutex_with("a", options).unwrap().acquire().await.unwrap();
    assert!(guard.extend(TIMEOUT * 2).await.is_ok() && guard.remaining() <= hold);
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}

#[test]
fn guards_and_waiters_can_outlive_their_runtime() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (outer, inner) = (runtime(), runtime());
    let server = outer.block_on(server());
    let (locks, client) = outer.block_on(async { (connect(&server).await, client(&server).await) });
    let other = inner.block_on(async { connect(&server).await });
    let guard = inner.block_on(async { other.mutex("a").acquire().await.unwrap() });
    let mut waiter = Box::pin({
        let other = Locks::from_dyn(Arc::clone(other.backend()));
        async move { other.mutex("a").acquire().await }
    });
    inner.block_on(async {
        assert!(timeout(Duration::from_millis(100), &mut waiter).await.is_err());
    });
    let mut orphan = Box::pin({
        let other = Locks::from_dyn(Arc::clone(other.backend()));
        async move { other.mutex("a").acquire().await }
    });
    inner.block_on(async {
        assert!(timeout(Duration::from_millis(100), &mut orphan).await.is_err());
    });
    inner.shutdown_timeout(Duration::from_secs(1));
    drop(waiter);
    let error = outer.block_on(orphan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    drop(guard);
    outer.block_on(async {
        // The connection ended with the runtime, the session when it expires.
        let guard = locks.mutex("a").try_acquire_for(TIMEOUT * 3).await.unwrap().unwrap();
        guard.release().await.unwrap();
        let error = other.mutex("b").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(children(&client, "a").await.is_empty());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_chroot_must_exist() {
    let server = server().await;
    let client = client(&server).await;
    let error = config(&server).chroot("/app/x").connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("/app/x") && error.to_string().contains("create"), "{error}");

    mkdir(&client, "/app/x").await;
    let locks = config(&server).chroot("/app/x").dir("/deep/er").connect().await.unwrap();
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert_eq!(client.list_children("/app/x/deep/er/a").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    for path in ["/app/x/deep/er/a", "/app/x/deep/er", "/app/x/deep", "/app/x"] {
        client.delete(path, None).await.unwrap();
    }
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("/app/x"), "{error}");
}
