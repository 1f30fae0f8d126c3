//! Sessions that are shared, that are full, that end, and that move from server to server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{SHORT, Servers, TIMEOUT, black_hole, client, proxy};
use futures_util::poll;
use lock_core::backend::{AcquireRequest, LeasePolicy, Wait};
use lock_core::{ErrorKind, Guard, GuardState, LeaseKind, Locks, LossReason, Outcome, OwnerInfo, Released};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::Direction;
use lock_zk::ZkConfig;
use lock_zk::zookeeper_client::Client;
use tokio::time::timeout;

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

async fn take(locks: &Locks, name: usize) -> Guard {
    locks.mutex(name.to_string()).try_acquire().await.unwrap().expect("nobody else wants it")
}

fn shared(server: &ZooKeeper) -> ZkConfig {
    ZkConfig::new(server.connect_string()).session_timeout(TIMEOUT)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn connections_that_are_alike_share_a_session() {
    let server = crate::common::server().await;
    let (one, two) = (shared(&server).connect().await.unwrap(), shared(&server).connect().await.unwrap());
    let others = [
        shared(&server).private_session(true),
        shared(&server).credentials("me", "Pa55").acl(lock_zk::NodeAcl::Open),
        shared(&server).session_timeout(2 * TIMEOUT),
    ];
    let mut guards = vec![take(&one, 0).await, take(&two, 1).await];
    // Where the locks are and what they are called is not the business of a session.
    let elsewhere = shared(&server).dir("/locks/").connect().await;
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let kazoo = shared(&server).layout(lock_zk::ZkLayout::Kazoo).connect().await.unwrap();
    guards.push(take(&kazoo, 2).await);
    let mut kept = Vec::new();
    for (config, name) in others.into_iter().zip(3..) {
        let locks = config.connect().await.unwrap();
        guards.push(take(&locks, name).await);
        kept.push(locks);
    }
    let client = client(&server).await;
    let sessions = by_session(&client, 6).await;
    let mut alike: Vec<_> = sessions.values().cloned().collect();
    alike.sort();
    assert_eq!(alike, [vec![0, 1, 2], vec![3], vec![4], vec![5]]);

    // They exclude each other all the same.
    assert!(two.mutex("0").try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let lock = two.mutex("0");
        async move { lock.acquire().await }
    });
    crate::common::until_children(&client, "0", 2).await;
    let first = guards.remove(0);
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let second = waiter.await.unwrap().unwrap();
    assert!(second.token() > token);
    assert_eq!(second.release().await.unwrap(), Released::Released);
}

/// Every connection watches the base of its tokens, in a session that outlives it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_takes_its_watches_along() {
    let server = crate::common::server().await;
    let lasting = shared(&server).connect().await.unwrap();
    let work = async |locks: &Locks| {
        let guard = take(locks, 0).await;
        assert_eq!(locks.inspect("0").await.unwrap().token, Some(guard.token()));
        guard
    };
    assert_eq!(work(&lasting).await.release().await.unwrap(), Released::Released);
    until_watches(&server, 1).await;
    let other = |number: usize| shared(&server).dir(format!("/locks-{number}")).connect();
    let mut guards = Vec::new();
    for number in 0..30 {
        let locks = other(number).await.unwrap();
        let guard = work(&locks).await;
        match number % 3 {
            0 => assert_eq!(guard.release().await.unwrap(), Released::Released),
            // It outlives the connection.
            1 => guards.push(guard),
            _ => {
                assert_eq!(guard.release().await.unwrap(), Released::Released);
                locks.close().await.unwrap();
            }
        }
    }
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    until_watches(&server, 1).await;
    // Connections with one dir have one watch, until the last is closed.
    let (one, two) = (other(1).await.unwrap(), other(1).await.unwrap());
    for locks in [&one, &two] {
        assert_eq!(work(locks).await.release().await.unwrap(), Released::Released);
    }
    until_watches(&server, 2).await;
    drop(one);
    assert_eq!(work(&two).await.release().await.unwrap(), Released::Released);
    until_watches(&server, 2).await;
    drop(two);
    until_watches(&server, 1).await;
    assert_eq!(work(&lasting).await.release().await.unwrap(), Released::Released);
}

