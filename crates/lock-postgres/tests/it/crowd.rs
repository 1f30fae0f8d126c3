//! Many tasks at once, each with a lock of its own.

use std::time::Duration;

use futures_util::future::join_all;
use lock_core::ErrorKind;
use lock_testkit::{by_tier, crowd};
use tokio::time::{Instant, timeout};

use crate::site::{Site, connect, take, until};

const PATIENCE: Duration = Duration::from_secs(120);
const HELD: &str = "SELECT count(*) FROM polylock.lock WHERE owner IS NOT NULL OR queued";

/// With the defaults, whose timeouts are far shorter than all of it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_server_grants_the_locks_of_a_crowd() {
    let (site, tasks) = (Site::private().await, by_tier(5_000, 5_000, 20_000));
    let locks = connect(&site.url()).await.unwrap();
    let began = Instant::now();
    let (guards, error) = crowd(&locks, tasks).await;
    let took = began.elapsed();
    // On a busy host a few calls take too long.
    assert!(guards.len() * 100 >= tasks * 95, "{} of {tasks} in {took:?}: {error:?}", guards.len());
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'polylock%'";
    assert!(site.number(sessions).await <= 10, "twice the usual number");

    // They are held, and released as fast.
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let released = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let released = timeout(PATIENCE, join_all(released)).await.expect("all of them end");
    for error in released.into_iter().filter_map(|released| released.unwrap().err()) {
        // On a busy host; the release goes on in the background.
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    until("all are released", async || site.number(HELD).await == 0).await;
}

/// However many wait for their turn. Half of them give up before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_noticed_by_a_crowd_of_which_hardly_anything_is_sent() {
    let site = Site::private().await;
    let locks = connect(&site.url()).await.unwrap();
    take(&locks, "first").await.release().await.unwrap();
    site.server.stop();
    let acquired = (0..5000).map(|task| {
        let mutex = locks.mutex(format!("lock/{task}"));
        let patience = if task % 2 == 0 { PATIENCE } else { Duration::from_secs(1) };
        tokio::spawn(
            async move { timeout(patience, mutex.acquire()).await.map(|acquired| acquired.map(drop)) },
        )
    });
    let acquired = timeout(PATIENCE, join_all(acquired)).await.expect("all of them end");
    let ended: Vec<_> = acquired.into_iter().filter_map(|acquired| acquired.unwrap().ok()).collect();
    assert!(ended.len() >= 2500, "{}", ended.len());
    for ended in ended {
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    site.server.cont();
    timeout(PATIENCE, locks.backend().settle()).await.expect("the roll-backs end");
    assert_eq!(site.number(HELD).await, 0);
    let names = site.number("SELECT count(*) FROM polylock.lock").await;
    assert!(names <= 10, "{names} names were asked for over 4 connections");
    take(&locks, "next").await.release().await.unwrap();
}
