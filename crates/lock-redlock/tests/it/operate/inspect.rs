//! What operators see of the masters, and break on them.

use std::time::{Duration, SystemTime};

use lock_core::{ErrorKind, Holder, ServerLockState};
use lock_testkit::{RedisServer, queue_up, soon, take};

use crate::common::{all_have_it, client, holder, run, start};

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_what_each_master_sees() {
    let (three, locks) = start(3, "ttl=20s").await;
    let _guard = take(&locks, "a").await;
    let masters = three.servers();
    all_have_it(&three).await;
    let ours = masters[0].command(&["GETSET", "lock:a", "theirs"]).await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Known(_))), "{state:?}");
    masters[2].kill();
    let state = locks.inspect("a").await.unwrap();
    assert_ne!(state.holder(), None, "the one that is not seen may have it for either");
    assert!(matches!(&state.servers[0].view, ServerLockState::Held(Holder::Foreign(_))), "{state:?}");
    masters[0].command(&["SET", "lock:a", ours.text().unwrap()]).await.unwrap();
    let state = locks.inspect("a").await.unwrap();
    assert!(matches!(state.holder(), Some(Holder::Known(_))), "{state:?}");
    for (number, seen) in state.servers.iter().enumerate() {
        assert_eq!(seen.server, masters[number].addr().to_string());
        match &seen.view {
            ServerLockState::Held(Holder::Known(_)) if number < 2 => {}
            ServerLockState::Unknown(_) if number == 2 => {}
            view => panic!("{number}: {view:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_broken_where_one_master_has_no_lock() {
    let (three, locks) = start(3, "ttl=20s").await;
    let guard = take(&locks, "a").await;
    let masters = three.servers();
    all_have_it(&three).await;
    run(&masters[2], "DEL lock:a").await;
    run(&masters[2], "HSET lock:a some data").await;
    let error = locks.break_lock("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    for master in &masters[..2] {
        assert_eq!(holder(master).await, Some(guard.owner().to_string()), "removed too early");
    }
    run(&masters[2], "DEL lock:a").await;
    assert!(locks.break_lock("a").await.unwrap());
    soon(guard.lost()).await;
}

/// Each master would show another part of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_too_long_is_refused() {
    let (three, locks) = start(3, "").await;
    for master in three.servers() {
        let script = "for i = 1, 110000 do redis.call('SET', 'lock:' .. i, 'x') end";
        master.command(&["EVAL", script, "0"]).await.unwrap();
    }
    let listed = soon(locks.list("")).await;
    let error = listed.map(|names| names.len()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(soon(locks.list("9999")).await.unwrap().len(), 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_a_quorum_may_have_are_listed() {
    let (five, locks) = start(5, "ttl=60s").await;
    let masters = five.servers();
    let _guard = take(&locks, "held").await;
    for master in &masters[..2] {
        run(master, "SET lock:of_two x").await;
    }
    run(&masters[4], "SET lock:of_one x").await;
    let names = async || {
        let names = soon(locks.list("")).await.unwrap();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["held"]);
    masters[3..].iter().for_each(RedisServer::stop);
    assert_eq!(names().await, ["held", "of_two"], "the two that are not seen may have it");
    masters[3..].iter().for_each(RedisServer::cont);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_shown_with_their_time() {
    let (five, locks) = start(5, "ttl=60s").await;
    let _guard = take(&locks, "a").await;
    let before = SystemTime::now();
    let waiter = queue_up(&client(&five, "ttl=60s").await, "a").await;
    let state = locks.inspect("a").await.unwrap();
    let since = state.queue[0].since.expect("it says since when it waits");
    // In whole milliseconds.
    assert!(since + Duration::from_secs(60) > before && since <= SystemTime::now(), "{state:?}");
    assert_eq!((state.queue[0].owner(), state.waiters), (None, 1), "{state:?}");
    waiter.abort();
}
