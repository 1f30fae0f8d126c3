//! Many tasks at once, each with a lock of its own.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::Released;
use lock_testkit::{RedisFive, by_tier, crowd, until};
use tokio::time::{Instant, timeout};

use crate::common::connect;

const PATIENCE: Duration = Duration::from_secs(120);

/// With the defaults, whose timeouts are far shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_masters_grant_the_locks_of_a_crowd() {
    let tasks: usize = by_tier(5_000, 5_000, 20_000);
    let masters = RedisFive::start_n(by_tier(3, 3, 5)).await.unwrap();
    let locks = connect(&masters.url()).await.unwrap();
    let began = Instant::now();
    let (guards, error) = crowd(&locks, tasks).await;
    let took = began.elapsed();
    assert!(guards.len() * 100 >= tasks * 95, "{} of {tasks} in {took:?}: {error:?}", guards.len());
    for server in masters.servers() {
        let (claims, scripts) = (server.calls_of("set").await, server.calls_of("evalsha").await);
        assert!(claims + scripts <= 2 * tasks as u64, "{claims} claims and {scripts} scripts");
    }

    // They are held, and released.
    let valid = guards.iter().filter(|guard| guard.is_valid()).count();
    assert!(valid * 100 >= tasks * 95, "{valid} of {tasks} are valid");
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(PATIENCE, join_all(released)).await.expect("all of them end");
    let confirmed = released.iter().filter(|released| matches!(released, Ok(Ok(Released::Released)))).count();
    // On a busy host a few are confirmed too late; they go on in the background.
    assert!(confirmed * 100 >= tasks * 95, "{confirmed} of {tasks} releases");
    for server in masters.servers() {
        until("a lock is left", async || {
            format!("{:?}", server.call(&["KEYS", "lock:*"]).await) == "Array([])"
        })
        .await;
    }
}
