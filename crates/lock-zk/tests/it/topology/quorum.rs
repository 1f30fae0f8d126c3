//! Ensembles whose servers fall silent, are cut off and restarted.

use futures_util::future::join_all;
use lock_core::{GuardState, Released};
use lock_testkit::ZooKeeper;
use lock_testkit::proxy::Direction;
use lock_zk::zookeeper_client::{self as zk, Acl, Acls, CreateMode, Permission};
use tokio::time::{Instant, sleep, timeout};

use crate::common::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn a_rolling_restart_loses_no_lock() {
    let ensemble = ensemble().await;
    let connect = async || {
        opened(&config_of(ensemble.connect_string()).session_timeout(LASTING).locks_per_session(2)).await
    };
    let (ours, theirs) = (connect().await, connect().await);
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(take(&ours, name).await);
    }
    let waiter = queue_up(&theirs, "a").await;
    // The leader is one of them.
    for index in 0..3 {
        ensemble.restart(index).await.unwrap();
        for guard in &guards {
            until("it is confirmed", async || guard.verify().await.is_ok()).await;
            assert_eq!(guard.verify().await.unwrap(), GuardState::Valid, "server {index}");
        }
    }
    let first = guards.remove(0);
    let token = first.token();
    let second = hand_over(first, waiter).await;
    assert!(second.token() > token, "tokens grow from leader to leader");
    for guard in guards.into_iter().chain([second]) {
        give_back(guard).await;
    }
}

/// The driver notices the silence, and then tries all servers in any order, the silent one among them: twice a fifth of the
/// session timeout, and callers wait for half of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "full: an ensemble"]
async fn callers_get_their_answers_from_another_server_when_theirs_falls_silent() {
    let (ensemble, timeout) = (ensemble().await, LONG * 2);
    let proxies: Vec<_> = ensemble.nodes()[1..].iter().map(proxy).collect();
    let hosts = proxies.iter().map(|proxy| proxy.addr().to_string()).collect::<Vec<_>>().join(",");
    let client = client(&ensemble.nodes()[0]).await;
    for request in ["release", "verify", "inspect", "break", "downgrade"] {
        let locks = opened(&config_of(hosts.clone()).session_timeout(timeout)).await;
        let mut guard = locks.rw("a").write().await.unwrap();
        // The silence begins with the request, which is as late as can be.
        assert_eq!(guard.verify().await.unwrap(), GuardState::Valid);
        let silent = proxies.iter().find(|proxy| proxy.connections() > 0).unwrap();
        black_hole(silent, true);
        let start = Instant::now();
        let done = match request {
            "release" => guard.release().await.map(|released| assert_eq!(released, Released::Released)),
            "verify" => guard.verify().await.map(|state| assert_eq!(state, GuardState::Valid)),
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
        until_children(&client, "a", 0).await;
        until("no connection is left", async || proxies.iter().all(|proxy| proxy.connections() == 0)).await;
    }
}

/// A leader that was cut off does not know that others lead for up to `syncLimit` ticks, which are far more than the test
/// takes, and answers its clients meanwhile. The next leader ends their sessions far earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_guard_at_a_leader_that_was_cut_off_is_lost_before_the_next_leader_lets_anybody_in() {
    let options = ZooKeeper::builder().proxied_links().tick_time(TIMEOUT / 8).config("syncLimit", "200");
    let ensemble = Ensemble::from(options.start_ensemble(3).await.unwrap());
    let leader = ensemble.leader().await.unwrap();
    let followers = [(leader + 1) % 3, (leader + 2) % 3];
    let locks = connect(&ensemble.nodes()[leader]).await;
    let client = client(&ensemble.nodes()[leader]).await;
    let guard = take(&locks, "a").await;
    for link in links_of(&ensemble, leader) {
        black_hole(link, true);
        // Who connects to it does not wait for an answer that cannot come.
        link.refuse(true);
    }
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
    let other = opened(&config_of(hosts).session_timeout(LONG * 2)).await;
    let next = timeout(LASTING, other.mutex("a").acquire()).await.expect("the session ends");
    let (both, next) = (guard.is_valid(), next.unwrap());
    assert!(!both, "two hold the lock");
    assert!(next.token() > guard.token());
    assert_eq!(next.verify().await.unwrap(), GuardState::Valid);
    // The one that was cut off answers still, and so might have kept the guard alive.
    assert_eq!(ensemble.nodes()[leader].mode().await.as_deref(), Some("leader"));
    if !ZooKeeper::lacks("leader that answers a sync alone", (3, 6)) {
        assert_eq!(soon(client.sync("/")).await, Ok(()));
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
    let ensemble = ensemble().await;
    let leader = ensemble.leader().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(client(&ensemble.nodes()[leader]).await);
    }
    let closed = [Acl::new_const(Permission::WRITE, "world", "anyone")];
    let closed = CreateMode::Persistent.with_acls(Acls::new(&closed));
    clients[0].create("/closed", b"", &closed).await.unwrap();
    let links = links_of(&ensemble, leader);
    for link in &links {
        link.hold(Direction::ToServer);
        link.hold(Direction::ToClient);
    }
    assert_eq!(soon(clients[0].sync("/")).await, Ok(()));
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
    sleep(TIMEOUT / 2).await; // Time: the leader would have answered alone.
    assert!(asked.iter().all(|answer| !answer.is_finished()), "the leader answers alone");
    // It does answer a sync of its own clients, even while it waits for the others itself.
    assert_eq!(soon(clients[4].sync("/")).await, Ok(()));
    links.iter().for_each(|link| link.deliver());
    let answers: Vec<_> = soon(join_all(asked)).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Ok(()), Err(zk::Error::NoNode), Err(zk::Error::NoAuth), Err(zk::Error::NoNode)]);
    clients[0].delete("/closed", None).await.unwrap();
}
