//! The lock when callers go away, answers are lost, connections break, sessions end and servers restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use lock_core::{GuardState, LockOptions, Locks, LossReason, Released, Result};
use lock_testkit::proxy::{Direction, Then, opcode, zk_opcode};
use lock_testkit::{FaultProxy, ZkEnsemble, ZooKeeper, cancel_after};
use lock_zk::zookeeper_client::{self as zk, Acl, Acls, Client, CreateMode, Permission};
use lock_zk::{ZkConfig, ZkLayout, ZkRecipe, ZkWait};
use tokio::task::JoinHandle;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn acquire_is_cancelled_before_the_server_gets_to_know_of_it() {
    let scene = Scene::new().await;
    scene.locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
    let mutex = scene.locks.mutex("a");
    for k in [1, 2] {
        // The request is on its way, and arrives after its future was dropped.
        scene.proxy.hold(Direction::ToServer);
        assert!(cancel_after(k, mutex.acquire()).await.is_none());
        let start = Instant::now();
        while scene.proxy.queued(Direction::ToServer) == 0 {
            assert!(start.elapsed() < TIMEOUT);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        scene.proxy.deliver();
        let guard = mutex.try_acquire_for(Duration::from_secs(5)).await.unwrap().unwrap();
        give_back(guard).await;
        scene.is_clean().await;

        // The request waits in the driver for a connection.
        scene.proxy.refuse(true);
        scene.proxy.rst();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(cancel_after(k, mutex.acquire()).await.is_none());
        scene.proxy.refuse(false);
        let guard = mutex.try_acquire_for(Duration::from_secs(5)).await.unwrap().unwrap();
        give_back(guard).await;
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_creation_is_lost() {
    for layout in LAYOUTS {
        let scene = Scene::with(TIMEOUT, layout).await;
        scene.locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        for fault in 0..4 {
            scene.proxy.reset_counters();
            match fault {
                0 => scene.proxy.cut_when(enters()),
                1 => scene.proxy.swallow_when(enters(), Then::Reset),
                2 => scene.proxy.swallow_when(enters(), Then::Fin),
                _ => scene.proxy.swallow_when(enters(), Then::Hang),
            }
            let guard = scene.locks.mutex("a").acquire().await.unwrap();
            assert_eq!(scene.proxy.fired(), 1);
            assert_eq!(children(&scene.client, "a").await.len(), 1, "{layout:?} {fault}");
            assert_eq!(scene.locks.inspect("a").await.unwrap().token, Some(guard.token()));
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

/// Another client writes to the node before its owner has found it.
/// Where names are reused, the node of the next holder has the name, and the version, that a revocation request was meant for.
struct LateWish {
    client: Client,
    /// Those of the next holder lead through it.
    proxy: FaultProxy,
    next: Locks,
    revoking: FaultProxy,
    revoker: Locks,
    // Looks whether the others have left anything.
    _server: Server,
}

impl LateWish {
    /// One has released the lock when the request of another process is on its way.
    async fn under_way(layout: ZkLayout, recipe: ZkRecipe, label: &str) -> (Self, JoinHandle<Result<bool>>) {
        let server = server().await;
        let (client, proxy, revoking) = (client(&server).await, proxy(&server), proxy(&server));
        let of = |config: ZkConfig| config.layout(layout).recipe(recipe);
        let (first, next) = (opened(&of(config(&server))).await, opened(&of(through(&proxy))).await);
        let revoker = opened(&of(through(&revoking)).session_timeout(SOON * 3)).await;
        let labelled = LockOptions::new().label(label);
        let guard = first.mutex_with("a", labelled).unwrap().acquire().await.unwrap();
        revoking.hold_after(zk_opcode(opcode::GET_DATA));
        let asking = {
            let revoker = revoker.clone();
            tokio::spawn(async move { revoker.request_revocation("a").await })
        };
        until("it has seen the holder", async || revoking.queued(Direction::ToServer) > 120).await;
        give_back(guard).await;
        if recipe == ZkRecipe::Queue {
            // As the server removes a directory that is not used, and the next client creates it.
            client.delete("/locks/a", None).await.unwrap();
            mkdir(&client, "/locks/a").await;
        }
        (Self { client, proxy, next, revoking, revoker, _server: server }, asking)
    }

    /// The data of the only node, and its version.
    async fn node(&self) -> (String, i32) {
        let mut path = "/locks/a".to_owned();
        if let Some(node) = children(&self.client, "a").await.first() {
            path = format!("{path}/{node}");
        }
        let Ok((data, stat)) = self.client.get_data(&path).await else { return (String::new(), 0) };
        (String::from_utf8(data).unwrap(), stat.version)
    }
}

const REUSED: [(ZkLayout, ZkRecipe); 2] =
    [(ZkLayout::Plain, ZkRecipe::Queue), (ZkLayout::Curator, ZkRecipe::Ephemeral(ZkWait::Watch))];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_wish_asks_nobody_else() {
    for (layout, recipe) in REUSED {
        let (scene, asking) = LateWish::under_way(layout, recipe, "one").await;
        // It was given up, and arrives all the same.
        asking.abort();
        let labelled = LockOptions::new().label("two");
        let guard = scene.next.mutex_with("a", labelled).unwrap().acquire().await.unwrap();
        scene.revoking.deliver();
        until("its data is restored", async || {
            let (data, version) = scene.node().await;
            version == 2 && data.contains("two")
        })
        .await;
        assert!(!guard.is_revoke_requested(), "{layout:?} {recipe:?}");
        assert!(scene.revoker.request_revocation("a").await.unwrap());
        timeout(TIMEOUT, guard.revoke_requested()).await.expect("it is asked now");
        assert!(scene.node().await.0.contains("two"), "it still says whose it is");
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wish_that_found_another_holder_is_repeated() {
    for (layout, recipe) in REUSED {
        let (scene, asking) = LateWish::under_way(layout, recipe, "one").await;
        let guard = scene.next.mutex("a").acquire().await.unwrap();
        scene.revoking.deliver();
        assert!(timeout(TIMEOUT * 2, asking).await.unwrap().unwrap().unwrap());
        timeout(TIMEOUT, guard.revoke_requested()).await.expect("the lock is to be free");
        give_back(guard).await;
    }
}

/// Its creation is not answered, and the node names another owner by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_wish_does_not_hide_a_node_from_its_owner() {
    for (layout, recipe) in REUSED {
        let (scene, asking) = LateWish::under_way(layout, recipe, "one").await;
        asking.abort();
        scene.proxy.swallow_when(enters(), Then::Hang);
        let mutex = scene.next.mutex_with("a", LockOptions::new().label("two")).unwrap();
        let acquisition = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        until("its node is created", async || scene.node().await.0.contains("two")).await;
        scene.revoking.deliver();
        until("its data is overwritten", async || scene.node().await.0.contains("one")).await;
        let guard = timeout(TIMEOUT * 4, acquisition).await.expect("it does not wait for itself").unwrap();
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        assert!(!guard.is_revoke_requested() && scene.proxy.fired() == 1);
        until("its data is restored", async || scene.node().await.0.contains("two")).await;
        give_back(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_wish_does_not_hide_a_node_from_its_owner() {
    for (layout, recipe) in [
        (ZkLayout::Curator, ZkRecipe::Queue),
        (ZkLayout::Plain, ZkRecipe::Queue),
        (ZkLayout::Plain, ZkRecipe::Ephemeral(ZkWait::Watch)),
    ] {
        let server = server().await;
        let (client, proxy) = (client(&server).await, proxy(&server));
        let of = |config: ZkConfig| config.layout(layout).recipe(recipe);
        let (locks, other) = (opened(&of(through(&proxy))).await, opened(&of(config(&server))).await);
        locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        proxy.swallow_when(enters(), Then::Hang);
        let mutex = locks.mutex("a");
        let acquisition = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        let start = Instant::now();
        while !other.request_revocation("a").await.unwrap() {
            assert!(start.elapsed() < TIMEOUT, "{layout:?} {recipe:?}: there is no node");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let guard = timeout(TIMEOUT * 2, acquisition).await.unwrap().unwrap();
        assert_eq!((proxy.fired(), guard.verify().await.unwrap()), (1, GuardState::Valid));
        timeout(TIMEOUT, guard.revoke_requested()).await.unwrap();
        if recipe == ZkRecipe::Queue {
            assert_eq!(children(&client, "a").await.len(), 1, "{layout:?}");
        }
        give_back(guard).await;
        let next = other.mutex("a").try_acquire_for(TIMEOUT).await.unwrap().unwrap();
        give_back(next).await;
    }
}

async fn until_fired(proxy: &FaultProxy) {
    while proxy.fired() == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_dropped_creation_is_lost() {
    for layout in LAYOUTS {
        let scene = Scene::with(TIMEOUT, layout).await;
        scene.locks.mutex("a").acquire().await.unwrap().release().await.unwrap();
        scene.proxy.reset_counters();
        scene.proxy.swallow_when(enters(), Then::Hang);
        let mutex = scene.locks.mutex("a");
        tokio::select! {
            acquired = mutex.acquire() => panic!("its answer was not lost: {acquired:?}"),
            () = until_fired(&scene.proxy) => {}
        }
        until_children(&scene.client, "a", 1).await;
        scene.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_release_is_lost() {
    for layout in LAYOUTS {
        let scene = Scene::with(LONG, layout).await;
        for then in [Then::Reset, Then::Fin, Then::Hang] {
            let guard = scene.locks.mutex("a").acquire().await.unwrap();
            scene.proxy.reset_counters();
            scene.proxy.swallow_when(zk_opcode(opcode::DELETE), then);
            // The driver takes a fifth of the session timeout to see that it hangs.
            assert_eq!(guard.release().await.unwrap(), Released::Released, "{layout:?} {then:?}");
            assert_eq!(scene.proxy.fired(), 1);
            scene.is_clean().await;
        }
        // The request is lost as well.
        for end in [FaultProxy::rst, FaultProxy::fin] {
            let guard = scene.locks.mutex("a").acquire().await.unwrap();
            end(&scene.proxy);
            give_back(guard).await;
            scene.is_clean().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_answer_to_a_break_is_lost_and_only_one_is_broken() {
    let scene = Scene::with(LONG, ZkLayout::Curator).await;
    let guard = scene.other.mutex("a").acquire().await.unwrap();
    let third = connect(&scene.server).await;
    let waiter = tokio::spawn(async move { (third.mutex("a").acquire().await.unwrap(), third) });
    until_children(&scene.client, "a", 2).await;
    for then in [Then::Reset, Then::Hang] {
        scene.proxy.reset_counters();
        scene.proxy.swallow_when(zk_opcode(opcode::DELETE), then);
        assert!(scene.locks.break_lock("a").await.unwrap());
        assert_eq!(scene.proxy.fired(), 1);
        if matches!(then, Then::Reset) {
            assert_eq!(guard.lost().await, LossReason::Removed);
            until_children(&scene.client, "a", 1).await;
        }
    }
    let (next, _third) = waiter.await.unwrap();
    assert_eq!(next.lost().await, LossReason::Removed);
    assert!(!scene.locks.break_lock("a").await.unwrap());
}

/// The driver notices the silence, and then tries all servers in any order, the silent one among them: twice a fifth of the
/// session timeout, and callers wait for half of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn callers_get_their_answers_from_another_server_when_theirs_falls_silent() {
    let (ensemble, timeout) = (Servers::start().await, LONG * 2);
    let proxies: Vec<_> = ensemble.nodes()[1..].iter().map(proxy).collect();
    let hosts = proxies.iter().map(|proxy| proxy.addr().to_string()).collect::<Vec<_>>().join(",");
    let config = ZkConfig::new(hosts).session_timeout(timeout).private_session(true);
    let client = client(&ensemble.nodes()[0]).await;
    for request in ["release", "verify", "inspect", "break", "downgrade"] {
        let locks = opened(&config).await;
        let mut guard = locks.rw("a").write().await.unwrap();
        // The silence begins with the request, which is as late as can be.
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        let silent = proxies.iter().find(|proxy| proxy.connections() > 0).unwrap();
        black_hole(silent, true);
        let start = Instant::now();
        let done = match request {
            "release" => guard.release().await.map(|released| assert_eq!(released, Released::Released)),
            "verify" => guard.verify().await.map(|standing| assert_eq!(standing, GuardState::Valid)),
            "inspect" => {
                let state = locks.inspect("a").await;
                state.map(|state| assert_eq!(state.token, Some(guard.token())))
            }
            "break" => locks.break_lock("a").await.map(|broken| assert!(broken)),
            _ => guard.downgrade().await,
        };
        let took = start.elapsed();
        assert!(took > timeout / 10, "{request} is not answered by another server: {took:?}");
        assert!(done.is_ok(), "{request}: {done:?} after {took:?}");
        silent.heal();
        let _ = locks.close().await;
        drop(locks);
        until_children(&client, "a", 0).await;
        let start = Instant::now();
        while proxies.iter().any(|proxy| proxy.connections() > 0) {
            assert!(start.elapsed() < TIMEOUT * 4, "a connection is left");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_grants_a_longer_session_is_not_taken_for_silent_any_sooner() {
    let server: Server = ZooKeeper::builder().min_session_timeout(LONG * 2).start().await.unwrap().into();
    let proxy = proxy(&server);
    let config = ZkConfig::new(proxy.addr().to_string()).session_timeout(SHORT).private_session(true);
    let guard = opened(&config).await.mutex("a").acquire().await.unwrap();
    black_hole(&proxy, true);
    // Too long for a session as it was asked for, and half of what is too long for this one.
    tokio::time::sleep(LONG / 5).await;
    assert_eq!(guard.state(), GuardState::Valid);
}

/// While its holder is cut off: one that watches its node, and one that just got the lock and does not watch it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_reconnected_holder_learns_that_its_node_was_deleted() {
    let scene = Scene::with(LONG, ZkLayout::Curator).await;
    for watched in [true, false] {
        let guard = scene.locks.mutex("a").acquire().await.unwrap();
        if watched {
            let start = Instant::now();
            while lock_watches(&scene.server).await == 0 {
                assert!(start.elapsed() < TIMEOUT, "it is not watched");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        scene.proxy.refuse(true);
        scene.proxy.rst();
        let path = format!("/locks/a/{}", children(&scene.client, "a").await[0]);
        scene.client.delete(&path, None).await.unwrap();
        assert!(guard.is_valid(), "it cannot know");
        scene.proxy.refuse(false);
        let lost = timeout(LONG / 2, guard.lost()).await;
        assert_eq!(lost.expect("the loss is reported before its deadline"), LossReason::Removed, "{watched}");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        let again = scene.locks.mutex("a").try_acquire().await.unwrap().unwrap();
        give_back(again).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_follower_that_lost_its_leader_does_not_keep_a_guard_valid() {
    // A follower goes on for this many ticks, which are twenty seconds.
    let options = ZooKeeper::builder().config("syncLimit", "100");
    let ensemble = Servers::from(options.start_ensemble(3).await.unwrap());
    let leader = ensemble.leader().await.unwrap();
    let follower = &ensemble.nodes()[(leader + 1) % 3];
    let locks = opened(&config(follower).session_timeout(SHORT)).await;
    let client = client(follower).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    tokio::time::sleep(SHORT).await;
    ensemble.nodes()[leader].stop();
    let start = Instant::now();
    assert_eq!(guard.lost().await, LossReason::DeadlinePassed);
    assert!(start.elapsed() < SHORT * 3, "{:?}", start.elapsed());
    if ZooKeeper::lacks("follower that answers reads without a leader", (3, 6)) {
        return ensemble.nodes()[leader].cont();
    }
    // The follower still answers reads.
    assert_eq!(client.list_children("/locks/a").await.unwrap().len(), 1);
    ensemble.nodes()[leader].cont();
}

/// A leader that was cut off does not know that others lead for up to `syncLimit` ticks, which are far more than the test
/// takes, and answers its clients meanwhile. The next leader ends their sessions far earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_guard_at_a_leader_that_was_cut_off_is_lost_before_the_next_leader_lets_anybody_in() {
    let options = ZooKeeper::builder().proxied_links().tick_time(TIMEOUT / 8).config("syncLimit", "200");
    let ensemble = Servers::from(options.start_ensemble(3).await.unwrap());
    let leader = ensemble.leader().await.unwrap();
    let followers = [(leader + 1) % 3, (leader + 2) % 3];
    let locks = opened(&config(&ensemble.nodes()[leader])).await;
    let client = client(&ensemble.nodes()[leader]).await;
    let guard = locks.mutex("a").acquire().await.unwrap();
    cut_off(&ensemble, leader);
    let elected = async || {
        followers.iter().for_each(|follower| ensemble.kill(*follower));
        for follower in followers {
            ensemble.nodes()[follower].launch().await.unwrap();
        }
        for follower in followers {
            ensemble.nodes()[follower].wait_ready().await.unwrap();
        }
    };
    // One of them may insist on the leader that it cannot reach, until it is started again.
    while timeout(LONG * 4, elected()).await.is_err() {}
    let next_leader = ensemble.nodes()[followers[0]].mode().await;
    assert!(next_leader.is_some_and(|mode| mode == "leader" || mode == "follower"), "the others serve");
    let hosts = followers.map(|follower| ensemble.nodes()[follower].connect_string()).join(",");
    let other = opened(&ZkConfig::new(hosts).session_timeout(LONG * 2).private_session(true)).await;
    let next = timeout(LONG * 8, other.mutex("a").acquire()).await.expect("the session ends");
    let (both, next) = (guard.is_valid(), next.unwrap());
    assert!(!both, "two hold the lock");
    assert!(next.token() > guard.token());
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    // The one that was cut off answers still, and so might have kept the guard alive.
    assert_eq!(ensemble.nodes()[leader].mode().await.as_deref(), Some("leader"));
    if !ZooKeeper::lacks("leader that answers a sync alone", (3, 6)) {
        assert_eq!(timeout(TIMEOUT, client.sync("/")).await, Ok(Ok(())));
    }
    give_back(next).await;
    ensemble.kill(leader);
}

/// What proves that a leader still leads: what it commits, and what it refuses, but not a `sync`.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_check_is_answered_by_the_quorum_and_a_sync_by_the_leader_alone() {
    if ZooKeeper::lacks("leader that answers a sync alone", (3, 6)) {
        return;
    }
    let options = ZooKeeper::builder().proxied_links().config("syncLimit", "300");
    let ensemble = Servers::from(options.start_ensemble(3).await.unwrap());
    let leader = ensemble.leader().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(client(&ensemble.nodes()[leader]).await);
    }
    let closed = [Acl::new_const(Permission::WRITE, "world", "anyone")];
    let closed = CreateMode::Persistent.with_acls(Acls::new(&closed));
    clients[0].create("/closed", b"", &closed).await.unwrap();
    hold_off(&ensemble, leader);
    assert_eq!(timeout(TIMEOUT, clients[0].sync("/")).await, Ok(Ok(())));
    // Each in a session of its own, so that none waits for another one.
    let check = |client: usize, path: &'static str| {
        let client = clients[client].clone();
        tokio::spawn(async move {
            let mut checks = client.new_multi_writer();
            checks.add_check_version(path, -1)?;
            checks.commit().await.map(drop).map_err(zk::Error::from)
        })
    };
    let deletion = clients[3].clone();
    let asked = [
        check(0, "/"),
        check(1, "/missing"),
        check(2, "/closed"),
        tokio::spawn(async move { deletion.delete("/missing", None).await }),
    ];
    tokio::time::sleep(TIMEOUT / 2).await;
    assert!(asked.iter().all(|answer| !answer.is_finished()), "the leader answers alone");
    // It does answer a sync of its own clients, even while it waits for the others itself.
    assert_eq!(timeout(TIMEOUT, clients[4].sync("/")).await, Ok(Ok(())));
    links_of(&ensemble, leader).iter().for_each(|link| link.deliver());
    let answers = timeout(TIMEOUT, join_all(asked)).await.expect("the quorum answers");
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Ok(()), Err(zk::Error::NoNode), Err(zk::Error::NoAuth), Err(zk::Error::NoNode)]);
}

/// All ways on which one server follows the others, or they follow it.
fn links_of(ensemble: &ZkEnsemble, server: usize) -> Vec<&FaultProxy> {
    let others = (0..ensemble.nodes().len()).filter(|other| *other != server);
    others.flat_map(|other| [ensemble.link(other, server), ensemble.link(server, other)]).collect()
}

/// Cuts a server off from the others, which it does not notice.
fn cut_off(ensemble: &ZkEnsemble, server: usize) {
    for link in links_of(ensemble, server) {
        black_hole(link, true);
        // Who connects to it does not wait for an answer that cannot come.
        link.refuse(true);
    }
}

/// Lets nothing pass between a server and the others until it is delivered.
fn hold_off(ensemble: &ZkEnsemble, server: usize) {
    for link in links_of(ensemble, server) {
        link.hold(Direction::ToServer);
        link.hold(Direction::ToClient);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_grant_to_an_ended_session_is_not_taken() {
    // The lock becomes free while the waiter is cut off: its node is next, but its session is over. A waiter gives up
    // when it gets no new one within three quarters of its timeout, so that has to be long.
    let scene = Scene::new().await;
    let guard = scene.other.mutex("a").acquire().await.unwrap();
    let waiter = queue_up(&scene.locks, &scene.client, 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let old = children(&scene.client, "a").await[1].clone();
    scene.proxy.hold(Direction::ToClient);
    guard.release().await.unwrap();
    tokio::time::sleep(TIMEOUT * 4 / 5).await;
    // The event that is the grant arrives after the deadline of the client.
    scene.proxy.deliver();
    let guard = waiter.await.unwrap().unwrap();
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    let nodes = children(&scene.client, "a").await;
    assert!(!nodes.contains(&old), "{nodes:?} {old}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_waiter_that_was_removed_while_cut_off_does_not_get_the_lock() {
    let scene = Scene::new().await;
    let guard = scene.other.mutex("a").acquire().await.unwrap();
    let waiter = queue_up(&scene.locks, &scene.client, 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let old = children(&scene.client, "a").await[1].clone();
    scene.proxy.refuse(true);
    scene.proxy.rst();
    scene.client.delete(&format!("/locks/a/{old}"), None).await.unwrap();
    guard.release().await.unwrap();
    let rival = scene.other.mutex("a").acquire().await.unwrap();
    scene.proxy.refuse(false);
    until_children(&scene.client, "a", 2).await;
    assert!(!waiter.is_finished());
    rival.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_valid());
}

/// The directory was replaced meanwhile, and its numbers came again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_take_the_node_of_another_for_its_own() {
    let scene = Scene::with(TIMEOUT, ZkLayout::Plain).await;
    let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    // The waiter does not watch its own node in such a long queue.
    let before = 40;
    let fill = async |count: usize| {
        mkdir(&scene.client, "/locks/a").await;
        for _ in 0..count {
            scene.client.create("/locks/a/lock-", b"", &mode).await.unwrap();
        }
    };
    fill(before).await;
    let waiter = queue_up(&scene.locks, &scene.client, before + 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    scene.proxy.hold(Direction::ToClient);
    for child in children(&scene.client, "a").await {
        scene.client.delete(&format!("/locks/a/{child}"), None).await.unwrap();
    }
    scene.client.delete("/locks/a", None).await.unwrap();
    fill(before + 1).await;
    let children = children(&scene.client, "a").await;
    for child in &children[..before] {
        scene.client.delete(&format!("/locks/a/{child}"), None).await.unwrap();
    }
    scene.proxy.deliver();
    until_children(&scene.client, "a", 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiter.is_finished(), "another client holds the lock");
    scene.client.delete(&format!("/locks/a/{}", children[before]), None).await.unwrap();
    let guard = timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap().unwrap();
    assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
    give_back(guard).await;
}

/// As after a long time without a word. The pings notice it, and the session goes on over another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_that_a_router_has_forgotten_costs_a_moment_and_no_error() {
    let scene = Scene::new().await;
    let held = scene.locks.mutex("b").acquire().await.unwrap();
    scene.proxy.forget();
    let guard = timeout(TIMEOUT * 2, scene.locks.mutex("a").acquire()).await;
    let guard = guard.expect("another connection works").unwrap();
    give_back(guard).await;
    assert_eq!(held.release().await.unwrap(), Released::Released, "the session lasts");
    scene.is_clean().await;
}

/// All answers come after the deadline: those about the directories, which there are none of, the creation and the listing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_free_lock_is_to_be_had_however_short_the_deadline_is() {
    let scene = Scene::new().await;
    scene.proxy.delay(Direction::ToClient, Duration::from_millis(10));
    // A busy machine may take longer than the tenth of a second after which it is given up.
    let ask = async || loop {
        match scene.locks.mutex("a").try_acquire_for(Duration::from_millis(2)).await {
            Err(error) if error.code() == "timeout" => scene.locks.backend().settle().await,
            answer => break answer.unwrap(),
        }
    };
    let guard = ask().await.expect("nobody has it");
    give_back(guard).await;
    let guard = scene.other.mutex("a").acquire().await.unwrap();
    assert!(ask().await.is_none());
    give_back(guard).await;
    scene.proxy.heal();
    scene.is_clean().await;
}

/// The event that a waiter needs never comes: it has to look for itself, whatever it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_event_is_lost_gets_its_turn() {
    let long = 40;
    for (recipe, before) in
        [(ZkRecipe::Queue, 1), (ZkRecipe::Queue, 2), (ZkRecipe::Queue, long), (EPHEMERAL, 1)]
    {
        let server = server().await;
        let (client, proxy) = (client(&server).await, proxy(&server));
        let locks = opened(&through(&proxy).session_timeout(SHORT).recipe(recipe)).await;
        let mut others = Vec::new();
        for number in 0..before {
            let other = opened(&config(&server).recipe(recipe)).await;
            let mutex = other.mutex("a");
            others.push((other, tokio::spawn(async move { mutex.acquire().await.unwrap() })));
            if recipe == ZkRecipe::Queue {
                until_children(&client, "a", number + 1).await;
            }
        }
        let (_first, holder) = others.remove(0);
        let holder = holder.await.unwrap();
        let mutex = locks.mutex("a");
        let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        // Its watches are set.
        tokio::time::sleep(SHORT / 2).await;
        assert!(!waiter.is_finished());
        proxy.reset_counters();
        proxy.lose_pushes(true);
        for (_other, waiter) in others.drain(..).rev() {
            waiter.abort();
            assert!(waiter.await.is_err());
        }
        give_back(holder).await;
        let guard = timeout(SHORT * 5, waiter).await.expect("it looks again").unwrap();
        assert!(proxy.pushes() > 0, "{recipe:?} {before}: no event was lost");
        proxy.lose_pushes(false);
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        give_back(guard).await;
    }
}

/// What a waiter costs while nothing moves: a listing in each session timeout, beside the heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_look_costs_one_request_in_a_session_timeout() {
    for recipe in [ZkRecipe::Queue, EPHEMERAL] {
        let server = server().await;
        let proxy = proxy(&server);
        let locks = opened(&through(&proxy).session_timeout(SHORT).recipe(recipe)).await;
        let other = opened(&config(&server).recipe(recipe)).await;
        let holder = other.mutex("a").acquire().await.unwrap();
        let (mutex, timeouts) = (locks.mutex("a"), 4);
        let waiter = tokio::spawn(async move { mutex.acquire().await.unwrap() });
        tokio::time::sleep(SHORT / 2).await;
        let looks = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&looks);
        proxy.cut_when(move |request| {
            counter.fetch_add(u64::from(!is_check(request)), Ordering::SeqCst);
            false
        });
        tokio::time::sleep(SHORT * timeouts).await;
        let count = looks.load(Ordering::SeqCst);
        proxy.heal();
        assert!((1..=u64::from(timeouts)).contains(&count), "{recipe:?}: {count} requests");
        give_back(holder).await;
        assert_eq!(waiter.await.unwrap().release().await.unwrap(), Released::Released);
    }
}

const EPHEMERAL: ZkRecipe = ZkRecipe::Ephemeral(ZkWait::Watch);
