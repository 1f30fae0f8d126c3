//! Sessions that are shared, that are full, that end, and that are opened late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use lock_core::backend::{AcquireRequest, LeasePolicy, Wait};
use lock_core::{ErrorKind, Guard, GuardState, Locks, LossReason, Outcome, OwnerInfo, Released};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::Direction;
use lock_zk::zookeeper_client::Client;
use lock_zk::{NodeAcl, ZkConfig, ZkLayout};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use crate::common::*;

/// The locks `0`, `1`, ... by the session of their holders.
async fn by_session(client: &Client, locks: usize) -> BTreeMap<i64, Vec<usize>> {
    let mut sessions = BTreeMap::<i64, Vec<usize>>::new();
    for lock in 0..locks {
        let dir = format!("/locks/{lock}");
        for node in client.list_children(&dir).await.unwrap_or_default() {
            if let Some(stat) = client.check_stat(&format!("{dir}/{node}")).await.unwrap() {
                sessions.entry(stat.ephemeral_owner).or_default().push(lock);
            }
        }
    }
    sessions
}

async fn hold(locks: &Locks, name: usize) -> Guard {
    take(locks, &name.to_string()).await
}

fn shared(server: &ZooKeeper) -> ZkConfig {
    config(server).private_session(false)
}

async fn until_counts(server: &ZooKeeper, counter: &str, count: usize) {
    until(&format!("{counter} is {count}"), async || {
        server.mntr().await.unwrap().get(counter).is_some_and(|value| *value == count.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn connections_that_are_alike_share_a_session() {
    let server = server().await;
    // Where the locks are and what they are called is not the business of a session.
    let configs = [
        shared(&server),
        shared(&server),
        shared(&server).layout(ZkLayout::Kazoo),
        shared(&server).private_session(true),
        shared(&server).credentials("me", "Pa55").acl(NodeAcl::Open),
        shared(&server).session_timeout(2 * TIMEOUT),
    ];
    let (mut all, mut guards) = (Vec::new(), Vec::new());
    for (name, config) in configs.iter().enumerate() {
        all.push(opened(config).await);
        guards.push(hold(&all[name], name).await);
    }
    let sessions = by_session(&client(&server).await, 6).await;
    let mut alike: Vec<_> = sessions.into_values().collect();
    alike.sort();
    assert_eq!(alike, [vec![0, 1, 2], vec![3], vec![4], vec![5]]);

    // They exclude each other all the same.
    assert!(all[1].mutex("0").try_acquire().await.unwrap().is_none());
    let (waiter, first) = (queue_up(&all[1], "0").await, guards.remove(0));
    let token = first.token();
    let second = hand_over(first, waiter).await;
    assert!(second.token() > token);
    give_back(second).await;
}

/// Every connection watches the base of its tokens, in a session that outlives it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_takes_its_watches_along() {
    let server = server().await;
    let at = async |number: usize| opened(&shared(&server).dir(format!("/locks-{number}"))).await;
    let lasting = opened(&shared(&server)).await;
    give_back(hold(&lasting, 0).await).await;
    let until_watches = async |count| until_counts(&server, "zk_watch_count", count).await;
    until_watches(1).await;
    let mut guards = Vec::new();
    for number in 0..30 {
        let locks = at(number).await;
        let guard = hold(&locks, 0).await;
        match number % 3 {
            0 => give_back(guard).await,
            // It outlives the connection.
            1 => guards.push(guard),
            _ => {
                give_back(guard).await;
                locks.close().await.unwrap();
            }
        }
    }
    for guard in guards {
        give_back(guard).await;
    }
    until_watches(1).await;
    // Connections with one dir have one watch, until the last is closed.
    let (one, two) = (at(1).await, at(1).await);
    for locks in [&one, &two] {
        give_back(hold(locks, 0).await).await;
    }
    until_watches(2).await;
    drop(one);
    give_back(hold(&two, 0).await).await;
    until_watches(2).await;
    drop(two);
    until_watches(1).await;
    drop(lasting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_took_long_to_open_gives_locks_that_last() {
    let server = server().await;
    let proxy = proxy(&server);
    black_hole(&proxy, true);
    // One host thrice: so the silent ones are tried first.
    let config = config_of(vec![proxy.addr().to_string(); 3].join(","));
    let connecting = tokio::spawn(config.session_timeout(TIMEOUT).connect());
    sleep(TIMEOUT * 3 / 4).await; // Time: how long an opening takes is the subject.
    assert!(!connecting.is_finished(), "it does not take long");
    black_hole(&proxy, false);
    let locks = come(connecting).await.unwrap();
    let guard = hold(&locks, 0).await;
    // Time: nothing is wrong any more.
    let lost = timeout(TIMEOUT * 2, guard.lost()).await;
    assert!(lost.is_err(), "the lock was lost: {lost:?}");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_comes_back_in_time_opens_a_session() {
    let server = server().await;
    let proxy = proxy(&server);
    proxy.refuse(true);
    let opening = tokio::spawn(through(&proxy).connect());
    still_wait(&[&opening]).await;
    proxy.refuse(false);
    give_back(hold(&come(opening).await.unwrap(), 0).await).await;

    // Not for longer than connect_timeout.
    proxy.refuse(true);
    let (start, patience) = (Instant::now(), Duration::from_millis(300)); // Time: the subject.
    let error = soon(through(&proxy).connect_timeout(patience).connect()).await.unwrap_err();
    assert!(start.elapsed() >= patience / 2);
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("within 300ms"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_last_one_that_is_closed_ends_a_shared_session() {
    let server = server().await;
    let connect = async || opened(&shared(&server)).await;
    let (one, two) = (connect().await, connect().await);
    let (first, second) = (hold(&one, 0).await, hold(&two, 1).await);
    one.close().await.unwrap();
    one.close().await.unwrap();
    assert_eq!(one.mutex("2").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(first.is_valid() && second.is_valid(), "the other one is at work");
    assert_eq!(second.verify().await.unwrap(), GuardState::Valid);
    two.close().await.unwrap();
    for guard in [first, second] {
        assert_eq!(guard.state(), GuardState::Lost(LossReason::SessionEnded));
    }
    assert!(by_session(&client(&server).await, 2).await.is_empty());

    // And the next one begins afresh, also when the others were only dropped.
    let three = connect().await;
    let guard = hold(&three, 0).await;
    let four = connect().await;
    for other in [three, four] {
        drop(other);
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "a session lasts as long as its locks");
    }
    drop(guard);
    // The one that asks is left.
    until_counts(&server, "zk_num_alive_connections", 1).await;
}

/// The session goes on for others, and with it the nodes of what is kept and not polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_closed_gets_nothing_in_a_session_that_goes_on() {
    let server = server().await;
    let client = client(&server).await;
    let connect = async || opened(&shared(&server).session_timeout(LASTING)).await;
    let (one, other) = (connect().await, connect().await);
    let held = hold(&other, 0).await;
    let mutex = one.mutex("0");
    let mut unpolled = Box::pin(mutex.acquire());
    // Time: until it waits for the deletion of the node before it: then nothing wakes it any more.
    assert!(timeout(TIMEOUT / 2, &mut unpolled).await.is_err());
    until_children(&client, "0", 2).await;
    let leads = other.election("1").campaign("other").await.unwrap();
    let election = one.election("1");
    let runs = tokio::spawn(async move { election.run("one", async |_| ()).await });
    until_children(&client, "1", 2).await;
    let mut leaders = one.election("1").observe();
    assert!(poll!(Box::pin(leaders.next())).is_pending());

    one.close().await.unwrap();
    // Not when the second one would be asked or be granted the lock: at once.
    until_children(&client, "0", 1).await;
    until_children(&client, "1", 1).await;
    give_back(held).await;
    give_back(hold(&other, 0).await).await;
    assert_eq!(leads.resign().await.unwrap(), Released::Released);
    assert_eq!(come(runs).await.unwrap_err().error().kind(), ErrorKind::Closed);
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(leaders.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

/// The same without the tasks of the library in front of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_backend_ends_its_acquisitions_in_a_session_that_goes_on() {
    let server = server().await;
    let client = client(&server).await;
    let connect = async || opened(&shared(&server).session_timeout(LASTING)).await;
    let (one, other) = (connect().await, connect().await);
    let held = hold(&other, 0).await;
    let owner = Arc::new(OwnerInfo::this_process());
    let request =
        AcquireRequest::exclusive(held.name().clone(), Wait::Forever, LeasePolicy::default(), owner);
    let backend = Arc::clone(one.backend());
    let polled = tokio::spawn({
        let (backend, request) = (Arc::clone(&backend), request.clone());
        async move { backend.acquire(request).await.map(drop) }
    });
    let mut unpolled = Box::pin(backend.acquire(request));
    // Time: as above.
    assert!(timeout(TIMEOUT / 2, &mut unpolled).await.is_err());
    until_children(&client, "0", 3).await;
    backend.close().await.unwrap();
    assert_eq!(come(polled).await.unwrap_err().kind(), ErrorKind::Closed);
    until_children(&client, "0", 1).await;
    assert_eq!(unpolled.await.map(drop).unwrap_err().kind(), ErrorKind::Closed);
    give_back(held).await;
}

#[test]
fn runtimes_do_not_share() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(server());
    let one = first.block_on(shared(&server).connect()).unwrap();
    let two = second.block_on(shared(&server).connect()).unwrap();
    let guard = first.block_on(hold(&one, 0));
    drop(first);
    // The session of the first has no user any more; that of the second goes on.
    second.block_on(async { give_back(hold(&two, 1).await).await });
    drop(guard);
}

/// The session goes on for others, and so would the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_the_roll_backs_of_acquisitions_in_a_shared_session() {
    let server = server().await;
    let (proxy, client) = (proxy(&server), client(&server).await);
    let config = through(&proxy).private_session(false);
    let (one, other) = (opened(&config).await, opened(&config).await);
    let held = hold(&other, 0).await;
    let waiter = queue_up(&one, "0").await;
    proxy.delay(Direction::ToServer, TIMEOUT / 10);
    waiter.abort();
    waiter.await.unwrap_err();
    assert_eq!(children(&client, "0").await.len(), 2);
    one.close().await.unwrap();
    assert_eq!(children(&client, "0").await.len(), 1, "the node of the acquisition is left");
    proxy.heal();
    give_back(held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_further_session_is_opened_when_one_is_full() {
    let server = server().await;
    let connect = async || opened(&shared(&server).locks_per_session(3)).await;
    let (locks, other, client) = (connect().await, connect().await, client(&server).await);
    let counts = async || {
        let sessions = by_session(&client, 20).await;
        let mut counts: Vec<_> = sessions.into_values().map(|locks| locks.len()).collect();
        counts.sort_unstable();
        counts
    };
    let mut guards = Vec::new();
    for name in 0..8 {
        guards.push(hold(&locks, name).await);
    }
    assert_eq!(counts().await, [2, 3, 3]);
    // What was released makes room in the first that has any, and waiting takes room as well.
    give_back(guards.remove(0)).await;
    let waiter = queue_up(&other, "1").await;
    let sessions = by_session(&client, 20).await;
    let first = sessions.values().find(|locks| locks.contains(&1)).unwrap();
    assert_eq!(first, &[1, 1, 2]);
    for name in [10, 11] {
        guards.push(hold(&locks, name).await);
    }
    assert_eq!(counts().await, [1, 3, 3, 3]);
    give_back(hand_over(guards.remove(0), waiter).await).await;
    assert!(guards.iter().all(Guard::is_valid));

    other.close().await.unwrap();
    locks.close().await.unwrap();
    assert!(!guards.iter().any(Guard::is_valid));
    assert!(counts().await.is_empty(), "all sessions were closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_full_session_is_replaced_after_its_end() {
    let scene = Scene::of(SHORT, |config| config.locks_per_session(2)).await;
    let (mut lost, mut fresh) = (Vec::new(), Vec::new());
    for name in 0..5 {
        lost.push(hold(&scene.locks, name).await);
    }
    let before = by_session(&scene.client, 5).await;
    assert_eq!(before.len(), 3);
    scene.black_hole(true);
    for guard in &lost {
        guard.lost().await;
    }
    scene.proxy.heal();
    for (name, old) in lost.iter().enumerate() {
        let guard = hold(&scene.locks, name).await;
        assert!(guard.token() > old.token());
        fresh.push(guard);
    }
    let after = by_session(&scene.client, 5).await;
    assert_eq!(after.len(), 3);
    assert!(before.keys().all(|session| !after.contains_key(session)));
    for guard in lost {
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost, "a lock that is lost stays so");
    }
    assert!(fresh.iter().all(Guard::is_valid), "a late release is not for the next holder");
}
