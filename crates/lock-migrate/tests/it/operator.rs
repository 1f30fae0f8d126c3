//! The operator's steps on real servers: rungs by name, and the way back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, Locks};
use lock_migrate::{Gate, Operator, Phase, Progress, Rung};
use lock_testkit::proxy::{Direction, redis_command};
use lock_testkit::{PATIENCE, give_back, take, until};

use crate::common::{LEASE, Servers, at_last, is_busy, pass, redis, until_followed};
use crate::faults::Side;

/// An operator, and so many processes that follow the record.
pub(crate) async fn with_processes<const COUNT: usize>(servers: &Servers) -> (Operator, [Locks; COUNT]) {
    let operator = servers.operator().await;
    let mut processes = Vec::new();
    for _ in 0..COUNT {
        processes.push(servers.process().await);
    }
    (operator, processes.try_into().expect("so many"))
}

pub(crate) async fn goes_to(operator: &Operator, rung: Rung, sessions: usize) {
    operator.set(rung, "*").await.unwrap();
    until_followed(operator, sessions).await;
}

async fn until_noted(operator: &Operator, names: usize) {
    until("the names are noted as moved", async || operator.status().await.unwrap().moved == names).await;
}

/// The error of a step that is refused.
pub(crate) async fn refused<T>(step: impl Future<Output = lock_core::Result<T>>, says: &str) {
    let error = step.await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

pub(crate) fn passed(gate: Gate) -> lock_migrate::Record {
    match gate {
        Gate::Passed(record) => *record,
        blocked => panic!("{blocked:?}"),
    }
}

pub(crate) fn blocked(gate: Gate) -> String {
    match gate {
        Gate::Blocked(obstacles) => obstacles.iter().map(|obstacle| format!("{obstacle}\n")).collect(),
        passed => panic!("{passed:?}"),
    }
}

pub(crate) const fn silent(_: Progress) {}

#[tokio::test]
async fn processes_follow_the_rungs_by_name() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    let zk = servers.apart().await.1;
    let guard = take(&locks, "reports/1").await;
    assert!(zk.inspect("reports/1").await.unwrap().holder().is_none(), "old");
    operator.set(Rung::Dual, "*").await.unwrap();
    operator.set(Rung::Move, "reports/*").await.unwrap();
    until_followed(&operator, 1).await;
    let status = operator.status().await.unwrap();
    let member = status.sessions[0].member.as_ref().unwrap();
    assert_eq!((member.rung, member.behind), (Rung::Dual, Some(Rung::Old)), "a guard is still on old");
    // The guard keeps its rung: the name is still busy for all, and free for all afterwards.
    assert!(is_busy(&locks, "reports/1").await);
    give_back(guard).await;
    pass(&locks, "reports/1").await;
    pass(&locks, "orders/1").await;
    assert!(servers.is_moved("reports/1").await);
    assert!(!servers.is_moved("orders/1").await);
    until_noted(&operator, 1).await;
    let status = operator.status().await.unwrap();
    assert_eq!(status.tombstones.unwrap().count, 1);
    assert_eq!((status.lost_tombstones.len(), status.stragglers.len()), (0, 0));
}

#[tokio::test]
async fn rules_that_the_new_store_cannot_keep_are_refused() {
    let servers = Servers::start().await;
    let operator = servers.operator().await;
    let names = |number: usize| format!("{number}/{}*", "x".repeat(300_000));
    // On a busy machine, so much takes longer than the server may.
    let set =
        async |rung: Rung, names: &str| at_last(async || operator.set(rung, names).await).await.rules.len();
    for number in 0..3 {
        set(Rung::Dual, &names(number)).await;
    }
    let error = operator.set(Rung::Dual, &names(3)).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidConfig, "refused_step"));
    // Fewer may always be set.
    assert_eq!(set(Rung::Dual, &names(2)).await, 3);
    assert_eq!(set(Rung::Shadow, "*").await, 1);
    operator.close().await.unwrap();
}

#[tokio::test]
async fn what_is_lost_or_left_behind_is_found() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    goes_to(&operator, Rung::Move, 1).await;
    for name in ["a", "b"] {
        pass(&locks, name).await;
    }
    until_noted(&operator, 2).await;
    // By hand, and by an old binary.
    locks.backend().settle().await;
    servers.redis.call(&["DEL", "lock:a"]).await;
    let straggler = servers.apart().await.0;
    let _held = take(&straggler, "c").await;
    servers.redis.call(&["SET", "lock:d", "somebody", "PX", "60000"]).await;
    let status = operator.status().await.unwrap();
    assert_eq!(status.lost_tombstones, ["a"]);
    let found: Vec<_> = status.stragglers.iter().map(|straggler| &*straggler.lock).collect();
    assert_eq!(found, ["c", "d"]);
    assert!(status.stragglers[0].holder.contains(&std::process::id().to_string()));
    assert!(status.stragglers[1].holder.contains("another library"));
    let text: String = status.obstacles.iter().map(ToString::to_string).collect();
    assert!(text.contains("lost their tombstones") && text.contains("old store alone"), "{text}");
}

