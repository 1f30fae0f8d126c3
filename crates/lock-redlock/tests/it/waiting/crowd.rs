//! Many tasks at once, each with a lock of its own.

use futures_util::future::join_all;
use lock_core::Released;
use lock_testkit::{PATIENCE, by_tier, crowd, until};
use tokio::time::timeout;

use crate::common::{run, start};

/// With the defaults, whose timeouts are far shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_masters_grant_the_locks_of_a_crowd() {
    let tasks: usize = by_tier(2_000, 2_000, 20_000);
    let (masters, locks) = start(by_tier(3, 3, 5), "").await;
    let (guards, error) = crowd(&locks, tasks).await;
    // On a busy host a few answers come too late.
    let most = |count: usize| count * 100 >= tasks * 95;
    assert!(most(guards.len()), "{} of {tasks}: {error:?}", guards.len());
    for server in masters.servers() {
        let (claims, scripts) = (server.calls_of("set").await, server.calls_of("evalsha").await);
        assert!(claims + scripts <= 2 * tasks as u64, "{claims} claims and {scripts} scripts");
    }

    // They are held, and released.
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    assert!(most(valid), "{valid} of {tasks} are valid");
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(4 * PATIENCE, join_all(released)).await.expect("all of them end");
    let confirmed = released.iter().filter(|released| matches!(released, Ok(Ok(Released::Released)))).count();
    assert!(most(confirmed), "{confirmed} of {tasks} releases");
    // The others go on in the background.
    for server in masters.servers() {
        until("a lock is left", async || run(server, "KEYS lock:*").await.array() == Some(&[])).await;
    }
}