async fn until_watches(server: &ZooKeeper, count: usize) {
    let (start, mut watches) = (Instant::now(), String::new());
    while watches != count.to_string() {
        assert!(start.elapsed() < TIMEOUT * 2, "{watches} watches, and not {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        watches = server.mntr().await.unwrap().remove("zk_watch_count").unwrap_or_default();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_session_that_took_long_to_open_gives_locks_that_last() {
    // What is asked for, the longest that the server grants, and for how long its hosts are silent.
    for (asked, longest, silent) in
        [(10_000, 4_000, 3_200), (6_000, 60_000, 4_500)].map(|(asked, longest, silent)| {
            let millis = Duration::from_millis;
            (millis(asked), millis(longest), millis(silent))
        })
    {
        let server = crate::common::Server::from(
            ZooKeeper::builder().max_session_timeout(longest).start().await.unwrap(),
        );
        let proxy = proxy(&server);
        black_hole(&proxy, true);
        let start = Instant::now();
        // One host thrice: so the silent ones are tried first.
        let config = ZkConfig::new(vec![proxy.addr().to_string(); 3].join(",")).private_session(true);
        let connecting = tokio::spawn(config.session_timeout(asked).connect());
        tokio::time::sleep(silent).await;
        black_hole(&proxy, false);
        let locks = connecting.await.unwrap().unwrap();
        assert!(start.elapsed() >= silent, "it did not take long");
        let LeaseKind::Session { timeout, .. } = locks.capabilities().lease else {
            panic!("there is a session")
        };
        assert_eq!(timeout, asked.min(longest));
        let guard = take(&locks, 0).await;
        // Nothing is wrong any more.
        let lost = tokio::time::timeout(timeout * 2, guard.lost()).await;
        assert!(lost.is_err(), "of a session of {timeout:?} the lock was lost: {lost:?}");
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_comes_back_in_time_opens_a_session() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    proxy.refuse(true);
    let config = crate::common::through(&proxy);
    let opening = tokio::spawn({
        let config = config.clone();
        async move { config.connect().await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!opening.is_finished(), "it did not wait");
    proxy.refuse(false);
    let locks = opening.await.unwrap().unwrap();
    assert_eq!(take(&locks, 0).await.release().await.unwrap(), Released::Released);

    // Not for longer than connect_timeout.
    proxy.refuse(true);
    let patience = Duration::from_millis(300);
    let start = Instant::now();
    let error = config.connect_timeout(patience).connect().await.unwrap_err();
    let took = start.elapsed();
    assert!(took >= patience / 2 && took < TIMEOUT, "{took:?}");
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotApplied));
    assert!(error.to_string().contains("within 300ms"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_last_one_that_is_closed_ends_a_shared_session() {
    let server = crate::common::server().await;
    let (one, two) = (shared(&server).connect().await.unwrap(), shared(&server).connect().await.unwrap());
    let (first, second) = (take(&one, 0).await, take(&two, 1).await);
    one.close().await.unwrap();
    one.close().await.unwrap();
    assert_eq!(one.mutex("2").try_acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(first.is_valid() && second.is_valid(), "the other one is at work");
    assert_eq!(second.verify().await.unwrap(), GuardState::Valid);
    let third = take(&two, 2).await;
    two.close().await.unwrap();
    for guard in [first, second, third] {
        assert_eq!(guard.state(), GuardState::Lost(LossReason::SessionEnded));
    }
    assert!(by_session(&client(&server).await, 3).await.is_empty());

    // And the next one begins afresh, also when the others were only dropped.
    let three = shared(&server).connect().await.unwrap();
    let guard = take(&three, 0).await;
    let four = shared(&server).connect().await.unwrap();
    drop(three);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    drop(four);
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "a session lasts as long as its locks");
    drop(guard);
    let start = Instant::now();
    let connections =
        async || server.mntr().await.unwrap()["zk_num_alive_connections"].parse::<usize>().unwrap();
    // The one that asks is one of them.
    while connections().await > 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "the session was not closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The session goes on for others, and with it the nodes of what is kept and not polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_closed_gets_nothing_in_a_session_that_goes_on() {
    let server = crate::common::server().await;
    let client = client(&server).await;
    let config = || shared(&server).session_timeout(PATIENT);
    let (one, other) = (config().connect().await.unwrap(), config().connect().await.unwrap());
    let held = take(&other, 0).await;
    let mutex = one.mutex("0");
    let mut unpolled = Box::pin(mutex.acquire());
    // Until it waits for the deletion of the node before it: then nothing wakes it any more.
    assert!(timeout(TIMEOUT / 2, &mut unpolled).await.is_err());
    crate::common::until_children(&client, "0", 2).await;
    let leads = other.election("1").campaign("other").await.unwrap();
    let election = one.election("1");
    let runs = tokio::spawn(async move { election.run("one", async |_| ()).await });
    crate::common::until_children(&client, "1", 2).await;
    let mut leaders = one.election("1").observe();
    assert!(poll!(Box::pin(leaders.next())).is_pending());

    one.close().await.unwrap();
    // Not when the second one would be asked or be granted the lock: at once.
    crate::common::until_children(&client, "0", 1).await;
    crate::common::until_children(&client, "1", 1).await;
    assert_eq!(held.release().await.unwrap(), Released::Released);
    assert_eq!(take(&other, 0).await.release().await.unwrap(), Released::Released);
    assert_eq!(leads.resign().await.unwrap(), Released::Released);
    assert_eq!(runs.await.unwrap().unwrap_err().error().kind(), ErrorKind::Closed);
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(leaders.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

/// The same without the tasks of the library in front of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_backend_ends_its_acquisitions_in_a_session_that_goes_on() {
    let server = crate::common::server().await;
    let client = client(&server).await;
    let config = || shared(&server).session_timeout(PATIENT);
    let (one, other) = (config().connect().await.unwrap(), config().connect().await.unwrap());
    let held = take(&other, 0).await;
    let owner = Arc::new(OwnerInfo::this_process());
    let request =
        AcquireRequest::exclusive(held.name().clone(), Wait::Forever, LeasePolicy::default(), owner);
    let backend = Arc::clone(one.backend());
    let polled = tokio::spawn({
        let (backend, request) = (Arc::clone(&backend), request.clone());
        async move { backend.acquire(request).await }
    });
    let mut unpolled = Box::pin(backend.acquire(request));
    assert!(timeout(TIMEOUT / 2, &mut unpolled).await.is_err());
    crate::common::until_children(&client, "0", 3).await;
    backend.close().await.unwrap();
    let polled = timeout(PATIENT, polled).await.expect("it ends");
    assert_eq!(polled.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    crate::common::until_children(&client, "0", 1).await;
    assert_eq!(unpolled.await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(held.is_valid());
    drop(held);
}

#[test]
fn runtimes_do_not_share() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let server = first.block_on(crate::common::server());
    let one = first.block_on(shared(&server).connect()).unwrap();
    let two = second.block_on(shared(&server).connect()).unwrap();
    let guard = first.block_on(take(&one, 0));
    drop(first);
    // The session of the first has no user any more; that of the second goes on.
    second.block_on(async {
        let guard = take(&two, 1).await;
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        guard.release().await.unwrap();
    });
    drop(guard);
}

/// The session goes on for others, and so would the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_the_roll_backs_of_acquisitions_in_a_shared_session() {
    let server = crate::common::server().await;
    let (proxy, client) = (proxy(&server), client(&server).await);
    let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(TIMEOUT);
    let (one, other) = (config.clone().connect().await.unwrap(), config.connect().await.unwrap());
    let held = take(&other, 0).await;
    let lock = one.mutex("0");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    crate::common::until_children(&client, "0", 2).await;
    proxy.delay(Direction::ToServer, TIMEOUT / 10);
    waiter.abort();
    waiter.await.unwrap_err();
    assert_eq!(crate::common::children(&client, "0").await.len(), 2);
    one.close().await.unwrap();
    assert_eq!(crate::common::children(&client, "0").await.len(), 1, "the node of the acquisition is left");
    proxy.heal();
    assert_eq!(held.verify().await.unwrap(), GuardState::Valid);
    assert_eq!(held.release().await.unwrap(), Released::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_further_session_is_opened_when_one_is_full() {
    let server = crate::common::server().await;
    let connect = || shared(&server).locks_per_session(3).connect();
    let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
    let mut guards = Vec::new();
    for name in 0..8 {
        guards.push(take(&locks, name).await);
    }
    let client = client(&server).await;
    let counts =
        async || by_session(&client, 20).await.into_values().map(|locks| locks.len()).collect::<Vec<_>>();
    let mut before = counts().await;
    before.sort_unstable();
    assert_eq!(before, [2, 3, 3]);
    // What was released makes room in the first that has any, and waiting takes room as well.
    guards.remove(0).release().await.unwrap();
    let waiter = tokio::spawn({
        let lock = other.mutex("1");
        async move { lock.acquire().await.unwrap() }
    });
    crate::common::until_children(&client, "1", 2).await;
    let sessions = by_session(&client, 20).await;
    let first = sessions.values().find(|locks| locks.contains(&1)).unwrap();
    assert_eq!(first, &[1, 1, 2]);
    guards.push(take(&locks, 10).await);
    guards.push(take(&locks, 11).await);
    assert_eq!(counts().await.iter().sum::<usize>(), 10);
    assert_eq!(counts().await.len(), 4);
    guards.remove(0).release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(guards.iter().all(Guard::is_valid));

    other.close().await.unwrap();
    locks.close().await.unwrap();
    assert!(!guards.iter().any(Guard::is_valid));
    assert!(counts().await.is_empty(), "all sessions were closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_full_session_is_replaced_after_its_end() {
    let server = crate::common::server().await;
    let proxy = proxy(&server);
    let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(SHORT).private_session(true);
    let locks = crate::common::opened(&config.locks_per_session(2)).await;
    let mut guards = Vec::new();
    for name in 0..5 {
        guards.push(take(&locks, name).await);
    }
    let client = client(&server).await;
    let before = by_session(&client, 5).await;
    assert_eq!(before.len(), 3);
    black_hole(&proxy, true);
    for guard in &guards {
        guard.lost().await;
    }
    proxy.heal();
    let mut fresh = Vec::new();
    for (name, old) in guards.iter().enumerate() {
        let guard = locks.mutex(name.to_string()).acquire().await.unwrap();
        assert!(guard.token() > old.token());
        fresh.push(guard);
    }
    let after = by_session(&client, 5).await;
    assert_eq!(after.len(), 3);
    assert!(before.keys().all(|session| !after.contains_key(session)));
    for guard in guards {
        assert!(!guard.is_valid(), "a lock that is lost stays so");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    }
    assert!(fresh.iter().all(Guard::is_valid), "a late release is not for the next holder");
}

/// Long enough for an election on a busy machine.
const PATIENT: Duration = Duration::from_secs(30);

async fn connect(ensemble: &Servers) -> Locks {
    let config = ZkConfig::new(ensemble.connect_string()).private_session(true);
    config.session_timeout(PATIENT).locks_per_session(2).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_rolling_restart_loses_no_lock() {
    let ensemble = Servers::start().await;
    let (ours, theirs) = (connect(&ensemble).await, connect(&ensemble).await);
    let mut guards = Vec::new();
    for name in 0..5 {
        guards.push(take(&ours, name).await);
    }
    let waiter = tokio::spawn({
        let lock = theirs.mutex("0");
        async move { lock.acquire().await.unwrap() }
    });
    // The leader is one of them.
    for index in 0..3 {
        ensemble.restart(index).await.unwrap();
        for guard in &guards {
            assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "server {index}");
        }
    }
    assert!(!waiter.is_finished(), "the lock was held all the time");
    let first = guards.remove(0);
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Released::Released);
    let second = timeout(PATIENT, waiter).await.expect("it is next").unwrap();
    assert!(second.token() > token);
    assert_eq!(second.release().await.unwrap(), Released::Released);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_failover_of_the_leader_loses_no_lock() {
    let ensemble = Servers::start().await;
    let locks = connect(&ensemble).await;
    let mut last = None;
    for _ in 0..2 {
        let guard = locks.mutex("0").acquire().await.unwrap();
        assert!(Some(guard.token()) > last, "tokens grow from leader to leader");
        last = Some(guard.token());
        let start = Instant::now();
        let leader = loop {
            if let Some(leader) = ensemble.leader().await {
                break leader;
            }
            assert!(start.elapsed() < PATIENT, "no leader");
        };
        ensemble.kill(leader);
        while guard.verify().await.is_err() {
            assert!(start.elapsed() < PATIENT, "no new leader");
        }
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        ensemble.nodes()[leader].start_again().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
}