#[tokio::test]
async fn the_way_back_frees_the_names_for_clients_of_the_old_store() {
    let servers = Servers::start().await;
    let (operator, [one, two]) = with_processes(&servers).await;
    goes_to(&operator, Rung::Move, 2).await;
    let mut last = Vec::new();
    for name in (0..300).map(|at| format!("orders/{at}")) {
        let token = pass(&one, &name).await;
        last.push((name, token));
    }
    refused(operator.clean(None, silent), "has not begun").await;
    let record = passed(operator.back(PATIENCE, silent).await.unwrap());
    assert_eq!((record.phase, record.generation, record.highest()), (Phase::Returning, 2, Rung::Dual));
    refused(operator.set(Rung::Move, "*"), "way back").await;
    // Meanwhile names that have moved are excluded as before.
    let held = take(&two, "orders/7").await;
    let progress = Mutex::new(Vec::new());
    let note = |step| {
        if let Progress::Tombstones { left, .. } = step {
            progress.lock().unwrap().push(left);
        }
    };
    // The last tombstone is that of the lock that is held.
    let gives_back = async {
        until("one is left", async || progress.lock().unwrap().last() == Some(&1)).await;
        give_back(held).await;
    };
    let (gate, ()) = tokio::join!(operator.clean(None, note), gives_back);
    assert_eq!(passed(gate.unwrap()).phase, Phase::Open);
    assert_eq!(progress.into_inner().unwrap().last(), Some(&0));
    let redis = servers.apart().await.0;
    for (name, token) in last {
        let next = pass(&redis, &name).await;
        assert!(next > token, "{name}: {next} after {token}");
    }
    let status = operator.status().await.unwrap();
    assert_eq!((status.moved, status.tombstones.unwrap().count), (0, 0));
    // And up again.
    goes_to(&operator, Rung::Move, 2).await;
    pass(&two, "orders/7").await;
    assert!(servers.is_moved("orders/7").await);
}

/// The lock of the new store excludes others until the request can do nothing any more.
#[tokio::test]
async fn a_removal_that_arrives_after_its_operator_was_dropped_removes_nothing() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    goes_to(&operator, Rung::Move, 1).await;
    pass(&locks, "first").await;
    let held = take(&locks, "a").await;
    passed(operator.back(PATIENCE, silent).await.unwrap());
    let proxy = servers.proxy(Side::Old);
    let (old, new) = (redis(proxy.addr(), LEASE).await, servers.zk().await);
    let dropped = Operator::connect("shop", old, new).await.unwrap();
    // The script is loaded with the first removal.
    tokio::select! {
        gate = dropped.clean(None, silent) => panic!("{gate:?}"),
        () = until("the first is removed", async || !servers.is_moved("first").await) => {}
    }
    give_back(held).await;
    // It lists the tombstones, and reads the clock before it sends the removal of one.
    let (lists, listed) = (redis_command("SCAN"), AtomicBool::new(false));
    let reads = redis_command("TIME");
    proxy.hold_after(move |request| {
        listed.fetch_or(lists(request), Ordering::SeqCst);
        listed.load(Ordering::SeqCst) && reads(request)
    });
    tokio::select! {
        gate = dropped.clean(None, silent) => panic!("{gate:?}"),
        () = until("a removal is sent", async || proxy.queued(Direction::ToServer) > 0) => {}
    }
    let guard = take(&locks, "a").await;
    proxy.deliver();
    until("it has arrived", async || proxy.queued(Direction::ToServer) == 0).await;
    drop(dropped.status().await);
    assert!(servers.is_moved("a").await && guard.is_valid());
    give_back(guard).await;
    passed(operator.clean(None, silent).await.unwrap());
    assert!(!servers.is_moved("a").await);
}

#[tokio::test]
async fn the_way_back_waits_for_sessions_that_have_not_seen_it() {
    let servers = Servers::start().await;
    let (operator, [locks]) = with_processes(&servers).await;
    goes_to(&operator, Rung::Move, 1).await;
    pass(&locks, "a").await;
    // A session of an unknown version of the library, which follows nothing.
    let stranger = zookeeper_client::Client::connector()
        .with_session_timeout(Duration::from_secs(10))
        .connect(&servers.zk.connect_string())
        .await
        .unwrap();
    let create = zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
    stranger.create("/locks/!migration/members/stranger", b"{}", &create).await.unwrap();
    // Time: it waits in vain.
    let reasons = blocked(operator.back(Duration::from_secs(6), silent).await.unwrap());
    assert!(reasons.contains("stranger") && !reasons.contains("pid"), "{reasons}");
    let reasons = blocked(operator.clean(None, silent).await.unwrap());
    assert!(reasons.contains("has not seen the way back"), "{reasons}");
    assert!(servers.is_moved("a").await);
    drop(stranger);
    passed(operator.back(PATIENCE, silent).await.unwrap());
    passed(operator.clean(None, silent).await.unwrap());
    assert!(!servers.is_moved("a").await);
}

#[tokio::test]
async fn a_process_that_is_pinned_to_move_blocks_the_end_of_the_way_back() {
    let servers = Servers::start().await;
    let operator = servers.operator().await;
    let pinned = servers.on(Rung::Move).await;
    pass(&pinned, "a").await;
    passed(operator.back(PATIENCE, silent).await.unwrap());
    // It writes no tombstone while the way back lasts.
    pass(&pinned, "b").await;
    assert!(!servers.is_moved("b").await);
    let reasons = blocked(operator.clean(None, silent).await.unwrap());
    assert!(reasons.contains("pinned to move"), "{reasons}");
    assert!(!servers.is_moved("a").await);
    pinned.close().await.unwrap();
    drop(pinned);
    passed(operator.clean(None, silent).await.unwrap());
}
