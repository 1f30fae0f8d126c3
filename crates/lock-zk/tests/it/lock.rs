//! The lock on a server that behaves.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::FutureExt;
use lock_core::{
    ErrorKind, GuardState, Holder, LeaseKind, LockOptions, LockState, Locks, LossReason, Released,
};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::{Direction, FaultProxy, opcode, zk_opcode};
use lock_zk::zookeeper_client::{Acls, CreateMode};
use lock_zk::{ZkConfig, ZkLayout, ZkRecipe, ZkWait};
use tokio::sync::Semaphore;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_and_release() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    let guard = locks.mutex("a").acquire().await.unwrap();
    let nodes = children(&client, "a").await;
    assert_eq!(nodes.len(), 1);
    assert!(nodes[0].starts_with("_c_") && nodes[0].ends_with("-lock-0000000000"), "{nodes:?}");
    assert!(guard.is_valid() && guard.remaining() > TIMEOUT / 2 && guard.remaining() <= TIMEOUT * 3 / 4);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    assert!(guard.extend(TIMEOUT).await.unwrap() <= guard.valid_until());
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    assert!(children(&client, "a").await.is_empty());

    let again = locks.mutex("a").try_acquire().await.unwrap().unwrap();
    assert!(again.token() > token);
    assert_eq!(locks.capabilities().lease, LeaseKind::session(TIMEOUT));
    assert!(locks.capabilities().fifo && locks.capabilities().counts_waiters);
}

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
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    let start = Instant::now();
    while client.check_stat("/locks/a").await.unwrap().is_some() {
        assert!(start.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(client.check_stat("/locks").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn processes_get_the_lock_in_the_order_in_which_they_asked() {
    let server = server().await;
    let client = client(&server).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(connect(&server).await);
    }
    let first = clients[0].mutex("a").acquire().await.unwrap();
    let (order, mut granted) = tokio::sync::mpsc::unbounded_channel();
    for (at, locks) in clients.iter().enumerate().skip(1) {
        let (locks, order) = (locks.clone(), order.clone());
        tokio::spawn(async move {
            let guard = locks.mutex("a").acquire().await.unwrap();
            order.send((at, guard.token())).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(guard.is_valid());
            assert_eq!(guard.release().await.unwrap(), Released::Released);
        });
        until_children(&client, "a", at + 1).await;
    }
    let mut last = first.token();
    first.release().await.unwrap();
    for expected in 1..5 {
        let (at, token) = granted.recv().await.unwrap();
        assert_eq!(at, expected);
        assert!(token > last);
        last = token;
    }
    until_children(&client, "a", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_never_overlap() {
    let server = server().await;
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let (locks, inside) = (connect(&server).await, Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            for round in 0..40 {
                let mutex = locks.mutex("a");
                let guard = if round % 3 == 0 {
                    match mutex.try_acquire_for(Duration::from_millis(200)).await.unwrap() {
                        Some(guard) => guard,
                        None => continue,
                    }
                } else {
                    mutex.acquire().await.unwrap()
                };
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(guard.release().await.unwrap(), Released::Released);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
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
            assert_eq!(guard.release().await.unwrap(), Released::Released);
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
        let mut unpolled = Box::pin(first.acquire());
        // Sent, and granted.
        assert!(unpolled.as_mut().now_or_never().is_none());
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
async fn an_operator_deletes_the_node_of_the_holder() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    for settled in [false, true] {
        let guard = one.mutex("a").acquire().await.unwrap();
        if settled {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Curator's revocation request, or any other change of the data, is not the end.
            let path = format!("/locks/a/{}", children(&client, "a").await[0]);
            client.set_data(&path, b"__REVOKE__", None).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(guard.is_valid());
        }
        let path = format!("/locks/a/{}", children(&client, "a").await[0]);
        client.delete(&path, None).await.unwrap();
        let start = Instant::now();
        assert_eq!(guard.lost().await, LossReason::Removed);
        assert!(start.elapsed() < TIMEOUT / 2, "{:?}", start.elapsed());
        let next = two.mutex("a").try_acquire().await.unwrap().unwrap();
        assert_eq!(guard.verify().await.unwrap(), GuardState::Lost(LossReason::Removed));
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
        next.release().await.unwrap();
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
async fn inspect_and_break() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    assert_eq!(one.inspect("a").await.unwrap(), LockState::free());
    assert!(!one.break_lock("a").await.unwrap());
    let mutex = one.mutex_with("a", LockOptions::new().label("nightly")).unwrap();
    let guard = mutex.acquire().await.unwrap();
    let waiter = {
        let two = two.clone();
        tokio::spawn(async move { two.mutex("a").acquire().await })
    };
    until_children(&client, "a", 2).await;
    let state = one.inspect("a").await.unwrap();
    let Some(Holder::Known(owner)) = state.holder() else { panic!("{state:?}") };
    assert_eq!((owner.pid, owner.label.as_deref()), (std::process::id(), Some("nightly")));
    assert_eq!((state.token, state.waiters), (Some(guard.token()), 1));
    assert!(state.holders[0].asked.unwrap().elapsed().unwrap() < Duration::from_secs(5));

    assert!(one.break_lock("a").await.unwrap());
    assert_eq!(guard.lost().await, LossReason::Removed);
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(one.inspect("a").await.unwrap().token, Some(next.token()));
    next.release().await.unwrap();
    assert!(!one.inspect("a").await.unwrap().is_held());
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
async fn a_write_lock_that_is_downgraded_stays_before_us() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    mkdir(&client, "/locks/a").await;
    let acls = Acls::anyone_all();
    let write = CreateMode::EphemeralSequential.with_acls(acls);
    let (_, sequence) = client.create("/locks/a/_c_1-__WRIT__", b"", &write).await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("a").acquire().await.map(|guard| (guard, locks)) });
    until_children(&client, "a", 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // As Curator does it: the number of the write lock appears again, ahead.
    let read = format!("/locks/a/_c_2-__READ__{sequence}");
    client.create(&read, b"", &CreateMode::Ephemeral.with_acls(acls)).await.unwrap();
    client.delete(&format!("/locks/a/_c_1-__WRIT__{sequence}"), None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!waiter.is_finished());
    client.delete(&read, None).await.unwrap();
    assert!(waiter.await.unwrap().unwrap().0.is_valid());
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
        let mutex = locks.mutex("a");
        let waiter = tokio::spawn(async move { mutex.acquire().await });
        until_children(&client, "a", 4).await;
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
        assert_eq!(guard.release().await.unwrap(), Released::Released);
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
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_is_lost_when_it_was_held_for_too_long() {
    let server = server().await;
    let (one, two) = (connect(&server).await, connect(&server).await);
    let hold = Duration::from_millis(300);
    let mutex = one.mutex_with("a", LockOptions::new().max_hold(hold)).unwrap();
    for waits in [false, true] {
        let start = Instant::now();
        let guard = mutex.acquire().await.unwrap();
        if waits {
            assert_eq!(guard.lost().await, LossReason::MaxHold);
        }
        let next = two.mutex("a").acquire().await.unwrap();
        assert!(start.elapsed() >= hold && start.elapsed() < hold + TIMEOUT / 2, "{:?}", start.elapsed());
        assert_eq!(guard.state(), GuardState::Lost(LossReason::MaxHold));
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(next.release().await.unwrap(), Released::Released);
    }
    let guard = mutex.acquire().await.unwrap();
    guard.release().await.unwrap();
    let other = one.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(hold * 2).await;
    assert!(other.is_valid(), "max_hold of an earlier guard");
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
    assert_eq!(guard.release().await.unwrap(), Released::Released);

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
            assert_eq!(guard.release().await.unwrap(), Released::Released);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn closing_ends_the_session() {
    let server = server().await;
    let (one, two, client) = (connect(&server).await, connect(&server).await, client(&server).await);
    let guard = one.mutex("a").acquire().await.unwrap();
    let waiter = {
        let one = one.clone();
        let held = two.mutex("b").acquire().await.unwrap();
        let waiter = tokio::spawn(async move { one.mutex("b").acquire().await });
        until_children(&client, "b", 2).await;
        (waiter, held)
    };
    one.close().await.unwrap();
    assert_eq!(guard.state(), GuardState::Lost(LossReason::SessionEnded));
    assert!(children(&client, "a").await.is_empty());
    assert_eq!(waiter.0.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    for error in [
        one.mutex("c").acquire().await.unwrap_err(),
        one.inspect("a").await.unwrap_err(),
        one.break_lock("a").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    one.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_ends_with_its_last_user() {
    let server = server().await;
    let client = client(&server).await;
    let locks = connect(&server).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    drop(locks);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    guard.release().await.unwrap();
    let start = Instant::now();
    while server.mntr().await.unwrap()["zk_num_alive_connections"] != "2" {
        // The test's client and this question.
        assert!(start.elapsed() < TIMEOUT, "{:?}", server.four_letter("cons").await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(client);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guards_can_be_dropped_anywhere() {
    let server = server().await;
    let (locks, client) = (connect(&server).await, client(&server).await);
    drop(locks.mutex("a").acquire().await.unwrap());
    until_children(&client, "a", 0).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    until_children(&client, "a", 0).await;
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
async fn names_of_every_kind() {
    let server = server().await;
    let (one, two) = (connect(&server).await, connect(&server).await);
    let long = "x".repeat(1000);
    let wide = "\u{1f980}".repeat(250);
    let names = [
        "a/b",
        "/",
        "a//b",
        ".",
        "..",
        "...",
        "a\0b",
        "\0",
        " ",
        "a b",
        "\u{1f980}",
        "é",
        "A",
        "a",
        "%2E",
        "%",
        "zookeeper",
        "\u{e000}",
        "\u{fff0}",
        "\u{7f}",
        "_c_-lock-0000000000",
        &long,
        &wide,
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(one.mutex(name).try_acquire().await.unwrap().unwrap_or_else(|| panic!("{name:?}")));
    }
    for name in names {
        assert!(two.mutex(name).try_acquire().await.unwrap().is_none(), "{name:?}");
        assert!(two.inspect(name).await.unwrap().is_held(), "{name:?}");
    }
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    let root = config(&server).dir("/").connect().await.unwrap();
    let guard = root.mutex("zookeeper").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::Released);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn refusals_of_the_acl_are_reported() {
    let server = server().await;
    let client = client(&server).await;
    client.auth("digest", b"boss:s3cret").await.unwrap();
    client.create("/locks", b"", &CreateMode::Persistent.with_acls(Acls::creator_all())).await.unwrap();
    let locks = connect(&server).await;
    let error = locks.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("/locks"), "{error}");
    let wrong = config(&server).credentials("boss", "wr0ng").connect().await.unwrap();
    let error = wrong.mutex("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error} {error:?} {wrong:?}").contains("wr0ng"));
    let url = format!("zk://boss:s3cret@{}?session_timeout=4s", server.connect_string());
    let right = ZkConfig::from_url(&url).unwrap().connect().await.unwrap();
    assert_eq!(right.mutex("a").acquire().await.unwrap().release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_bounds_of_the_session_timeout_are_reported() {
    let server = ZooKeeper::builder().max_session_timeout(Duration::from_secs(5)).start().await.unwrap();
    let server = Server::from(server);
    let locks = config(&server).session_timeout(Duration::from_secs(60)).connect().await.unwrap();
    assert_eq!(locks.capabilities().lease, LeaseKind::session(Duration::from_secs(5)));
    let guard = locks.mutex("a").acquire().await.unwrap();
    assert!(guard.remaining() < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_unreachable_server_is_reported_in_time() {
    let server = server().await;
    let patience = Duration::from_millis(500);
    let config = config(&server).connect_timeout(patience);
    server.kill();
    let start = Instant::now();
    let error = config.credentials("me", "s3cret").connect().await.unwrap_err();
    assert!(start.elapsed() < patience + TIMEOUT / 2, "{:?}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&server.connect_string()), "{error}");
    assert!(!format!("{error:?}").contains("s3cret"));
}
